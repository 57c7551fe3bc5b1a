//! GETATTR, SETATTR, VERIFY, NVERIFY, ACCESS.

use std::time::Duration;

use proto::nfs4::{
    ACCESS_DELETE, ACCESS_EXECUTE, ACCESS_EXTEND, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ,
    ACCESS_XALIST, ACCESS_XAREAD, ACCESS_XAWRITE, AccessArgs, AccessOk, Attributes, Bitmap,
    ChangeAttributeType, DeviceSpec, FileHandle, FileType, Fsid, GetattrArgs, NoItems,
    OpenArguments, OperationCode, Principal, RawAttributes, SetattrArgs, ShareAccess, Status, Time,
    attribute, encode_attributes,
};
use proto::xdr::{Decode, Encode, Reader, Writer};

use super::compound::Compound;
use super::convert::SUPPORTED;
use super::operation::decoded;
use super::resolved_handle::{Located, Pseudo, ResolvedHandle};
use super::{Outcome, convert};
use crate::inode_cache::{self, AccessRights};
use crate::service::Service;
use crate::vfs::{FileSystemSpace, PathLimits};

/// Attributes of RFC 7862 and later, which minor version 1 does not have.
const OF_MINOR_2: Bitmap = Bitmap::of(&[
    attribute::CLONE_BLKSIZE,
    attribute::SPACE_FREED,
    attribute::CHANGE_ATTR_TYPE,
    attribute::MODE_UMASK,
    attribute::XATTR_SUPPORT,
    attribute::OPEN_ARGUMENTS,
]);
/// The arguments that OPEN supports: all kinds of access and denial (1 to 3, and 0 for none
/// denied); a delegation of any kind (3), none (4), or none any more (5); the claims but those of
/// delegations that would outlive the client's restart (3 and 6); all ways of creation (0 to 3).
const OPEN_ARGUMENTS: OpenArguments = OpenArguments {
    share_access: Bitmap::of(&[1, 2, 3]),
    share_deny: Bitmap::of(&[0, 1, 2, 3]),
    share_access_want: Bitmap::of(&[3, 4, 5]),
    open_claim: Bitmap::of(&[0, 1, 2, 4, 5]),
    create_mode: Bitmap::of(&[0, 1, 2, 3]),
};
/// Attributes that can be set and not read.
pub(super) const WRITE_ONLY: Bitmap =
    convert::SET_TIMES.union(Bitmap::of(&[attribute::MODE_UMASK]));
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

/// The attributes of an object of an export that are wanted and known.
pub(super) struct Described<'a> {
    pub(super) service: &'a Service,
    pub(super) minor_version: u32,
    pub(super) wanted: Bitmap,
    pub(super) attributes: inode_cache::Attributes,
    /// The export's id.
    pub(super) export_id: u32,
    /// Where the export is mounted, if the object is its root.
    pub(super) mounted_on: Option<u64>,
    pub(super) handle: Option<FileHandle>,
    pub(super) space: Option<FileSystemSpace>,
    pub(super) limits: Option<PathLimits>,
    pub(super) supports_xattrs: Option<bool>,
}

/// The source of the attributes of a filehandle.
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the usual one, and would be allocated for each GETATTR"
)]
pub(super) enum Description<'a> {
    /// Of a directory above the exports.
    Pseudo(Box<Attributes<'static>>),
    Object(Described<'a>),
}

impl Encode for Description<'_> {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Pseudo(attributes) => attributes.encode(w),
            Self::Object(described) => described.encode(w),
        }
    }
}

impl<'a> Compound<'a> {
    /// GETATTR, RFC 8881 §18.7. Behind a WRITE, the attributes are those that it has left, as in
    /// the reply to a WRITE of version 3.
    pub(super) async fn getattr(
        &mut self,
        reader: &mut Reader<'_>,
        written: Option<inode_cache::Attributes>,
    ) -> Result<(), Status> {
        let outcome = match decoded::<GetattrArgs>(reader) {
            Ok(args) => self.describe_current(args.wanted, written).await,
            Err(refused) => Err(refused),
        };
        self.put(OperationCode::Getattr, outcome)
    }

