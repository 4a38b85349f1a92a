//! What is answered to a call, and to what is none.

use prost::Message;
use tidegate::Span;
use tidegate_server::{Answers, EnvoyHeaders, ProxyHeaders, Settings};
use tidegate_tests::grpc::{SHOULD_RATE_LIMIT, framed};
use tidegate_tests::rls::{Code, Kind, RateLimitRequest, RateLimitResponse};

use super::{POLICY, Transport};

#[test]
fn a_limit_is_enforced() {
    let transport = Transport::open();
    let mut client = transport.client();
    let request = RateLimitRequest::one("api", "user", "bob");
    for remaining in [1, 0] {
        let response = client.should_rate_limit(&request).unwrap();
        assert!(response.is_ok());
        assert_eq!(response.statuses[0].limit_remaining, remaining);
    }
    let over = client.should_rate_limit(&request).unwrap();
    assert_eq!(over.overall_code(), Code::OverLimit);
    assert_eq!(over.statuses.len(), 1);
    let other = RateLimitRequest::one("api", "user", "eve");
    assert!(client.should_rate_limit(&other).unwrap().is_ok());
    transport.clock.advance(Span::from_secs(60));
    assert!(client.should_rate_limit(&request).unwrap().is_ok());
}

/// As envoyproxy/ratelimit does: a request without limits passes.
#[test]
fn an_unknown_domain_passes_with_a_bare_status() {
    let transport = Transport::open();
    let mut client = transport.client();
    let response = client.should_rate_limit(&RateLimitRequest::one("apo", "user", "x")).unwrap();
    assert!(response.is_ok());
    assert_eq!(response.statuses.len(), 1);
    assert_eq!(response.statuses[0].code(), Code::Ok);
    assert_eq!(response.statuses[0].current_limit, None);
    assert_eq!(response.statuses[0].duration_until_reset, None);
}

#[test]
fn taken_units_can_be_returned() {
    let transport = Transport::open();
    let mut client = transport.client();
    let mut request = RateLimitRequest::one("api", "user", "bob");
    request.hits_addend = 2;
    assert!(client.should_rate_limit(&request).unwrap().is_ok());
    let mut back = request.clone();
    back.descriptors[0].is_negative_hits = true;
    let response = client.should_rate_limit(&back).unwrap();
    assert_eq!((response.is_ok(), response.statuses[0].limit_remaining), (true, 2));
    let mut peek = RateLimitRequest::one("api", "user", "bob");
    peek.descriptors[0].hits_addend = Some(0);
    assert_eq!(client.should_rate_limit(&peek).unwrap().statuses[0].limit_remaining, 2);
}

#[test]
fn headers_and_metadata_come_as_the_settings_say() {
    let answers = Answers {
        proxy_headers: ProxyHeaders::Envoy(EnvoyHeaders {
            limit: "x-most".into(),
            ..EnvoyHeaders::default()
        }),
        dynamic_metadata: true,
        ..Answers::default()
    };
    let transport = Transport::with(&Settings { answers, ..Settings::default() }, POLICY);
    let response =
        transport.client().should_rate_limit(&RateLimitRequest::one("api", "user", "bob")).unwrap();
    assert_eq!(response.header("x-most"), Some("2"));
    assert_eq!(response.header("RateLimit-Remaining"), Some("1"));
    assert!(response.header("RateLimit-Reset").is_some());
    assert_eq!(response.response_headers_to_add.len(), 3);
    let metadata = response.dynamic_metadata.unwrap();
    assert_eq!(metadata.fields["domain"].kind, Some(Kind::Text("api".into())));
}

/// Unless told otherwise, a proxy tells its clients what the HTTP transport would.
#[test]
fn headers_are_those_of_the_http_transport() {
    let transport = Transport::open();
    let mut client = transport.client();
    let request = RateLimitRequest::one("api", "token", "t");
    let response = client.should_rate_limit(&request).unwrap();
    assert_eq!(response.header("ratelimit-policy"), Some("\"tokens\";q=2;w=60"));
    assert_eq!(response.header("ratelimit"), Some("\"tokens\";r=1;t=30"));
    assert_eq!(response.header("retry-after"), None);
    client.should_rate_limit(&request).unwrap();
    let over = client.should_rate_limit(&request).unwrap();
    assert!(!over.is_ok());
    assert_eq!(over.header("ratelimit"), Some("\"tokens\";r=0;t=30"));
    assert_eq!(over.header("retry-after"), Some("30"));
    assert_eq!(over.statuses[0].duration_until_reset.unwrap().seconds, 30);
    let nothing = client.should_rate_limit(&RateLimitRequest::one("api", "none", "t")).unwrap();
    assert_eq!(nothing.response_headers_to_add, []);
    let answers = Answers { proxy_headers: ProxyHeaders::None, ..Answers::default() };
    let transport = Transport::with(&Settings { answers, ..Settings::default() }, POLICY);
    let mut client = transport.client();
    let quiet = client.should_rate_limit(&request).unwrap();
    assert_eq!(quiet.response_headers_to_add, []);
    // A denial says when to come back, also in the place of envoyproxy/ratelimit.
    let mut over = client.should_rate_limit(&request).unwrap();
    while over.is_ok() {
        over = client.should_rate_limit(&request).unwrap();
    }
    assert_eq!(over.header("retry-after"), Some("30"));
    assert_eq!(over.response_headers_to_add.len(), 1);
}

