//! Every parser of client input reads malformed bytes. `cargo xtask fuzz` runs longer,
//! guided by coverage.

use std::fs;
use std::path::Path;

use fastrand::Rng;
use tidegate_server::fuzzing;

/// The longest input that is made.
const MAX_BYTES: usize = 4_096;

/// Tears seeds apart, repeats them and puts them together anew.
struct Mutator {
    rng: Rng,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    fn new(parser: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(parser);
        let files = fs::read_dir(folder).expect("the parser has seeds").filter_map(Result::ok);
        let mut seeds: Vec<Vec<u8>> =
            files.map(|file| fs::read(file.path()).expect("it can be read")).collect();
        seeds.sort();
        assert!(!seeds.is_empty(), "{parser} has seeds");
        Self { rng: Rng::with_seed(5), seeds }
    }

    fn seed(&mut self) -> Vec<u8> {
        self.rng.choice(&self.seeds).expect("not empty").clone()
    }

    fn next(&mut self) -> Vec<u8> {
        let mut bytes = self.seed();
        for _ in 0..self.rng.usize(0..6) {
            let at = self.rng.usize(..=bytes.len());
            match self.rng.u8(0..6) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.rng.u8(..)),
                2 => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << self.rng.u8(0..8);
                    }
                }
                3 => {
                    let other = self.seed();
                    let from = self.rng.usize(..=other.len());
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[from..]);
                }
                4 => {
                    let piece = bytes[at..].to_vec();
                    bytes.extend_from_slice(&piece);
                }
                _ => {
                    let odd: [&[u8]; 6] = [
                        b"-1",
                        b"9223372036854775807",
                        b"\xff\xff\xff\xff",
                        b"\0",
                        b"\r\n",
                        b"1e999",
                    ];
                    let piece = odd[self.rng.usize(..odd.len())];
                    bytes.splice(at..at, piece.iter().copied());
                }
            }
            bytes.truncate(MAX_BYTES);
        }
        bytes
    }
}

fn meet(parser: &str, parse: fn(&[u8])) {
    let mut mutator = Mutator::new(parser);
    for _ in 0..20_000 {
        let bytes = mutator.next();
        let met = std::panic::catch_unwind(|| parse(&bytes));
        assert!(met.is_ok(), "{parser} panics at {}", bytes.escape_ascii());
    }
}

#[test]
fn a_client_of_redis_may_send_anything() {
    meet("redis", fuzzing::redis);
}

#[test]
fn a_question_in_json_may_be_anything() {
    meet("question", fuzzing::question);
}

#[test]
fn a_message_of_envoy_may_be_anything() {
    meet("rate_limit", fuzzing::rate_limit);
}

#[test]
fn a_document_of_envoy_may_be_anything() {
    meet("json", fuzzing::json);
}

#[test]
fn a_call_of_grpc_may_bring_anything() {
    meet("call", fuzzing::call);
}

#[test]
fn a_proxy_may_hold_anything() {
    meet("forward", fuzzing::forward);
}

#[test]
fn a_batch_may_be_anything() {
    meet("batch", fuzzing::batch);
}

#[test]
fn a_change_may_be_anything() {
    meet("change", fuzzing::change);
}

#[test]
fn a_client_of_the_gateway_may_send_anything() {
    meet("requests", fuzzing::requests);
}

#[test]
fn a_service_behind_the_gateway_may_send_anything() {
    meet("responses", fuzzing::responses);
}

#[test]
fn a_policy_file_may_be_anything() {
    meet("policy", fuzzing::policy);
}

/// Every parser that fuzzers know has seeds and a test here, and the other way round.
#[test]
fn no_parser_is_left_out() {
    let names = |folder: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz").join(folder);
        let files = fs::read_dir(folder).expect("it is there").filter_map(Result::ok);
        let paths = files.map(|file| file.path());
        let names = paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let here = include_str!("odd_bytes.rs");
    for name in names("fuzz_targets") {
        assert!(here.contains(&format!("meet(\"{name}\"")), "{name} has no test here");
    }
    assert_eq!(names("fuzz_targets"), names("seeds"));
}
