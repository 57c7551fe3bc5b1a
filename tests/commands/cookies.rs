//! Listings of a server that rejects its cookies after a change of the directory.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::nfs3::{
    CookieVerifier, Entry, EntryPlus, Failure, Procedure, ReaddirArgs, ReaddirOk, ReaddirReply,
    ReaddirplusArgs, ReaddirplusOk, ReaddirplusReply, Status,
};
use proto::oncrpc::encode_success;
use proto::xdr::{Decode, Encode};
use rpc::record;

use crate::fixture::{Server, run, succeeded};
use crate::relay::intercept;

const VERIFIER: CookieVerifier = CookieVerifier([7; 8]);

#[test]
fn ls_goes_on_with_a_verifier_of_zeros() {
    let server = Server::start();
    let url = intercept(&server, Procedure::Readdir, |xid, mut arguments| {
        let ReaddirArgs { cookie, verifier, .. } = ReaddirArgs::decode(&mut arguments).unwrap();
        let (name, eof): (&[u8], _) = if cookie == 0 { (b"a", false) } else { (b"b", true) };
        let entries = [Entry { fileid: 5, name, cookie: cookie + 1 }];
        let reply: ReaddirReply<'_> = match verifier {
            VERIFIER => Err(Failure { status: Status::BadCookie, body: None }),
            _ => {
                let (verifier, entries) = (VERIFIER, entries[..].into());
                Ok(ReaddirOk { dir_attributes: None, verifier, entries, eof })
            }
        };
        Some(record::encode(|w| {
            encode_success(w, xid);
            reply.encode(w);
        }))
    });
    assert_eq!(succeeded(run(["ls", &url])), "a\nb\n");
}

#[test]
fn rm_reads_a_directory_again_when_its_cookies_are_rejected() {
    let server = Server::start();
    fs::create_dir(server.path("d")).unwrap();
    for name in ["d/a", "d/b"] {
        server.put(name, "");
    }
    let is_begun = AtomicBool::new(false);
    let url = intercept(&server, Procedure::Readdirplus, move |xid, mut arguments| {
        let cookie = ReaddirplusArgs::decode(&mut arguments).unwrap().cookie;
        let entries =
            [EntryPlus { fileid: 5, name: b"a", cookie: 1, attributes: None, handle: None }];
        let reply: ReaddirplusReply<'_> = match cookie {
            0 if is_begun.swap(true, Ordering::Relaxed) => return None,
            0 => {
                let (verifier, entries, eof) = (VERIFIER, entries[..].into(), false);
                Ok(ReaddirplusOk { dir_attributes: None, verifier, entries, eof })
            }
            _ => Err(Failure { status: Status::BadCookie, body: None }),
        };
        Some(record::encode(|w| {
            encode_success(w, xid);
            reply.encode(w);
        }))
    });
    succeeded(run(["rm", "-r", &format!("{url}/d")]));
    assert!(!server.path("d").exists());
}
