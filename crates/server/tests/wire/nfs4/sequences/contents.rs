//! Data, space and extended attributes of files.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proto::nfs4::*;
use proto::xdr::{Decode, Encode, Writer};

use super::steps::{Kind, Step};
use super::{Encoded, World};
use crate::nfs4::client::Operations;

impl World {
    pub(super) fn data(&mut self, step: Step, file: usize) -> Result<(), TestCaseError> {
        let Step { actor, kind, at, len, .. } = step;
        let (stateid, writes) = self.for_data(actor, file);
        let offset = at as u64;
        let refused = if writes { Ok(()) } else { Err(Status::Openmode) };
        match kind {
            Kind::Read => {
                let args = ReadArgs { stateid, offset, count: u32::try_from(len).unwrap() };
                let read = self.on(actor, file, OperationCode::Read, &args).next_with(
                    OperationCode::Read,
                    |r| {
                        let ok = ReadOk::decode(r).unwrap();
                        (ok.eof, ok.data.to_vec())
                    },
                );
                let data = &self.files[file].data;
                let end = (at + len).min(data.len());
                let wanted = data[at.min(end)..end].to_vec();
                prop_assert_eq!(read, Ok((at + len >= data.len(), wanted)));
            }
            Kind::Write => {
                let bytes = vec![u8::try_from(at + 16 * len + 1).unwrap(); len];
                let (data, stable) = (&bytes[..], StableHow::Unstable);
                let args = WriteArgs { stateid, offset, stable, data };
                let written = self.on(actor, file, OperationCode::Write, &args).status;
                prop_assert_eq!(written, refused);
                if writes {
                    let data = &mut self.files[file].data;
                    data.resize(data.len().max(at + len), 0);
                    data[at..at + len].copy_from_slice(&bytes);
                }
            }
            Kind::Cut => {
                let set = Attributes { size: Some(offset), ..Attributes::default() };
                let mut w = Writer::new();
                stateid.encode(&mut w);
                set.encode(&mut w);
                let cut = self.on(actor, file, OperationCode::Setattr, &Encoded(w.into_vec()));
                prop_assert_eq!(cut.status, refused);
                if writes {
                    self.files[file].data.resize(at, 0);
                }
            }
            _ => {
                let args = SeekArgs { stateid, offset, what: u32::try_from(len % 2).unwrap() };
                let found = self.on(actor, file, OperationCode::Seek, &args).status;
                let is_behind = at >= self.files[file].data.len();
                // All of a file that was never written may be a hole.
                let wanted: &[_] =
                    if is_behind { &[Err(Status::Nxio)] } else { &[Ok(()), Err(Status::Nxio)] };
                prop_assert!(wanted.contains(&found), "{:?}", found);
            }
        }
        Ok(())
    }

    pub(super) fn space(&mut self, step: Step, file: usize) -> Result<(), TestCaseError> {
        let Step { actor, name, kind, at, len } = step;
        let (stateid, writes) = self.for_data(actor, file);
        let refused = if writes { Ok(()) } else { Err(Status::Openmode) };
        let (offset, length) = (at as u64, len as u64);
        let args = AllocateArgs { stateid, offset, length };
        if let Kind::Copy = kind {
            return self.copy(step, file, self.names[1 - name]);
        }
        let is_hole = matches!(kind, Kind::Deallocate);
        let operation = if is_hole { OperationCode::Deallocate } else { OperationCode::Allocate };
        prop_assert_eq!(self.on(actor, file, operation, &args).status, refused);
        let data = &mut self.files[file].data;
        if writes && is_hole {
            let end = (at + len).min(data.len());
            data[at.min(end)..end].fill(0);
        } else if writes {
            data.resize(data.len().max(at + len), 0);
        }
        Ok(())
    }

    /// Copies what there is of a range to the other name's file.
    fn copy(&mut self, step: Step, from: usize, other: Option<usize>) -> Result<(), TestCaseError> {
        let Step { actor, at, len, .. } = step;
        let Some(to) = other.filter(|to| *to != from) else { return Ok(()) };
        let len = len.min(self.files[from].data.len().saturating_sub(at));
        if len == 0 {
            return Ok(());
        }
        let ((source, _), (target, writes)) =
            (self.for_data(actor, from), self.for_data(actor, to));
        let range = CloneArgs {
            source_stateid: source,
            destination_stateid: target,
            source_offset: at as u64,
            destination_offset: 1,
            count: len as u64,
        };
        let (consecutive, synchronous) = (true, true);
        let args = CopyArgs { range, consecutive, synchronous, is_between_servers: false };
        let call = Operations::new().at(self.files[from].handle).op(OperationCode::Savefh, &());
        let call = call.at(self.files[to].handle).op(OperationCode::Copy, &args);
        let mut results = self.actors[actor].session.call(&call);
        results.skip(&[OperationCode::Putfh, OperationCode::Savefh, OperationCode::Putfh]);
        let copied = results.next::<CopyOk>(OperationCode::Copy).map(|ok| ok.count);
        if !writes {
            prop_assert_eq!(copied, Err(Status::Openmode));
            return Ok(());
        }
        prop_assert_eq!(copied, Ok(len as u64));
        let bytes = self.files[from].data[at..at + len].to_vec();
        let data = &mut self.files[to].data;
        data.resize(data.len().max(1 + len), 0);
        data[1..=len].copy_from_slice(&bytes);
        Ok(())
    }

    pub(super) fn xattr(&mut self, step: Step, file: usize) -> Result<(), TestCaseError> {
        let Step { actor, kind, at, len, .. } = step;
        let name = vec![b'a' + u8::try_from(at % 3).unwrap()];
        let known = self.files[file].xattrs.get(&name).cloned();
        match kind {
            Kind::SetXattr => {
                let value = vec![7; len];
                let option = SetxattrOption::Either;
                let args = SetxattrArgs { option, name: &name, value: &value };
                let set = self.on(actor, file, OperationCode::Setxattr, &args).status;
                prop_assert_eq!(set, Ok(()));
                self.files[file].xattrs.insert(name, value);
            }
            Kind::GetXattr => {
                let args = NameArgs { name: &name };
                let mut results = self.on(actor, file, OperationCode::Getxattr, &args);
                let value = results.next_with(OperationCode::Getxattr, |r| {
                    GetxattrOk::decode(r).unwrap().value.to_vec()
                });
                prop_assert_eq!(value, known.ok_or(Status::Noxattr));
            }
            Kind::RemoveXattr => {
                let args = NameArgs { name: &name };
                let removed = self.on(actor, file, OperationCode::Removexattr, &args).status;
                prop_assert_eq!(removed, known.map(drop).ok_or(Status::Noxattr));
                self.files[file].xattrs.remove(&name);
            }
            _ => {
                let args = ListxattrsArgs { cookie: 0, bytes_max: 1000 };
                let mut results = self.on(actor, file, OperationCode::Listxattrs, &args);
                let names = results.next_with(OperationCode::Listxattrs, |r| {
                    let listed = ListxattrsOk::decode(r).unwrap();
                    listed.names.iter().map(|name| name.name.to_vec()).collect::<BTreeSet<_>>()
                });
                prop_assert_eq!(names, Ok(self.files[file].xattrs.keys().cloned().collect()));
            }
        }
        Ok(())
    }
}
