//! The limits a limiter holds, changeable while it runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use tidegate_core::{Decision, Limit, Op, Timestamp};

use crate::clock::Clock;
use crate::key::{Key, Scope};
use crate::quick::Quick;
use crate::store::memory::MemoryStore;
use crate::store::{Charge, MAX_TOGETHER};
use crate::verdict::{Details, LimitSource, Origin, Record, Verdict};

/// A limit and what it is called.
#[derive(Clone, Debug)]
pub(crate) struct NamedLimit {
    pub(crate) name: Arc<str>,
    pub(crate) scope: Scope,
    pub(crate) limit: Limit,
}

impl NamedLimit {
    pub(crate) fn new(name: &str, limit: Limit) -> Self {
        Self { name: name.into(), scope: Scope::new(name, &limit), limit }
    }

    #[inline(always)]
    pub(crate) fn charge<'a>(&'a self, text: &'a [u8], op: Op) -> Charge<'a> {
        Charge::new(Key::new(self.scope, text), &self.limit, op)
    }
}

/// Limits, and the quick way to ask them if there is one.
#[derive(Debug)]
pub(crate) struct LimitSet {
    pub(crate) entries: Arc<[NamedLimit]>,
    pub(crate) quick: Option<Quick>,
}

impl LimitSet {
    fn new(entries: Vec<NamedLimit>, store: &MemoryStore, clock: &Clock) -> Self {
        entries.iter().for_each(|entry| store.expect(&entry.limit));
        Self { quick: Quick::new(&entries, store, clock), entries: entries.into() }
    }
}

impl std::ops::Deref for LimitSet {
    type Target = [NamedLimit];

    fn deref(&self) -> &[NamedLimit] {
        &self.entries
    }
}

/// Limits as first given, until they are changed.
///
/// Reading the swappable pointer costs two locked instructions, as much as half a decision; so as
/// long as nothing was changed it is not read.
#[derive(Debug)]
pub(crate) struct Limits {
    first: LimitSet,
    changed: AtomicBool,
    current: ArcSwapOption<LimitSet>,
    changing: Mutex<()>,
}

impl Limits {
    pub(crate) fn new(entries: Vec<NamedLimit>, store: &MemoryStore, clock: &Clock) -> Self {
        Self {
            first: LimitSet::new(entries, store, clock),
            changed: AtomicBool::new(false),
            current: ArcSwapOption::empty(),
            changing: Mutex::default(),
        }
    }

    /// The limits as first given, if they were not changed since.
    #[inline(always)]
    pub(crate) fn unchanged(&self) -> Option<&LimitSet> {
        (!self.changed.load(Ordering::Acquire)).then_some(&self.first)
    }

    /// Runs `ask` on the present limits: all of it on the same ones.
    pub(crate) fn with<R>(&self, ask: impl FnOnce(&LimitSet) -> R) -> R {
        if let Some(first) = self.unchanged() {
            return ask(first);
        }
        match &*self.current.load() {
            Some(current) => ask(current),
            None => ask(&self.first),
        }
    }

    /// Replaces the limit called `name`; state is kept as far as it means anything to the new one.
    pub(crate) fn set(
        &self,
        name: &str,
        limit: Limit,
        store: &MemoryStore,
        clock: &Clock,
    ) -> Result<(), UnknownLimit> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = self.with(|limits| limits.to_vec());
        let entry = entries.iter_mut().find(|entry| &*entry.name == name);
        *entry.ok_or_else(|| UnknownLimit(name.into()))? = NamedLimit::new(name, limit);
        self.current.store(Some(Arc::new(LimitSet::new(entries, store, clock))));
        self.changed.store(true, Ordering::Release);
        Ok(())
    }
}

/// The limiter has no limit of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLimit(Box<str>);

impl UnknownLimit {
    #[cfg(feature = "redis")]
    pub(crate) fn new(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for UnknownLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no limit is called {:?}", self.0)
    }
}

impl std::error::Error for UnknownLimit {}

impl Details {
    /// What limits of a limiter decided for one key.
    pub(crate) fn of_limiter(
        limits: &Arc<[NamedLimit]>,
        key: &[u8],
        decisions: impl Iterator<Item = Decision>,
    ) -> Box<Self> {
        let record = |(number, decision): (usize, Decision)| {
            let charge = limits[number].charge(key, Op::Read(0));
            let (decision, key_number) = (Some(decision), charge.key_number());
            let live = Record::live(0, LimitSource::Limiter(number), Some(*charge.limit));
            Record { decision, key_number, ..live }
        };
        let records = decisions.enumerate().map(record).collect();
        Box::new(Self { origin: Origin::Limiter(Arc::clone(limits)), records, ..Self::default() })
    }
}

/// Decides `op` on every limit and folds the answers. Taking is all or nothing; whatever else is
/// never denied and each limit does it alone.
pub(crate) fn fold<'a>(
    limits: &[NamedLimit],
    now: Timestamp,
    store: &MemoryStore,
    charges: impl Fn(usize) -> (&'a [u8], Op),
    mut each: impl FnMut(usize, &Decision),
) -> Verdict {
    let mut verdict = Verdict::unlimited(now);
    let mut number = 0;
    let take = |decision: Decision| {
        each(number, &decision);
        verdict.fold(number, decision);
        number += 1;
    };
    decide(limits, now, store, charges, take);
    verdict
}

#[inline]
fn decide<'a>(
    limits: &[NamedLimit],
    now: Timestamp,
    store: &MemoryStore,
    charges: impl Fn(usize) -> (&'a [u8], Op),
    mut take: impl FnMut(Decision),
) {
    let charge = |i: usize| {
        let (key, op) = charges(i);
        Charge::new(Key::new(limits[i].scope, key), &limits[i].limit, op)
    };
    let together = matches!(charges(0).1, Op::Take(1..));
    match limits.len() {
        1 => take(store.decide(now, &charge(0))),
        2 if together => {
            store.decide_together(now, &[charge(0), charge(1)], take);
        }
        count if together => {
            let filled: [Charge<'_>; MAX_TOGETHER] =
                std::array::from_fn(|i| charge(i.min(count - 1)));
            store.decide_together(now, &filled[..count], take);
        }
        count => (0..count).for_each(|i| take(store.decide(now, &charge(i)))),
    }
}

/// Takes one unit from every limit for each of `keys`, key by key.
pub(crate) fn each<K: AsRef<[u8]>>(
    limits: &[NamedLimit],
    now: Timestamp,
    store: &MemoryStore,
    keys: &[K],
    verdicts: &mut Vec<Verdict>,
) {
    const AT_ONCE: usize = 16;
    let [limit] = limits else {
        let one = |key: &K| fold(limits, now, store, |_| (key.as_ref(), Op::Take(1)), |_, _| {});
        verdicts.extend(keys.iter().map(one));
        return;
    };
    verdicts.reserve(keys.len());
    for keys in keys.chunks(AT_ONCE) {
        let charges: [Charge<'_>; AT_ONCE] = std::array::from_fn(|i| {
            limit.charge(keys[i.min(keys.len() - 1)].as_ref(), Op::Take(1))
        });
        store.decide_each(now, &charges[..keys.len()], |decision| {
            verdicts.push(Verdict::of_one(now, decision));
        });
    }
}
