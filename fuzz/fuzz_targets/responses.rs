//! What the service behind the gateway sends: the client of the pool beside an independent reader.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::responses(bytes));
