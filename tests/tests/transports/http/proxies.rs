//! `/v1/auth`, asked as proxies do.

use serde_json::Value;
use tidegate_server::{Answers, Body, Settings};

use super::*;

/// A policy that has one domain only, so that none need be named.
const ONLY: &str = "
domain: api
requests:
  rules:
    - path: /items/{id}
      methods: [GET]
      hosts: [example.org]
      descriptors:
        - entries:
            - {key: api_key, header: x-api-key}
descriptors:
  - key: api_key
    rate: 1/min
";

#[test]
fn a_proxy_asks_before_it_forwards() {
    let transport = Transport::open(POLICY);
    for (number, headers) in [
        "x-forwarded-method: GET\r\nx-forwarded-uri: /items/7?x=1\r\nx-api-key: k9\r\n",
        "x-original-method: POST\r\nx-original-uri: /items/8\r\nx-api-key: k9\r\n",
        "x-original-url: https://example.org/items/9\r\nx-api-key: k9\r\n",
    ]
    .iter()
    .enumerate()
    {
        let path = ["/v1/auth?domain=api", "/v1/auth/api"][number % 2];
        let answer = transport.get(path, headers);
        let denied = number == 2;
        assert_eq!(answer.status, if denied { 429 } else { 200 }, "{headers}: {answer:?}");
        assert_eq!(answer.header("retry-after"), denied.then_some("30"));
        assert!(answer.header("ratelimit").is_some());
        assert_eq!(answer.body.is_empty(), !denied);
        if denied {
            assert_eq!(answer.json()["allowed"], Value::Bool(false));
        }
    }
    // Nothing limits what no rule describes.
    let api = "/v1/auth?domain=api";
    assert_eq!(transport.get(api, "x-forwarded-uri: /other\r\nx-api-key: k9\r\n").status, 200);
    assert_eq!(transport.get(api, "x-forwarded-uri: /items/7\r\n").status, 200);
}

/// A slip in a proxy's configuration must not pass everything in silence.
#[test]
fn a_proxy_that_names_nothing_is_told() {
    let transport = Transport::open(POLICY);
    for (path, status, why) in [
        ("/v1/auth?domain=apo", 404, "no such domain"),
        ("/v1/auth/apo", 404, "no such domain"),
        ("/v1/auth/", 404, "no such domain"),
        ("/v1/auth", 400, "the domain is missing"),
        ("/v1/auth?domain=%ff", 400, "percent-encoded"),
        // It is there, as its name is decoded, but has nothing to say of requests.
        ("/v1/auth?x=1&domain=my%20api%2fv1", 404, "has no `requests`"),
        ("/v1/auth/my%20api%2Fv1/items", 404, "has no `requests`"),
    ] {
        let answer = transport.get(path, "x-forwarded-uri: /items/7\r\n");
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(answer.body.contains(why), "{path}: {answer:?}");
    }
}

/// As Envoy asks: with the request's own method, path, query and host.
#[test]
fn a_proxy_may_put_the_path_behind_ours() {
    let transport = Transport::open(ONLY);
    let ask = |method: &str, path: &str, host: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
        transport.send(format!("{head}x-api-key: k\r\n\r\n"))
    };
    let path = "/v1/auth/api/items/7?domain=other";
    assert_eq!(ask("POST", path, "example.org").header("ratelimit"), None);
    assert_eq!(ask("GET", path, "example.com").header("ratelimit"), None);
    assert_eq!(ask("GET", "/v1/auth/api/items", "example.org").header("ratelimit"), None);
    assert!(ask("GET", path, "example.org:8443").header("ratelimit").is_some());
    assert_eq!(ask("GET", path, "example.org").status, 429);
    // The only domain need not be named.
    let headers = "x-forwarded-host: example.org\r\nx-forwarded-uri: /items/7\r\nx-api-key: k\r\n";
    let answer = transport.get("/v1/auth", &format!("x-forwarded-method: GET\r\n{headers}"));
    assert_eq!(answer.status, 429);
}

/// A client must not replace the host that the proxy sends with one that no rule is for.
#[test]
fn a_host_behind_our_path_is_the_requests_own() {
    let transport = Transport::open(ONLY);
    let ask = |claims: &str| {
        let head =
            "GET /v1/auth/api/items/7 HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n";
        transport.send(format!("{head}x-api-key: k\r\n{claims}\r\n"))
    };
    for claims in [
        "x-forwarded-host: elsewhere\r\n",
        "x-original-host: elsewhere\r\n",
        "x-forwarded-host: example.org\r\nx-original-host: elsewhere\r\n",
    ] {
        let answer = ask(claims);
        assert_eq!(answer.status, 400, "{claims}: {answer:?}");
        assert!(answer.body.contains("describe the request differently"), "{answer:?}");
    }
    let same = "x-forwarded-host: Example.ORG:443\r\nx-original-host: example.org.\r\n";
    assert_eq!([ask(same).status, ask("").status], [200, 429]);
    let long = format!("x-original-host: {}.org\r\n", "a".repeat(300));
    let reply = format!("x-forwarded-method: GET\r\nx-forwarded-uri: /items/7\r\n{long}");
    let answer = transport.get("/v1/auth", &reply);
    assert!(answer.status == 400 && answer.body.contains("the host has more"), "{answer:?}");
}

