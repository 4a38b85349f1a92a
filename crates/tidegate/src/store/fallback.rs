//! A store that always answers: where the one behind it cannot, the policy has chosen what then.
//!
//! | `on_store_failure` | what is answered | at most, while the store is away |
//! |---|---|---|
//! | `local` | what this node's share of the limit says, from the last state that the store returned | what the shares refill, 1.5 times the limit over all nodes, and at least one unit on each |
//! | `allow` | go ahead, unless the limit admits nothing at all | everything |
//! | `deny` | stay out, until the store is tried again | nothing |
//!
//! A share is rate and burst times 1.5, divided by the nodes. It begins with the fraction of the limit that was
//! left when the store last answered for the key, so an exhausted key stays exhausted until it would have
//! refilled. A key that this node has never asked the store about gets the whole share, and so does every
//! in-flight limit, because other nodes release its places unseen. A sliding window counts all that was used as
//! used in the current window.
//!
//! Until a server of the store has decided one charge since the start, a share is a sixth of that: rate and
//! burst divided by four times the nodes, at least one unit. A process that restarts during an outage has
//! forgotten what it admitted, and gets this smaller share again and not the whole one.
//!
//! What is let in is owed, and booked when the store is back ([`Op::Force`]: never below empty), at most
//! [`AT_ONCE`] keys every [`PAUSE`]. A charge whose answer was lost may have been booked by the store and
//! is owed as well: that denies too much rather than too little, and nothing is ever taken back on
//! suspicion (F22). For the same reason a booking whose answer is lost is made again.
//!
//! # Promise
//! Never an error for what can be decided without the store: taking, reading, giving back and
//! forcing. Resetting a key, and leases that the store has given, fail as long as it is away. Units given
//! back then go against what is owed, and the rest is forgotten: too few, never too many. A refund whose answer was lost
//! may have arrived, and is forgotten too.
//!
//! Of several charges together, those whose server is away are decided first, and given back if the store then
//! denies the others or nobody waits for it any more: as far as they are still owed. What others would have got
//! by then is not given back: what a bucket that others took from has refilled, what a window holds that is over,
//! and nothing of a log that others have written to. That is too few, never too many, but for two things: units
//! that callers give back meanwhile may go for what is held, and where the store's clock seems to go back after
//! others took, a bucket may give back what it has refilled in that time.
//!
//! A store that refuses (a wrong password, no memory: [`StoreError::is_outage`] is false) is not away, and
//! nobody is let in because of it: `allow` is `local` then. [`Fallback::failure`] tells, so that somebody
//! learns of it.

mod alone;
mod answered;
mod held_share;
mod known;
mod pending_debits;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tidegate_core::{Decision, Explanation, Op, Span, Timestamp};

use self::alone::is_local;
use self::held_share::HeldShare;
use self::pending_debits::{Debit, PendingDebits};
use super::background::Background;
use super::breaker::USUAL_WAIT;
use super::memory::MemoryStore;
use super::{Charge, DecisionSource, Nodes, OnStoreFailure, Store, StoreError};
use crate::clock::Clock;
use crate::key::Hashing;

/// Keys that are booked at once when the store is back.
pub const AT_ONCE: usize = 64;
/// How long until the next are.
pub const PAUSE: Span = Span::from_millis(10);
/// How long until it is tried again where none could be booked.
const LONG_PAUSE: Span = Span::from_millis(250);
/// The most that the last known states take in this process: about a million keys.
const LOCAL_BYTES: u64 = 32 << 20;

/// How a [`Fallback`] answers.
#[derive(Clone, Debug, Default)]
pub struct FallbackConfig {
    /// Number of nodes that share the limits; each enforces its share.
    pub nodes: Nodes,
    /// What is answered where the limit's policy says nothing.
    pub otherwise: OnStoreFailure,
}

/// A store that answers as policies say where the one behind it does not.
#[derive(Debug)]
pub struct Fallback<S>(Arc<Inner<S>>);

