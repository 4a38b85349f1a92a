//! Header fields of HTTP that describe a verdict.
//!
//! | field | content |
//! |---|---|
//! | `RateLimit-Policy` | for every enforced limit: its name, `q` the most units at once, `w` the window in seconds |
//! | `RateLimit` | for the same limits: `r` the units left, `t` seconds until there are more |
//! | `Retry-After` | on a denial: seconds until the request is allowed, at least 1 |
//! | `X-RateLimit-*` | for the strictest limit: the most units, the units left, when all are back (Unix time) |
//!
//! The first two follow draft-ietf-httpapi-ratelimit-headers, structured fields by RFC 9651. Waits round
//! up. No wait is reported if none would help.
//!
//! # Windows
//! All keys of a window become free at the same instant, and so would all clients return. Each key waits
//! longer by a share of its own: up to a tenth of the window and at most [`MAX_JITTER`], in `Retry-After`
//! and `t` of fixed and sliding windows only. It depends on key and window alone, so a client that asks
//! twice is sent to the same instant twice.
//!
//! # Bounds
//! At most [`MAX_LISTED`] limits are listed, the strictest among them; of a name at most [`MAX_NAME`]
//! characters; no number has more than the 15 digits that structured fields allow.

#[cfg(feature = "http")]
pub(crate) mod values;

use tidegate_core::{Decision, Limit, Span, Timestamp};

use super::{Verdict, digits, whole_seconds};

/// The most limits that one reply lists: proxies bound the size of headers.
const MAX_LISTED: usize = 8;

/// The most characters of a limit's name.
const MAX_NAME: usize = 64;

/// The longest jitter added to a wait.
const MAX_JITTER: Span = Span::from_secs(5);

/// The wait reported if too many requests are in flight.
const IN_FLIGHT_RETRY: Span = Span::from_secs(1);

/// The largest integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// One limit, as the fields list it.
#[derive(Clone, Copy, Debug)]
struct Item<'a> {
    name: &'a str,
    /// `None` if the verdict lists no limits.
    limit: Option<&'a Limit>,
    decision: &'a Decision,
    /// Number of the key, which spreads the retries of a window's keys.
    key_number: u64,
    /// The wait to report to a client that is denied to protect the server.
    retry: Option<Span>,
}

/// The header fields of a verdict, as pairs of name (in lower case) and value. Empty if no limit counts.
///
/// ```
/// use tidegate::{Limit, Limiter, Rate};
///
/// let limiter = Limiter::new(Limit::token_bucket(Rate::per_minute(100)).build()?);
/// let headers = limiter.report("user:17", 1).headers();
/// assert_eq!(headers.rate_limit(), "\"default\";r=99;t=1");
/// assert_eq!(headers.rate_limit_policy(), "\"default\";q=100;w=60");
/// let names: Vec<&str> = headers.with_x_rate_limit().into_iter().map(|(name, _)| name).collect();
/// assert!(names.contains(&"x-ratelimit-remaining"));
/// # Ok::<(), tidegate::InvalidLimit>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    rate_limit_policy: String,
    rate_limit: String,
    retry_after: Option<u64>,
    numbers: Option<Numbers>,
    x_rate_limit: bool,
}

/// The strictest limit, for `X-RateLimit-*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    limit: u64,
    remaining: u64,
    reset: u64,
}

impl Verdict {
    /// The header fields of HTTP for this verdict: `RateLimit-Policy`, `RateLimit` and, on a denial,
    /// `Retry-After`.
    pub fn headers(&self) -> Headers {
        let Some(binding) = self.binding() else { return Headers::default() };
        if self.details().is_none() {
            let decision = self.decision();
            let item = Item { name: "default", limit: None, decision, key_number: 0, retry: None };
            return Headers::new(self.at(), &[item], 0);
        }
        let (mut items, mut strictest) = (Vec::with_capacity(self.parts().len()), usize::MAX);
        for (number, part) in self.parts().enumerate().filter(|(_, part)| part.counts()) {
            let (Some(_), Some(decision)) = (part.numbers, part.decision) else { continue };
            if number == binding {
                strictest = items.len();
            }
            let (name, limit) = (part.name, part.numbers);
            let (key_number, retry) = (part.key_number(), part.retry());
            items.push(Item { name, limit, decision, key_number, retry });
        }
        Headers::new(self.at(), &items, strictest)
    }
}

