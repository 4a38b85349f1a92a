//! The language of policy files: every field there is, in one table per kind of map.
//!
//! The loader knows no field that is not here, the JSON Schema and the reference page are made from
//! here, and a test decides with an example of each: so none of them can fall behind another.

mod limits;
mod requests;

pub(super) use self::limits::{
    CALENDAR, DEFAULTS, LIMIT, LOCAL, MATCH, NUMBERS, OVERRIDE, RATE_LIMIT, REPLACES, VARIANT,
};
pub(super) use self::requests::{
    DESCRIPTOR as REQUEST_DESCRIPTOR, ENTRY as REQUEST_ENTRY, REQUESTS, RULE as REQUEST_RULE,
};

/// A kind of map, and the fields it may hold.
#[derive(Debug)]
pub struct Table {
    /// What people call such a map.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Its own fields.
    pub fields: &'static [Field],
    /// Whose fields may stand here as well.
    pub also: Option<&'static Self>,
}

/// One field of a map.
#[derive(Debug)]
pub struct Field {
    /// As it is written.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// What it means.
    pub about: &'static str,
    /// What is written to say it, as a line of YAML.
    pub example: &'static str,
    /// Whether there is no map of this kind without it.
    pub required: bool,
}

impl Field {
    const fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// What the value of a field is.
#[derive(Debug)]
#[non_exhaustive]
pub enum Kind {
    /// Words.
    Text,
    /// `true` or `false`.
    Flag,
    /// A whole number, from and to.
    Number(u64, u64),
    /// `100/s`.
    Rate,
    /// `5m`.
    Period,
    /// `25%`.
    Percent,
    /// `2026-12-31`, or with a time.
    Date,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// One of these words in upper or lower case.
    Word(&'static [&'static str]),
    /// Anything at all.
    Anything,
    /// A map with these fields.
    Map(&'static Table),
    /// A list of such.
    Maps(&'static Table),
    /// A map from names that the author chooses.
    Named(&'static Table),
    /// A list of words.
    Texts,
    /// A map from names that the author chooses to lists of texts.
    NamedTexts,
}

impl Table {
    /// All fields, those of the other table last.
    pub fn all(&self) -> impl Iterator<Item = &'static Field> {
        let also = self.also.map_or(&[][..], |also| also.fields);
        self.fields.iter().chain(also)
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.all().find(|field| field.name == name)
    }
}

/// A short way to write a field down.
const fn field(
    name: &'static str,
    kind: Kind,
    example: &'static str,
    about: &'static str,
) -> Field {
    Field { name, kind, about, example, required: false }
}

const MODES: &[&str] = &["enforce", "shadow", "off"];
/// The most bits of an address.
const V6: u64 = 128;

/// The top of a file.
pub static FILE: Table = Table {
    name: "file",
    about: "The top of a policy file. One file describes one domain; a directory of files describes \
            as many.",
    also: None,
    fields: &[
        field(
            "$schema",
            Kind::Text,
            "$schema: ./policy.schema.json",
            "Where an editor finds the schema (`tidegate schema`). Means nothing otherwise.",
        ),
        field(
            "domain",
            Kind::Text,
            "domain: api",
            "The name that requests ask for, unique among the files unless they are merged.",
        )
        .required(),
        field(
            "mode",
            Kind::Choice(MODES),
            "mode: shadow",
            "Loosens every limit of the domain: `shadow` decides and counts but holds nobody back, \
             `off` is the kill switch.",
        ),
        field(
            "charge",
            Kind::Choice(&["together", "each"]),
            "charge: together",
            "Whether the limits that one request meets are charged all or nothing, or each alone. \
             Without it, `rate_limit`s are charged each alone and all others together.",
        ),
        field(
            "tag",
            Kind::Text,
            "tag: api_key",
            "The key of the entry whose value says which tenant a request belongs to. On a Redis \
             Cluster the limits of one tenant are decided in one step. The first entry by default.",
        ),
        field(
            "defaults",
            Kind::Map(&DEFAULTS),
            "defaults: {algorithm: sliding_window}",
            "What holds for every limit of the domain that does not say otherwise.",
        ),
        field(
            "plans",
            Kind::Map(&PLANS),
            "plans: {entry: plan}",
            "Who is on which plan; a limit's `plans` then says how much each plan allows.",
        ),
        field(
            "requests",
            Kind::Map(&REQUESTS),
            "requests: {rules: []}",
            "How an HTTP request becomes descriptors, where the door sees requests rather than \
             descriptors.",
        ),
        field(
            "descriptors",
            Kind::Maps(&DESCRIPTOR),
            "descriptors: [{key: user, rate: 10/s}]",
            "What is limited. A request's descriptor applies to the entry here with its key and \
             value, level by level; its limits hold if it ends exactly there.",
        ),
    ],
};

/// Who is on which plan.
pub(super) static PLANS: Table = Table {
    name: "plans of a domain",
    about: "How it is known which plan a request is on. If both say something, the entry does.",
    also: None,
    fields: &[
        field(
            "entry",
            Kind::Text,
            "entry: plan",
            "The key of an entry that names the plan. It takes no part in matching, wherever it \
             stands in a descriptor. Whoever may choose it chooses the limits: let it come from \
             somebody you trust.",
        ),
        field(
            "key",
            Kind::Text,
            "key: customer",
            "The key of the entry whose value is looked up in `members`, wherever it stands.",
        ),
        field(
            "members",
            Kind::NamedTexts,
            "members: {enterprise: [acme, globex]}",
            "Which values of `key` are on which plan.",
        ),
    ],
};

/// One descriptor.
pub(super) static DESCRIPTOR: Table = Table {
    name: "descriptor",
    about: "One key, and the values of it that this applies to. A descriptor with one limit of \
            ours holds the limit's fields itself; with several it lists them under `limits`.",
    also: Some(&LIMIT),
    fields: &[
        field("key", Kind::Text, "key: user", "The key of the entry.").required(),
        field(
            "value",
            Kind::Text,
            "value: bob",
            "The value. A `*` in it stands for any number of characters; of several such the first \
             in the file wins, after exact values. Without a value, every value that nothing else \
             wants, each counted for itself.",
        ),
        field(
            "match",
            Kind::Map(&MATCH),
            "match: {prefix: /v1/}",
            "Other ways to choose values; the most specific wins.",
        ),
        field(
            "ipv4_prefix",
            Kind::Number(0, 32),
            "ipv4_prefix: 24",
            "Counts all addresses that share so many leading bits as one. 32 by default.",
        ),
        field(
            "ipv6_prefix",
            Kind::Number(0, V6),
            "ipv6_prefix: 64",
            "The same for IPv6, where one customer commonly has a whole /64 or /56. 128 by default.",
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
            "A limit as envoyproxy/ratelimit writes it, with its meaning: a fixed window aligned to \
             the epoch that counts denied requests too, charged alone.",
        ),
        field(
            "shadow_mode",
            Kind::Flag,
            "shadow_mode: true",
            "With `rate_limit`: decided and counted, but holds nobody back. Ours is `mode: shadow`.",
        ),
        field(
            "quota_mode",
            Kind::Flag,
            "quota_mode: true",
            "Denies only if every descriptor of the request that says so is over its limit.",
        ),
        field(
            "share_threshold",
            Kind::Flag,
            "share_threshold: true",
            "All values that match this `*` share one budget.",
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
            "Handed back with the answer.",
        ),
        field(
            "descriptors",
            Kind::Maps(&DESCRIPTOR),
            "descriptors: [{key: path, rate: 1/s}]",
            "What the next entry of a descriptor is looked up in.",
        ),
    ],
};
