//! Every procedure, called on a server in this process.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;

use bytes::Bytes;
use proto::mount3::MountStatus;
use proto::nfs3::{
    ACCESS_EXECUTE, ACCESS_MODIFY, ACCESS_READ, CookieVerifier, CreateHow, FSF_SYMLINK, FileHandle,
    FileType, MknodData, SetAttributes, SetTime, StableHow, Status, Time,
};
use rustix::io::Errno;
use spillway_client::mount3::{self, Mount3, Mounted};
use spillway_client::nfs3::{Flavor, Name};
use spillway_client::{Error, Identity, Nfs3};

use crate::fixture::{Fixture, options, root_user};
use crate::skip::skip;

async fn mounted(fixture: &Fixture) -> (Nfs3, FileHandle) {
    let Mounted { nfs, root } =
        mount3::mount(&fixture.url(), &options(), &root_user()).await.unwrap();
    (nfs, root)
}

/// A new file, with a mode.
async fn create(nfs: &Nfs3, dir: FileHandle, name: &str, mode: u32) -> FileHandle {
    let how = CreateHow::Guarded(with_mode(mode));
    nfs.create(dir, name.as_bytes(), how).await.unwrap().object.unwrap()
}

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

#[track_caller]
fn assert_status<T: std::fmt::Debug>(result: Result<T, Error>, status: Status) {
    let error = result.unwrap_err();
    assert!(error.is(status), "{error}");
}

#[tokio::test]
async fn data_is_written_committed_and_read() {
    let fixture = Fixture::new().await;
    let (nfs, root) = mounted(&fixture).await;
    nfs.null().await.unwrap();
    let file = create(&nfs, root, "file", 0o644).await;
    // Padded on the wire, and more than one batch.
    let data: Bytes = (0..1_000_001).map(|i: u32| i.to_le_bytes()[1]).collect();
    let written = nfs.write(file, 0, data.clone(), StableHow::Unstable).await.unwrap();
    assert_eq!(written.count, 1_000_001);
    let committed = nfs.commit(file, 0, 0).await.unwrap();
    assert_eq!(committed.verifier, written.verifier);
    assert_eq!(committed.wcc.after.unwrap().size, 1_000_001);
    let read = nfs.read(file, 3, 500_000).await.unwrap();
    assert_eq!((read.eof, &read.data[..]), (false, &data[3..500_003]));
    assert_eq!(read.attributes.unwrap().size, 1_000_001);
    let read = nfs.read(file, 500_003, 1_000_000).await.unwrap();
    assert_eq!((read.eof, &read.data[..]), (true, &data[500_003..]));
    let beyond = nfs.read(file, 2_000_000, 10).await.unwrap();
    assert_eq!((beyond.eof, beyond.data.len()), (true, 0));
    let stable = nfs.write(file, 7, Bytes::from_static(b"now"), StableHow::FileSync).await.unwrap();
    assert_eq!((stable.count, stable.committed), (3, StableHow::FileSync));
    let nothing = nfs.write(file, 7, Bytes::new(), StableHow::Unstable).await.unwrap();
    assert_eq!(nothing.count, 0);
    assert_eq!(fs::read(fixture.exported("file")).unwrap()[7..10], *b"now");
}

#[tokio::test]
async fn attributes_are_read_and_set() {
    let fixture = Fixture::new().await;
    let (nfs, root) = mounted(&fixture).await;
    let file = create(&nfs, root, "file", 0o640).await;
    let before = nfs.getattr(file).await.unwrap();
    assert_eq!((before.file_type, before.mode, before.size), (FileType::Regular, 0o640, 0));
    let mtime = Time { seconds: 1_000_000_000, nseconds: 5 };
    let set = SetAttributes {
        mode: Some(0o755),
        size: Some(12),
        mtime: SetTime::ToClientTime(mtime),
        ..SetAttributes::default()
    };
    let wcc = nfs.setattr(file, set, Some(before.ctime)).await.unwrap().wcc;
    let after = wcc.after.unwrap();
    assert_eq!((after.mode, after.size, after.mtime), (0o755, 12, mtime));
    let guarded = nfs.setattr(file, with_mode(0), Some(Time::default())).await;
    assert_status(guarded, Status::NotSync);
    let wanted = ACCESS_READ | ACCESS_MODIFY | ACCESS_EXECUTE;
    assert_eq!(nfs.access(file, wanted).await.unwrap().access, wanted);
}

