//! FSSTAT, FSINFO, PATHCONF.

use proto::nfs3::{
    Attributes, FSF_CANSETTIME, FSF_HOMOGENEOUS, FSF_LINK, FSF_SYMLINK, FsinfoArgs, FsinfoOk,
    FsstatArgs, FsstatOk, PathconfArgs, PathconfOk, Time,
};

use super::{Outcome, Refused, convert};
use crate::request::Request;

/// The unit of a transfer's length: the page size, which is the unit of the cache.
const TRANSFER_MULTIPLE: u32 = 4096;
/// The length that READDIR should be asked for. Larger replies save calls and cost little.
const READDIR_PREFERRED: u32 = 64 * 1024;

/// FSSTAT, RFC 1813 §3.3.18.
pub(super) async fn fsstat(
    request: &Request<'_>,
    args: FsstatArgs,
) -> Outcome<FsstatOk, Option<Attributes>> {
    let (_, object) = request.resolve(&args.fsroot)?;
    let answer = request.service.vfs.fsstat(&object).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    let space = answer.result.map_err(Refused::with(attributes))?;
    Ok(FsstatOk {
        attributes,
        tbytes: space.total_bytes,
        fbytes: space.free_bytes,
        abytes: space.available_bytes,
        tfiles: space.total_files,
        ffiles: space.free_files,
        afiles: space.available_files,
        // The numbers may change at any moment.
        invarsec: 0,
    })
}

/// FSINFO, RFC 1813 §3.3.19.
pub(super) async fn fsinfo(
    request: &Request<'_>,
    args: FsinfoArgs,
) -> Outcome<FsinfoOk, Option<Attributes>> {
    let (_, object) = request.resolve(&args.fsroot)?;
    let attributes = request.service.vfs.getattr(&object).await?;
    let largest = request.service.memory.transfer_bytes_max;
    Ok(FsinfoOk {
        attributes: Some(convert::attributes(&object, &attributes)),
        rtmax: largest,
        rtpref: largest,
        rtmult: TRANSFER_MULTIPLE,
        wtmax: largest,
        wtpref: largest,
        wtmult: TRANSFER_MULTIPLE,
        dtpref: READDIR_PREFERRED,
        maxfilesize: i64::MAX.unsigned_abs(),
        time_delta: Time { seconds: 0, nseconds: 1 },
        properties: FSF_LINK | FSF_SYMLINK | FSF_HOMOGENEOUS | FSF_CANSETTIME,
    })
}

/// PATHCONF, RFC 1813 §3.3.20.
pub(super) async fn pathconf(
    request: &Request<'_>,
    args: PathconfArgs,
) -> Outcome<PathconfOk, Option<Attributes>> {
    let (_, object) = request.resolve(&args.object)?;
    let answer = request.service.vfs.pathconf(&object).await;
    let attributes = answer.attributes.map(|a| convert::attributes(&object, &a));
    let limits = answer.result.map_err(Refused::with(attributes))?;
    Ok(PathconfOk {
        attributes,
        linkmax: limits.links_max,
        name_max: limits.name_bytes_max,
        no_trunc: true,
        chown_restricted: true,
        case_insensitive: false,
        case_preserving: true,
    })
}