#[derive(Debug)]
struct Inner<S> {
    store: S,
    clock: Clock,
    config: FallbackConfig,
    /// The last known state of each key, as the state of this node's share; while the store is unavailable,
    /// with what this node has admitted since.
    local: MemoryStore,
    owed: PendingDebits,
    /// By mode.
    answered: [AtomicU64; OnStoreFailure::ALL.len()],
    booked_keys: AtomicU64,
    booked_units: AtomicU64,
    /// The endpoints that have decided a charge since the start, one bit each.
    answered_endpoints: AtomicU64,
    /// The last thing that the store failed with, and when.
    failed: Mutex<Option<(Timestamp, StoreError)>>,
}

/// What has been decided without the store, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackStats {
    /// Charges by what answered: `local`, `allow` and `deny`, as [`OnStoreFailure::ALL`] has them.
    pub answered: [u64; OnStoreFailure::ALL.len()],
    /// Keys that owe the store something.
    pub owing_keys: usize,
    /// Keys that have been booked there, each as often as it was.
    pub booked_keys: u64,
    /// And how many units.
    pub booked_units: u64,
    /// Units that will never be booked, for want of room.
    pub forgotten_units: u64,
}

impl<S: Store + 'static> Fallback<S> {
    /// Answers for `store`, by the time of `clock`. What is owed is booked in the tokio runtime that this
    /// is called in. Fails if the system refuses to reserve address space.
    ///
    /// ```no_run
    /// use tidegate::store::breaker::Breaker;
    /// use tidegate::store::fallback::{Fallback, FallbackConfig};
    /// use tidegate::store::redis::{RedisConfig, RedisStore};
    /// use tidegate::{Clock, Limit, Limiter, Rate};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = Clock::default();
    /// let config = RedisConfig::new("redis://127.0.0.1:6379")?.start_without_server();
    /// let store = Breaker::new(RedisStore::connect(config).await?, clock.clone());
    /// let nodes = FallbackConfig { nodes: store.store().nodes(), ..FallbackConfig::default() };
    /// let store = Fallback::start(store, nodes, clock)?;
    /// let limit = Limit::token_bucket(Rate::per_minute(100)).build()?;
    /// let limiter = Limiter::builder().limit("per user", limit).shared(store)?;
    /// // Redis or not: a verdict.
    /// let verdict = limiter.check("user:17").await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis")]
    pub fn start(store: S, config: FallbackConfig, clock: Clock) -> io::Result<Self> {
        Self::start_on(store, config, clock, &Background::tokio())
    }

    /// The same, with bookings that are made elsewhere.
    pub fn start_on(
        store: S,
        config: FallbackConfig,
        clock: Clock,
        background: &Background,
    ) -> io::Result<Self> {
        let local = MemoryStore::new(LOCAL_BYTES, Hashing::Fast)?;
        Ok(Self::with(store, config, clock, background, local))
    }

    /// The same for a simulation, every time alike. Not for keys that strangers choose.
    pub fn repeatable(
        store: S,
        config: FallbackConfig,
        clock: Clock,
        background: &Background,
    ) -> io::Result<Self> {
        let local = MemoryStore::repeatable(LOCAL_BYTES)?;
        Ok(Self::with(store, config, clock, background, local))
    }

    fn with(
        store: S,
        config: FallbackConfig,
        clock: Clock,
        background: &Background,
        local: MemoryStore,
    ) -> Self {
        let inner = Arc::new(Inner {
            store,
            clock,
            config,
            local,
            owed: PendingDebits::default(),
            answered: Default::default(),
            booked_keys: AtomicU64::new(0),
            booked_units: AtomicU64::new(0),
            answered_endpoints: AtomicU64::new(0),
            failed: Mutex::default(),
        });
        background.spawn(book(Arc::downgrade(&inner), background.clone()));
        Self(inner)
    }

    /// The store that it answers for.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Number of nodes that share the limits.
    pub fn nodes(&self) -> &Nodes {
        &self.0.config.nodes
    }

    /// What has been decided without the store.
    pub fn stats(&self) -> FallbackStats {
        let inner = &self.0;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (owing_keys, forgotten_units) = inner.owed.tally();
        FallbackStats {
            answered: [0, 1, 2].map(|mode: usize| load(&inner.answered[mode])),
            owing_keys,
            booked_keys: load(&inner.booked_keys),
            booked_units: load(&inner.booked_units),
            forgotten_units,
        }
    }

    /// Records why the store is unavailable, for a failure that no request has met yet.
    pub fn record_failure(&self, error: &StoreError) {
        self.0.note(self.0.clock.now(), error);
    }

    /// The last thing that the store failed with, and when that was.
    pub fn failure(&self) -> Option<(Timestamp, StoreError)> {
        self.0.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<S: Store> Inner<S> {
    /// The present, for a request that came in at `now` and has waited for the store since. By then
    /// others may have been decided: a share that was emptied later must not seem impossible, or it would
    /// be repaired and refilled.
    fn later(&self, now: Timestamp) -> Timestamp {
        self.clock.now().max(now)
    }

    fn note(&self, now: Timestamp, error: &StoreError) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        // What says why is worth more than that it is so still.
        let is_worse = match (&*failed, error) {
            (Some((_, StoreError::Away { .. })) | None, _) => true,
            (_, StoreError::Away { .. }) => false,
            _ => true,
        };
        match &mut *failed {
            Some((at, _)) if !is_worse => *at = now,
            failed => *failed = Some((now, error.clone())),
        }
    }

    /// Decides what the store can be asked about and what it cannot, all or nothing.
    async fn decide_divided(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        away: &[Option<StoreError>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let pick = |is_here: bool| {
            let picked = charges.iter().zip(away).filter(move |(_, it)| it.is_some() == is_here);
            picked.map(|(charge, _)| *charge).collect::<Vec<_>>()
        };
        let (here, mut there) = (pick(true), pick(false));
        let Some(error) = away.iter().flatten().next() else {
            return self.ask(now, charges, decisions).await;
        };
        // What needs nobody else goes first, for it is easily given back. It is owed when the rest is decided,
        // so that nobody books it for a request that is denied.
        let mut own = Vec::with_capacity(here.len());
        let (at, decision_source) = self.take_alone(now, &here, error, &mut own);
        let is_denied = own.iter().any(|decision| !decision.is_allowed());
        for charge in there.iter_mut().filter(|_| is_denied) {
            if let Op::Take(cost) = charge.op {
                charge.op = Op::Read(cost);
            }
        }
        let mut others = Vec::with_capacity(there.len());
        let held = if is_denied { &[] } else { &here[..] };
        let taken = HeldShare::new(self, at, held, &own, error);
        let answered = self.ask(now, &there, &mut others).await;
        let now = self.later(now);
        match answered.is_ok() && others.iter().all(Decision::is_allowed) {
            true => {
                taken.keep();
                self.owe(now, held);
            }
            false => drop(taken),
        }
        if let Err(error) = answered {
            return self.decide_alone(now, charges, &error, decisions);
        }
        let (mut own, mut others) = (own.into_iter(), others.into_iter());
        let each = away.iter().filter_map(|away| match away {
            Some(_) => own.next(),
            None => others.next(),
        });
        decisions.extend(each);
        Ok(decision_source)
    }

    /// For each charge why the store cannot be asked about it; `None` if it can be for all.
    fn away(&self, now: Timestamp, charges: &[Charge<'_>]) -> Option<Vec<Option<StoreError>>> {
        let unready = |charge: &Charge<'_>| {
            // It was given here, and nobody there knows of it.
            let own = || StoreError::Away { retry_after: USUAL_WAIT };
            let own = is_local(charge).then(own);
            own.or_else(|| self.store.ready(now, charge).err())
        };
        let first = charges.iter().position(|charge| unready(charge).is_some())?;
        let each = charges.iter().enumerate();
        Some(
            each.map(|(number, charge)| if number < first { None } else { unready(charge) })
                .collect(),
        )
    }
}

/// Books what is owed, until nobody uses the store any more.
async fn book<S: Store>(inner: Weak<Inner<S>>, background: Background) {
    let mut pause = LONG_PAUSE;
    loop {
        background.sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        pause = match inner.book_some().await {
            0 => LONG_PAUSE,
            _ => PAUSE,
        };
    }
}

impl<S: Store> Inner<S> {
    /// Books what some keys owe; says how many.
    async fn book_some(&self) -> usize {
        let local = self.clock.now();
        let now = self.time(local);
        let debits = self.owed.due(now, AT_ONCE, |charge| self.store.ready(local, charge).is_ok());
        if debits.is_empty() {
            return 0;
        }
        let charges: Vec<Charge<'_>> = debits.iter().map(Debit::charge).collect();
        let mut decisions = Vec::with_capacity(charges.len());
        match self.ask_each(local, &charges, &mut decisions).await {
            Ok(_) => self.booked(&debits),
            Err(error) if error.is_outage() => {
                self.owed.owe_again(now, debits);
                0
            }
            // One key that is refused must not have the others booked with it again and again.
            Err(_) => self.book_alone(local, debits).await,
        }
    }

    /// Books what some keys owe, each alone; says how many.
    async fn book_alone(&self, local: Timestamp, debits: Vec<Debit>) -> usize {
        let (mut booked, mut rest) = (0, Vec::new());
        for debit in debits {
            let (charge, mut decisions) = (debit.charge(), Vec::with_capacity(1));
            match self.ask(local, &[charge], &mut decisions).await {
                Ok(_) => booked += self.booked(std::slice::from_ref(&debit)),
                Err(error) => rest.push(debit.refused_by(&error)),
            }
        }
        self.owed.owe_again(self.time(local), rest);
        booked
    }

    fn booked(&self, debits: &[Debit]) -> usize {
        let units = debits.iter().map(|debit| debit.units).sum();
        self.booked_keys.fetch_add(debits.len() as u64, Ordering::Relaxed);
        self.booked_units.fetch_add(units, Ordering::Relaxed);
        debits.len()
    }
}

impl<S: Store + 'static> Store for Fallback<S> {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let inner = &self.0;
        // One charge cannot be divided: whoever knows that its server is away says so when asked.
        let whole = match charges {
            [charge] if !is_local(charge) => Some(charge),
            _ => None,
        };
        if let Some(decision) = whole.and_then(|charge| inner.store.try_decide_locally(now, charge))
        {
            decisions.push(decision);
            return Ok(DecisionSource::Store);
        }
        let away = if whole.is_some() { None } else { inner.away(now, charges) };
        let Some(away) = away else {
            let answered = inner.ask(now, charges, decisions).await;
            return match answered {
                Err(error) => inner.decide_alone(inner.later(now), charges, &error, decisions),
                answered => answered,
            };
        };
        match away.iter().flatten().next() {
            Some(error) if away.iter().all(Option::is_some) => {
                inner.decide_alone(now, charges, error, decisions)
            }
            _ if charges.iter().all(Charge::is_deniable) => {
                inner.decide_divided(now, charges, &away, decisions).await
            }
            _ => self.decide_each(now, charges, decisions).await,
        }
    }

    async fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let inner = &self.0;
        let away = inner.away(now, charges).unwrap_or_default();
        if away.is_empty() {
            let answered = inner.ask_each(now, charges, decisions).await;
            return match answered {
                Err(error) => inner.decide_each_alone(inner.later(now), charges, &error, decisions),
                answered => answered,
            };
        }
        let is_there = |number: &usize| away[*number].is_none();
        let there: Vec<Charge<'_>> =
            (0..charges.len()).filter(is_there).map(|i| charges[i]).collect();
        let mut others = Vec::with_capacity(there.len());
        let mut decision_source = match there.is_empty() {
            true => DecisionSource::Store,
            false => match inner.ask_each(now, &there, &mut others).await {
                Ok(decision_source) => decision_source,
                Err(error) => {
                    inner.decide_each_alone(inner.later(now), &there, &error, &mut others)?
                }
            },
        };
        // What is decided here is decided now, however long the store was waited for.
        let now = inner.later(now);
        let mut others = others.into_iter();
        let mut all = Vec::with_capacity(charges.len());
        for (charge, away) in charges.iter().zip(&away) {
            match away {
                None => all.extend(others.next()),
                Some(error) => {
                    let charge = std::slice::from_ref(charge);
                    decision_source =
                        decision_source.max(inner.decide_alone(now, charge, error, &mut all)?);
                }
            }
        }
        decisions.append(&mut all);
        Ok(decision_source)
    }

    fn try_decide_locally(&self, now: Timestamp, charge: &Charge<'_>) -> Option<Decision> {
        if is_local(charge) { None } else { self.0.store.try_decide_locally(now, charge) }
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.0.store.explain(now, charge).await
    }

    fn endpoint(&self, charge: &Charge<'_>) -> usize {
        self.0.store.endpoint(charge)
    }

    fn limits_changed(&self) {
        self.0.store.limits_changed();
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.0.time(local)
    }
}
