//! HTTP header fields that report the state of limits. Only this file rounds to seconds.
//!
//! | field | content |
//! |---|---|
//! | `RateLimit-Policy` | per limit: its name, `q` the most at once, `w` the period in seconds |
//! | `RateLimit` | per limit: `r` the remaining units, `t` seconds until there are more |
//! | `Retry-After` | on a denial: seconds until a retry can succeed, at least 1 |
//! | `X-RateLimit-*` | of the binding limit: limit, remaining, and Unix time of the full reset |
//!
//! The first two are those of draft-ietf-httpapi-ratelimit-headers, structured fields by RFC 9651.
//! Waits are rounded up, so that a retry after the wait is not too early. No wait is reported if
//! none would help.
//!
//! # Windows
//! The windows of all keys end at the same instant, and without jitter all clients would retry
//! then. Each key waits longer by up to a tenth of the window and at most [`MAX_JITTER`], in
//! `Retry-After` and `t` of fixed and sliding windows only. The jitter depends on key and window
//! alone, so repeated requests get the same instant.
//!
//! # Bounds
//! The fields report at most [`MAX_REPORTED`] limits, including the binding one; names are cut
//! after [`MAX_NAME`] letters; no number has more than the 15 digits that structured fields allow.

use tidegate_core::{Decision, Limit, Span, Timestamp};

use crate::digits;

/// The most limits in one answer, because proxies bound the size of heads.
pub const MAX_REPORTED: usize = 8;

/// The most letters of a limit's name.
pub const MAX_NAME: usize = 64;

/// The longest jitter of a wait.
pub const MAX_JITTER: Span = Span::from_secs(5);

/// The largest integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

const SECOND: u64 = 1_000_000;

/// The decision of one limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'a> {
    /// The limit's name.
    pub name: &'a str,
    /// Its numbers.
    pub limit: &'a Limit,
    /// The limit's decision.
    pub decision: &'a Decision,
    /// A hash of the key, for the jitter: [`Key::number`](crate::Key).
    pub whose: u64,
}

/// The header fields of one answer. `Default` is the answer without limits: no fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    rate_limit_policy: String,
    rate_limit: String,
    retry_after: Option<u64>,
    numbers: Option<Numbers>,
}

/// The binding limit, as `X-RateLimit-*` report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    limit: u64,
    remaining: u64,
    reset: u64,
}

impl Fields {
    /// The fields of an answer given at `now`, for these limits, of which number `binding` is the
    /// binding one.
    pub fn new(now: Timestamp, limits: &[LimitStatus<'_>], binding: usize) -> Self {
        let Some(binding_limit) = limits.get(binding) else { return Self::default() };
        let mut fields = Self {
            // The usual length of a name and two numbers.
            rate_limit_policy: String::with_capacity(48 * limits.len().min(MAX_REPORTED)),
            rate_limit: String::with_capacity(48 * limits.len().min(MAX_REPORTED)),
            retry_after: None,
            numbers: Some(Numbers {
                limit: binding_limit.decision.limit,
                remaining: binding_limit.decision.remaining,
                reset: seconds(Span::from_micros(
                    now.as_micros().saturating_add(binding_limit.decision.reset_after.as_micros()),
                )),
            }),
        };
        if !binding_limit.decision.is_allowed() {
            fields.retry_after = binding_limit.until_more(now).map(|wait| seconds(wait).max(1));
        }
        // One place is reserved for the binding limit.
        let first = limits.iter().enumerate().filter(|(number, _)| *number != binding);
        let last = first.map(|(number, _)| number).take(MAX_REPORTED - 1).last().unwrap_or(0);
        for (number, status) in limits.iter().enumerate() {
            if number <= last || number == binding {
                fields.write_limit(now, status);
            }
        }
        fields
    }

    fn write_limit(&mut self, now: Timestamp, status: &LimitStatus<'_>) {
        let Decision { limit, remaining, .. } = *status.decision;
        let Self { rate_limit_policy: policy, rate_limit: state, .. } = self;
        for field in [&mut *policy, &mut *state] {
            if !field.is_empty() {
                field.push_str(", ");
            }
            quote(field, status.name);
        }
        parameter(policy, ";q=", limit.min(MAX_INTEGER));
        if let Limit::InFlight(_) = status.limit {
            policy.push_str(";qu=\"concurrent-requests\"");
        }
        // The field has no smaller unit than a second.
        if let Some(length) = status.length().filter(|length| length.as_micros() >= SECOND) {
            parameter(policy, ";w=", seconds(length));
        }
        parameter(state, ";r=", remaining.min(MAX_INTEGER));
        if let Some(wait) = status.until_more(now) {
            let least = u64::from(remaining == 0 || !status.decision.is_allowed());
            parameter(state, ";t=", seconds(wait).max(least));
        }
    }

    /// `RateLimit-Policy`; empty without limits.
    pub fn rate_limit_policy(&self) -> &str {
        &self.rate_limit_policy
    }

    /// `RateLimit`; empty without limits.
    pub fn rate_limit(&self) -> &str {
        &self.rate_limit
    }

    /// `Retry-After`; `None` if the request is allowed, or no wait helps.
    pub const fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// Names in lower case and values; `X-RateLimit-*` only if `x_rate_limit` is set.
    pub fn pairs(self, x_rate_limit: bool) -> impl Iterator<Item = (&'static str, String)> {
        let is_told = !self.rate_limit.is_empty();
        let numbers = self.numbers.filter(|_| x_rate_limit).into_iter().flat_map(|numbers| {
            [
                ("x-ratelimit-limit", numbers.limit.to_string()),
                ("x-ratelimit-remaining", numbers.remaining.to_string()),
                ("x-ratelimit-reset", numbers.reset.to_string()),
            ]
        });
        let wait = self.retry_after.map(|wait| ("retry-after", wait.to_string()));
        [("ratelimit-policy", self.rate_limit_policy), ("ratelimit", self.rate_limit)]
            .into_iter()
            .filter(move |_| is_told)
            .chain(wait)
            .chain(numbers)
    }
}

impl LimitStatus<'_> {
    /// The period of the limit: for buckets, that of a full refill.
    fn length(&self) -> Option<Span> {
        match self.limit {
            Limit::Bucket(bucket) => {
                let fill = bucket.fill_time();
                Some(Span::from_micros(fill.ticks + u64::from(fill.part > 0)))
            }
            Limit::FixedWindow(window) => Some(window.length()),
            Limit::SlidingWindow(window) => Some(window.length()),
            Limit::SlidingLog(log) => Some(log.length()),
            _ => None,
        }
    }

