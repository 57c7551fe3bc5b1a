//! The table of operations.

use proto::nfs4::{Handle, OperationCode as Op, Status};
use proto::xdr::{Decode, Reader};

use super::compound::Compound;
use super::{Outcome, Refused};
use crate::vfs::Allocation;

/// Decodes the arguments of an operation, and appends the result of the method that performs it.
/// The work is boxed: that on a COMPOUND is as large as its largest part, and READ, WRITE and
/// GETATTR are to stay quick.
macro_rules! answer {
    ($compound:ident.$work:ident($($more:expr)?), $operation:ident, $reader:ident) => {{
        let outcome = match decoded($reader) {
            Ok(args) => Box::pin($compound.$work(args $(, $more)?)).await,
            Err(refused) => Err(refused),
        };
        $compound.put($operation, outcome)
    }};
}

/// The operations that [`Compound::perform`] has no method for: SEQUENCE and those on filehandles
/// alone are performed before, the others are not implemented. With these its match is exhaustive.
macro_rules! others {
    () => {
        Op::Sequence
            | Op::Putfh
            | Op::Putrootfh
            | Op::Putpubfh
            | Op::Getfh
            | Op::Savefh
            | Op::Restorefh
            | Op::Delegpurge
            | Op::Openattr
            | Op::OpenConfirm
            | Op::Renew
            | Op::Setclientid
            | Op::SetclientidConfirm
            | Op::ReleaseLockowner
            | Op::GetDirDelegation
            | Op::Getdeviceinfo
            | Op::Getdevicelist
            | Op::Layoutcommit
            | Op::Layoutget
            | Op::Layoutreturn
            | Op::SetSsv
            | Op::WantDelegation
            | Op::CopyNotify
            | Op::IoAdvise
            | Op::Layouterror
            | Op::Layoutstats
            | Op::OffloadCancel
            | Op::OffloadStatus
            | Op::ReadPlus
            | Op::WriteSame
            | Op::Illegal
    };
}

impl<'a> Compound<'a> {
    /// Decodes the arguments of an operation, performs it, and appends its result.
    ///
    /// # Errors
    /// Its status: the COMPOUND ends with it.
    pub(super) async fn perform(
        &mut self,
        operation: Op,
        reader: &mut Reader<'a>,
    ) -> Result<(), Status> {
        let written = self.written.take();
        match operation {
            Op::Read => self.read(reader).await,
            Op::Write => self.write(reader).await,
            Op::Getattr => self.getattr(reader, written).await,
            Op::Access => answer!(self.access(), operation, reader),
            Op::Setattr => Box::pin(self.setattr(reader)).await,
            Op::Verify => answer!(self.verify(true), operation, reader),
            Op::Nverify => answer!(self.verify(false), operation, reader),
            Op::Commit => Box::pin(self.commit(reader)).await,
            Op::Readdir => Box::pin(self.readdir(reader)).await,
            Op::Lookup => answer!(self.lookup(), operation, reader),
            Op::Lookupp => {
                let outcome = Box::pin(self.lookup_parent()).await;
                self.put(operation, outcome)
            }
            Op::Readlink => Box::pin(self.readlink()).await,
            Op::Create => answer!(self.create(), operation, reader),
            Op::Remove => answer!(self.remove(), operation, reader),
            Op::Rename => answer!(self.rename(), operation, reader),
            Op::Link => answer!(self.link(), operation, reader),
            Op::Secinfo => answer!(self.secinfo(), operation, reader),
            Op::SecinfoNoName => answer!(self.secinfo_no_name(), operation, reader),
            Op::Seek => answer!(self.seek(), operation, reader),
            Op::Allocate => answer!(self.allocate(Allocation::Allocate), operation, reader),
            Op::Deallocate => answer!(self.allocate(Allocation::Deallocate), operation, reader),
            Op::Copy => answer!(self.copy(), operation, reader),
            Op::Clone => answer!(self.clone_range(), operation, reader),
            Op::Getxattr => Box::pin(self.getxattr(reader)).await,
            Op::Setxattr => Box::pin(self.setxattr(reader)).await,
            Op::Listxattrs => Box::pin(self.listxattrs(reader)).await,
            Op::Removexattr => answer!(self.removexattr(), operation, reader),
            Op::ExchangeId => {
                let outcome = match decoded(reader) {
                    Ok(args) => Box::pin(self.exchange_id(args)).await,
                    Err(refused) => Err(refused),
                };
                self.put_exchanged(outcome)
            }
            Op::CreateSession => answer!(self.create_session(), operation, reader),
            Op::DestroySession => answer!(self.destroy_session(), operation, reader),
            Op::DestroyClientid => answer!(self.destroy_clientid(), operation, reader),
            Op::BindConnToSession => answer!(self.bind_connection(), operation, reader),
            Op::BackchannelCtl => answer!(self.backchannel_ctl(), operation, reader),
            Op::ReclaimComplete => answer!(self.reclaim_complete(), operation, reader),
            Op::Open => answer!(self.open(), operation, reader),
            Op::Close => answer!(self.close(), operation, reader),
            Op::OpenDowngrade => answer!(self.open_downgrade(), operation, reader),
            Op::FreeStateid => answer!(self.free_stateid(), operation, reader),
            Op::TestStateid => self.test_stateid(reader),
            Op::Lock | Op::Lockt => Box::pin(self.lock_or_test(operation, reader)).await,
            Op::Locku => answer!(self.unlock(), operation, reader),
            Op::Delegreturn => answer!(self.return_delegation(), operation, reader),
            others!() => self.put::<()>(operation, Err(Status::Notsupp.into())),
        }
    }

    /// Performs an operation on filehandles alone; `None` for any other.
    pub(super) fn perform_on_handles(
        &mut self,
        operation: Op,
        reader: &mut Reader<'a>,
    ) -> Option<Result<(), Status>> {
        let done = match operation {
            Op::Putfh => {
                let outcome = self.put_fh(reader);
                self.put(operation, outcome)
            }
            Op::Putrootfh | Op::Putpubfh => {
                let outcome = self.put_root();
                self.put(operation, outcome)
            }
            Op::Getfh => {
                let outcome =
                    self.current_handle().map(|handle| Handle { object: self.handle_of(handle) });
                self.put(operation, outcome)
            }
            Op::Savefh => {
                let outcome = self.save();
                self.put(operation, outcome)
            }
            Op::Restorefh => {
                let outcome = self.restore();
                self.put(operation, outcome)
            }
            _ => return None,
        };
        self.written = None;
        Some(done)
    }

    fn put_fh(&mut self, reader: &mut Reader<'a>) -> Outcome<()> {
        let Handle { object } = decoded(reader)?;
        self.put_handle(&object)
    }

    fn save(&mut self) -> Outcome<()> {
        self.current_handle()?;
        self.saved = self.current.clone();
        Ok(())
    }

    fn restore(&mut self) -> Outcome<()> {
        let saved = self.saved.clone().ok_or(Status::Nofilehandle)?;
        self.current = Some(saved);
        Ok(())
    }
}

/// The arguments of an operation.
///
/// # Errors
/// `Badxdr`.
pub(super) fn decoded<'a, T: Decode<'a>>(reader: &mut Reader<'a>) -> Outcome<T> {
    T::decode(reader).map_err(Refused::from)
}
