//! Repeats denials without asking the store.
//!
//! Only time frees units of a rate limit, so the state on which the store denied tells until when it denies again.
//! A denial is repeated only if the limit still denies at the latest instant that the store's clock can show:
//! [`DRIFT_PPM`] faster than this node's, counted from before the request was sent.
//!
//! # Promise
//! Without a hold, no request is denied that the store would admit, as long as no units are returned. Units returned
//! through this cache drop the denial at once; for units returned on another node, or a store whose clock is set
//! forward, a denial is repeated for at most `refund_staleness`.
//!
//! A [holding](DenyCache::holding) cache repeats a bucket's denial of the exact tier for at least 16 units' time,
//! between 10 and 100 ms and at most half the time until the bucket is full ([`HOLD`]). The units that refill in the
//! meantime are admitted afterwards, so none is lost. `retry_after` includes the hold.
//!
//! In-flight limits, states that need a repair, and reads are never cached. At most [`MAX_ENTRIES`] denials.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::OnceLock;

use tidegate_core::{Algorithm, Decision, Explanation, Limit, Op, Outcome, Span, State, Timestamp};

use super::tags::{Tags, WAYS};
use super::{Charge, DecisionSource, DeniedState, Store, StoreError, Tier};
use crate::key::{Hashing, Key, Secret};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The most denials that are remembered.
pub const MAX_ENTRIES: usize = SETS * WAYS;
/// By how many millionths the clock of the store may run faster than ours.
pub const DRIFT_PPM: u64 = 200;
/// The shortest and the longest hold of a bucket's denial.
pub const HOLD: (Span, Span) = (Span::from_millis(10), Span::from_millis(100));

const SETS: usize = 1 << 14;
/// Enough for a simulation.
const FEW_SETS: usize = 1 << 6;
/// The longest log that is remembered; a shared store tells two entries.
const MAX_LOG: usize = 64;

/// Repeats what a store has denied, for as long as the store would.
///
/// ```no_run
/// use tidegate::store::deny_cache::DenyCache;
/// use tidegate::store::redis::{RedisConfig, RedisStore};
/// use tidegate::{Limit, Limiter, Rate};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect(RedisConfig::new("redis://127.0.0.1:6379")?).await?;
/// let limit = Limit::token_bucket(Rate::per_minute(100)).build()?;
/// let limiter = Limiter::builder().limit("per user", limit).shared(DenyCache::new(store))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DenyCache<S> {
    store: S,
    staleness: Span,
    /// Whether a bucket's denial is repeated for its hold.
    holds: bool,
    secret: Secret,
    /// All that keys need that are not denied: close together, so that these hardly ever wait for memory.
    fronts: Box<[Front]>,
    denials: Box<[Mutex<Vec<Denial>>]>,
    hits: AtomicU64,
}

/// What is known of a set without its lock.
#[derive(Debug, Default)]
struct Front {
    /// Whose denials are in it, so that others pass by.
    tags: Tags,
    /// How often units of some key in it were given back, before and after the store was asked to.
    epoch: AtomicU64,
}

/// Four denials.
#[derive(Clone, Copy)]
struct Set<'a> {
    front: &'a Front,
    denials: &'a Mutex<Vec<Denial>>,
}

#[derive(Debug)]
struct Denial {
    print: u64,
    limit: Limit,
    cost: u64,
    /// What the denial left, and when.
    left: DeniedState,
    /// For how long from then on this cost is denied: at least for its hold.
    wait: Span,
    /// Our clock before the store was asked.
    sent: Timestamp,
}

/// Where the denial of a key would be.
#[derive(Clone, Copy)]
struct DenialSlot<'a> {
    set: Set<'a>,
    print: u64,
    epoch: u64,
}

impl Denial {
    /// What the store would say to this cost, if that is for certain a denial.
    fn repeat(&mut self, now: Timestamp, cost: u64) -> Option<Decision> {
        // The log may be a short one, made for one cost.
        if matches!(self.limit, Limit::SlidingLog(_)) && cost != self.cost {
            return None;
        }
        let since = now.since(self.sent);
        let drift = Span::from_micros((since.as_micros() * DRIFT_PPM).div_ceil(1_000_000) + 1);
        // Reading changes nothing, so the state need not be copied.
        let DeniedState { state, at } = &mut self.left;
        let mut read = |at| self.limit.decide(state, at, Op::Read(cost));
        // What never fits does so without a cache, and may have to be counted.
        if cost >= self.cost && since + drift < self.wait {
            let decision = read(*at + since);
            let wait = Span::from_micros(self.wait.as_micros() - since.as_micros());
            return (!decision.is_never()).then(|| held(decision, wait));
        }
        let is_certain = cost != self.cost && read(*at + since + drift).retry_after().is_some();
        is_certain.then(|| read(*at + since))
    }
}

