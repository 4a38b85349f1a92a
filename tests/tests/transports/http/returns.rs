//! Calls that return units: who may make them.

use serde_json::{Value, json};
use tidegate_server::Settings;
use tidegate_tests::http;

use super::*;

/// A reservation, which is not open.
const RESERVATION: &str = "0100000000000000010000000000000002000000000000000100000000000000000300000000000000050000000035a4e900000101019101910000000000000000056c6f67696e00000003626f6200000003626f62";

/// Every call that returns units.
fn returning() -> [(&'static str, Value); 6] {
    let taken = json!({ "entries": [["api_key", "k1"]], "cost": 1 });
    let given_back = json!({ "entries": [["api_key", "k1"]], "cost": -1 });
    let question = |side: &Value| json!({ "domain": "api", "descriptors": [side] });
    let entries = json!([{ "key": "api_key", "value": "k1" }]);
    let negative = json!({ "entries": entries, "isNegativeHits": true });
    [
        ("/v1/settle", json!({ "reservation": RESERVATION, "cancel": true })),
        ("/v1/refund", question(&taken)),
        ("/v1/reset", question(&taken)),
        ("/v1/check", question(&given_back)),
        ("/v1/batch", json!({ "questions": [question(&taken), question(&given_back)] })),
        ("/json", json!({ "domain": "api", "descriptors": [negative] })),
    ]
}

fn status(transport: &Transport, path: &str, headers: &str, body: &Value) -> u16 {
    let at = ("127.0.0.1", transport.address().port());
    let (body, call) = (body.to_string(), format!("POST {path} HTTP/1.1\r\nconnection: close\r\n"));
    let length = body.len();
    http::send(at, format!("{call}{headers}content-length: {length}\r\n\r\n{body}")).status
}

/// On every address of the machine, on a port of the system's choice.
fn everywhere(token: Option<&str>) -> Transport {
    let http = Some(([0, 0, 0, 0], 0).into());
    let http_token = token.map(Into::into);
    Transport::with(&Settings { http, http_token, ..settings() }, POLICY)
}

/// How many units of the key are left.
fn remaining(transport: &Transport) -> u64 {
    let question = json!({ "domain": "api", "descriptors": [{ "api_key": "k1" }] }).to_string();
    let at = ("127.0.0.1", transport.address().port());
    let answer = http::ask(at, "POST /v1/peek", "", &question).json();
    answer["remaining"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn units_are_returned_beyond_loopback_with_a_token_only() {
    let host = "host: limits.internal\r\n";
    let open = everywhere(None);
    let check = json!({ "domain": "api", "descriptors": [{ "api_key": "k1" }] });
    assert_eq!(status(&open, "/v1/check", host, &check), 200);
    let left = remaining(&open);
    for (path, body) in returning() {
        assert_eq!(status(&open, path, host, &body), 403, "{path}");
        assert_eq!(status(&open, path, "host: localhost\r\n", &body), 403, "{path}");
        assert_eq!(remaining(&open), left, "{path} changed nothing");
    }
    let known = |token: &str| format!("{host}authorization: Bearer {token}\r\n");
    let local =
        Transport::with(&Settings { http_token: Some("s3cret".into()), ..settings() }, POLICY);
    for transport in [everywhere(Some("s3cret")), local] {
        assert_eq!(
            status(&transport, "/v1/check", host, &check),
            200,
            "it takes, so it needs none"
        );
        for (path, body) in returning() {
            assert_eq!(status(&transport, path, host, &body), 401, "{path}");
            assert_eq!(status(&transport, path, &known("s3cre"), &body), 401, "{path}");
            assert_eq!(status(&transport, path, &known("s3cret"), &body), 200, "{path}");
        }
    }
}

#[test]
fn no_web_page_returns_units_on_loopback() {
    let transport = Transport::open(POLICY);
    for (path, body) in returning() {
        let with = |headers: &str| status(&transport, path, headers, &body);
        assert_eq!(with("host: localhost\r\n"), 200, "{path}");
        assert_eq!(with("host: localhost\r\norigin: http://evil.example\r\n"), 403, "{path}");
        assert_eq!(with("host: localhost\r\nsec-fetch-site: cross-site\r\n"), 403, "{path}");
        assert_eq!(with("host: evil.example\r\n"), 421, "{path}");
    }
}
