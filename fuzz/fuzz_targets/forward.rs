//! A request that a proxy forwards to `/v1/auth`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::forward(bytes));
