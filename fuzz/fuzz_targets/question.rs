//! The body of a request to `/v1/check`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::question(bytes));
