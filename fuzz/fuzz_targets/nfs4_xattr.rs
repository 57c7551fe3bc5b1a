#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proto::fuzz::nfs4_xattr(bytes));
