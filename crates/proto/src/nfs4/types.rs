//! The data types that operations share, RFC 8881 §3.

use std::fmt;

use super::Status;
use crate::xdr::{
    Decode, DecodeError, Encode, Hex, Reader, Writer, xdr_enum, xdr_file_handle, xdr_struct,
};

/// The result of an operation on the wire: [`NFS4_OK`] and a body, or a status alone.
pub type Reply<T> = Result<T, Status>;

/// `NFS4_OK`, the one number of `nfsstat4` that is not a [`Status`].
pub const NFS4_OK: u32 = 0;

/// The number of a result on the wire.
#[must_use]
pub const fn status_code(result: Reply<()>) -> u32 {
    match result {
        Ok(()) => NFS4_OK,
        Err(status) => status.code(),
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Reply<T> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        if r.clone().u32("nfsstat4")? == NFS4_OK {
            r.u32("nfsstat4")?;
            return Ok(Ok(T::decode(r)?));
        }
        Ok(Err(Status::decode(r)?))
    }
}

impl<T: Encode> Encode for Reply<T> {
    fn encode(&self, w: &mut Writer) {
        match self {
            Ok(body) => {
                w.u32(NFS4_OK);
                body.encode(w);
            }
            Err(status) => status.encode(w),
        }
    }
}

xdr_file_handle! {
    /// `nfs_fh4`: up to [`FILE_HANDLE_BYTES_MAX`] bytes that only the server understands, held
    /// inline.
    pub struct FileHandle: "nfs_fh4"[FILE_HANDLE_BYTES_MAX]
}

/// `clientid4`: names a client's incarnation, RFC 8881 §2.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// `slotid4`: the index of a slot in its session, RFC 8881 §2.10.6.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// `sequenceid4`: counts the calls of a slot, or the CREATE_SESSIONs of a client. Wraps to zero
/// (RFC 8881 §2.10.6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SequenceId(pub u32);

impl SequenceId {
    /// The one that follows.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

macro_rules! number {
    ($($name:ident $primitive:ident $what:literal),*) => { $(
        impl Decode<'_> for $name {
            fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                r.$primitive($what).map(Self)
            }
        }

        impl Encode for $name {
            fn encode(&self, w: &mut Writer) {
                w.$primitive(self.0);
            }
        }
    )* };
}

number!(ClientId u64 "clientid4", SlotId u32 "slotid4", SequenceId u32 "sequenceid4");

/// `sessionid4`, RFC 8881 §3.3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; SESSION_ID_BYTES]);

/// `verifier4`: of a client's boot, of data written, of a listing or of an exclusive OPEN.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Verifier(pub [u8; VERIFIER_BYTES]);

macro_rules! fixed_opaque {
    ($($name:ident $what:literal),*) => { $(
        impl Decode<'_> for $name {
            fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                r.array($what).map(Self)
            }
        }

        impl Encode for $name {
            fn encode(&self, w: &mut Writer) {
                w.array(&self.0);
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), Hex(&self.0))
            }
        }
    )* };
}

fixed_opaque!(SessionId "sessionid4", Verifier "verifier4");

/// `stateid4`, RFC 8881 §8.2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stateid {
    /// Counts the changes of the state. Zero means the latest (§8.2.2).
    pub seqid: u32,
    /// Names the state; only the server understands it.
    pub other: [u8; STATEID_OTHER_BYTES],
}

impl Stateid {
    /// All zeros: no state (RFC 8881 §8.2.3).
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; STATEID_OTHER_BYTES] };
    /// All ones: a READ that passes share reservations and locks (§8.2.3).
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; STATEID_OTHER_BYTES] };
    /// The current stateid of the COMPOUND (§8.2.3).
    pub const CURRENT: Self = Self { seqid: 1, other: [0; STATEID_OTHER_BYTES] };
    /// Never a valid stateid (§8.2.3).
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; STATEID_OTHER_BYTES] };
}

impl Decode<'_> for Stateid {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { seqid: r.u32("stateid4.seqid")?, other: r.array("stateid4.other")? })
    }
}

impl Encode for Stateid {
    fn encode(&self, w: &mut Writer) {
        w.u32(self.seqid);
        w.array(&self.other);
    }
}

impl fmt::Debug for Stateid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stateid({}, {})", self.seqid, Hex(&self.other))
    }
}

