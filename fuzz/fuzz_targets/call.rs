//! What a call of gRPC brings beside questions about limits.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::call(bytes));
