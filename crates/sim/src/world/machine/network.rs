//! The network between nodes and store: messages, timers and the agenda of events.
//!
//! The store carries out a command at most once each time it is sent, as over TCP: duplicates are dropped on
//! arrival. The sender may never get an answer, and the command may be carried out long after its deadline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::{Context, Poll, Waker};

use tidegate::Scope;
use tidegate::store::{Charge, DeniedState, StoreError};
use tidegate_core::{Decision, Limit, Op, Timestamp};

use super::chance::Chance;
use crate::world::faults::{Fault, Incident};

/// How long a node waits for an answer, in microseconds.
pub(crate) const DEADLINE: u64 = 5_000;

/// An event. The order of the variants does not matter: no two events have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A request arrives at a node. `life` counts the node's starts.
    Ask { node: usize, life: u32 },
    /// A command arrives at the store.
    AtStore(usize),
    /// An answer arrives at its node.
    AtNode(usize),
    /// The deadline of a command passes.
    Deadline(usize),
    /// A fault begins, by its index in the plan.
    Begin(usize),
    /// A fault ends.
    End(usize),
    /// A timer ends.
    Wake(usize),
    /// A node gets a new policy.
    Learn { node: usize, revision: usize },
    /// A request has been served, and releases its place.
    Release(usize),
    /// The caller of a request gives up.
    GiveUp(usize),
    /// A node that shuts down has answered its open requests.
    Close { node: usize, life: u32 },
}

/// A charge of a command.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) scope: Scope,
    pub(crate) text: Box<[u8]>,
    pub(crate) limit: Limit,
    pub(crate) op: Op,
    /// Whether the store repairs a state that is impossible under this limit.
    pub(crate) repairs: bool,
    /// Whether the node wants the state that a denial was decided on.
    pub(crate) is_watched: bool,
}

impl Sent {
    /// The number of the key.
    pub(crate) fn number(&self) -> Option<usize> {
        std::str::from_utf8(&self.text).ok()?.parse().ok()
    }
}

/// The store's answer, or why there is none.
pub(crate) type Reply = Result<Answer, StoreError>;

/// The store's answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The time by the store's clock.
    pub(crate) at: Timestamp,
    pub(crate) decisions: Vec<Decision>,
    /// The state that each denial was decided on, where the node wants it.
    pub(crate) denied_states: Vec<Option<DeniedState>>,
}

/// A command that a node sent.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) node: usize,
    pub(crate) life: u32,
    /// The request that it was sent for; `None` for background work.
    pub(crate) request: Option<usize>,
    pub(crate) charges: Vec<Sent>,
    /// Whether its charges are decided separately instead of all or nothing.
    pub(crate) is_each: bool,
    pub(crate) is_carried_out: bool,
    /// When it was sent.
    pub(crate) sent: u64,
    /// The answer, once the store has sent it.
    pub(crate) reply: Option<Reply>,
    heard: Heard,
}

/// The state of the answer at the node.
#[derive(Debug, Default)]
enum Heard {
    #[default]
    Nothing,
    Waiting(Waker),
    Said(Reply),
    Over,
}

impl Call {
    /// Whether the units of its admitted charges were taken: not if the command is all or nothing
    /// and one charge was denied.
    pub(crate) fn goes_through(&self, answer: &Answer) -> bool {
        self.is_each || answer.decisions.iter().all(Decision::is_allowed)
    }

    /// Units of a key that the command took for a request.
    pub(crate) fn granted(&self, answer: &Answer, key: usize) -> u64 {
        let is_taken = self.request.is_some() && self.goes_through(answer);
        let units = |(charge, decision): (&Sent, &Decision)| match charge.op {
            Op::Take(units) if decision.is_allowed() && charge.number() == Some(key) => units,
            _ => 0,
        };
        let each = self.charges.iter().zip(&answer.decisions).filter(|_| is_taken);
        each.map(units).sum()
    }
}

/// A timer of a node.
#[derive(Debug)]
struct Timer {
    node: usize,
    life: u32,
    is_due: bool,
    waker: Option<Waker>,
}

/// The network, and the agenda of events.
#[derive(Debug)]
pub(crate) struct Network {
    /// Microseconds since the world began.
    pub(crate) now: u64,
    /// The request whose task is running.
    pub(crate) asking: Option<usize>,
    /// Faults that last for a while.
    pub(crate) incidents: Vec<Incident>,
    agenda: BinaryHeap<Reverse<(u64, u64, Event)>>,
    added: u64,
    calls: Vec<Call>,
    /// Commands that the judge has not seen yet.
    fresh: Vec<usize>,
    timers: Vec<Timer>,
    chance: Chance,
}

impl Network {
    pub(crate) const fn new(chance: Chance) -> Self {
        Self {
            now: 0,
            asking: None,
            incidents: Vec::new(),
            agenda: BinaryHeap::new(),
            added: 0,
            calls: Vec::new(),
            fresh: Vec::new(),
            timers: Vec::new(),
            chance,
        }
    }

    /// Adds an event. Events at the same instant happen in the order in which they were added.
    pub(crate) fn add(&mut self, at: u64, event: Event) {
        self.added += 1;
        self.agenda.push(Reverse((at.max(self.now), self.added, event)));
    }

