//! Random bytes of the kernel.

/// Eight bytes from the kernel's random source.
pub(crate) fn random_u64() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    random_bytes(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Fills `bytes` from the kernel's random source.
pub(crate) fn random_bytes(bytes: &mut [u8]) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled +=
            rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes[filled..], flags))?;
    }
    Ok(())
}
