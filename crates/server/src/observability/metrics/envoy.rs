//! The metrics of envoyproxy/ratelimit, and the pages of its debug port.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use tidegate::policy::{Allowance, Domain, Form, LimitStats, Mode};

use super::page::Page;
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

/// `/rlconfig`: one line per limit; a limit in our own form is written in words.
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
                    (Form::Native, allowance) => format!("{} {allowance}", limit.kind()),
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

/// The names of their default statsd mapper, which drops the third key and later ones.
pub(super) fn metrics(service: &RateLimitService, page: &mut Page<'_, '_>) -> fmt::Result {
    let mut counted: BTreeMap<[String; 3], LimitStats> = BTreeMap::new();
    for (name, stats) in service.limiter().limit_stats() {
        let mut parts = name.splitn(4, '.').map(ToOwned::to_owned);
        let mut part = || parts.next().unwrap_or_default();
        let labels = [part(), part(), part()];
        if counted.len() < super::MAX_LIMITS || counted.contains_key(&labels) {
            *counted.entry(labels).or_default() += stats;
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
        let samples = counted.iter().map(|([domain, key1, key2], stats)| {
            let mut labels = vec![("domain", &**domain), ("key1", &**key1), ("key2", &**key2)];
            labels.retain(|(name, value)| *name != "key2" || !value.is_empty());
            (labels, counters(stats)[number].1)
        });
        page.family(name, samples)?;
    }
    let status = service.status();
    let grpc = status.listener(Protocol::Grpc);
    let errors = [
        ("redis_error", grpc.undecided),
        ("service_error", grpc.failed.saturating_sub(grpc.undecided)),
    ];
    let errors = errors.map(|(kind, count)| ([("err_type", kind)], count));
    page.family("ratelimit_service_should_rate_limit_error", errors)?;
    let calls = grpc.allowed + grpc.denied + grpc.failed;
    page.family("ratelimit_service_total_requests", [(METHOD, calls)])?;
    let times = status.times(|thread| thread.times(Protocol::Grpc));
    page.histograms("ratelimit_service_response_time_seconds", [(METHOD, times)])?;
    let policy = status.policy();
    page.value("ratelimit_service_config_load_success", policy.loaded)?;
    page.value("ratelimit_service_config_load_error", policy.refused)
}
