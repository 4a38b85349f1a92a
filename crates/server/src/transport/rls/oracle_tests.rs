//! Compares our codec of the protocol with an independent one that reads the proto files.

use std::path::Path;
use std::sync::LazyLock;

use fastrand::Rng;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage, Value};
use tidegate::policy::{Entry, MAX_DESCRIPTORS};

use super::request::{DescriptorInput, Override, RateLimitRequest};
use super::{MAX_ENTRIES, MAX_KEY, Refusal};

static PROTOCOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], [folder]);
    DescriptorPool::from_file_descriptor_set(files.expect("the files of the protocol")).unwrap()
});

pub(super) fn message(name: &str) -> MessageDescriptor {
    PROTOCOL.get_message_by_name(name).unwrap_or_else(|| panic!("no message {name}"))
}

pub(super) fn request() -> MessageDescriptor {
    message("envoy.service.ratelimit.v3.RateLimitRequest")
}

/// A request to compare, with owned texts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Model {
    domain: String,
    hits_addend: u32,
    descriptor_inputs: Vec<ModelSide>,
}

/// Entries, cost, whether it is returned, and the limit of the descriptor.
type ModelSide = (Vec<(String, String)>, Option<u64>, bool, Option<(u32, u32)>);

impl Model {
    fn of_ours(wire_request: &RateLimitRequest<'_>) -> Self {
        let descriptor_input = |(descriptor_input, entries): (&DescriptorInput, &[Entry<'_>])| {
            let entries =
                entries.iter().map(|entry| (entry.key.to_owned(), entry.value.to_owned()));
            let limit = |limit: Override| (limit.requests_per_unit, limit.unit);
            let limit = descriptor_input.limit.map(limit);
            (
                entries.collect(),
                descriptor_input.hits_addend,
                descriptor_input.is_negative_hits,
                limit,
            )
        };
        Self {
            domain: wire_request.domain.into(),
            hits_addend: wire_request.hits_addend,
            descriptor_inputs: wire_request.descriptor_inputs().map(descriptor_input).collect(),
        }
    }

    fn of_theirs(request: &DynamicMessage) -> Self {
        let descriptor_input = |descriptor_input: &Value| {
            let descriptor_input = descriptor_input.as_message().unwrap();
            let entries = list(descriptor_input, "entries").into_iter().map(|entry| {
                let entry = entry.as_message().unwrap();
                (text(entry, "key"), text(entry, "value"))
            });
            let hits = inner(descriptor_input, "hits_addend").map(|hits| number(&hits, "value"));
            let limit = inner(descriptor_input, "limit").map(|limit| {
                let count = number(&limit, "requests_per_unit");
                (count as u32, field(&limit, "unit").as_enum_number().unwrap() as u32)
            });
            let is_negative = field(descriptor_input, "is_negative_hits").as_bool().unwrap();
            (entries.collect(), hits, is_negative, limit)
        };
        Self {
            domain: text(request, "domain"),
            hits_addend: number(request, "hits_addend") as u32,
            descriptor_inputs: list(request, "descriptors").iter().map(descriptor_input).collect(),
        }
    }

    /// Whether it exceeds our bounds.
    fn is_too_much(&self) -> bool {
        self.descriptor_inputs.len() > MAX_DESCRIPTORS
            || self.descriptor_inputs.iter().any(|(entries, ..)| {
                entries.len() > MAX_ENTRIES || entries.iter().any(|(key, _)| key.len() > MAX_KEY)
            })
    }

    fn has_unknown_unit(&self) -> bool {
        let limits = self.descriptor_inputs.iter().filter_map(|(.., limit)| *limit);
        limits.into_iter().any(|(_, unit)| !(1..=7).contains(&unit))
    }
}

fn field(message: &DynamicMessage, name: &str) -> Value {
    message.get_field_by_name(name).expect("a field of the protocol").into_owned()
}

fn inner(message: &DynamicMessage, name: &str) -> Option<DynamicMessage> {
    let has = message.has_field_by_name(name);
    has.then(|| field(message, name).as_message().unwrap().clone())
}

fn list(message: &DynamicMessage, name: &str) -> Vec<Value> {
    field(message, name).as_list().unwrap().to_vec()
}

fn text(message: &DynamicMessage, name: &str) -> String {
    field(message, name).as_str().unwrap().to_owned()
}

fn number(message: &DynamicMessage, name: &str) -> u64 {
    let value = field(message, name);
    value.as_u64().or_else(|| value.as_u32().map(u64::from)).unwrap()
}

/// Sets some fields of a message and of the messages within it, at random: all fields of the
/// protocol occur.
fn fill(random: &mut Rng, message: &mut DynamicMessage) {
    for field in message.descriptor().fields() {
        let count = match () {
            () if field.is_list() => random.usize(..4),
            () => random.usize(..2),
        };
        let values: Vec<Value> = (0..count).map(|_| value(random, &field)).collect();
        if field.is_list() {
            message.set_field(&field, Value::List(values));
        } else if let Some(value) = values.into_iter().next() {
            message.set_field(&field, value);
        }
    }
}

fn value(random: &mut Rng, field: &prost_reflect::FieldDescriptor) -> Value {
    use prost_reflect::Kind;
    match field.kind() {
        Kind::String => Value::String((0..random.usize(..9)).map(|_| random.char(..)).collect()),
        Kind::Uint32 => Value::U32(random.u32(..) >> random.u32(..32)),
        Kind::Uint64 => Value::U64(random.u64(..) >> random.u32(..64)),
        Kind::Bool => Value::Bool(random.bool()),
        Kind::Enum(_) => Value::EnumNumber(random.i32(..8)),
        Kind::Message(inner) => {
            let mut message = DynamicMessage::new(inner);
            fill(random, &mut message);
            Value::Message(message)
        }
        other => panic!("no field of a request is a {other:?}"),
    }
}

/// Both codecs read the same, or both refuse, except for messages above our bounds.
fn agree(bytes: &[u8]) -> bool {
    let theirs = DynamicMessage::decode(request(), bytes).map(|read| Model::of_theirs(&read));
    let ours = RateLimitRequest::read(bytes);
    match (&ours, &theirs) {
        (Ok(ours), Ok(theirs)) => assert_eq!(Model::of_ours(ours), *theirs, "{bytes:?}"),
        (Err(_), Err(_)) => {}
        (Err(Refusal::TooMuch(_)), Ok(theirs)) => assert!(theirs.is_too_much(), "{bytes:?}"),
        (Err(_), Ok(theirs)) => assert!(theirs.has_unknown_unit(), "{ours:?} {theirs:?} {bytes:?}"),
        (Ok(ours), Err(theirs)) => panic!("{theirs}, but {ours:?} {bytes:?}"),
    }
    ours.is_ok()
}

pub(super) fn random_request(random: &mut Rng) -> Vec<u8> {
    let mut message = DynamicMessage::new(request());
    fill(random, &mut message);
    message.encode_to_vec()
}

#[test]
fn random_requests_are_read_as_by_the_other_codec() {
    let mut random = Rng::with_seed(1);
    let read = (0..20_000).filter(|_| agree(&random_request(&mut random))).count();
    assert!((5_000..20_000).contains(&read), "{read}");
}

#[test]
fn a_truncated_message_is_read_as_by_the_other_codec() {
    let mut random = Rng::with_seed(2);
    for _ in 0..300 {
        let bytes = random_request(&mut random);
        for end in 0..bytes.len() {
            agree(&bytes[..end]);
        }
    }
}

#[test]
fn damaged_messages_are_read_as_by_the_other_codec() {
    let mut random = Rng::with_seed(3);
    let mut read = 0;
    for _ in 0..200_000 {
        let mut bytes = random_request(&mut random);
        bytes.truncate(200);
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..=bytes.len());
            match random.usize(..3) {
                0 => bytes.insert(at, random.u8(..)),
                1 if at < bytes.len() => bytes[at] = random.u8(..),
                _ if at < bytes.len() => drop(bytes.remove(at)),
                _ => {}
            }
        }
        read += usize::from(agree(&bytes));
    }
    assert!((1_000..199_000).contains(&read), "{read}");
}