impl Headers {
    /// The fields of a verdict at `now` by the enforced limits; number `binding` is the strictest.
    fn new(now: Timestamp, items: &[Item<'_>], binding: usize) -> Self {
        let Some(strictest) = items.get(binding) else { return Self::default() };
        let decision = strictest.decision;
        let mut fields = Self {
            // The usual length of a name and two numbers.
            rate_limit_policy: String::with_capacity(48 * items.len().min(MAX_LISTED)),
            rate_limit: String::with_capacity(48 * items.len().min(MAX_LISTED)),
            retry_after: None,
            numbers: Some(Numbers {
                limit: decision.limit,
                remaining: decision.remaining,
                reset: whole_seconds(Span::from_micros(
                    now.as_micros().saturating_add(decision.reset_after.as_micros()),
                )),
            }),
            x_rate_limit: false,
        };
        if !decision.is_allowed() {
            fields.retry_after = strictest.until_more(now).map(|wait| whole_seconds(wait).max(1));
        }
        // One place is kept for the strictest limit.
        let others = (0..items.len()).filter(|number| *number != binding);
        let last = others.take(MAX_LISTED - 1).last().unwrap_or(0);
        for (number, item) in items.iter().enumerate() {
            if number <= last || number == binding {
                fields.list(now, item);
            }
        }
        fields
    }

    /// Adds `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    #[must_use]
    pub const fn with_x_rate_limit(mut self) -> Self {
        self.x_rate_limit = true;
        self
    }

    fn list(&mut self, now: Timestamp, item: &Item<'_>) {
        let Decision { limit, remaining, .. } = *item.decision;
        let Self { rate_limit_policy: policy, rate_limit: state, .. } = self;
        for field in [&mut *policy, &mut *state] {
            if !field.is_empty() {
                field.push_str(", ");
            }
            quote(field, item.name);
        }
        item.describe(limit, policy);
        parameter(state, ";r=", remaining.min(MAX_INTEGER));
        if let Some(seconds) = item.seconds_until_more(now) {
            parameter(state, ";t=", seconds);
        }
    }

    /// `RateLimit-Policy`; empty if no limit counts.
    #[doc(hidden)]
    pub fn rate_limit_policy(&self) -> &str {
        &self.rate_limit_policy
    }

    /// `RateLimit`; empty if no limit counts.
    #[doc(hidden)]
    pub fn rate_limit(&self) -> &str {
        &self.rate_limit
    }

    /// `Retry-After` in seconds; `None` if the request is allowed, or no wait helps.
    pub const fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }
}

