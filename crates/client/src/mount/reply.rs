//! Replies on `/dev/fuse` (`linux/fuse.h`).

use std::io::IoSlice;
use std::time::Duration;

use bytes::Bytes;
use proto::nfs3::{Attributes, FileType, FsstatOk};
use rustix::io::Errno;

/// The answer to one request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) error: Option<Errno>,
    body: Body,
    /// The kernel's new references, if it accepts this answer.
    pub(super) granted: Granted,
}

#[derive(Debug)]
enum Body {
    Fields(Vec<u8>),
    Data(Bytes),
}

/// Lookup counts, open files and sizes that an answer passes to the kernel. The kernel refuses the
/// answer if the caller was killed; then they are undone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Granted {
    /// One lookup of each.
    pub(super) nodes: Vec<u64>,
    /// An open file.
    pub(super) file: Option<u64>,
    /// An open directory.
    pub(super) dir: Option<u64>,
    /// The size of this node, which the kernel has already.
    pub(super) size: Option<u64>,
}

impl Granted {
    /// Whether there is anything to undo.
    pub(super) fn is_something(&self) -> bool {
        *self != Self::default()
    }
}

impl Answer {
    /// Success without data.
    pub(super) fn done() -> Self {
        Self::fields(Vec::new())
    }

    /// Failure.
    pub(super) fn error(errno: Errno) -> Self {
        Self { error: Some(errno), ..Self::done() }
    }

    /// The data of a file, or the target of a symbolic link.
    pub(super) fn data(data: Bytes) -> Self {
        Self { error: None, body: Body::Data(data), granted: Granted::default() }
    }

    /// The object of a name, `struct fuse_entry_out`.
    pub(super) fn entry(entry: &Entry) -> Self {
        let mut fields = Vec::with_capacity(ENTRY_BYTES);
        entry.encode(&mut fields);
        let granted = Granted { nodes: vec![entry.node], ..Granted::default() };
        Self { granted, ..Self::fields(fields) }
    }

    /// The name does not exist; the kernel may cache that for `ttl`.
    pub(super) fn no_entry(ttl: Duration) -> Self {
        if ttl.is_zero() {
            return Self::error(Errno::NOENT);
        }
        let mut fields = vec![0; ENTRY_BYTES];
        fields[16..24].copy_from_slice(&ttl.as_secs().to_ne_bytes());
        fields[32..36].copy_from_slice(&ttl.subsec_nanos().to_ne_bytes());
        Self::fields(fields)
    }

    /// The attributes of `node`, `struct fuse_attr_out`, valid for `ttl`.
    pub(super) fn attributes(node: u64, stat: &Stat, ttl: Duration) -> Self {
        let mut fields = Vec::with_capacity(16 + STAT_BYTES);
        put_u64(&mut fields, ttl.as_secs());
        put_u32(&mut fields, ttl.subsec_nanos());
        put_u32(&mut fields, 0);
        stat.encode(&mut fields);
        let granted = Granted { size: Some(node), ..Granted::default() };
        Self { granted, ..Self::fields(fields) }
    }

    /// An open file.
    pub(super) fn opened(fh: u64, open_flags: u32) -> Self {
        let granted = Granted { file: Some(fh), ..Granted::default() };
        Self { granted, ..Self::fields(open_fields(fh, open_flags)) }
    }

    /// An open directory.
    pub(super) fn opened_dir(fh: u64, open_flags: u32) -> Self {
        let granted = Granted { dir: Some(fh), ..Granted::default() };
        Self { granted, ..Self::fields(open_fields(fh, open_flags)) }
    }

    /// A new file, open.
    pub(super) fn created(entry: &Entry, fh: u64, open_flags: u32) -> Self {
        let mut fields = Vec::with_capacity(ENTRY_BYTES + 16);
        entry.encode(&mut fields);
        fields.extend(open_fields(fh, open_flags));
        let granted = Granted { nodes: vec![entry.node], file: Some(fh), ..Granted::default() };
        Self { granted, ..Self::fields(fields) }
    }

    /// The number of written bytes, by which the file `grown` is longer.
    pub(super) fn written(count: u32, grown: Option<u64>) -> Self {
        let mut fields = Vec::with_capacity(8);
        put_u32(&mut fields, count);
        put_u32(&mut fields, 0);
        let granted = Granted { size: grown, ..Granted::default() };
        Self { granted, ..Self::fields(fields) }
    }

