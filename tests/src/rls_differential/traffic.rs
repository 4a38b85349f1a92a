//! Requests for every rule of the policies, and requests that no rule matches.

use std::fmt;

use fastrand::Rng;
use serde_json::{Value, json};

use crate::rls::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit};

/// Number of requests with the same values: enough for every counter to exceed its limit.
const REQUESTS_PER_GENERATION: u64 = 1_500;
const MOST_DESCRIPTORS: usize = 4;

/// The features of the compared version of envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edition {
    /// Features of all versions.
    Settled,
    /// Also features of versions from March 2026 on: quotas, stars anywhere in a value, metadata.
    Newer,
}

impl Edition {
    pub(super) fn folders(self) -> &'static [&'static str] {
        match self {
            Self::Settled => &["policies"],
            Self::Newer => &["policies", "newer"],
        }
    }
}

/// One request, for its transport.
#[derive(Clone, Debug)]
pub enum Asked {
    /// Over gRPC.
    Call(RateLimitRequest),
    /// At `/json`.
    Json {
        /// Any method is accepted.
        method: &'static str,
        /// Mostly JSON.
        body: String,
    },
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(request) => write!(f, "gRPC {}", Spelling::Camel.of(request)),
            Self::Json { method, body } => write!(f, "{method} /json {body}"),
        }
    }
}

/// A path through a policy. `@` in a value stands for a letter; the letter and the generation make
/// the value new.
struct Path {
    domain: &'static str,
    edition: Edition,
    levels: &'static [(&'static str, &'static [&'static str])],
}

const fn settled(
    domain: &'static str,
    levels: &'static [(&'static str, &'static [&'static str])],
) -> Path {
    Path { domain, edition: Edition::Settled, levels }
}

const fn newer(levels: &'static [(&'static str, &'static [&'static str])]) -> Path {
    Path { domain: "quotas", edition: Edition::Newer, levels }
}

const SOME: &[&str] = &["@", "@", "with space @", "ünï-@", "1.2.3.4:@", "a/b?c=@"];

const PATHS: &[Path] = &[
    settled("units", &[("per_second", SOME)]),
    settled("units", &[("per_minute", SOME)]),
    settled("units", &[("per_hour", SOME)]),
    settled("units", &[("per_day", SOME)]),
    settled("units", &[("per_week", SOME)]),
    settled("units", &[("per_month", SOME)]),
    settled("units", &[("per_year", SOME)]),
    settled("units", &[("none", SOME)]),
    settled("units", &[("most", SOME)]),
    settled("units", &[("free", SOME)]),
    settled("units", &[("listed", SOME)]),
    settled("tree.of_keys", &[("method", &["GET", "POST", "PUT", "HEAD", "P"])]),
    settled(
        "tree.of_keys",
        &[("method", &["GET"]), ("path", &["/login", "/@", "/static/@", "/static", ""])],
    ),
    settled(
        "tree.of_keys",
        &[("method", &["GET"]), ("path", &["/login"]), ("user", &["root", "u@", "*"])],
    ),
    settled(
        "tree.of_keys",
        &[("method", &["P@", "POST"]), ("path", &["/abc", "/ab@", "/a@", "/b", "/a"])],
    ),
    settled("tree.of_keys", &[("method", &["DELETE", "@"]), ("path", &["/@"]), ("user", &["u@"])]),
    settled("tree.of_keys", &[("same", SOME), ("same", SOME)]),
    settled("tree.of_keys", &[("same", SOME), ("same", SOME), ("same", SOME)]),
    settled(
        "tree.of_keys",
        &[("client", &["10.0.0.1", "10.0.0.@", "10.0.@", "10.0.0.", "192.168.@", "10.0.0.*"])],
    ),
    settled("modes", &[("shadowed", &["live", "@"])]),
    settled("modes", &[("shadowed", &["live"]), ("below", SOME)]),
    settled("modes", &[("detailed", SOME)]),
    settled("modes", &[("told", SOME)]),
    settled("modes", &[("told", SOME), ("told", SOME)]),
    settled("modes", &[("shared", &["team-@", "team-", "lone-@", "lone"])]),
    settled("modes", &[("shared", &["team-@"]), ("member", &["m@", "n@"])]),
    settled("modes", &[("all", SOME)]),
    settled("modes", &[("all", SOME)]),
    settled("modes", &[("tenant", SOME)]),
    settled("modes", &[("partner", SOME)]),
    settled("modes", &[("circle_a", SOME)]),
    settled("modes", &[("circle_b", SOME)]),
    settled("modes", &[("ghost", SOME)]),
    newer(&[("tokens", SOME)]),
    newer(&[("credits", SOME)]),
    newer(&[("both", SOME)]),
    newer(&[("plain", SOME)]),
    newer(&[("path", &["/v1/users/@/keys", "/v/users//keys", "/v1/users/keys", "/@.html", "@"])]),
    newer(&[("path", &["@"]), ("user", &["a@z", "az", "a", "z"])]),
    settled("nowhere", &[("user", SOME)]),
];

