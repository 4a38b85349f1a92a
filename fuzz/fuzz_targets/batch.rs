//! The body of a request to `/v1/batch`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::batch(bytes));
