use crate::concurrency::Class;
use crate::policy::{Merging, Mode, Policy};

fn findings(text: &str) -> String {
    Policy::load(&[("p", text)], Merging::Refuse).findings
}

fn policy(text: &str) -> Policy {
    let loaded = Policy::load(&[("p", text)], Merging::Refuse);
    loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
}

#[test]
fn classes_have_graded_shares_and_the_last_one_is_the_default() {
    let policy = policy("{domain: d, classes: [{name: a}, {name: b, max_share: 70%}, {name: c}]}");
    let classes = policy.domain("d").unwrap().classes();
    assert_eq!(classes.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(&classes.shares().percent()[..3], [100, 70, 70], "no more than the class before");
    assert_eq!(classes.default_class(), Class::new(2));
}

#[test]
fn a_concurrency_limiter_needs_only_a_name() {
    let policy = policy("{domain: d, protect: [{name: api}, {name: x, mode: shadow}]}");
    let protections = policy.domain("d").unwrap().protections();
    assert_eq!(protections[0].mode(), Mode::Enforce);
    assert_eq!(protections[1].mode(), Mode::Shadow);
    assert_eq!(protections[0].stats(), None, "built by the first request");
}

#[test]
fn ov_06_a_reserve_that_leaves_nothing_is_an_error() {
    let text =
        "{domain: d, classes: [{name: a}], descriptors: [{key: k, in_flight: 1, reserve: 20%}]}";
    let why = "a reserve of 20% of 1 leaves nothing for the other classes";
    assert!(findings(text).contains(why), "{}", findings(text));
    let text = "{domain: d, classes: [{name: a}], plans: {entry: plan}, descriptors: [{key: k, \
                in_flight: 10, reserve: 20%, plans: {small: {in_flight: 1}}}]}";
    assert!(findings(text).contains("for \"small\": a reserve of 20% of 1"), "{}", findings(text));
}

#[test]
fn mistakes_are_reported_where_they_are() {
    for (fields, at, why) in [
        ("classes: [{max_share: 90%}]", "classes[0].name", "expected a `name`"),
        ("classes: [{name: a}, {name: a}]", "classes[1].name", "two classes have the name"),
        (
            "classes: [{name: a, max_share: 50%}, {name: b, max_share: 60%}]",
            "classes[1].max_share",
            "larger than the share of a more important class",
        ),
        ("classes: [{name: a, max_share: 0%}]", "classes[0].max_share", "from 1% to 100%"),
        (
            "classes: [{name: a, default: true}, {name: b, default: true}]",
            "classes[1].default",
            "another class is the default",
        ),
        ("class_header: {name: x-class}", "class_header", "needs `classes`"),
        (
            "classes: [{name: a}], class_header: {name: x, trusted: [10.0.0.1/8]}",
            "class_header.trusted[0]",
            "bits after the length are zero",
        ),
        ("protect: [{name: none}]", "protect[0].name", "routes without a limiter"),
        ("protect: [{name: a}, {name: a}]", "protect[1].name", "two concurrency limiters"),
        ("protect: [{name: a, estimator: fixed}]", "protect[0].limit", "`fixed` needs a `limit`"),
        ("protect: [{name: a, limit: 5}]", "protect[0].limit", "belongs to `fixed`"),
        (
            "protect: [{name: a, min_limit: 9, max_limit: 8}]",
            "protect[0].max_limit",
            "smaller than `min_limit`",
        ),
        ("protect: [{name: a, queue_timeout: 1h}]", "protect[0].queue_timeout", "1ms to 10min"),
        ("protect: [{name: a, utilisation: {}}]", "protect[0].utilisation", "has no `classes`"),
        (
            "classes: [{name: a}, {name: b}], protect: [{name: p, utilisation: {calm: 95%}}]",
            "protect[0].utilisation.calm",
            "lower than `busy`",
        ),
        (
            "classes: [{name: a}], requests: {rules: [{class: b, descriptors: []}]}",
            "requests.rules[0].class",
            "one of a",
        ),
        (
            "classes: [{name: a}], class_header: {name: Priority, trusted: [10.0.0.0/8]}",
            "class_header.trusted",
            "only lowers a class",
        ),
        (
            "requests: {rules: [{protect: b, descriptors: []}]}",
            "requests.rules[0].protect",
            "no `protect` at its top level",
        ),
        (
            "descriptors: [{key: k, in_flight: 9, reserve: 20%}]",
            "descriptors[0].reserve",
            "the file has none",
        ),
        (
            "descriptors: [{key: k, rate: 9/s, reserve: 20%}]",
            "descriptors[0].reserve",
            "needs `in_flight`",
        ),
        ("descriptors: [{key: k, rate: 9/s, status: 430}]", "descriptors[0].status", "429 or 503"),
    ] {
        let found = findings(&format!("{{domain: d, {fields}}}"));
        assert!(found.contains(&format!("(at {at})")), "{fields}: {found}");
        assert!(found.contains(why), "{fields}: {found}");
    }
}

#[test]
fn lint_warns_of_what_is_probably_not_meant() {
    let drift = findings("{domain: d, protect: [{name: a, estimator: gradient2}]}");
    assert!(drift.contains("warning: ") && drift.contains("drifts"), "{drift}");
    let everyone = findings(
        "{domain: d, classes: [{name: a}], class_header: {name: x, trusted: [0.0.0.0/0]}}",
    );
    assert!(everyone.contains("every client may raise its class"), "{everyone}");
}

#[test]
fn files_of_a_domain_agree_on_its_classes() {
    let (one, same) = ("{domain: d, classes: [{name: a}]}", "{domain: d, protect: [{name: p}]}");
    assert!(Policy::load(&[("1", one), ("2", same)], Merging::Allow).policy.is_some());
    let other = "{domain: d, classes: [{name: b}]}";
    let found = Policy::load(&[("1", one), ("2", other)], Merging::Allow).findings;
    assert!(found.contains("another file of the domain has other classes"), "{found}");
}
