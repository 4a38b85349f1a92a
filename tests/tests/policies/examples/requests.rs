//! The rules for HTTP requests of the examples lead to limits.

use tidegate::policy::{Descriptor, Entry, HttpRequest, Request};

use super::{Desk, Verdict};

/// Asks as a transport would that sees the HTTP request; every descriptor has to meet a limit.
fn ask(desk: &Desk, request: &str, headers: &[(&str, &str)]) -> Verdict {
    let (method, path) = request.split_once(' ').expect("a method and a path");
    let peer = Some("192.0.2.7".parse().expect("an address"));
    let request = HttpRequest { method, path, host: None, headers, peer };
    let policy = desk.limiter.policy();
    let domain = policy.domain(&desk.domain).expect("the domain is there");
    let described = domain.requests().describe(&request).expect("a plain request");
    let entries: Vec<Vec<Entry<'_>>> = described
        .descriptors()
        .map(|entries| entries.iter().map(|(key, value)| Entry { key, value }).collect())
        .collect();
    let descriptors: Vec<Descriptor<'_>> =
        entries.iter().map(|entries| Descriptor::new(entries)).collect();
    let request = Request { domain: &desk.domain, descriptors: &descriptors, hits: None };
    let answer = desk.limiter.check_now(&request).expect("a decision");
    for (number, entries) in entries.iter().enumerate() {
        assert!(answer.parts().any(|part| part.descriptor == number), "{entries:?} meets no limit");
    }
    answer
}

#[test]
fn descriptors_of_requests_match_limits() {
    let service = Desk::open("service.yaml");
    let user = [("x-user-id", "u"), ("cookie", "device=d")];
    for (request, passing) in
        [("POST /orders", 10), ("GET /session/new", 5), ("POST /invitations?code=c", 3)]
    {
        let passed = (0..passing + 2).filter(|_| ask(&service, request, &user).is_allowed());
        assert_eq!(passed.count(), passing, "{request}");
    }
    assert!(ask(&service, "DELETE /elsewhere", &[]).is_allowed());

    let gateway = Desk::open("gateway.yaml");
    let key = [("X-API-Key", "k")];
    let searches = (0..20).filter(|_| ask(&gateway, "GET /v1/search?q=x", &key).is_allowed());
    assert_eq!(searches.count(), 10);
    let exports = (0..3).filter(|_| ask(&gateway, "POST /v1/reports/7/export", &key).is_allowed());
    assert_eq!(exports.count(), 1, "one report a minute");
    let strangers = (0..9).filter(|_| ask(&gateway, "GET /v1/other", &[]).is_allowed());
    assert_eq!(strangers.count(), 5, "requests without a key");

    let edge = Desk::open("edge.yaml");
    let through_our_proxy = [("x-forwarded-for", "203.0.113.9, 192.0.2.77")];
    let floods = (0..300).filter(|_| ask(&edge, "GET /", &through_our_proxy).is_allowed());
    assert_eq!(floods.count(), 200);
    let forged = [("x-forwarded-for", "1.2.3.4, 192.0.2.77")];
    assert!(!ask(&edge, "GET /", &forged).is_allowed(), "what clients write changes nothing");
}
