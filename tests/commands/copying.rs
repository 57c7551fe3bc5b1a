//! `cp` between this machine and a server.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use proto::nfs3::{
    Failure, Procedure, SetTime, SetattrArgs, SetattrOk, SetattrReply, Status, WccData,
};
use proto::oncrpc::encode_success;
use proto::xdr::{Decode as _, Encode as _};
use rpc::record;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use crate::fixture::{
    Server, assert_exit, assert_same_data, bytes_path, feed, pattern, run, spillway, succeeded,
    text,
};
use crate::relay::{intercept, relay};
use crate::skip::{skip, skip_in_ci_too};

/// A tree of many kinds of files below `root`.
fn furnish(root: &Path) {
    fs::create_dir_all(root.join("sub/deeper")).unwrap();
    fs::create_dir(root.join("locked")).unwrap();
    fs::write(root.join("big"), pattern(3_333_333)).unwrap();
    fs::write(root.join("chunk"), pattern(1 << 20)).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join(bytes_path(b"odd\xff\n%41?")), "odd").unwrap();
    for i in 0..200 {
        fs::write(root.join(format!("sub/{i}")), format!("{i}")).unwrap();
    }
    fs::write(root.join("sub/deeper/setuid"), "x").unwrap();
    fs::write(root.join("locked/in"), "x").unwrap();
    symlink("../big", root.join("sub/link")).unwrap();
    symlink("nowhere", root.join("sub/dangling")).unwrap();
    mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let mode = |path: &str, mode| {
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("sub/deeper/setuid", 0o4711);
    mode("locked", 0o555);
    mode("empty", 0o444);
    for (path, nanoseconds) in [("big", 123_456_789), ("sub/7", 1), ("sub", 999_999_999)] {
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, nanoseconds);
        File::open(root.join(path)).unwrap().set_modified(time).unwrap();
    }
}

/// Each file with all that `-p` keeps, directories and what is in them.
fn kept(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut ahead = vec![root.to_owned()];
    while let Some(path) = ahead.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let size = if metadata.is_dir() { 0 } else { metadata.size() };
        let target = fs::read_link(&path).unwrap_or_default();
        found.push(format!(
            "{:?} {:o} {}:{} {size} {}.{:09} {target:?}",
            path.strip_prefix(root).unwrap(),
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        ));
    }
    found.sort();
    found
}

