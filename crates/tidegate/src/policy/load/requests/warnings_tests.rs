use super::*;

#[test]
fn a_limit_by_address_where_clients_have_keys_is_warned_of() {
    let address = "{key: ip, client_ip: true}";
    for (descriptors, warnings) in [
        (format!("[{{entries: [{address}]}}, {{entries: [{{key: k, api_key: true}}]}}]"), 1),
        (format!("[{{entries: [{address}]}}, {{entries: [{{key: k, header: X-API-Key}}]}}]"), 1),
        (
            format!(
                "[{{entries: [{address}, {{key: m, method: true}}]}}, {{entries: [{{key: k, api_key: true}}]}}]"
            ),
            1,
        ),
        (format!("[{{entries: [{address}, {{key: k, api_key: true}}]}}]"), 0),
        (format!("[{{entries: [{address}]}}, {{entries: [{{key: k, header: x-tenant}}]}}]"), 0),
        (format!("[{{entries: [{address}]}}]"), 0),
    ] {
        let (_, findings) = load(&format!("rules:\n  - descriptors: {descriptors}"));
        assert!(!findings.has_errors(), "{findings}");
        assert_eq!(findings.iter().count(), warnings, "{descriptors}\n{findings}");
        let place = "p.yaml:2:30: warning: a limit by address";
        assert!(findings.to_string().starts_with(place) || warnings == 0, "{findings}");
    }
}

#[test]
fn rules_that_can_be_bypassed_are_warned_of() {
    let rule = |rule: &str| format!("rules:\n  - {rule}");
    for (text, why) in [
        ("descriptors: [{entries: [{key: k, header: X-Forwarded-For}]}]", "`trusted_proxies`"),
        ("descriptors: [{entries: [{key: k, header: Authorization}]}]", "use `api_key: true`"),
        ("descriptors: [{entries: [{key: k, cookie: sid}]}]", "clients choose this value"),
        ("descriptors: [{entries: [{key: k, query: q, default: d}]}]", "clients choose this value"),
        ("descriptors: [{entries: [{key: k, header: x-user-id}]}]", "unless a proxy overwrites"),
        (
            "descriptors: [{entries: [{key: k, cookie: s}]}, {entries: [{key: v, value: v}]}]",
            "clients choose this value",
        ),
        ("{methods: [GET], descriptors: [{entries: [{key: k, value: v}]}]}", "add HEAD"),
    ] {
        let (_, findings) = load(&rule(text));
        let found = findings.to_string();
        assert!(found.contains("warning: ") && found.contains(why), "{text}: {found}");
        assert_eq!((findings.iter().count(), findings.errors()), (1, 0), "{text}: {found}");
    }
    for text in [
        "descriptors: [{entries: [{key: k, cookie: sid}]}, {entries: [{key: i, client_ip: true}]}]",
        "descriptors: [{entries: [{key: k, cookie: sid}, {key: a, api_key: true}]}]",
        "descriptors: [{entries: [{key: k, header: x-user-id}]}, {entries: [{key: i, client_ip: true}]}]",
        "descriptors: [{entries: [{key: k, cookie: sid}]}, {entries: [{key: a, header: X-API-Key}]}]",
        "{methods: [GET, HEAD], descriptors: [{entries: [{key: k, value: v}]}]}",
        "{methods: [POST], descriptors: [{entries: [{key: k, value: v}]}]}",
    ] {
        let (_, findings) = load(&rule(text));
        assert!(findings.is_empty(), "{text}: {findings}");
    }
}

/// Gaps of a domain are reported once, for all files together.
#[test]
fn requests_that_meet_no_limit_are_warned_of() {
    let all = "{descriptors: [{entries: [{key: k, client_ip: true}]}]}";
    let key = "{entries: [{key: k, api_key: true}]}";
    for (rules, expected) in [
        (format!("{{path: /login, descriptors: [{key}]}}, {all}"), vec![]),
        (format!("{{descriptors: [{key}]}}"), vec!["a request without any"]),
        ("{descriptors: [{entries: [{key: k, api_key: true, default: none}]}]}".into(), vec![]),
        (
            format!("{{path: /login, descriptors: [{key}]}}"),
            vec!["a path that no rule lists", "a request without any"],
        ),
        (
            "{path: /a, descriptors: [{entries: [{key: k, value: v}]}]}".into(),
            vec!["a path that no"],
        ),
        ("{path: '/{any...}', descriptors: [{entries: [{key: k, value: v}]}]}".into(), vec![]),
        (
            "{path: '/a/{any...}', descriptors: [{entries: [{key: k, value: v}]}]}".into(),
            vec!["a path that no"],
        ),
        (String::new(), vec![]),
    ] {
        let file = format!(
            "domain: d\nrequests: {{rules: [{rules}]}}\ndescriptors: [{{key: k, rate: 1/s}}]"
        );
        let loaded =
            crate::policy::Policy::load(&[("p.yaml", &file)], crate::policy::Merging::Refuse);
        let found: Vec<&str> = loaded.findings.lines().collect();
        assert_eq!((found.len(), loaded.errors), (expected.len(), 0), "{rules}: {found:?}");
        for (line, start) in found.iter().zip(&expected) {
            assert!(line.starts_with(&format!("p.yaml:2:11: warning: {start}")), "{line}");
        }
    }
}