impl Set<'_> {
    /// Changes the denials, and the tags with them.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Denial>) -> T) -> T {
        let mut denials = lock(self.denials);
        let value = change(&mut denials);
        self.tag(&denials);
        value
    }

    /// Lets others know whose denials these are.
    fn tag(&self, denials: &[Denial]) {
        self.front.tags.set(denials.iter().map(|denial| denial.print));
    }

    /// Nothing that was decided before this is remembered after it.
    fn forget(&self, is_forgotten: impl Fn(&Denial) -> bool) {
        self.change(|denials| {
            self.front.epoch.fetch_add(1, Ordering::AcqRel);
            denials.retain(|denial| !is_forgotten(denial));
        });
    }
}

impl<S: Store> DenyCache<S> {
    /// For how long a denial is repeated at most, if neither the limit nor the program says.
    pub const REFUND_STALENESS: Span = Span::from_secs(1);

    /// Repeats what `store` denies.
    pub fn new(store: S) -> Self {
        Self::with(store, Secret::new(Hashing::Fast), SETS)
    }

    /// The same for a simulation: it is small, and where a key has its place is the same every time. Not
    /// for keys that strangers choose.
    pub fn repeatable(store: S) -> Self {
        Self::with(store, Secret::known(), FEW_SETS)
    }

    fn with(store: S, secret: Secret, sets: usize) -> Self {
        let (fronts, denials) =
            (0..sets).map(|_| Default::default()).unzip::<_, _, Vec<_>, Vec<_>>();
        Self {
            store,
            staleness: Self::REFUND_STALENESS,
            holds: false,
            secret,
            fronts: fronts.into(),
            denials: denials.into(),
            hits: AtomicU64::new(0),
        }
    }

    /// The same, repeating denials for at most so long where the limit does not say; nought for not at
    /// all.
    #[must_use]
    pub fn refund_staleness(self, longest: Span) -> Self {
        Self { staleness: longest, ..self }
    }

    /// The same, repeating a bucket's denial for its [hold](HOLD).
    #[must_use]
    pub fn holding(self) -> Self {
        Self { holds: true, ..self }
    }

    /// The store behind.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// How many charges were denied without asking the store.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// How many denials are remembered, those included that have ended and were not replaced yet.
    pub fn entries(&self) -> usize {
        self.fronts.iter().map(|front| front.tags.count()).sum()
    }

    fn staleness(&self, charge: &Charge<'_>) -> Span {
        match charge.limit {
            Limit::InFlight(_) | Limit::Blocking(_) => Span::ZERO,
            _ => charge.options.refund_staleness.unwrap_or(self.staleness),
        }
    }

    /// Where the denial of a charge would be, if it may be remembered.
    #[inline(always)]
    fn place(&self, charge: &Charge<'_>) -> Option<DenialSlot<'_>> {
        let may_be = matches!(charge.op, Op::Take(1..)) && !self.staleness(charge).is_zero();
        may_be.then(|| {
            let (set, print) = self.set(charge.key);
            DenialSlot { set, print, epoch: set.front.epoch.load(Ordering::Acquire) }
        })
    }

    #[inline(always)]
    fn set(&self, key: Key<'_>) -> (Set<'_>, u64) {
        let print = self.secret.hash(key);
        let number = print as usize & (self.fronts.len() - 1);
        (Set { front: &self.fronts[number], denials: &self.denials[number] }, print)
    }

    fn sets(&self) -> impl Iterator<Item = Set<'_>> {
        let pairs = self.fronts.iter().zip(&self.denials);
        pairs.map(|(front, denials)| Set { front, denials })
    }

    /// What a charge is told, if the store would deny it for certain.
    #[inline(always)]
    fn denial(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        place: DenialSlot<'_>,
    ) -> Option<Decision> {
        if place.set.front.tags.may_hold(place.print) {
            self.look(now, charge, place)
        } else {
            None
        }
    }