    /// Advances time to the next event and returns it.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let Reverse((at, _, event)) = self.agenda.pop()?;
        self.now = at;
        Some(event)
    }

    pub(crate) fn call(&mut self, number: usize) -> Option<&mut Call> {
        self.calls.get_mut(number)
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Sends a command from a node, and starts its deadline.
    pub(crate) fn ask(
        &mut self,
        node: usize,
        life: u32,
        (charges, is_each): (&[Charge<'_>], bool),
        repairs: bool,
    ) -> usize {
        let sent = |charge: &Charge<'_>| Sent {
            scope: charge.key.scope,
            text: charge.key.text.into(),
            limit: *charge.limit,
            op: charge.op,
            repairs,
            is_watched: charge.denied_state.is_some(),
        };
        let number = self.calls.len();
        self.calls.push(Call {
            node,
            life,
            request: self.asking,
            charges: charges.iter().map(sent).collect(),
            is_each,
            is_carried_out: false,
            sent: self.now,
            reply: None,
            heard: Heard::Nothing,
        });
        self.fresh.push(number);
        self.send(Event::AtStore(number));
        self.add(self.now + DEADLINE, Event::Deadline(number));
        number
    }

    /// Takes the commands that were sent since the last call.
    pub(crate) fn fresh(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.fresh)
    }

    /// Sends a message: once, twice or not at all.
    pub(crate) fn send(&mut self, message: Event) {
        let copies = 1 + u8::from(self.strikes(Fault::Duplication));
        for _ in 0..copies {
            if !self.strikes(Fault::Loss) {
                let delay = self.delay();
                self.add(self.now + delay, message);
            }
        }
    }

    fn delay(&mut self) -> u64 {
        let usual = self.chance.between(50, 400);
        match self.strikes(Fault::Delay) {
            true => usual + self.chance.below(50_000),
            false => usual,
        }
    }

    fn strikes(&mut self, fault: Fault) -> bool {
        let share = self.incidents.iter().filter(|it| it.fault == fault).map(|it| it.size).max();
        share.is_some_and(|share| self.chance.permille(share))
    }

    /// Time that the caller of a request waits before it gives up, if it does.
    pub(crate) fn gives_up_after(&mut self) -> Option<u64> {
        self.strikes(Fault::GiveUp).then(|| self.chance.below(2 * DEADLINE))
    }

    /// The end of a current fault, at this node if one is given; `None` if there is no such fault.
    pub(crate) fn until(&self, fault: Fault, node: Option<usize>) -> Option<u64> {
        let strikes = |it: &&Incident| it.fault == fault && node.is_none_or(|node| it.node == node);
        self.incidents.iter().filter(strikes).map(|it| it.until).max()
    }

    /// Whether a partition lets a message through. If not, the message is lost or arrives later.
    pub(crate) fn gets_through(&mut self, node: usize, message: Event) -> bool {
        let Some(until) = self.until(Fault::Partition, Some(node)) else { return true };
        if self.chance.permille(500) {
            let delay = self.delay();
            self.add(until + delay, message);
        }
        false
    }

    /// Delivers the answer to a command; false if the node has one already.
    pub(crate) fn deliver(&mut self, number: usize, reply: Reply) -> bool {
        let Some(call) = self.calls.get_mut(number) else { return false };
        match std::mem::take(&mut call.heard) {
            Heard::Nothing => call.heard = Heard::Said(reply),
            Heard::Waiting(waker) => {
                call.heard = Heard::Said(reply);
                waker.wake();
            }
            known => {
                call.heard = known;
                return false;
            }
        }
        true
    }

    /// Sets a timer of a node; returns its number.
    pub(crate) fn set_timer(&mut self, node: usize, life: u32, after: u64) -> usize {
        let timer = self.timers.len();
        self.timers.push(Timer { node, life, is_due: false, waker: None });
        self.add(self.now + after, Event::Wake(timer));
        timer
    }

    /// The node and life that a timer belongs to.
    pub(crate) fn sleeper(&self, timer: usize) -> Option<(usize, u32)> {
        self.timers.get(timer).map(|it| (it.node, it.life))
    }

    /// A timer ends.
    pub(crate) fn wake(&mut self, timer: usize) {
        let Some(timer) = self.timers.get_mut(timer) else { return };
        timer.is_due = true;
        if let Some(waker) = timer.waker.take() {
            waker.wake();
        }
    }

    /// Polls a timer.
    pub(crate) fn slept(&mut self, timer: usize, context: &Context<'_>) -> Poll<()> {
        match self.timers.get_mut(timer) {
            Some(timer) if !timer.is_due => {
                timer.waker = Some(context.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Polls the answer to a command.
    pub(crate) fn poll_answer(&mut self, number: usize, context: &Context<'_>) -> Poll<Reply> {
        let Some(call) = self.calls.get_mut(number) else { return Poll::Pending };
        match std::mem::take(&mut call.heard) {
            Heard::Said(reply) => {
                call.heard = Heard::Over;
                Poll::Ready(reply)
            }
            _ => {
                call.heard = Heard::Waiting(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