#[test]
fn noise_is_read_as_by_the_other_codec() {
    let mut random = Rng::with_seed(4);
    for _ in 0..200_000 {
        let length = random.usize(..24);
        // Small numbers are more often keys and lengths than large ones.
        let bytes: Vec<u8> = (0..length).map(|_| random.u8(..) >> random.u32(..6)).collect();
        agree(&bytes);
    }
}

/// The tenth byte of a varint has room for one bit, and there is no eleventh.
#[test]
fn numbers_end_as_in_the_other_codec() {
    for last in 0..=u8::MAX {
        for length in 1..12 {
            let number = [&[0x18][..], &vec![0xff; length - 1], &[last]].concat();
            assert_eq!(agree(&number), last < if length < 10 { 0x80 } else { 2 } && length < 11);
            // As a key, as the length of a text, and as the length of a skipped field.
            for start in [&[][..], &[0x0a], &[0x7a]] {
                let rest = vec![0; 130];
                agree(&[start, &number[1..], &rest].concat());
            }
        }
    }
}

#[test]
fn requests_in_pieces_are_reassembled() {
    // A limit given twice: the later count, and the unit of the earlier.
    let limit = [0x12, 8, 0x12, 2, 0x10, 2, 0x12, 2, 8, 5];
    assert!(agree(&limit));
    let wire_request = RateLimitRequest::read(&limit).unwrap();
    let descriptor_input = wire_request.descriptor_inputs().next().unwrap().0;
    assert_eq!(descriptor_input.limit, Some(Override { requests_per_unit: 5, unit: 2 }));
    // Nested groups, which are obsolete, and one without an end.
    assert!(agree(&[0x2b, 0x33, 0x08, 1, 0x34, 0x2c, 0x18, 7]));
    assert!(!agree(&[0x2b, 0x33, 0x08, 1, 0x2c, 0x34, 0x18, 7]));
    assert!(!agree(&[0x2b, 0x18, 7]));
    assert!(!agree(&[0x2b; 60_000]));
}

