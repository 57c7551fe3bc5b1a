//! LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use proto::nfs3::{
    CreateArgs, CreateHow, CreatedOk, CreatedReply, DirOp, LinkArgs, LinkFailure, LinkOk,
    LinkReply, LookupArgs, LookupOk, LookupReply, MkdirArgs, MknodArgs, MknodData, ReadlinkArgs,
    ReadlinkOk, ReadlinkReply, RemoveArgs, RemovedOk, RemovedReply, RenameArgs, RenameFailure,
    RenameOk, RenameReply, RmdirArgs, SetAttributes, SymlinkArgs,
};
use proto::xdr::{Encode, Writer};

use super::{convert, failed, refused};
use crate::dispatch::Request;
use crate::vfs::{Answer, CreateMode, Found, NodeKind, Object, Status, Wcc};

/// LOOKUP, RFC 1813 §3.3.3.
pub(super) async fn lookup(request: &Request<'_>, args: LookupArgs<'_>) -> LookupReply {
    let (caller, dir) = match request.resolve(&args.what.dir) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    let answer = request.service.vfs.lookup(&caller, &dir, args.what.name).await;
    let dir_attributes = answer.attributes.map(|a| convert::attributes(&dir, &a));
    match answer.result {
        Ok(found) => Ok(LookupOk {
            object: request.service.seal(dir.root.id, found.handle),
            object_attributes: Some(convert::attributes(&dir, &found.attributes)),
            dir_attributes,
        }),
        Err(status) => failed(status, dir_attributes),
    }
}

/// READLINK, RFC 1813 §3.3.5.
pub(super) async fn readlink(request: &Request<'_>, args: ReadlinkArgs, reply: &mut Writer) {
    let (_, object) = match request.resolve(&args.symlink) {
        Ok(resolved) => resolved,
        Err(status) => return ReadlinkReply::encode(&refused(status), reply),
    };
    let answer = request.service.vfs.readlink(&object).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    let result: ReadlinkReply<'_> = match &answer.result {
        Ok(target) => Ok(ReadlinkOk { attributes, target }),
        Err(status) => failed(*status, attributes),
    };
    result.encode(reply);
}

/// CREATE, RFC 1813 §3.3.8.
pub(super) async fn create(request: &Request<'_>, args: CreateArgs<'_>) -> CreatedReply {
    let (caller, dir) = match request.resolve(&args.where_.dir) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    let mode = match &args.how {
        CreateHow::Unchecked(set) => CreateMode::Unchecked(convert::change(set)),
        CreateHow::Guarded(set) => CreateMode::Guarded(convert::change(set)),
        CreateHow::Exclusive(verifier) => CreateMode::Exclusive(*verifier),
    };
    let answer = request.service.vfs.create(&caller, &dir, args.where_.name, mode).await;
    created(request, &dir, answer)
}

/// MKDIR, RFC 1813 §3.3.9.
pub(super) async fn mkdir(request: &Request<'_>, args: MkdirArgs<'_>) -> CreatedReply {
    make_node(request, &args.where_, NodeKind::Directory, &args.attributes).await
}

/// SYMLINK, RFC 1813 §3.3.10.
pub(super) async fn symlink(request: &Request<'_>, args: SymlinkArgs<'_>) -> CreatedReply {
    let kind = NodeKind::Symlink(args.target.to_vec());
    make_node(request, &args.where_, kind, &args.attributes).await
}

/// MKNOD, RFC 1813 §3.3.11.
pub(super) async fn mknod(request: &Request<'_>, args: MknodArgs<'_>) -> CreatedReply {
    let (kind, set) = match &args.what {
        MknodData::BlockDevice { attributes, spec } => {
            (NodeKind::BlockDevice(spec.major, spec.minor), attributes)
        }
        MknodData::CharacterDevice { attributes, spec } => {
            (NodeKind::CharacterDevice(spec.major, spec.minor), attributes)
        }
        MknodData::Socket(attributes) => (NodeKind::Socket, attributes),
        MknodData::Fifo(attributes) => (NodeKind::Fifo, attributes),
        MknodData::Other(_) => return refused(Status::BadType),
    };
    make_node(request, &args.where_, kind, set).await
}

