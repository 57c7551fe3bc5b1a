//! How slow a network or a device is to be, as options of a command.

use std::fmt;

use super::quantity::{Delay, Rate};

/// A slow network between client and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct NetworkLimits {
    /// Delay every packet between client and server, each way: 5ms, 100us
    #[arg(id = "net_delay", long = "net-delay", value_name = "TIME")]
    pub delay: Option<Delay>,
    /// Limit the rate between client and server, each way: 100mbit, 1gbit, 10MiB/s
    #[arg(id = "net_rate", long = "net-rate", value_name = "RATE")]
    pub rate: Option<Rate>,
}

impl NetworkLimits {
    /// Whether there is anything to be slowed down.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for NetworkLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delay = self.delay.map(|delay| format!("delay {delay}"));
        let rate = self.rate.map(|rate| format!("rate {rate}"));
        write_list(f, [delay, rate])
    }
}

/// A slow device under the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct DeviceLimits {
    /// Limit the rates at which the device reads and writes: 100MiB/s; with cgroups version 1 only
    /// with --scratch
    #[arg(id = "device_rate", long = "device-rate", value_name = "RATE")]
    pub rate: Option<Rate>,
    /// Limit the read and the write requests of the device per second; with cgroups version 1 only
    /// with --scratch
    #[arg(
        long = "device-iops",
        value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub operations_per_sec: Option<u32>,
    /// Delay every request to the device (dm-delay, whole milliseconds): 5ms
    #[arg(id = "device_delay", long = "device-delay", value_name = "TIME")]
    pub delay: Option<Delay>,
}

impl DeviceLimits {
    /// Whether there is anything to be slowed down.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether there is a bound on how much is done, which cgroups keep.
    pub(crate) fn bounds_throughput(&self) -> bool {
        self.rate.is_some() || self.operations_per_sec.is_some()
    }
}

impl fmt::Display for DeviceLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate.map(|rate| format!("rate {rate}"));
        let operations = self.operations_per_sec.map(|count| format!("{count} requests/s"));
        let delay = self.delay.map(|delay| format!("delay {delay}"));
        write_list(f, [rate, operations, delay])
    }
}

fn write_list<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    parts: [Option<String>; N],
) -> fmt::Result {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    f.write_str(&parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_shown_in_words() {
        let mut limits = NetworkLimits::default();
        assert!(limits.is_none());
        assert_eq!(limits.to_string(), "");
        limits.delay = Some("5ms".parse().unwrap());
        assert_eq!(limits.to_string(), "delay 5 ms");
        limits.rate = Some("1gbit".parse().unwrap());
        assert_eq!(limits.to_string(), "delay 5 ms, rate 1 gbit");
        assert!(!limits.is_none());
    }

    #[test]
    fn limits_of_a_device_are_shown_in_words() {
        let limits = DeviceLimits {
            rate: "10MiB/s".parse().ok(),
            operations_per_sec: Some(500),
            delay: "5ms".parse().ok(),
        };
        assert_eq!(limits.to_string(), "rate 10 MiB/s, 500 requests/s, delay 5 ms");
        assert!(limits.bounds_throughput() && !limits.is_none());
        let only_late = DeviceLimits { delay: limits.delay, ..DeviceLimits::default() };
        assert!(!only_late.bounds_throughput() && !only_late.is_none());
    }
}
