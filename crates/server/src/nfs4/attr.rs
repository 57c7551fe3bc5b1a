//! GETATTR, SETATTR, VERIFY, NVERIFY, ACCESS.

use std::time::Duration;

use proto::nfs4::{
    ACCESS_DELETE, ACCESS_EXECUTE, ACCESS_EXTEND, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ,
    ACCESS_XALIST, ACCESS_XAREAD, ACCESS_XAWRITE, AccessArgs, AccessOk, Attributes, Bitmap,
    ChangeAttributeType, DeviceSpec, FileHandle, FileType, Fsid, GetattrArgs, NoItems,
    OperationCode, Principal, RawAttributes, SetattrArgs, ShareAccess, Status, Time, attribute,
};
use proto::xdr::{Decode, Encode, Reader, Writer};

use super::compound::Compound;
use super::convert::SUPPORTED;
use super::location::{Located, Place, Pseudo};
use super::operation::decoded;
use super::{Outcome, convert};
use crate::inode_cache;
use crate::service::Service;
use crate::vfs::{AccessRights, FileSystemSpace, PathLimits};

/// Attributes of RFC 7862 and later, which minor version 1 does not have.
const OF_MINOR_2: Bitmap = Bitmap::of(&[
    attribute::CLONE_BLKSIZE,
    attribute::SPACE_FREED,
    attribute::CHANGE_ATTR_TYPE,
    attribute::MODE_UMASK,
    attribute::XATTR_SUPPORT,
]);
/// Attributes that can be set and not read.
pub(super) const WRITE_ONLY: Bitmap =
    Bitmap::of(&[attribute::TIME_ACCESS_SET, attribute::TIME_MODIFY_SET, attribute::MODE_UMASK]);
/// Attributes of the file system's space, and of its blocks.
const OF_SPACE: Bitmap = Bitmap::of(&[
    attribute::CLONE_BLKSIZE,
    attribute::FILES_AVAIL,
    attribute::FILES_FREE,
    attribute::FILES_TOTAL,
    attribute::SPACE_AVAIL,
    attribute::SPACE_FREE,
    attribute::SPACE_TOTAL,
]);
/// Attributes of the file system's limits.
const OF_LIMITS: Bitmap = Bitmap::of(&[attribute::MAXLINK, attribute::MAXNAME]);
/// The attributes that an exclusive OPEN can set: all but the times, which hold the verifier.
const EXCLUSIVE_CREATE: Bitmap = Bitmap::of(&[
    attribute::SIZE,
    attribute::MODE,
    attribute::OWNER,
    attribute::OWNER_GROUP,
    attribute::MODE_UMASK,
]);
/// `clone_blksize` where there are no files.
const PSEUDO_BLOCK_BYTES: u32 = 4096;
/// `FH4_PERSISTENT`: a handle lasts as long as its object.
const PERSISTENT: u32 = 0;

/// An object of an export, for its attributes.
pub(super) struct Described<'a> {
    pub(super) attributes: &'a inode_cache::Attributes,
    /// The export's id.
    pub(super) export_id: u32,
    /// Where the export is mounted, if the object is its root.
    pub(super) mounted_on: Option<u64>,
    pub(super) handle: Option<FileHandle>,
    pub(super) space: Option<FileSystemSpace>,
    pub(super) limits: Option<PathLimits>,
    pub(super) supports_xattrs: Option<bool>,
}

