//! Warnings about limits that are valid but probably not intended.

use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{AlgorithmName, Limit, Rate};

use super::Trail;
use super::fields::Fields;
use super::limits::Defaults;
use crate::policy::document::finding::Findings;
use crate::policy::load::limits::numbers::Numbers;
use crate::store::{OnStoreFailure, Tier};

/// Words in a descriptor that suggest authentication.
const ENTRANCES: &[&str] = &["auth", "login", "logon", "otp", "password", "signin", "token"];
/// Words in a descriptor that suggest requests that cost money.
const PAID: &[&str] =
    &["billing", "charge", "checkout", "completion", "invoice", "payment", "purchase", "sms"];
/// A sliding log with more entries takes more memory per key than most users expect.
const LONG_LOG: u64 = 1_000;
const BYTES_PER_ENTRY: u64 = 16;
/// The lowest rate at which leases save calls to the store.
const LEAST_LEASED_PER_SECOND: u128 = 20;
const MICROS: u128 = 1_000_000;

/// Warns about a limit that is valid but probably not intended.
pub(super) fn advise(
    numbers: &Numbers,
    choices: &Defaults,
    fields: &Fields<'_>,
    trail: &Trail,
    findings: &mut Findings,
) {
    let Some(limit) = numbers.limit() else { return };
    let mut warn = |field: &str, message: String| {
        let at = fields.first(&[field, "rate", "requests", "rate_limit"]);
        if let Some((field, node)) = at {
            findings.push(node.warning(message).at(fields.at(field)));
        }
    };
    let path = trail.name.to_ascii_lowercase();
    let speaks_of = |words: &[&str]| {
        let mut spoken = path.split(|c: char| !c.is_ascii_alphanumeric());
        spoken.any(|word| words.contains(&word) || words.contains(&word.trim_end_matches('s')))
    };
    let (cost, capacity) = (choices.cost.unwrap_or(1), capacity(&limit));
    // A limit of 0 is meant to deny.
    if capacity > 0 && cost > capacity {
        let why = format!(
            "a request costs {cost}, more than the capacity of {capacity}: every request is denied"
        );
        warn("cost", why);
    }
    if choices.on_store_failure == OnStoreFailure::Allow && speaks_of(PAID) {
        let why = "on_store_failure: allow admits every request while the store is unavailable, \
                   and these requests seem to cost money: use local or deny";
        warn("on_store_failure", why.to_owned());
    }
    match limit {
        Limit::SlidingLog(log) if log.limit() > LONG_LOG => {
            let kib = log.limit() * BYTES_PER_ENTRY / 1_024;
            let why = format!("a sliding log stores every admission: up to {kib} KiB per key");
            warn("rate", why);
        }
        Limit::FixedWindow(_) if speaks_of(ENTRANCES) => {
            let why = "a fixed window admits twice its limit across a boundary, which helps to \
                       guess passwords: use sliding_window or token_bucket";
            warn("algorithm", why.to_owned());
        }
        _ => {}
    }
    if choices.tier == Tier::Leased
        && let Some(why) = lease_advice(numbers)
    {
        warn("tier", why);
    }
}

/// Why leases do not suit these numbers.
fn lease_advice(numbers: &Numbers) -> Option<String> {
    let Rate { count, per } = numbers.rate;
    if matches!(numbers.algorithm, AlgorithmName::SlidingLog | AlgorithmName::LeakyBucket) {
        return Some(format!("{} is always decided in the store", numbers.algorithm));
    }
    if numbers.denied == Denied::Counted {
        return Some("a window that counts denied requests is always decided in the store".into());
    }
    let (count, per) = (u128::from(count), u128::from(per.as_micros()));
    (count * MICROS < LEAST_LEASED_PER_SECOND * per)
        .then(|| "below 20 per second leases save no calls to the store".into())
}

/// The most units that one request can take.
pub(super) fn capacity(limit: &Limit) -> u64 {
    match &limit.without_block() {
        Limit::Bucket(bucket) => bucket.capacity(),
        Limit::FixedWindow(window) => window.limit(),
        Limit::SlidingWindow(window) => window.limit(),
        Limit::SlidingLog(log) => log.limit(),
        Limit::InFlight(in_flight) => in_flight.limit(),
        _ => u64::MAX,
    }
}
