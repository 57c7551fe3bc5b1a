//! Files that one client makes while another opens them.

use super::*;

/// Its retry would find the file made.
#[test]
fn an_open_that_makes_a_file_is_not_put_off_by_a_delegation_of_it() {
    let syncing = ALL_VERSIONS.replace("sync = false", "sync = true");
    let fixture = with_files(Fixture::with(&syncing));
    let mut holder = Holder::new(&fixture, b"holder");
    let mut maker = Session::of(&fixture, b"maker", 1);
    let export = holder.export;
    let names: Vec<_> = (0..500).map(|number| format!("new{number}")).collect();
    let to_read = names.clone();
    let reading = thread::spawn(move || {
        for name in to_read {
            let (file, opened) = loop {
                match holder.open(name.as_bytes(), ShareAccess::Read) {
                    Ok(opened) => break opened,
                    Err(status) => assert_eq!(status, Status::Noent),
                }
            };
            close(&mut holder.session, file, opened.stateid);
        }
    });
    let mode = 0o644_u32.to_be_bytes();
    for name in names {
        let raw = RawAttributes { bitmap: Bitmap::of(&[attribute::MODE]), values: &mode };
        let claim = OpenClaim::Null(name.as_bytes());
        let args = open_args(ShareAccess::Both, OpenHow::Guarded(raw), claim);
        let call = Operations::new().at(export).op(OperationCode::Open, &args).getfh();
        let mut results = maker.call(&call);
        assert_eq!(results.status, Ok(()), "{name}");
        let opened: OpenOk =
            results.skip(&[OperationCode::Putfh]).next(OperationCode::Open).unwrap();
        close(&mut maker, results.handle(), opened.stateid);
    }
    reading.join().unwrap();
}

fn close(session: &mut Session, file: FileHandle, stateid: Stateid) {
    let close = CloseArgs { seqid: 0, stateid };
    session.ok(&Operations::new().at(file).op(OperationCode::Close, &close));
}
