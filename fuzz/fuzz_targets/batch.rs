//! The body of several questions over HTTP.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::batch(bytes));
