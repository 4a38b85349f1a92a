//! A call that changes settings or keys on the admin API.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::change(bytes));
