//! The figures that measurements have: names, units, and which way is better.

use serde::{Deserialize, Serialize};

/// Which way a figure has to go to be an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// As rates.
    Higher,
    /// As times and costs.
    Lower,
    /// A circumstance.
    Neither,
}

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident: $title:literal, $unit:literal, $better:ident;)*) => {
        /// A figure; in records its name is in snake case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Figure {
            $($(#[$doc])* $name,)*
        }

        impl Figure {
            /// All of them, in the order in which tables show them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name in tables and plots, without the unit.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// The unit; empty for ratios and counts.
            #[must_use]
            pub const fn unit(self) -> &'static str {
                match self { $(Self::$name => $unit,)* }
            }

            /// Title and unit: `throughput, MiB/s`.
            #[must_use]
            pub fn with_unit(self) -> String {
                let parts = [self.title(), self.unit()].map(str::to_owned);
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
            }

            /// Which way is better.
            #[must_use]
            pub const fn better(self) -> Better {
                match self { $(Self::$name => Better::$better,)* }
            }
        }
    };
}

impl Figure {
    /// Whether it grows with the number of calls of a load, as what it moves and leaves behind, and
    /// the time until that is durable.
    #[must_use]
    pub(crate) const fn is_sum(self) -> bool {
        matches!(
            self,
            Self::Secs
                | Self::CommitSecs
                | Self::PageCacheMibMax
                | Self::DirtyMibMax
                | Self::HeldMibMax
                | Self::CachedAtEndMib
                | Self::DeviceReadMib
                | Self::DeviceWrittenMib
                | Self::DeviceReads
                | Self::DeviceWrites
        )
    }
}

figures! {
    /// Data moved, by the time until all of it was durable where it was written.
    MibPerSec: "throughput", "MiB/s", Higher;
    /// Calls, records or entries, whichever the experiment counts, by the time.
    OperationsPerSec: "operations", "/s", Higher;
    /// From the first call to the end of the last.
    Secs: "time", "s", Lower;
    /// After the last WRITE, until COMMIT was answered.
    CommitSecs: "commit", "s", Lower;
    /// The slowest whole second.
    LowestMibPerSec: "slowest second", "MiB/s", Higher;
    /// Rate of the last quarter of the seconds by that of the first.
    LastToFirst: "last quarter to first", "", Higher;
    /// From sending a call until its reply was read, as all the latencies.
    LatencyP50Us: "latency p50", "us", Lower;
    /// 95 of 100 calls took less.
    LatencyP95Us: "latency p95", "us", Lower;
    /// 99 of 100.
    LatencyP99Us: "latency p99", "us", Lower;
    /// 999 of 1,000.
    LatencyP999Us: "latency p99.9", "us", Lower;
    /// The slowest call.
    LatencyMaxUs: "latency max", "us", Lower;
    /// User and system time of the server process.
    ServerSecsPerGib: "server CPU", "s/GiB", Lower;
    /// User time of the server process: its part of the sum by the kernel's samples, in ticks of
    /// 10 ms as a rule, as the system time.
    ServerUserSecsPerGib: "server user", "s/GiB", Lower;
    /// System time of the server process.
    ServerSystemSecsPerGib: "server system", "s/GiB", Lower;
    /// User and system time of the server process.
    ServerUsPerOperation: "server CPU", "us/op", Lower;
    /// Context switches of the server's threads: how often one of them was woken for a call, or
    /// lost its processor.
    ServerSwitchesPerOperation: "server switches", "/op", Lower;
    /// User and system time of what makes the load.
    GeneratorSecsPerGib: "generator CPU", "s/GiB", Neither;
    /// User and system time of what makes the load.
    GeneratorUsPerOperation: "generator CPU", "us/op", Neither;
    /// Of the processor time of generator and server, by the server's alone.
    GeneratorToServer: "generator CPU by server CPU", "", Neither;
    /// Processor time of a call for what makes the load, against a null server, by the
    /// server's.
    GeneratorAloneToServer: "generator alone by server CPU", "", Neither;
    /// User time of this process, which is itself what is measured.
    OwnUserSecsPerGib: "own user", "s/GiB", Lower;
    /// System time of this process, which is itself what is measured.
    OwnSystemSecsPerGib: "own system", "s/GiB", Lower;
    /// All processors, kernel threads included.
    MachineSecsPerGib: "machine CPU", "s/GiB", Lower;
    /// Largest resident memory of the server process.
    ServerRssMibMax: "server RSS", "MiB", Lower;
    /// Page cache at its most: of the server's memory cgroup, else what the files occupy.
    PageCacheMibMax: "page cache", "MiB", Lower;
    /// Page cache that was dirty or in write-back, at its most.
    DirtyMibMax: "dirty", "MiB", Lower;
    /// Page cache and resident memory of the server at one moment, at its most.
    HeldMibMax: "page cache + RSS", "MiB", Lower;
    /// Data that the device under the files read.
    DeviceReadMib: "device read", "MiB", Lower;
    /// Data that the device under the files wrote.
    DeviceWrittenMib: "device written", "MiB", Lower;
    /// Requests by which the device read: during a WRITE, pages that were read back.
    DeviceReads: "device reads", "", Lower;
    /// Requests by which the device wrote.
    DeviceWrites: "device writes", "", Lower;
    /// Data of the files that the load was given: a load of limited time writes no more of them
    /// than it has time for.
    GivenMib: "data given", "MiB", Neither;
    /// Page cache that the files occupied before the first call.
    CachedAtStartMib: "cached at start", "MiB", Neither;
    /// Page cache that the files occupied when all was done, and durable.
    CachedAtEndMib: "cached at end", "MiB", Lower;
    /// Data that was compared with what has to be there.
    VerifiedMib: "verified", "MiB", Neither;
    /// Data that was not what has to be there.
    WrongBytes: "wrong", "B", Lower;
    /// Calls that failed.
    Errors: "errors", "", Lower;
    /// Calls that the server put off, and that were made again.
    PutOff: "put off", "", Lower;
    /// READDIR and READDIRPLUS, or WRITE: the calls that the experiment is about.
    Calls: "calls", "", Lower;
    /// Data of a call on average.
    CallKib: "size of a call", "KiB", Higher;
    /// Results of the replies, without their heads.
    RepliesMib: "replies", "MiB", Lower;
    /// Listings begun anew, at cookie 0.
    CallsFromStart: "calls from cookie 0", "", Lower;
    /// Entries that were returned.
    Entries: "entries", "", Neither;
    /// Entries that were returned twice, or stayed throughout and were not returned.
    WrongEntries: "wrong entries", "", Lower;
    /// Entries that another client added or removed meanwhile.
    Changes: "changes meanwhile", "", Neither;
    /// Cost of an entry in the last tenth of a listing by that in the first.
    LastTenthToFirst: "last tenth to first", "", Lower;
    /// WRITEs that came after one of a higher offset.
    OutOfOrder: "out of order", "", Lower;
    /// Rate of the slowest client by that of the fastest.
    Fairness: "slowest by fastest client", "", Higher;
    /// Rate of a client with others beside it, by its rate alone.
    BesideOthers: "beside others by alone", "", Higher;
}