/// `client_owner4`, RFC 8881 §3.3.13: what a client calls itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClientOwner<'a> {
    /// Changes when the client boots.
    pub verifier: Verifier,
    /// `co_ownerid`: stays the same.
    pub owner_id: &'a [u8],
}

xdr_struct!(ClientOwner<'a> { verifier, owner_id: opaque(OPAQUE_BYTES_MAX) });

/// `state_owner4`, RFC 8881 §3.3.14: the owner of opens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenOwner<'a> {
    /// In minor version 1 ignored: the session names the client (§18.16.3).
    pub client: ClientId,
    /// The client's name for the owner, at most [`OPAQUE_BYTES_MAX`].
    pub owner: &'a [u8],
}

xdr_struct!(OpenOwner<'a> { client, owner: opaque(OPAQUE_BYTES_MAX) });

/// `lock_owner4`, RFC 8881 §3.3.14: the owner of byte-range locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner<'a> {
    /// In minor version 1 ignored in calls: the session names the client (§18.10.3).
    pub client: ClientId,
    /// The client's name for the owner, at most [`OPAQUE_BYTES_MAX`].
    pub owner: &'a [u8],
}

xdr_struct!(LockOwner<'a> { client, owner: opaque(OPAQUE_BYTES_MAX) });

xdr_enum! {
    /// `OPEN4_SHARE_ACCESS_*` without the wants, RFC 8881 §18.16.1.
    pub enum ShareAccess: "share_access" {
        /// Read.
        Read = 1 "OPEN4_SHARE_ACCESS_READ",
        /// Write.
        Write = 2 "OPEN4_SHARE_ACCESS_WRITE",
        /// Both.
        Both = 3 "OPEN4_SHARE_ACCESS_BOTH",
    }
}

xdr_enum! {
    /// `OPEN4_SHARE_DENY_*`, RFC 8881 §18.16.1: what others may not open for.
    pub enum ShareDeny: "share_deny" {
        /// Nothing is denied.
        None = 0 "OPEN4_SHARE_DENY_NONE",
        /// Reading.
        Read = 1 "OPEN4_SHARE_DENY_READ",
        /// Writing.
        Write = 2 "OPEN4_SHARE_DENY_WRITE",
        /// Both.
        Both = 3 "OPEN4_SHARE_DENY_BOTH",
    }
}

impl ShareAccess {
    /// Whether reading is part of it.
    #[must_use]
    pub const fn reads(self) -> bool {
        self.code() & Self::Read.code() != 0
    }

    /// Whether writing is part of it.
    #[must_use]
    pub const fn writes(self) -> bool {
        self.code() & Self::Write.code() != 0
    }
}

xdr_enum! {
    /// `nfs_lock_type4`, RFC 8881 §18.10.1.
    pub enum LockType: "nfs_lock_type4" {
        /// A shared lock.
        Read = 1 "READ_LT",
        /// An exclusive lock.
        Write = 2 "WRITE_LT",
        /// A shared lock, for which the client would wait.
        ReadBlocking = 3 "READW_LT",
        /// An exclusive lock, for which the client would wait.
        WriteBlocking = 4 "WRITEW_LT",
    }
}

impl LockType {
    /// Whether the lock is exclusive.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteBlocking)
    }

    /// Whether the client would wait for the lock.
    #[must_use]
    pub const fn is_blocking(self) -> bool {
        matches!(self, Self::ReadBlocking | Self::WriteBlocking)
    }
}

/// A byte range as LOCK has it: a length of all ones reaches to the end of the file (RFC 8881
/// §18.10.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockRange {
    /// First byte.
    pub offset: u64,
    /// Bytes from there on, or all ones. Zero is not valid.
    pub length: u64,
}

xdr_struct!(LockRange { offset: u64, length: u64 });

xdr_enum! {
    /// `state_protect_how4`, RFC 8881 §18.35.1.
    pub enum StateProtectHow: "state_protect_how4" {
        /// The client's state is not protected.
        None = 0 "SP4_NONE",
        /// By a machine credential.
        MachCred = 1 "SP4_MACH_CRED",
        /// By a secret that client and server share.
        Ssv = 2 "SP4_SSV",
    }
}

