//! Socket buffers that the kernel has not freed yet.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Frees the socket buffers whose readers are done with them.
///
/// A buffer that one CPU allocated and another has read is freed when the first receives a packet
/// (`skb_attempt_defer_free`, Linux 5.19). Until then the pages that a READ reply was spliced from
/// are in use, and are not dropped from the page cache.
pub fn free_socket_buffers() -> io::Result<()> {
    let own = sched_getaffinity(None)?;
    let freed = (0..CpuSet::MAX_CPU).filter(|&cpu| own.is_set(cpu)).try_for_each(receive_on);
    sched_setaffinity(None, &own)?;
    freed
}

/// Has a CPU receive a packet. Leaves the thread there.
fn receive_on(cpu: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(socket.local_addr()?)?;
    // The packet is received before this returns, in the context of the sender.
    socket.send(&[0])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_left_on_the_cpus_that_it_had() {
        let before = sched_getaffinity(None).unwrap();
        free_socket_buffers().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
