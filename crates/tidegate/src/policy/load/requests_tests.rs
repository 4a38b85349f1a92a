use std::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::policy::document::Document;
use crate::policy::http::{Described, HttpRequest, RequestError};

#[path = "requests/warnings_tests.rs"]
mod warnings;

fn load(text: &str) -> (RequestRules, Findings) {
    let mut findings = Findings::default();
    let documents = Document::parse("p.yaml", text, &mut findings);
    let names = Names { classes: &Classes::default(), protections: &[] };
    let rules = read(&documents[0].root, "requests", &names, &mut findings);
    (rules, findings)
}

fn rules(text: &str) -> RequestRules {
    let (rules, findings) = load(text);
    assert!(!findings.has_errors(), "{findings}");
    rules
}

/// One descriptor per line, as in `key=value,key=value`.
fn shown(described: &Described<'_>) -> String {
    let entry = |(key, value): &(&str, std::borrow::Cow<'_, str>)| format!("{key}={value}");
    let line = |entries: &[_]| entries.iter().map(entry).collect::<Vec<_>>().join(",");
    described.descriptors().map(line).collect::<Vec<_>>().join("\n")
}

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9));

/// Describes a request written as `METHOD path` and one header per line.
fn describe(rules: &RequestRules, request: &str) -> String {
    let mut lines = request.lines();
    let (method, path) = lines.next().unwrap().split_once(' ').unwrap();
    let headers: Vec<(&str, &str)> = lines.map(|line| line.split_once(':').unwrap()).collect();
    let request = HttpRequest { method, path, host: None, headers: &headers, peer: Some(PEER) };
    match rules.describe(&request) {
        Ok(described) => shown(&described),
        Err(error) => format!("refused: {error}"),
    }
}

/// A rule with one descriptor of one entry, `k`.
fn entry(source: &str) -> RequestRules {
    rules(&format!(
        "rules: [{{path: '/u/{{id}}/{{rest...}}', descriptors: [{{entries: [{{key: k, {source}}}]}}]}}]"
    ))
}

