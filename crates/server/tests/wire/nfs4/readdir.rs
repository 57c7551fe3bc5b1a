//! READDIR: the attributes of entries.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use proto::nfs4::*;
use proto::xdr::Decode;

use super::client::{ALL_VERSIONS, Operations, Session};
use crate::client::Ids;
use crate::fixture::{Fixture, Mounted, is_root};

/// As FreeBSD lists without attributes; it hides the entries that have an error.
const DIRENT: [u32; 4] =
    [attribute::TYPE, attribute::RDATTR_ERROR, attribute::FILEID, attribute::MOUNTED_ON_FILEID];

/// The status, type and number of the first entry in a directory.
fn first(
    session: &mut Session,
    at: &Operations,
    wanted: &[u32],
) -> (Option<u32>, Option<FileType>, Option<u64>) {
    let (cookie, verifier, wanted) = (0, Verifier::default(), Bitmap::of(wanted));
    let args = ReaddirArgs { cookie, verifier, dir_bytes: 0, bytes_max: 4096, wanted };
    let mut results = session.ok(&at.clone().op(OperationCode::Readdir, &args));
    let listed = results.skip(&at.codes()).next_with(OperationCode::Readdir, |r| {
        let ok = ReaddirOk::decode(r).unwrap();
        let attributes = ok.entries.iter().next().unwrap().attributes;
        (attributes.rdattr_error, attributes.file_type, attributes.fileid)
    });
    listed.unwrap()
}

#[test]
fn a_listing_of_types_needs_no_right_to_search() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::with(ALL_VERSIONS);
    let dir = fixture.exported("dir");
    std::fs::create_dir(&dir).unwrap();
    std::fs::create_dir(dir.join("inner")).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o744)).unwrap();
    let fileid = Some(std::fs::metadata(dir.join("inner")).unwrap().ino());
    let mut session = Session::new(&fixture);
    session.client.ids = Some(Ids::user(1000));
    let at = Operations::new().at(session.export()).lookup(b"dir");
    let directory = Some(FileType::Directory);
    assert_eq!(first(&mut session, &at, &DIRENT), (Some(NFS4_OK), directory, fileid));
    let more = [attribute::TYPE, attribute::RDATTR_ERROR, attribute::SIZE];
    let denied = Some(Status::Access.code());
    assert_eq!(first(&mut session, &at, &more), (denied, directory, None));
}

#[test]
fn a_listing_of_types_does_not_read_the_root_of_an_export() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::with(ALL_VERSIONS);
    let (lower, upper) = (fixture.path("lower"), fixture.path("upper"));
    std::fs::create_dir(&upper).unwrap();
    // A file system whose attributes may come from another one.
    let Some(_mounted) = Mounted::overlay(&lower, &upper, &fixture.exported("")) else { return };
    fixture.reload(ALL_VERSIONS);
    let fileid = Some(std::fs::metadata(fixture.exported("")).unwrap().ino());
    let mut session = Session::new(&fixture);
    let (root, directory) = (Operations::new().root(), Some(FileType::Directory));
    assert_eq!(first(&mut session, &root, &DIRENT), (Some(NFS4_OK), directory, fileid));
    let more = [attribute::TYPE, attribute::RDATTR_ERROR, attribute::SIZE];
    let delayed = Some(Status::Delay.code());
    assert_eq!(first(&mut session, &root, &more), (delayed, directory, None));
}
