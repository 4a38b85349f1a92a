//! A document for `/json` of envoyproxy/ratelimit.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::json(bytes));