/// Limits that come with a request. The value contains the numbers, so that no two units share a
/// counter, which envoyproxy/ratelimit would mix up if their windows begin together, and no cached
/// denial is applied to a higher limit.
const OVERRIDES: [(&str, Unit); 7] = [
    ("one-second", Unit::Second),
    ("one-minute", Unit::Minute),
    ("one-hour", Unit::Hour),
    ("one-day", Unit::Day),
    ("one-week", Unit::Week),
    ("one-month", Unit::Month),
    ("one-year", Unit::Year),
];

/// An endless trace, determined by its seed.
#[derive(Debug)]
pub struct Traffic {
    rng: Rng,
    edition: Edition,
    asked: u64,
}

impl Traffic {
    /// The trace of this seed.
    pub fn new(seed: u64, edition: Edition) -> Self {
        Self { rng: Rng::with_seed(seed), edition, asked: 0 }
    }

    /// The next request.
    pub fn ask(&mut self) -> Asked {
        self.asked += 1;
        if self.rng.u8(..) == 0 {
            let body = NONSENSE[self.rng.usize(..NONSENSE.len())].to_owned();
            return Asked::Json { method: self.method(), body };
        }
        let request = self.request();
        if self.rng.u8(..4) > 0 {
            return Asked::Call(request);
        }
        let spelling = [Spelling::Camel, Spelling::Snake, Spelling::Texts][self.rng.usize(..3)];
        Asked::Json { method: self.method(), body: spelling.of(&request).to_string() }
    }

    fn method(&mut self) -> &'static str {
        ["POST", "POST", "PUT", "GET"][self.rng.usize(..4)]
    }

    fn request(&mut self) -> RateLimitRequest {
        let edition = self.edition;
        let known: Vec<&Path> = PATHS
            .iter()
            .filter(|path| path.edition == Edition::Settled || path.edition == edition)
            .collect();
        let first = known[self.rng.usize(..known.len())];
        let of_domain: Vec<&Path> =
            known.into_iter().filter(|path| path.domain == first.domain).collect();
        let count = if self.rng.u8(..200) == 0 { 0 } else { self.rng.usize(1..=MOST_DESCRIPTORS) };
        let mut descriptors: Vec<RateLimitDescriptor> = Vec::new();
        for index in 0..count {
            let path =
                if index == 0 { first } else { of_domain[self.rng.usize(..of_domain.len())] };
            descriptors.push(self.descriptor(path));
        }
        let domain = if self.rng.u8(..) == 0 { "" } else { first.domain };
        let hits_addend = [0, 0, 0, 1, 2, 3, 50][self.rng.usize(..7)];
        RateLimitRequest { domain: domain.into(), descriptors, hits_addend }
    }

    fn descriptor(&mut self, path: &Path) -> RateLimitDescriptor {
        let mut entries: Vec<Entry> = path
            .levels
            .iter()
            .map(|(key, values)| {
                let value = values[self.rng.usize(..values.len())];
                Entry { key: (*key).into(), value: self.value(value) }
            })
            .collect();
        let mut limit = None;
        match self.rng.u8(..40) {
            0 => drop(entries.pop()),
            1 => entries.push(Entry { key: "more".into(), value: self.value("@") }),
            2 => entries.reverse(),
            3 => entries.iter_mut().for_each(|entry| entry.value.clear()),
            4..8 => limit = Some(self.limit(&mut entries)),
            _ => {}
        }
        let hits = [None, None, None, None, Some(0), Some(1), Some(4), Some(1_000_000)];
        let hits_addend = hits[self.rng.usize(..hits.len())];
        RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits: false }
    }

    /// A limit that comes with a request, and the entries that only it uses.
    fn limit(&mut self, entries: &mut [Entry]) -> RateLimitOverride {
        let (name, unit) = OVERRIDES[self.rng.usize(..OVERRIDES.len())];
        let requests_per_unit = [0, 1, 3, 10, 1_000, u32::MAX][self.rng.usize(..6)];
        for entry in entries {
            entry.value = format!("{name}-{requests_per_unit}-{}", entry.value);
        }
        RateLimitOverride { requests_per_unit, unit: unit as i32 }
    }

    fn value(&mut self, pattern: &str) -> String {
        let generation = self.asked / REQUESTS_PER_GENERATION;
        let letter = char::from(b'a' + self.rng.u8(..3));
        pattern.replace('@', &format!("{letter}{generation}"))
    }
}

