//! Which export of a server the path of a URL leads to.

use std::fs;

use proto::mount3::{self, ExportNode, Group};
use proto::oncrpc::{AcceptStat, ReplyHeader, encode_success};
use proto::xdr::{Encode, List};
use rpc::record;

use crate::fixture::{Server, on_terminal, run, succeeded};
use crate::relay::{Message, relay};

/// The URL of `/e` through a relay that refuses EXPORT.
fn unlisted(server: &Server) -> String {
    relay(server, |message| match message {
        Message::Call { xid, program: mount3::PROGRAM, procedure, .. }
            if procedure == mount3::Procedure::Export as u32 =>
        {
            let stat = AcceptStat::ProcUnavail;
            Some(record::encode(|w| ReplyHeader::Accepted { xid, stat }.encode(w)))
        }
        _ => None,
    })
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
