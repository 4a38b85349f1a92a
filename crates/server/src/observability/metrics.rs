//! `/metrics`: the daemon's counters, encoded by `prometheus-client` when a scraper reads them, and the
//! names of envoyproxy/ratelimit.
//!
//! ```text
//!   counters of threads, limiter, store ──▶ Metrics (Collector) ──page.rs──▶ encoder
//! ```
//!
//! # Bounds
//! Labels are those of [`table::METRICS`] and no others. At most [`MAX_LIMITS`] limits have labels of
//! their own; the others are summed under the limit `_overflow`. Clients choose the names of unknown
//! domains; there are at most 100, and `_overflow`.

mod envoy;
mod page;
mod process;
mod store;
pub(crate) mod table;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use tidegate::concurrency::{Class, ConcurrencyStats, ShedReason};
use tidegate::policy::{Domain, LimitStats, OVERFLOW, PolicyLimit, Rule, SettleStats};

use self::page::{Page, seconds};
use crate::runtime::accept::Refusal;
use crate::service::RateLimitService;
use crate::transport::Protocol;
use crate::transport::gateway::{Address, Outcome};

pub(crate) use self::envoy::{rules, stats};

/// The most limits with labels of their own.
pub(crate) const MAX_LIMITS: usize = 1_000;

/// The content type of `/metrics`.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The listeners that decide requests.
const DECIDING: [Protocol; 4] = [Protocol::Resp, Protocol::Http, Protocol::Grpc, Protocol::Gateway];

/// All metrics, as text.
pub(crate) fn text(service: &RateLimitService, with_envoy_names: bool) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics { service: service.clone(), with_envoy_names }));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode_registry(&mut text, &registry);
    text
}

/// Reads the counters of a service.
#[derive(Debug)]
struct Metrics {
    service: RateLimitService,
    with_envoy_names: bool,
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (service, page) = (&self.service, &mut Page::new(&mut encoder));
        daemon(service, page)?;
        process::encode(page)?;
        listeners(service, page)?;
        policy(service, page)?;
        limits(service, page)?;
        concurrency(service, page)?;
        upstreams(service, page)?;
        store::encode(service, page)?;
        if self.with_envoy_names { envoy::metrics(service, page) } else { Ok(()) }
    }
}

fn daemon(service: &RateLimitService, page: &mut Page<'_, '_>) -> fmt::Result {
    let version = env!("CARGO_PKG_VERSION");
    page.family("tidegate_build_info", [([("version", version)], 1_u64)])?;
    let uptime = service.now().since(service.status().started());
    page.value("tidegate_uptime_seconds", seconds(uptime.as_micros()))?;
    page.value("tidegate_draining", service.status().is_draining())
}

fn listeners(service: &RateLimitService, page: &mut Page<'_, '_>) -> fmt::Result {
    let status = service.status();
    let requests = DECIDING.iter().flat_map(|listener| {
        let (name, totals) = (listener.name(), status.listener(*listener));
        [("allowed", totals.allowed), ("denied", totals.denied), ("failed", totals.failed)]
            .map(|(verdict, count)| ([("listener", name), ("verdict", verdict)], count))
    });
    page.family("tidegate_requests_total", requests)?;
    let times = DECIDING.iter().map(|listener| {
        ([("listener", listener.name())], status.times(|thread| thread.times(*listener)))
    });
    page.histograms("tidegate_request_seconds", times)?;
    let totals = Protocol::ALL.map(|listener| (listener.name(), status.listener(listener)));
    let opened = totals.iter().map(|(name, it)| ([("listener", *name)], it.connections));
    page.family("tidegate_connections_total", opened)?;
    let open = totals.iter().map(|(name, it)| ([("listener", *name)], it.open));
    page.family("tidegate_connections", open)?;
    let refused = totals.iter().flat_map(|(name, it)| {
        let reasons = Refusal::ALL.into_iter().zip(it.refused);
        reasons.map(|(reason, count)| ([("listener", *name), ("reason", reason.name())], count))
    });
    page.family("tidegate_refused_connections_total", refused)?;
    match status.access_log() {
        Some(log) => page.value("tidegate_access_log_dropped_lines_total", log.dropped()),
        None => Ok(()),
    }
}