/// nginx asks with GET, whatever the request is: without a header, a rule for POST would match nothing.
#[test]
fn a_proxy_that_sends_no_method_is_told() {
    let entries = "descriptors: [{entries: [{key: m, METHOD}]}]";
    let limits = "descriptors: [{key: m, rate: 1/min}]";
    for (rule, is_read) in [
        (format!("{{methods: [POST], {}}}", entries.replace("METHOD", "value: v")), true),
        (format!("{{{}}}", entries.replace("METHOD", "method: true")), true),
        (format!("{{{}}}", entries.replace("METHOD", "value: v")), false),
    ] {
        let policy = format!("domain: api\nrequests: {{rules: [{rule}]}}\n{limits}\n");
        let transport = Transport::open(&policy);
        let answer = transport.get("/v1/auth?domain=api", "x-forwarded-uri: /\r\n");
        assert_eq!(answer.status, if is_read { 400 } else { 200 }, "{rule}: {answer:?}");
        assert_eq!(answer.body.contains("X-Forwarded-Method"), is_read, "{rule}: {answer:?}");
        let reply = "x-forwarded-uri: /\r\nx-original-method: POST\r\n";
        let second = transport.get("/v1/auth?domain=api", reply).status;
        assert_eq!(second, if is_read { 200 } else { 429 }, "{rule}");
        // The request's own method is told by the path in our URL.
        assert_eq!(transport.ask("POST", "/v1/auth/api/", "").status, 429, "{rule}");
    }
}

/// Whatever a proxy hands on may be a client's.
#[test]
fn two_stories_of_one_request_are_refused() {
    let transport = Transport::open(POLICY);
    let ask = |headers: &str| transport.get("/v1/auth/api", headers).status;
    for headers in [
        "x-forwarded-uri: /items/7\r\nx-original-uri: /free\r\n",
        "x-forwarded-uri: /items/7\r\nx-forwarded-uri: /free\r\n",
        "x-forwarded-uri: /items/7\r\nx-original-url: http://example.org/free\r\n",
        "x-forwarded-method: GET\r\nx-original-method: OPTIONS\r\n",
        "x-forwarded-host: a\r\nx-original-host: b\r\n",
        "x-original-uri: /free\r\nx-original-url: /items/7\r\n",
        "x-original-url: /items/7\r\nx-original-uri: /free\r\n",
        "x-original-uri: /items/7?user=1\r\nx-original-url: /items/7?user=2\r\n",
    ] {
        let answer = transport.get("/v1/auth/api", headers);
        assert_eq!(answer.status, 400, "{headers}");
        assert!(answer.body.contains("describe the request differently"), "{answer:?}");
    }
    // One that is empty says nothing, and one URL may be written in several ways.
    assert_eq!(
        ask(
            "x-forwarded-uri:\r\nx-original-url: http://h/./items/7\r\nx-original-uri: /items/7\r\n"
        ),
        200
    );
    assert_eq!(ask("x-forwarded-uri: /items/7\r\nx-original-uri: /items/7\r\n"), 200);
    let behind = transport.get("/v1/auth/api/items/7", "x-forwarded-uri: /free\r\n");
    assert_eq!(behind.status, 400);
    let method = transport.get("/v1/auth/api/items/7", "x-forwarded-method: OPTIONS\r\n");
    assert_eq!(method.status, 400);
    let nothing = ask("x-forwarded-method: GET\r\n");
    assert_eq!(nothing, 400, "the policy has rules for paths");
}

/// The rules for `/items/{id}` are for each way to write it.
#[test]
fn a_path_is_normalised_or_refused() {
    let transport = Transport::open(POLICY);
    let ask = |uri: &str| {
        transport
            .get("/v1/auth?domain=api", &format!("x-forwarded-uri: {uri}\r\nx-api-key: k9\r\n"))
    };
    let paths = ["//items/7", "/./items//7", "/x/../items/7", "/%69tems/7", "/items/%37?x=%2F"];
    let statuses = paths.map(|path| ask(path).status);
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    for path in ["/items/7#", "/items%2F7", "/items/7;x", "\\items\\7", "/../items/7", "*", "/%"] {
        let answer = ask(path);
        assert_eq!((answer.status, answer.header("ratelimit")), (400, None), "{path}: {answer:?}");
        assert!(answer.body.contains("error"), "{answer:?}");
    }
    // Ambiguous keys are refused too.
    let two = "x-forwarded-uri: /items/7\r\nx-api-key: k8\r\nx-api-key: k9\r\n";
    let answer = transport.get("/v1/auth?domain=api", two);
    assert!(answer.status == 400 && answer.body.contains("header x-api-key"), "{answer:?}");
    let empty = two.replace("k8", "");
    assert_eq!(transport.get("/v1/auth?domain=api", &empty).status, 429);
}

/// A client with an unreadable key must not count as a client without a key.
#[test]
fn keys_that_are_no_text_are_limited_too() {
    let transport = Transport::open(POLICY);
    let ask = || {
        let mut request = b"GET /v1/auth/api/items/7 HTTP/1.1\r\nhost: x\r\n".to_vec();
        request.extend(b"connection: close\r\nx-odd: \xfe\r\nx-api-key: k\xe9\xff\r\n\r\n");
        transport.send(request).status
    };
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
}

#[test]
fn every_method_may_be_asked_about() {
    let transport = Transport::open(POLICY);
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "QUERY", "PURGE"] {
        let headers = format!("x-api-key: {method}\r\nx-forwarded-uri: /items/7\r\n");
        let answer = transport.ask(method, "/v1/auth?domain=api", &headers);
        assert_eq!((answer.status, &*answer.body), (200, ""), "{method}");
        assert!(answer.header("ratelimit").is_some(), "{method}");
    }
}

#[test]
fn a_denial_may_have_no_body() {
    let answers = Answers { body: Some(Body::Empty), ..Answers::default() };
    let transport = Transport::with(&Settings { answers, ..settings() }, POLICY);
    let ask = || transport.get("/v1/auth/api/items/7", "x-api-key: k\r\n");
    let denied = [ask(), ask(), ask()].into_iter().next_back().expect("three");
    assert_eq!((denied.status, &*denied.body), (429, ""));
}
