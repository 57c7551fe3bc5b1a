//! LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use io::{Buffer, Payload};
use proto::nfs3::{
    Attributes, CreateArgs, CreateHow, CreatedOk, DirOp, LinkArgs, LinkFailure, LinkOk, LookupArgs,
    LookupOk, MkdirArgs, MknodArgs, MknodData, ReadlinkArgs, ReadlinkOk, RemoveArgs, RemovedOk,
    RenameArgs, RenameFailure, RenameOk, RmdirArgs, SetAttributes, SymlinkArgs, WccData,
};
use proto::xdr::{Encode, Writer};

use super::{Executed, NFS3_OK, Outcome, Refused, Results, convert};
use crate::export::Object;
use crate::fs::Status;
use crate::inode_cache::Wcc;
use crate::request::Request;
use crate::vfs::{Answer, AttributeChange, CreateMode, EntryName, Found, NodeKind};

/// The longest target of a link that is sent with the head of the reply, outside the budget.
const TARGET_IN_HEAD_MAX: usize = 512;
/// Room for the result with the longest target that Linux allows, 4,095 bytes, and attributes.
const LONG_RESULT_BYTES: usize = 8 * 1024;

/// LOOKUP, RFC 1813 §3.3.3.
pub(super) async fn lookup(
    request: &Request<'_>,
    args: LookupArgs<'_>,
) -> Outcome<LookupOk, Option<Attributes>> {
    let (caller, dir) = request.resolve(&args.what.dir)?;
    let answer = request.service.vfs.lookup(&caller, &dir, args.what.name).await;
    let dir_attributes = answer.attributes.map(|a| convert::attributes(&dir, &a));
    let found = answer.result.map_err(Refused::with(dir_attributes))?;
    Ok(LookupOk {
        object: request.service.seal(dir.root(), found.handle),
        object_attributes: Some(convert::attributes(&dir, &found.attributes)),
        dir_attributes,
    })
}

/// READLINK, RFC 1813 §3.3.5. A long target is sent behind the head.
pub(super) async fn readlink(results: Results<'_>, args: ReadlinkArgs) -> Executed {
    let outcome = read_target(results.request, args).await;
    results.put_with(outcome, |link, reply| {
        let LinkTarget { attributes, target, buffer } = link;
        let encode = |to: &mut Writer| {
            to.u32(NFS3_OK);
            ReadlinkOk { attributes, target: &target }.encode(to);
        };
        let Some(buffer) = buffer else {
            encode(reply);
            return None;
        };
        let mut encoded = Writer::with_capacity(LONG_RESULT_BYTES);
        encode(&mut encoded);
        Some(Payload::copied(buffer, encoded.as_slice()))
    })
}

/// The target of a link.
struct LinkTarget {
    attributes: Option<Attributes>,
    target: Vec<u8>,
    /// Memory of the budget, for a long target.
    buffer: Option<Buffer>,
}

async fn read_target(
    request: &Request<'_>,
    args: ReadlinkArgs,
) -> Outcome<LinkTarget, Option<Attributes>> {
    let (_, object) = request.resolve(&args.symlink)?;
    let vfs = &request.service.vfs;
    let mut answer = vfs.readlink(&object).await;
    let mut buffer = None;
    if answer.result.as_ref().is_ok_and(|target| target.len() > TARGET_IN_HEAD_MAX) {
        // Read again once there is memory to keep it in: what waits for memory holds none.
        drop(answer);
        buffer = request.service.take_buffer(LONG_RESULT_BYTES).await.ok();
        answer = vfs.readlink(&object).await;
    }
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    let target = answer.result.map_err(Refused::with(attributes))?;
    Ok(LinkTarget { attributes, target, buffer })
}

/// CREATE, RFC 1813 §3.3.8.
pub(super) async fn create(
    request: &Request<'_>,
    args: CreateArgs<'_>,
) -> Outcome<CreatedOk, WccData> {
    let (caller, dir) = request.resolve(&args.where_.dir)?;
    let mode = match &args.how {
        CreateHow::Unchecked(set) => CreateMode::Unchecked(convert::change(set)),
        CreateHow::Guarded(set) => CreateMode::Guarded(convert::change(set)),
        CreateHow::Exclusive(verifier) => {
            CreateMode::Exclusive(*verifier, AttributeChange::default())
        }
    };
    let Answer { attributes, result } =
        request.service.vfs.create(&caller, &dir, args.where_.name, mode).await;
    let result = result.map(|created| created.found);
    created(request, &dir, Answer { attributes, result })
}

/// MKDIR, RFC 1813 §3.3.9.
pub(super) async fn mkdir(
    request: &Request<'_>,
    args: MkdirArgs<'_>,
) -> Outcome<CreatedOk, WccData> {
    make_node(request, &args.where_, NodeKind::Directory, &args.attributes).await
}

