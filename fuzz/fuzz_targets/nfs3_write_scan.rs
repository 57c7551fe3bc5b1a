#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proto::fuzz::nfs3_write_scan(bytes));
