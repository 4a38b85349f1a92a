//! The bytes of a connection to the gateway: the head guard and hyper beside an independent reader.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_server::fuzzing::requests(bytes));