#[test]
fn an_undecided_call_is_an_error_and_never_an_answer() {
    let transport = Transport::open();
    let mut client = transport.client();
    for (request, text) in [
        (RateLimitRequest::one("", "user", "x"), "rate limit domain must not be empty"),
        (
            RateLimitRequest { domain: "api".into(), ..RateLimitRequest::default() },
            "rate limit descriptor list must not be empty",
        ),
    ] {
        let failed = client.should_rate_limit(&request).unwrap_err();
        assert_eq!((failed.code, &*failed.text), (2, text));
    }
}

/// However a message is torn on its way, it is the same message.
#[test]
fn a_message_may_come_in_pieces() {
    let transport = Transport::open();
    let mut client = transport.client();
    let mut request = RateLimitRequest::one("api", "user", &"x".repeat(300));
    request.descriptors[0].hits_addend = Some(0);
    let body = framed(&request.encode_to_vec());
    for size in [1, 2, 4, 5, 6, 100] {
        let (messages, status) = client.exchange_in_pieces(SHOULD_RATE_LIMIT, &body, size);
        assert_eq!((messages.len(), status.code), (1, 0), "{size}");
        let response = RateLimitResponse::decode(&*messages[0]).unwrap();
        assert_eq!(response.statuses[0].limit_remaining, 2);
    }
    let (messages, status) = client.exchange_in_pieces(SHOULD_RATE_LIMIT, &body[..9], 3);
    assert_eq!((messages.len(), status.code), (0, 3));
}

#[test]
fn invalid_requests_are_refused() {
    let transport = Transport::open();
    let mut client = transport.client();
    let good = RateLimitRequest::one("api", "user", "x").encode_to_vec();
    let many = RateLimitRequest::one("api", "user", "x");
    let many = RateLimitRequest { descriptors: vec![many.descriptors[0].clone(); 65], ..many };
    let long = RateLimitRequest::one("api", "user", &"x".repeat(70_000));
    let compressed = [&[1][..], &framed(&good)[1..]].concat();
    for (body, code, text) in [
        (framed(&[0x0a, 9]), 3, "truncated"),
        (framed(&[0x0a, 1, 0xff]), 3, "not UTF-8"),
        (framed(&good)[..9].to_vec(), 3, "incomplete"),
        (Vec::new(), 3, "no message"),
        (framed(&good).repeat(2), 3, "more than one"),
        (framed(&many.encode_to_vec()), 8, "at most 64 descriptors"),
        (framed(&long.encode_to_vec()), 8, "at most 65536 bytes"),
        // A length that promises four gigabytes.
        (vec![0, 0xff, 0xff, 0xff, 0xff, 1], 8, "at most 65536 bytes"),
        (compressed, 12, "compressed messages are not supported"),
    ] {
        let (messages, failed) = client.exchange(SHOULD_RATE_LIMIT, &body, &[]);
        assert_eq!((messages.len(), failed.code), (0, code), "{failed:?}");
        assert!(failed.text.contains(text), "{failed:?}");
    }
    let (_, failed) =
        client.exchange(SHOULD_RATE_LIMIT, &framed(&good), &[("grpc-encoding", "gzip")]);
    assert_eq!(failed.code, 12);
    let (_, failed) = client.exchange("/no.such.Service/Do", &framed(&good), &[]);
    assert_eq!((failed.code, &*failed.text), (12, "unknown method /no.such.Service/Do"));
    // Those who speak no gRPC are told in HTTP.
    for (kind, status) in [("application/json", 415), ("application/grpc+json", 415)] {
        let response = client.send(SHOULD_RATE_LIMIT, &[], &[("content-type", kind)]);
        assert_eq!(response.status(), status, "{kind}");
    }
    // After all that the same connection answers.
    for kind in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
        let request = RateLimitRequest::one("api", "token", kind).encode_to_vec();
        let headers = [("content-type", kind), ("grpc-timeout", "10S")];
        let (messages, status) = client.exchange(SHOULD_RATE_LIMIT, &framed(&request), &headers);
        assert_eq!((messages.len(), status.code), (1, 0), "{kind}");
    }
}
