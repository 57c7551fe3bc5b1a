//! Walks through trees of a server that shows what no file system has: listings that come back to
//! where they were, directories without end, and objects that are not found once they were created.
//! Each command ends, with an error. And READs that end before the file does.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::thread;

use proto::mount3::{self, MountOk};
use proto::nfs3::{self, *};
use proto::oncrpc::{AcceptStat, ReplyHeader, decode_call, encode_success};
use proto::xdr::{Decode, Encode, List, Reader, Writer};
use rpc::record;
use tempfile::TempDir;

use crate::fixture::{assert_exit, run, succeeded, text};

/// More than any call that is not a WRITE.
const CALL_BYTES_MAX: usize = 16 << 10;

/// The entries below each directory: in the first four trees one, a directory `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tree {
    /// The root has its entry again and again.
    RepeatedCookies,
    /// A directory is below itself.
    Circular,
    /// Each directory is a new one.
    Endless,
    /// The directory in the root is removed after it was listed.
    Removed,
    /// The root has `d` three times: empty, then with a file `x`, and with a link `x`.
    LinkAndFile,
    /// The same, with a directory `x` that has a file `inner` in the place of the file.
    LinkAndDirectory,
    /// The root alone. What is created in it has no handle, and LOOKUP does not find it.
    Unseen,
    /// The root is a file, of which the first READ returns a part as if that were all.
    Grown,
}

/// The objects of the trees with links that are no directories.
const LINK: u64 = 1 << 32;
const FILE: u64 = LINK + 1;
/// Where the link leads: beside the copy.
const TARGET: &[u8] = b"../../victim";
const DATA: &[u8] = b"of the server";
/// The path that is mounted.
const ROOT: &[u8] = b"e";

/// A directory by its depth.
fn handle(depth: u64) -> FileHandle {
    FileHandle::new(&depth.to_be_bytes()).unwrap()
}

fn depth_of(handle: FileHandle) -> u64 {
    u64::from_be_bytes(handle.as_bytes().try_into().unwrap())
}

fn attributes(depth: u64) -> Attributes {
    let (file_type, size) = match depth {
        LINK => (FileType::Symlink, TARGET.len() as u64),
        FILE => (FileType::Regular, DATA.len() as u64),
        _ => (FileType::Directory, 4096),
    };
    Attributes {
        file_type,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        size,
        used: 4096,
        rdev: DeviceSpec::default(),
        fsid: 1,
        fileid: depth + 1,
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
    }
}

