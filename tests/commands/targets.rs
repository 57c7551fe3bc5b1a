//! `cp` where several names come to one target, and where a target must not be written.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use proto::nfs3::{self, CreateArgs, CreateHow, CreatedReply, Failure, Procedure, Status, WccData};
use proto::xdr::Decode;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::fixture::{
    Server, assert_exit, assert_same_data, pattern, run, spillway, succeeded, text, wait_for,
};
use crate::linking::refused;
use crate::relay::{Message, execute, intercept, relay};
use crate::skip::skip;

/// More than a job writes at once.
const BIG_BYTES: usize = 6 << 20;

#[test]
fn second_argument_with_the_name_of_the_first_is_refused() {
    let server = Server::start();
    let here = server.beside("here");
    for root in [server.path(""), here.clone()] {
        for dir in ["a", "b", "to"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::write(root.join("a/data"), pattern(BIG_BYTES)).unwrap();
        fs::write(root.join("b/data"), vec![b'b'; BIG_BYTES + 1]).unwrap();
    }
    let local = |path: &str| here.join(path).to_str().unwrap().to_owned();
    let remote = |path: &str| server.url(path);
    for (is_up, root) in [(true, server.path("")), (false, here.clone())] {
        let from = |path: &str| if is_up { local(path) } else { remote(path) };
        let to = |path: &str| if is_up { remote(path) } else { local(path) };
        let (a, b) = (from("a/data"), from("b/data"));
        // Into a new file, and into that one.
        for _ in 0..2 {
            let output = run(["cp", &a, &b, &to("to")]);
            let line = format!(
                "spillway cp: will not overwrite just-created '{}' with '{b}'",
                to("to/data")
            );
            assert_exit(&output, 1, &line);
            assert_same_data(root.join("a/data"), root.join("to/data"));
        }
        let output = run(["cp", &b, &b, &to("to")]);
        let line = format!("spillway cp: warning: source file '{b}' specified more than once");
        assert_exit(&output, 0, &line);
        assert_same_data(root.join("b/data"), root.join("to/data"));
        fs::remove_file(root.join("to/data")).unwrap();
        succeeded(run(["cp", "-n", &a, &b, &to("to")]));
        assert_same_data(root.join("a/data"), root.join("to/data"));
    }
}

/// Lets `found` be there when CREATE of `/to` arrives, although a LOOKUP has not found it, and
/// returns what `cp -n` of "ours" leaves there.
fn copied_without_clobbering(found: &'static str) -> String {
    let server = Server::start();
    let (here, there) = (server.beside("here"), server.path("to"));
    fs::write(&here, "ours").unwrap();
    let made = there.clone();
    let url = intercept(&server, Procedure::Create, move |_, _| {
        fs::write(&made, found).unwrap();
        None
    });
    succeeded(run(["cp", "-n", here.to_str().unwrap(), &format!("{url}/to")]));
    fs::read_to_string(there).unwrap()
}

#[test]
fn n_keeps_a_file_that_another_client_creates_meanwhile() {
    assert_eq!(copied_without_clobbering("theirs"), "theirs");
}

#[test]
fn n_keeps_an_empty_file_that_another_client_creates_meanwhile() {
    assert_eq!(copied_without_clobbering(""), "");
}

/// Copies `data`, in a file of mode 0600, with `cp -n` to `/to` of a URL, and expects all of it
/// there.
fn assert_copied_without_clobbering(server: &Server, url: &str, data: &str) {
    let here = server.beside("here");
    fs::write(&here, data).unwrap();
    fs::set_permissions(&here, fs::Permissions::from_mode(0o600)).unwrap();
    let start = SystemTime::now() - Duration::from_secs(1);
    succeeded(run(["cp", "-n", here.to_str().unwrap(), &format!("{url}/to")]));
    let to = server.path("to");
    // Before a read, which changes the time of the last access.
    let metadata = fs::metadata(&to).unwrap();
    assert_eq!(fs::read_to_string(&to).unwrap(), data);
    fs::remove_file(to).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o600);
    for time in [metadata.modified(), metadata.accessed()] {
        assert!((start..=SystemTime::now()).contains(&time.unwrap()));
    }
}

#[test]
fn n_fills_the_file_of_a_create_that_was_sent_twice() {
    let server = Server::start();
    let port = server.port();
    let url = relay(&server, move |message| {
        if let Message::Call { program: nfs3::PROGRAM, procedure, bytes, .. } = message
            && procedure == Procedure::Create as u32
        {
            execute(port, bytes);
        }
        None
    });
    // An empty file takes no WRITE, which would set its times.
    for data in ["ours", ""] {
        assert_copied_without_clobbering(&server, &url, data);
    }
}

#[test]
fn n_makes_files_on_a_server_without_exclusive_creation() {
    let server = Server::start();
    let url = intercept(&server, Procedure::Create, |xid, mut arguments| {
        let how = CreateArgs::decode(&mut arguments).unwrap().how;
        let failure = Failure { status: Status::Notsupp, body: WccData::default() };
        matches!(how, CreateHow::Exclusive(_)).then(|| refused(xid, &CreatedReply::Err(failure)))
    });
    // An empty file takes no WRITE, which would set its times.
    for data in ["ours", ""] {
        assert_copied_without_clobbering(&server, &url, data);
    }
}

