//! The fields that protect a server from overload.

use super::{Kind, MODES, Table, field};

/// A class of requests.
pub(in crate::policy) static CLASS: Table = Table {
    name: "class",
    about: "How important some requests are. The first class is the most important one; the others \
            are shed before it.",
    also: None,
    fields: &[
        field("name", Kind::Text, "name: critical", "The name that rules use.").required(),
        field(
            "max_share",
            Kind::Percent,
            "max_share: 90%",
            "The part of a concurrency limit at which requests of this class are refused, counting \
             requests of all classes. 100 % for the first class and 10 points less for each class \
             after it, at least 50 %, by default. No class may have more than the one before.",
        ),
        field(
            "default",
            Kind::Flag,
            "default: true",
            "The class of requests whose rules and plans name none. The last class by default.",
        ),
        field(
            "plans",
            Kind::Texts,
            "plans: [enterprise]",
            "Requests of these plans belong to the class, unless a rule names another one.",
        ),
    ],
};

/// The header that names a class.
pub(in crate::policy) static CLASS_HEADER: Table = Table {
    name: "class_header",
    about: "A header in which a request names its class. Every client may lower its class with it; \
            only trusted peers may raise it. The header `priority` (RFC 9218) names no class: its urgencies \
            `u=4` to `u=7` lower the class by one to four, and nothing raises it.",
    also: None,
    fields: &[
        field("name", Kind::Text, "name: x-class", "The header.").required(),
        field(
            "trusted",
            Kind::Texts,
            "trusted: [10.0.0.0/8]",
            "Networks of peers, such as your own gateways, that may raise the class of a request. \
             They have to remove the header that a client sent. None by default; not with `priority`.",
        ),
    ],
};

/// A concurrency limiter.
pub(in crate::policy) static PROTECT: Table = Table {
    name: "protect",
    about: "A concurrency limiter for the requests of some routes that share a backend. The tower \
            layer and the gateway apply it; the daemon's other listeners do not.",
    also: None,
    fields: &[
        field("name", Kind::Text, "name: api", "The name that rules use.").required(),
        field(
            "estimator",
            Kind::Choice(&["adaptive", "fixed", "aimd", "gradient2"]),
            "estimator: fixed",
            "How the limit is found. `adaptive`, the default, follows the latency of the server; \
             `fixed` is constant; `aimd` follows 503, 504 and `slow_after`; `gradient2` is Netflix's, \
             whose limit drifts upwards under sustained overload.",
        ),
        field(
            "limit",
            Kind::Number(1, 1_000_000),
            "limit: 8",
            "With `fixed`: the requests in progress.",
        ),
        field(
            "min_limit",
            Kind::Number(1, 1_000_000),
            "min_limit: 8",
            "The lowest limit. 4 by default.",
        ),
        field(
            "max_limit",
            Kind::Number(1, 1_000_000),
            "max_limit: 400",
            "The highest limit. 1000 by default.",
        ),
        field(
            "tolerance",
            Kind::Percent,
            "tolerance: 150%",
            "With `adaptive`: how slow requests may get before the limit falls, in relation to the \
             latency without queueing. From 110% to 1000%; 150% by default.",
        ),
        field(
            "queue",
            Kind::Percent,
            "queue: 50%",
            "Requests that may wait for a permit, in relation to the limit. From 0% to 1000%; 100% \
             by default.",
        ),
        field(
            "queue_timeout",
            Kind::Period,
            "queue_timeout: 2s",
            "How long a request may wait. A tenth of it while the queue has not been empty for \
             100 ms. From 1ms to 10min; 100ms by default.",
        ),
        field(
            "hold",
            Kind::Choice(&["body", "head"]),
            "hold: head",
            "When a request ends: with its response body, the default, or with the head of its \
             response, for downloads whose readers are slow.",
        ),
        field(
            "slow_after",
            Kind::Period,
            "slow_after: 30s",
            "A request that took longer counts as a sign of overload, whatever its status.",
        ),
        field(
            "utilisation",
            Kind::Map(&UTILISATION),
            "utilisation: {busy: 90%, calm: 75%}",
            "Also sheds the least important classes, step by step, while the workers are busy, and \
             restores them slowly. Off by default.",
        ),
        field(
            "mode",
            Kind::Choice(MODES),
            "mode: shadow",
            "`enforce`; `shadow`: admits every request and counts those it would shed; `off`.",
        ),
    ],
};

/// The utilisation shedder.
pub(in crate::policy) static UTILISATION: Table = Table {
    name: "utilisation",
    about: "When the least important traffic is shed, and how fast. Utilisation is the larger of \
            requests in progress in relation to the limit, and the lateness of a timer in relation \
            to 20 ms.",
    also: None,
    fields: &[
        field(
            "busy",
            Kind::Percent,
            "busy: 90%",
            "From this utilisation on, more requests are shed. 90% by default.",
        ),
        field(
            "calm",
            Kind::Percent,
            "calm: 75%",
            "After a second below this utilisation, fewer requests are shed. 75% by default.",
        ),
        field(
            "up",
            Kind::Percent,
            "up: 5%",
            "The part of a class that is shed more per second. From 1% to 100%; 5% by default.",
        ),
        field(
            "down",
            Kind::Percent,
            "down: 2%",
            "The part of a class that is restored per second. From 1% to 100%; 2% by default.",
        ),
    ],
};