    /// `struct fuse_statfs_out`. Blocks are of [`STATFS_BLOCK_BYTES`], whatever the server's are.
    pub(super) fn statfs(stat: &FsstatOk, name_max: u32) -> Self {
        let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK_BYTES);
        let mut fields = Vec::with_capacity(80);
        let counts = [
            blocks(stat.tbytes),
            blocks(stat.fbytes),
            blocks(stat.abytes),
            stat.tfiles,
            stat.ffiles,
        ];
        for count in counts {
            put_u64(&mut fields, count);
        }
        for field in [STATFS_BLOCK_BYTES, name_max, STATFS_BLOCK_BYTES] {
            put_u32(&mut fields, field);
        }
        fields.resize(80, 0);
        Self::fields(fields)
    }

    /// Names of a directory; none at its end.
    pub(super) fn names(listing: Dirents) -> Self {
        let granted = Granted { nodes: listing.nodes, ..Granted::default() };
        Self { granted, ..Self::fields(listing.bytes) }
    }

    fn fields(fields: Vec<u8>) -> Self {
        Self { error: None, body: Body::Fields(fields), granted: Granted::default() }
    }

    /// Encodes the message and passes it to `send` in one piece.
    pub(super) fn send<T>(&self, unique: u64, send: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        let body: &[u8] = match &self.body {
            Body::Fields(fields) => fields,
            Body::Data(data) => data,
        };
        let len = u32::try_from(OUT_HEAD_BYTES + body.len()).expect("answers are below 4 GiB");
        let error = self.error.map_or(0, |errno| -errno.raw_os_error());
        let mut head = Vec::with_capacity(OUT_HEAD_BYTES);
        put_u32(&mut head, len);
        head.extend(error.to_ne_bytes());
        put_u64(&mut head, unique);
        send(&[IoSlice::new(&head), IoSlice::new(body)])
    }

    /// The error, if it is one.
    #[cfg(test)]
    pub(super) fn errno(&self) -> Option<Errno> {
        self.error
    }
}

/// `struct fuse_entry_out`.
pub(super) struct Entry {
    /// Never used for another file, so that the generation is always 0.
    pub(super) node: u64,
    pub(super) stat: Stat,
    /// How long the kernel may cache the name.
    pub(super) name_ttl: Duration,
    /// How long the kernel may cache the attributes.
    pub(super) attributes_ttl: Duration,
}

impl Entry {
    fn encode(&self, fields: &mut Vec<u8>) {
        put_u64(fields, self.node);
        put_u64(fields, 0);
        put_u64(fields, self.name_ttl.as_secs());
        put_u64(fields, self.attributes_ttl.as_secs());
        put_u32(fields, self.name_ttl.subsec_nanos());
        put_u32(fields, self.attributes_ttl.subsec_nanos());
        self.stat.encode(fields);
    }
}

/// `struct fuse_attr`.
pub(super) struct Stat {
    pub(super) attributes: Attributes,
    /// `st_blksize`; a power of two.
    pub(super) block_bytes: u32,
}

impl Stat {
    fn encode(&self, fields: &mut Vec<u8>) {
        let attributes = self.attributes;
        let times = [attributes.atime, attributes.mtime, attributes.ctime];
        put_u64(fields, attributes.fileid);
        put_u64(fields, attributes.size);
        put_u64(fields, attributes.used.div_ceil(512));
        for time in times {
            put_u64(fields, time.seconds.into());
        }
        for time in times {
            // The kernel refuses times with 1,000,000,000 nanoseconds or more.
            put_u32(fields, time.nseconds.min(999_999_999));
        }
        put_u32(fields, type_bits(attributes.file_type) << 12 | attributes.mode & MODE_BITS);
        put_u32(fields, attributes.nlink);
        put_u32(fields, attributes.uid);
        put_u32(fields, attributes.gid);
        put_u32(fields, encode_device(attributes.rdev.major, attributes.rdev.minor));
        put_u32(fields, self.block_bytes);
        put_u32(fields, 0);
    }
}

/// Names for a READDIR or READDIRPLUS, up to the size that the kernel has room for.
pub(super) struct Dirents {
    bytes: Vec<u8>,
    bytes_max: usize,
    nodes: Vec<u64>,
}

/// `struct fuse_dirent`, with the name.
pub(super) struct Dirent<'a> {
    pub(super) fileid: u64,
    /// The position after this name.
    pub(super) cookie: u64,
    pub(super) file_type: Option<FileType>,
    pub(super) name: &'a [u8],
}