#[test]
fn requests_above_the_bounds_are_refused() {
    let entry = |key: usize| {
        let key = vec![b'k'; key];
        let entry = [&[0x0a, (key.len() & 0x7f | 0x80) as u8, (key.len() >> 7) as u8], &*key];
        let entry = entry.concat();
        [&[0x0a, (entry.len() & 0x7f | 0x80) as u8, (entry.len() >> 7) as u8], &*entry].concat()
    };
    let descriptor = |entries: usize, key: usize| {
        let entries = entry(key).repeat(entries);
        let length = entries.len();
        [&[0x12, (length & 0x7f | 0x80) as u8, (length >> 7) as u8], &*entries].concat()
    };
    for (fits, too_much) in [
        (descriptor(MAX_ENTRIES, 3), descriptor(MAX_ENTRIES + 1, 3)),
        (descriptor(1, MAX_KEY), descriptor(1, MAX_KEY + 1)),
        (descriptor(1, 1).repeat(MAX_DESCRIPTORS), descriptor(1, 1).repeat(MAX_DESCRIPTORS + 1)),
    ] {
        assert!(agree(&fits), "{:?}", RateLimitRequest::read(&fits));
        assert!(matches!(RateLimitRequest::read(&too_much), Err(Refusal::TooMuch(_))));
        agree(&too_much);
    }
    // A length beyond the end of the message.
    assert!(!agree(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0]));
}
