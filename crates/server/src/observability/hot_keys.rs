//! The keys with most requests and those with most denied requests, in bounded memory.
//!
//! Each thread has sketches of its own, which are merged when they are read. A thread adds every request up
//! to [`EACH`], and one in [`SAMPLE`] after that, which keeps the cost under load low.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use foldhash::quality::RandomState;
use tidegate::policy::{Entry, Request};
use tidegate_core::sketch::HeavyHitters;

use crate::settings::KeyValues;

/// Number of requests of which each one is added.
const EACH: u64 = 1 << 12;

/// After that, one of this many requests is added.
const SAMPLE: u32 = 16;

/// The most keys in a list.
pub(crate) const MAX_LISTED: usize = 20;

/// The sketches of one thread.
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

/// A key, and its approximate number of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HotKey {
    pub(crate) key: String,
    pub(crate) requests: u64,
}

impl HotKeys {
    /// Stores values of keys only in the form in which they are shown.
    pub(crate) fn showing(values: KeyValues) -> Self {
        Self { values, ..Self::default() }
    }

    /// Adds a request; `key` is called only if this request is in the sample.
    pub(crate) fn note<'k>(&self, is_denied: bool, key: impl Fn() -> KeyText<'k>) {
        self.asked.note(self.values, &key);
        if is_denied {
            self.denied.note(self.values, &key);
        }
    }
}

impl Sampled {
    fn note<'k>(&self, values: KeyValues, key: &impl Fn() -> KeyText<'k>) {
        // Written by this thread only, so a load and a store suffice.
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

/// The parts of a key, joined only if it is in the sample.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyText<'a> {
    /// The key of a limit that came with the request.
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

/// The keys of all threads with most requests, or with most denied requests.
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
    all.truncate(MAX_LISTED);
    let hot = |(key, requests): (Box<[u8]>, u64)| HotKey {
        key: String::from_utf8_lossy(&key).into_owned(),
        requests,
    };
    all.into_iter().map(hot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_all_threads_are_merged() {
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

    /// After the first few thousand requests, one of sixteen is added with sixteen times its weight.
    #[test]
    fn a_sample_stands_for_the_rest() {
        let keys = HotKeys::default();
        for _ in 0..100_000 {
            keys.note(false, || KeyText::InlineLimit(b"hot"));
        }
        let counted = top([&keys].into_iter(), false)[0].requests;
        assert!((99_900..100_100).contains(&counted), "{counted}");
    }
}
