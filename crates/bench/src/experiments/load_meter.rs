//! The cost of a load for a subject: processor time, memory, page cache and device, measured before
//! and after.

use std::collections::BTreeMap;

use super::course::secs_per_gib;
use super::meter::{Meter, Spent};
use crate::Result;
use crate::figure::Figure;
use crate::numeral::as_f64;
use crate::numeral::mib;
use crate::record::Measurement;
use crate::rig::{DeviceTraffic, machine_cpu_secs};
use crate::subject::Running;

/// The measurement before the load.
pub(super) struct LoadMeter<'a> {
    running: &'a Running,
    cached_at_start_bytes: Option<u64>,
    meter: Meter<'a>,
    device: Option<DeviceTraffic>,
    machine_secs: f64,
}

impl<'a> LoadMeter<'a> {
    /// Takes the first measurement.
    ///
    /// # Errors
    /// [`crate::Error::Server`]: it is gone. [`crate::Error::Machine`]: its files or device cannot
    /// be examined.
    pub(super) fn start(running: &'a Running) -> Result<Self> {
        let files = running.cached()?;
        Ok(Self {
            running,
            cached_at_start_bytes: files.and_then(|files| files.cached_bytes),
            meter: Meter::start(running.watched(), Box::new(|| running.counters()))?,
            // After the meter, and before it at the end: it waits for counters, and meanwhile
            // machine and device go on.
            device: device_traffic(running)?,
            machine_secs: machine_cpu_secs()?,
        })
    }

    /// Looks again, after a load of `bytes` of data in `operations`, and adds the differences.
    /// Largest values are those of the seconds in the measurement, and of the moment.
    ///
    /// # Errors
    /// Those of [`LoadMeter::start`].
    pub(super) fn end(
        self,
        bytes: u64,
        operations: u64,
        measurement: &mut Measurement,
    ) -> Result<()> {
        let machine_secs = machine_cpu_secs()? - self.machine_secs;
        let device = device_traffic(self.running)?;
        self.note_memory(measurement)?;
        let spent = self.meter.end()?;
        let figures = &mut measurement.figures;
        note_server(&spent, bytes, operations, figures);
        if bytes > 0 {
            figures.insert(Figure::MachineSecsPerGib, secs_per_gib(machine_secs, bytes));
        }
        if let (Some(before), Some(now)) = (self.device, device) {
            let moved = now.since(&before);
            figures.insert(Figure::DeviceReadMib, mib(moved.read));
            figures.insert(Figure::DeviceWrittenMib, mib(moved.written));
            figures.insert(Figure::DeviceReads, as_f64(moved.reads));
            figures.insert(Figure::DeviceWrites, as_f64(moved.writes));
        }
        if let Some(cached) = self.cached_at_start_bytes {
            figures.insert(Figure::CachedAtStartMib, mib(cached));
        }
        if let Some(bytes) = spent.server_rss_bytes_max {
            figures.insert(Figure::ServerRssMibMax, mib(bytes));
        }
        measurement.counters = spent.counters;
        Ok(())
    }

    fn note_memory(&self, measurement: &mut Measurement) -> Result<()> {
        let look = self.running.look()?;
        let seconds = &measurement.seconds;
        let caches = seconds.iter().filter_map(|second| second.page_cache_bytes);
        let cache = caches.chain(look.page_cache_bytes).max();
        let dirty = seconds.iter().filter_map(|second| second.dirty_bytes);
        let dirty = dirty.chain(look.dirty_bytes).max();
        // Of one second, the shortest interval that is observed.
        let held = seconds.iter().filter_map(|second| {
            Some(second.page_cache_bytes?.saturating_add(second.server_rss_bytes?))
        });
        let now = look.page_cache_bytes.zip(look.server_rss_bytes);
        let held = held.chain(now.map(|(cache, rss)| cache.saturating_add(rss))).max();
        let figures = &mut measurement.figures;
        let found = [
            (Figure::PageCacheMibMax, cache),
            (Figure::DirtyMibMax, dirty),
            (Figure::HeldMibMax, held),
        ];
        figures.extend(found.into_iter().filter_map(|(figure, bytes)| Some((figure, mib(bytes?)))));
        Ok(())
    }
}

fn device_traffic(running: &Running) -> Result<Option<DeviceTraffic>> {
    running.device().map(|device| device.traffic()).transpose()
}

/// The cost for the server of `bytes` of data in `operations`.
fn note_server(spent: &Spent, bytes: u64, operations: u64, figures: &mut BTreeMap<Figure, f64>) {
    let Some(server) = spent.server else { return };
    if operations > 0 {
        let operations = as_f64(operations);
        figures.insert(Figure::ServerUsPerOperation, server.total() * 1e6 / operations);
        if let Some(switches) = spent.server_switches {
            figures.insert(Figure::ServerSwitchesPerOperation, as_f64(switches) / operations);
        }
    }
    if bytes > 0 {
        figures.extend(spent.server_per_gib(bytes));
    }
    let generator = figures.get(&Figure::GeneratorUsPerOperation).copied();
    if let Some(generator) = generator.filter(|_| server.total() > 0.0) {
        let generator_secs = generator * as_f64(operations) / 1e6;
        figures.insert(Figure::GeneratorToServer, generator_secs / server.total());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::CpuSecs;

    #[test]
    fn costs_are_for_each_gib() {
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value}");
        close(secs_per_gib(0.5, 512 << 20), 1.0);
    }

    #[test]
    fn without_operations_there_is_no_cost_of_one() {
        let spent = Spent {
            server: Some(CpuSecs { user: 0.5, system: 0.5 }),
            server_switches: Some(7),
            ..Spent::default()
        };
        let mut figures = BTreeMap::new();
        note_server(&spent, 0, 0, &mut figures);
        assert_eq!(figures, BTreeMap::new());
        note_server(&spent, 0, 4, &mut figures);
        let expected =
            [(Figure::ServerUsPerOperation, 250_000.0), (Figure::ServerSwitchesPerOperation, 1.75)];
        assert_eq!(figures, expected.into());
    }
}
