//! Calls that are refused: no delegation has to be returned for them.

use std::os::unix::fs::chown;

use rustix::fs::{XattrFlags, setxattr};

use super::*;
use crate::skip::skip_in_ci_too;

#[test]
fn a_call_that_is_refused_recalls_no_delegation() {
    let name = "name = \"/read-only\"\nread_only = true";
    let read_only = format!("[[export]]\npath = \"$DIR/export\"\n{name}\nsquash = \"none\"");
    let fixture = with_files(Fixture::with(&format!("{ALL_VERSIONS}\n{read_only}")));
    set_mode(&fixture.exported("a"), 0o644);
    let mut holder = Holder::new(&fixture, b"holder");
    holder.delegated(b"a");
    let mut reader = fixture.client();
    let root = reader.mnt("/read-only");
    let file = reader.find(root, "a");
    for change in [client::mode(0o600), client::size(1)] {
        assert_eq!(client::refusal(reader.setattr(file, change)), nfs3::Status::Rofs);
    }
    assert_eq!(client::refusal(reader.write(file, 0, b"new")), nfs3::Status::Rofs);
    assert_eq!(fixture.figure("nfs4_delegations_recalled"), 0);
}

#[test]
fn a_user_who_may_not_change_a_file_recalls_no_delegation() {
    if !is_root() {
        return;
    }
    let fixture = fixture();
    let [own, sticky] = ["own", "sticky"].map(|name| fixture.exported(name));
    [&own, &sticky].into_iter().for_each(|directory| fs::create_dir(directory).unwrap());
    chown(&own, Some(4321), None).unwrap();
    for (name, mode) in [("", 0o755), ("a", 0o644), ("own", 0o755), ("sticky", 0o1777)] {
        set_mode(&fixture.exported(name), mode);
    }
    fs::write(own.join("mine"), "").unwrap();
    fs::hard_link(fixture.exported("a"), sticky.join("a")).unwrap();
    let mut holder = Holder::new(&fixture, b"holder");
    holder.delegated(b"a");
    let (mut root_user, root) = fixture.mounted();
    let mut stranger = fixture.client().becoming(Ids::user(4321));
    let [own, sticky, file] = ["own", "sticky", "a"].map(|name| stranger.find(root, name));
    let (denied, not_owner) = (nfs3::Status::Acces, nfs3::Status::Perm);
    assert_eq!(client::refusal(stranger.write(file, 0, b"new")), denied);
    for (change, status) in [(client::mode(0o666), not_owner), (client::size(1), denied)] {
        assert_eq!(client::refusal(stranger.setattr(file, change)), status);
    }
    assert_eq!(client::refusal(stranger.remove(root, b"a")), denied);
    assert_eq!(client::refusal(stranger.remove(sticky, b"a")), not_owner);
    assert_eq!(client::refusal(stranger.rename((root, b"a"), (own, b"a"))), denied);
    assert_eq!(client::refusal(stranger.rename((sticky, b"a"), (own, b"a"))), not_owner);
    assert_eq!(client::refusal(stranger.rename((own, b"mine"), (root, b"a"))), denied);
    assert_eq!(client::refusal(stranger.link(file, root, b"link")), denied);
    assert_eq!(client::refusal(stranger.link(file, own, b"mine")), nfs3::Status::Exist);
    let protected = fs::read_to_string("/proc/sys/fs/protected_hardlinks");
    if protected.is_ok_and(|value| value.starts_with('1')) {
        assert_eq!(client::refusal(stranger.link(file, own, b"link")), not_owner);
    }
    // Nor one who asks for nothing: two names of one object stay, whatever their directories are.
    stranger.setattr(file, nfs3::SetAttributes::default()).unwrap();
    stranger.rename((root, b"a"), (sticky, b"a")).unwrap();
    // Nor one who may, by a call that does not change what is delegated.
    assert_eq!(client::refusal(root_user.rmdir(root, b"a")), nfs3::Status::Notdir);
    assert_eq!(
        client::refusal(root_user.rename((root, b"none"), (root, b"a"))),
        nfs3::Status::Noent
    );
    let mut stranger = Session::over(stranger, b"stranger", 2, CHANNEL);
    let (object, _) = open(&mut stranger, holder.export, b"a", ShareAccess::Read).unwrap();
    let args = SetxattrArgs { option: SetxattrOption::Either, name: b"colour", value: b"red" };
    let call = Operations::new().at(object).op(OperationCode::Setxattr, &args);
    assert_eq!(stranger.call(&call).status, Err(Status::Access));
    assert_eq!(fixture.figure("nfs4_delegations_recalled"), 0);
}

#[test]
fn an_extended_attribute_that_is_not_as_demanded_recalls_no_delegation() {
    let fixture = fixture();
    if setxattr(fixture.exported("a"), "user.there", b"1", XattrFlags::empty()).is_err() {
        return skip_in_ci_too("no extended attributes");
    }
    let mut holder = Holder::new(&fixture, b"holder");
    holder.delegated(b"a");
    let mut other = Session::of(&fixture, b"other", 2);
    let (object, _) = open(&mut other, holder.export, b"a", ShareAccess::Read).unwrap();
    let mut call = |operations: Operations| other.call(&operations).status;
    let at = || Operations::new().at(object);
    let set = |option, name| {
        at().op(OperationCode::Setxattr, &SetxattrArgs { option, name, value: b"2" })
    };
    assert_eq!(call(set(SetxattrOption::Create, b"there")), Err(Status::Exist));
    assert_eq!(call(set(SetxattrOption::Replace, b"missing")), Err(Status::Noxattr));
    let remove = at().op(OperationCode::Removexattr, &NameArgs { name: b"missing" });
    assert_eq!(call(remove), Err(Status::Noxattr));
    assert_eq!(fixture.figure("nfs4_delegations_recalled"), 0);
    let would_succeed = set(SetxattrOption::Create, b"missing");
    assert_eq!(call(would_succeed), Err(Status::Delay));
    assert_eq!(fixture.figure("nfs4_delegations_recalled"), 1);
}