xdr_enum! {
    /// `stable_how4`, RFC 8881 §18.32.1: how durable a WRITE must be, or was.
    pub enum StableHow: "stable_how4" {
        /// In memory is enough until COMMIT.
        Unstable = 0 "UNSTABLE4",
        /// The data, and what is needed to find it again.
        DataSync = 1 "DATA_SYNC4",
        /// The data and all attributes.
        FileSync = 2 "FILE_SYNC4",
    }
}

xdr_enum! {
    /// `nfs_ftype4`, RFC 8881 §3.2.
    pub enum FileType: "nfs_ftype4" {
        /// A file of bytes.
        Regular = 1 "NF4REG",
        /// A directory.
        Directory = 2 "NF4DIR",
        /// A block device.
        BlockDevice = 3 "NF4BLK",
        /// A character device.
        CharacterDevice = 4 "NF4CHR",
        /// A symbolic link.
        Symlink = 5 "NF4LNK",
        /// A socket.
        Socket = 6 "NF4SOCK",
        /// A named pipe.
        Fifo = 7 "NF4FIFO",
        /// A directory of named attributes.
        AttributeDirectory = 8 "NF4ATTRDIR",
        /// A named attribute.
        NamedAttribute = 9 "NF4NAMEDATTR",
    }
}

/// `nfstime4`: since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds beyond them. The codec does not insist on less than 10^9.
    pub nseconds: u32,
}

impl Decode<'_> for Time {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let seconds = r.u64("nfstime4.seconds")?.cast_signed();
        Ok(Self { seconds, nseconds: r.u32("nfstime4.nseconds")? })
    }
}

impl Encode for Time {
    fn encode(&self, w: &mut Writer) {
        w.u64(self.seconds.cast_unsigned());
        w.u32(self.nseconds);
    }
}

/// `specdata4`: a device's numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct DeviceSpec {
    /// `specdata1`.
    pub major: u32,
    /// `specdata2`.
    pub minor: u32,
}

xdr_struct!(DeviceSpec { major: u32, minor: u32 });

/// `fsid4`: names a file system, RFC 8881 §3.3.5.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Fsid {
    /// `major`.
    pub major: u64,
    /// `minor`.
    pub minor: u64,
}

xdr_struct!(Fsid { major: u64, minor: u64 });

/// `change_info4`: a directory's change attribute around a change of it, RFC 8881 §3.3.6.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangeInfo {
    /// Whether nothing can have come between the two.
    pub atomic: bool,
    /// Before the change.
    pub before: u64,
    /// After it.
    pub after: u64,
}

xdr_struct!(ChangeInfo { atomic: bool, before: u64, after: u64 });

/// `bitmap4`, RFC 8881 §3.3.7, in the three words that attributes take so far.
///
/// Words behind those that a peer sends are passed over, at most [`BITMAP_WORDS_MAX`] in all. A bit
/// in one of them reads as [`Bitmap::UNKNOWN`], which is no attribute, so that SETATTR refuses it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Bitmap([u32; BITMAP_WORDS]);

impl Bitmap {
    /// The last bit, which RFC 8881, 7862, 8275, 8276 and 9754 leave free.
    pub const UNKNOWN: u32 = 95;

    /// No bits.
    pub const EMPTY: Self = Self([0; BITMAP_WORDS]);

    /// The bits with these numbers.
    ///
    /// # Panics
    /// A number is 96 or more.
    #[must_use]
    pub const fn of(bits: &[u32]) -> Self {
        let mut words = [0; BITMAP_WORDS];
        let mut at = 0;
        while at < bits.len() {
            words[(bits[at] / 32) as usize] |= 1 << (bits[at] % 32);
            at += 1;
        }
        Self(words)
    }

    /// From the words in wire order.
    #[must_use]
    pub const fn from_words(words: [u32; BITMAP_WORDS]) -> Self {
        Self(words)
    }

    /// The words in wire order.
    #[must_use]
    pub const fn words(self) -> [u32; BITMAP_WORDS] {
        self.0
    }

    /// Whether the bit is set. A number of 96 or more is not.
    #[must_use]
    pub const fn contains(self, bit: u32) -> bool {
        let word = (bit / 32) as usize;
        word < BITMAP_WORDS && self.0[word] & (1 << (bit % 32)) != 0
    }

    /// Sets the bit.
    ///
    /// # Panics
    /// The number is 96 or more.
    pub const fn insert(&mut self, bit: u32) {
        self.0[(bit / 32) as usize] |= 1 << (bit % 32);
    }

