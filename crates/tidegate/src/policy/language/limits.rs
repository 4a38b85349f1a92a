//! The fields of limits.

use tidegate_core::algorithm::inflight::InFlight;

use super::{Field, Kind, MODES, Table, field};
use crate::store::shards::MAX_SHARDS;

const ALGORITHMS: &[&str] =
    &["fixed_window", "sliding_log", "sliding_window", "token_bucket", "gcra", "leaky_bucket"];
const MAX_COST: u64 = 1 << 32;

// Fields that occur in more than one table.
const RATE: Field = field(
    "rate",
    Kind::Rate,
    "rate: 100/s",
    "Units per period: `s`, `min`, `h`, `day`, `week`, `month` (30 days), `year` (365), or a \
     multiple: `20/5m`. For windows the period is the window.",
);
const REQUESTS: Field = field(
    "requests",
    Kind::Number(0, 1 << 52),
    "requests: 100",
    "The count of a rate whose period is `per`.",
);
const PER: Field =
    field("per", Kind::Period, "per: 5m", "The period of a rate whose count is `requests`.");
const BURST: Field = field(
    "burst",
    Kind::Number(1, 1 << 52),
    "burst: 50",
    "Buckets: units that an idle key may take at once. The rate's count by default; 1 for `gcra` \
     and `leaky_bucket`.",
);
const QUEUE: Field = field(
    "queue",
    Kind::Number(0, 1 << 52),
    "queue: 20",
    "`leaky_bucket`: units that may be delayed. The rate's count by default.",
);
const IN_FLIGHT: Field = field(
    "in_flight",
    Kind::Number(1, InFlight::MAX),
    "in_flight: 20",
    "Requests that may run at once, instead of a `rate`. A request takes its place with an acquire \
     call and frees it with a release call (library, HTTP, RESP). Callers that cannot release \
     (Envoy's rate limit service, `/v1/auth`, `/v1/check`, `TG.CHECK`) skip the limit, and a metric \
     counts that. Always exact. A request takes the limit's own `cost`, whatever it costs elsewhere.",
);
const ALGORITHM: Field = field(
    "algorithm",
    Kind::Choice(ALGORITHMS),
    "algorithm: sliding_window",
    "The algorithm. `token_bucket` by default.",
);
const COST: Field = field(
    "cost",
    Kind::Number(0, MAX_COST),
    "cost: 5",
    "The cost of a request that does not state one. 1 by default.",
);
const MODE: Field = field(
    "mode",
    Kind::Choice(MODES),
    "mode: shadow",
    "`enforce`; `shadow`: decided and counted, but denies no request; `off`: not decided.",
);
const TIER: Field = field(
    "tier",
    Kind::Choice(&["exact", "leased"]),
    "tier: leased",
    "`exact` decides in the store; `leased` decides from units that a node has leased, for keys \
     with hundreds of requests per second. Neither exceeds the limit. A leased bucket has a \
     smaller burst, by the units that its rate gives in 100 ms, and needs a burst of at least four \
     times that. Sliding logs, leaky buckets, in-flight limits and windows that count denied \
     requests are always exact.",
);
const ON_STORE_FAILURE: Field = field(
    "on_store_failure",
    Kind::Choice(&["allow", "deny", "local"]),
    "on_store_failure: deny",
    "The fallback while the store is unavailable. `local`, the default: each node enforces 1.5 × \
     limit / nodes. `allow` admits and `deny` denies every request. Admitted requests are charged \
     when the store recovers.",
);
const REFUND_STALENESS: Field = field(
    "refund_staleness",
    Kind::Period,
    "refund_staleness: 5s",
    "With Redis: how long a node may deny a key from its cache after another node has returned \
     units to it. `1s` by default; `0s` asks Redis each time.",
);
const SHARDS: Field = field(
    "shards",
    Kind::Number(2, MAX_SHARDS as u64),
    "shards: 8",
    "With Redis: the number of shards of each key, for keys with more than about 50,000 decisions \
     per second. Admits at most the limit, usually slightly less. A changed number resets all \
     keys.",
);
const LOCAL_BUCKET: Field = field(
    "local",
    Kind::Map(&LOCAL),
    "local: {rate: 200/s, burst: 50}",
    "A local pre-limit: a bucket on each node in front of the limit. It denies requests without a \
     call to the store, and is charged together with the limit.",
);
const UNLIMITED: Field = field(
    "unlimited",
    Kind::Flag,
    "unlimited: true",
    "Every request is allowed and none is counted.",
);

