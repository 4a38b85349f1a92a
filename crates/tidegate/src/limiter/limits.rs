//! The limits of a limiter, which can be changed at run time.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use tidegate_core::{Decision, Limit, Op};

use super::backend::Backend;
use super::builder::BuildError;
use super::quick::Quick;
use crate::clock::Clock;
use crate::key::{Key, Scope};
use crate::store::Charge;
#[cfg(feature = "http")]
use crate::verdict::LimitFields;
use crate::verdict::{Details, LimitSource, Origin, Record};

/// A limit and its name.
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

/// Limits, and the quick path to check them if there is one.
#[derive(Debug)]
pub(crate) struct LimitSet {
    pub(crate) entries: Arc<[NamedLimit]>,
    pub(crate) quick: Option<Quick>,
    /// The header fields of requests that the quick path admits.
    #[cfg(feature = "http")]
    pub(crate) fields: Option<Arc<LimitFields>>,
}

impl LimitSet {
    fn new<S: Backend>(entries: Vec<NamedLimit>, store: &S, clock: &Clock) -> Self {
        Self {
            quick: store.prepare(&entries, clock),
            #[cfg(feature = "http")]
            fields: entries.first().and_then(|first| LimitFields::new(&first.name, &first.limit)),
            entries: entries.into(),
        }
    }
}

impl Deref for LimitSet {
    type Target = [NamedLimit];

    fn deref(&self) -> &[NamedLimit] {
        &self.entries
    }
}

/// The initial limits, and their replacement once a limit has been changed. Reading the swappable
/// pointer costs two locked instructions, half as much as a decision, so it is read only after a
/// change.
#[derive(Debug)]
pub(crate) struct Limits {
    first: LimitSet,
    changed: AtomicBool,
    current: ArcSwapOption<LimitSet>,
    changing: Mutex<()>,
}

/// The limits in force when they were loaded.
#[derive(Debug)]
pub(super) enum Loaded<'a> {
    First(&'a LimitSet),
    Current(Arc<LimitSet>),
}

impl Deref for Loaded<'_> {
    type Target = LimitSet;

    #[inline]
    fn deref(&self) -> &LimitSet {
        match self {
            Self::First(limits) => limits,
            Self::Current(limits) => limits,
        }
    }
}

impl Limits {
    pub(super) fn new<S: Backend>(entries: Vec<NamedLimit>, store: &S, clock: &Clock) -> Self {
        Self {
            first: LimitSet::new(entries, store, clock),
            changed: AtomicBool::new(false),
            current: ArcSwapOption::empty(),
            changing: Mutex::default(),
        }
    }

    /// The initial limits, if no limit has been changed.
    #[inline(always)]
    pub(super) fn unchanged(&self) -> Option<&LimitSet> {
        (!self.changed.load(Ordering::Acquire)).then_some(&self.first)
    }

    /// The limits in force, for one request.
    #[inline]
    pub(super) fn load(&self) -> Loaded<'_> {
        match self.unchanged() {
            Some(first) => Loaded::First(first),
            None => self.current.load_full().map_or(Loaded::First(&self.first), Loaded::Current),
        }
    }

    /// Runs `ask` on the limits in force, without sharing a reference count with other threads.
    pub(super) fn with<R>(&self, ask: impl FnOnce(&LimitSet) -> R) -> R {
        match (self.unchanged(), &*self.current.load()) {
            (None, Some(current)) => ask(current),
            _ => ask(&self.first),
        }
    }

    /// Replaces the limit called `name`. State is kept if the new limit can use it.
    pub(super) fn set<S: Backend>(
        &self,
        name: &str,
        limit: Limit,
        store: &S,
        clock: &Clock,
    ) -> Result<(), BuildError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = self.load().to_vec();
        let entry = entries.iter_mut().find(|entry| &*entry.name == name);
        let unknown = || BuildError::UnknownLimit(name.to_owned());
        *entry.ok_or_else(unknown)? = NamedLimit::new(name, limit);
        self.current.store(Some(Arc::new(LimitSet::new(entries, store, clock))));
        self.changed.store(true, Ordering::Release);
        Ok(())
    }
}

impl Details {
    /// Makes the details of what the limits of a limiter decided for one key.
    pub(crate) fn of_limiter(
        limits: &Arc<[NamedLimit]>,
        key: &[u8],
        decisions: &[Decision],
    ) -> Box<Self> {
        let record = |(number, decision): (usize, &Decision)| {
            let charge = limits[number].charge(key, Op::Read(0));
            let (decision, key_number) = (Some(*decision), charge.key_number());
            let live = Record::live(0, LimitSource::Limiter(number), Some(*charge.limit));
            Record { decision, key_number, ..live }
        };
        let records = decisions.iter().enumerate().map(record).collect();
        Box::new(Self { origin: Origin::Limiter(Arc::clone(limits)), records, ..Self::default() })
    }
}