async fn make_node(
    request: &Request<'_>,
    place: &DirOp<'_>,
    kind: NodeKind,
    set: &SetAttributes,
) -> CreatedReply {
    let (caller, dir) = match request.resolve(&place.dir) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    let change = convert::change(set);
    let answer = request.service.vfs.make_node(&caller, &dir, place.name, kind, change).await;
    created(request, &dir, answer)
}

#[expect(clippy::result_large_err, reason = "the wire's own shape, encoded by its only callers")]
fn created(request: &Request<'_>, dir: &Object, answer: Answer<Wcc, Found>) -> CreatedReply {
    let dir_wcc = convert::wcc(dir, &answer.attributes);
    match answer.result {
        Ok(found) => Ok(CreatedOk {
            object: Some(request.service.seal(dir.root.id, found.handle)),
            attributes: Some(convert::attributes(dir, &found.attributes)),
            dir_wcc,
        }),
        Err(status) => failed(status, dir_wcc),
    }
}

/// REMOVE, RFC 1813 §3.3.12.
pub(super) async fn remove(request: &Request<'_>, args: RemoveArgs<'_>) -> RemovedReply {
    remove_name(request, &args.object, false).await
}

/// RMDIR, RFC 1813 §3.3.13.
pub(super) async fn rmdir(request: &Request<'_>, args: RmdirArgs<'_>) -> RemovedReply {
    remove_name(request, &args.object, true).await
}

async fn remove_name(request: &Request<'_>, name: &DirOp<'_>, is_directory: bool) -> RemovedReply {
    let (caller, dir) = match request.resolve(&name.dir) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    let answer = request.service.vfs.remove(&caller, &dir, name.name, is_directory).await;
    let dir_wcc = convert::wcc(&dir, &answer.attributes);
    match answer.result {
        Ok(()) => Ok(RemovedOk { dir_wcc }),
        Err(status) => failed(status, dir_wcc),
    }
}

/// RENAME, RFC 1813 §3.3.14. Both directories pass the gate.
pub(super) async fn rename(request: &Request<'_>, args: RenameArgs<'_>) -> RenameReply {
    let resolved = request.resolve(&args.from.dir);
    let (from, (caller, to)) = match (resolved, request.resolve(&args.to.dir)) {
        (Ok((_, from)), Ok(to)) => (from, to),
        (Err(status), _) | (_, Err(status)) => return refused(status),
    };
    let (old, new) = ((&from, args.from.name), (&to, args.to.name));
    let answer = request.service.vfs.rename(&caller, old, new).await;
    let from_wcc = convert::wcc(&from, &answer.attributes.0);
    let to_wcc = convert::wcc(&to, &answer.attributes.1);
    match answer.result {
        Ok(()) => Ok(RenameOk { from_wcc, to_wcc }),
        Err(status) => failed(status, RenameFailure { from_wcc, to_wcc }),
    }
}

/// LINK, RFC 1813 §3.3.15. File and directory pass the gate.
pub(super) async fn link(request: &Request<'_>, args: LinkArgs<'_>) -> LinkReply {
    let resolved = request.resolve(&args.file);
    let (file, (caller, dir)) = match (resolved, request.resolve(&args.link.dir)) {
        (Ok((_, file)), Ok(dir)) => (file, dir),
        (Err(status), _) | (_, Err(status)) => return refused(status),
    };
    let answer = request.service.vfs.link(&caller, &file, &dir, args.link.name).await;
    let file_attributes = answer.attributes.0.map(|a| convert::attributes(&file, &a));
    let dir_wcc = convert::wcc(&dir, &answer.attributes.1);
    match answer.result {
        Ok(()) => Ok(LinkOk { file_attributes, dir_wcc }),
        Err(status) => failed(status, LinkFailure { file_attributes, dir_wcc }),
    }
}