    /// Time until a retry can succeed or, if allowed, until there are more units: one unit, or a
    /// new window. `None` if the key is full or no wait helps.
    fn until_more(&self, now: Timestamp) -> Option<Span> {
        let decision = self.decision;
        let wait = match self.limit {
            _ if !decision.is_allowed() => decision.retry_after()?,
            _ if decision.remaining >= decision.limit => return None,
            Limit::Bucket(bucket) => {
                // All missing units but one arrive after the next one.
                let missing = bucket.capacity().saturating_sub(decision.remaining);
                let later = bucket.time_of(missing.saturating_sub(1))?;
                Span::from_micros(decision.reset_after.as_micros().saturating_sub(later.ticks))
            }
            Limit::SlidingWindow(window) => {
                let length = window.length().as_micros();
                Span::from_micros(length - now.as_micros() % length)
            }
            _ => decision.reset_after,
        };
        Some(Span::from_micros(wait.as_micros().saturating_add(self.jitter(now).as_micros())))
    }

    /// The jitter of this key's wait.
    fn jitter(&self, now: Timestamp) -> Span {
        let (length, offset) = match self.limit {
            Limit::FixedWindow(window) => (window.length(), window.offset()),
            Limit::SlidingWindow(window) => (window.length(), Span::ZERO),
            _ => return Span::ZERO,
        };
        let window = now.as_micros().saturating_sub(offset.as_micros()) / length.as_micros();
        let most = (length.as_micros() / 10).min(MAX_JITTER.as_micros());
        let share = u128::from(mix(self.whose, window)) * u128::from(most + 1);
        Span::from_micros((share >> 64) as u64)
    }
}

/// The last steps of `SplitMix64`, so that similar keys get different jitter.
const fn mix(whose: u64, window: u64) -> u64 {
    let mut mixed = whose ^ window.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Appends a parameter of a structured field.
fn parameter(field: &mut String, key: &str, number: u64) {
    field.push_str(key);
    digits::push(field, number);
}

/// Appends a string of a structured field; replaces characters that it cannot contain by `_`.
fn quote(field: &mut String, name: &str) {
    field.push('"');
    if name.len() <= MAX_NAME && digits::is_plain(name) {
        field.push_str(name);
        field.push('"');
        return;
    }
    for letter in name.chars().take(MAX_NAME) {
        match letter {
            '"' | '\\' => field.extend(['\\', letter]),
            ' '..='~' => field.push(letter),
            _ => field.push('_'),
        }
    }
    field.push('"');
}

/// The span in whole seconds, rounded up.
pub const fn seconds(span: Span) -> u64 {
    span.as_micros().div_ceil(SECOND)
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
