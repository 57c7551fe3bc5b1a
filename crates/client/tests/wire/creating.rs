//! CREATE for open(2) of a name that another client, or this one, has created.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Arc;

use proto::nfs3::{Procedure, Status};
use spillway_client::{Error, FileSystem, Identity, Inode, OpenFlags, Result};
use tokio::task::JoinHandle;

use crate::fixture::{Fixture, options};
use crate::peer::within;
use crate::way::mount_on_a_way;

const USER: u32 = 1000;

/// The file system for a user whom the mode of a file restricts.
fn as_user(file_system: &FileSystem) -> FileSystem {
    file_system.as_user(&Arc::new(Identity { uid: USER, gid: USER, groups: Vec::new() }))
}

fn creating(fs: &FileSystem, name: &'static [u8], mode: u32) -> JoinHandle<Result<Arc<Inode>>> {
    let fs = fs.clone();
    tokio::spawn(async move { fs.create_for_open(&fs.root(), name, mode).await })
}

fn is_exist(error: Error) -> bool {
    error.is(Status::Exist)
}

#[tokio::test]
async fn a_created_file_is_opened_by_its_maker_after_a_lost_reply() {
    let fixture = Fixture::new().await;
    let everyone = fs::Permissions::from_mode(0o777);
    fs::set_permissions(fixture.exported(""), everyone).unwrap();
    let (way, file_system) = mount_on_a_way(&fixture, &options()).await;
    let user = as_user(&file_system);
    for (name, mode) in [("shut", 0o444), ("open", 0o644)] {
        way.lose(Procedure::Create);
        let made = within(creating(&user, name.as_bytes(), mode)).await.unwrap().unwrap();
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let file = user.open_created(&made, flags).unwrap();
        file.write_at(0, b"data").await.unwrap();
        file.close().await.unwrap();
        assert_eq!(fs::read(fixture.exported(name)).unwrap(), b"data");
    }
}

#[tokio::test]
async fn a_name_removed_since_its_create_was_refused_is_created() {
    let fixture = Fixture::new().await;
    let (way, file_system) = mount_on_a_way(&fixture, &options()).await;
    fs::write(fixture.exported("lock"), "theirs").unwrap();
    way.creates.begin();
    let create = creating(&file_system, b"lock", 0o644);
    within(way.creates.held.notified()).await;
    fs::remove_file(fixture.exported("lock")).unwrap();
    way.creates.end();
    within(create).await.unwrap().unwrap();
    assert_eq!(fs::read(fixture.exported("lock")).unwrap(), b"");
}

#[tokio::test]
async fn what_another_client_has_created_is_not_opened_without_its_permission() {
    let fixture = Fixture::new().await;
    let (_way, file_system) = mount_on_a_way(&fixture, &options()).await;
    let exported = |name| fixture.exported(name);
    for name in ["mode", "data", "links", "owner"] {
        fs::write(exported(name), if name == "data" { "data" } else { "" }).unwrap();
        let mode = fs::Permissions::from_mode(if name == "mode" { 0o600 } else { 0o644 });
        fs::set_permissions(exported(name), mode).unwrap();
    }
    fs::hard_link(exported("links"), exported("second")).unwrap();
    std::os::unix::fs::chown(exported("owner"), Some(USER), None).unwrap();
    symlink("data", exported("symlink")).unwrap();
    fs::create_dir(exported("dir")).unwrap();
    let names: [&[u8]; 6] = [b"mode", b"data", b"links", b"owner", b"symlink", b"dir"];
    for name in names {
        let created = within(creating(&file_system, name, 0o644)).await.unwrap();
        assert!(created.is_err_and(is_exist), "{}", name.escape_ascii());
    }
}