impl Tree {
    /// Serves until the test ends, and returns the URL of the root.
    fn serve(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                thread::spawn(move || self.serve_one(client));
            }
        });
        let port = address.port();
        let root = text(ROOT);
        format!("nfs://{address}/{root}?mountport={port}")
    }

    fn serve_one(self, mut client: TcpStream) {
        while let Some(call) = record::read_blocking(&mut client, CALL_BYTES_MAX).unwrap() {
            // The command may have ended.
            let _ = client.write_all(&record::encode(|w| match self {
                Self::Unseen => self.answer_unseen(&call, w),
                _ => self.answer(&call, w),
            }));
        }
    }

    fn answer_unseen(self, call: &[u8], w: &mut Writer) {
        let header = decode_call(&mut Reader::new(call)).unwrap();
        let procedure = Procedure::from_code(header.procedure);
        match procedure.filter(|_| header.program == nfs3::PROGRAM) {
            Some(Procedure::Lookup) => {
                encode_success(w, header.xid);
                LookupReply::Err(Failure { status: Status::Noent, body: None }).encode(w);
            }
            Some(Procedure::Create | Procedure::Mkdir | Procedure::Symlink) => {
                encode_success(w, header.xid);
                let dir_wcc = WccData::default();
                CreatedReply::Ok(CreatedOk { object: None, attributes: None, dir_wcc }).encode(w);
            }
            _ => self.answer(call, w),
        }
    }

    fn answer(self, call: &[u8], w: &mut Writer) {
        let mut r = Reader::new(call);
        let header = decode_call(&mut r).unwrap();
        let xid = header.xid;
        if header.program == mount3::PROGRAM {
            encode_success(w, xid);
            return self.mount(header.procedure, w);
        }
        let refused = |w: &mut Writer| {
            ReplyHeader::Accepted { xid, stat: AcceptStat::ProcUnavail }.encode(w);
        };
        match Procedure::from_code(header.procedure).unwrap() {
            Procedure::Null => encode_success(w, xid),
            Procedure::Fsinfo => {
                encode_success(w, xid);
                FsinfoReply::Ok(fsinfo()).encode(w);
            }
            Procedure::Getattr => {
                let depth = depth_of(GetattrArgs::decode(&mut r).unwrap().object);
                encode_success(w, xid);
                GetattrReply::Ok(GetattrOk { attributes: attributes(depth) }).encode(w);
            }
            Procedure::Lookup => {
                let args = LookupArgs::decode(&mut r).unwrap();
                encode_success(w, xid);
                self.look_up(args.what, w);
            }
            Procedure::Readdir => {
                let args = ReaddirArgs::decode(&mut r).unwrap();
                encode_success(w, xid);
                self.list(depth_of(args.dir), args.cookie, false, w);
            }
            Procedure::Readdirplus => {
                let args = ReaddirplusArgs::decode(&mut r).unwrap();
                encode_success(w, xid);
                self.list(depth_of(args.dir), args.cookie, true, w);
            }
            Procedure::Setattr => {
                encode_success(w, xid);
                SetattrReply::Ok(SetattrOk { wcc: WccData::default() }).encode(w);
            }
            Procedure::Rmdir | Procedure::Remove => {
                encode_success(w, xid);
                let body = WccData::default();
                RemovedReply::Err(Failure { status: Status::Notempty, body }).encode(w);
            }
            Procedure::Readlink => {
                encode_success(w, xid);
                ReadlinkReply::Ok(ReadlinkOk { attributes: None, target: TARGET }).encode(w);
            }
            Procedure::Read => {
                let data = self.data(ReadArgs::decode(&mut r).unwrap());
                encode_success(w, xid);
                ReadReply::Ok(data).encode(w);
            }
            Procedure::Access
            | Procedure::Write
            | Procedure::Create
            | Procedure::Mkdir
            | Procedure::Symlink
            | Procedure::Mknod
            | Procedure::Rename
            | Procedure::Link
            | Procedure::Fsstat
            | Procedure::Pathconf
            | Procedure::Commit => refused(w),
        }
    }

    fn look_up(self, DirOp { dir, name }: DirOp<'_>, w: &mut Writer) {
        if name == ROOT {
            // The directory above is another one.
            LookupReply::Err(Failure { status: Status::Noent, body: None }).encode(w);
            return;
        }
        let depth = self.below(depth_of(dir));
        let (object, object_attributes) = (handle(depth), Some(attributes(depth)));
        LookupReply::Ok(LookupOk { object, object_attributes, dir_attributes: None }).encode(w);
    }

    fn mount(self, procedure: u32, w: &mut Writer) {
        if procedure == mount3::Procedure::Mnt as u32 {
            let file_handle = handle(if self == Self::Grown { FILE } else { 0 });
            let auth_flavors = [1][..].into();
            Ok::<_, mount3::MountStatus>(MountOk { file_handle, auth_flavors }).encode(w);
        } else {
            List::<mount3::ExportNode<'_>>::from(&[][..]).encode(w);
        }
    }

    /// The depth of the directory `d` in the one at `depth`.
    fn below(self, depth: u64) -> u64 {
        match self {
            Self::RepeatedCookies | Self::Endless | Self::Removed => depth + 1,
            Self::Circular => 1,
            Self::LinkAndFile | Self::LinkAndDirectory | Self::Unseen | Self::Grown => {
                panic!("all handles are in the listings")
            }
        }
    }

    /// A part of the file.
    fn data(self, ReadArgs { offset, count, .. }: ReadArgs) -> ReadOk<'static> {
        let start = DATA.len().min(usize::try_from(offset).unwrap());
        let end = if self == Self::Grown && start == 0 { 5 } else { DATA.len() };
        let end = end.min(start + usize::try_from(count).unwrap());
        let (attributes, data) = (Some(attributes(FILE)), &DATA[start..end]);
        ReadOk { attributes, count: u32::try_from(data.len()).unwrap(), eof: true, data }
    }

    /// The entries of a directory.
    fn entries(self, depth: u64) -> Vec<(&'static [u8], u64)> {
        match (self, depth) {
            (Self::LinkAndFile | Self::LinkAndDirectory, 0) => {
                vec![(b"d", 1), (b"d", 2), (b"d", 3)]
            }
            (Self::LinkAndFile, 2) => vec![(b"x", FILE)],
            (Self::LinkAndDirectory, 2) => vec![(b"x", 4)],
            (Self::LinkAndFile | Self::LinkAndDirectory, 3) => vec![(b"x", LINK)],
            (Self::LinkAndDirectory, 4) => vec![(b"inner", FILE)],
            (Self::LinkAndFile | Self::LinkAndDirectory, _) => vec![],
            _ => vec![(b"d", self.below(depth))],
        }
    }

    /// The page of a listing behind `cookie`.
    fn list(self, depth: u64, cookie: u64, plus: bool, w: &mut Writer) {
        if self == Self::Removed && depth > 0 {
            ReaddirplusReply::Err(Failure { status: Status::Stale, body: None }).encode(w);
            return;
        }
        let repeats = self == Self::RepeatedCookies;
        // The first directory of those with repeated cookies is listed for ever, the second is
        // empty.
        let is_empty = if repeats { depth > 0 } else { cookie > 0 };
        let entries = if is_empty { vec![] } else { self.entries(depth) };
        // All repeated cookies are the same, the others go up from it.
        let entries = (7..).zip(entries).map(|(cookie, (name, found))| (cookie, name, found));
        let (dir_attributes, verifier) = (Some(attributes(depth)), CookieVerifier::default());
        let eof = !repeats || is_empty;
        if plus {
            let entries = entries.map(|(cookie, name, found)| EntryPlus {
                fileid: found + 1,
                name,
                cookie,
                attributes: Some(attributes(found)),
                handle: Some(handle(found)),
            });
            let entries = entries.collect::<Vec<_>>();
            let entries = entries[..].into();
            ReaddirplusReply::Ok(ReaddirplusOk { dir_attributes, verifier, entries, eof })
                .encode(w);
        } else {
            let entries =
                entries.map(|(cookie, name, found)| Entry { fileid: found + 1, name, cookie });
            let entries = entries.collect::<Vec<_>>();
            let entries = entries[..].into();
            ReaddirReply::Ok(ReaddirOk { dir_attributes, verifier, entries, eof }).encode(w);
        }
    }
}

