//! Which export of a server the path of a URL leads to.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;

use proto::mount3::{self, ExportNode, Group};
use proto::nfs3::{self, Failure, LookupReply, Status};
use proto::oncrpc::{AcceptStat, ReplyHeader, encode_success};
use proto::xdr::{Encode, List};
use rpc::record;

use crate::fixture::{Server, on_terminal, run, succeeded, text};
use crate::relay::{Message, relay};

/// The URL of `/e` through a relay that refuses EXPORT, and follows the link `/e/link` to `/e/real`
/// in MNT, as Linux does.
fn unlisted(server: &Server) -> String {
    unlisted_and_refusing(server, None)
}

/// As [`unlisted`], also answers LOOKUP with `status`.
fn unlisted_and_refusing(server: &Server, status: Option<Status>) -> String {
    let port = server.port();
    relay(server, move |message| match message {
        Message::Call { xid, program: mount3::PROGRAM, procedure, .. }
            if procedure == mount3::Procedure::Export as u32 =>
        {
            let stat = AcceptStat::ProcUnavail;
            Some(record::encode(|w| ReplyHeader::Accepted { xid, stat }.encode(w)))
        }
        Message::Call { program: mount3::PROGRAM, bytes, .. } => {
            let (link, real) = (b"/e/link", b"/e/real");
            let at = bytes.windows(link.len()).position(|part| part == link)?;
            let mut call = bytes.to_vec();
            call[at..at + real.len()].copy_from_slice(real);
            let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            server.write_all(&record::in_fragments(&call, &[])).unwrap();
            let reply = record::read_blocking(&mut server, REPLY_BYTES_MAX).unwrap().unwrap();
            Some(record::in_fragments(&reply, &[]))
        }
        Message::Call { xid, program: nfs3::PROGRAM, procedure, .. }
            if procedure == nfs3::Procedure::Lookup as u32 =>
        {
            let status = status?;
            Some(record::encode(|w| {
                encode_success(w, xid);
                LookupReply::Err(Failure { status, body: None }).encode(w);
            }))
        }
        _ => None,
    })
}

const REPLY_BYTES_MAX: usize = 1 << 10;

#[test]
fn link_that_mnt_follows_is_named_itself_where_it_is_not_followed() {
    let server = Server::start();
    fs::create_dir(server.path("real")).unwrap();
    server.put("real/file", "");
    symlink("real", server.path("link")).unwrap();
    let (here, link) = (server.beside("here"), format!("{}/link", unlisted(&server)));
    succeeded(run(["cp", "-r", &link, here.to_str().unwrap()]));
    assert_eq!(fs::read_link(here).unwrap(), Path::new("real"));
    assert_eq!(succeeded(run(["stat", "-c", "%F", &link])), "symbolic link\n");
    assert_eq!(succeeded(run(["stat", "-Lc", "%F", &link])), "directory\n");
    let below = format!("{link}/");
    assert_eq!(succeeded(run(["stat", "-c", "%F", &below])), "directory\n");
}

#[test]
fn directory_is_not_taken_for_the_link_to_it_that_an_error_hides() {
    let server = Server::start();
    fs::create_dir(server.path("real")).unwrap();
    symlink("real", server.path("link")).unwrap();
    for status in [Status::Acces, Status::Noent, Status::Notdir] {
        let link = format!("{}/link", unlisted_and_refusing(&server, Some(status)));
        assert_eq!(succeeded(run(["stat", "-c", "%F", &link])), "directory\n", "{status:?}");
    }
    for status in [Status::Io, Status::Serverfault, Status::Stale] {
        let link = format!("{}/link", unlisted_and_refusing(&server, Some(status)));
        let output = run(["stat", "-c", "%F", &link]);
        assert_eq!((text(&output.stdout), output.status.code()), ("", Some(1)), "{status:?}");
    }
}

#[test]
fn export_in_an_unlisted_one_is_copied_and_not_the_directory_that_it_hides() {
    let server = Server::nesting("scratch");
    fs::create_dir(server.path("scratch")).unwrap();
    server.put("scratch/hidden", "");
    fs::write(server.beside("scratch/nested"), "").unwrap();
    let here = server.beside("here");
    let url = format!("{}/scratch", unlisted(&server));
    succeeded(run(["cp", "-r", &url, here.to_str().unwrap()]));
    assert!(here.join("nested").exists() && !here.join("hidden").exists());
}

#[test]
fn order_of_arguments_does_not_choose_the_export() {
    let server = Server::nesting("scratch");
    // The nested export hides this directory.
    fs::create_dir(server.path("scratch")).unwrap();
    let (nested, hidden) = (server.beside("scratch/b"), server.path("scratch/b"));
    for url in [server.url(""), unlisted(&server)] {
        for names in [["a", "scratch/b"], ["scratch/b", "a"]] {
            server.put("a", "");
            fs::write(&nested, "").unwrap();
            fs::write(&hidden, "").unwrap();
            let urls = names.map(|name| format!("{url}/{name}"));
            succeeded(run(["rm", &urls[0], &urls[1]]));
            assert!(!server.path("a").exists());
            assert!(!nested.exists() && hidden.exists(), "{urls:?}");
        }
    }
}

#[test]
fn files_are_renamed_between_directories_of_an_unlisted_export() {
    let server = Server::start();
    fs::create_dir(server.path("dir")).unwrap();
    server.put("dir/old", "data");
    let url = unlisted(&server);
    succeeded(run(["mv", &format!("{url}/dir/old"), &format!("{url}/new")]));
    assert_eq!(fs::read_to_string(server.path("new")).unwrap(), "data");
}

#[test]
fn hostile_names_are_raw_for_a_program_and_quoted_on_a_terminal() {
    let server = Server::start();
    let url = relay(&server, |message| match message {
        Message::Call { xid, program: mount3::PROGRAM, procedure, .. }
            if procedure == mount3::Procedure::Export as u32 =>
        {
            let groups = [Group { name: b"host\x1b[0m" }];
            let groups = List::from(&groups[..]);
            let exports = [ExportNode { directory: b"/\x1b[31mred\n/forged", groups }];
            Some(record::encode(|w| {
                encode_success(w, xid);
                List::from(&exports[..]).encode(w);
            }))
        }
        _ => None,
    });
    let command = ["exports", "--no-headers", &url];
    assert_eq!(succeeded(run(command)), "/\x1b[31mred\n/forged host\x1b[0m\n");
    if let Some(printed) = on_terminal(&command) {
        let expected = r"'/'$'\033''[31mred'$'\n''/forged' 'host'$'\033''[0m'";
        assert_eq!(printed, format!("{expected}\r\n"));
    }
}