#[test]
fn n_keeps_the_files_of_a_directory_that_another_client_creates_meanwhile() {
    let server = Server::start();
    let (here, there) = (server.beside("here"), server.path("to"));
    fs::create_dir(&here).unwrap();
    for name in ["kept", "new"] {
        fs::write(here.join(name), "ours").unwrap();
    }
    let made = there.clone();
    let url = intercept(&server, Procedure::Mkdir, move |_, _| {
        fs::create_dir(&made).unwrap();
        fs::write(made.join("kept"), "").unwrap();
        None
    });
    succeeded(run(["cp", "-rn", here.to_str().unwrap(), &format!("{url}/to")]));
    assert_eq!(fs::read_to_string(there.join("kept")).unwrap(), "");
    assert_eq!(fs::read_to_string(there.join("new")).unwrap(), "ours");
}

#[test]
fn files_of_a_later_tree_replace_those_of_an_earlier_one() {
    let server = Server::start();
    let here = server.beside("here");
    for (dir, count) in [("a", 40), ("b", 30)] {
        fs::create_dir_all(here.join(dir)).unwrap();
        for number in 0..count {
            // Those of the first tree are larger.
            let data = vec![dir.as_bytes()[0]; (50 - count) << 14];
            fs::write(here.join(dir).join(number.to_string()), data).unwrap();
        }
    }
    fs::create_dir(server.path("to")).unwrap();
    let (a, b) = (here.join("a/."), here.join("b/."));
    succeeded(run(["cp", "-r", a.to_str().unwrap(), b.to_str().unwrap(), &server.url("to")]));
    for number in 0..40 {
        let from = if number < 30 { "b" } else { "a" };
        let name = number.to_string();
        assert_same_data(here.join(from).join(&name), server.path("to").join(&name));
    }
}

#[test]
fn names_of_one_file_are_written_one_after_the_other() {
    let server = Server::start();
    let here = server.beside("here");
    for root in [server.path(""), here.clone()] {
        fs::create_dir_all(root.join("from")).unwrap();
        fs::create_dir_all(root.join("to")).unwrap();
        let first = root.join("to/0");
        fs::write(&first, "").unwrap();
        for number in 0..6 {
            let data = vec![b'0' + number; BIG_BYTES - usize::from(number)];
            fs::write(root.join(format!("from/{number}")), data).unwrap();
            if number > 0 {
                fs::hard_link(&first, root.join(format!("to/{number}"))).unwrap();
            }
        }
    }
    let local = |path: &str| here.join(path).to_str().unwrap().to_owned();
    succeeded(run(["cp", "-r", &local("from/."), &server.url("to")]));
    succeeded(run(["cp", "-r", &server.url("from/."), &local("to")]));
    for root in [server.path(""), here] {
        let data = fs::read(root.join("to/0")).unwrap();
        let last = data[0];
        let len = BIG_BYTES - usize::from(last - b'0');
        assert!(data == vec![last; len], "{} bytes of {last} and others", data.len());
    }
}

#[test]
fn pipe_without_a_reader_holds_up_no_other_file() {
    let server = Server::start();
    let (from, to) = (server.path("from"), server.beside("to"));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    for name in ["one", "other", "file"] {
        fs::write(from.join(name), name).unwrap();
        symlink(format!("../the-{name}"), to.join(name)).unwrap();
    }
    symlink("nowhere", from.join("link")).unwrap();
    for name in ["one", "other"] {
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, server.beside(&format!("the-{name}")), FileType::Fifo, mode, 0).unwrap();
    }
    for names in [["one", "other"], ["other", "one"]] {
        fs::write(server.beside("the-file"), "").unwrap();
        let mut command = spillway();
        command.args(["cp", "-r", &server.url("from/."), to.to_str().unwrap()]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("the copy of the others", || {
            let is_written = fs::read(server.beside("the-file")).unwrap() == b"file";
            (is_written && to.join("link").is_symlink()).then_some(())
        });
        for name in names {
            assert_eq!(fs::read_to_string(server.beside(&format!("the-{name}"))).unwrap(), name);
        }
        succeeded(child.wait_with_output().unwrap());
        fs::remove_file(to.join("link")).unwrap();
    }
}

