//! Our reading and writing of the protocol beside somebody else's, who reads it from its files.

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

/// A question of its own letters, to compare.
#[derive(Debug, Default, PartialEq, Eq)]
struct Model {
    domain: String,
    hits_addend: u32,
    sides: Vec<ModelSide>,
}

/// Entries, what they cost, whether that is given back, and the limit that comes along.
type ModelSide = (Vec<(String, String)>, Option<u64>, bool, Option<(u32, u32)>);

impl Model {
    fn of_ours(question: &RateLimitRequest<'_>) -> Self {
        let side = |(side, entries): (&DescriptorInput, &[Entry<'_>])| {
            let entries =
                entries.iter().map(|entry| (entry.key.to_owned(), entry.value.to_owned()));
            let limit = |limit: Override| (limit.requests_per_unit, limit.unit);
            let limit = side.limit.map(limit);
            (entries.collect(), side.hits_addend, side.is_negative_hits, limit)
        };
        Self {
            domain: question.domain.into(),
            hits_addend: question.hits_addend,
            sides: question.sides().map(side).collect(),
        }
    }

    fn of_theirs(request: &DynamicMessage) -> Self {
        let side = |side: &Value| {
            let side = side.as_message().unwrap();
            let entries = list(side, "entries").into_iter().map(|entry| {
                let entry = entry.as_message().unwrap();
                (text(entry, "key"), text(entry, "value"))
            });
            let hits = inner(side, "hits_addend").map(|hits| number(&hits, "value"));
            let limit = inner(side, "limit").map(|limit| {
                let count = number(&limit, "requests_per_unit");
                (count as u32, field(&limit, "unit").as_enum_number().unwrap() as u32)
            });
            let is_negative = field(side, "is_negative_hits").as_bool().unwrap();
            (entries.collect(), hits, is_negative, limit)
        };
        Self {
            domain: text(request, "domain"),
            hits_addend: number(request, "hits_addend") as u32,
            sides: list(request, "descriptors").iter().map(side).collect(),
        }
    }

    /// Whether it is of a size that we take.
    fn is_too_much(&self) -> bool {
        self.sides.len() > MAX_DESCRIPTORS
            || self.sides.iter().any(|(entries, ..)| {
                entries.len() > MAX_ENTRIES || entries.iter().any(|(key, _)| key.len() > MAX_KEY)
            })
    }

    fn has_unknown_unit(&self) -> bool {
        let limits = self.sides.iter().filter_map(|(.., limit)| *limit);
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

/// Sets some fields of a message, and those of its messages. Without an oracle of its own: whatever
/// fields the protocol has are set.
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

/// Both read the same, or both refuse, but for what is larger than we take.
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
fn whatever_is_asked_is_read_as_others_read_it() {
    let mut random = Rng::with_seed(1);
    let read = (0..20_000).filter(|_| agree(&random_request(&mut random))).count();
    assert!((5_000..20_000).contains(&read), "{read}");
}

#[test]
fn a_message_that_breaks_off_anywhere_is_read_as_others_read_it() {
    let mut random = Rng::with_seed(2);
    for _ in 0..300 {
        let bytes = random_request(&mut random);
        for end in 0..bytes.len() {
            agree(&bytes[..end]);
        }
    }
}

#[test]
fn damaged_messages_are_read_as_others_read_them() {
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
fn noise_is_read_as_others_read_it() {
    let mut random = Rng::with_seed(4);
    for _ in 0..200_000 {
        let length = random.usize(..24);
        // Small numbers are keys and lengths more often than large ones.
        let bytes: Vec<u8> = (0..length).map(|_| random.u8(..) >> random.u32(..6)).collect();
        agree(&bytes);
    }
}

/// The tenth byte of a number has room for one bit, and there is no eleventh.
#[test]
fn numbers_end_where_others_end_them() {
    for last in 0..=u8::MAX {
        for length in 1..12 {
            let number = [&[0x18][..], &vec![0xff; length - 1], &[last]].concat();
            assert_eq!(agree(&number), last < if length < 10 { 0x80 } else { 2 } && length < 11);
            // As a key, as the length of a text, and of what is skipped.
            for start in [&[][..], &[0x0a], &[0x7a]] {
                let rest = vec![0; 130];
                agree(&[start, &number[1..], &rest].concat());
            }
        }
    }
}

#[test]
fn what_comes_in_pieces_is_put_together() {
    // A limit told twice: the later count, and the unit of the earlier.
    let limit = [0x12, 8, 0x12, 2, 0x10, 2, 0x12, 2, 8, 5];
    assert!(agree(&limit));
    let question = RateLimitRequest::read(&limit).unwrap();
    let side = question.sides().next().unwrap().0;
    assert_eq!(side.limit, Some(Override { requests_per_unit: 5, unit: 2 }));
    // Groups, which nobody sends any more, one within the other; and one that does not end.
    assert!(agree(&[0x2b, 0x33, 0x08, 1, 0x34, 0x2c, 0x18, 7]));
    assert!(!agree(&[0x2b, 0x33, 0x08, 1, 0x2c, 0x34, 0x18, 7]));
    assert!(!agree(&[0x2b, 0x18, 7]));
    assert!(!agree(&[0x2b; 60_000]));
}

#[test]
fn what_is_larger_than_any_request_is_refused() {
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
    // A length that promises more than anybody has.
    assert!(!agree(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0]));
}
