//! Delegations of files that the server has closed for writing because they were not written.

use super::*;
use crate::fixture::set_mode;
use crate::programs::{PROGRAM, can_be_executed};

#[test]
fn a_file_that_is_written_no_more_is_executed_and_delegated_while_a_client_has_it_open() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let mut writer = Session::of(&fixture, b"writer", 1);
    let export = writer.export();
    let paths = ["closed", "held"].map(|name| {
        let (file, stateid) = writer.open(export, name.as_bytes());
        let stable = StableHow::Unstable;
        let write = WriteArgs { stateid, offset: 0, stable, data: PROGRAM };
        writer.ok(&Operations::new().at(file).op(OperationCode::Write, &write));
        if name == "closed" {
            let close = CloseArgs { seqid: 0, stateid };
            writer.ok(&Operations::new().at(file).op(OperationCode::Close, &close));
            open(&mut writer, export, name.as_bytes(), ShareAccess::Read).unwrap();
        }
        set_mode(&fixture.exported(name), 0o755);
        fixture.exported(name)
    });
    // The one that a client has open for writing stays so.
    let [closed, held] = paths;
    assert!(eventually(|| can_be_executed(&closed)));
    assert!(!can_be_executed(&held));
    holder.delegated(b"closed");
}

/// Without privileges the server opens the file for writing first, which breaks its own lease; this
/// test runs as a user too.
#[test]
fn a_file_is_written_after_the_holder_of_its_delegation_has_changed_its_mode() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let (mut other, root) = fixture.mounted();
    let object = other.create(root, "program");
    client::ok(other.setattr(object, client::mode(0o700)));
    client::ok(other.write(object, 0, PROGRAM));
    assert!(eventually(|| {
        other.getattr(object).unwrap();
        can_be_executed(&fixture.exported("program"))
    }));
    let (file, delegation) = holder.delegated(b"program");
    let call = chmod(file, 0o500);
    match holder.session.call(&call).status {
        Ok(()) => assert_eq!(holder.give_back(file, delegation), Ok(())),
        Err(status) => {
            assert_eq!(status, Status::Delay);
            holder.obey(file, delegation);
            assert_eq!(holder.session.call(&call).status, Ok(()));
        }
    }
    client::ok(other.write(object, 0, PROGRAM));
}

/// Without privileges the server opens the file for writing while it may; this test runs as a user
/// too.
#[test]
fn a_file_is_written_after_a_change_of_its_mode_that_came_before_the_first_write() {
    let fixture = fixture();
    std::fs::write(fixture.exported("f"), "").unwrap();
    let mut writer = Session::of(&fixture, b"writer", 1);
    let export = writer.export();
    let (file, stateid) = writer.open(export, b"f");
    writer.ok(&chmod(file, 0o444));
    let stable = StableHow::Unstable;
    let write = WriteArgs { stateid, offset: 0, stable, data: PROGRAM };
    writer.ok(&Operations::new().at(file).op(OperationCode::Write, &write));
}

#[test]
fn a_file_that_a_client_reads_is_executed_after_a_change_of_its_mode() {
    let fixture = fixture();
    std::fs::write(fixture.exported("f"), PROGRAM).unwrap();
    let mut reader = Session::of(&fixture, b"reader", 1);
    let export = reader.export();
    let (file, _) = open(&mut reader, export, b"f", ShareAccess::Read).unwrap();
    reader.ok(&chmod(file, 0o555));
    assert!(eventually(|| can_be_executed(&fixture.exported("f"))));
}
