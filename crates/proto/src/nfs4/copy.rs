//! ALLOCATE, DEALLOCATE, COPY and CLONE: RFC 7862 §15.1 to §15.4 and §15.13.

use super::types::{StableHow, Stateid, Verifier};
use crate::xdr::{Decode, DecodeError, Encode, Reader, Writer, xdr_struct};

/// Arguments of ALLOCATE and of DEALLOCATE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AllocateArgs {
    /// The open or the lock that it belongs to.
    pub stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Bytes from there on.
    pub length: u64,
}

xdr_struct!(AllocateArgs { stateid, offset: u64, length: u64 });

/// Arguments of CLONE. The source is the saved file handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CloneArgs {
    /// Of the source.
    pub source_stateid: Stateid,
    /// Of the destination.
    pub destination_stateid: Stateid,
    /// First byte in the source.
    pub source_offset: u64,
    /// First byte in the destination.
    pub destination_offset: u64,
    /// Bytes; zero means to the end of the source.
    pub count: u64,
}

xdr_struct!(CloneArgs {
    source_stateid,
    destination_stateid,
    source_offset: u64,
    destination_offset: u64,
    count: u64,
});

/// Arguments of COPY. The source is the saved file handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyArgs {
    /// Stateids, offsets and the number of bytes, as those of CLONE.
    pub range: CloneArgs,
    /// The bytes have to be copied in order.
    pub consecutive: bool,
    /// The reply comes when they are copied.
    pub synchronous: bool,
    /// The source is on another server.
    pub is_between_servers: bool,
}

impl Decode<'_> for CopyArgs {
    /// The addresses of another server are not decoded: the operation is refused, and so ends its
    /// COMPOUND.
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            range: CloneArgs::decode(r)?,
            consecutive: r.bool("COPY4args.ca_consecutive")?,
            synchronous: r.bool("COPY4args.ca_synchronous")?,
            is_between_servers: r.u32("COPY4args.ca_source_server")? != 0,
        })
    }
}

impl Encode for CopyArgs {
    fn encode(&self, w: &mut Writer) {
        self.range.encode(w);
        w.bool(self.consecutive);
        w.bool(self.synchronous);
        w.u32(self.is_between_servers.into());
    }
}

/// Result of a synchronous COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOk {
    /// Bytes copied, possibly fewer than asked for.
    pub count: u64,
    /// How durable they are.
    pub committed: StableHow,
    /// As that of WRITE.
    pub verifier: Verifier,
}

impl Decode<'_> for CopyOk {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let failure = DecodeError { what: "COPY4resok", at_byte: r.position() };
        let has_callback = r.u32("write_response4.wr_callback_id")? != 0;
        let (count, committed) = (r.u64("write_response4.wr_count")?, Decode::decode(r)?);
        let verifier = Decode::decode(r)?;
        let is_consecutive = r.bool("copy_requirements4.cr_consecutive")?;
        let is_synchronous = r.bool("copy_requirements4.cr_synchronous")?;
        if has_callback || !is_consecutive || !is_synchronous {
            return Err(failure);
        }
        Ok(Self { count, committed, verifier })
    }
}

impl Encode for CopyOk {
    fn encode(&self, w: &mut Writer) {
        // No callback will follow.
        w.u32(0);
        w.u64(self.count);
        self.committed.encode(w);
        self.verifier.encode(w);
        // Consecutive and synchronous.
        w.bool(true);
        w.bool(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    fn encoded(value: &impl Encode) -> Vec<u8> {
        let mut w = Writer::new();
        value.encode(&mut w);
        w.into_vec()
    }

    #[test]
    fn copies_are_decoded_as_they_were_encoded() {
        let stateid = Stateid { seqid: 7, other: [3; 12] };
        let range = CloneArgs {
            source_stateid: stateid,
            destination_stateid: Stateid::ANONYMOUS,
            source_offset: 1,
            destination_offset: u64::MAX,
            count: 5,
        };
        let (consecutive, synchronous) = (true, false);
        let args = CopyArgs { range, consecutive, synchronous, is_between_servers: false };
        let bytes = encoded(&args);
        assert_eq!(bytes.len(), 2 * 16 + 3 * 8 + 3 * 4);
        assert_eq!(decode_all(&bytes), Ok(args));
        let verifier = Verifier([9; 8]);
        let done = CopyOk { count: 6, committed: StableHow::Unstable, verifier };
        let bytes = encoded(&done);
        assert_eq!(bytes.len(), 4 + 8 + 4 + 8 + 2 * 4);
        assert_eq!(decode_all(&bytes), Ok(done));
        let mut with_callback = bytes;
        with_callback[3] = 1;
        decode_all::<CopyOk>(&with_callback).unwrap_err();
    }
}
