//! The fields that turn an HTTP request into descriptors.

use super::{Kind, Table, field};

/// How requests become descriptors.
pub(in crate::policy) static REQUESTS: Table = Table {
    name: "requests",
    about: "How an HTTP request becomes descriptors.",
    also: None,
    fields: &[
        field(
            "trusted_proxies",
            Kind::Number(0, 64),
            "trusted_proxies: 1",
            "How many proxies of ours append to `X-Forwarded-For`. The client's address is taken \
             from before them; with 0, the default, it is the address that the request came from.",
        ),
        field(
            "rules",
            Kind::Maps(&RULE),
            "rules: [{path: /v1/users, descriptors: []}]",
            "Every rule that matches a request adds its descriptors, in order.",
        ),
    ],
};

/// Which requests, and what is asked about them.
pub(in crate::policy) static RULE: Table = Table {
    name: "rule of requests",
    about: "Which requests, and which descriptors they get.",
    also: None,
    fields: &[
        field(
            "path",
            Kind::Text,
            "path: /v1/users/{id}/orders",
            "A path in which `{name}` stands for one segment, and a last `{name...}` for all that \
             follow. Every path by default. Compared with the normalised path.",
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
            "The descriptors.",
        )
        .required(),
    ],
};

/// A descriptor to be made.
pub(in crate::policy) static DESCRIPTOR: Table = Table {
    name: "descriptor of requests",
    about: "A descriptor to be made of a request.",
    also: None,
    fields: &[field(
        "entries",
        Kind::Maps(&ENTRY),
        "entries: [{key: client, client_ip: true}]",
        "Its entries, in order. If one of them has no value, the descriptor is left out.",
    )
    .required()],
};

/// An entry to be made.
pub(in crate::policy) static ENTRY: Table = Table {
    name: "entry of requests",
    about: "A key, and exactly one place where its value comes from.",
    also: None,
    fields: &[
        field("key", Kind::Text, "key: api_key", "The key of the entry.").required(),
        field(
            "default",
            Kind::Text,
            "default: anonymous",
            "The value where the request has none; without it the descriptor is left out.",
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
            "`X-API-Key`, the token of `Authorization: Bearer` and the user of `Basic`. A request with \
             both headers gets the descriptor once for each key.",
        ),
        field("client_ip", Kind::Flag, "client_ip: true", "The address of the client."),
        field("method", Kind::Flag, "method: true", "The method."),
        field("path", Kind::Flag, "path: true", "The normalised path, without the query."),
        field(
            "path_template",
            Kind::Flag,
            "path_template: true",
            "The `path` of the rule as it is written: one value for all that match it.",
        ),
        field(
            "path_parameter",
            Kind::Text,
            "path_parameter: id",
            "A segment of the path, by name.",
        ),
        field("host", Kind::Flag, "host: true", "The host, without the port."),
        field("query", Kind::Text, "query: token", "A parameter of the query."),
        field("cookie", Kind::Text, "cookie: session", "A cookie."),
        field("value", Kind::Text, "value: checkout", "Always this."),
    ],
};
