//! More keys than memory. The bound holds, who is denied stays denied, and what is forgotten
//! is counted.

use fastrand::Rng;
use tidegate::store::Charge;
use tidegate::store::memory::MemoryStore;
use tidegate::{Decision, Hashing, InFlight, Key, Limit, Op, Rate, Scope, Span, Timestamp};

use crate::reference::{Asked, Reference};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
/// Keys of the attacker are above this number, keys of other clients below.
const ATTACK: u64 = 1 << 32;

fn bucket(rate: Rate, burst: u64) -> Limit {
    Limit::token_bucket(rate).burst(burst).build().unwrap()
}

/// Several families with room for 100 that lasts longer than any test.
fn table_families() -> [Limit; 4] {
    [
        bucket(Rate::per_day(1), 100),
        bucket(Rate::new(1_031, Span::from_secs(300_000_001)), 100),
        Limit::fixed_window(Rate::per_day(100)).build().unwrap(),
        Limit::sliding_window(Rate::per_day(100)).build().unwrap(),
    ]
}

fn heap_families() -> [Limit; 2] {
    let log = Limit::sliding_log(Rate::per_day(100)).build().unwrap();
    [log, Limit::in_flight(100, InFlight::NO_EXPIRY).unwrap()]
}

/// A bounded store and what it must answer.
struct Town {
    store: MemoryStore,
    bound: u64,
    limit: Limit,
    scope: Scope,
    reference: Reference,
    now: Timestamp,
}

impl Town {
    fn new(bound: u64, limit: Limit) -> Self {
        Self {
            store: MemoryStore::new(bound, Hashing::Fast).unwrap(),
            bound,
            limit,
            scope: Scope::new("town", &limit),
            reference: Reference::default(),
            now: START,
        }
    }

    fn ask(&self, key: u64, op: Op) -> Decision {
        let text = key.to_le_bytes();
        let key = Key::new(self.scope, &text);
        self.store.decide(self.now, &Charge::new(key, &self.limit, op))
    }

    /// Asks, and the answer must be the one of an unbounded store.
    fn ask_exactly(&mut self, key: u64, op: Op) -> Decision {
        let answer = self.ask(key, op);
        let asked = Asked { id: (0, key), limit: self.limit, op };
        let compared = self.reference.decide(self.now, &asked, &answer);
        assert_eq!(compared, Ok(()), "{asked:?} answered {answer:?}");
        answer
    }

    fn assert_bound(&self) {
        let stats = self.store.stats();
        assert!(stats.bytes <= self.bound, "{stats:?} above {}", self.bound);
    }
}

/// Keys in denial and hot keys with a large debt, then an attack: all of them stay exact.
fn attack(bound: u64, limit: Limit, attackers: u64) {
    let mut town = Town::new(bound, limit);
    let mut rng = Rng::with_seed(bound ^ attackers);
    let denied = bound / 4_194;
    let hot = denied + 1..denied + 1 + (denied / 20).max(2);
    for key in 0..denied {
        assert!(town.ask_exactly(key, Op::Take(1)).is_allowed());
        assert!(town.ask_exactly(key, Op::Take(99)).is_allowed());
    }
    for key in hot.clone() {
        assert!(town.ask_exactly(key, Op::Take(40)).is_allowed());
    }
    for attacker in 0..attackers {
        if attacker % 1_000 == 0 {
            town.assert_bound();
            town.now = town.now + Span::from_micros(1);
            let decision = town.ask_exactly(rng.u64(0..denied), Op::Take(1));
            assert!(!decision.is_allowed());
            town.ask_exactly(rng.u64(hot.clone()), Op::Take(1));
        }
        let decision = town.ask(ATTACK + rng.u64(0..1 << 60), Op::Take(1));
        assert!(decision.is_allowed(), "{limit:?}: attacker {attacker} of {attackers} was denied");
    }
    for key in 0..denied {
        assert!(!town.ask_exactly(key, Op::Take(1)).is_allowed());
    }
    for key in hot {
        town.ask_exactly(key, Op::Take(1));
    }
    town.assert_bound();
    let stats = town.store.stats();
    assert!(stats.evicted > attackers / 2, "{stats:?}");
    assert!(stats.evicted_units <= stats.evicted, "one unit each: {stats:?}");
    assert_eq!(stats.overflowed, 0);
}

#[test]
fn an_attack_with_random_keys_leaves_denied_keys_denied() {
    attack(4 << 20, table_families()[0], 2_000_000);
    for limit in table_families() {
        attack(1 << 20, limit, 300_000);
        attack(64 << 10, limit, 100_000);
    }
}

#[test]
fn an_attack_on_logs_and_places_leaves_denied_keys_denied() {
    for limit in heap_families() {
        attack(4 << 20, limit, 200_000);
        attack(1 << 20, limit, 100_000);
    }
}

/// When all near keys deny, new ones share one state: no denied key is evicted, and together they get
/// no more than one key would.
#[test]
fn when_every_key_is_denied_new_keys_share_one_budget() {
    const KEYS: u64 = 20_000;
    for limit in table_families().into_iter().chain(heap_families()) {
        let town = Town::new(64 << 10, limit);
        let admitted = |op| (0..KEYS).filter(|key| town.ask(*key, op).is_allowed()).count() as u64;
        let first = admitted(Op::Take(100));
        let stats = town.store.stats();
        assert_eq!(first, stats.keys + 1, "{limit:?}: one beyond those with a slot, {stats:?}");
        assert_eq!(admitted(Op::Take(1)), 0, "{limit:?}");
        let stats = town.store.stats();
        assert_eq!((stats.evicted, stats.evicted_units), (0, 0));
        assert!(stats.overflowed >= 2 * (KEYS - stats.keys), "{stats:?}");
        town.assert_bound();
    }
}

