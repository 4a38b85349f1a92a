//! What lies between nodes and store: messages on their way, and who waits for them.
//!
//! A command is carried out at most once for each time that it was sent, as over TCP: copies are
//! dropped where they arrive. Whoever sent it may never learn what became of it, and it may be carried
//! out long after nobody waits for it any more.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::{Context, Poll, Waker};

use tidegate::Scope;
use tidegate::store::{Charge, Sight, StoreError};
use tidegate_core::{Decision, Limit, Op, Timestamp};

use super::chance::Chance;
use crate::world::faults::{Fault, Incident};

/// How long a node waits for an answer, in microseconds.
pub(crate) const DEADLINE: u64 = 5_000;

/// What happens next. The order of the variants decides nothing: no two have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A request comes in at a node, in one of its lives.
    Ask { node: usize, life: u32 },
    /// A command arrives at the store.
    AtStore(usize),
    /// An answer arrives at its node.
    AtNode(usize),
    /// A node has waited long enough.
    Deadline(usize),
    /// Trouble begins, by its place in the plan.
    Begin(usize),
    /// It ends.
    End(usize),
    /// A timer has run off.
    Wake(usize),
    /// A node learns of new numbers.
    Learn { node: usize, revision: usize },
    /// A request has been served, and gives its place back.
    Release(usize),
    /// Who sent a request does not wait for it any longer.
    GiveUp(usize),
    /// A node that stops has answered everybody.
    Close { node: usize, life: u32 },
}

/// A charge on its way.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) scope: Scope,
    pub(crate) text: Box<[u8]>,
    pub(crate) limit: Limit,
    pub(crate) op: Op,
    /// Whether a state that these numbers cannot have left is repaired.
    pub(crate) repairs: bool,
    /// Whether somebody wants to know what a denial was decided on.
    pub(crate) is_watched: bool,
}

impl Sent {
    /// Which of a world's keys it is about.
    pub(crate) fn number(&self) -> Option<usize> {
        std::str::from_utf8(&self.text).ok()?.parse().ok()
    }
}

/// What the store said, or why it said nothing.
pub(crate) type Reply = Result<Answer, StoreError>;

/// What the store said.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// By its own clock.
    pub(crate) at: Timestamp,
    pub(crate) decisions: Vec<Decision>,
    /// What it denied on, where somebody wants to know.
    pub(crate) sights: Vec<Option<Sight>>,
}

/// A command, from when it is sent to the end of the world.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) node: usize,
    pub(crate) life: u32,
    /// The request that it was sent for; none if nobody waits for it but the node itself.
    pub(crate) request: Option<usize>,
    pub(crate) charges: Vec<Sent>,
    /// Decided each alone, or all or nothing.
    pub(crate) is_each: bool,
    pub(crate) is_carried_out: bool,
    /// When it was sent.
    pub(crate) sent: u64,
    /// On its way back.
    pub(crate) reply: Option<Reply>,
    heard: Heard,
}

/// What the node knows of a call.
#[derive(Debug, Default)]
enum Heard {
    #[default]
    Nothing,
    Waiting(Waker),
    Said(Reply),
    Over,
}

impl Call {
    /// Whether what it was told was allowed has been taken, too: not if it is all or nothing, and something
    /// was denied.
    pub(crate) fn goes_through(&self, answer: &Answer) -> bool {
        self.is_each || answer.decisions.iter().all(Decision::is_allowed)
    }

    /// Units of a key that it has taken, for a request.
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

/// Somebody sleeps.
#[derive(Debug)]
struct Timer {
    node: usize,
    life: u32,
    is_due: bool,
    waker: Option<Waker>,
}

/// Messages, in order of arrival.
#[derive(Debug)]
pub(crate) struct Network {
    /// Microseconds since the world began.
    pub(crate) now: u64,
    /// The request whose task runs.
    pub(crate) asking: Option<usize>,
    /// Trouble that is under way.
    pub(crate) incidents: Vec<Incident>,
    agenda: BinaryHeap<Reverse<(u64, u64, Event)>>,
    added: u64,
    calls: Vec<Call>,
    /// Calls that were sent since somebody looked.
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

    /// Puts an event on the agenda. Of two at the same instant the one that was added first comes first.
    pub(crate) fn add(&mut self, at: u64, event: Event) {
        self.added += 1;
        self.agenda.push(Reverse((at.max(self.now), self.added, event)));
    }

    /// What happens next, at a time that is the present from then on.
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

    /// Sends a command from a node, which waits for an answer.
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
            is_watched: charge.sight.is_some(),
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

    /// Calls that were sent since this was asked last.
    pub(crate) fn fresh(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.fresh)
    }

    /// Sends a message on its way: once, twice or not at all.
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

    /// How long a caller waits that gives up.
    pub(crate) fn patience(&mut self) -> Option<u64> {
        self.strikes(Fault::GiveUp).then(|| self.chance.below(2 * DEADLINE))
    }

    /// Until when some fault lasts, if it strikes now: this node, if one is given.
    pub(crate) fn until(&self, fault: Fault, node: Option<usize>) -> Option<u64> {
        let strikes = |it: &&Incident| it.fault == fault && node.is_none_or(|node| it.node == node);
        self.incidents.iter().filter(strikes).map(|it| it.until).max()
    }

    /// Whether a message gets through to where it is. If not, it is lost or arrives later.
    pub(crate) fn gets_through(&mut self, node: usize, message: Event) -> bool {
        let Some(until) = self.until(Fault::Partition, Some(node)) else { return true };
        if self.chance.permille(500) {
            let delay = self.delay();
            self.add(until + delay, message);
        }
        false
    }

    /// Tells a node what came of its call; false if it knows already.
    pub(crate) fn tell(&mut self, number: usize, reply: Reply) -> bool {
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

    /// Sets a timer for somebody at a node; its number.
    pub(crate) fn set_timer(&mut self, node: usize, life: u32, after: u64) -> usize {
        let timer = self.timers.len();
        self.timers.push(Timer { node, life, is_due: false, waker: None });
        self.add(self.now + after, Event::Wake(timer));
        timer
    }

    /// Whose timer it is, in which life.
    pub(crate) fn sleeper(&self, timer: usize) -> Option<(usize, u32)> {
        self.timers.get(timer).map(|it| (it.node, it.life))
    }

    /// A timer has run off.
    pub(crate) fn wake(&mut self, timer: usize) {
        let Some(timer) = self.timers.get_mut(timer) else { return };
        timer.is_due = true;
        if let Some(waker) = timer.waker.take() {
            waker.wake();
        }
    }

    /// Whether a timer has run off.
    pub(crate) fn slept(&mut self, timer: usize, context: &Context<'_>) -> Poll<()> {
        match self.timers.get_mut(timer) {
            Some(timer) if !timer.is_due => {
                timer.waker = Some(context.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// What a node has heard.
    pub(crate) fn hear(&mut self, number: usize, context: &Context<'_>) -> Poll<Reply> {
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
