//! How far a copy has come, on a terminal.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::console::Console;

/// A line on stderr with bytes, speed and time to go; none where stderr is no terminal. Cheap to
/// clone.
#[derive(Clone)]
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shown while stderr is a terminal and `wanted`.
    pub(super) fn new(wanted: bool, console: &Console) -> Self {
        if !wanted || !io::stderr().is_terminal() {
            return Self::hidden();
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(TEMPLATE).expect("the template is well formed");
        bar.set_style(style.progress_chars("=> "));
        bar.enable_steady_tick(TICK);
        console.step_aside(bar.clone());
        Self { bar }
    }

    /// A line that is not shown.
    pub(super) fn hidden() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// A file of `bytes` was found.
    pub(super) fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// So many bytes have come from the source, or were there already.
    pub(super) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Takes the line away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

const TEMPLATE: &str = "{bar:24} {percent:>3}% {binary_bytes} of {binary_total_bytes}, \
                        {binary_bytes_per_sec}, {eta} to go";
const TICK: Duration = Duration::from_millis(200);