impl Dirents {
    /// An empty list with room for `bytes_max`.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), bytes_max, nodes: Vec::new() }
    }

    /// Whether it has no names.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether a name of `name_bytes` fits, with its attributes if `plus`.
    pub(super) fn has_room(&self, name_bytes: usize, plus: bool) -> bool {
        let entry = if plus { ENTRY_BYTES } else { 0 };
        self.bytes.len() + entry + (DIRENT_BYTES + name_bytes).next_multiple_of(8) <= self.bytes_max
    }

    /// Adds a name, for which there must be room.
    pub(super) fn add(&mut self, dirent: &Dirent<'_>) {
        debug_assert!(self.has_room(dirent.name.len(), false));
        put_u64(&mut self.bytes, dirent.fileid);
        put_u64(&mut self.bytes, dirent.cookie);
        let name_bytes = u32::try_from(dirent.name.len()).expect("names fit into 4 KiB");
        put_u32(&mut self.bytes, name_bytes);
        put_u32(&mut self.bytes, dirent.file_type.map_or(0, type_bits));
        self.bytes.extend(dirent.name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    /// Adds a name and its object, which counts as a lookup. Without an entry the name has no
    /// attributes, and the kernel sends a LOOKUP when it needs them.
    pub(super) fn add_plus(&mut self, dirent: &Dirent<'_>, entry: Option<&Entry>) {
        match entry {
            Some(entry) => {
                entry.encode(&mut self.bytes);
                self.nodes.push(entry.node);
            }
            None => self.bytes.resize(self.bytes.len() + ENTRY_BYTES, 0),
        }
        self.add(dirent);
    }
}

fn open_fields(fh: u64, open_flags: u32) -> Vec<u8> {
    let mut fields = Vec::with_capacity(16);
    put_u64(&mut fields, fh);
    put_u32(&mut fields, open_flags);
    put_u32(&mut fields, 0);
    fields
}

/// The file type of `st_mode` less its twelve bits of permissions, which is also `DT_*`.
fn type_bits(file_type: FileType) -> u32 {
    match file_type {
        FileType::Fifo => 0o1,
        FileType::CharacterDevice => 0o2,
        FileType::Directory => 0o4,
        FileType::BlockDevice => 0o6,
        FileType::Regular => 0o10,
        FileType::Symlink => 0o12,
        FileType::Socket => 0o14,
    }
}

/// The file type in `mode` of a MKNOD.
pub(super) fn type_of_mode(mode: u32) -> Option<FileType> {
    Some(match (mode >> 12) & 0o17 {
        0o1 => FileType::Fifo,
        0o2 => FileType::CharacterDevice,
        0o4 => FileType::Directory,
        0o6 => FileType::BlockDevice,
        // mknod(2) without a type creates a regular file.
        0o10 | 0 => FileType::Regular,
        0o12 => FileType::Symlink,
        0o14 => FileType::Socket,
        _ => return None,
    })
}

/// `new_encode_dev()` of the kernel: 12 bits of major and 20 of minor number, interleaved.
fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xFF) | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12
}

/// The major and the minor number in `device`, `new_decode_dev()` of the kernel.
pub(super) fn decode_device(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xFFF, (device & 0xFF) | (device >> 12) & 0xF_FF00)
}

fn put_u32(fields: &mut Vec<u8>, value: u32) {
    fields.extend(value.to_ne_bytes());
}

fn put_u64(fields: &mut Vec<u8>, value: u64) {
    fields.extend(value.to_ne_bytes());
}

/// The bits of `st_mode` that are not the type.
pub(super) const MODE_BITS: u32 = 0o7777;

/// `FOPEN_DIRECT_IO`: I/O of this open file bypasses the page cache.
pub(super) const OPEN_DIRECT_IO: u32 = 1 << 0;

/// `FOPEN_KEEP_CACHE`: the cached pages stay valid.
pub(super) const OPEN_KEEP_CACHE: u32 = 1 << 1;

/// `FOPEN_NOFLUSH`: no FLUSH when a descriptor is closed.
pub(super) const OPEN_NO_FLUSH: u32 = 1 << 5;

/// `FOPEN_PARALLEL_DIRECT_WRITES`: direct writes of the file may overlap in time.
pub(super) const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// The unit of statfs(2), the same as that of most disks' file systems.
const STATFS_BLOCK_BYTES: u32 = 4096;

/// `struct fuse_out_header`.
const OUT_HEAD_BYTES: usize = 16;

/// `struct fuse_attr`.
const STAT_BYTES: usize = 88;

/// `struct fuse_entry_out`.
const ENTRY_BYTES: usize = 40 + STAT_BYTES;