#[test]
fn every_source_gives_its_value() {
    // `dXNlcjpwYXNz` is `user:pass`, `OnBhc3M=` is `:pass`.
    for (source, request, expected) in [
        ("api_key: true", "GET /u/1\nX-API-Key: abc", "k=abc"),
        // Both count, so that an added key cannot replace the other.
        ("api_key: true", "GET /u/1\nx-api-key: abc\nauthorization: Bearer t", "k=abc\nk=t"),
        ("api_key: true", "GET /u/1\nx-api-key: t\nauthorization: Bearer t", "k=t"),
        ("api_key: true", "GET /u/1\nx-api-key: ,\nx-api-key: t , t", "k=t"),
        ("api_key: true", "GET /u/1\nAuthorization: Bearer\tt", "k=t"),
        ("api_key: true", "GET /u/1\nAuthorization:\tbEARER \t t\t", "k=t"),
        ("api_key: true", "GET /u/1\nAuthorization:\nAuthorization: Bearer t", "k=t"),
        ("api_key: true", "GET /u/1\nAuthorization: , Bearer t", "k=t"),
        ("api_key: true", "GET /u/1\nAuthorization: Digest a=b, c=d", ""),
        ("api_key: true", "GET /u/1\nx-api-key:\nauthorization: Bearer t", "k=t"),
        ("api_key: true", "GET /u/1\nAuthorization: bearer  t.u.v ", "k=t.u.v"),
        ("api_key: true", "GET /u/1\nAuthorization: Basic dXNlcjpwYXNz", "k=user"),
        ("api_key: true", "GET /u/1\nAuthorization: BASIC dXNlcjpwYXM=", "k=user"),
        ("api_key: true", "GET /u/1\nAuthorization: Basic OnBhc3M=", ""),
        ("api_key: true", "GET /u/1\nAuthorization: Digest abc", ""),
        ("api_key: true", "GET /u/1\nAuthorization: Bearer", ""),
        ("api_key: true", "GET /u/1", ""),
        ("api_key: true, default: none", "GET /u/1", "k=none"),
        ("client_ip: true", "GET /u/1\nx-forwarded-for: 1.1.1.1", "k=9.9.9.9"),
        ("host: true", "GET /u/1\nHost: API.Example.com:8443", "k=api.example.com"),
        ("host: true", "GET /u/1\nhost: example.com.", "k=example.com"),
        ("host: true", "GET /u/1\nhost: [2001:DB8::1]:80", "k=[2001:db8::1]"),
        ("host: true", "GET /u/1", ""),
        ("method: true", "PATCH /u/1", "k=PATCH"),
        ("path: true", "GET /u/1?a=b?c", "k=/u/1"),
        ("path: true", "GET /u//%31/./x", "k=/u/1/x"),
        ("path: true", "GET http://h/u/1?a", "k=/u/1"),
        ("path_template: true", "GET /u/1", "k=/u/{id}/{rest...}"),
        ("path_parameter: id", "GET /u/7", "k=7"),
        ("path_parameter: id", "GET /u/7?id=8", "k=7"),
        ("path_parameter: id", "GET /u/x/../a%20b/c", "k=a b"),
        ("path_parameter: rest", "GET /u/7/a/b/", "k=a/b/"),
        ("path_parameter: rest", "GET /u/7", ""),
        ("path_parameter: rest, default: root", "GET /u/7/", "k=root"),
        ("query: q", "GET /u/1?p=1&q=2&q=&q=%32", "k=2"),
        ("query: q", "GET /u/1?%71=a%20b+c%25", "k=a b c%"),
        ("query: q", "GET /u/1?p=1;p=2&q=2&x=%2&y=%zz", "k=2"),
        ("query: q", "GET /u/1?q", ""),
        ("query: q", "GET /u/1?q=", ""),
        ("query: q", "GET /u/1?qq=1", ""),
        ("query: q, default: d", "GET /u/1", "k=d"),
        ("cookie: sid", "GET /u/1\nCookie: a=b; sid=x=y ; sid=; sid=\"x=y\"; sid=%78=y", "k=x=y"),
        ("cookie: sid", "GET /u/1\nCookie: sid=a+b%2", "k=a+b%2"),
        ("cookie: sid", "GET /u/1\nCookie: a={1,2}; sid=x", "k=x"),
        ("cookie: sid", "GET /u/1\nCookie: a=b\ncookie: sid=x", "k=x"),
        ("cookie: sid", "GET /u/1\nCookie: SID=x", ""),
        ("header: X-User", "GET /u/1\nx-USER:  bob \nx-user:\nx-user: bob", "k=bob"),
        ("header: x-user", "GET /u/1\nx-user: Doe, Jane", "k=Doe, Jane"),
        ("header: X-API-Key", "GET /u/1\nx-api-key: ,a", "k=a"),
        ("header: x-user", "GET /u/1\nx-user-id: bob", ""),
        ("header: x-user, default: anonymous", "GET /u/1\nx-user: ", "k=anonymous"),
        ("value: all", "GET /u/1", "k=all"),
        ("value: 7", "GET /u/1", "k=7"),
    ] {
        assert_eq!(describe(&entry(source), request), expected, "{source}: {request}");
    }
}

/// The backend may use the other value, and the client would choose its quota.
#[test]
fn two_values_that_differ_are_refused() {
    let (several, words) = ("has several values", "is not a scheme");
    for (source, request, what, why) in [
        ("api_key: true", "GET /u/1\nx-api-key: a\nX-API-Key: b", "header x-api-key", several),
        ("api_key: true", "GET /u/1\nx-api-key: a, b", "header x-api-key", several),
        (
            "api_key: true",
            "GET /u/1\nauthorization: Bearer a\nauthorization: Bearer b",
            "header authorization",
            several,
        ),
        ("api_key: true", "GET /u/1\nauthorization: Bearer a b", "header authorization", words),
        ("api_key: true", "GET /u/1\nauthorization: Bearer a,b", "header authorization", words),
        ("api_key: true", "GET /u/1\nauthorization: x, Bearer b", "header authorization", words),
        ("api_key: true", "GET /u/1\nauthorization: Bearer\u{a0}a", "header authorization", words),
        ("api_key: true", "GET /u/1\nAuthorization: Basic ä", "header authorization", words),
        ("header: X-API-Key", "GET /u/1\nx-api-key: a,b", "header x-api-key", several),
        ("header: X-User", "GET /u/1\nx-user: a\nx-user: b", "header x-user", several),
        ("cookie: sid", "GET /u/1\ncookie: sid=a; sid=b", "cookie sid", several),
        ("cookie: sid", "GET /u/1\ncookie: sid=a\ncookie: sid=b", "cookie sid", several),
        ("cookie: sid", "GET /u/1\ncookie: sid=a, sid=b", "cookie sid", several),
        ("cookie: sid", "GET /u/1\ncookie: x=1,sid=a", "cookie sid", several),
        ("query: q", "GET /u/1?q=a&q=b", "query field q", several),
        ("query: q", "GET /u/1?q=a&%71=b", "query field q", several),
        ("query: q", "GET /u/1?q=a;q=b", "query field q", several),
        ("query: q", "GET /u/1?x=1;q=b", "query field q", several),
        ("query: q", "GET /u/1?q=a%2", "query field q", several),
        ("value: all", "GET /u/1\nhost: a\nhost: b", "header host", several),
    ] {
        let found = describe(&entry(source), request);
        assert!(found.starts_with(&format!("refused: {what} {why}")), "{request}: {found}");
    }
    // Lenient servers read a user in each of these. `dXNlcg==` is `user`, without a colon.
    for basic in [
        "dXNl-cjpw",
        "dXNl_cjpw",
        "dXNlcjp=wYXM=",
        "dXNlcjpwYXM",
        "dXNlcjpwYXM==",
        "dXNlcjpwYXNz====",
        "dXNlcjpwYXN=",
        "dXNlcg==",
        "=",
        "",
    ] {
        let found =
            describe(&entry("api_key: true"), &format!("GET /u/1\nauthorization: Basic {basic}"));
        assert!(
            found.starts_with(&format!("refused: header authorization {words}")),
            "{basic}: {found}"
        );
    }
    // A rule that does not use them accepts the request.
    let request = "GET /u/1?q=a&q=b\nx-api-key: a\nx-api-key: b\ncookie: s=1; s=2";
    assert_eq!(describe(&entry("value: all"), request), "k=all");
    let found = describe(&entry("value: all"), "GET /u/1%2F2");
    assert_eq!(found, "refused: the path has an encoded slash (%2F)");
}

