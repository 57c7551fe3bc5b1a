//! Attributes, RFC 8881 §5: GETATTR, SETATTR, VERIFY, NVERIFY and ACCESS.

use std::fmt;

use super::types::{
    Bitmap, DeviceSpec, FileHandle, FileType, Fsid, OPAQUE_BYTES_MAX, Stateid, Time,
};
use crate::xdr::{Decode, DecodeError, Encode, Escaped, Reader, Writer, xdr_enum, xdr_struct};

/// Declares the attributes that are understood, ascending by number: a field for each, and the
/// codec of `fattr4` (§3.3.10).
macro_rules! attributes {
    ($($(#[$meta:meta])* $field:ident: $type:ty = $constant:ident $number:literal,)+) => {
        /// `fattr4`: the attributes that are present, in any choice.
        #[derive(Clone, Copy, Default, PartialEq, Eq)]
        pub struct Attributes<'a> {
            $($(#[$meta])* pub $field: Option<$type>,)+
        }

        /// The numbers of attributes, §5.8 and §5.12.
        pub mod attribute {
            $($(#[$meta])* pub const $constant: u32 = $number;)+
        }

        /// The attributes that [`Attributes`] holds.
        pub const KNOWN_ATTRIBUTES: Bitmap = Bitmap::of(&[$($number),+]);

        impl Attributes<'_> {
            /// The attributes that are present.
            #[must_use]
            pub fn present(&self) -> Bitmap {
                let mut bitmap = Bitmap::EMPTY;
                $(if self.$field.is_some() {
                    bitmap.insert($number);
                })+
                bitmap
            }

            /// Drops the attributes that are not in `bitmap`.
            pub fn keep(&mut self, bitmap: Bitmap) {
                $(if !bitmap.contains($number) {
                    self.$field = None;
                })+
            }

            /// Appends the value of the attribute with this number, if it is present.
            pub fn encode_value(&self, number: u32, w: &mut Writer) {
                match number {
                    $($number => self.$field.iter().for_each(|value| value.encode(w)),)+
                    _ => {}
                }
            }

            fn encode_values(&self, w: &mut Writer) {
                $(if let Some(value) = &self.$field {
                    value.encode(w);
                })+
            }
        }

        impl<'a> Attributes<'a> {
            /// Decodes the values of the attributes in `bitmap`; all of them must be known.
            fn decode_values(bitmap: Bitmap, r: &mut Reader<'a>) -> Result<Self, DecodeError> {
                let mut attributes = Self::default();
                $(if bitmap.contains($number) {
                    attributes.$field = Some(Decode::decode(r)?);
                })+
                Ok(attributes)
            }
        }

        impl fmt::Debug for Attributes<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut shown = f.debug_struct("Attributes");
                $(if let Some(value) = &self.$field {
                    shown.field(stringify!($field), value);
                })+
                shown.finish()
            }
        }
    };
}

attributes! {
    /// The attributes that the server supports for the object.
    supported: Bitmap = SUPPORTED_ATTRS 0,
    /// Regular file, directory, or another type.
    file_type: FileType = TYPE 1,
    /// `FH4_*`: how long handles last.
    fh_expire_type: u32 = FH_EXPIRE_TYPE 2,
    /// Differs after each change of data or attributes.
    change: u64 = CHANGE 3,
    /// Length in bytes.
    size: u64 = SIZE 4,
    /// Hard links can be made.
    link_support: bool = LINK_SUPPORT 5,
    /// Symbolic links can be made.
    symlink_support: bool = SYMLINK_SUPPORT 6,
    /// The object has named attributes.
    named_attr: bool = NAMED_ATTR 7,
    /// The file system.
    fsid: Fsid = FSID 8,
    /// Two handles are of two objects.
    unique_handles: bool = UNIQUE_HANDLES 9,
    /// The lease in seconds.
    lease_time: u32 = LEASE_TIME 10,
    /// Why an entry of READDIR has no attributes: an `nfsstat4`.
    rdattr_error: u32 = RDATTR_ERROR 11,
    /// `ACL4_SUPPORT_*`.
    acl_support: u32 = ACLSUPPORT 13,
    /// Times can be set.
    can_set_time: bool = CANSETTIME 15,
    /// Names that differ in case are one.
    case_insensitive: bool = CASE_INSENSITIVE 16,
    /// Names keep their case.
    case_preserving: bool = CASE_PRESERVING 17,
    /// Only the administrator may change owners.
    chown_restricted: bool = CHOWN_RESTRICTED 18,
    /// The handle.
    filehandle: FileHandle = FILEHANDLE 19,
    /// The file's number in its file system.
    fileid: u64 = FILEID 20,
    /// Files that users can still make.
    files_avail: u64 = FILES_AVAIL 21,
    /// Files that can still be made.
    files_free: u64 = FILES_FREE 22,
    /// Files that the file system holds at most.
    files_total: u64 = FILES_TOTAL 23,
    /// All objects of the file system have the same of these attributes.
    homogeneous: bool = HOMOGENEOUS 26,
    /// The longest file in bytes.
    max_file_size: u64 = MAXFILESIZE 27,
    /// Hard links that an object can have.
    max_link: u32 = MAXLINK 28,
    /// Bytes that a name can have.
    max_name: u32 = MAXNAME 29,
    /// Bytes that a READ returns at most.
    max_read: u64 = MAXREAD 30,
    /// Bytes that a WRITE takes at most.
    max_write: u64 = MAXWRITE 31,
    /// Permission bits, set-id bits and the sticky bit.
    mode: u32 = MODE 33,
    /// A name that is too long is refused.
    no_trunc: bool = NO_TRUNC 34,
    /// Hard links.
    num_links: u32 = NUMLINKS 35,
    /// Owner.
    owner: Principal<'a> = OWNER 36,
    /// Group.
    owner_group: Principal<'a> = OWNER_GROUP 37,
    /// Numbers of a device.
    raw_device: DeviceSpec = RAWDEV 41,
    /// Bytes that users can still write.
    space_avail: u64 = SPACE_AVAIL 42,
    /// Bytes that can still be written.
    space_free: u64 = SPACE_FREE 43,
    /// Bytes of the file system.
    space_total: u64 = SPACE_TOTAL 44,
    /// Bytes of storage that the object takes.
    space_used: u64 = SPACE_USED 45,
    /// Last read.
    time_access: Time = TIME_ACCESS 47,
    /// To be set: last read.
    time_access_set: SetTime = TIME_ACCESS_SET 48,
    /// The smallest difference of times.
    time_delta: Time = TIME_DELTA 51,
    /// Last change of data or attributes.
    time_metadata: Time = TIME_METADATA 52,
    /// Last change of the data.
    time_modify: Time = TIME_MODIFY 53,
    /// To be set: last change of the data.
    time_modify_set: SetTime = TIME_MODIFY_SET 54,
    /// The number of the directory that the file system is mounted on.
    mounted_on_fileid: u64 = MOUNTED_ON_FILEID 55,
    /// pNFS layout types, of which there are none.
    fs_layout_types: NoItems = FS_LAYOUT_TYPES 62,
    /// The attributes that an exclusive OPEN can set.
    suppattr_exclcreat: Bitmap = SUPPATTR_EXCLCREAT 75,
    /// CLONE's alignment in bytes. RFC 7862 §12.2.1.
    clone_block_bytes: u32 = CLONE_BLKSIZE 77,
    /// Bytes that are free once the object is removed. RFC 7862 §12.2.2.
    space_freed: u64 = SPACE_FREED 78,
    /// How `change` changes. RFC 7862 §12.2.3.
    change_attr_type: ChangeAttributeType = CHANGE_ATTR_TYPE 79,
    /// To be set at creation: mode and umask. RFC 8275 §5.
    mode_umask: ModeUmask = MODE_UMASK 81,
    /// The object can have extended attributes. RFC 8276 §8.2.
    xattr_support: bool = XATTR_SUPPORT 82,
    /// The arguments of OPEN that the server supports. RFC 9754 §3.
    open_arguments: OpenArguments = OPEN_ARGUMENTS 86,
}

/// `fattr4` that was not decoded beyond its bitmap, §3.3.10.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawAttributes<'a> {
    /// The attributes that are present.
    pub bitmap: Bitmap,
    /// Their values, ascending by number.
    pub values: &'a [u8],
}

xdr_struct!(RawAttributes<'a> { bitmap, values: opaque(ATTRIBUTES_BYTES_MAX) });

impl<'a> RawAttributes<'a> {
    /// The values.
    ///
    /// # Errors
    /// They do not decode, bytes trail, or an attribute is unknown: check `bitmap` first where that
    /// has another status.
    pub fn parse(&self) -> Result<Attributes<'a>, DecodeError> {
        if !self.bitmap.difference(KNOWN_ATTRIBUTES).is_empty() {
            return Err(DecodeError { what: "fattr4.attrmask", at_byte: 0 });
        }
        let mut r = Reader::new(self.values);
        let attributes = Attributes::decode_values(self.bitmap, &mut r)?;
        r.finish()?;
        Ok(attributes)
    }
}

impl<'a> Decode<'a> for Attributes<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let at_byte = r.position();
        let raw: RawAttributes<'_> = Decode::decode(r)?;
        raw.parse().map_err(|error| DecodeError { at_byte, ..error })
    }
}

