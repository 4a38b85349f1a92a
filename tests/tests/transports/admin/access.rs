//! Which calls on the admin port are answered: by address, token, `Host` and `Origin`.

use tidegate_server::KeyValues;

use super::*;

/// Calls that name or change keys, with a body that can be carried out.
const KEYED: [(&str, &str); 9] = [
    ("GET /v1/hot-keys", ""),
    ("GET /v1/local-overrides", ""),
    ("POST /v1/reset", r#"{"key":"k1"}"#),
    ("PUT /v1/overrides", r#"{"limit":"api/user#","percent":50,"seconds":60}"#),
    ("DELETE /v1/overrides", r#"{"limit":"api/user#"}"#),
    ("PUT /v1/kill-switch", r#"{"domain":"api"}"#),
    ("DELETE /v1/kill-switch", r#"{"domain":"api"}"#),
    ("DELETE /v1/local-overrides", r#"{"domain":"api","descriptor":[["user","bob"]]}"#),
    ("PUT /v1/log-level", r#"{"level":"info"}"#),
];

/// Calls that name no key.
const UNKEYED: [&str; 7] = [
    "GET /",
    "GET /v1/status",
    "GET /v1/policy",
    "GET /v1/overrides",
    "GET /v1/kill-switch",
    "GET /stats",
    "GET /rlconfig",
];

/// Calls of probes and scrapers.
const PUBLIC: [&str; 3] = ["GET /metrics", "GET /healthz", "GET /readyz"];

/// The status of a call on the admin port, sent with these headers and no others.
fn call(daemon: &Daemon, call: &str, headers: &str, body: &str) -> u16 {
    let port = daemon.server.admin().expect("open").port();
    let length = body.len();
    let head = format!("{call} HTTP/1.1\r\nconnection: close\r\n{headers}");
    let request = format!("{head}content-length: {length}\r\n\r\n{body}");
    http::send(("127.0.0.1", port), request).status
}

/// On every address of the machine, on a port of the system's choice.
fn everywhere(token: Option<&str>) -> Daemon {
    daemon_with(|settings| {
        settings.admin = Some(([0, 0, 0, 0], 0).into());
        settings.token = token.map(Into::into);
    })
}

#[test]
fn calls_that_name_or_change_keys_need_a_token_beyond_loopback() {
    let local = "host: localhost\r\n";
    let (open, here) = (everywhere(None), daemon(None));
    for (line, body) in KEYED {
        assert_eq!(call(&open, line, local, body), 403, "{line}");
        assert_eq!(call(&here, line, local, body), 200, "{line}");
    }
    for line in UNKEYED.into_iter().chain(PUBLIC) {
        assert_eq!(call(&open, line, "host: limits.internal\r\n", ""), 200, "{line}");
    }
    for daemon in [everywhere(Some("s3cret")), daemon(Some("s3cret"))] {
        for (line, body) in KEYED {
            let with = |authorization: &str| {
                let headers = format!("{local}authorization: {authorization}\r\n");
                call(&daemon, line, &headers, body)
            };
            assert_eq!(call(&daemon, line, local, body), 401, "{line}");
            assert_eq!((with("Bearer s3cre"), with("Bearer s3cret2")), (401, 401), "{line}");
            assert_eq!((with("Basic s3cret"), with("Bearer s3cret")), (401, 200), "{line}");
        }
        assert_eq!(call(&daemon, "GET /v1/policy", local, ""), 200);
    }
}

/// DNS rebinding: a browser takes a page of any name for one of this port, and sends that name.
#[test]
fn only_names_of_the_listener_are_answered_on_loopback() {
    let daemon = daemon(None);
    let port = daemon.server.admin().expect("open").port();
    let named = |line: &str, host: &str, body: &str| {
        call(&daemon, line, &format!("host: {host}\r\n"), body)
    };
    for (line, body) in KEYED.into_iter().chain(UNKEYED.map(|line| (line, ""))) {
        for host in ["evil.example", "192.0.2.1", &format!("evil.example:{port}")] {
            assert_eq!(named(line, host, body), 421, "{line} of {host}");
        }
        let target = line.replace(" /", &format!(" http://evil.example:{port}/"));
        assert_eq!(named(&target, "localhost", body), 421, "{target}");
        assert_eq!(call(&daemon, line, "", body), 421, "{line} of no host");
        for host in ["localhost", "127.0.0.1", &format!("localhost:{port}"), "[::1]:6070"] {
            assert_eq!(named(line, host, body), 200, "{line} of {host}");
        }
    }
    for line in PUBLIC {
        assert_eq!(named(line, "evil.example", ""), 200, "{line}");
    }
    let daemon = daemon_with(|settings| settings.hosts = vec!["limits.internal".into()]);
    let named = |host: &str| call(&daemon, "GET /v1/hot-keys", &format!("host: {host}\r\n"), "");
    assert_eq!((named("limits.internal:80"), named("evil.example")), (200, 421));
}

#[test]
fn web_pages_of_other_origins_are_refused() {
    let daemon = daemon(Some("s3cret"));
    let known = "host: localhost:7\r\nauthorization: Bearer s3cret\r\n";
    for (line, body) in KEYED.into_iter().chain(UNKEYED.map(|line| (line, ""))) {
        let with = |header: &str| call(&daemon, line, &format!("{known}{header}\r\n"), body);
        for header in [
            "origin: http://evil.example",
            "origin: http://localhost:8",
            "origin: null",
            "sec-fetch-site: cross-site",
            "sec-fetch-site: same-site",
        ] {
            assert_eq!(with(header), 403, "{line} with {header}");
        }
        for header in ["origin: http://localhost:7", "sec-fetch-site: none"] {
            assert_eq!(with(header), 200, "{line} with {header}");
        }
    }
}

#[test]
fn values_of_keys_are_shown_as_set() {
    // The first digits of what `printf sk-live-4242 | sha256sum` prints.
    let (hash, short) = ("9e9d47c43ac3ba2a", "sk-l…9e9d47c4");
    for (values, shown) in
        [(KeyValues::Plain, "sk-live-4242"), (KeyValues::Short, short), (KeyValues::Hash, hash)]
    {
        let daemon = daemon_with(|settings| settings.key_values = values);
        assert_eq!(daemon.passed("sk-live-4242"), 4);
        let given = json!({ "key": "sk-live-4242", "rate": "1/h" }).to_string();
        ask(daemon.server.http().expect("open"), "POST /v1/check", "", &given);
        let (_, answer) = daemon.admin("GET /v1/hot-keys", &Value::Null);
        let policy = format!("api/user={shown}");
        assert_eq!(answer["asked"][0], json!({ "key": policy, "requests": 10 }));
        assert_eq!(answer["asked"][1], json!({ "key": shown, "requests": 1 }));
        assert_eq!(answer["denied"], json!([{ "key": policy, "requests": 6 }]));
    }
}
