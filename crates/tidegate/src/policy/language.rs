//! The language of policy files: all fields, in one table per kind of map.
//!
//! The loader accepts only fields of these tables. The JSON Schema and the reference page are
//! generated from them, and a test loads every example, so all of them stay consistent.

mod limits;
mod overload;
mod requests;

pub(super) use self::limits::{
    ACTUAL, CALENDAR, DEFAULTS, LIMIT, LOCAL, MATCH, NUMBERS, OVERRIDE, RATE_LIMIT, REPLACES,
    VARIANT,
};
pub(super) use self::overload::{CLASS, CLASS_HEADER, PROTECT, UTILISATION};
pub(super) use self::requests::{
    DESCRIPTOR as REQUEST_DESCRIPTOR, ENTRY as REQUEST_ENTRY, REQUESTS, RULE as REQUEST_RULE,
};

/// A kind of map, and the fields it may hold.
#[derive(Debug)]
pub struct Table {
    /// The name of the map in messages and documentation.
    pub name: &'static str,
    /// The purpose of the map.
    pub about: &'static str,
    /// Its own fields.
    pub fields: &'static [Field],
    /// Another table whose fields are allowed here as well.
    pub also: Option<&'static Self>,
}

/// One field of a map.
#[derive(Debug)]
pub struct Field {
    /// The key.
    pub name: &'static str,
    /// The type of the value.
    pub kind: Kind,
    /// The meaning of the field.
    pub about: &'static str,
    /// An example, as a line of YAML.
    pub example: &'static str,
    /// Whether the map must have this field.
    pub required: bool,
}