impl Compound<'_> {
    /// GETATTR, RFC 8881 §18.7.
    pub(super) async fn getattr(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let outcome = match decoded::<GetattrArgs>(reader) {
            Ok(args) => self.describe(args.wanted, |attributes, w| attributes.encode(w)).await,
            Err(refused) => Err(refused),
        };
        self.put_with(OperationCode::Getattr, outcome, |encoded: Writer, results| {
            results.writer().array(encoded.as_slice());
            Ok(())
        })
    }

    /// The current object's attributes that are asked for, encoded.
    async fn describe(
        &self,
        wanted: Bitmap,
        encode: impl FnOnce(&Attributes<'_>, &mut Writer),
    ) -> Outcome<Writer> {
        if !wanted.intersection(WRITE_ONLY).is_empty() {
            return Err(Status::Inval.into());
        }
        let wanted = wanted.intersection(self.supported());
        let mut encoded = Writer::with_capacity(256);
        match self.place()? {
            Place::Pseudo(pseudo) => encode(&self.describe_pseudo(pseudo, wanted), &mut encoded),
            Place::Object(located) => {
                let vfs = &self.request.service.vfs;
                let object = &located.object;
                let attributes = vfs.getattr(object).await?;
                let space = match wanted.intersection(OF_SPACE).is_empty() {
                    true => None,
                    false => Some(Box::pin(vfs.fsstat(object)).await.result?),
                };
                let limits = match wanted.intersection(OF_LIMITS).is_empty() {
                    true => None,
                    false => Some(Box::pin(vfs.pathconf(object)).await.result?),
                };
                let supports_xattrs = match wanted.contains(attribute::XATTR_SUPPORT) {
                    true => Some(Box::pin(vfs.supports_xattrs(object)).await?),
                    false => None,
                };
                let handle = wanted.contains(attribute::FILEHANDLE);
                let described = Described {
                    attributes: &attributes,
                    export_id: object.root().id,
                    mounted_on: self.mounted_on(located, wanted),
                    handle: handle.then(|| self.handle_of(&Place::Object(located.clone()))),
                    space,
                    limits,
                    supports_xattrs,
                };
                encode(&self.fill(&described, wanted), &mut encoded);
            }
        }
        Ok(encoded)
    }

    /// The attributes of the minor version.
    pub(super) fn supported(&self) -> Bitmap {
        supported(self.minor_version)
    }

    /// The number of the directory that an export is mounted on, where the object is its root.
    fn mounted_on(&self, located: &Located, wanted: Bitmap) -> Option<u64> {
        let is_asked = wanted.contains(attribute::MOUNTED_ON_FILEID) && located.is_root();
        is_asked.then(|| self.pseudo_of(located)).flatten().map(|pseudo| pseudo.node().id)
    }

    fn fill(&self, described: &Described<'_>, wanted: Bitmap) -> Attributes<'static> {
        of_object(described, wanted, of_server(self.request.service, self.minor_version))
    }

    /// The attributes of a directory above the exports.
    pub(super) fn describe_pseudo(&self, pseudo: &Pseudo, wanted: Bitmap) -> Attributes<'static> {
        let node = pseudo.node();
        let made_ns = pseudo.exports.pseudo_root.made_ns();
        let made = Time {
            seconds: i64::try_from(made_ns / 1_000_000_000).unwrap_or(i64::MAX),
            nseconds: u32::try_from(made_ns % 1_000_000_000).expect("below a second"),
        };
        let links = u32::try_from(node.children.len()).unwrap_or(u32::MAX).saturating_add(2);
        let mut all = Attributes {
            file_type: Some(FileType::Directory),
            change: Some(made_ns),
            size: Some(4096),
            fsid: Some(Fsid { major: 0, minor: 1 }),
            filehandle: Some(self.handle_of(&Place::Pseudo(pseudo.clone()))),
            fileid: Some(node.id),
            files_avail: Some(0),
            files_free: Some(0),
            files_total: Some(0),
            max_link: Some(u32::from(u16::MAX)),
            max_name: Some(255),
            mode: Some(0o555),
            num_links: Some(links),
            owner: Some(Principal::Id(0)),
            owner_group: Some(Principal::Id(0)),
            raw_device: Some(DeviceSpec::default()),
            space_avail: Some(0),
            space_free: Some(0),
            space_total: Some(0),
            space_used: Some(0),
            time_access: Some(made),
            time_metadata: Some(made),
            time_modify: Some(made),
            mounted_on_fileid: Some(node.id),
            clone_block_bytes: Some(PSEUDO_BLOCK_BYTES),
            space_freed: Some(0),
            // A client asks once for a mount, which may begin here.
            xattr_support: Some(true),
            ..of_server(self.request.service, self.minor_version)
        };
        all.keep(wanted);
        all
    }

    /// SETATTR, RFC 8881 §18.30. The attributes set follow the status in any case.
    pub(super) async fn setattr(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let mut set = Bitmap::EMPTY;
        let outcome = match decoded::<SetattrArgs<'_>>(reader) {
            Ok(args) => self.set_attributes(&args).await.map(|()| set = args.attributes.bitmap),
            Err(refused) => Err(refused),
        };
        let result = self.put(OperationCode::Setattr, outcome.map(|()| set));
        if result.is_err() {
            Bitmap::EMPTY.encode(self.results.writer());
        }
        result
    }

    async fn set_attributes(&mut self, args: &SetattrArgs<'_>) -> Outcome<()> {
        let mut located = self.object_or(Status::Rofs)?;
        let change = convert::attribute_change(&args.attributes)?;
        if change.size.is_some() {
            located.caller = self.check_io(&located, &args.stateid, ShareAccess::Write).await?;
        }
        let vfs = &self.request.service.vfs;
        Ok(vfs.setattr(&located.caller, &located.object, change, None).await.result?)
    }

    /// VERIFY and NVERIFY, RFC 8881 §18.31 and §18.15.
    pub(super) async fn verify(
        &mut self,
        expected: RawAttributes<'_>,
        want_same: bool,
    ) -> Outcome<()> {
        let bitmap = expected.bitmap;
        if !bitmap.intersection(Bitmap::of(&[attribute::RDATTR_ERROR])).is_empty() {
            return Err(Status::Inval.into());
        }
        if !bitmap.difference(self.supported()).is_empty() {
            return Err(Status::Attrnotsupp.into());
        }
        let found = self.describe(bitmap, |attributes, w| attributes.encode(w)).await?;
        let found = RawAttributes::decode(&mut Reader::new(found.as_slice()))
            .map(|found| found.bitmap == bitmap && found.values == expected.values)?;
        match (found, want_same) {
            (true, true) | (false, false) => Ok(()),
            (false, true) => Err(Status::NotSame.into()),
            (true, false) => Err(Status::Same.into()),
        }
    }

    /// ACCESS, RFC 8881 §18.1.
    pub(super) async fn access(&mut self, args: AccessArgs) -> Outcome<AccessOk> {
        let (is_directory, rights) = match self.place()? {
            Place::Pseudo(_) => (true, AccessRights { read: true, write: false, execute: true }),
            Place::Object(Located { caller, object }) => {
                let (attributes, rights) = self.request.service.vfs.access(caller, object).await?;
                (attributes.is_directory(), rights)
            }
        };
        let known = ACCESS_READ | ACCESS_MODIFY | ACCESS_EXTEND;
        let known =
            known | if is_directory { ACCESS_LOOKUP | ACCESS_DELETE } else { ACCESS_EXECUTE };
        let known = if self.minor_version >= 2 { known | OF_XATTRS } else { known };
        let supported = args.access & known;
        Ok(AccessOk { supported, access: supported & granted(rights) })
    }
}

