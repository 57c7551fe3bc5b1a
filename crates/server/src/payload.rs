//! Data on its way through the server.

pub(crate) use io::{Payload, WriteData};