#[track_caller]
fn assert_same_tree(one: &Path, other: &Path) {
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference", "--exclude=fifo"]).args([one, other]);
    let output = diff.output().unwrap();
    assert_eq!(text(&output.stdout), "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_tree_is_copied_to_between_and_from_servers_as_by_cp_p() {
    let server = Server::start();
    let (here, back) = (server.beside("here"), server.beside("back"));
    furnish(&here);
    let here = here.to_str().unwrap();
    succeeded(run(["cp", "-a", here, &server.url("up")]));
    assert_same_tree(here.as_ref(), &server.path("up"));
    assert_eq!(kept(here.as_ref()), kept(&server.path("up")));

    succeeded(run(["cp", "-rp", &server.url("up"), &server.url("over")]));
    assert_eq!(kept(here.as_ref()), kept(&server.path("over")));

    succeeded(run(["cp", "-a", "--jobs", "1", &server.url("over"), back.to_str().unwrap()]));
    assert_same_tree(here.as_ref(), &back);
    assert_eq!(kept(here.as_ref()), kept(&back));
    // Root may write into it anyway; others need it to clean up.
    for locked in [Path::new(here), &back, &server.path("up"), &server.path("over")] {
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(locked.join("locked"), mode).unwrap();
    }
}

#[test]
fn files_of_every_length_arrive_whole() {
    let server = Server::start();
    let (here, back) = (server.beside("here"), server.beside("back"));
    let mib = 1 << 20;
    for len in [0, 1, 4095, mib - 1, mib, mib + 1, 3 * mib, 17 * mib + 5] {
        fs::write(&here, pattern(len)).unwrap();
        succeeded(run(["cp", here.to_str().unwrap(), &server.url("up")]));
        assert_same_data(&here, server.path("up"));
        succeeded(run(["cp", &server.url("up"), back.to_str().unwrap()]));
        assert_same_data(&here, &back);
    }
    // In small pieces as well, of a size that divides nothing.
    let options = ["cp", "-o", "rsize=12288,wsize=20480", "-o", "nconnect=2"];
    succeeded(run([&options[..], &[here.to_str().unwrap(), &server.url("small")]].concat()));
    assert_same_data(&here, server.path("small"));
    succeeded(run([&options[..], &[&server.url("small"), back.to_str().unwrap()]].concat()));
    assert_same_data(&here, &back);
}

#[test]
fn a_longer_target_is_truncated_to_its_source() {
    let server = Server::start();
    let (here, back) = (server.beside("here"), server.beside("back"));
    fs::write(&here, "short").unwrap();
    fs::write(&back, pattern(100_000)).unwrap();
    server.put("up", pattern(5_000_000));
    succeeded(run(["cp", here.to_str().unwrap(), &server.url("up")]));
    assert_same_data(&here, server.path("up"));
    succeeded(run(["cp", &server.url("up"), back.to_str().unwrap()]));
    assert_same_data(&here, &back);
}

#[test]
fn holes_stay_holes() {
    let server = Server::start();
    let (here, back) = (server.beside("here"), server.beside("back"));
    let file = File::create(&here).unwrap();
    file.set_len(80 << 20).unwrap();
    for offset in [5 << 20, (5 << 20) + 70_000, 70_000_001] {
        file.write_all_at(b"data", offset).unwrap();
    }
    let used = fs::metadata(&here).unwrap().blocks() * 512;
    if used > 10 << 20 {
        return skip_in_ci_too("the file system of temporary files has no holes");
    }
    succeeded(run(["cp", here.to_str().unwrap(), &server.url("up")]));
    succeeded(run(["cp", &server.url("up"), back.to_str().unwrap()]));
    for copy in [&server.path("up"), &back] {
        assert_same_data(&here, copy);
        assert!(fs::metadata(copy).unwrap().blocks() * 512 < 10 << 20, "{}", copy.display());
    }
}

#[test]
fn links_of_the_same_copy_are_not_written_through() {
    let server = Server::start();
    let here = server.beside("here");
    for root in [server.path(""), here.clone()] {
        fs::create_dir_all(root.join("links")).unwrap();
        fs::create_dir_all(root.join("files/dir")).unwrap();
        fs::create_dir_all(root.join("victim")).unwrap();
        symlink("../victim/file", root.join("links/file")).unwrap();
        symlink("../victim", root.join("links/dir")).unwrap();
        fs::write(root.join("files/file"), "new").unwrap();
        fs::write(root.join("files/dir/inner"), "new").unwrap();
        fs::write(root.join("victim/file"), "old").unwrap();
    }
    let local = |path: &str| here.join(path).to_str().unwrap().to_owned();
    let there = server.path("");
    for is_up in [false, true] {
        let place = |path: &str, is_remote| if is_remote { server.url(path) } else { local(path) };
        let (from, to) = (|path: &str| place(path, !is_up), |path: &str| place(path, is_up));
        let root = if is_up { &there } else { &here };
        for (name, sources) in [
            ("all", &["links/.", "files/."][..]),
            ("each", &["links/dir", "links/file", "files/dir", "files/file"]),
        ] {
            fs::create_dir(root.join(name)).unwrap();
            let sources: Vec<_> = sources.iter().map(|path| from(path)).collect();
            let (to_text, options) = (to(name), ["cp", "-r", "--jobs", "1"].map(str::to_owned));
            let output = run([&options[..], &sources, &[to_text]].concat());
            let stderr = text(&output.stderr).replace("/./", "/");
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            let why = format!("through just-created symlink '{}'", to(&format!("{name}/file")));
            assert!(stderr.contains(&why), "{stderr}");
            assert_eq!(fs::read_to_string(root.join("victim/file")).unwrap(), "old");
            assert!(!root.join("victim/inner").exists());
        }
    }
}

#[test]
fn links_that_were_there_before_are_written_through() {
    let server = Server::start();
    let here = server.beside("here");
    for root in [server.path(""), here.clone()] {
        fs::create_dir_all(root.join("files")).unwrap();
        fs::create_dir_all(root.join("to")).unwrap();
        fs::write(root.join("files/file"), "new").unwrap();
        fs::write(root.join("beside"), "old").unwrap();
        symlink("../beside", root.join("files/link")).unwrap();
        symlink("../beside", root.join("to/file")).unwrap();
    }
    let (here_files, here_to) = (here.join("files/."), here.join("to"));
    succeeded(run(["cp", "-r", here_files.to_str().unwrap(), &server.url("to")]));
    succeeded(run(["cp", "-r", &server.url("files/."), here_to.to_str().unwrap()]));
    for root in [server.path(""), here] {
        assert_eq!(fs::read_to_string(root.join("beside")).unwrap(), "new");
        assert!(fs::symlink_metadata(root.join("to/file")).unwrap().is_symlink());
    }
}

#[test]
fn p_changes_the_file_that_a_link_leads_to_and_not_the_link() {
    let server = Server::start();
    let here = server.beside("here");
    fs::create_dir(&here).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let owner = if is_root { 4711 } else { rustix::process::geteuid().as_raw() };
    for root in [server.path(""), here.clone()] {
        for file in ["from", "target"] {
            fs::write(root.join(file), file).unwrap();
        }
        symlink("target", root.join("link")).unwrap();
        let from = File::options().write(true).open(root.join("from")).unwrap();
        from.set_modified(SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 7)).unwrap();
        if is_root {
            fchown(&from, Some(owner), None).unwrap();
        }
        from.set_permissions(fs::Permissions::from_mode(0o4755)).unwrap();
    }
    let of_link = |root: &Path| {
        let link = fs::symlink_metadata(root.join("link")).unwrap();
        (link.uid(), link.mtime())
    };
    let links = (of_link(&server.path("")), of_link(&here));
    let local = |name: &str| here.join(name).to_str().unwrap().to_owned();
    succeeded(run(["cp", "-p", &local("from"), &server.url("link")]));
    succeeded(run(["cp", "-a", &server.url("from"), &local("link")]));
    assert_eq!(links, (of_link(&server.path("")), of_link(&here)));
    for root in [server.path(""), here] {
        let target = fs::symlink_metadata(root.join("target")).unwrap();
        assert_eq!(fs::read_to_string(root.join("target")).unwrap(), "from");
        assert_eq!((target.uid(), target.mode() & 0o7777), (owner, 0o4755), "{}", root.display());
        assert_eq!((target.mtime(), target.mtime_nsec()), (1_000_000_000, 7));
    }
}

