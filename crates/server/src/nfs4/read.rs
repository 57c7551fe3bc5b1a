//! READ.

use proto::nfs4::{OperationCode, ReadArgs, ShareAccess, Status};
use proto::xdr::Reader;

use super::Outcome;
use super::compound::Compound;
use super::convert::check_regular;
use super::operation::decoded;
use crate::trace::Event;
use crate::vfs::ReadDone;

impl Compound<'_> {
    /// READ, RFC 8881 §18.22. The data is sent from the buffer that it was read into, unless the
    /// reply is to be kept.
    pub(super) async fn read(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let args: ReadArgs = match decoded(reader) {
            Ok(args) => args,
            Err(refused) => return self.put::<()>(OperationCode::Read, Err(refused)),
        };
        let range = (args.offset, args.count);
        self.trace_start(Event::ReadStart, range);
        let outcome = self.read_data(args).await;
        let len = outcome.as_ref().map_or(0, ReadDone::count);
        let len = u32::try_from(len).expect("at most what was asked for");
        let put = self.put_with(OperationCode::Read, outcome, |done, results| {
            results.writer().bool(done.eof);
            match done.data {
                Some(data) if results.sends_payload() => {
                    results.writer().u32(len);
                    results.set_payload(data);
                }
                Some(data) => match data.in_memory() {
                    Some(data) => results.put_inline(data),
                    None => return Err(Status::Delay.into()),
                },
                None => results.writer().u32(0),
            }
            Ok(())
        });
        self.trace_done(Event::ReadDone, range, put.map(|()| len));
        put
    }

    async fn read_data(&mut self, args: ReadArgs) -> Outcome<ReadDone> {
        let mut located = self.object_or(Status::Isdir)?;
        // The pages of a spliced range are sent when the operations behind have changed them.
        located.object.policy.splice &= self.is_last();
        let ReadArgs { stateid, offset, count } = args;
        let (caller, held) = self.check_io(&located, &stateid, ShareAccess::Read).await?;
        check_regular(held.file_type())?;
        let room = self.results.data_room()?;
        let count = count.min(u32::try_from(room).unwrap_or(u32::MAX));
        let (vfs, call) = (&self.request.service.vfs, self.call_id(&located.object));
        Ok(vfs.read(&caller, (&located.object, &held), call, offset, count).await.result?)
    }
}
