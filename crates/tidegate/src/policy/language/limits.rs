//! The fields that make a limit.

use super::{Field, Kind, MODES, Table, field};
use crate::store::shards::MAX_SHARDS;

const ALGORITHMS: &[&str] =
    &["fixed_window", "sliding_log", "sliding_window", "token_bucket", "gcra", "leaky_bucket"];
const MAX_COST: u64 = 1 << 32;

// Fields that stand in more than one table, each told once.
const RATE: Field = field(
    "rate",
    Kind::Rate,
    "rate: 100/s",
    "How many per which time: `s`, `min`, `h`, `day`, `week`, `month` (30 days), `year` (365), or so \
     many of them: `20/5m`. For windows the time is the window.",
);
const REQUESTS: Field =
    field("requests", Kind::Number(0, 1 << 52), "requests: 100", "The same, with `per`.");
const PER: Field = field("per", Kind::Period, "per: 5m", "The same, with `requests`.");
const BURST: Field = field(
    "burst",
    Kind::Number(1, 1 << 52),
    "burst: 50",
    "Buckets: how many may come at once after a rest. The rate's count by default; 1 for `gcra` and \
     `leaky_bucket`.",
);
const QUEUE: Field = field(
    "queue",
    Kind::Number(0, 1 << 52),
    "queue: 20",
    "`leaky_bucket`: how many may wait for their turn. The rate's count by default.",
);
const ALGORITHM: Field = field(
    "algorithm",
    Kind::Choice(ALGORITHMS),
    "algorithm: sliding_window",
    "`token_bucket` unless said otherwise.",
);
const COST: Field = field(
    "cost",
    Kind::Number(0, MAX_COST),
    "cost: 5",
    "What one request takes, unless the request says. 1 by default.",
);
const MODE: Field = field(
    "mode",
    Kind::Choice(MODES),
    "mode: shadow",
    "`enforce`; `shadow`: decided and counted, but holds nobody back; `off`: not even decided.",
);
const TIER: Field = field(
    "tier",
    Kind::Choice(&["exact", "leased"]),
    "tier: leased",
    "`exact` decides in the store; `leased` from units that a node has taken ahead, for keys that are asked \
     for hundreds of times a second. Never above the limit. A leased bucket bursts less, by what its rate \
     gives in 100 ms, and needs a burst of at least four times that. Sliding logs, leaky buckets, places in \
     flight and windows that count what they denied are always exact.",
);
const ON_STORE_FAILURE: Field = field(
    "on_store_failure",
    Kind::Choice(&["allow", "deny", "local"]),
    "on_store_failure: deny",
    "What is answered while the store is away. `local`, by default: what this node's share of the limit \
     says, 1.5 times the limit divided by the nodes. `allow`: go ahead. `deny`: stay out. What is let in \
     is booked when the store is back.",
);
const REFUND_STALENESS: Field = field(
    "refund_staleness",
    Kind::Period,
    "refund_staleness: 5s",
    "With Redis, for how long a node may go on denying a key that another node has given units back to. \
     `1s` by default; `0s` asks Redis each time.",
);
const SHARDS: Field = field(
    "shards",
    Kind::Number(2, MAX_SHARDS as u64),
    "shards: 8",
    "With Redis: each key of the limit is divided into so many, for keys that are decided on more than \
     about 50,000 times a second. Never admits more than the limit, and a little less. Another number \
     starts everybody afresh.",
);
const LOCAL_BUCKET: Field = field(
    "local",
    Kind::Map(&LOCAL),
    "local: {rate: 200/s, burst: 50}",
    "A bucket that each node has in front of the limit: what it denies, nobody else is asked about. \
     Taken with the limit or not at all.",
);
const UNLIMITED: Field =
    field("unlimited", Kind::Flag, "unlimited: true", "Everything is allowed, and not counted.");

/// What a domain says for all its limits.
pub(in crate::policy) static DEFAULTS: Table = Table {
    name: "defaults",
    about: "Fields of a limit, for all limits of the domain.",
    also: None,
    fields: &[ALGORITHM, COST, MODE, TIER, ON_STORE_FAILURE, REFUND_STALENESS],
};

/// A limit as we write it.
pub(in crate::policy) static LIMIT: Table = Table {
    name: "limit",
    about: "One limit. It has a `rate`, or `requests` and `per`; the rest is optional.",
    also: None,
    fields: &[
        field(
            "name",
            Kind::Text,
            "name: per_key",
            "What answers and metrics call it. Renaming a limit starts it afresh.",
        ),
        RATE,
        REQUESTS,
        PER,
        BURST,
        QUEUE,
        ALGORITHM,
        COST,
        field(
            "count_denied",
            Kind::Flag,
            "count_denied: true",
            "`fixed_window`: denied requests use up the window too.",
        ),
        field(
            "calendar",
            Kind::Map(&CALENDAR),
            "calendar: {tz: Europe/Paris}",
            "Counts by the calendar: the rate is per `hour`, `day`, `week`, `month` or `year`, each \
             as long as it really is. Implies `fixed_window`.",
        ),
        MODE,
        field(
            "enforce",
            Kind::Percent,
            "enforce: 25%",
            "Holds back only this share of the keys, chosen by a hash, the same on every node; for \
             the others it is a shadow on the same state. A larger share only adds keys. The hash is \
             predictable unless the daemon has `policy.enforce_secret_file`.",
        ),
        field(
            "shadow",
            Kind::Map(&VARIANT),
            "shadow: {rate: 50/s}",
            "Another limit that is tried on the same requests, with its own state: how often the \
             two agree is counted, and nobody is held back by it. Only for those who have the \
             limit's own numbers, not those of a plan or an override.",
        ),
        field(
            "plans",
            Kind::Named(&NUMBERS),
            "plans: {pro: {rate: 1000/s, burst: 2000}}",
            "Other numbers for the plans of the domain; whoever is on none of these has the limit's \
             own.",
        ),
        field(
            "overrides",
            Kind::Maps(&OVERRIDE),
            "overrides: [{value: acme, rate: 5000/s, until: 2031-01-01}]",
            "Other numbers for single values; they go before plans.",
        ),
        TIER,
        ON_STORE_FAILURE,
        REFUND_STALENESS,
        SHARDS,
        LOCAL_BUCKET,
    ],
};

