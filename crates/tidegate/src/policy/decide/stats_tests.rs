use super::*;
use crate::policy::{Descriptor, Hits, Merging, Policy};
use crate::store::memory::MemoryStore;

type Limiter = PolicyLimiter<MemoryStore>;

fn policy(text: &str) -> Policy {
    let loaded = Policy::load(&[("p.yaml", text)], Merging::Refuse);
    loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
}

fn ask(limiter: &Limiter, entries: &[(&str, &str)], hits: Hits) -> bool {
    let entries: Vec<Entry<'_>> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    let descriptors = [Descriptor { hits: Some(hits), ..Descriptor::new(&entries) }];
    let request = Request { domain: "d", descriptors: &descriptors, hits: None };
    limiter.check_now(&request).unwrap().is_allowed()
}

fn stats(limiter: &Limiter, name: &str) -> LimitStats {
    let all = limiter.limit_stats();
    let found = all.iter().find(|(it, _)| it == name);
    found.unwrap_or_else(|| panic!("{name} in {all:?}")).1
}

/// As in their own tests: of 10, 8 are not near, and a request may be on both sides.
#[test]
fn near_begins_after_four_fifths_of_the_limit() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: year, requests_per_unit: 10}\n";
    let limiter = PolicyLimiter::in_memory(policy(text)).unwrap();
    let take = |units| ask(&limiter, &[("k", "v")], Hits::Take(units));
    assert!(take(7));
    assert_eq!(
        stats(&limiter, "d.k"),
        LimitStats { total_hits: 7, within_limit: 7, ..LimitStats::default() }
    );
    assert!(take(2));
    assert_eq!(stats(&limiter, "d.k").near_limit, 1);
    assert!(take(1));
    assert!(!take(1) && !take(3));
    assert!(ask(&limiter, &[("k", "v")], Hits::Return(2)));
    let expected = LimitStats {
        total_hits: 14,
        over_limit: 4,
        near_limit: 2,
        within_limit: 10,
        shadow_mode: 0,
        total_negative_hits: 2,
        skipped: 0,
    };
    assert_eq!(stats(&limiter, "d.k"), expected);
}

#[test]
fn counts_outlive_the_policy_that_they_were_made_under() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    shadow_mode: true\n    rate_limit: {unit: year, requests_per_unit: 1}\n";
    let limiter = PolicyLimiter::in_memory(policy(text)).unwrap();
    assert!(ask(&limiter, &[("k", "v")], Hits::Take(1)));
    assert!(ask(&limiter, &[("k", "v")], Hits::Take(1)));
    limiter.replace(policy(&text.replace("unit: 1", "unit: 5")));
    assert!(ask(&limiter, &[("k", "v")], Hits::Take(1)));
    let found = stats(&limiter, "d.k");
    assert_eq!((found.total_hits, found.over_limit, found.shadow_mode), (3, 1, 1));
    limiter.replace(policy("domain: d\ndescriptors: [{key: other, rate: 1/s}]"));
    assert_eq!(limiter.limit_stats(), [("d.other".to_owned(), LimitStats::default())]);
}

/// The names of their README: keys, values that the policy names, and values where it asks for them.
#[test]
fn names_are_those_of_envoyproxy() {
    let text = "
domain: d
descriptors:
  - key: plain
    value: a.b
    descriptors:
      - key: inner
        rate_limit: {unit: day, requests_per_unit: 9}
  - key: told
    value_to_metric: true
    descriptors:
      - key: inner
        value: x
        rate_limit: {unit: day, requests_per_unit: 9}
  - key: all
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 9}
  - key: star
    value: f*
    share_threshold: true
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 9}
";
    let limiter = PolicyLimiter::in_memory(policy(text)).unwrap();
    for (entries, name) in [
        (&[("plain", "a.b"), ("inner", "z")][..], "d.plain_a.b.inner"),
        (&[("told", "v1"), ("inner", "x")], "d.told_v1.inner_x"),
        (&[("all", "10.0.0.7:80|x")], "d.all_10_0_0_7_80_x"),
        (&[("star", "foo")], "d.star_f*"),
    ] {
        ask(&limiter, entries, Hits::Take(1));
        assert_eq!(stats(&limiter, name).total_hits, 1, "{name}");
    }
}

#[test]
fn there_are_not_more_names_than_a_bound_says() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    detailed_metric: true\n    rate: 1/s\n";
    let limiter = PolicyLimiter::in_memory(policy(text)).unwrap();
    for number in 0..MAX_NAMES + 5 {
        ask(&limiter, &[("k", &number.to_string())], Hits::Take(1));
    }
    assert_eq!(stats(&limiter, OVERFLOW).total_hits, 5);
    assert!(limiter.limit_stats().len() <= MAX_NAMES + 2);
    let descriptors = [Descriptor::new(&[Entry { key: "k", value: "v" }])];
    for number in 0..MAX_DOMAINS + 3 {
        let domain = format!("unknown:{number}");
        let request = Request { domain: &domain, descriptors: &descriptors, hits: None };
        limiter.check_now(&request).unwrap();
    }
    let unknown = limiter.unknown_domains();
    assert_eq!(unknown.len(), MAX_DOMAINS + 1);
    assert!(unknown.contains(&(OVERFLOW.to_owned(), 3)), "{unknown:?}");
    assert!(unknown.iter().all(|(name, _)| !name.contains(':')));
}

#[test]
fn threads_lose_no_count() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    rate: 1000000/s\n";
    let limiter = PolicyLimiter::in_memory(policy(text)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    ask(&limiter, &[("k", "v")], Hits::Take(2));
                }
            });
        }
    });
    assert_eq!(stats(&limiter, "d.k").total_hits, 12_000);
}

/// A bucket in front denies in the name of its limit, and both are counted as one.
#[test]
fn a_pre_limit_is_counted_with_its_limit_once() {
    let text = "domain: d\ndescriptors:\n  - {key: k, rate: 100/year, local: {rate: 3/year}}\n";
    let limiter = PolicyLimiter::in_memory(policy(text)).unwrap();
    let allowed = (0..5).filter(|_| ask(&limiter, &[("k", "v")], Hits::Take(1))).count();
    assert_eq!(allowed, 3);
    let expected =
        LimitStats { total_hits: 5, within_limit: 3, over_limit: 2, ..LimitStats::default() };
    assert_eq!(stats(&limiter, "d.k"), expected);
}