#[test]
fn links_of_the_same_copy_are_not_written_through_behind_others() {
    let server = Server::start();
    let here = server.beside("here");
    for root in [server.path(""), here.clone()] {
        for dir in ["links", "files", "victim", "to"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        symlink("../victim/file", root.join("links/last")).unwrap();
        symlink("../victim", root.join("links/dir")).unwrap();
        for (name, target) in [("name", "last"), ("chain", "name"), ("below", "dir/file")] {
            fs::write(root.join("files").join(name), "new").unwrap();
            symlink(target, root.join("to").join(name)).unwrap();
        }
        fs::write(root.join("victim/file"), "old").unwrap();
    }
    let local = |path: &str| here.join(path).to_str().unwrap().to_owned();
    for (is_up, root) in [(true, server.path("")), (false, here.clone())] {
        let from = |path: &str| if is_up { local(path) } else { server.url(path) };
        let to = if is_up { server.url("to") } else { local("to") };
        let output = run(["cp", "-r", &from("links/."), &from("files/."), &to]);
        let stderr = text(&output.stderr).replace("/./", "/");
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for name in ["name", "chain", "below"] {
            let why = format!("through just-created symlink '{to}/{name}'");
            assert!(stderr.contains(&why), "{stderr}");
        }
        assert_eq!(fs::read_to_string(root.join("victim/file")).unwrap(), "old");
    }
}

#[test]
fn read_only_file_of_the_user_on_a_server_is_kept_without_f() {
    let server = Server::start();
    if !rustix::process::geteuid().is_root() {
        return skip("files of others need root");
    }
    fs::set_permissions(server.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let here = server.beside("here");
    fs::write(&here, "new").unwrap();
    server.put("keep", "old");
    chown(server.path("keep"), Some(4711), Some(4711)).unwrap();
    fs::set_permissions(server.path("keep"), fs::Permissions::from_mode(0o444)).unwrap();
    let (here, url) = (here.to_str().unwrap(), server.url("keep?uid=4711&gid=4711"));
    let output = run(["cp", here, &url]);
    let line = format!("spillway cp: cannot create regular file '{url}': Permission denied");
    assert_exit(&output, 1, &line);
    assert_eq!(fs::read_to_string(server.path("keep")).unwrap(), "old");
    succeeded(run(["cp", "-f", here, &url]));
    assert_eq!(fs::read_to_string(server.path("keep")).unwrap(), "new");
}

#[test]
fn target_of_a_source_that_cannot_be_read_is_kept() {
    let server = Server::start();
    if !rustix::process::geteuid().is_root() {
        return skip("files of others need root");
    }
    server.put("private", "new");
    fs::set_permissions(server.path("private"), fs::Permissions::from_mode(0o600)).unwrap();
    let here = server.beside("here");
    fs::write(&here, "old").unwrap();
    let url = server.url("private?uid=4711&gid=4711");
    for option in ["--", "-f"] {
        let output = run(["cp", option, &url, here.to_str().unwrap()]);
        let line = format!("spillway cp: error reading '{url}': Permission denied");
        assert_exit(&output, 1, &line);
        assert_eq!(fs::read_to_string(&here).unwrap(), "old");
    }
}

#[test]
fn f_replaces_a_program_that_runs() {
    let server = Server::start();
    server.put("program", "new");
    let program = server.beside("program");
    // By a process of its own: a child of another test could inherit the descriptor that is open
    // for writing, and then the copy cannot be executed.
    succeeded(Command::new("cp").arg("/bin/sleep").arg(&program).output().unwrap());
    // It goes by its name, as it may be one of many programs in a file.
    let mut child = Command::new(&program).arg0("sleep").arg("60").spawn().unwrap();
    let (url, to) = (server.url("program"), program.to_str().unwrap());
    let refused = run(["cp", &url, to]);
    let replaced = run(["cp", "-f", &url, to]);
    child.kill().unwrap();
    child.wait().unwrap();
    let line = format!("spillway cp: cannot create regular file '{to}': Text file busy");
    assert_exit(&refused, 1, &line);
    succeeded(replaced);
    assert_eq!(fs::read_to_string(program).unwrap(), "new");
}

#[test]
fn slash_behind_a_target_is_that_of_its_path() {
    let server = Server::start();
    let options = format!("?uid={}", rustix::process::geteuid().as_raw());
    fs::create_dir(server.path("dir")).unwrap();
    for (name, dir) in [("50%", "dir/"), ("what?", "dir/"), ("a", &format!("dir/{options}"))] {
        let here = server.beside(name);
        fs::write(&here, name).unwrap();
        succeeded(run(["cp", here.to_str().unwrap(), &server.url(dir)]));
        assert_same_data(here, server.path("dir").join(name));
    }
    server.put("from", "new");
    server.put("kept", "old");
    let (here, from) = (server.beside("a").display().to_string(), server.url("from"));
    for (name, options) in [("new", ""), ("new", &options), ("kept", ""), ("kept", &options)] {
        let to = server.url(&format!("{name}/{options}"));
        let line = format!("spillway cp: cannot create regular file '{to}': Not a directory");
        assert_exit(&run(["cp", &here, &to]), 1, &line);
        let line = format!("spillway mv: cannot move '{from}' to '{to}': Not a directory");
        assert_exit(&run(["mv", &from, &to]), 1, &line);
        let why = "No such file or directory";
        let line = format!("spillway ln: failed to create hard link '{to}' => '{from}': {why}");
        assert_exit(&run(["ln", &from, &to]), 1, &line);
    }
    assert!(!server.path("new").exists());
    assert_eq!(fs::read_to_string(server.path("kept")).unwrap(), "old");
}
