//! A message for Envoy's rate limit service.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::rate_limit(bytes));
