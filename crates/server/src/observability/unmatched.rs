//! Requests that no limit applies to: their domain is not in the policy, or none of the domain's rules
//! matches a descriptor. Both are counted, and logged at level debug once a second at most.

use tidegate::Verdict;
use tidegate::policy::Request;
use tracing::{debug, enabled};

use super::throttle::{Admitted, Frequent};
use crate::service::RateLimitService;

/// The most bytes of a client's text in a line.
const MAX_SHOWN: usize = 256;

/// Counts the descriptors of a decided request that no limit applied to. The limiter itself counts
/// unknown domains.
pub(crate) fn note(service: &RateLimitService, request: &Request<'_>, verdict: &Verdict) {
    if verdict.parts().len() == 0 && service.policy().domain(request.domain).is_none() {
        log_domain(service, request.domain);
        return;
    }
    let is_unmatched = |number: &usize| verdict.parts().all(|part| part.descriptor != *number);
    let mut unmatched = (0..request.descriptors.len()).filter(is_unmatched);
    let Some(first) = unmatched.next() else { return };
    service.counters().count_unmatched(1 + unmatched.count() as u64);
    log_descriptor(service, request, first);
}

#[cold]
fn log_domain(service: &RateLimitService, domain: &str) {
    if enabled!(tracing::Level::DEBUG)
        && let Some(Admitted { suppressed }) = service.status().log().admit(Frequent::UnknownDomain)
    {
        let domain = shortened(domain);
        debug!(event = "unknown_domain", domain, suppressed, "the policy has no such domain");
    }
}

#[cold]
fn log_descriptor(service: &RateLimitService, request: &Request<'_>, number: usize) {
    let log = service.status().log();
    if enabled!(tracing::Level::DEBUG)
        && let Some(Admitted { suppressed }) = log.admit(Frequent::UnmatchedDescriptor)
    {
        let values = service.status().key_values();
        let entries = request.descriptors.get(number).map_or(&[][..], |it| it.entries);
        let descriptor = values.show_entries(entries);
        debug!(
            event = "unmatched_descriptor",
            domain = shortened(request.domain),
            descriptor = shortened(&descriptor),
            suppressed,
            "no limit applies"
        );
    }
}

fn shortened(text: &str) -> &str {
    let end = (0..=MAX_SHOWN.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}