#[tokio::test]
async fn names_are_made_found_moved_and_removed() {
    let fixture = Fixture::new().await;
    let (nfs, root) = mounted(&fixture).await;
    let file = create(&nfs, root, "file", 0o644).await;
    assert_eq!(nfs.lookup(root, b"file").await.unwrap().object, file);
    let exclusive = CreateHow::Exclusive(*b"verifier");
    let made = nfs.create(root, b"exclusive", exclusive).await.unwrap().object.unwrap();
    let again = nfs.create(root, b"exclusive", exclusive).await.unwrap().object.unwrap();
    assert_eq!(made, again);
    let other = nfs.create(root, b"exclusive", CreateHow::Exclusive(*b"VERIFIER")).await;
    assert_status(other, Status::Exist);
    let dir = nfs.mkdir(root, b"dir", with_mode(0o750)).await.unwrap();
    assert_eq!(dir.attributes.unwrap().mode, 0o750);
    let dir = dir.object.unwrap();
    nfs.link(file, dir, b"link").await.unwrap();
    assert_eq!(fs::metadata(fixture.exported("dir/link")).unwrap().nlink(), 2);
    nfs.rename(root, b"exclusive", dir, b"moved\xff").await.unwrap();
    assert_eq!(nfs.lookup(dir, b"moved\xff").await.unwrap().object, made);
    assert_status(nfs.rmdir(root, b"dir").await, Status::Notempty);
    assert!(nfs.remove(dir, b"moved\xff").await.unwrap().dir_wcc.after.is_some());
    nfs.remove(dir, b"link").await.unwrap();
    nfs.rmdir(root, b"dir").await.unwrap();
    assert_status(nfs.lookup(root, b"dir").await, Status::Noent);
    assert_status(nfs.getattr(dir).await, Status::Stale);
}

#[tokio::test]
async fn links_and_special_files_are_made() {
    let fixture = Fixture::new().await;
    let (nfs, root) = mounted(&fixture).await;
    let unset = SetAttributes::default();
    let link = nfs.symlink(root, b"link", b"to/there", unset).await.unwrap().object.unwrap();
    let target = nfs.readlink(link).await.unwrap();
    assert_eq!(target.target, b"to/there".as_slice());
    assert_eq!(target.attributes.unwrap().file_type, FileType::Symlink);
    assert_status(nfs.readlink(root).await, Status::Inval);
    nfs.mknod(root, b"fifo", MknodData::Fifo(with_mode(0o600))).await.unwrap();
    assert!(fs::metadata(fixture.exported("fifo")).unwrap().file_type().is_fifo());
    assert_status(
        nfs.mknod(root, b"x", MknodData::Other(FileType::Regular)).await,
        Status::Badtype,
    );
}

#[tokio::test]
async fn directories_are_listed() {
    let fixture = Fixture::new().await;
    let (nfs, root) = mounted(&fixture).await;
    let mut expected = Vec::new();
    for i in 0..500 {
        let name = format!("name-{i:03}");
        fs::write(fixture.exported(&name), name.as_bytes()).unwrap();
        expected.push(Bytes::from(name));
    }
    expected.extend([".", ".."].map(|name| Bytes::from_static(name.as_bytes())));
    expected.sort();
    for plus in [false, true] {
        let mut names: Vec<Name> = Vec::new();
        let (mut cookie, mut verifier) = (0, CookieVerifier::default());
        loop {
            let page = if plus {
                nfs.readdirplus(root, cookie, verifier, 2000, 8000).await.unwrap()
            } else {
                nfs.readdir(root, cookie, verifier, 2000).await.unwrap()
            };
            assert_eq!(page.dir_attributes.unwrap().file_type, FileType::Directory);
            names.extend(page.names);
            if page.eof {
                break;
            }
            (cookie, verifier) = (names.last().unwrap().cookie, page.verifier);
        }
        let mut seen: Vec<_> = names.iter().map(|name| name.name.clone()).collect();
        seen.sort();
        assert_eq!(seen, expected, "plus: {plus}");
        let some = names.iter().find(|name| name.name == "name-007").unwrap();
        assert_eq!(some.attributes.is_some(), plus);
        if let Some(handle) = some.handle {
            assert_eq!(nfs.read(handle, 0, 100).await.unwrap().data, "name-007");
        }
        assert_eq!(some.fileid, fs::metadata(fixture.exported("name-007")).unwrap().ino());
    }
    assert_status(nfs.readdir(root, 0, CookieVerifier::default(), 8).await, Status::Toosmall);
}

#[tokio::test]
async fn the_file_system_is_described() {
    let fixture = Fixture::new().await;
    let (nfs, root) = mounted(&fixture).await;
    let stat = nfs.fsstat(root).await.unwrap();
    assert!(stat.tbytes >= stat.fbytes && stat.fbytes >= stat.abytes && stat.abytes > 0);
    let info = nfs.fsinfo(root).await.unwrap();
    assert!(info.rtmax >= 4096 && info.wtmax >= 4096 && info.dtpref >= 4096);
    assert!(info.properties & FSF_SYMLINK != 0);
    let conf = nfs.pathconf(root).await.unwrap();
    assert_eq!((conf.name_max, conf.case_preserving), (255, true));
}