    /// Whether no bit is set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        matches!(self.0, [0, 0, 0])
    }

    /// The bits that are set in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        let ([a, b, c], [x, y, z]) = (self.0, other.0);
        Self([a & x, b & y, c & z])
    }

    /// The bits that are set here and not in `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        let [x, y, z] = other.0;
        self.intersection(Self([!x, !y, !z]))
    }

    /// The bits that are set in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        let ([a, b, c], [x, y, z]) = (self.0, other.0);
        Self([a | x, b | y, c | z])
    }

    /// The numbers of the set bits, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..).step_by(32).zip(self.0).flat_map(|(first, mut bits): (u32, u32)| {
            std::iter::from_fn(move || {
                let bit = (bits != 0).then_some(bits.trailing_zeros())?;
                bits &= bits - 1;
                Some(first + bit)
            })
        })
    }
}

impl Decode<'_> for Bitmap {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "bitmap4", at_byte: r.position() };
        let count = usize::try_from(r.u32(failure.what)?).map_err(|_| failure)?;
        if count > BITMAP_WORDS_MAX {
            return Err(failure);
        }
        let mut bitmap = Self::EMPTY;
        for at in 0..count {
            let word = r.u32(failure.what)?;
            match bitmap.0.get_mut(at) {
                Some(known) => *known = word,
                None if word != 0 => bitmap.insert(Self::UNKNOWN),
                None => {}
            }
        }
        Ok(bitmap)
    }
}

impl Encode for Bitmap {
    fn encode(&self, w: &mut Writer) {
        let words = match self.0 {
            [0, 0, 0] => &self.0[..0],
            [_, 0, 0] => &self.0[..1],
            [_, _, 0] => &self.0[..2],
            _ => &self.0[..],
        };
        (0u32..).zip(words).last().map_or(0, |(at, _)| at + 1).encode(w);
        words.iter().for_each(|word| word.encode(w));
    }
}

impl fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bitmap")?;
        f.debug_set().entries(self.iter()).finish()
    }
}

/// `NFS4_FHSIZE`: the longest file handle.
pub const FILE_HANDLE_BYTES_MAX: usize = 128;
/// `NFS4_OPAQUE_LIMIT`: the longest name of a client or of an owner.
pub const OPAQUE_BYTES_MAX: usize = 1024;
/// `NFS4_SESSIONID_SIZE`.
pub const SESSION_ID_BYTES: usize = 16;
/// `NFS4_VERIFIER_SIZE`.
pub const VERIFIER_BYTES: usize = 8;
/// `NFS4_OTHER_SIZE`.
pub const STATEID_OTHER_BYTES: usize = 12;
/// Bound of a `component4`, which RFC 8881 leaves open: that of version 3, for the same reason.
pub const NAME_BYTES_MAX: usize = crate::nfs3::NAME_BYTES_MAX;
/// The longest `linktext4`: `PATH_MAX`.
pub const SYMLINK_TARGET_BYTES_MAX: usize = 4096;
/// Words of a [`Bitmap`].
pub const BITMAP_WORDS: usize = 3;
/// Words of a bitmap that a peer may send.
pub const BITMAP_WORDS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    #[test]
    fn bitmaps_take_three_words_and_mark_bits_beyond() {
        let table: [(&[u8], Bitmap); 4] = [
            (&[0, 0, 0, 0], Bitmap::EMPTY),
            (&[0, 0, 0, 1, 0, 0, 0, 0x12], Bitmap::of(&[1, 4])),
            (&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2], Bitmap::of(&[33])),
            (&[0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4], Bitmap::of(&[0, 66])),
        ];
        for (bytes, bitmap) in table {
            assert_eq!(decode_all::<Bitmap>(bytes), Ok(bitmap));
            let mut w = Writer::new();
            bitmap.encode(&mut w);
            assert_eq!(w.as_slice(), bytes);
        }
        let fourth = [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(decode_all::<Bitmap>(&fourth), Ok(Bitmap::of(&[Bitmap::UNKNOWN])));
        let failure = Err(DecodeError { what: "bitmap4", at_byte: 0 });
        assert_eq!(decode_all::<Bitmap>(&[0, 0, 0, 9]), failure);
        assert_eq!(decode_all::<Bitmap>(&[0xff; 4]), failure);
        assert!(Bitmap::of(&[1, 33, 95]).iter().eq([1, 33, 95]));
    }
}