/// The same in a batch: decided on the shared state, and counted.
#[test]
fn a_batch_that_finds_no_room_is_counted() {
    let town = Town::new(64 << 10, table_families()[0]);
    for key in 0..20_000 {
        town.ask(key, Op::Take(100));
    }
    let before = town.store.stats();
    let keys: Vec<[u8; 8]> = (ATTACK..ATTACK + 2).map(u64::to_le_bytes).collect();
    let charge = |text| Charge::new(Key::new(town.scope, text), &town.limit, Op::Take(1));
    let charges = [charge(&keys[0]), charge(&keys[1])];
    assert!(!town.store.decide_together(town.now, &charges, |_| {}));
    assert_eq!(town.store.stats().overflowed, before.overflowed + 2);
}

/// A log that is full needs no more memory to be denied, however little is left.
#[test]
fn a_denied_log_stays_denied_when_there_is_no_memory_at_all() {
    let limit = Limit::sliding_log(Rate::per_day(4)).build().unwrap();
    for left in 0..32 {
        let mut town = Town::new((64 << 10) + 16 * left, limit);
        for _ in 0..4 {
            town.now = town.now + Span::from_micros(1);
            assert!(town.ask_exactly(0, Op::Take(1)).is_allowed());
        }
        let mut key = 1;
        while town.store.stats().overflowed == 0 {
            assert!(town.ask(key, Op::Take(4)).is_allowed(), "key {key} has no debt");
            key += 1;
        }
        town.now = town.now + Span::from_secs(86_400 - 1);
        let denied = town.ask_exactly(0, Op::Take(1));
        assert!(!denied.is_allowed(), "with {left} times 16 bytes more than 64 KiB");
    }
}

/// A place that was taken on the shared state comes back when its lease is released.
#[test]
fn a_place_taken_without_room_is_given_back() {
    let town = Town::new(64 << 10, Limit::in_flight(3, InFlight::NO_EXPIRY).unwrap());
    let mut key = 0;
    let shared = loop {
        let lease = town.ask(key, Op::Take(3)).lease.unwrap();
        if town.store.stats().overflowed > 0 {
            break lease;
        }
        key += 1;
    };
    town.ask(key, Op::Release(shared));
    let decision = town.ask(key, Op::Take(3));
    assert!(decision.is_allowed(), "the only lease was released: {decision:?}");
}

/// Batches keep to the bound too, also those whose logs grow.
#[test]
fn batches_of_logs_stay_within_the_bound() {
    // Many short logs, and one that was nearly full before.
    for (keys, length, before) in [(60, 100, 0), (1, 3_000, 2_040)] {
        let log = Limit::sliding_log(Rate::per_day(length)).build().unwrap();
        let mut town = Town::new(64 << 10, log);
        let bucket = bucket(Rate::per_second(1_000_000), 1_000);
        let scope = Scope::new("rate", &bucket);
        let mut rng = Rng::with_seed(length);
        for _ in 0..before {
            town.now = town.now + Span::from_micros(1);
            assert!(town.ask(0, Op::Take(1)).is_allowed());
        }
        for _ in 0..5_000 {
            town.now = town.now + Span::from_micros(1);
            let text = rng.u64(0..keys).to_le_bytes();
            let key = Key::new(town.scope, &text);
            let charges = [
                Charge::new(key, &log, Op::Take(1)),
                Charge::new(Key::new(scope, &text), &bucket, Op::Take(1)),
            ];
            town.store.decide_together(town.now, &charges, |_| {});
            town.assert_bound();
        }
    }
}

/// Keys that come, spend one unit and never come back: their slots are used again in time, which
/// is no loss and needs no more memory than those alive at once.
fn churn(limit: Limit, keys: u64, most_bytes: u64) {
    let mut town = Town::new(256 << 20, limit);
    let first = town.store.stats().bytes;
    for key in 0..keys {
        town.now = town.now + Span::from_micros(1);
        assert!(town.ask(key, Op::Take(1)).is_allowed());
        if key % 100_000 == 0 {
            let stats = town.store.stats();
            assert!(stats.bytes - first <= most_bytes, "{limit:?}, {key} keys: {stats:?}");
        }
    }
    let stats = town.store.stats();
    assert_eq!((stats.evicted, stats.evicted_units, stats.overflowed), (0, 0, 0), "{limit:?}");
}

/// 20,000 are alive at once, of millions.
#[test]
fn keys_that_have_passed_make_room_for_others_and_are_no_loss() {
    let millis = Span::from_millis(20);
    churn(bucket(Rate::new(1, millis), 10), 5_000_000, 2 << 20);
    churn(Limit::fixed_window(Rate::new(10, millis)).build().unwrap(), 1_000_000, 4 << 20);
    churn(Limit::sliding_window(Rate::new(10, millis)).build().unwrap(), 1_000_000, 6 << 20);
    churn(Limit::sliding_log(Rate::new(10, millis)).build().unwrap(), 500_000, 40 << 20);
    churn(Limit::in_flight(10, millis).unwrap(), 500_000, 40 << 20);
}