impl Field {
    const fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// The type of a field's value.
#[derive(Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A text.
    Text,
    /// `true` or `false`.
    Flag,
    /// An integer, with its minimum and maximum.
    Number(u64, u64),
    /// A rate, as in `100/s`.
    Rate,
    /// A period, as in `5m`.
    Period,
    /// A percentage, as in `25%`.
    Percent,
    /// A date, as in `2026-12-31`, or a date and time.
    Date,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// One of these words, in any case.
    Word(&'static [&'static str]),
    /// Any value.
    Anything,
    /// A map with these fields.
    Map(&'static Table),
    /// A list of maps with these fields.
    Maps(&'static Table),
    /// A map from names that the author chooses to maps with these fields.
    Named(&'static Table),
    /// A list of texts.
    Texts,
    /// A list of statuses of responses and gRPC codes, as in `[401, 5xx, UNAUTHENTICATED]`.
    Statuses,
    /// A map from names that the author chooses to lists of texts.
    NamedTexts,
}

impl Table {
    /// All fields, including those of the other table, which come last.
    pub fn all(&self) -> impl Iterator<Item = &'static Field> {
        let also = self.also.map_or(&[][..], |also| also.fields);
        self.fields.iter().chain(also)
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.all().find(|field| field.name == name)
    }
}

/// Shorthand for a [`Field`].
const fn field(
    name: &'static str,
    kind: Kind,
    example: &'static str,
    about: &'static str,
) -> Field {
    Field { name, kind, about, example, required: false }
}

const MODES: &[&str] = &["enforce", "shadow", "off"];
/// Bits of an IPv6 address.
const V6: u64 = 128;

/// The top level of a file.
pub static FILE: Table = Table {
    name: "file",
    about: "The top level of a policy file. A file describes one domain, a directory of files \
            several.",
    also: None,
    fields: &[
        field(
            "$schema",
            Kind::Text,
            "$schema: ./policy.schema.json",
            "The schema for editors (`tidegate schema`). Otherwise ignored.",
        ),
        field(
            "domain",
            Kind::Text,
            "domain: api",
            "The name by which requests select the domain; unique among the files unless they are \
             merged.",
        )
        .required(),
        field(
            "mode",
            Kind::Choice(MODES),
            "mode: shadow",
            "Relaxes every limit of the domain: `shadow` decides and counts but denies no request; \
             `off` is the kill switch.",
        ),
        field(
            "charge",
            Kind::Choice(&["together", "each"]),
            "charge: together",
            "Whether the limits that apply to one request are charged all or nothing, or \
             separately. By default, `rate_limit`s are charged separately and all others together.",
        ),
        field(
            "tag",
            Kind::Text,
            "tag: api_key",
            "The key of the entry whose value identifies the tenant of a request. On a Redis \
             Cluster the limits of one tenant are decided in one step. The first entry by default.",
        ),
        field(
            "defaults",
            Kind::Map(&DEFAULTS),
            "defaults: {algorithm: sliding_window}",
            "Defaults for every limit of the domain.",
        ),
        field(
            "plans",
            Kind::Map(&PLANS),
            "plans: {entry: plan}",
            "Assigns plans; a limit's `plans` then sets the numbers of each plan.",
        ),
        field(
            "classes",
            Kind::Maps(&CLASS),
            "classes: [{name: critical}, {name: batch, default: true}]",
            "The classes of requests, most important first, at most eight. Without classes all \
             requests are equally important.",
        ),
        field(
            "class_header",
            Kind::Map(&CLASS_HEADER),
            "class_header: {name: x-class}",
            "The header in which a request names its class.",
        ),
        field(
            "protect",
            Kind::Maps(&PROTECT),
            "protect: [{name: api}]",
            "Concurrency limiters, which protect servers from overload. The first one protects the \
             requests whose rules name none. At most sixteen.",
        ),
        field(
            "requests",
            Kind::Map(&REQUESTS),
            "requests: {rules: []}",
            "How an HTTP request becomes descriptors, for listeners that receive requests rather \
             than descriptors.",
        ),
        field(
            "descriptors",
            Kind::Maps(&DESCRIPTOR),
            "descriptors: [{key: user, rate: 10/s}]",
            "The limits. The entries of a request's descriptor are matched by key and value, \
             level by level; the limits of the level where the descriptor ends apply.",
        ),
    ],
};

/// Assignment of plans.
pub(super) static PLANS: Table = Table {
    name: "plans of a domain",
    about: "How the plan of a request is found. If both ways find one, the entry wins.",
    also: None,
    fields: &[
        field(
            "entry",
            Kind::Text,
            "entry: plan",
            "The key of an entry that names the plan. The entry is not matched, wherever it is in \
             a descriptor. It selects the limits, so it must come from a trusted proxy or service, \
             not from the client.",
        ),
        field(
            "key",
            Kind::Text,
            "key: customer",
            "The key of the entry whose value is looked up in `members`, wherever it is in a \
             descriptor.",
        ),
        field(
            "members",
            Kind::NamedTexts,
            "members: {enterprise: [acme, globex]}",
            "The values of `key` that belong to each plan.",
        ),
    ],
};

/// A descriptor.
pub(super) static DESCRIPTOR: Table = Table {
    name: "descriptor",
    about: "A key and the values that match. A descriptor with one native limit has the limit's \
            fields itself; with several it lists them under `limits`.",
    also: Some(&LIMIT),
    fields: &[
        field("key", Kind::Text, "key: user", "The key of the entry.").required(),
        field(
            "value",
            Kind::Text,
            "value: bob",
            "The value. A `*` in it stands for any number of characters; of several such values \
             the first in the file wins, after exact values. Without a value, the descriptor \
             matches every value that no other one matches, each with its own count.",
        ),
        field(
            "match",
            Kind::Map(&MATCH),
            "match: {prefix: /v1/}",
            "Other ways to match values; the most specific wins.",
        ),
        field(
            "ipv4_prefix",
            Kind::Number(0, 32),
            "ipv4_prefix: 24",
            "The number of leading bits that identify an IPv4 client; addresses that share them \
             count as one. 32 by default.",
        ),
        field(
            "ipv6_prefix",
            Kind::Number(0, V6),
            "ipv6_prefix: 64",
            "The same for IPv6, where one customer often has a whole /64 or /56. 128 by default.",
        ),
        field(
            "limits",
            Kind::Maps(&LIMIT),
            "limits: [{name: second, rate: 10/s}, {name: hour, rate: 1000/h}]",
            "Several limits on the same key, decided together. Each needs a `name`.",
        ),
        field(
            "rate_limit",
            Kind::Map(&RATE_LIMIT),
            "rate_limit: {unit: minute, requests_per_unit: 5}",
            "A limit in the form and with the semantics of envoyproxy/ratelimit: a fixed window \
             aligned to the epoch that counts denied requests too and is charged separately.",
        ),
        field(
            "shadow_mode",
            Kind::Flag,
            "shadow_mode: true",
            "With `rate_limit`: decided and counted, but denies no request. Other limits use \
             `mode: shadow`.",
        ),
        field(
            "quota_mode",
            Kind::Flag,
            "quota_mode: true",
            "Denies only if every descriptor of the request with `quota_mode` is over its limit.",
        ),
        field(
            "share_threshold",
            Kind::Flag,
            "share_threshold: true",
            "All values that match this `*` share one quota.",
        ),
        field(
            "detailed_metric",
            Kind::Flag,
            "detailed_metric: true",
            "Puts every value of the descriptor into the name of its metric.",
        ),
        field(
            "value_to_metric",
            Kind::Flag,
            "value_to_metric: true",
            "Puts the value of this entry into the name of its metric.",
        ),
        field(
            "metadata",
            Kind::Anything,
            "metadata: {team: payments}",
            "Returned with the answer.",
        ),
        field(
            "descriptors",
            Kind::Maps(&DESCRIPTOR),
            "descriptors: [{key: path, rate: 1/s}]",
            "The level that matches the next entry of a descriptor.",
        ),
    ],
};