#[test]
fn holes_reach_pipes_as_zeros() {
    let server = Server::start();
    let sparse = server.path("sparse");
    let file = File::create(&sparse).unwrap();
    file.set_len(1 << 20).unwrap();
    for offset in [0, 300_000] {
        file.write_all_at(b"data", offset).unwrap();
    }
    if fs::metadata(&sparse).unwrap().blocks() * 512 >= 1 << 20 {
        return skip_in_ci_too("the file system of temporary files has no holes");
    }
    let data = fs::read(&sparse).unwrap();
    let output = run(["cp", &server.url("sparse"), "/dev/stdout"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout == data, "{} bytes", output.stdout.len());

    // A local file as well, where the target directory has a pipe of its name.
    let (here, dir) = (server.beside("sparse"), server.beside("dir"));
    fs::copy(&sparse, &here).unwrap();
    File::options().write(true).open(&here).unwrap().set_len(2 << 20).unwrap();
    fs::create_dir(&dir).unwrap();
    let pipe = dir.join("sparse");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let reader = thread::spawn(move || fs::read(pipe).unwrap());
    server.put("other", "other");
    let (here_text, dir) = (here.to_str().unwrap(), dir.to_str().unwrap());
    succeeded(run(["cp", here_text, &server.url("other"), dir]));
    assert!(reader.join().unwrap() == fs::read(here).unwrap());
}

#[test]
fn a_file_that_is_shorter_than_its_size_is_not_filled_up() {
    let server = Server::start();
    // sysfs gives each file the size of a page and no blocks.
    let here = Path::new("/sys/class/net/lo/mtu");
    let Ok(metadata) = fs::metadata(here) else {
        return skip("sysfs is not mounted");
    };
    assert_eq!((metadata.size(), metadata.blocks()), (4096, 0));
    succeeded(run(["cp", here.to_str().unwrap(), &server.url("up")]));
    assert_same_data(here, server.path("up"));
}

#[test]
fn pipes_are_copied_from_and_to() {
    let server = Server::start();
    let data = pattern(2_500_000);
    let mut command = spillway();
    command.args(["cp", "/dev/stdin", &server.url("piped")]);
    succeeded(feed(command, &data));
    assert!(fs::read(server.path("piped")).unwrap() == data);
    let output = run(["cp", &server.url("piped"), "/dev/stdout"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout == data);
}

#[test]
fn a_file_is_not_copied_onto_itself_by_another_address_of_its_server() {
    let server = Server::start();
    let other_address = relay(&server, |_| None);
    server.put("file", "data");
    fs::create_dir(server.path("dir")).unwrap();
    server.put("dir/file", "data");
    for [from, to] in [[server.url(""), other_address.clone()], [other_address, server.url("")]] {
        let (from_file, to_file) = (format!("{from}/file"), format!("{to}/file"));
        let sentence = format!("spillway cp: '{from_file}' and '{to_file}' are the same file");
        for options in [&["cp"][..], &["cp", "-f"]] {
            let output = run(options.iter().chain(&[&*from_file, &to_file]));
            assert_exit(&output, 1, &sentence);
        }
        let (from_dir, to_dir) = (format!("{from}/dir"), format!("{to}/dir"));
        let output = run(["cp", "-r", &from_dir, &to_dir]);
        let made = format!("'{to_dir}/dir'");
        let what = format!("cannot copy a directory, '{from_dir}', into itself, {made}");
        assert_exit(&output, 1, &format!("spillway cp: {what}"));
    }
    assert_eq!(fs::read(server.path("file")).unwrap(), b"data");
    assert_eq!(fs::read(server.path("dir/file")).unwrap(), b"data");
}

#[test]
fn a_file_is_not_copied_onto_itself_by_another_export_or_a_path_here() {
    let server = Server::overlapping("sub");
    server.put("sub/file", "data");
    let path = server.path("sub/file");
    let (here, url) = (path.to_str().unwrap().to_owned(), server.url("sub/file"));
    let other_export = format!("{}/file", server.url("").replace("/e", "/s"));
    let pairs = [(&url, &other_export), (&other_export, &url), (&url, &here), (&here, &url)];
    for (from, to) in pairs {
        let sentence = format!("spillway cp: '{from}' and '{to}' are the same file");
        for options in [&["cp"][..], &["cp", "-f"]] {
            assert_exit(&run(options.iter().chain(&[&**from, to])), 1, &sentence);
        }
        let ctime = fs::metadata(&path).map(|file| (file.ctime(), file.ctime_nsec())).unwrap();
        succeeded(run(["cp", "--resume", from, to]));
        let after = fs::metadata(&path).map(|file| (file.ctime(), file.ctime_nsec())).unwrap();
        assert_eq!(after, ctime, "a file that is skipped is changed");
    }
    assert_eq!(fs::read(&path).unwrap(), b"data");
}

#[test]
fn a_source_that_cannot_be_read_leaves_no_target() {
    let server = Server::start();
    let url = intercept(&server, Procedure::Read, |xid, _| Some(refused_read(xid)));
    server.put("secret", "data");
    let here = server.beside("copy");
    let (from, to) = (format!("{url}/secret"), server.url("copy"));
    for to in [here.to_str().unwrap(), &to] {
        let output = run(["cp", &from, to]);
        let line = format!("spillway cp: error reading '{from}': Permission denied");
        assert_exit(&output, 1, &line);
    }
    assert!(!here.exists() && !server.path("copy").exists());
}

/// The reply to a READ without permission.
fn refused_read(xid: u32) -> Vec<u8> {
    record::encode(|w| {
        encode_success(w, xid);
        Status::Acces.encode(w);
        false.encode(w);
    })
}

#[test]
fn a_failure_does_not_end_the_copy_of_the_others() {
    let server = Server::start();
    let here = server.beside("here");
    fs::create_dir(&here).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(here.join(name), name).unwrap();
    }
    fs::create_dir_all(server.path("here/b")).unwrap();
    let output = run(["cp", "-r", here.to_str().unwrap(), &server.url("")]);
    let there = server.url("here/b");
    let line = format!("spillway cp: cannot overwrite directory '{there}' with non-directory");
    assert_exit(&output, 1, &line);
    assert_same_data(here.join("a"), server.path("here/a"));
    assert_same_data(here.join("c"), server.path("here/c"));
}

#[test]
fn an_owner_that_cannot_be_kept_is_left_out() {
    let server = Server::start();
    if !rustix::process::geteuid().is_root() {
        return skip("files of others need root");
    }
    fs::set_permissions(server.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let here = server.beside("here");
    fs::write(&here, "x").unwrap();
    fs::set_permissions(&here, fs::Permissions::from_mode(0o4755)).unwrap();
    let url = server.url("there?uid=4711&gid=4712");
    succeeded(run(["cp", "-p", here.to_str().unwrap(), &url]));
    let (there, here) = (fs::metadata(server.path("there")).unwrap(), fs::metadata(here).unwrap());
    assert_eq!((there.uid(), there.gid()), (4711, 4712));
    assert_eq!(there.mode() & 0o7777, 0o755, "the set-id bit belongs to its owner");
    assert_eq!((there.mtime(), there.mtime_nsec()), (here.mtime(), here.mtime_nsec()));
}

#[test]
fn p_keeps_the_set_id_bits_that_a_server_clears_when_it_sets_the_owner() {
    let server = Server::start();
    let (here, there) = (server.beside("here"), server.path("there"));
    // As Linux does, whose nfsd_sanitize_attrs() clears them even where the owner stays.
    let url = intercept(&server, Procedure::Setattr, move |xid, mut arguments| {
        let new = SetattrArgs::decode(&mut arguments).unwrap().new_attributes;
        new.uid.or(new.gid)?;
        let SetTime::ToClientTime(mtime) = new.mtime else { panic!("{new:?}") };
        let mode = fs::Permissions::from_mode(new.mode.unwrap() & 0o777);
        fs::set_permissions(&there, mode).unwrap();
        let mtime = Duration::new(mtime.seconds.into(), mtime.nseconds);
        File::open(&there).unwrap().set_modified(SystemTime::UNIX_EPOCH + mtime).unwrap();
        Some(record::encode(|w| {
            encode_success(w, xid);
            SetattrReply::Ok(SetattrOk { wcc: WccData::default() }).encode(w);
        }))
    });
    for option in ["-p", "-a"] {
        for mode in [0o4755, 0o2750, 0o6711] {
            fs::write(&here, "x").unwrap();
            fs::set_permissions(&here, fs::Permissions::from_mode(mode)).unwrap();
            succeeded(run(["cp", option, here.to_str().unwrap(), &format!("{url}/there")]));
            assert_eq!(kept(&server.path("there")), kept(&here), "{option} {mode:o}");
        }
    }
}

#[test]
fn p_sets_set_id_bits_after_the_owner_and_reports_their_loss() {
    let server = Server::start();
    let (here, there) = (server.beside("here"), server.path("there"));
    fs::write(&here, "x").unwrap();
    fs::set_permissions(&here, fs::Permissions::from_mode(0o6755)).unwrap();
    let with_owner = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&with_owner);
    let url = intercept(&server, Procedure::Setattr, move |xid, mut arguments| {
        let new = SetattrArgs::decode(&mut arguments).unwrap().new_attributes;
        if new.uid.is_some() {
            seen.lock().unwrap().push(new.mode);
            return None;
        }
        Some(record::encode(|w| {
            encode_success(w, xid);
            let body = WccData::default();
            SetattrReply::Err(Failure { status: Status::Perm, body }).encode(w);
        }))
    });
    let url = format!("{url}/there");
    let reason = "Operation not permitted";
    let line = format!("spillway cp: failed to preserve set-id bits for '{url}': {reason}");
    assert_exit(&run(["cp", "-p", here.to_str().unwrap(), &url]), 1, &line);
    assert_eq!(*with_owner.lock().unwrap(), [Some(0o755)]);
    let (there, here) = (fs::metadata(there).unwrap(), fs::metadata(here).unwrap());
    assert_eq!(there.mode() & 0o7777, 0o755);
    assert_eq!(there.modified().unwrap(), here.modified().unwrap());
}

#[test]
fn an_owner_that_root_cannot_keep_is_reported() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root gives files away");
    }
    let server = Server::squashing("root");
    fs::set_permissions(server.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let here = server.beside("here");
    fs::create_dir(&here).unwrap();
    fs::write(here.join("file"), "data").unwrap();
    let here_text = here.to_str().unwrap();
    let output = run(["cp", "-a", here_text, &server.url("there")]);
    let complaint = |path: &str| {
        let url = server.url(path);
        format!("spillway cp: failed to preserve ownership for '{url}': Operation not permitted\n")
    };
    assert_eq!(text(&output.stderr), complaint("there/file") + &complaint("there"));
    assert_eq!(output.status.code(), Some(1));
    assert_same_data(here.join("file"), server.path("there/file"));
    let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(modified(&server.path("there/file")), modified(&here.join("file")));
    // No owner is lost where none is to be kept, or that of the user whom root is squashed to.
    succeeded(run(["cp", here.join("file").to_str().unwrap(), &server.url("plain")]));
    let back = server.beside("back");
    succeeded(run(["cp", "-a", &server.url("there"), back.to_str().unwrap()]));
    succeeded(run(["cp", "-a", back.to_str().unwrap(), &server.url("again")]));
}