impl Encode for Attributes<'_> {
    fn encode(&self, w: &mut Writer) {
        encode_attributes(w, self.present(), |w| self.encode_values(w));
    }
}

/// Appends a `fattr4` with the attributes in `present`; `values` appends their values, ascending by
/// number.
pub fn encode_attributes(w: &mut Writer, present: Bitmap, values: impl FnOnce(&mut Writer)) {
    present.encode(w);
    let len_at = w.len();
    w.u32(0);
    values(w);
    let len = u32::try_from(w.len() - len_at - 4).expect("attributes are short");
    w.patch_u32(len_at, len);
}

/// `fattr4_owner` and `fattr4_owner_group`, §5.9: a user or a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Principal<'a> {
    /// A decimal number without leading zeros.
    Id(u32),
    /// Anything else, such as `user@domain`.
    Name(&'a [u8]),
}

impl<'a> Decode<'a> for Principal<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let text = r.opaque(OPAQUE_BYTES_MAX, "fattr4_owner")?;
        let is_number = text.first().is_some_and(|first| *first != b'0' || text.len() == 1)
            && text.iter().all(u8::is_ascii_digit);
        let number = str::from_utf8(text).ok().filter(|_| is_number);
        Ok(number.and_then(|number| number.parse().ok()).map_or(Self::Name(text), Self::Id))
    }
}

