//! READ.

use proto::nfs4::{OperationCode, ReadArgs, ShareAccess, Status};
use proto::xdr::Reader;

use super::Outcome;
use super::compound::Compound;
use super::operation::decoded;
use crate::trace::Event;
use crate::vfs::ReadDone;

impl Compound<'_> {
    /// READ, RFC 8881 §18.22. The data is sent from the buffer that it was read into, unless the
    /// reply is to be kept.
    pub(super) async fn read(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let outcome = match decoded(reader) {
            Ok(args) => self.read_data(args).await,
            Err(refused) => Err(refused),
        };
        self.put_with(OperationCode::Read, outcome, |done, results| {
            let len = u32::try_from(done.count()).expect("at most what was asked for");
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
        })
    }

    async fn read_data(&mut self, args: ReadArgs) -> Outcome<ReadDone> {
        let mut located = self.object_or(Status::Isdir)?;
        // The pages of a spliced range are sent when the operations behind have changed them.
        located.object.policy.splice &= self.is_last();
        let ReadArgs { stateid, offset, count } = args;
        let (caller, held) = self.check_io(&located, &stateid, ShareAccess::Read).await?;
        let room = self.results.data_room()?;
        let count = count.min(u32::try_from(room).unwrap_or(u32::MAX));
        let (vfs, call) = (&self.request.service.vfs, self.call_id(&located.object));
        self.trace(Event::ReadStart, call, (offset, count), None);
        let answer = vfs.read(&caller, (&located.object, &held), call, offset, count).await;
        let done = answer.result.as_ref().map_or(0, ReadDone::count);
        let done = u32::try_from(done).expect("at most what was asked for");
        let result = answer.result.as_ref().map(|_| done).map_err(|status| *status);
        self.trace(Event::ReadDone, call, (offset, count), Some(result));
        Ok(answer.result?)
    }
}