fn policy(service: &RateLimitService, page: &mut Page<'_, '_>) -> fmt::Result {
    let policy = service.status().policy();
    let revision = policy.revision.map(|revision| revision.to_string()).unwrap_or_default();
    page.family("tidegate_policy_info", [([("revision", &*revision)], 1_u64)])?;
    let loaded_at = policy.loaded_at.map_or(0, |at| at.as_micros());
    page.value("tidegate_policy_loaded_timestamp_seconds", seconds(loaded_at))?;
    let loads = [("loaded", policy.loaded), ("refused", policy.refused)];
    let loads = loads.map(|(outcome, count)| ([("outcome", outcome)], count));
    page.family("tidegate_policy_loads_total", loads)?;
    let controls = service.limiter().controls();
    let overrides = controls.overrides().filter(|(_, it)| service.now() < it.until).count();
    page.value("tidegate_overrides", overrides)?;
    page.value("tidegate_kill_switches", controls.switches().count())
}

fn limits(service: &RateLimitService, page: &mut Page<'_, '_>) -> fmt::Result {
    let policy = service.policy();
    let mut limits: Vec<(&str, &PolicyLimit)> = Vec::new();
    for domain in policy.domains() {
        let own = domain.rules().iter().flat_map(Rule::limits);
        limits.extend(own.map(|limit| (domain.name(), limit)));
    }
    let others = limits.split_off(limits.len().min(MAX_LIMITS));
    limits.sort_unstable_by_key(|(domain, limit)| (*domain, limit.id()));
    let mut counted: Vec<(&str, &str, LimitStats)> =
        limits.iter().map(|(domain, limit)| (*domain, limit.id(), limit.stats())).collect();
    if !others.is_empty() {
        let mut sum = LimitStats::default();
        others.iter().for_each(|(_, limit)| sum += limit.stats());
        counted.push((OVERFLOW, OVERFLOW, sum));
    }
    let units = counted.iter().flat_map(|(domain, limit, stats)| {
        outcomes(stats).map(|(outcome, units)| {
            ([("domain", *domain), ("limit", *limit), ("outcome", outcome)], units)
        })
    });
    page.family("tidegate_limit_units_total", units)?;
    let returned = counted.iter().map(|(domain, limit, stats)| {
        ([("domain", *domain), ("limit", *limit)], stats.total_negative_hits)
    });
    page.family("tidegate_limit_returned_units_total", returned)?;
    let in_flight = limits.iter().filter(|(_, limit)| limit.is_in_flight());
    let skipped = in_flight.map(|(domain, limit)| {
        ([("domain", *domain), ("limit", limit.id())], limit.stats().skipped)
    });
    page.family("tidegate_limit_skipped_requests_total", skipped)?;
    let shadows = limits.iter().filter_map(|(domain, limit)| {
        let agreement = limit.shadow()?.agreement();
        let counts = [
            ("agree", agreement.agree),
            ("would_deny", agreement.would_deny),
            ("would_allow", agreement.would_allow),
        ];
        Some(counts.map(|(outcome, count)| {
            ([("domain", *domain), ("limit", limit.id()), ("outcome", outcome)], count)
        }))
    });
    page.family("tidegate_shadow_requests_total", shadows.flatten())?;
    let SettleStats { sums, failed } = service.limiter().settle_stats();
    let settled = [("settled", sums.settled), ("not_open", sums.not_open), ("failed", failed)];
    let settled = settled.map(|(outcome, count)| ([("outcome", outcome)], count));
    page.family("tidegate_settlements_total", settled)?;
    let fates = [
        ("returned", sums.returned),
        ("dropped", sums.dropped),
        ("booked", sums.booked),
        ("unbooked", sums.unbooked),
    ];
    let fates = fates.map(|(fate, units)| ([("fate", fate)], units));
    page.family("tidegate_settled_units_total", fates)?;
    let unknown = service.limiter().unknown_domains();
    let unknown = unknown.iter().map(|(domain, count)| ([("domain", &**domain)], *count));
    page.family("tidegate_unknown_domain_requests_total", unknown)?;
    let unmatched = service.status().unmatched_descriptors();
    page.value("tidegate_unmatched_descriptors_total", unmatched)
}

