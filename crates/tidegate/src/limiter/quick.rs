//! The quick path of a limiter, for the most common case: one unit of one limit, by the machine's
//! clock.
//!
//! The kind of limit, the hash and the clock are selected once, when the limit is set, instead of
//! on every check. The deciding function is the same as on the general path. With millions of keys
//! a decision waits for one cache line; the fewer instructions a decision has, the more decisions a
//! processor overlaps.

use std::hint::black_box;

use tidegate_core::algorithm::bucket::{Bucket, Whole};
use tidegate_core::algorithm::fixed_window::FixedWindow;
use tidegate_core::algorithm::sliding_window::SlidingWindow;
use tidegate_core::{Limit, Timestamp};

use super::limits::NamedLimit;
use crate::clock::{Clock, SystemClock};
use crate::store::memory::{MemoryStore, is_narrow};
use crate::sync::{AtomicU64, Ordering};
use crate::verdict::Verdict;

/// The data that a check needs.
#[derive(Debug)]
pub(crate) struct Quick {
    clock: SystemClock,
    salt: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Whole(Whole),
    Bucket(Bucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
}

impl Quick {
    /// `None` if the limiter has to use the general path.
    pub(crate) fn new(entries: &[NamedLimit], store: &MemoryStore, clock: &Clock) -> Option<Self> {
        let ([entry], Clock::System(clock)) = (entries, clock) else { return None };
        let kind = match entry.limit {
            Limit::Bucket(_) if store.is_mixed() => return None,
            Limit::Bucket(bucket) => match Whole::new(bucket) {
                Some(whole) => Kind::Whole(whole),
                None if is_narrow(&bucket) => Kind::Bucket(bucket),
                None => return None,
            },
            Limit::FixedWindow(window) => Kind::FixedWindow(window),
            Limit::SlidingWindow(window) => Kind::SlidingWindow(window),
            _ => return None,
        };
        Some(Self { clock: clock.clone(), salt: store.salt(entry.scope)?, kind })
    }

    /// Takes one unit. `None` if the key is not in the table and found no room: such keys use the
    /// general path.
    #[inline(always)]
    pub(crate) fn check(&self, store: &MemoryStore, key: &[u8]) -> Option<Verdict> {
        let now = self.clock.now();
        let print = store.print_with(self.salt, key);
        if let Kind::Whole(bucket) = &self.kind
            && let Some(decision) = store.take_narrow(now, bucket, print)
        {
            return Some(Verdict::of_one(now, decision));
        }
        // Written into a local variable: if the call returned the verdict, the compiler would also
        // keep the one above in memory, and reading it back would stall.
        let mut verdict = None;
        self.take_into(store, now, print, &mut verdict);
        verdict
    }

    #[inline(never)]
    fn take_into(
        &self,
        store: &MemoryStore,
        now: Timestamp,
        print: u64,
        verdict: &mut Option<Verdict>,
    ) {
        let decision = match &self.kind {
            Kind::Whole(bucket) => store.take_narrow_away(now, bucket, print),
            Kind::Bucket(bucket) => store
                .take_narrow(now, bucket, print)
                .or_else(|| store.take_narrow_away(now, bucket, print)),
            Kind::FixedWindow(window) => store.take_wide(now, window, print),
            Kind::SlidingWindow(window) => store.take_wide(now, window, print),
        };
        *verdict = decision.map(|decision| Verdict::of_one(now, decision));
    }

    /// A word of the cache line that a key is probably in. Reading it fetches the line.
    #[inline(always)]
    fn first_word<'a>(&self, store: &'a MemoryStore, print: u64) -> &'a AtomicU64 {
        match self.kind {
            Kind::Whole(_) | Kind::Bucket(_) => store.first_narrow_word(print),
            Kind::FixedWindow(_) | Kind::SlidingWindow(_) => store.first_wide_word(print),
        }
    }

    /// Checks many keys separately and fetches their memory together. `otherwise` checks the keys
    /// that were not found at once.
    pub(crate) fn check_each<K: AsRef<[u8]>>(
        &self,
        store: &MemoryStore,
        keys: &[K],
        verdicts: &mut Vec<Verdict>,
        otherwise: impl Fn(&[u8]) -> Verdict,
    ) {
        const AT_ONCE: usize = 16;
        verdicts.reserve(keys.len());
        for keys in keys.chunks(AT_ONCE) {
            let now = self.clock.now();
            let print = |key: &K| store.print_with(self.salt, key.as_ref());
            let (mut prints, mut words) = ([0; AT_ONCE], [self.first_word(store, 0); AT_ONCE]);
            for (i, key) in keys.iter().enumerate() {
                prints[i] = print(key);
                words[i] = self.first_word(store, prints[i]);
            }
            // Loads only, so that all of them are in progress at once.
            black_box(words.iter().fold(0, |all, word| all ^ word.load(Ordering::Relaxed)));
            for (print, key) in prints.iter().zip(keys) {
                if let Kind::Whole(bucket) = &self.kind
                    && let Some(decision) = store.take_narrow(now, bucket, *print)
                {
                    verdicts.push(Verdict::of_one(now, decision));
                    continue;
                }
                let mut verdict = None;
                self.take_into(store, now, *print, &mut verdict);
                verdicts.push(verdict.unwrap_or_else(|| otherwise(key.as_ref())));
            }
        }
    }
}
