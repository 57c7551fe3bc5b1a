//! What a load costs a subject: processor time, memory, page cache, device, from two looks at it.

use std::collections::BTreeMap;

use crate::Result;
use crate::figure::Figure;
use crate::record::Measurement;
use crate::rig::{CpuTime, DeviceBytes, machine_cpu_secs};
use crate::subject::Running;

/// A subject before the load.
pub(crate) struct Meter<'a> {
    running: &'a Running,
    cpu: Option<CpuTime>,
    machine_secs: f64,
    device: Option<DeviceBytes>,
    counters: BTreeMap<String, u64>,
    cached_at_start_bytes: Option<u64>,
}

impl<'a> Meter<'a> {
    /// Looks at everything that can be looked at.
    ///
    /// # Errors
    /// [`Error::Server`]: it is gone. [`Error::Machine`]: its files or device cannot be looked at.
    pub(crate) fn start(running: &'a Running) -> Result<Self> {
        let files = running.cached()?;
        // Where it may not be begun anew, the maximum is that since the server's start.
        drop(running.watched().map(|watched| watched.forget_rss_max()));
        Ok(Self {
            running,
            cached_at_start_bytes: files.and_then(|files| files.cached_bytes),
            counters: running.counters()?,
            device: device_bytes(running)?,
            machine_secs: machine_cpu_secs()?,
            // Last, and first at the end: nothing that is done here is the server's.
            cpu: running.watched().map(|watched| watched.cpu_time()).transpose()?,
        })
    }

    /// Looks again, after a load of `bytes` of data in `operations`, and adds the differences.
    /// Largest values are those of the seconds in the measurement, and of the moment.
    ///
    /// # Errors
    /// Those of [`Meter::start`].
    pub(crate) fn stop(
        self,
        bytes: u64,
        operations: u64,
        measurement: &mut Measurement,
    ) -> Result<()> {
        let watched = self.running.watched();
        let cpu = watched.map(|watched| watched.cpu_time()).transpose()?;
        let machine_secs = machine_cpu_secs()? - self.machine_secs;
        let figures = &mut measurement.figures;
        if let (Some(before), Some(now)) = (&self.cpu, &cpu) {
            let cpu = now.since(before);
            figures.insert(Figure::ServerUsPerOperation, per(cpu.total() * 1e6, operations));
            if bytes > 0 {
                figures.insert(Figure::ServerUserSecsPerGib, per_gib(cpu.user, bytes));
                figures.insert(Figure::ServerSystemSecsPerGib, per_gib(cpu.system, bytes));
            }
            let generator = figures.get(&Figure::GeneratorUsPerOperation).copied();
            if let Some(generator) = generator.filter(|_| cpu.total() > 0.0) {
                let generator_secs = generator * as_f64(operations) / 1e6;
                figures.insert(Figure::GeneratorToServer, generator_secs / cpu.total());
            }
        }
        if bytes > 0 {
            figures.insert(Figure::MachineSecsPerGib, per_gib(machine_secs, bytes));
        }
        if let (Some(before), Some(now)) = (self.device, device_bytes(self.running)?) {
            let moved = now.since(&before);
            figures.insert(Figure::DeviceReadMib, mib(moved.read));
            figures.insert(Figure::DeviceWrittenMib, mib(moved.written));
        }
        if let Some(cached) = self.cached_at_start_bytes {
            figures.insert(Figure::CachedAtStartMib, mib(cached));
        }
        self.note_memory(measurement)?;
        measurement.counters = grown(&self.counters, self.running.counters()?);
        Ok(())
    }

    fn note_memory(&self, measurement: &mut Measurement) -> Result<()> {
        let Some(watched) = self.running.watched() else { return Ok(()) };
        let look = watched.look()?;
        let seconds = &measurement.seconds;
        let caches = seconds.iter().filter_map(|second| second.page_cache_bytes);
        let cache = caches.chain(look.page_cache_bytes).max();
        let dirty = seconds.iter().filter_map(|second| second.dirty_bytes);
        let dirty = dirty.chain(look.dirty_bytes).max();
        // Of one second, which is as near to one moment as is looked.
        let held = seconds.iter().filter_map(|second| {
            Some(second.page_cache_bytes?.saturating_add(second.server_rss_bytes?))
        });
        let now = look.page_cache_bytes.map(|cache| cache.saturating_add(look.rss_bytes));
        let held = held.chain(now).max();
        let figures = &mut measurement.figures;
        figures.insert(Figure::ServerRssMibMax, mib(watched.rss_bytes_max()?));
        let found = [
            (Figure::PageCacheMibMax, cache),
            (Figure::DirtyMibMax, dirty),
            (Figure::HeldMibMax, held),
        ];
        figures.extend(found.into_iter().filter_map(|(figure, bytes)| Some((figure, mib(bytes?)))));
        Ok(())
    }
}

fn device_bytes(running: &Running) -> Result<Option<DeviceBytes>> {
    running.device().map(|device| device.bytes()).transpose()
}

/// How much each counter has grown, without those that have not.
fn grown(before: &BTreeMap<String, u64>, now: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let by = |(name, value): (String, u64)| {
        let by = value.checked_sub(before.get(&name).copied().unwrap_or(0))?;
        (by > 0).then_some((name, by))
    };
    now.into_iter().filter_map(by).collect()
}

/// `total` for each of `count`.
fn per(total: f64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { total / as_f64(count) }
}

fn per_gib(secs: f64, bytes: u64) -> f64 {
    secs * 1024.0 / mib(bytes)
}

/// Bytes as MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    as_f64(bytes) / as_f64(1 << 20)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_grew_are_told() {
        let map = |pairs: &[(&str, u64)]| {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
        };
        let before = map(&[("calls", 5), ("connections", 4), ("open_files", 9)]);
        let now = map(&[("calls", 9), ("connections", 4), ("open_files", 3), ("reads", 2)]);
        assert_eq!(grown(&before, now), map(&[("calls", 4), ("reads", 2)]));
    }

    #[test]
    fn costs_are_for_each_gib_or_operation() {
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value}");
        close(per_gib(0.5, 512 << 20), 1.0);
        close(per(1.0, 0), 0.0);
        close(per(1.0, 4), 0.25);
    }
}
