//! Header fields of HTTP that tell how limits stand: the only place that rounds to seconds.
//!
//! | field | says |
//! |---|---|
//! | `RateLimit-Policy` | of every limit that counts: its name, `q` the most at once, `w` in which time |
//! | `RateLimit` | of the same: `r` what remains, `t` in how many seconds there is more |
//! | `Retry-After` | on a denial: after how many seconds asking again helps, at least 1 |
//! | `X-RateLimit-*` | of the limit that speaks: the most, what remains, when all is back (Unix time) |
//!
//! The first two are those of draft-ietf-httpapi-ratelimit-headers, structured fields by RFC 9651.
//! Waits are rounded up, so whoever waits so long has waited long enough. Whoever no wait helps is
//! told none.
//!
//! # Windows
//! Everybody's window ends at the same instant, and so would their waits. Each key waits longer by a
//! share of its own: up to a tenth of the window and at most [`MAX_JITTER`], in `Retry-After` and `t`
//! of fixed and sliding windows only. It depends on key and window alone, so who asks twice is sent
//! to the same instant twice.
//!
//! # Bounds
//! At most [`MAX_TOLD`] limits are told, the one that speaks among them; of a name at most
//! [`MAX_NAME`] letters; no number has more than the 15 digits that structured fields allow.

use tidegate_core::{Decision, Limit, Span, Timestamp};

use crate::digits;

/// The most limits that one answer tells of: proxies put a bound on heads.
pub const MAX_TOLD: usize = 8;

/// The most letters of a limit's name.
pub const MAX_NAME: usize = 64;

/// The most that a wait is prolonged.
pub const MAX_JITTER: Span = Span::from_secs(5);

/// The largest integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

const SECOND: u64 = 1_000_000;

/// What one limit said.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'a> {
    /// What people call it.
    pub name: &'a str,
    /// Its numbers.
    pub limit: &'a Limit,
    /// What it decided.
    pub decision: &'a Decision,
    /// Whom it is about, so that not everybody is sent back at once: [`Key::number`](crate::Key).
    pub whose: u64,
}

/// The fields of one answer. `Default` are those of an answer that no limit had a say in: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    rate_limit_policy: String,
    rate_limit: String,
    retry_after: Option<u64>,
    numbers: Option<Numbers>,
}

/// The limit that speaks, as `X-RateLimit-*` tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    limit: u64,
    remaining: u64,
    reset: u64,
}

impl Fields {
    /// The fields of an answer given at `now`, by the limits that count, of which number `binding`
    /// speaks for all.
    pub fn new(now: Timestamp, told: &[LimitStatus<'_>], binding: usize) -> Self {
        let Some(speaker) = told.get(binding) else { return Self::default() };
        let mut fields = Self {
            // As long as a name and two numbers usually are.
            rate_limit_policy: String::with_capacity(48 * told.len().min(MAX_TOLD)),
            rate_limit: String::with_capacity(48 * told.len().min(MAX_TOLD)),
            retry_after: None,
            numbers: Some(Numbers {
                limit: speaker.decision.limit,
                remaining: speaker.decision.remaining,
                reset: seconds(Span::from_micros(
                    now.as_micros().saturating_add(speaker.decision.reset_after.as_micros()),
                )),
            }),
        };
        if !speaker.decision.is_allowed() {
            fields.retry_after = speaker.until_more(now).map(|wait| seconds(wait).max(1));
        }
        // One place is kept for the limit that speaks.
        let first = told.iter().enumerate().filter(|(number, _)| *number != binding);
        let last = first.map(|(number, _)| number).take(MAX_TOLD - 1).last().unwrap_or(0);
        for (number, told) in told.iter().enumerate() {
            if number <= last || number == binding {
                fields.tell(now, told);
            }
        }
        fields
    }

    fn tell(&mut self, now: Timestamp, told: &LimitStatus<'_>) {
        let Decision { limit, remaining, .. } = *told.decision;
        let Self { rate_limit_policy: policy, rate_limit: state, .. } = self;
        for field in [&mut *policy, &mut *state] {
            if !field.is_empty() {
                field.push_str(", ");
            }
            quote(field, told.name);
        }
        parameter(policy, ";q=", limit.min(MAX_INTEGER));
        if let Limit::InFlight(_) = told.limit {
            policy.push_str(";qu=\"concurrent-requests\"");
        }
        // Less than a second cannot be said.
        if let Some(length) = told.length().filter(|length| length.as_micros() >= SECOND) {
            parameter(policy, ";w=", seconds(length));
        }
        parameter(state, ";r=", remaining.min(MAX_INTEGER));
        if let Some(wait) = told.until_more(now) {
            let least = u64::from(remaining == 0 || !told.decision.is_allowed());
            parameter(state, ";t=", seconds(wait).max(least));
        }
    }

    /// `RateLimit-Policy`; empty if no limit counts.
    pub fn rate_limit_policy(&self) -> &str {
        &self.rate_limit_policy
    }

    /// `RateLimit`; empty if no limit counts.
    pub fn rate_limit(&self) -> &str {
        &self.rate_limit
    }

    /// `Retry-After`; `None` if the request is allowed, or no wait helps.
    pub const fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// Names, in small letters, and values, those of `X-RateLimit-*` only if wanted.
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
    /// The time that the limit refers to: for buckets, that of a full refill.
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

    /// Until a retry helps, or else until there is more: one unit, or a new window. `None` if there
    /// is all there can be, or no wait helps.
    fn until_more(&self, now: Timestamp) -> Option<Span> {
        let decision = self.decision;
        let wait = match self.limit {
            _ if !decision.is_allowed() => decision.retry_after()?,
            _ if decision.remaining >= decision.limit => return None,
            Limit::Bucket(bucket) => {
                // All but one of the missing units come after the next one.
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

    /// By how much this key waits longer than its window says.
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

/// The last steps of `SplitMix64`: keys that differ in one letter are sent to different instants.
const fn mix(whose: u64, window: u64) -> u64 {
    let mut mixed = whose ^ window.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Adds a parameter of structured fields.
fn parameter(field: &mut String, key: &str, number: u64) {
    field.push_str(key);
    digits::push(field, number);
}

/// Adds a string of structured fields; what cannot stand in one becomes a line below.
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

/// Whole seconds, rounded up.
pub const fn seconds(span: Span) -> u64 {
    span.as_micros().div_ceil(SECOND)
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
