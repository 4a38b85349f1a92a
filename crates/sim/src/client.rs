//! Simulated clients, and how they react to a denial.

use tidegate_core::{Span, Timestamp};

use crate::seed::Seed;

/// A client that makes one request, or several one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// When the first request is made.
    pub at: Timestamp,
    /// How many requests are to be made.
    pub requests: u64,
    /// The time between the start of one request and the next.
    pub pause: Span,
    /// The reaction to a denial.
    pub on_denial: OnDenial,
}

impl Client {
    /// One request without retries.
    pub const fn once(at: Timestamp) -> Self {
        Self { at, requests: 1, pause: Span::ZERO, on_denial: OnDenial::GiveUp }
    }
}

/// How a client reacts to a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDenial {
    /// Gives up.
    GiveUp,
    /// Retries almost at once, ignoring `retry_after`.
    Hammer {
        /// The shortest wait; the longest is twice as long.
        pause: Span,
        /// Maximum number of tries.
        tries: u32,
    },
    /// Waits twice as long each time, with jitter of up to half the wait.
    BackOff {
        /// The first wait.
        first: Span,
        /// Maximum number of tries.
        tries: u32,
    },
    /// Retries after exactly `retry_after`.
    Honour {
        /// Maximum number of tries.
        tries: u32,
    },
}

impl OnDenial {
    /// The wait after the client's `tried`th denial; `None` if it gives up. `who` is the client's
    /// index in the traffic, which selects its random numbers.
    pub(crate) fn wait(
        self,
        tried: u32,
        retry_after: Option<Span>,
        who: usize,
        seed: Seed,
    ) -> Option<Span> {
        let jittered = |least: u64, spread: u64| {
            Span::from_micros(least.saturating_add(seed.below(spread, who, tried)))
        };
        match self {
            Self::GiveUp => None,
            Self::Hammer { pause, tries } => {
                (tried < tries).then(|| jittered(pause.as_micros(), pause.as_micros()))
            }
            Self::BackOff { first, tries } => (tried < tries).then(|| {
                let wait = first.as_micros().saturating_mul(1 << (tried - 1).min(32));
                jittered(wait, wait / 2)
            }),
            Self::Honour { tries } => retry_after.filter(|_| tried < tries),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: Option<Span> = Some(Span::from_secs(9));

    #[test]
    fn backing_off_doubles_and_ends() {
        let client = OnDenial::BackOff { first: Span::from_secs(1), tries: 4 };
        for (tried, least) in [(1, 1), (2, 2), (3, 4)] {
            let wait = client.wait(tried, TOLD, 0, Seed(1)).unwrap();
            assert!(wait >= Span::from_secs(least), "{wait}");
            assert!(wait.as_micros() < least * 1_500_000, "{wait}");
        }
        assert_eq!(client.wait(4, TOLD, 0, Seed(1)), None);
    }

    #[test]
    fn a_client_that_honours_retry_after_waits_exactly_that_long() {
        let client = OnDenial::Honour { tries: 2 };
        assert_eq!(client.wait(1, TOLD, 0, Seed(1)), TOLD);
        assert_eq!(client.wait(2, TOLD, 0, Seed(1)), None);
        assert_eq!(client.wait(1, None, 0, Seed(1)), None, "never means never");
    }
}