fn fsinfo() -> FsinfoOk {
    FsinfoOk {
        attributes: None,
        rtmax: 1 << 20,
        rtpref: 1 << 20,
        rtmult: 1,
        wtmax: 1 << 20,
        wtpref: 1 << 20,
        wtmult: 1,
        dtpref: 1 << 16,
        maxfilesize: u64::MAX >> 1,
        time_delta: Time { seconds: 0, nseconds: 1 },
        properties: nfs3::FSF_HOMOGENEOUS,
    }
}

/// Runs each command that walks on a tree, where it has to fail with `why`.
#[track_caller]
fn each_fails(tree: Tree, why: &str) {
    let dir = TempDir::new().unwrap();
    let url = tree.serve();
    let below = url.replacen("/e?", "/e/d?", 1);
    let copy = dir.path().join("copy");
    let commands: [&[&str]; 6] = [
        &["ls", "-R", &url],
        &["cp", "-r", &url, copy.to_str().unwrap()],
        &["rm", "-r", &below],
        &["chmod", "-R", "700", &url],
        &["chown", "-R", "4711", &url],
        &["du", &url],
    ];
    for command in commands {
        let Output { status, stderr, .. } = run(command);
        let stderr = text(&stderr);
        // As with coreutils, `ls` exits with 2 if an argument failed, with 1 if an entry below did.
        assert!(matches!(status.code(), Some(1 | 2)), "{tree:?} {command:?}: {status} {stderr}");
        let last = stderr.lines().last().unwrap_or_default();
        assert!(stderr.contains(why), "{tree:?} {command:?}: {last}");
    }
}