    /// The current object's attributes that are asked for; `known` are those that need not be read.
    async fn describe_current(
        &self,
        wanted: Bitmap,
        known: Option<inode_cache::Attributes>,
    ) -> Outcome<Description<'a>> {
        if !wanted.intersection(WRITE_ONLY).is_empty() {
            return Err(Status::Inval.into());
        }
        self.describe(self.current_handle()?, wanted.intersection(self.supported()), known).await
    }

    /// The attributes of a filehandle that are wanted, all of which the minor version has; `known`
    /// are those that need not be read.
    pub(super) async fn describe(
        &self,
        handle: &ResolvedHandle,
        wanted: Bitmap,
        known: Option<inode_cache::Attributes>,
    ) -> Outcome<Description<'a>> {
        let located = match handle {
            ResolvedHandle::Pseudo(pseudo) => {
                return Ok(Description::Pseudo(Box::new(self.describe_pseudo(pseudo, wanted))));
            }
            ResolvedHandle::Object(located) => located,
        };
        let (service, object) = (self.request.service, &located.object);
        let vfs = &service.vfs;
        let attributes = match known {
            Some(known) => known,
            None => vfs.getattr(object).await?,
        };
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
        Ok(Description::Object(Described {
            service,
            minor_version: self.minor_version,
            wanted,
            attributes,
            export_id: object.root().id,
            mounted_on: self.mounted_on(located, wanted),
            handle: handle.then(|| self.handle_of(&ResolvedHandle::Object(located.clone()))),
            space,
            limits,
            supports_xattrs,
        }))
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

    /// The attributes of a directory above the exports.
    fn describe_pseudo(&self, pseudo: &Pseudo, wanted: Bitmap) -> Attributes<'static> {
        let node = pseudo.node();
        let made_ns = pseudo.tree.made_ns();
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
            filehandle: Some(self.handle_of(&ResolvedHandle::Pseudo(pseudo.clone()))),
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
            Ok(args) => self.set_attributes(&args, &mut set).await,
            Err(refused) => Err(refused),
        };
        let result = self.put(OperationCode::Setattr, outcome.map(|()| set));
        if result.is_err() {
            set.encode(self.results.writer());
        }
        result
    }

    /// Stores in `set` the attributes that were set, also if a later part fails.
    async fn set_attributes(&mut self, args: &SetattrArgs<'_>, set: &mut Bitmap) -> Outcome<()> {
        let mut located = self.object_or(Status::Rofs)?;
        let change = convert::attribute_change(&args.attributes)?;
        if change.size.is_some() {
            let checked = self.check_io(&located, &args.stateid, ShareAccess::Write).await?;
            located.caller = checked.0;
        }
        let service = self.request.service;
        let answer = service.setattr(&located.caller, &located.object, change, None).await;
        *set = convert::set_by(answer.attributes.1, args.attributes.bitmap);
        Ok(answer.result?)
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
        let mut found = Writer::new();
        self.describe_current(bitmap, None).await?.encode(&mut found);
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
        let (is_directory, rights) = match self.current_handle()? {
            ResolvedHandle::Pseudo(_) => {
                (true, AccessRights { read: true, write: false, execute: true })
            }
            ResolvedHandle::Object(Located { caller, object }) => {
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

impl Described<'_> {
    /// The attributes that are not known, because nothing was asked that they follow from.
    fn unknown(&self) -> Bitmap {
        let unless = |is_known: bool, bitmap: Bitmap| if is_known { Bitmap::EMPTY } else { bitmap };
        WRITE_ONLY
            .union(unless(self.space.is_some(), OF_SPACE))
            .union(unless(self.limits.is_some(), OF_LIMITS))
            .union(unless(self.handle.is_some(), Bitmap::of(&[attribute::FILEHANDLE])))
            .union(unless(self.supports_xattrs.is_some(), Bitmap::of(&[attribute::XATTR_SUPPORT])))
    }

    /// Appends the value of an attribute that is known.
    fn encode_value(&self, number: u32, w: &mut Writer) {
        let a = &self.attributes;
        match number {
            attribute::TYPE => convert::file_type(a.file_type).encode(w),
            attribute::CHANGE => w.u64(convert::change(a)),
            attribute::SIZE => w.u64(a.size),
            attribute::FSID => Fsid { major: self.export_id.into(), minor: 0 }.encode(w),
            attribute::FILEHANDLE => self.handle.iter().for_each(|handle| handle.encode(w)),
            attribute::FILEID => w.u64(a.fileid),
            attribute::MODE => w.u32(a.mode),
            attribute::NUMLINKS => w.u32(a.nlink),
            attribute::OWNER => Principal::Id(a.uid).encode(w),
            attribute::OWNER_GROUP => Principal::Id(a.gid).encode(w),
            attribute::RAWDEV => DeviceSpec { major: a.rdev.0, minor: a.rdev.1 }.encode(w),
            attribute::SPACE_USED => w.u64(a.used),
            attribute::TIME_ACCESS => convert::time(a.atime).encode(w),
            attribute::TIME_METADATA => convert::time(a.ctime).encode(w),
            attribute::TIME_MODIFY => convert::time(a.mtime).encode(w),
            attribute::MOUNTED_ON_FILEID => w.u64(self.mounted_on.unwrap_or(a.fileid)),
            // Blocks that other files share count too: the kernel does not show them.
            attribute::SPACE_FREED if a.nlink > 1 && !a.is_directory() => w.u64(0),
            attribute::SPACE_FREED => w.u64(a.used),
            attribute::XATTR_SUPPORT => {
                self.supports_xattrs.iter().for_each(|supports| w.bool(*supports));
            }
            _ => self.of_file_system().encode_value(number, w),
        }
    }

    /// The attributes of the file system and of the server.
    fn of_file_system(&self) -> Attributes<'static> {
        let Self { space, limits, .. } = self;
        Attributes {
            clone_block_bytes: space.map(|space| space.block_bytes),
            files_avail: space.map(|space| space.available_files),
            files_free: space.map(|space| space.free_files),
            files_total: space.map(|space| space.total_files),
            space_avail: space.map(|space| space.available_bytes),
            space_free: space.map(|space| space.free_bytes),
            space_total: space.map(|space| space.total_bytes),
            max_link: limits.map(|limits| limits.links_max),
            max_name: limits.map(|limits| limits.name_bytes_max),
            ..of_server(self.service, self.minor_version)
        }
    }
}

impl Encode for Described<'_> {
    fn encode(&self, w: &mut Writer) {
        let present = self.wanted.difference(self.unknown());
        encode_attributes(w, present, |w| {
            present.iter().for_each(|number| self.encode_value(number, w));
        });
    }
}

/// The attributes that are the same for all objects.
fn of_server(service: &Service, minor_version: u32) -> Attributes<'static> {
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
        open_arguments: Some(OPEN_ARGUMENTS),
        ..Attributes::default()
    }
}
