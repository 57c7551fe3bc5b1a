//! How slow a network or a device is to be, as options of a command.

use std::fmt;

use super::quantity::{Delay, Rate};

/// A slow network between client and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct NetworkLimits {
    /// Delay every packet between client and server, each way: 5ms, 100us
    #[arg(long = "net-delay", value_name = "TIME")]
    pub delay: Option<Delay>,
    /// Bound the rate between client and server, each way: 100mbit, 1gbit, 10MiB/s
    #[arg(long = "net-rate", value_name = "RATE")]
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
    fn limits_are_told_in_words() {
        let mut limits = NetworkLimits::default();
        assert!(limits.is_none());
        assert_eq!(limits.to_string(), "");
        limits.delay = Some("5ms".parse().unwrap());
        assert_eq!(limits.to_string(), "delay 5 ms");
        limits.rate = Some("1gbit".parse().unwrap());
        assert_eq!(limits.to_string(), "delay 5 ms, rate 1 gbit");
        assert!(!limits.is_none());
    }
}
