//! Which export of a server the path of a URL leads to.

use std::fs;

use proto::mount3;
use proto::oncrpc::{AcceptStat, ReplyHeader};
use proto::xdr::Encode;
use rpc::record;

use crate::fixture::{Server, run, succeeded};
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