/// Defaults of a domain for all its limits.
pub(in crate::policy) static DEFAULTS: Table = Table {
    name: "defaults",
    about: "Default fields for all limits of the domain.",
    also: None,
    fields: &[ALGORITHM, COST, MODE, TIER, ON_STORE_FAILURE, REFUND_STALENESS],
};

/// A limit in Tidegate's form.
pub(in crate::policy) static LIMIT: Table = Table {
    name: "limit",
    about: "A limit. It needs a `rate`, or `requests` and `per`, or `in_flight`; other fields are \
            optional.",
    also: None,
    fields: &[
        field(
            "name",
            Kind::Text,
            "name: per_key",
            "The limit's name in answers and metrics. A renamed limit starts with fresh keys.",
        ),
        RATE,
        REQUESTS,
        PER,
        BURST,
        QUEUE,
        IN_FLIGHT,
        field(
            "ttl",
            Kind::Period,
            "ttl: 60s",
            "With `in_flight`: a place is free again after this time unless its holder releases or \
             renews it, so that a crashed holder does not keep it. From 1s to 1d; 60s by default. \
             Permits of the library renew their places.",
        ),
        field(
            "reserve",
            Kind::Percent,
            "reserve: 20%",
            "With `in_flight`: the part that is kept for the first of the `classes`. Requests of the \
             other classes are denied when they fill the rest.",
        ),
        field(
            "status",
            Kind::Number(429, 503),
            "status: 503",
            "The HTTP status of a denial: 429 for clients over their quota, or 503 for a server that \
             sheds load; an in-flight limit then spreads retries over 1 to 10 seconds. 429 by default; \
             503 with `reserve`. Envoy chooses the status itself (`rate_limited_status`, 429 unless set), because its rate \
             limit service has only OVER_LIMIT for denials.",
        ),
        ALGORITHM,
        COST,
        field(
            "count_denied",
            Kind::Flag,
            "count_denied: true",
            "`fixed_window`: denied requests count towards the window too.",
        ),
        field(
            "block_for",
            Kind::Period,
            "block_for: 10m",
            "After a denial, the key is denied for this long, from 1s to 30d. Later denials do not \
             extend the block; a reset or an operator (`/v1/blocks` on the admin port) lifts it. \
             Such a limit is always exact. Adding or removing the field resets the limit's keys.",
        ),
        field(
            "count",
            Kind::Statuses,
            "count: [401, 403]",
            "Only requests whose responses have one of these statuses count. Names are codes of gRPC \
             calls, as in `count: [UNAUTHENTICATED]`. Units are taken first and returned by the \
             status of the response, so parallel requests cannot exceed the limit. Needs a call that settles (library, tower layer, `/v1/settle`, `TG.SETTLE`); \
             elsewhere every request counts. Such a limit is always exact.",
        ),
        field(
            "refund",
            Kind::Statuses,
            "refund: [304, 5xx]",
            "Requests whose responses have one of these statuses do not count. The opposite of \
             `count`, and settled in the same way.",
        ),
        field(
            "actual",
            Kind::Map(&ACTUAL),
            "actual: {header: x-tokens}",
            "The actual cost is known after the response: `cost` is reserved, then the difference is \
             returned or booked, once. A reservation that is not settled within an hour stands. \
             Settled as `count` is.",
        ),
        field(
            "calendar",
            Kind::Map(&CALENDAR),
            "calendar: {tz: Europe/Paris}",
            "Counts by calendar periods: the rate is per `hour`, `day`, `week`, `month` or `year` \
             of their actual length. Implies `fixed_window`.",
        ),
        MODE,
        field(
            "enforce",
            Kind::Percent,
            "enforce: 25%",
            "Enforces the limit for this share of the keys only, chosen by a hash that is the same \
             on every node; for other keys the limit is in shadow mode. A larger share only adds \
             keys. The hash is predictable unless the daemon has `policy.enforce_secret_file`.",
        ),
        field(
            "shadow",
            Kind::Map(&VARIANT),
            "shadow: {rate: 50/s}",
            "Another limit that is evaluated on the same requests with its own state. It denies no \
             request; metrics count how often the two agree. Skipped for values with numbers of a \
             plan or an override.",
        ),
        field(
            "plans",
            Kind::Named(&NUMBERS),
            "plans: {pro: {rate: 1000/s, burst: 2000}}",
            "Other numbers for the plans of the domain; all other values have the limit's own.",
        ),
        field(
            "overrides",
            Kind::Maps(&OVERRIDE),
            "overrides: [{value: acme, rate: 5000/s, until: 2031-01-01}]",
            "Other numbers for single values; they take precedence over plans.",
        ),
        TIER,
        ON_STORE_FAILURE,
        REFUND_STALENESS,
        SHARDS,
        LOCAL_BUCKET,
    ],
};

