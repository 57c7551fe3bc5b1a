//! READ of one file as one user, for its read-ahead.

use std::sync::Arc;

use crate::Result;
use crate::inode::Inode;
use crate::nfs3::{Nfs3, ReadData};
use crate::read_ahead::{Purpose, ReadSource};
use crate::trace::{Event, Tracer};

/// Makes the calls and notes with the inode what their replies say of it.
#[derive(Clone, Debug)]
pub(crate) struct ReadCalls {
    nfs: Nfs3,
    inode: Arc<Inode>,
    tracer: Arc<Tracer>,
}

impl ReadCalls {
    pub(crate) fn new(nfs: Nfs3, inode: Arc<Inode>, tracer: Arc<Tracer>) -> Self {
        Self { nfs, inode, tracer }
    }
}

impl ReadSource for ReadCalls {
    async fn read(&self, offset: u64, count: u32, purpose: Purpose) -> Result<ReadData> {
        let sent = self.inode.sent();
        let read = self.nfs.read(self.inode.handle(), offset, count);
        let event = match purpose {
            Purpose::Asked => Event::ReadCall,
            Purpose::Ahead => Event::ReadAhead,
        };
        let object = self.inode.object();
        self.tracer.emit(event, object, offset, count.into(), format_args!(""));
        let read = read.await;
        match &read {
            Ok(ReadData { attributes, eof, data }) => {
                self.inode.note(attributes.as_ref(), sent);
                let (len, eof) = (data.len() as u64, u8::from(*eof));
                self.tracer.emit(Event::ReadReply, object, offset, len, format_args!("eof={eof}"));
            }
            Err(error) => {
                let detail = format_args!("error={error}");
                self.tracer.emit(Event::ReadReply, object, offset, 0, detail);
            }
        }
        read
    }
}