/// The concurrency limiters that requests of the gateway have used.
fn concurrency(service: &RateLimitService, page: &mut Page<'_, '_>) -> fmt::Result {
    let (policy, all) = (service.policy(), service.limiter().protection_stats());
    let each = |of: fn(&ConcurrencyStats) -> u64| {
        all.iter().map(move |(domain, name, stats)| {
            ([("domain", &**domain), ("protect", &**name)], of(stats))
        })
    };
    page.family("tidegate_concurrency_limit", each(|it| it.limit.into()))?;
    page.family("tidegate_concurrency_in_flight", each(|it| it.in_flight.into()))?;
    page.family("tidegate_concurrency_queued", each(|it| it.queued as u64))?;
    let baselines = all.iter().filter_map(|(domain, name, stats)| {
        let baseline = stats.baseline?.as_micros();
        let baseline = seconds(u64::try_from(baseline).unwrap_or(u64::MAX));
        Some(([("domain", &**domain), ("protect", &**name)], baseline))
    });
    page.family("tidegate_concurrency_baseline_seconds", baselines)?;
    let mut sheds = Vec::new();
    for (domain, name, stats) in &all {
        let classes = policy.domain(domain).map(Domain::classes);
        let count = classes.map_or(1, |classes| classes.shares().classes());
        for class in (0..count).filter_map(|rank| u8::try_from(rank).ok()).map(Class::new) {
            let class_name = classes.and_then(|it| it.name(class)).unwrap_or("default");
            sheds.extend(ShedReason::ALL.map(|reason| {
                let labels = [
                    ("domain", &**domain),
                    ("protect", &**name),
                    ("class", class_name),
                    ("reason", reason.name()),
                ];
                (labels, stats.sheds(class, reason))
            }));
        }
    }
    page.family("tidegate_shed_requests_total", sheds)
}

/// The addresses that the gateway forwards requests to.
fn upstreams(service: &RateLimitService, page: &mut Page<'_, '_>) -> fmt::Result {
    let Some(upstreams) = service.status().upstreams() else { return Ok(()) };
    let all: Vec<&Address> =
        upstreams.all().iter().flat_map(|it| it.addresses.iter().map(|it| &**it)).collect();
    let each = |of: fn(&Address) -> u64| {
        all.iter().map(move |it| {
            ([("upstream", it.upstream.as_str()), ("address", it.name.as_str())], of(it))
        })
    };
    let requests = all.iter().flat_map(|it| {
        Outcome::ALL.map(|outcome| {
            let labels = [
                ("upstream", it.upstream.as_str()),
                ("address", it.name.as_str()),
                ("outcome", outcome.name()),
            ];
            (labels, it.outcomes(outcome))
        })
    });
    page.family("tidegate_upstream_requests_total", requests)?;
    page.family("tidegate_upstream_retries_total", each(Address::retries))?;
    page.family("tidegate_upstream_requests_in_progress", each(|it| it.in_progress() as u64))?;
    page.family("tidegate_upstream_connections", each(|it| it.connections() as u64))?;
    page.family("tidegate_upstream_ejected", each(|it| it.is_ejected().into()))?;
    page.family("tidegate_upstream_ejections_total", each(Address::ejections))?;
    page.family("tidegate_upstream_healthy", each(|it| it.is_healthy().into()))
}

/// Units by outcome. A unit has one outcome, so the outcomes add up to all units.
fn outcomes(stats: &LimitStats) -> [(&'static str, u64); 4] {
    [
        ("within_limit", stats.within_limit.saturating_sub(stats.near_limit)),
        ("near_limit", stats.near_limit),
        ("over_limit", stats.over_limit.saturating_sub(stats.shadow_mode)),
        ("shadow", stats.shadow_mode),
    ]
}