    #[inline(never)]
    fn look(&self, now: Timestamp, charge: &Charge<'_>, place: DenialSlot<'_>) -> Option<Decision> {
        let (Op::Take(cost), longest) = (charge.op, self.staleness(charge)) else { return None };
        let mut denials = lock(place.set.denials);
        let way = denials.iter().position(|denial| denial.print == place.print)?;
        let denial = &mut denials[way];
        let is_new = denial.sent <= now && now.since(denial.sent) < longest;
        let holds = is_new && denial.limit == *charge.limit;
        let decision = if holds { denial.repeat(now, cost) } else { None };
        if decision.is_some() {
            self.hits.fetch_add(1, Ordering::Relaxed);
        } else {
            // Whoever asks the store now may take what the next denial must not count as free.
            denials.swap_remove(way);
            place.set.tag(&denials);
        }
        decision
    }

    /// Remembers a denial, unless units were given back since the store was asked. `decision` then says how
    /// long it is repeated.
    fn remember(
        &self,
        place: DenialSlot<'_>,
        sent: Timestamp,
        charge: &Charge<'_>,
        (mut denied_state, decision): (DeniedState, Option<&mut Decision>),
    ) {
        let (Op::Take(cost), limit) = (charge.op, *charge.limit) else { return };
        let is_long =
            matches!(&denied_state.state, State::SlidingLog(log) if log.entries().len() > MAX_LOG);
        if is_long || limit.is_ahead(&denied_state.state, denied_state.at) {
            return;
        }
        let told = limit.decide(&mut denied_state.state, denied_state.at, charge.op);
        let Some(wait) = told.retry_after() else { return };
        let wait = match charge.options.tier {
            Tier::Exact if self.holds => wait.max(hold(&limit, told.reset_after)),
            // Leases have a pause of their own.
            _ => wait,
        };
        let denial = Denial { print: place.print, limit, cost, left: denied_state, wait, sent };
        place.set.change(|denials| {
            if place.set.front.epoch.load(Ordering::Acquire) != place.epoch {
                return;
            }
            let same = denials.iter().position(|known| known.print == denial.print);
            let oldest = || (0..denials.len()).min_by_key(|way| denials[*way].sent);
            match same.or_else(|| oldest().filter(|_| denials.len() == WAYS)) {
                Some(way) => denials[way] = denial,
                None => denials.push(denial),
            }
            if let Some(decision) = decision.filter(|decision| !decision.is_allowed()) {
                *decision = held(*decision, wait);
            }
        });
    }

    /// Forgets the keys that units are given back to, now and when the result is dropped: a denial that
    /// is on its way meanwhile must not be remembered.
    fn forget<'a>(&'a self, charges: &'a [Charge<'a>]) -> Option<Forgetting<'a, S>> {
        let forgetting = Forgetting { cache: self, charges };
        charges.iter().any(gives_back).then(|| {
            forgetting.forget();
            forgetting
        })
    }

    /// Asks the store about several charges, and remembers what it denies.
    async fn ask(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
        together: bool,
    ) -> Result<DecisionSource, StoreError> {
        let places: Vec<_> = charges.iter().map(|charge| self.place(charge)).collect();
        let sights: Vec<OnceLock<DeniedState>> = charges.iter().map(|_| OnceLock::new()).collect();
        let seen = charges
            .iter()
            .zip(&sights)
            .map(|(charge, denied_state)| charge.denied_state_in(denied_state));
        let seen: Vec<Charge<'_>> = seen.collect();
        let decision_source = match together {
            true => self.store.decide(now, &seen, decisions).await?,
            false => self.store.decide_each(now, &seen, decisions).await?,
        };
        let before = decisions.len() - charges.len();
        let each = charges.iter().zip(places).zip(sights).zip(&mut decisions[before..]);
        for (((charge, place), denied_state), decision) in each {
            if let (DecisionSource::Store, Some(place), Some(denied_state)) =
                (decision_source, place, denied_state.into_inner())
            {
                self.remember(place, now, charge, (denied_state, Some(decision)));
            }
        }
        Ok(decision_source)
    }

    /// For each charge what it is told, if the store would deny it for certain.
    fn denials(&self, now: Timestamp, charges: &[Charge<'_>]) -> Option<Vec<Option<Decision>>> {
        let denial = |charge| self.denial(now, charge, self.place(charge)?);
        let (first, decision) =
            charges.iter().enumerate().find_map(|(i, charge)| Some((i, denial(charge)?)))?;
        let each = charges.iter().enumerate().map(|(i, charge)| match i.cmp(&first) {
            Less => None,
            Equal => Some(decision),
            Greater => denial(charge),
        });
        Some(each.collect())
    }
}