const RULES: &str = "
trusted_proxies: 1
rules:
  - path: /v1/users/{id}/orders/{order}
    methods: [GET, POST]
    hosts: [api.example.com, '*.example.org']
    descriptors:
      - entries:
          - {key: api_key, api_key: true}
          - {key: route, path_template: true}
      - entries:
          - {key: client, client_ip: true}
          - {key: user, header: x-user-id, default: anonymous}
  - descriptors: [{entries: [{key: method, method: true}]}]
  - path: /v1/{rest...}
    descriptors: [{entries: [{key: rest, path_parameter: rest}, {key: q, query: q}]}]
  - path: /v1/users/
    descriptors: [{entries: [{key: slash, value: yes}]}]
";

#[test]
fn all_rules_that_match_apply_in_order() {
    let rules = rules(RULES);
    let order = "/v1/users/7/orders/8";
    let route = "route=/v1/users/{id}/orders/{order}";
    for (request, expected) in [
        (
            format!(
                "GET {order}\nhost: api.example.com\nx-api-key: a\nx-forwarded-for: 1.1.1.1, 2.2.2.2"
            ),
            format!("api_key=a,{route}\nclient=2.2.2.2,user=anonymous\nmethod=GET"),
        ),
        (
            format!("POST {order}?q=1\nhost: a.b.example.org:80\nx-user-id: bob"),
            "client=9.9.9.9,user=bob\nmethod=POST\nrest=users/7/orders/8,q=1".into(),
        ),
        (format!("PUT {order}\nhost: api.example.com"), "method=PUT".into()),
        (format!("get {order}\nhost: api.example.com"), "method=get".into()),
        (format!("GET {order}\nhost: example.org"), "method=GET".into()),
        (format!("GET {order}"), "method=GET".into()),
        (format!("GET {order}/\nhost: api.example.com"), "method=GET".into()),
        ("GET /v1/users/".into(), "method=GET\nslash=yes".into()),
        ("GET /v1/users".into(), "method=GET".into()),
        (
            "GET //v1/x/../users/".into(),
            "refused: the path has both a .. segment and duplicate slashes".into(),
        ),
        ("GET /v1//users/".into(), "method=GET\nslash=yes".into()),
        ("GET /v1/./%75sers/".into(), "method=GET\nslash=yes".into()),
        ("GET /v1?q=1".into(), "method=GET".into()),
        ("GET /v1/?q=1".into(), "method=GET".into()),
        ("GET /v1//x/?q=1".into(), "method=GET\nrest=x/,q=1".into()),
    ] {
        assert_eq!(describe(&rules, &request), expected, "{request}");
    }
    assert!(!rules.is_empty() && RequestRules::default().is_empty());
}