/// The rights of RFC 8276, which minor version 1 does not have.
const OF_XATTRS: u32 = ACCESS_XAREAD | ACCESS_XAWRITE | ACCESS_XALIST;

/// The attributes of a minor version.
fn supported(minor_version: u32) -> Bitmap {
    if minor_version >= 2 { SUPPORTED } else { SUPPORTED.difference(OF_MINOR_2) }
}

fn granted(rights: AccessRights) -> u32 {
    let pick = |granted: bool, bits: u32| if granted { bits } else { 0 };
    pick(rights.read, ACCESS_READ | ACCESS_XAREAD | ACCESS_XALIST)
        | pick(rights.execute, ACCESS_LOOKUP | ACCESS_EXECUTE)
        | pick(rights.write, ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_DELETE | ACCESS_XAWRITE)
}

/// The attributes that are wanted of an object; `server` has those that are the same for all.
pub(super) fn of_object(
    described: &Described<'_>,
    wanted: Bitmap,
    server: Attributes<'static>,
) -> Attributes<'static> {
    let Described { attributes: a, export_id, mounted_on, handle, space, limits, supports_xattrs } =
        described;
    let mut filled = Attributes {
        file_type: Some(convert::file_type(a)),
        change: Some(convert::change(a)),
        size: Some(a.size),
        fsid: Some(Fsid { major: (*export_id).into(), minor: 0 }),
        filehandle: *handle,
        fileid: Some(a.fileid),
        mode: Some(a.mode),
        num_links: Some(a.nlink),
        owner: Some(Principal::Id(a.uid)),
        owner_group: Some(Principal::Id(a.gid)),
        raw_device: Some(DeviceSpec { major: a.rdev.0, minor: a.rdev.1 }),
        space_used: Some(a.used),
        time_access: Some(convert::time(a.atime)),
        time_metadata: Some(convert::time(a.ctime)),
        time_modify: Some(convert::time(a.mtime)),
        mounted_on_fileid: Some(mounted_on.unwrap_or(a.fileid)),
        // Blocks that other files share count too: the kernel does not show them.
        space_freed: Some(if a.nlink > 1 && !a.is_directory() { 0 } else { a.used }),
        xattr_support: *supports_xattrs,
        ..server
    };
    if let Some(space) = space {
        filled.clone_block_bytes = Some(space.block_bytes);
        filled.files_avail = Some(space.available_files);
        filled.files_free = Some(space.free_files);
        filled.files_total = Some(space.total_files);
        filled.space_avail = Some(space.available_bytes);
        filled.space_free = Some(space.free_bytes);
        filled.space_total = Some(space.total_bytes);
    }
    if let Some(limits) = limits {
        filled.max_link = Some(limits.links_max);
        filled.max_name = Some(limits.name_bytes_max);
    }
    filled.keep(wanted);
    filled
}

/// The attributes that are the same for all objects.
pub(super) fn of_server(service: &Service, minor_version: u32) -> Attributes<'static> {
    let transfer_bytes_max = u64::from(service.memory.transfer_bytes_max);
    let lease = service.lease();
    Attributes {
        supported: Some(supported(minor_version)),
        fh_expire_type: Some(PERSISTENT),
        link_support: Some(true),
        symlink_support: Some(true),
        named_attr: Some(false),
        unique_handles: Some(true),
        lease_time: Some(u32::try_from(Duration::as_secs(&lease)).unwrap_or(u32::MAX)),
        rdattr_error: Some(proto::nfs4::NFS4_OK),
        acl_support: Some(0),
        can_set_time: Some(true),
        case_insensitive: Some(false),
        case_preserving: Some(true),
        chown_restricted: Some(true),
        homogeneous: Some(true),
        max_file_size: Some(i64::MAX.unsigned_abs()),
        max_read: Some(transfer_bytes_max),
        max_write: Some(transfer_bytes_max),
        no_trunc: Some(true),
        time_delta: Some(Time { seconds: 0, nseconds: 1 }),
        fs_layout_types: Some(NoItems),
        suppattr_exclcreat: Some(EXCLUSIVE_CREATE.intersection(supported(minor_version))),
        change_attr_type: Some(ChangeAttributeType::TimeMetadata),
        ..Attributes::default()
    }
}