/// A file system of 8 MiB; none without the right to mount one.
struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8m,mode=777", "tmpfs"]).arg(dir.path());
        match mount.output() {
            Ok(output) if output.status.success() => Some(Self { dir }),
            _ => {
                skip("a small file system needs the right to mount");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The directory stays behind if it is still in use, which is all that can be done.
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}

#[test]
fn a_full_disk_of_the_server_is_reported() {
    let Some(disk) = SmallDisk::mount() else { return };
    let dir = TempDir::new().unwrap();
    let (big, small) = (dir.path().join("big"), dir.path().join("small"));
    fs::write(&big, pattern(24 << 20)).unwrap();
    fs::write(&small, "small").unwrap();
    let server = Server::of(dir, disk.dir.path().to_owned());
    let (big, small) = (big.to_str().unwrap(), small.to_str().unwrap());
    fs::create_dir(server.path("d")).unwrap();
    let output = run(["cp", big, &server.url("d")]);
    let to = server.url("d/big");
    let line = format!("spillway cp: error writing '{to}': No space left on device");
    assert_exit(&output, 1, &line);
    succeeded(run(["rm", &to]));
    succeeded(run(["cp", small, &server.url("d")]));
}

#[test]
fn a_full_disk_of_this_machine_is_reported() {
    let Some(disk) = SmallDisk::mount() else { return };
    let server = Server::start();
    server.put("big", pattern(24 << 20));
    let to = disk.dir.path().join("big");
    let output = run(["cp", &server.url("big"), to.to_str().unwrap()]);
    let line = format!("spillway cp: error writing '{}': No space left on device", to.display());
    assert_exit(&output, 1, &line);
}