/// For how long a denial of a bucket is repeated at least: 16 units' time, within [`HOLD`]. The units that come
/// back meanwhile stay in the store, and none is lost: a bucket that needs `full` to fill up does not overflow in
/// half that time.
fn hold(limit: &Limit, full: Span) -> Span {
    let Limit::Bucket(bucket) = limit else { return Span::ZERO };
    let unit = bucket.time_of(1).map_or(0, |unit| unit.ticks);
    let hold = Span::from_micros(unit.saturating_mul(16)).clamp(HOLD.0, HOLD.1);
    hold.min(Span::from_micros(full.as_micros() / 2))
}

/// A denial that lasts so long.
fn held(decision: Decision, wait: Span) -> Decision {
    let wait = decision.retry_after().unwrap_or_default().max(wait);
    Decision { outcome: Outcome::Deny { retry_after: Some(wait) }, ..decision }
}

/// Whether a charge may free units.
const fn gives_back(charge: &Charge<'_>) -> bool {
    !matches!(charge.op, Op::Take(_) | Op::Read(_))
}

/// Units on their way back.
struct Forgetting<'a, S: Store> {
    cache: &'a DenyCache<S>,
    charges: &'a [Charge<'a>],
}

impl<S: Store> Forgetting<'_, S> {
    fn forget(&self) {
        for charge in self.charges.iter().filter(|charge| gives_back(charge)) {
            let (set, print) = self.cache.set(charge.key);
            set.forget(|denial| denial.print == print);
        }
    }
}

impl<S: Store> Drop for Forgetting<'_, S> {
    fn drop(&mut self) {
        self.forget();
    }
}

impl<S: Store> Store for DenyCache<S> {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if let [charge] = charges
            && let Some(place) = self.place(charge)
        {
            if let Some(denial) = self.denial(now, charge, place) {
                decisions.push(denial);
                return Ok(DecisionSource::Store);
            }
            let denied_state = OnceLock::new();
            let decision_source =
                self.store.decide(now, &[charge.denied_state_in(&denied_state)], decisions).await?;
            if let (DecisionSource::Store, Some(denied_state)) =
                (decision_source, denied_state.into_inner())
            {
                self.remember(place, now, charge, (denied_state, decisions.last_mut()));
            }
            return Ok(decision_source);
        }
        let _forgetting = self.forget(charges);
        if charges.len() == 1 {
            return self.store.decide(now, charges, decisions).await;
        }
        let takes = charges.iter().all(|charge| matches!(charge.op, Op::Take(_)));
        if takes && let Some(denials) = self.denials(now, charges) {
            let at = self.store.clock(now);
            let each = charges.iter().zip(denials);
            decisions
                .extend(each.map(|(it, denial)| denial.unwrap_or_else(|| it.fresh_decision(at))));
            return Ok(DecisionSource::Store);
        }
        self.ask(now, charges, decisions, true).await
    }

    async fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if charges.len() == 1 {
            return self.decide(now, charges, decisions).await;
        }
        let _forgetting = self.forget(charges);
        let Some(denials) = self.denials(now, charges) else {
            return self.ask(now, charges, decisions, false).await;
        };
        let others = charges.iter().zip(&denials).filter(|(_, denial)| denial.is_none());
        let others: Vec<Charge<'_>> = others.map(|(charge, _)| *charge).collect();
        let mut fresh = Vec::with_capacity(others.len());
        let decision_source = match others.is_empty() {
            true => DecisionSource::Store,
            false => self.ask(now, &others, &mut fresh, false).await?,
        };
        let mut fresh = fresh.into_iter();
        decisions.extend(denials.into_iter().filter_map(|denial| denial.or_else(|| fresh.next())));
        Ok(decision_source)
    }

    #[inline]
    fn try_decide_locally(&self, now: Timestamp, charge: &Charge<'_>) -> Option<Decision> {
        self.denial(now, charge, self.place(charge)?)
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.store.explain(now, charge).await
    }

    fn endpoint(&self, charge: &Charge<'_>) -> usize {
        self.store.endpoint(charge)
    }

    fn ready(&self, now: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.store.ready(now, charge)
    }

    fn limits_changed(&self) {
        self.store.limits_changed();
        self.sets().for_each(|set| set.forget(|_| true));
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.store.clock(local)
    }
}
