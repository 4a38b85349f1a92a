//! Random operations on the keys of a few limits whose numbers change while they run.

use fastrand::Rng;
use tidegate::store::Charge;
use tidegate::{Decision, Key, LeaseId, Limit, Op, Scope, Span, Timestamp};

use crate::reference::Asked;

/// A limit and the numbers it may be given: state is kept over all of them.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) scope: Scope,
    pub(crate) numbers: Vec<Limit>,
    current: usize,
}

impl Subject {
    /// A limit called `name`.
    pub(crate) fn new(name: &str, numbers: &[Limit]) -> Self {
        let scope = Scope::new(name, &numbers[0]);
        let same = numbers.iter().all(|limit| Scope::new(name, limit) == scope);
        assert!(same, "numbers that do not share state: {name}");
        Self { scope, numbers: numbers.to_vec(), current: 0 }
    }

    /// As charged with its present numbers.
    pub(crate) fn charge<'a>(&self, text: &'a [u8], asked: &'a Asked) -> Charge<'a> {
        Charge::new(Key::new(self.scope, text), &asked.limit, asked.op)
    }
}

/// A source of operations and of time.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) rng: Rng,
    pub(crate) now: Timestamp,
    pub(crate) subjects: Vec<Subject>,
    keys: u64,
    backwards: bool,
    leases: Vec<LeaseId>,
    /// The wait or reset that was last heard of: the instants around it are the interesting ones.
    heard: Span,
}

impl Traffic {
    /// Operations of this seed on `keys` keys of each subject.
    pub(crate) fn new(seed: u64, subjects: &[Subject], keys: u64, backwards: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let now = Timestamp::from_micros(1_700_000_000_000_000 + rng.u64(0..100_000_000));
        let (leases, heard) = (Vec::new(), Span::ZERO);
        Self { rng, now, subjects: subjects.to_vec(), keys, backwards, leases, heard }
    }

    /// Learns from an answer what is worth asking next.
    pub(crate) fn hear(&mut self, decision: &Decision) {
        if self.rng.u8(0..8) == 0 || decision.retry_after().is_some() {
            let heard = decision.retry_after().unwrap_or(decision.reset_after);
            self.heard = heard.min(Span::from_secs(3_600));
        }
        if let Some(lease) = decision.lease {
            self.leases.push(lease);
        }
    }

    /// Moves the clock, and now and then changes some numbers.
    pub(crate) fn step(&mut self) {
        let heard = self.heard.as_micros();
        let micros = match self.rng.u8(0..100) {
            0..50 => 0,
            50..60 => 1,
            60..70 => self.rng.u64(0..2_000),
            70..78 => heard,
            78..84 => heard.saturating_sub(1),
            84..90 => self.rng.u64(0..=heard),
            90..96 => self.rng.u64(0..3_000_000),
            _ if self.backwards => return self.step_back(),
            96..98 => self.rng.u64(0..200_000_000),
            _ => 0,
        };
        self.now = self.now + Span::from_micros(micros);
        if self.rng.u8(0..100) == 0 {
            let subject = self.rng.usize(0..self.subjects.len());
            let subject = &mut self.subjects[subject];
            subject.current = self.rng.usize(0..subject.numbers.len());
        }
    }

    fn step_back(&mut self) {
        let micros = match self.rng.u8(0..4) {
            0 => 1,
            1 => self.heard.as_micros(),
            2 => self.rng.u64(0..1_000_000),
            _ => self.rng.u64(0..100_000_000),
        };
        self.now = self.now - Span::from_micros(micros);
    }

    /// One operation on one key; a few keys get most of them.
    pub(crate) fn ask(&mut self) -> Asked {
        let number = self.rng.usize(0..self.subjects.len());
        let subject = &self.subjects[number];
        let limit = subject.numbers[subject.current];
        let hot = (self.keys / 50).max(1);
        let key = match self.rng.u8(0..4) {
            0 => self.rng.u64(0..self.keys),
            _ => self.rng.u64(0..hot),
        };
        let op = self.op(&limit);
        Asked { id: (number, key), limit, op }
    }

    fn op(&mut self, limit: &Limit) -> Op {
        let in_flight = matches!(limit, Limit::InFlight(_));
        match self.rng.u8(0..100) {
            0..20 if in_flight => Op::Release(self.lease()),
            20..26 if in_flight => Op::Renew(self.lease()),
            0..60 => Op::Take(1),
            60..74 => Op::Take(self.cost(limit)),
            74..80 => Op::Read(self.cost(limit)),
            80..90 => Op::Return(self.cost(limit)),
            90..96 => Op::Force(self.cost(limit)),
            96..98 => Op::Reset,
            98 => Op::Release(self.lease()),
            _ => Op::Take((1 << 32) + self.rng.u64(0..3)),
        }
    }

    fn cost(&mut self, limit: &Limit) -> u64 {
        let capacity = capacity(limit);
        match self.rng.u8(0..4) {
            0 => self.rng.u64(0..=capacity + 2),
            1 => self.rng.u64(0..=(capacity / 4).max(2)),
            2 => capacity.saturating_sub(self.rng.u64(0..3)),
            _ => self.rng.u64(0..4),
        }
    }

    fn lease(&mut self) -> LeaseId {
        let newest = self.leases.len().saturating_sub(200);
        let lease = self.leases.get(self.rng.usize(newest..self.leases.len().max(newest + 1)));
        lease.copied().or(LeaseId::new(7)).expect("7 is not 0")
    }
}

fn capacity(limit: &Limit) -> u64 {
    use tidegate::{Algorithm, State};
    limit.decide(&mut State::default(), Timestamp::EPOCH, Op::Take(0)).limit
}