/// Where the actual cost of a request is found.
pub(in crate::policy) static ACTUAL: Table = Table {
    name: "actual",
    about: "Where the actual cost of a request is found, one of three.",
    also: None,
    fields: &[
        field(
            "header",
            Kind::Text,
            "header: x-tokens",
            "In this header of the response, as a whole number. Without it the reservation stands.",
        ),
        field(
            "trailer",
            Kind::Text,
            "trailer: x-tokens",
            "In this trailer of the response, as a whole number. Without it the reservation stands.",
        ),
        field(
            "application",
            Kind::Flag,
            "application: true",
            "The application reports the cost: a handler, or the caller of `/v1/settle` or `TG.SETTLE`.",
        ),
    ],
};

/// The local pre-limit of a limit.
pub(in crate::policy) static LOCAL: Table = Table {
    name: "local",
    about: "A token bucket on each node, in front of a limit: a `rate`, or `requests` and `per`, \
            and optionally a `burst`, by default the rate's count.",
    also: None,
    fields: &[RATE, REQUESTS, PER, BURST],
};

/// Other numbers for the same limit.
pub(in crate::policy) static NUMBERS: Table = Table {
    name: "numbers of a plan",
    about: "Numbers that replace those of the limit; the algorithm stays. Each plan has its own \
            state; an override keeps the state of the limit. With another `rate`, the default \
            `burst` is the new rate's count.",
    also: None,
    fields: &[RATE, REQUESTS, PER, BURST, QUEUE, IN_FLIGHT, UNLIMITED],
};

/// Other numbers for one value.
pub(in crate::policy) static OVERRIDE: Table = Table {
    name: "override",
    about: "Other numbers for one value, permanently or until a date.",
    also: Some(&NUMBERS),
    fields: &[
        field("value", Kind::Text, "value: acme", "The value of the descriptor's entry, exactly.")
            .required(),
        field(
            "until",
            Kind::Date,
            "until: 2031-01-01T00:00:00Z",
            "When the override ends: a date (its start in UTC) or an instant. `tidegate lint` \
             warns of overrides that have ended.",
        ),
        field(
            "reason",
            Kind::Text,
            "reason: launch week",
            "Why the override exists. Not interpreted.",
        ),
    ],
};

/// A shadow limit, evaluated beside another one.
pub(in crate::policy) static VARIANT: Table = Table {
    name: "shadow",
    about: "A shadow limit beside another one. Its other fields default to those of that limit; \
            with another `rate`, the default `burst` is the new rate's count.",
    also: None,
    fields: &[ALGORITHM, RATE, REQUESTS, PER, BURST, QUEUE],
};

/// Calendar periods.
pub(in crate::policy) static CALENDAR: Table = Table {
    name: "calendar",
    about: "The time zone and the first day of the week.",
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

/// Matchers for values.
pub(in crate::policy) static MATCH: Table = Table {
    name: "match",
    about: "Exactly one way to match values. An exact value, alone or in a list, takes precedence; \
            then the longest network, the longest prefix and the glob with the most letters.",
    also: None,
    fields: &[
        field("one_of", Kind::Texts, "one_of: [gold, silver]", "Any of these values."),
        field("prefix", Kind::Text, "prefix: /v1/", "Values that begin with this text."),
        field(
            "glob",
            Kind::Text,
            "glob: '*.example.com'",
            "Values that match this pattern; `*` stands for any number of characters.",
        ),
        field("cidr", Kind::Text, "cidr: 10.0.0.0/8", "Addresses of this network."),
    ],
};

/// A limit in the form of envoyproxy/ratelimit.
pub(in crate::policy) static RATE_LIMIT: Table = Table {
    name: "rate_limit",
    about: "A limit in the form of envoyproxy/ratelimit.",
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
            "Requests per window; 0 denies every request.",
        ),
        UNLIMITED,
        field("name", Kind::Text, "name: per_user", "The limit's name in `replaces` and answers."),
        field(
            "replaces",
            Kind::Maps(&REPLACES),
            "replaces: [{name: per_user}]",
            "Limits that do not apply to a request to which this one applies.",
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
