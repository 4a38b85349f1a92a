//! Which keys come most and which are denied most, in memory that never grows.
//!
//! Each thread counts for itself, in sketches that are put together only when somebody asks. A thread
//! notes every request until it has seen [`EACH`], and one in [`SAMPLE`] after that, so that under
//! load next to nothing is paid for it.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use foldhash::quality::RandomState;
use tidegate::policy::{Entry, Request};
use tidegate_core::sketch::HeavyHitters;

use crate::settings::KeyValues;

/// How many requests are noted one by one.
const EACH: u64 = 1 << 12;

/// Of how many one is noted after that.
const SAMPLE: u32 = 16;

/// How many keys are told.
pub(crate) const TOLD: usize = 20;

/// What one thread has noted.
#[derive(Debug, Default)]
pub(crate) struct HotKeys {
    values: KeyValues,
    asked: Sampled,
    denied: Sampled,
}

#[derive(Debug, Default)]
struct Sampled {
    seen: AtomicU64,
    hitters: Mutex<Option<(HeavyHitters, RandomState)>>,
}

/// A key and about how many units of requests it brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HotKey {
    pub(crate) key: String,
    pub(crate) requests: u64,
}

impl HotKeys {
    /// Keeps values of keys in no other form than they are shown in.
    pub(crate) fn showing(values: KeyValues) -> Self {
        Self { values, ..Self::default() }
    }

    /// Notes a request for `key`, which is asked for only if it is one of those that are noted.
    pub(crate) fn note<'k>(&self, is_denied: bool, key: impl Fn() -> KeyText<'k>) {
        self.asked.note(self.values, &key);
        if is_denied {
            self.denied.note(self.values, &key);
        }
    }
}

impl Sampled {
    fn note<'k>(&self, values: KeyValues, key: &impl Fn() -> KeyText<'k>) {
        // The thread's own: nobody else writes it, so nothing can come in between.
        let seen = self.seen.load(Ordering::Relaxed);
        self.seen.store(seen.wrapping_add(1), Ordering::Relaxed);
        let units = if seen < EACH { 1 } else { SAMPLE };
        if !seen.is_multiple_of(u64::from(units)) {
            return;
        }
        let text = key().bytes(values);
        let mut hitters = self.hitters.lock().unwrap_or_else(PoisonError::into_inner);
        let (hitters, hasher) = hitters.get_or_insert_with(Default::default);
        hitters.add(hasher.hash_one(&*text), units, || text);
    }
}

/// What a key is made of, put together only if it is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyText<'a> {
    /// It came with its limit.
    InlineLimit(&'a [u8]),
    /// The first descriptor of a request to a policy.
    Policy(&'a Request<'a>),
}

impl KeyText<'_> {
    fn bytes(self, values: KeyValues) -> Box<[u8]> {
        let mut text = match self {
            Self::InlineLimit(key) => values.show(key).into_owned(),
            Self::Policy(request) => {
                let mut text = request.domain.as_bytes().to_vec();
                let entries = request.descriptors.first().map_or(&[][..], |it| it.entries);
                for (number, Entry { key, value }) in entries.iter().enumerate() {
                    text.push(if number == 0 { b'/' } else { b',' });
                    text.extend_from_slice(key.as_bytes());
                    text.push(b'=');
                    text.extend_from_slice(&values.show(value.as_bytes()));
                    if text.len() > HeavyHitters::MAX_KEY {
                        break;
                    }
                }
                text
            }
        };
        text.truncate(HeavyHitters::MAX_KEY);
        text.into()
    }
}

/// The keys at the top of all threads together: those that came most, or were denied most.
pub(crate) fn top<'a>(threads: impl Iterator<Item = &'a HotKeys>, denied: bool) -> Vec<HotKey> {
    let mut all: BTreeMap<Box<[u8]>, u64> = BTreeMap::new();
    for thread in threads {
        let sampled = if denied { &thread.denied } else { &thread.asked };
        let hitters = sampled.hitters.lock().unwrap_or_else(PoisonError::into_inner);
        for hitter in hitters.iter().flat_map(|(hitters, _)| hitters.top()) {
            *all.entry(hitter.key).or_default() += hitter.units;
        }
    }
    let mut all: Vec<(Box<[u8]>, u64)> = all.into_iter().collect();
    all.sort_by(|(one, a), (other, b)| b.cmp(a).then(one.cmp(other)));
    all.truncate(TOLD);
    let told = |(key, requests): (Box<[u8]>, u64)| HotKey {
        key: String::from_utf8_lossy(&key).into_owned(),
        requests,
    };
    all.into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_all_threads_are_told_together() {
        let threads = [HotKeys::default(), HotKeys::default()];
        for (number, thread) in threads.iter().enumerate() {
            for request in 0..100 {
                thread.note(request % 2 == 0, || KeyText::InlineLimit(b"hot"));
            }
            let own = format!("own:{number}");
            thread.note(false, || KeyText::InlineLimit(own.as_bytes()));
        }
        let asked = top(threads.iter(), false);
        assert_eq!((&*asked[0].key, asked[0].requests, asked.len()), ("hot", 200, 3));
        let denied = top(threads.iter(), true);
        assert_eq!((&*denied[0].key, denied[0].requests, denied.len()), ("hot", 100, 1));
    }

    /// Beyond the first few thousand one of sixteen stands for all.
    #[test]
    fn a_sample_stands_for_the_rest() {
        let keys = HotKeys::default();
        for _ in 0..100_000 {
            keys.note(false, || KeyText::InlineLimit(b"hot"));
        }
        let told = top([&keys].into_iter(), false)[0].requests;
        assert!((99_900..100_100).contains(&told), "{told}");
    }
}
