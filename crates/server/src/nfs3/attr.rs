//! GETATTR, SETATTR, ACCESS.

use proto::nfs3::{
    ACCESS_DELETE, ACCESS_EXECUTE, ACCESS_EXTEND, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ,
    AccessArgs, AccessOk, AccessReply, GetattrArgs, GetattrOk, GetattrReply, SetattrArgs,
    SetattrOk, SetattrReply,
};

use super::{convert, failed, refused};
use crate::dispatch::Request;
use crate::vfs::AccessRights;

/// GETATTR, RFC 1813 §3.3.1.
pub(super) async fn getattr(request: &Request<'_>, args: GetattrArgs) -> GetattrReply {
    let (_, object) = match request.resolve(&args.object) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    match request.service.vfs.getattr(&object).await {
        Ok(attributes) => Ok(GetattrOk { attributes: convert::attributes(&object, &attributes) }),
        Err(status) => refused(status),
    }
}

/// SETATTR, RFC 1813 §3.3.2.
pub(super) async fn setattr(request: &Request<'_>, args: SetattrArgs) -> SetattrReply {
    let (caller, object) = match request.resolve(&args.object) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    let change = convert::change(&args.new_attributes);
    let guard = args.guard.map(convert::timestamp);
    let answer = request.service.vfs.setattr(&caller, &object, change, guard).await;
    let wcc = convert::wcc(&object, &answer.attributes);
    match answer.result {
        Ok(()) => Ok(SetattrOk { wcc }),
        Err(status) => failed(status, wcc),
    }
}

/// ACCESS, RFC 1813 §3.3.4.
pub(super) async fn access(request: &Request<'_>, args: AccessArgs) -> AccessReply {
    let (caller, object) = match request.resolve(&args.object) {
        Ok(resolved) => resolved,
        Err(status) => return refused(status),
    };
    match request.service.vfs.access(&caller, &object).await {
        Ok((attributes, rights)) => Ok(AccessOk {
            access: args.access & access_bits(rights, attributes.is_directory()),
            attributes: Some(convert::attributes(&object, &attributes)),
        }),
        Err(status) => refused(status),
    }
}

/// The bits that make sense for the kind of object: LOOKUP and DELETE only for directories, EXECUTE
/// only for others.
fn access_bits(rights: AccessRights, is_directory: bool) -> u32 {
    let pick = |granted: bool, bits: u32| if granted { bits } else { 0 };
    if is_directory {
        pick(rights.read, ACCESS_READ)
            | pick(rights.execute, ACCESS_LOOKUP)
            | pick(rights.write, ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_DELETE)
    } else {
        pick(rights.read, ACCESS_READ)
            | pick(rights.execute, ACCESS_EXECUTE)
            | pick(rights.write, ACCESS_MODIFY | ACCESS_EXTEND)
    }
}
