//! What envoyproxy/ratelimit tells on its debug port, told alike.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tidegate::policy::{Allowance, Domain, Form, LimitStats, Mode};

use super::Page;
use crate::service::RateLimitService;
use crate::transport::Protocol;

const METHOD: [(&str, &str); 1] = [("grpc_method", "ShouldRateLimit")];

/// `/stats`: one `name: value` per line.
pub(crate) fn stats(service: &RateLimitService) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: u64| {
        let _ = writeln!(text, "{name}: {value}");
    };
    let status = service.status();
    let (policy, grpc) = (status.policy(), status.listener(Protocol::Grpc));
    line("ratelimit.service.call.should_rate_limit.redis_error", grpc.undecided);
    line(
        "ratelimit.service.call.should_rate_limit.service_error",
        grpc.failed.saturating_sub(grpc.undecided),
    );
    line("ratelimit.service.config_load_error", policy.refused);
    line("ratelimit.service.config_load_success", policy.loaded);
    for (name, stats) in service.limiter().limit_stats() {
        for (counter, units) in counters(&stats) {
            line(&format!("ratelimit.service.rate_limit.{name}.{counter}"), units);
        }
        let negative = format!("ratelimit.service.rate_limit.{name}.total_negative_hits");
        line(&negative, stats.total_negative_hits);
    }
    for (domain, count) in service.limiter().unknown_domains() {
        line(&format!("ratelimit.service.rate_limit.{domain}.domain_not_found"), count);
    }
    let calls = grpc.allowed + grpc.denied + grpc.failed;
    line("ratelimit_server.ShouldRateLimit.total_requests", calls);
    text
}

const fn counters(stats: &LimitStats) -> [(&'static str, u64); 5] {
    [
        ("total_hits", stats.total_hits),
        ("over_limit", stats.over_limit),
        ("near_limit", stats.near_limit),
        ("within_limit", stats.within_limit),
        ("shadow_mode", stats.shadow_mode),
    ]
}

/// `/rlconfig`: one line per limit; one of ours is told in words.
pub(crate) fn rules(service: &RateLimitService) -> String {
    let mut text = String::new();
    let policy = service.policy();
    let mut domains: Vec<&Domain> = policy.domains().collect();
    domains.sort_unstable_by_key(|domain| domain.name());
    for domain in domains {
        for rule in domain.rules() {
            for limit in rule.limits() {
                let is_shadow = limit.mode() == Mode::Shadow;
                let numbers = match (limit.form(), limit.allowance()) {
                    (_, Allowance::Unlimited) => "unit=UNKNOWN requests_per_unit=0".to_owned(),
                    (Form::Envoy { unit, requests_per_unit }, _) => {
                        let unit = unit.as_str().to_ascii_uppercase();
                        format!("unit={unit} requests_per_unit={requests_per_unit}")
                    }
                    (Form::Native, allowance) => format!("{} {allowance}", limit.algorithm()),
                };
                let _ = writeln!(
                    text,
                    "{}.{}: {numbers}, shadow_mode: {is_shadow}, quota_mode: {}",
                    domain.name(),
                    rule.stat(),
                    rule.is_quota()
                );
            }
        }
    }
    text
}

/// The names of their default mapper: the third key and those after it are dropped.
pub(super) fn metrics(service: &RateLimitService, page: &mut Page) {
    let mut told: BTreeMap<[String; 3], LimitStats> = BTreeMap::new();
    for (name, stats) in service.limiter().limit_stats() {
        let mut parts = name.splitn(4, '.').map(ToOwned::to_owned);
        let mut part = || parts.next().unwrap_or_default();
        let labels = [part(), part(), part()];
        if told.len() < super::MAX_LIMITS || told.contains_key(&labels) {
            *told.entry(labels).or_default() += stats;
        }
    }
    let names = [
        "ratelimit_service_rate_limit_total_hits",
        "ratelimit_service_rate_limit_over_limit",
        "ratelimit_service_rate_limit_near_limit",
        "ratelimit_service_rate_limit_within_limit",
        "ratelimit_service_rate_limit_shadow_mode",
    ];
    for (number, name) in names.into_iter().enumerate() {
        for ([domain, key1, key2], stats) in &told {
            let labels = [("domain", &**domain), ("key1", key1), ("key2", key2)];
            let labels = if key2.is_empty() { &labels[..2] } else { &labels };
            page.line(name, labels, counters(stats)[number].1);
        }
    }
    let status = service.status();
    let grpc = status.listener(Protocol::Grpc);
    for (kind, count) in [
        ("redis_error", grpc.undecided),
        ("service_error", grpc.failed.saturating_sub(grpc.undecided)),
    ] {
        page.line("ratelimit_service_should_rate_limit_error", &[("err_type", kind)], count);
    }
    let calls = grpc.allowed + grpc.denied + grpc.failed;
    page.line("ratelimit_service_total_requests", &METHOD, calls);
    let times = status.times(|thread| &thread.grpc_times);
    page.histogram("ratelimit_service_response_time_seconds", &METHOD, &times);
    let policy = status.policy();
    page.line("ratelimit_service_config_load_success", &[], policy.loaded);
    page.line("ratelimit_service_config_load_error", &[], policy.refused);
}