impl IntoIterator for Headers {
    type Item = (&'static str, String);
    type IntoIter = std::iter::Flatten<std::array::IntoIter<Option<(&'static str, String)>, 6>>;

    fn into_iter(self) -> Self::IntoIter {
        let is_listed = !self.rate_limit.is_empty();
        let number = |name, number: Option<u64>| number.map(|number| (name, number.to_string()));
        let numbers = self.numbers.filter(|_| self.x_rate_limit);
        [
            is_listed.then_some(("ratelimit-policy", self.rate_limit_policy)),
            is_listed.then_some(("ratelimit", self.rate_limit)),
            number("retry-after", self.retry_after),
            number("x-ratelimit-limit", numbers.map(|it| it.limit)),
            number("x-ratelimit-remaining", numbers.map(|it| it.remaining)),
            number("x-ratelimit-reset", numbers.map(|it| it.reset)),
        ]
        .into_iter()
        .flatten()
    }
}

#[cfg(feature = "http")]
impl From<Headers> for http::HeaderMap {
    fn from(headers: Headers) -> Self {
        let pair = |(name, value): (&'static str, String)| {
            // Quoted names and numbers are valid in a header.
            Some((http::HeaderName::from_static(name), value.try_into().ok()?))
        };
        headers.into_iter().filter_map(pair).collect()
    }
}

impl Item<'_> {
    /// Adds the parameters of the limit in `RateLimit-Policy`, after its name.
    fn describe(&self, limit: u64, policy: &mut String) {
        parameter(policy, ";q=", limit.min(MAX_INTEGER));
        if let Some(Limit::InFlight(_)) = self.limit {
            policy.push_str(";qu=\"concurrent-requests\"");
        }
        // The field has whole seconds only.
        if let Some(length) = self.length().filter(|length| *length >= Span::from_secs(1)) {
            parameter(policy, ";w=", whole_seconds(length));
        }
    }

    /// `t` of `RateLimit`.
    fn seconds_until_more(&self, now: Timestamp) -> Option<u64> {
        let least = u64::from(self.decision.remaining == 0 || !self.decision.is_allowed());
        self.until_more(now).map(|wait| whole_seconds(wait).max(least))
    }

    /// The time that the limit refers to; for buckets, the time of a full refill.
    fn length(&self) -> Option<Span> {
        match &self.limit?.without_block() {
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

    /// Time until a retry helps, or else until one more unit or a new window. `None` if all units
    /// are available, or no wait helps.
    fn until_more(&self, now: Timestamp) -> Option<Span> {
        let decision = self.decision;
        let wait = match self.limit.map(Limit::without_block) {
            // Places become free when requests end, long before their leases expire.
            Some(Limit::InFlight(_)) if decision.is_allowed() => return None,
            Some(Limit::InFlight(_)) if !decision.is_never() => {
                self.retry.unwrap_or(IN_FLIGHT_RETRY)
            }
            _ if !decision.is_allowed() => {
                decision.retry_after()?.max(self.retry.unwrap_or(Span::ZERO))
            }
            _ if decision.remaining >= decision.limit => return None,
            Some(Limit::Bucket(bucket)) => {
                // All missing units but one are refilled after the next one.
                let missing = bucket.capacity().saturating_sub(decision.remaining);
                let later = bucket.time_of(missing.saturating_sub(1))?;
                Span::from_micros(decision.reset_after.as_micros().saturating_sub(later.ticks))
            }
            Some(Limit::SlidingWindow(window)) => {
                let length = window.length().as_micros();
                Span::from_micros(length - now.as_micros() % length)
            }
            _ => decision.reset_after,
        };
        Some(Span::from_micros(wait.as_micros().saturating_add(self.jitter(now).as_micros())))
    }

    /// Time that this key waits beyond the end of its window.
    fn jitter(&self, now: Timestamp) -> Span {
        let (length, offset) = match self.limit {
            Some(Limit::FixedWindow(window)) => (window.length(), window.offset()),
            Some(Limit::SlidingWindow(window)) => (window.length(), Span::ZERO),
            _ => return Span::ZERO,
        };
        let window = now.as_micros().saturating_sub(offset.as_micros()) / length.as_micros();
        let most = (length.as_micros() / 10).min(MAX_JITTER.as_micros());
        let share = u128::from(mix(self.key_number, window)) * u128::from(most + 1);
        Span::from_micros((share >> 64) as u64)
    }
}

/// The last steps of `SplitMix64`: keys that differ in one letter get different jitters.
const fn mix(key: u64, window: u64) -> u64 {
    let mut mixed = key ^ window.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Adds a parameter of structured fields.
fn parameter(field: &mut String, key: &str, number: u64) {
    field.push_str(key);
    digits::push(field, number);
}

/// Adds a string of structured fields. Characters that such a string cannot contain become
/// underscores.
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

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