/// SYMLINK, RFC 1813 §3.3.10.
pub(super) async fn symlink(
    request: &Request<'_>,
    args: SymlinkArgs<'_>,
) -> Outcome<CreatedOk, WccData> {
    let kind = NodeKind::Symlink(args.target.to_vec());
    make_node(request, &args.where_, kind, &args.attributes).await
}

/// MKNOD, RFC 1813 §3.3.11.
pub(super) async fn mknod(
    request: &Request<'_>,
    args: MknodArgs<'_>,
) -> Outcome<CreatedOk, WccData> {
    let (kind, set) = match &args.what {
        MknodData::BlockDevice { attributes, spec } => {
            (NodeKind::BlockDevice(spec.major, spec.minor), attributes)
        }
        MknodData::CharacterDevice { attributes, spec } => {
            (NodeKind::CharacterDevice(spec.major, spec.minor), attributes)
        }
        MknodData::Socket(attributes) => (NodeKind::Socket, attributes),
        MknodData::Fifo(attributes) => (NodeKind::Fifo, attributes),
        MknodData::Other(_) => {
            let (_, dir) = request.resolve(&args.where_.dir)?;
            let answer = request.service.vfs.refuse_change(&dir, Status::BadType).await;
            return created(request, &dir, answer);
        }
    };
    make_node(request, &args.where_, kind, set).await
}

async fn make_node(
    request: &Request<'_>,
    place: &DirOp<'_>,
    kind: NodeKind,
    set: &SetAttributes,
) -> Outcome<CreatedOk, WccData> {
    let (caller, dir) = request.resolve(&place.dir)?;
    let change = convert::change(set);
    let answer = request.service.vfs.make_node(&caller, &dir, place.name, kind, change).await;
    created(request, &dir, answer)
}

#[expect(clippy::result_large_err, reason = "the wire's own shape, encoded by its only callers")]
fn created(
    request: &Request<'_>,
    dir: &Object,
    answer: Answer<Wcc, Found>,
) -> Outcome<CreatedOk, WccData> {
    let dir_wcc = convert::wcc(dir, &answer.attributes);
    let found = answer.result.map_err(Refused::with(dir_wcc))?;
    Ok(CreatedOk {
        object: Some(request.service.seal(dir.root(), found.handle)),
        attributes: Some(convert::attributes(dir, &found.attributes)),
        dir_wcc,
    })
}

/// REMOVE, RFC 1813 §3.3.12.
pub(super) async fn remove(
    request: &Request<'_>,
    args: RemoveArgs<'_>,
) -> Outcome<RemovedOk, WccData> {
    remove_name(request, &args.object, false).await
}

/// RMDIR, RFC 1813 §3.3.13.
pub(super) async fn rmdir(
    request: &Request<'_>,
    args: RmdirArgs<'_>,
) -> Outcome<RemovedOk, WccData> {
    remove_name(request, &args.object, true).await
}

async fn remove_name(
    request: &Request<'_>,
    name: &DirOp<'_>,
    is_directory: bool,
) -> Outcome<RemovedOk, WccData> {
    let (caller, dir) = request.resolve(&name.dir)?;
    let answer = request.service.vfs.remove(&caller, &dir, name.name, is_directory).await;
    let dir_wcc = convert::wcc(&dir, &answer.attributes);
    answer.result.map_err(Refused::with(dir_wcc))?;
    Ok(RemovedOk { dir_wcc })
}

/// RENAME, RFC 1813 §3.3.14. Both directories pass the gate.
pub(super) async fn rename(
    request: &Request<'_>,
    args: RenameArgs<'_>,
) -> Outcome<RenameOk, RenameFailure> {
    let (_, from) = request.resolve(&args.from.dir)?;
    let (caller, to) = request.resolve(&args.to.dir)?;
    let old = EntryName { dir: &from, name: args.from.name };
    let new = EntryName { dir: &to, name: args.to.name };
    let answer = request.service.vfs.rename(&caller, old, new).await;
    let from_wcc = convert::wcc(&from, &answer.attributes.0);
    let to_wcc = convert::wcc(&to, &answer.attributes.1);
    answer.result.map_err(Refused::with(RenameFailure { from_wcc, to_wcc }))?;
    Ok(RenameOk { from_wcc, to_wcc })
}

/// LINK, RFC 1813 §3.3.15. File and directory pass the gate.
pub(super) async fn link(
    request: &Request<'_>,
    args: LinkArgs<'_>,
) -> Outcome<LinkOk, LinkFailure> {
    let (_, file) = request.resolve(&args.file)?;
    let (caller, dir) = request.resolve(&args.link.dir)?;
    let answer = request.service.vfs.link(&caller, &file, &dir, args.link.name).await;
    let file_attributes = answer.attributes.0.map(|a| convert::attributes(&file, &a));
    let dir_wcc = convert::wcc(&dir, &answer.attributes.1);
    answer.result.map_err(Refused::with(LinkFailure { file_attributes, dir_wcc }))?;
    Ok(LinkOk { file_attributes, dir_wcc })
}
