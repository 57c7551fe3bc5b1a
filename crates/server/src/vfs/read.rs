//! READ.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use io::{Buffer, Identity, NowaitRead};
use rustix::fs::Access;

use super::{Answer, Attributes, Caller, Object, Status, Vfs, attributes_of};
use crate::counters::Counter;
use crate::open_files::OpenFile;
use crate::payload::Payload;

/// What a READ returns.
pub(crate) struct ReadDone {
    /// The data; `None` when there is none.
    pub(crate) data: Option<Payload>,
    /// The range reached the end of the file.
    pub(crate) eof: bool,
}

impl ReadDone {
    /// Bytes read.
    pub(crate) fn count(&self) -> usize {
        self.data.as_ref().map_or(0, Payload::len)
    }
}

impl Vfs {
    /// READ, RFC 1813 §3.3.6. Reads at most `count` bytes (clamped to `transfer_bytes_max`) at
    /// `offset`; short only at the end of the file, and then `eof`.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`, `Invalid` (no regular file), `Access`, `Io`.
    pub(crate) async fn read(
        &self,
        caller: &Caller,
        object: &Object,
        offset: u64,
        count: u32,
    ) -> Answer<Option<Attributes>, ReadDone> {
        let file = match self.open(object).await {
            Ok(file) => file,
            Err(status) => return Answer::refused(status),
        };
        let attributes = match self.attributes(&file).await {
            Ok(attributes) => attributes,
            Err(status) => return Answer::refused(status),
        };
        match self.read_open(caller, &file, attributes, offset, count).await {
            Ok((after, done)) => Answer { attributes: Some(after), result: Ok(done) },
            Err(status) => Answer { attributes: Some(attributes), result: Err(status) },
        }
    }

    async fn read_open(
        &self,
        caller: &Caller,
        file: &Arc<OpenFile>,
        attributes: Attributes,
        offset: u64,
        count: u32,
    ) -> Result<(Attributes, ReadDone), Status> {
        must_be_regular(&attributes)?;
        let reader = self.reader(file).await?;
        self.authorize_data(caller, file, &*reader, &attributes, Access::READ_OK).await?;
        let left = attributes.size.saturating_sub(offset);
        let wanted = u64::from(count.min(self.transfer_bytes_max)).min(left);
        let wanted = usize::try_from(wanted).expect("at most transfer_bytes_max");
        if wanted == 0 {
            return Ok((attributes, ReadDone { data: None, eof: left == 0 }));
        }
        let buffer = self.buffers.take(wanted).await.map_err(|_| Status::ServerFault)?;
        let (buffer, read, after) =
            self.fill(file, reader, buffer, wanted, offset, attributes).await?;
        self.counters.add(Counter::ReadBytes, read as u64);
        let eof = offset + read as u64 >= after.size;
        let data = (read > 0).then(|| Payload::new(buffer, 0, read));
        Ok((after, ReadDone { data, eof }))
    }

    /// Reads `wanted` bytes into the buffer: what is in the page cache on this thread, the rest on a
    /// data thread, to which the whole call moves if it can. A short read happens only when
    /// the file was cut meanwhile.
    async fn fill(
        &self,
        file: &Arc<OpenFile>,
        reader: Arc<OwnedFd>,
        mut buffer: Buffer,
        wanted: usize,
        offset: u64,
        attributes: Attributes,
    ) -> Result<(Buffer, usize, Attributes), Status> {
        let mut had = 0;
        if file.root().attributes_in_memory {
            let slice = &mut buffer.as_mut_slice()[..wanted];
            match io::try_read_at_nowait(reader.as_fd(), slice, offset, attributes.size)? {
                NowaitRead::Done(read) => {
                    self.counters.add(Counter::ReadsInline, 1);
                    return Ok((buffer, read, attributes));
                }
                NowaitRead::Partly(read) => had = read,
                NowaitRead::Unsupported => {}
            }
        }
        self.counters.add(Counter::ReadsQueued, 1);
        self.engine.ask_for_data_thread().await;
        self.engine
            .data(move || {
                let rest = &mut buffer.as_mut_slice()[had..wanted];
                let read = io::read_at(reader.as_fd(), rest, offset + had as u64)?;
                Ok((buffer, had + read, attributes_of(&*reader)?))
            })
            .await
    }

    /// The descriptor for reading.
    pub(super) async fn reader(&self, file: &Arc<OpenFile>) -> Result<Arc<OwnedFd>, Status> {
        match file.reader() {
            Some(reader) => Ok(reader),
            None => self.reopen(file, OpenFile::open_reader).await,
        }
    }

    /// The descriptor for writing.
    pub(super) async fn writer(&self, file: &Arc<OpenFile>) -> Result<Arc<OwnedFd>, Status> {
        match file.writer() {
            Some(writer) => Ok(writer),
            None => self.reopen(file, OpenFile::open_writer).await,
        }
    }

    async fn reopen(
        &self,
        file: &Arc<OpenFile>,
        open: fn(&OpenFile) -> Result<Arc<OwnedFd>, Status>,
    ) -> Result<Arc<OwnedFd>, Status> {
        self.with_descriptors(|| {
            let file = Arc::clone(file);
            self.engine.metadata(Identity::Server, move || open(&file))
        })
        .await
    }
}

/// Refuses what has no data of its own.
///
/// # Errors
/// `IsDirectory`, or `Invalid` for any other kind.
pub(super) fn must_be_regular(attributes: &Attributes) -> Result<(), Status> {
    if attributes.is_regular() {
        Ok(())
    } else if attributes.is_directory() {
        Err(Status::IsDirectory)
    } else {
        Err(Status::Invalid)
    }
}