impl Encode for Principal<'_> {
    fn encode(&self, w: &mut Writer) {
        match *self {
            Self::Name(name) => w.opaque(name),
            Self::Id(id) => {
                let mut digits = [0; DIGITS_MAX];
                let mut at = digits.len();
                let mut rest = id;
                loop {
                    at -= 1;
                    digits[at] = b'0' + u8::try_from(rest % 10).expect("a digit");
                    rest /= 10;
                    if rest == 0 {
                        break;
                    }
                }
                w.opaque(&digits[at..]);
            }
        }
    }
}

impl fmt::Debug for Principal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => Escaped(name).fmt(f),
        }
    }
}

/// `settime4`, §3.3.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock, now.
    ToServerTime,
    /// This time.
    ToClientTime(Time),
}

impl Decode<'_> for SetTime {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        // SET_TO_SERVER_TIME4 and SET_TO_CLIENT_TIME4 are 0 and 1.
        Ok(match r.bool("settime4")? {
            false => Self::ToServerTime,
            true => Self::ToClientTime(Decode::decode(r)?),
        })
    }
}

impl Encode for SetTime {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::ToServerTime => w.bool(false),
            Self::ToClientTime(time) => {
                w.bool(true);
                time.encode(w);
            }
        }
    }
}

/// `mode_umask4`, RFC 8275 §5.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ModeUmask {
    /// The mode that the application asked for.
    pub mode: u32,
    /// The application's umask, applied to `mode` unless the directory has a default ACL.
    pub umask: u32,
}

xdr_struct!(ModeUmask { mode: u32, umask: u32 });

/// `open_arguments4`, RFC 9754 §3: the values that the arguments of OPEN may have, a bit for each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OpenArguments {
    /// `OPEN4_SHARE_ACCESS_*`.
    pub share_access: Bitmap,
    /// `OPEN4_SHARE_DENY_*`.
    pub share_deny: Bitmap,
    /// `open_args_share_access_want4`: `OPEN4_SHARE_ACCESS_WANT_*`, numbered anew.
    pub share_access_want: Bitmap,
    /// `open_claim_type4`.
    pub open_claim: Bitmap,
    /// `createmode4`.
    pub create_mode: Bitmap,
}

xdr_struct!(OpenArguments { share_access, share_deny, share_access_want, open_claim, create_mode });

/// An array that is always empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoItems;

impl Decode<'_> for NoItems {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "array", at_byte: r.position() };
        if r.u32(failure.what)? == 0 { Ok(Self) } else { Err(failure) }
    }
}

impl Encode for NoItems {
    fn encode(&self, w: &mut Writer) {
        w.u32(0);
    }
}