/// `struct fuse_dirent` before the name.
const DIRENT_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use proto::nfs3::{DeviceSpec, Time};

    use super::*;

    const ATTRIBUTES: Attributes = Attributes {
        file_type: FileType::Regular,
        mode: 0o4755,
        nlink: 2,
        uid: 1000,
        gid: 100,
        size: 5000,
        used: 4097,
        rdev: DeviceSpec { major: 8, minor: 300 },
        fsid: 1,
        fileid: 0xABCD,
        atime: Time { seconds: 1, nseconds: 4 },
        mtime: Time { seconds: 2, nseconds: 5 },
        ctime: Time { seconds: u32::MAX, nseconds: u32::MAX },
    };

    fn entry(node: u64) -> Entry {
        Entry {
            node,
            stat: Stat { attributes: ATTRIBUTES, block_bytes: 1 << 20 },
            name_ttl: Duration::from_millis(1500),
            attributes_ttl: Duration::from_secs(3),
        }
    }

    fn sent(answer: &Answer) -> Vec<u8> {
        answer.send(77, |parts| parts.iter().flat_map(|part| part.to_vec()).collect())
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn an_error_is_a_head_alone() {
        let bytes = sent(&Answer::error(Errno::NOENT));
        assert_eq!((bytes.len(), u32_at(&bytes, 0)), (16, 16));
        assert_eq!(u32_at(&bytes, 4).cast_signed(), -2);
        assert_eq!(u64_at(&bytes, 8), 77);
    }

    #[test]
    fn an_entry_is_laid_out_as_the_kernel_reads_it() {
        let bytes = sent(&Answer::entry(&entry(5)));
        assert_eq!(bytes.len(), 16 + 128);
        let body = &bytes[16..];
        assert_eq!(u64_at(body, 0), 5);
        assert_eq!((u64_at(body, 16), u32_at(body, 32)), (1, 500_000_000));
        assert_eq!((u64_at(body, 24), u32_at(body, 36)), (3, 0));
        let stat = &body[40..];
        assert_eq!((u64_at(stat, 0), u64_at(stat, 8), u64_at(stat, 16)), (0xABCD, 5000, 9));
        assert_eq!((u64_at(stat, 32), u32_at(stat, 52)), (2, 5));
        assert_eq!((u64_at(stat, 40), u32_at(stat, 56)), (u32::MAX.into(), 999_999_999));
        assert_eq!(u32_at(stat, 60), 0o104755);
        assert_eq!(u32_at(stat, 76), 0x0010_082C);
        assert_eq!(u32_at(stat, 80), 1 << 20);
    }

    #[test]
    fn a_missing_name_is_an_entry_without_a_node() {
        let bytes = sent(&Answer::no_entry(Duration::from_millis(2250)));
        assert_eq!(bytes.len(), 16 + 128);
        assert_eq!((u64_at(&bytes, 16), u64_at(&bytes, 32)), (0, 2));
        assert_eq!(u32_at(&bytes, 48), 250_000_000);
        assert_eq!(Answer::no_entry(Duration::ZERO).errno(), Some(Errno::NOENT));
    }

    #[test]
    fn created_file_is_granted() {
        let created = Answer::created(&entry(5), 9, 0);
        let expected = Granted { nodes: vec![5], file: Some(9), ..Granted::default() };
        assert_eq!(created.granted, expected);
        assert_eq!(sent(&created).len(), 16 + 128 + 16);
    }

    #[test]
    fn names_stop_at_the_size_limit() {
        let dirent = Dirent { fileid: 3, cookie: 12, file_type: None, name: b"ninebytes" };
        let mut list = Dirents::new(100);
        while list.has_room(dirent.name.len(), false) {
            list.add(&dirent);
        }
        let bytes = sent(&Answer::names(list));
        assert_eq!(bytes.len(), 16 + 2 * 40);
        assert_eq!((u64_at(&bytes, 56), u64_at(&bytes, 64)), (3, 12));
        assert_eq!((u32_at(&bytes, 72), u32_at(&bytes, 76)), (9, 0));
        assert_eq!(&bytes[80..96], b"ninebytes\0\0\0\0\0\0\0");
    }

    #[test]
    fn names_with_attributes_count_as_lookups() {
        let file_type = Some(FileType::Directory);
        let dirent = Dirent { fileid: 3, cookie: 12, file_type, name: b"d" };
        let mut list = Dirents::new(2 * (128 + 32));
        assert!(list.has_room(1, true));
        list.add_plus(&dirent, Some(&entry(5)));
        list.add_plus(&dirent, None);
        assert!(!list.has_room(1, true));
        let answer = Answer::names(list);
        assert_eq!(answer.granted.nodes, [5]);
        let bytes = sent(&answer);
        assert_eq!((u64_at(&bytes, 16), u64_at(&bytes, 16 + 160)), (5, 0));
        assert_eq!(u32_at(&bytes, 16 + 128 + 20), 4);
    }

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (8, 1), (259, 300), (4095, 0xF_FFFF)] {
            assert_eq!(decode_device(encode_device(major, minor)), (major, minor));
        }
    }
}