#[test]
fn the_door_knows_the_host_better_than_a_header() {
    let rules = entry("host: true");
    let headers = [("host", "inner")];
    let request = HttpRequest {
        method: "GET",
        path: "/u/1",
        host: Some("outer"),
        headers: &headers,
        peer: None,
    };
    assert_eq!(shown(&rules.describe(&request).unwrap()), "k=outer");
}

/// A longer host would match no rule for its host.
#[test]
fn a_host_that_is_too_long_is_refused() {
    let rules = rules("rules: [{hosts: ['*.a'], descriptors: [{entries: [{key: k, value: v}]}]}]");
    let ask =
        |length: usize| describe(&rules, &format!("GET /\nhost: {}.A.:443", "x".repeat(length)));
    assert_eq!(ask(253), "k=v");
    assert_eq!(ask(254), "refused: the host has more than 255 bytes");
}

#[test]
fn rules_report_the_parts_they_read() {
    for (source, needs_method) in [("method: true", true), ("path: true", false)] {
        let rules = entry(source);
        assert_eq!((rules.needs_method(), rules.needs_target()), (needs_method, true), "{source}");
    }
    let text = "rules: [{methods: [POST], descriptors: [{entries: [{key: k, value: v}]}]}]";
    assert!(rules(text).needs_method() && !rules(text).needs_target());
}