xdr_enum! {
    /// `change_attr_type4`, RFC 7862 §12.2.3.
    pub enum ChangeAttributeType: "change_attr_type4" {
        /// Grows with each change.
        MonotonicIncr = 0 "NFS4_CHANGE_TYPE_IS_MONOTONIC_INCR",
        /// Counts changes.
        VersionCounter = 1 "NFS4_CHANGE_TYPE_IS_VERSION_COUNTER",
        /// Counts changes, except on pNFS.
        VersionCounterNoPnfs = 2 "NFS4_CHANGE_TYPE_IS_VERSION_COUNTER_NOPNFS",
        /// Is `time_metadata`.
        TimeMetadata = 3 "NFS4_CHANGE_TYPE_IS_TIME_METADATA",
        /// Nothing is promised.
        Undefined = 4 "NFS4_CHANGE_TYPE_IS_UNDEFINED",
    }
}

/// Arguments of GETATTR, §18.7.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GetattrArgs {
    /// The attributes that are asked for.
    pub wanted: Bitmap,
}

xdr_struct!(GetattrArgs { wanted });

/// Arguments of SETATTR, §18.30.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SetattrArgs<'a> {
    /// The open by which the length is changed.
    pub stateid: Stateid,
    /// The attributes to set; absent ones stay as they are.
    pub attributes: RawAttributes<'a>,
}

xdr_struct!(SetattrArgs<'a> { stateid, attributes });

/// Arguments of ACCESS, §18.1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessArgs {
    /// `ACCESS_*`.
    pub access: u32,
}

xdr_struct!(AccessArgs { access: u32 });

/// Result of ACCESS.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessOk {
    /// The bits whose answer is known.
    pub supported: u32,
    /// The bits that are granted.
    pub access: u32,
}

xdr_struct!(AccessOk { supported: u32, access: u32 });

/// Read data, or list a directory. `ACCESS4_*`, §18.1.1.
pub const ACCESS_READ: u32 = 0x1;
/// Look up names.
pub const ACCESS_LOOKUP: u32 = 0x2;
/// Change data that exists, or names.
pub const ACCESS_MODIFY: u32 = 0x4;
/// Write beyond the end, or add names.
pub const ACCESS_EXTEND: u32 = 0x8;
/// Remove names of a directory.
pub const ACCESS_DELETE: u32 = 0x10;
/// Execute.
pub const ACCESS_EXECUTE: u32 = 0x20;
/// Read extended attributes. RFC 8276 §8.5.
pub const ACCESS_XAREAD: u32 = 0x40;
/// Write them.
pub const ACCESS_XAWRITE: u32 = 0x80;
/// List them.
pub const ACCESS_XALIST: u32 = 0x100;

/// The longest values of a `fattr4` that are taken.
pub const ATTRIBUTES_BYTES_MAX: usize = 8 * 1024;
/// Of 2^32 - 1.
const DIGITS_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    #[test]
    fn owners_are_numbers_where_they_can_be() {
        let table: [(&[u8], Principal<'_>); 8] = [
            (b"0", Principal::Id(0)),
            (b"1000", Principal::Id(1000)),
            (b"4294967295", Principal::Id(u32::MAX)),
            (b"4294967296", Principal::Name(b"4294967296")),
            (b"007", Principal::Name(b"007")),
            (b"+7", Principal::Name(b"+7")),
            (b"", Principal::Name(b"")),
            (b"root@example.org", Principal::Name(b"root@example.org")),
        ];
        for (text, principal) in table {
            let mut w = Writer::new();
            w.opaque(text);
            assert_eq!(decode_all::<Principal<'_>>(w.as_slice()), Ok(principal), "{text:?}");
            let mut again = Writer::new();
            principal.encode(&mut again);
            assert_eq!(again.as_slice(), w.as_slice());
        }
    }

    #[test]
    fn attributes_come_in_the_order_of_their_numbers() {
        let attributes = Attributes {
            mode: Some(0o644),
            size: Some(5),
            file_type: Some(FileType::Regular),
            ..Attributes::default()
        };
        let mut w = Writer::new();
        attributes.encode(&mut w);
        let expected = [
            0, 0, 0, 2, 0, 0, 0, 0x12, 0, 0, 0, 2, // type and size, mode
            0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 1, 0xa4,
        ];
        assert_eq!(w.as_slice(), expected);
        assert_eq!(decode_all::<Attributes<'_>>(&expected), Ok(attributes));
    }

    #[test]
    fn unknown_attributes_and_trailing_values_are_refused() {
        let acl = RawAttributes { bitmap: Bitmap::of(&[12]), values: &[0, 0, 0, 0] };
        assert!(acl.parse().is_err());
        let size = RawAttributes { bitmap: Bitmap::of(&[4]), values: &[0; 12] };
        assert!(size.parse().is_err());
    }
}
