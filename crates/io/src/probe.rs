//! Static probes (USDT) that bpftrace, perf and SystemTap attach to in a running process.
//!
//! A probe is a `nop` and a note in the section `.note.stapsdt` that names it and the registers of
//! its arguments, in the form of `<sys/sdt.h>`. All probes share one semaphore, which the kernel
//! increments for each attached one: so one load shows whether any argument is worth computing.

use std::sync::atomic::{AtomicU16, Ordering};

/// The semaphore of all probes. The kernel writes to it, through the file offset that the notes
/// name.
// SAFETY: nothing in the process relies on what else is in this section, which holds the semaphores
// of probes alone.
#[unsafe(link_section = ".probes")]
#[doc(hidden)]
pub static ATTACHED: AtomicU16 = AtomicU16::new(0);

/// Whether anything is attached to a probe of this process: one relaxed load.
#[inline]
#[must_use]
pub fn is_attached() -> bool {
    ATTACHED.load(Ordering::Relaxed) != 0
}

/// A probe of the provider `spillway`: `probe!(name, argument, ...)`, with one to six arguments of
/// type `u64`: bpftrace takes no more.
#[macro_export]
macro_rules! probe {
    ($name:ident, $($argument:expr),+ $(,)?) => {{
        // The notes are read in the syntax of AT&T.
        #[cfg(target_arch = "x86_64")]
        $crate::probe!(@emit [att_syntax] $name, $("8@{}", $argument,)+);
        #[cfg(not(target_arch = "x86_64"))]
        $crate::probe!(@emit [] $name, $("8@{}", $argument,)+);
    }};
    (@emit [$($syntax:ident)?] $name:ident,
        $first:literal, $argument:expr, $($form:literal, $more:expr,)*) => {
        // SAFETY: the code is a `nop`. It reads the registers of its operands, and writes to
        // neither memory nor stack nor flags; the notes are data that is not loaded.
        unsafe {
            ::core::arch::asm!(
                concat!(
                    "990: nop\n",
                    ".pushsection .note.stapsdt, \"?\", \"note\"\n",
                    ".balign 4\n",
                    ".4byte 992f-991f, 994f-993f, 3\n",
                    "991: .asciz \"stapsdt\"\n",
                    "992: .balign 4\n",
                    "993: .8byte 990b\n",
                    ".8byte _.stapsdt.base\n",
                    ".8byte {semaphore}\n",
                    ".asciz \"spillway\"\n",
                    ".asciz \"", stringify!($name), "\"\n",
                    ".asciz \"", $first, $(" ", $form,)* "\"\n",
                    "994: .balign 4\n",
                    ".popsection\n",
                    ".ifndef _.stapsdt.base\n",
                    ".pushsection .stapsdt.base, \"aGR\", \"progbits\", .stapsdt.base, comdat\n",
                    ".weak _.stapsdt.base\n",
                    ".hidden _.stapsdt.base\n",
                    "_.stapsdt.base: .space 1\n",
                    ".size _.stapsdt.base, 1\n",
                    ".popsection\n",
                    ".endif",
                ),
                in(reg) { let value: u64 = $argument; value },
                $(in(reg) { let value: u64 = $more; value },)*
                semaphore = sym $crate::probe::ATTACHED,
                options(readonly, nostack, preserves_flags $(, $syntax)?),
            );
        }
    };
}