#[tokio::test]
async fn a_call_is_made_for_its_user() {
    let fixture = Fixture::new().await;
    let (nfs, root) = mounted(&fixture).await;
    let file = create(&nfs, root, "file", 0o040).await;
    if !rustix::process::geteuid().is_root() {
        return skip("only root can act as other users");
    }
    let set = SetAttributes { uid: Some(11), gid: Some(22), ..SetAttributes::default() };
    nfs.setattr(file, set, None).await.unwrap();
    let user = |gid, groups: &[u32]| {
        nfs.as_user(&Arc::new(Identity { uid: 33, gid, groups: groups.to_vec() }))
    };
    assert_eq!(nfs.read(file, 0, 1).await.unwrap().data.len(), 0);
    assert_status(user(44, &[]).read(file, 0, 1).await, Status::Acces);
    user(22, &[]).read(file, 0, 1).await.unwrap();
    user(44, &[1, 2, 22]).read(file, 0, 1).await.unwrap();
    // AUTH_SYS has room for 16 groups.
    let mut groups: Vec<u32> = (100..115).chain([22, 200]).collect();
    user(44, &groups).read(file, 0, 1).await.unwrap();
    groups.swap(15, 16);
    assert_status(user(44, &groups).read(file, 0, 1).await, Status::Acces);
    let (user, options) = (root_user(), options());
    let anonymous = Nfs3::connect(fixture.address(), Flavor::None, &user, &options).await.unwrap();
    anonymous.getattr(file).await.unwrap();
    assert_status(anonymous.read(file, 0, 1).await, Status::Acces);
}

#[tokio::test]
async fn calls_are_made_as_the_user_in_the_url() {
    let fixture = Fixture::new().await;
    let mut url = fixture.url();
    (url.uid, url.gid) = (Some(7), Some(8));
    let mounted = mount3::mount(&url, &options(), &root_user()).await.unwrap();
    let expected = Identity { uid: 7, gid: 8, groups: Vec::new() };
    assert_eq!(**mounted.nfs.identity(), expected);
}

#[tokio::test]
async fn mounts_are_listed_and_refused() {
    let fixture = Fixture::new().await;
    let (_, root) = mounted(&fixture).await;
    let mount = Mount3::find(&fixture.url(), &options(), &root_user()).await.unwrap();
    assert_eq!(mount.nfs_address(), fixture.address());
    let exports = mount.export().await.unwrap();
    assert_eq!(exports.len(), 1);
    assert_eq!(exports[0].directory, b"/export");
    let (handle, flavors) = mount.mnt(b"/export").await.unwrap();
    assert_eq!((handle, &flavors[..]), (root, &[1][..]));
    let mounts = mount.dump().await.unwrap();
    assert_eq!(mounts.len(), 1);
    assert_eq!(
        (&mounts[0].hostname[..], &mounts[0].directory[..]),
        (&b"127.0.0.1"[..], &b"/export"[..])
    );
    mount.umnt(b"/export").await.unwrap();
    assert_eq!(mount.dump().await.unwrap(), []);
    let refused = mount.mnt(b"/nowhere").await.unwrap_err();
    assert!(matches!(refused, Error::Mount { status: MountStatus::Noent }), "{refused}");
    let too_long = mount.mnt(&[b'/'; 2000]).await.unwrap_err();
    assert_eq!(too_long.errno(), Errno::NAMETOOLONG);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_with_its_port() {
    // Bound and not listening, so that no other process gets it meanwhile.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let url = format!("nfs://localhost:{port}/export").parse().unwrap();
    let error = mount3::mount(&url, &options(), &root_user()).await.unwrap_err();
    assert_eq!(error.errno(), Errno::CONNREFUSED);
    let text = error.to_string();
    assert!(text.starts_with(&format!("cannot connect to localhost:{port}: ")), "{text}");
}

#[tokio::test]
async fn many_calls_share_many_connections() {
    let fixture = Fixture::new().await;
    let mut options = options();
    options.nconnect = 4;
    let Mounted { nfs, root } =
        mount3::mount(&fixture.url(), &options, &root_user()).await.unwrap();
    let file = create(&nfs, root, "file", 0o644).await;
    let blocks = 500_u64;
    let block = |i: u64| Bytes::from(i.to_be_bytes().repeat(512));
    let writes: Vec<_> = (0..blocks)
        .map(|i| tokio::spawn(nfs.write(file, i * 4096, block(i), StableHow::Unstable)))
        .collect();
    for write in writes {
        assert_eq!(write.await.unwrap().unwrap().count, 4096);
    }
    let reads: Vec<_> = (0..blocks).map(|i| tokio::spawn(nfs.read(file, i * 4096, 4096))).collect();
    for (i, read) in reads.into_iter().enumerate() {
        assert_eq!(read.await.unwrap().unwrap().data, block(u64::try_from(i).unwrap()));
    }
}
