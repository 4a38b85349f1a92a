//! A gRPC call apart from its rate limit request: frames, deadline and reflection.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::call(bytes));
