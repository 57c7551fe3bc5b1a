//! Bytes to types and back for ONC RPC, PORTMAP, MOUNT and NFS, without I/O.
//!
//! Nothing here opens a socket, reads a clock or keeps state. Decoding borrows from the record it
//! is given and never allocates; encoding appends to a [`xdr::Writer`] that the caller owns. Every
//! type goes both ways, so that a server and a client share one description of the wire.
//!
//! A peer's bytes can only ever produce a [`xdr::DecodeError`], never a panic, and no wire length
//! is believed before it was checked against the bytes that are left and the bound of its type.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod fuzz;
pub mod mount3;
pub mod nfs3;
pub mod nfs4;
pub mod oncrpc;
pub mod portmap;
pub mod xdr;
