//! Datagrams that are answered from the address to which they were sent. On a machine with several
//! the kernel may choose another, from which a connected socket of a client takes nothing.

use std::io::{IoSlice, IoSliceMut, Result};
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd as _;

use nix::cmsg_space;
use nix::libc::{in_pktinfo, in6_pktinfo};
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A socket for calls and their answers.
pub(super) struct Datagrams {
    socket: UdpSocket,
    /// Room for what the kernel reports of one datagram.
    control: Vec<u8>,
}

/// The two ends between which a datagram came.
pub(super) struct Caller {
    address: Option<SockaddrStorage>,
    called: Option<Called>,
}

/// The address of this machine to which a datagram was sent. An IPv4 one is mapped if the socket is
/// of IPv6 (ipv6(7)).
enum Called {
    V4(in_pktinfo),
    V6(in6_pktinfo),
}

impl Datagrams {
    /// Of a socket that does not block.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) fn of(socket: std::net::UdpSocket) -> Result<Self> {
        if socket.local_addr()?.is_ipv4() {
            setsockopt(&socket, Ipv4PacketInfo, &true)?;
        } else {
            setsockopt(&socket, Ipv6RecvPacketInfo, &true)?;
        }
        let control = cmsg_space!(in_pktinfo, in6_pktinfo);
        Ok(Self { socket: UdpSocket::from_std(socket)?, control })
    }

    /// Waits for a datagram and returns its length in `into`.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub(super) async fn receive(&mut self, into: &mut [u8]) -> Result<(usize, Caller)> {
        let Self { socket, control } = self;
        let receive = || {
            let mut parts = [IoSliceMut::new(into)];
            let room = Some(control.as_mut_slice());
            let received = recvmsg(socket.as_raw_fd(), &mut parts, room, MsgFlags::empty())?;
            let called = received.cmsgs().ok().and_then(|mut all| all.find_map(Called::of));
            Ok((received.bytes, Caller { address: received.address, called }))
        };
        socket.async_io(Interest::READABLE, receive).await
    }

    /// Sends an answer to a datagram.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub(super) async fn answer(&self, caller: &Caller, answer: &[u8]) -> Result<usize> {
        let control = caller.called.as_ref().map(Called::message);
        match self.send(caller, answer, control.as_slice()).await {
            Ok(sent) => Ok(sent),
            // The address is one of broadcasts, or has gone: the kernel chooses another.
            Err(_) => self.send(caller, answer, &[]).await,
        }
    }

    async fn send(
        &self,
        caller: &Caller,
        answer: &[u8],
        control: &[ControlMessage<'_>],
    ) -> Result<usize> {
        let send = || {
            let (fd, parts) = (self.socket.as_raw_fd(), [IoSlice::new(answer)]);
            Ok(sendmsg(fd, &parts, control, MsgFlags::empty(), caller.address.as_ref())?)
        };
        self.socket.async_io(Interest::WRITABLE, send).await
    }
}

impl Called {
    fn of(message: ControlMessageOwned) -> Option<Self> {
        match message {
            // Not the interface: the answer may have to leave through another.
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                Some(Self::V4(in_pktinfo { ipi_ifindex: 0, ..info }))
            }
            ControlMessageOwned::Ipv6PacketInfo(mut info) => {
                // A link-local address is one of the interface.
                if !Ipv6Addr::from(info.ipi6_addr.s6_addr).is_unicast_link_local() {
                    info.ipi6_ifindex = 0;
                }
                Some(Self::V6(info))
            }
            _ => None,
        }
    }

    fn message(&self) -> ControlMessage<'_> {
        match self {
            Self::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Self::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }
}
