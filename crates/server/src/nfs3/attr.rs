//! GETATTR, SETATTR, ACCESS.

use proto::nfs3::{
    ACCESS_DELETE, ACCESS_EXECUTE, ACCESS_EXTEND, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ,
    AccessArgs, AccessOk, Attributes, GetattrArgs, GetattrOk, SetattrArgs, SetattrOk, WccData,
};

use super::{Outcome, Refused, convert};
use crate::inode_cache::AccessRights;
use crate::request::Request;

/// GETATTR, RFC 1813 §3.3.1.
pub(super) async fn getattr(request: &Request<'_>, args: GetattrArgs) -> Outcome<GetattrOk, ()> {
    let (_, object) = request.resolve(&args.object)?;
    let attributes = request.service.vfs.getattr(&object).await?;
    Ok(GetattrOk { attributes: convert::attributes(&object, &attributes) })
}

/// SETATTR, RFC 1813 §3.3.2.
pub(super) async fn setattr(
    request: &Request<'_>,
    args: SetattrArgs,
) -> Outcome<SetattrOk, WccData> {
    let (caller, object) = request.resolve(&args.object)?;
    let change = convert::change(&args.new_attributes);
    let guard = args.guard.map(convert::timestamp);
    let answer = request.service.setattr(&caller, &object, change, guard).await;
    let wcc = convert::wcc(&object, &answer.attributes.0);
    answer.result.map_err(Refused::with(wcc))?;
    Ok(SetattrOk { wcc })
}

/// ACCESS, RFC 1813 §3.3.4.
pub(super) async fn access(
    request: &Request<'_>,
    args: AccessArgs,
) -> Outcome<AccessOk, Option<Attributes>> {
    let (caller, object) = request.resolve(&args.object)?;
    let (attributes, rights) = request.service.vfs.access(&caller, &object).await?;
    Ok(AccessOk {
        access: args.access & access_bits(rights, attributes.is_directory()),
        attributes: Some(convert::attributes(&object, &attributes)),
    })
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