/// A bucket in front of a limit.
pub(in crate::policy) static LOCAL: Table = Table {
    name: "local",
    about: "A token bucket on each node, in front of a limit: a `rate`, or `requests` and `per`, and \
            perhaps a `burst`, the rate's count by default.",
    also: None,
    fields: &[RATE, REQUESTS, PER, BURST],
};

/// Other numbers for the same limit.
pub(in crate::policy) static NUMBERS: Table = Table {
    name: "numbers of a plan",
    about: "What replaces the numbers of the limit; the algorithm stays. Each plan counts for \
            itself, an override goes on with what was used. With another `rate`, a `burst` that is not said is the rate's count again.",
    also: None,
    fields: &[RATE, REQUESTS, PER, BURST, QUEUE, UNLIMITED],
};

/// Other numbers for one value.
pub(in crate::policy) static OVERRIDE: Table = Table {
    name: "override",
    about: "Other numbers for one value, for good or until a date.",
    also: Some(&NUMBERS),
    fields: &[
        field("value", Kind::Text, "value: acme", "The value of the descriptor's entry, exactly.")
            .required(),
        field(
            "until",
            Kind::Date,
            "until: 2031-01-01T00:00:00Z",
            "When it ends: a day (its beginning in UTC) or an instant. `tidegate lint` tells of \
             overrides that have ended.",
        ),
        field("reason", Kind::Text, "reason: launch week", "For whoever reads the file later."),
    ],
};

/// A limit that is tried beside another.
pub(in crate::policy) static VARIANT: Table = Table {
    name: "shadow",
    about: "A limit that is tried beside another. What it does not say is as in the other; with \
            another `rate`, a `burst` that is not said is the rate's count again.",
    also: None,
    fields: &[ALGORITHM, RATE, REQUESTS, PER, BURST, QUEUE],
};

/// How periods follow the calendar.
pub(in crate::policy) static CALENDAR: Table = Table {
    name: "calendar",
    about: "Whose calendar.",
    also: None,
    fields: &[
        field(
            "tz",
            Kind::Text,
            "tz: Europe/Paris",
            "The time zone, by its IANA name. UTC by default.",
        ),
        field(
            "week_starts",
            Kind::Choice(&[
                "monday",
                "tuesday",
                "wednesday",
                "thursday",
                "friday",
                "saturday",
                "sunday",
            ]),
            "week_starts: sunday",
            "The first day of a week. Monday by default.",
        ),
    ],
};

/// Ways to choose values.
pub(in crate::policy) static MATCH: Table = Table {
    name: "match",
    about: "Exactly one way to choose values. An exact value, alone or in a list, goes before all \
            others; then the longest network, the longest prefix and the glob with most letters.",
    also: None,
    fields: &[
        field("one_of", Kind::Texts, "one_of: [gold, silver]", "Any of these values."),
        field("prefix", Kind::Text, "prefix: /v1/", "Values that begin so."),
        field("glob", Kind::Text, "glob: '*.example.com'", "Values like this, `*` being anything."),
        field("cidr", Kind::Text, "cidr: 10.0.0.0/8", "Addresses of this network."),
    ],
};

/// A limit as envoyproxy/ratelimit writes it.
pub(in crate::policy) static RATE_LIMIT: Table = Table {
    name: "rate_limit",
    about: "A limit as envoyproxy/ratelimit writes it.",
    also: None,
    fields: &[
        field(
            "unit",
            Kind::Word(&["second", "minute", "hour", "day", "week", "month", "year"]),
            "unit: minute",
            "The window, in upper or lower case. A month has 30 days and a year 365.",
        ),
        field(
            "requests_per_unit",
            Kind::Number(0, u32::MAX as u64),
            "requests_per_unit: 5",
            "How many; 0 denies everything.",
        ),
        UNLIMITED,
        field("name", Kind::Text, "name: per_user", "What `replaces` and answers call it."),
        field(
            "replaces",
            Kind::Maps(&REPLACES),
            "replaces: [{name: per_user}]",
            "Limits that do not apply to a request that meets this one.",
        ),
    ],
};

/// A limit that another one replaces.
pub(in crate::policy) static REPLACES: Table = Table {
    name: "replaces",
    about: "A limit that does not apply where this one does.",
    also: None,
    fields: &[field("name", Kind::Text, "name: per_user", "Its name.").required()],
};