/// Bodies that are not valid requests.
const NONSENSE: &[&str] = &[
    "",
    "{",
    "{}",
    "[]",
    "null",
    "\"units\"",
    r#"{"domain":"units"}"#,
    r#"{"domain":"units","descriptors":[]}"#,
    r#"{"domain":"units","descriptors":[{}]}"#,
    r#"{"domain":"units","descriptors":[{"entries":[]}]}"#,
    r#"{"domain":"units","descriptors":[{"entries":[{}]}]}"#,
    r#"{"domain":"units","descriptors":null}"#,
    r#"{"domain":7,"descriptors":[{"entries":[{"key":"free"}]}]}"#,
    r#"{"domain":"units","unknown":1}"#,
    r#"{"domain":"units","domain":"modes","descriptors":[{"entries":[{"key":"free"}]}]}"#,
    r#"{"domain":"units","descriptors":[{"entries":[{"key":"free","value":null}]}]}"#,
    r#"{"domain":"units","descriptors":[{"entries":[{"key":"free"}]}],"hitsAddend":-1}"#,
    r#"{"domain":"units","descriptors":[{"entries":[{"key":"free"}]}],"hitsAddend":1.5}"#,
    r#"{"domain":"units","descriptors":[{"entries":[{"key":"free"}]}],"hitsAddend":1e1}"#,
    r#"{"domain":"units","descriptors":[{"entries":[{"key":"free"}]}],"hitsAddend":"0x1"}"#,
    r#"{"domain":"units","descriptors":[{"entries":[{"key":"free"}]}],"hitsAddend":4294967296}"#,
    r#"{"domain":"units","descriptors":[{"entries":[{"key":"free"}],"limit":{"unit":"CENTURY"}}]}"#,
    r#"{"domain":"units","descriptors":[{"entries":[{"key":"free"}]}]} trailing"#,
    r#" {"domain" : "units" , "descriptors" : [ { "entries" : [ { "key" : "free" } ] } ] } "#,
];

/// Spellings of a request as JSON.
#[derive(Clone, Copy, Debug)]
enum Spelling {
    Camel,
    Snake,
    /// Numbers as texts, units by their numbers.
    Texts,
}

impl Spelling {
    fn of(self, request: &RateLimitRequest) -> Value {
        let mut fields = json!({"domain": request.domain});
        let descriptors = request.descriptors.iter().map(|it| self.descriptor(it));
        fields["descriptors"] = descriptors.collect();
        if request.hits_addend > 0 {
            fields[self.hits()] = self.number(request.hits_addend.into());
        }
        fields
    }

    fn descriptor(self, descriptor: &RateLimitDescriptor) -> Value {
        let entries = descriptor.entries.iter();
        let entries: Value =
            entries.map(|entry| json!({"key": entry.key, "value": entry.value})).collect();
        let mut fields = json!({"entries": entries});
        if let Some(hits) = descriptor.hits_addend {
            fields[self.hits()] = self.number(hits);
        }
        if let Some(limit) = descriptor.limit {
            let name = format!("{:?}", limit.unit()).to_uppercase();
            // envoyproxy/ratelimit knows the week by its number only, because the protocol's list
            // has no name for it.
            let is_named = limit.unit() != Unit::Week && !matches!(self, Self::Texts);
            let unit: Value = if is_named { name.into() } else { limit.unit.into() };
            let requests = match self {
                Self::Camel => "requestsPerUnit",
                Self::Snake | Self::Texts => "requests_per_unit",
            };
            let number = self.number(limit.requests_per_unit.into());
            fields["limit"] = json!({requests: number, "unit": unit});
        }
        fields
    }

    fn hits(self) -> &'static str {
        match self {
            Self::Camel => "hitsAddend",
            Self::Snake | Self::Texts => "hits_addend",
        }
    }

    fn number(self, number: u64) -> Value {
        match self {
            Self::Camel | Self::Snake => number.into(),
            Self::Texts => number.to_string().into(),
        }
    }
}
