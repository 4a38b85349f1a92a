//! What can be used but is hardly meant.

use tidegate_core::Limit;
use tidegate_core::algorithm::fixed_window::Denied;

use super::Trail;
use super::fields::Fields;
use crate::policy::finding::Findings;

/// Words in a descriptor that say that somebody tries to get in.
const ENTRANCES: &[&str] = &["auth", "login", "logon", "otp", "password", "signin", "token"];
/// A log of more entries takes more memory per key than most expect.
const LONG_LOG: u64 = 1_000;
const BYTES_PER_ENTRY: u64 = 16;

/// Warns of a limit that does what it says, if that is hardly what its author wants.
pub(super) fn advise(
    limit: &Limit,
    cost: u64,
    fields: &Fields<'_>,
    trail: &Trail,
    findings: &mut Findings,
) {
    let mut warn = |field: &str, message: String| {
        let nodes = [field, "rate", "requests", "requests_per_unit"];
        let found = nodes.into_iter().find_map(|field| Some((field, fields.node(field)?)));
        if let Some((field, node)) = found {
            findings.push(node.warning(message).at(fields.at(field)));
        }
    };
    let capacity = match limit {
        Limit::Bucket(bucket) => bucket.capacity(),
        Limit::FixedWindow(window) => window.limit(),
        Limit::SlidingWindow(window) => window.limit(),
        Limit::SlidingLog(log) => log.limit(),
        _ => u64::MAX,
    };
    // A limit of nought is meant to deny.
    if capacity > 0 && cost > capacity {
        let why =
            format!("a request costs {cost}, more than the {capacity} there ever are: none passes");
        warn("cost", why);
    }
    match limit {
        Limit::SlidingLog(log) if log.limit() > LONG_LOG => {
            let kib = log.limit() * BYTES_PER_ENTRY / 1_024;
            let why = format!("a log keeps every admission: up to {kib} KiB for each key");
            warn("rate", why);
        }
        // In their form it is what the form means; in ours it was chosen.
        Limit::FixedWindow(window) if window.denied() == Denied::Ignored => {
            let path = trail.name.to_ascii_lowercase();
            if ENTRANCES.iter().any(|word| path.contains(word)) {
                let why = "a fixed window lets twice its limit through across a boundary, which \
                           whoever guesses passwords will use: take sliding_window or token_bucket";
                warn("algorithm", why.to_owned());
            }
        }
        _ => {}
    }
}