const MISTAKES: &str = "trusted_proxies: 65
colour: red
rules:
  - path: users
    descriptors: [{entries: [{key: k, path_parameter: id}, {key: k, path_template: true}]}]
  - path: /{a}/{a}
    descriptors: [{entries: [{key: k, value: x}]}]
  - path: /{a
    descriptors: []
  - methods: [get, 'A B', GET, [x]]
    hosts: ['a:80', '', 'a*.b', x.y]
    descriptors: [{entries: []}]
  - path: /{a}
    methods: []
    descriptors:
      - entries:
          - {key: k}
          - {key: k, host: true, path: true}
          - {key: k, path_parameter: b}
          - {key: k, api_key: false}
          - {key: k, client_ip: maybe}
          - {value: x}
          - {key: '', value: x}
          - {key: k, value: ''}
          - {key: k, heeder: x}
          - {key: k, header: 'a b'}
          - {key: k, default: [], query: q}
      - {}
      - entries: 7
  - descriptors: [{entries: [{key: k, path_parameter: id}, {key: k, path_template: true}]}]
  - 7
  - {path: /x}
";

/// Each mistake is reported at its line and column, all in one run.
#[test]
fn every_mistake_is_reported_at_its_position() {
    let (_, findings) = load(MISTAKES);
    let expected = [
        "p.yaml:1:18: expected a number from 0 to 64",
        "p.yaml:2:1: unknown field \"colour\"",
        "p.yaml:4:11: a path starts with /",
        "p.yaml:6:11: two parameters",
        "p.yaml:8:11: a brace",
        "p.yaml:9:18: `descriptors` must not be empty",
        "p.yaml:10:15: expected a method in capitals, such as GET, found the text \"get\"",
        "p.yaml:10:20: expected a method",
        "p.yaml:10:32: expected text",
        "p.yaml:11:13: expected a host",
        "p.yaml:11:21: expected a host",
        "p.yaml:11:25: expected a host",
        "p.yaml:12:29: `entries` must not be empty",
        "p.yaml:14:14: `methods` must not be empty",
        "p.yaml:17:13: expected exactly one source, found none",
        "p.yaml:18:13: expected exactly one source, found host and path",
        "p.yaml:19:38: the rule's `path` has no parameter \"b\"",
        "p.yaml:20:31: expected true",
        "p.yaml:21:33: expected true",
        "p.yaml:22:13: expected a `key`",
        "p.yaml:23:19: expected a text that is not empty",
        "p.yaml:24:29: expected a text that is not empty",
        "p.yaml:25:22: unknown field \"heeder\"; did you mean `header`?",
        "p.yaml:25:13: expected exactly one source, found none",
        "p.yaml:26:30: expected the name of a header",
        "p.yaml:27:31: expected text",
        "p.yaml:28:9: `entries` must not be empty",
        "p.yaml:29:18: expected a list",
        "p.yaml:30:55: the rule's `path` has no parameter",
        "p.yaml:30:84: the rule has no `path`",
        "p.yaml:31:5: expected a map",
        "p.yaml:32:5: `descriptors` must not be empty",
    ];
    let shown = findings.to_string();
    for start in expected {
        assert!(shown.lines().any(|line| line.starts_with(start)), "{start}\n{shown}");
    }
    assert_eq!(findings.errors(), expected.len(), "{shown}");
}

#[test]
fn a_value_that_is_no_map_has_no_rules() {
    for text in ["7", "[]", "rules: 7", "rules: {}"] {
        let (rules, findings) = load(text);
        assert!(rules.is_empty() && findings.has_errors(), "{text}");
    }
    assert!(rules("{}").is_empty());
}

#[test]
fn a_request_yields_a_bounded_number_of_descriptors() {
    let descriptor = "{entries: [{key: k, value: v}]}";
    let list = |count| vec![descriptor; count].join(", ");
    let (_, findings) = load(&format!(
        "rules:\n  - {{methods: [POST], descriptors: [{}]}}\n  - {{path: '/{{a}}', descriptors: [{}]}}",
        list(15),
        list(2)
    ));
    let start =
        "p.yaml:3:5: together with the other rules that match, a request for this one yields more";
    assert!(findings.to_string().starts_with(start) && findings.errors() == 1, "{findings}");
    let (_, findings) = load(&format!("rules: [{{path: x, descriptors: [{}]}}]", list(17)));
    assert_eq!(findings.errors(), 1, "only the invalid path: {findings}");
    let entries = vec!["{key: k, value: v}"; 17].join(", ");
    let (_, findings) = load(&format!("rules: [{{descriptors: [{{entries: [{entries}]}}]}}]"));
    assert!(findings.to_string().contains("at most 16 entries"), "{findings}");
    // Both match only a path that neither of them contains.
    let crossing = rules(&format!(
        "rules:\n  - {{path: '/{{a}}/b', descriptors: [{}]}}\n  - {{path: '/a/{{b}}', descriptors: [{}]}}",
        list(15),
        list(3)
    ));
    let request = HttpRequest { method: "GET", path: "/a/b", host: None, headers: &[], peer: None };
    assert_eq!(crossing.describe(&request), Err(RequestError::TooManyDescriptors));
    // A descriptor by API key counts twice, because a request may have two keys.
    let keyed = |count| {
        load(&format!(
            "rules: [{{descriptors: [{}]}}]",
            vec!["{entries: [{key: k, api_key: true}]}"; count].join(", ")
        ))
        .1
    };
    assert_eq!((keyed(8).errors(), keyed(9).errors()), (0, 1));
}

#[test]
fn ten_thousand_rules_are_read_and_found() {
    let rule = |n| {
        let by_host = format!(
            "  - {{hosts: [h{n}.example.com], descriptors: [{{entries: [{{key: h, value: {n}}}]}}]}}\n"
        );
        let by_path = format!(
            "  - {{path: '/v{n}/{{id}}', descriptors: [{{entries: [{{key: p, path_parameter: id}}]}}]}}\n"
        );
        by_host + &by_path
    };
    let text: String = (0..5_000).map(rule).collect();
    let rules = rules(&format!("rules:\n{text}"));
    for n in [0, 1, 2_500, 4_999] {
        let request = format!("GET /v{n}/x\nhost: h{n}.example.com");
        assert_eq!(describe(&rules, &request), format!("h={n}\np=x"));
    }
}

#[test]
fn no_request_is_too_odd() {
    let rules = [rules(RULES), entry("api_key: true"), entry("query: q"), entry("cookie: c")];
    let mut rng = fastrand::Rng::with_seed(6);
    let mut text = || -> String {
        let pieces = [
            "/", "v1", "users", "?", "q=", "%", "%2", "é", "\0", ":", "[", "]", ".", ",", "Basic ",
            "=", "&", ";",
        ];
        let bytes: Vec<u8> = (0..rng.usize(0..24)).map(|_| rng.u8(..)).collect();
        let known: String = (0..rng.usize(0..8)).map(|_| *rng.choice(&pieces).unwrap()).collect();
        if rng.bool() { known } else { String::from_utf8_lossy(&bytes).into_owned() }
    };
    for number in 0..10_000 {
        let names = ["authorization", "host", "Cookie", "x-forwarded-for", "X-Api-Key"];
        let values: Vec<String> = (0..names.len()).map(|_| text()).collect();
        let headers: Vec<(&str, &str)> =
            names.into_iter().zip(&values).map(|(name, value)| (name, &**value)).collect();
        let (method, path, host) = (text(), text(), text());
        let host = (number % 2 == 0).then_some(&*host);
        let request =
            HttpRequest { method: &method, path: &path, host, headers: &headers, peer: None };
        for rules in &rules {
            let described = rules.describe(&request);
            assert!(described.is_err() || described.unwrap().descriptors().len() <= MAX_DESCRIBED);
        }
    }
}