#[test]
fn walk_ends_at_a_directory_that_contains_itself() {
    each_fails(Tree::Circular, "circular directory structure");
}

#[test]
fn walk_ends_in_an_endless_chain_of_new_directories() {
    each_fails(Tree::Endless, "File name too long");
}

#[test]
fn listing_that_repeats_its_cookies_ends() {
    let url = Tree::RepeatedCookies.serve();
    let dir = TempDir::new().unwrap();
    let copy = dir.path().join("copy");
    let commands: [&[&str]; 3] =
        [&["ls", &url], &["cp", "-r", &url, copy.to_str().unwrap()], &["du", &url]];
    for command in commands {
        let output = run(command);
        let stderr = text(&output.stderr);
        assert!(!output.status.success(), "{command:?}: {stderr}");
        assert!(stderr.contains("readdir loop"), "{command:?}: {stderr}");
    }
}

#[test]
fn directory_that_is_removed_meanwhile_is_reported_and_the_rest_is_done() {
    let url = Tree::Removed.serve();
    let below = url.replacen("/e?", "/e/d?", 1);
    let why = format!("cannot read directory '{below}': Stale file handle\n");
    let lines = format!("4\t{below}\n8\t{url}\n");
    let commands: [(&[&str], &str); 3] = [
        (&["du", &url], &lines),
        (&["chmod", "-R", "700", &url], ""),
        (&["chown", "-R", "4711", &url], ""),
    ];
    for (command, stdout) in commands {
        let output = run(command);
        let expected = format!("spillway {}: {why}", command[0]);
        assert_eq!((text(&output.stderr), output.status.code()), (&expected[..], Some(1)));
        assert_eq!(text(&output.stdout), stdout);
    }
}

/// Copies a tree, which has to fail, and returns the complaints.
#[track_caller]
fn copy_fails(tree: Tree, to: &Path) -> String {
    let output = run(["cp", "-r", "--jobs", "1", &tree.serve(), to.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    text(&output.stderr).to_owned()
}

#[test]
fn file_is_not_written_through_a_link_of_the_same_copy() {
    let dir = TempDir::new().unwrap();
    let (copy, victim) = (dir.path().join("copy"), dir.path().join("victim"));
    fs::write(&victim, "of the user").unwrap();
    let stderr = copy_fails(Tree::LinkAndFile, &copy);
    let why = format!("through just-created symlink '{}'", copy.join("d/x").display());
    assert!(stderr.contains(&why), "{stderr}");
    assert!(fs::symlink_metadata(copy.join("d/x")).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(victim).unwrap(), "of the user");
}

#[test]
fn directory_is_not_filled_through_a_link_of_the_same_copy() {
    let dir = TempDir::new().unwrap();
    let (copy, victim) = (dir.path().join("copy"), dir.path().join("victim"));
    fs::create_dir(&victim).unwrap();
    // The link or the directory is refused, whichever comes second.
    copy_fails(Tree::LinkAndDirectory, &copy);
    assert_eq!(fs::read_dir(victim).unwrap().count(), 0);
}

/// Another client may have extended it between the data and the attributes of the reply.
#[test]
fn file_that_grows_while_it_is_read_is_copied_whole() {
    let dir = TempDir::new().unwrap();
    let copy = dir.path().join("copy");
    let url = Tree::Grown.serve();
    succeeded(run(["cp", &url, copy.to_str().unwrap()]));
    assert_eq!(fs::read(copy).unwrap(), DATA);
    assert_eq!(succeeded(run(["cat", &url])).as_bytes(), DATA);
}

#[test]
fn copy_that_was_created_and_is_not_found_is_reported_as_created() {
    let dir = TempDir::new().unwrap();
    let (file, link, below) =
        (dir.path().join("file"), dir.path().join("link"), dir.path().join("below"));
    fs::write(&file, "data").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    fs::create_dir(&below).unwrap();
    let to = Tree::Unseen.serve().replacen("/e?", "/e/new?", 1);
    let why = "was created, but cannot be looked at: No such file or directory";
    for from in [file, link, below] {
        let output = run(["cp", "-r", from.to_str().unwrap(), &to]);
        assert_exit(&output, 1, &format!("spillway cp: '{to}' {why}"));
    }
}
