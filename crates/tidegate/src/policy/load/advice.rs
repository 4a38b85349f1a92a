//! What can be used but is hardly meant.

use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{AlgorithmName, Limit, Rate};

use super::Trail;
use super::fields::Fields;
use super::limits::Defaults;
use super::numbers::Numbers;
use crate::policy::document::finding::Findings;
use crate::store::{OnStoreFailure, Tier};

/// Words in a descriptor that say that somebody tries to get in.
const ENTRANCES: &[&str] = &["auth", "login", "logon", "otp", "password", "signin", "token"];
/// Words in a descriptor that say that each request costs money.
const PAID: &[&str] =
    &["billing", "charge", "checkout", "completion", "invoice", "payment", "purchase", "sms"];
/// A log of more entries takes more memory per key than most expect.
const LONG_LOG: u64 = 1_000;
const BYTES_PER_ENTRY: u64 = 16;
/// Below so many per second a node asks the store about as often with leases as without.
const LEAST_LEASED_PER_SECOND: u128 = 20;
const MICROS: u128 = 1_000_000;

/// Warns of a limit that does what it says, if that is hardly what its author wants.
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
    // A limit of nought is meant to deny.
    if capacity > 0 && cost > capacity {
        let why =
            format!("a request costs {cost}, more than the {capacity} there ever are: none passes");
        warn("cost", why);
    }
    if choices.on_store_failure == OnStoreFailure::Allow && speaks_of(PAID) {
        let why = "with on_store_failure: allow, everything passes while the store is away, which \
                   here costs money: take local or deny";
        warn("on_store_failure", why.to_owned());
    }
    match limit {
        Limit::SlidingLog(log) if log.limit() > LONG_LOG => {
            let kib = log.limit() * BYTES_PER_ENTRY / 1_024;
            let why = format!("a log keeps every admission: up to {kib} KiB for each key");
            warn("rate", why);
        }
        Limit::FixedWindow(_) if speaks_of(ENTRANCES) => {
            let why = "a fixed window lets twice its limit through across a boundary, which \
                       whoever guesses passwords will use: take sliding_window or token_bucket";
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

/// What speaks against leases.
fn lease_advice(numbers: &Numbers) -> Option<String> {
    let Rate { count, per } = numbers.rate;
    if matches!(numbers.algorithm, AlgorithmName::SlidingLog | AlgorithmName::LeakyBucket) {
        return Some(format!("{} is always decided in the store", numbers.algorithm));
    }
    if numbers.denied == Denied::Counted {
        return Some("a window that counts what it denied is always decided in the store".into());
    }
    let (count, per) = (u128::from(count), u128::from(per.as_micros()));
    (count * MICROS < LEAST_LEASED_PER_SECOND * per)
        .then(|| "below 20 per second leases save no calls to the store".into())
}

/// The most that is ever taken at once.
pub(super) fn capacity(limit: &Limit) -> u64 {
    match limit {
        Limit::Bucket(bucket) => bucket.capacity(),
        Limit::FixedWindow(window) => window.limit(),
        Limit::SlidingWindow(window) => window.limit(),
        Limit::SlidingLog(log) => log.limit(),
        _ => u64::MAX,
    }
}
