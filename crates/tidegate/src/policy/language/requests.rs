//! The fields that turn an HTTP request into descriptors.

use super::{Kind, Table, field};

/// The rules that turn requests into descriptors.
pub(in crate::policy) static REQUESTS: Table = Table {
    name: "requests",
    about: "How an HTTP request becomes descriptors.",
    also: None,
    fields: &[
        field(
            "trusted_proxies",
            Kind::Number(0, 64),
            "trusted_proxies: 1",
            "The number of your own proxies that append to `X-Forwarded-For`. The client's address \
             is the one that the outermost of them appended; with 0, the default, it is the peer's \
             address.",
        ),
        field(
            "rules",
            Kind::Maps(&RULE),
            "rules: [{path: /v1/users, descriptors: []}]",
            "Every rule that matches a request adds its descriptors, in order.",
        ),
    ],
};

/// One rule: which requests it matches and which descriptors it yields.
pub(in crate::policy) static RULE: Table = Table {
    name: "rule of requests",
    about: "Which requests match, and the descriptors they yield.",
    also: None,
    fields: &[
        field(
            "path",
            Kind::Text,
            "path: /v1/users/{id}/orders",
            "A path in which `{name}` matches one segment, and a last `{name...}` all that follow. \
             Compared with the normalised path. Every path by default.",
        ),
        field("methods", Kind::Texts, "methods: [GET, POST]", "Every method by default."),
        field(
            "hosts",
            Kind::Texts,
            "hosts: [api.example.com, '*.example.org']",
            "Every host by default.",
        ),
        field(
            "descriptors",
            Kind::Maps(&DESCRIPTOR),
            "descriptors: [{entries: [{key: method, method: true}]}]",
            "The descriptors. May be empty if the rule has a `class` or a `protect`.",
        )
        .required(),
        field(
            "class",
            Kind::Text,
            "class: critical",
            "The class of the request, by its name. Of several rules that match and name one, the \
             first decides.",
        ),
        field(
            "protect",
            Kind::Text,
            "protect: reports",
            "The concurrency limiter that protects the request's route, by its name; `none` for \
             routes such as health checks. Of several rules that match and name one, the first \
             decides.",
        ),
    ],
};

/// A descriptor that a rule yields.
pub(in crate::policy) static DESCRIPTOR: Table = Table {
    name: "descriptor of requests",
    about: "A descriptor that a request yields.",
    also: None,
    fields: &[field(
        "entries",
        Kind::Maps(&ENTRY),
        "entries: [{key: client, client_ip: true}]",
        "Its entries, in order. If one of them has no value, the descriptor is left out.",
    )
    .required()],
};

/// An entry of such a descriptor.
pub(in crate::policy) static ENTRY: Table = Table {
    name: "entry of requests",
    about: "A key and exactly one source of its value.",
    also: None,
    fields: &[
        field("key", Kind::Text, "key: api_key", "The key of the entry.").required(),
        field(
            "default",
            Kind::Text,
            "default: anonymous",
            "The value if the request has none; without a default the descriptor is left out.",
        ),
        field(
            "header",
            Kind::Text,
            "header: x-user-id",
            "A header, by its name in any case. Two values that differ are refused.",
        ),
        field(
            "api_key",
            Kind::Flag,
            "api_key: true",
            "`X-API-Key`, the token of `Authorization: Bearer` and the user of `Basic`. A request \
             with both headers yields the descriptor once per key.",
        ),
        field("client_ip", Kind::Flag, "client_ip: true", "The address of the client."),
        field("method", Kind::Flag, "method: true", "The method."),
        field("path", Kind::Flag, "path: true", "The normalised path, without the query."),
        field(
            "path_template",
            Kind::Flag,
            "path_template: true",
            "The `path` of the rule as written: one value for all paths that match it.",
        ),
        field("path_parameter", Kind::Text, "path_parameter: id", "A path parameter, by name."),
        field("host", Kind::Flag, "host: true", "The host, without the port."),
        field("query", Kind::Text, "query: token", "A query field, by name."),
        field("cookie", Kind::Text, "cookie: session", "A cookie."),
        field("value", Kind::Text, "value: checkout", "A constant value."),
    ],
};
