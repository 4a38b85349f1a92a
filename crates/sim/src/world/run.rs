//! The event loop: one thing happens after the other, and every promise is looked at each time.

mod requests;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};

use tidegate::Scope;
use tidegate::store::deny_cache::DRIFT_PPM;
use tidegate::store::lease::LeaseStats;
use tidegate::store::{DecisionSource, StoreError};
use tidegate_core::{LeaseId, Limit};

use super::chance::Chance;
use super::checker::Checker;
use super::evidence::{Question, Verdict, When};
use super::executor::{Executor, lock};
use super::fault::{Fault, Incident, plan};
use super::network::{Call, DEADLINE, Event, Network};
use super::node::{Ground, Node};
use super::numbers::{Revision, Tables};
use super::report::WorldReport;
use super::server::{DriftingClock, Server};
use super::setup::{InvalidWorld, Stack, WorldSetup, stream};
use super::stack::{NodeParts, NodeStack, guarded, leased};

/// Whoever has been asked has answered after so many microseconds.
const DRAINS: u64 = 8 * DEADLINE;
/// Clocks run this many parts of a million fast or slow, at most: no two differ by more than nodes reckon
/// with.
const MAX_DRIFT: u64 = DRIFT_PPM / 2;
/// All nodes learn of new numbers within so many microseconds.
const LEARNS_WITHIN: u64 = 500_000;
/// A place in flight is kept for at most so many microseconds, if all goes well.
const LONGEST_STAY: u64 = 200_000;
/// So many requests a node remembers that it may give back.
const MOST_SERVED: usize = 16;

/// Runs a world with the production layers that its setup names.
pub fn simulate_as_set_up(setup: &WorldSetup) -> Result<WorldReport, InvalidWorld> {
    match setup.stack {
        Stack::Bare => simulate(setup, |parts| Ok(parts.store)),
        Stack::Guarded => simulate(setup, |parts| guarded(setup, parts)),
        Stack::Leased => simulate(setup, |parts| leased(setup, parts)),
    }
}

/// Runs a world. `stack` makes what a node asks out of its parts, again after each crash.
pub fn simulate<S: NodeStack>(
    setup: &WorldSetup,
    stack: impl Fn(NodeParts) -> io::Result<S>,
) -> Result<WorldReport, InvalidWorld> {
    let mut world = World::new(setup, stack)?;
    while world.checker.broken().is_none() && world.step() {}
    match world.is_starved {
        true => Err(InvalidWorld::Memory),
        false => Ok(world.close()),
    }
}

/// What a task came to.
enum Done {
    Answered(Result<DecisionSource, StoreError>, Vec<bool>, Option<LeaseId>),
    /// A node has stopped in good order.
    Closed,
    /// Nobody waited for it.
    Worked,
}

/// Whose a task is.
#[derive(Clone, Copy, Debug)]
struct Owner {
    node: usize,
    /// The request that it is done for.
    request: Option<usize>,
}

/// A place in flight, and whose it is.
#[derive(Clone, Copy, Debug)]
struct Held {
    node: usize,
    life: u32,
    request: usize,
    key: usize,
    lease: LeaseId,
}

/// Which numbers these are.
fn revision(limits: &[Limit], limit: &Limit) -> Option<usize> {
    limits.iter().rposition(|it| it == limit)
}

/// By which numbers the charges of a command are decided; those that nobody has published are judged as if
/// they were those of the request.
fn revisions(limits: &[Limit], questions: &[Question], call: &Call) -> Vec<usize> {
    let own = call.request.and_then(|it| questions.get(it)).map_or(0, |it| it.revision);
    let known = |limit| revision(limits, limit).unwrap_or(own);
    call.charges.iter().map(|charge| known(&charge.limit)).collect()
}

struct World<'a, S, F> {
    setup: &'a WorldSetup,
    limits: Vec<Limit>,
    /// Which of them are such that units of theirs may be taken ahead.
    is_leased: Vec<bool>,
    /// The newest numbers that anybody knows.
    published: usize,
    scope: Scope,
    stack: F,
    ground: Ground,
    server: Server,
    nodes: Vec<Node<S>>,
    executor: Executor<Done>,
    owners: Vec<Owner>,
    questions: Vec<Question>,
    held: Vec<Held>,
    /// Tasks of requests whose callers will give up, and requests whose callers have.
    impatient: BTreeMap<usize, usize>,
    given_up: BTreeSet<usize>,
    plan: Vec<Incident>,
    traffic: Chance,
    checker: Checker,
    report: WorldReport,
    is_calm: bool,
    is_starved: bool,
}

impl<'a, S: NodeStack, F: Fn(NodeParts) -> io::Result<S>> World<'a, S, F> {
    fn new(setup: &'a WorldSetup, stack: F) -> Result<Self, InvalidWorld> {
        setup.limit()?;
        let plan = plan(setup, &mut Chance::new(setup.seed, stream::PLAN));
        let (limits, revisions): (Vec<Limit>, Vec<Revision>) =
            setup.limits(&plan)?.into_iter().unzip();
        let is_window = matches!(limits[0], Limit::FixedWindow(_) | Limit::SlidingWindow(_));
        let is_leased = revisions.iter().map(|it| is_window || setup.held_back(it) > 0).collect();
        let mut clocks = Chance::new(setup.seed, stream::CLOCKS);
        let mut clock = || {
            let drift = clocks.below(2 * MAX_DRIFT + 1).cast_signed() - MAX_DRIFT.cast_signed();
            DriftingClock::new(drift)
        };
        let server = Server::new(clock());
        let mut traffic = Chance::new(setup.seed, stream::TRAFFIC);
        let mut network = Network::new(Chance::new(setup.seed, stream::NETWORK));
        for (number, incident) in plan.iter().enumerate() {
            network.add(incident.from, Event::Begin(number));
        }
        for node in 0..setup.nodes {
            let first = traffic.below(2 * setup.gap());
            network.add(first, Event::Ask { node, life: 0 });
        }
        let ground = Ground {
            network: Arc::new(Mutex::new(network)),
            spawned: Arc::default(),
            chance: Arc::new(Mutex::new(Chance::new(setup.seed, stream::BACKGROUND))),
        };
        let mut world = Self {
            setup,
            published: 0,
            scope: Scope::new("simulated", &limits[0]),
            limits,
            is_leased,
            stack,
            ground,
            server,
            nodes: (0..setup.nodes).map(|_| Node::new(clock())).collect(),
            executor: Executor::default(),
            owners: Vec::new(),
            questions: Vec::new(),
            held: Vec::new(),
            impatient: BTreeMap::new(),
            given_up: BTreeSet::new(),
            plan,
            traffic,
            checker: Checker::new(setup, Tables::new(setup, &revisions)),
            report: WorldReport::default(),
            is_calm: false,
            is_starved: false,
        };
        (0..setup.nodes).for_each(|node| world.start(0, node));
        Ok(world)
    }

    fn start(&mut self, now: u64, number: usize) {
        let node = &mut self.nodes[number];
        node.revision = self.published;
        self.is_starved |= node.start((number, now), &self.ground, &self.stack).is_err();
    }

    /// The present, at a node whose clock is set to it.
    fn when(&self, now: u64, node: usize) -> When {
        self.nodes[node].when(now, self.server.clock.at(now))
    }

    /// Lets the next thing happen, and all that follows from it at once; false at the end.
    fn step(&mut self) -> bool {
        let (now, event) = {
            let mut network = lock(&self.ground.network);
            // Timers alone would go on for ever.
            let Some(event) = network.next().filter(|_| network.now <= self.setup.end() + DEADLINE)
            else {
                return false;
            };
            (network.now, event)
        };
        self.report.trace.note(now, event);
        match event {
            Event::Ask { node, life } => self.ask(now, node, life),
            Event::AtStore(call) => self.at_store(now, call),
            Event::AtNode(call) | Event::Deadline(call) => self.at_node(now, call, event),
            Event::Begin(number) => self.begin(now, number),
            Event::End(number) => self.end(now, number),
            Event::Wake(timer) => self.wake(now, timer),
            Event::Learn { node, revision } => self.learn(now, node, revision),
            Event::Release(place) => self.release(now, place),
            Event::Close { node, life } => self.close_node(now, node, life),
            Event::GiveUp(request) => self.give_up(now, request),
        }
        self.work(now);
        if !self.is_calm && now >= self.setup.calm_from() {
            self.is_calm = true;
            for node in 0..self.nodes.len() {
                let (when, revision) = (self.when(now, node), self.nodes[node].revision);
                self.checker.calm(when, node, revision);
            }
        }
        !self.is_starved
    }

    /// Lets everybody go on who has been woken.
    fn work(&mut self, now: u64) {
        loop {
            let spawned = lock(&self.ground.spawned).take();
            for (node, work) in spawned {
                let work = Box::pin(async move {
                    work.await;
                    Done::Worked
                });
                self.adopt(Owner { node, request: None }, work);
            }
            let Some(task) = self.executor.woken() else { return };
            let Some(Owner { node, request }) = self.owners.get(task).copied() else { continue };
            let when = self.when(now, node);
            lock(&self.ground.network).asking = request;
            let done = self.executor.poll(task);
            self.see_off(when, node);
            self.checker.polled(when, (node, request), &self.leases(node));
            if let Some(done) = done {
                self.nodes[node].tasks.remove(&task);
                match (done, request) {
                    (Done::Answered(decision_source, is_allowed, lease), Some(request)) => {
                        let leases = self.leases(node);
                        let verdict = Verdict { decision_source, is_allowed, leases };
                        self.answered(now, request, &verdict, lease);
                    }
                    (Done::Closed, _) => self.crash(now, node),
                    _ => {}
                }
            }
        }
    }

    fn adopt(
        &mut self,
        owner: Owner,
        work: std::pin::Pin<Box<dyn Future<Output = Done> + Send>>,
    ) -> usize {
        let task = self.executor.spawn(work);
        self.owners.push(owner);
        self.nodes[owner.node].tasks.insert(task);
        task
    }

    /// Shows the checker what was sent.
    fn see_off(&mut self, when: When, node: usize) {
        let mut network = lock(&self.ground.network);
        let fresh = network.fresh();
        if fresh.is_empty() {
            return;
        }
        let leases = self.leases(node);
        for number in fresh {
            if let Some(call) = network.call(number) {
                self.checker.sent(when, call, &leases);
            }
        }
    }

    /// What a node says of its leases.
    fn leases(&self, node: usize) -> LeaseStats {
        let body = self.nodes[node].body.as_ref().filter(|_| self.setup.stack == Stack::Leased);
        body.map_or_else(LeaseStats::default, |body| body.store.leases())
    }

    fn close(mut self) -> WorldReport {
        let network = lock(&self.ground.network);
        self.report.store_calls = network.calls() as u64;
        let now = network.now;
        drop(network);
        if self.checker.broken().is_none() {
            self.checker.end(now);
        }
        self.report.broken = self.checker.broken().cloned();
        self.report.envelope = super::report::envelope(self.setup);
        self.report
    }

    /// A timer runs off; on a node that stands still, later.
    fn wake(&mut self, now: u64, timer: usize) {
        let mut network = lock(&self.ground.network);
        let Some((node, life)) = network.sleeper(timer) else { return };
        let node = &self.nodes[node];
        if node.life != life || node.body.is_none() {
            return;
        }
        match node.still_until > now {
            true => network.add(node.still_until, Event::Wake(timer)),
            false => network.wake(timer),
        }
    }

    /// A node learns of new numbers.
    fn learn(&mut self, now: u64, number: usize, revision: usize) {
        let node = &mut self.nodes[number];
        let Some(body) = node.body.as_ref().filter(|_| node.revision < revision) else { return };
        if node.still_until > now {
            let event = Event::Learn { node: number, revision };
            return lock(&self.ground.network).add(node.still_until, event);
        }
        body.store.limits_changed();
        node.revision = revision;
        self.checker.learned(number, revision);
    }

    /// A command arrives at the store.
    fn at_store(&mut self, now: u64, number: usize) {
        let mut network = lock(&self.ground.network);
        let Some(node) = network.call(number).map(|call| call.node) else { return };
        if !network.gets_through(node, Event::AtStore(number)) {
            return;
        }
        if let Some(until) = network.until(Fault::StoreHang, None) {
            return network.add(until, Event::AtStore(number));
        }
        let is_down = network.until(Fault::StoreDown, None).is_some();
        let Some(call) = network.call(number) else { return };
        if std::mem::replace(&mut call.is_carried_out, true) {
            return;
        }
        if is_down {
            call.reply = Some(Err(StoreError::Unavailable("connection refused".into())));
            return network.send(Event::AtNode(number));
        }
        let answer = self.server.carry_out(now, &call.charges, call.is_each);
        let at_store = answer.at;
        let when = When { now, at_store, at_node: at_store, supposed: at_store };
        let by = revisions(&self.limits, &self.questions, call);
        self.checker.carried_out(when, call, &answer, &by);
        call.reply = Some(Ok(answer));
        network.send(Event::AtNode(number));
    }

    /// An answer arrives at a node, or the node's patience ends.
    fn at_node(&mut self, now: u64, number: usize, event: Event) {
        let mut network = lock(&self.ground.network);
        let Some(call) = network.call(number) else { return };
        if call.request.is_some_and(|request| self.given_up.contains(&request)) {
            return;
        }
        let (number_of_node, life) = (call.node, call.life);
        let node = &self.nodes[number_of_node];
        if node.life != life || node.body.is_none() {
            return;
        }
        if node.still_until > now {
            return network.add(node.still_until, event);
        }
        let reply = match event {
            Event::AtNode(_) => call.reply.clone(),
            _ => None,
        };
        if reply.is_some() && !network.gets_through(number_of_node, event) {
            return;
        }
        let reply = reply.unwrap_or(Err(StoreError::Timeout));
        let is_silent = reply.is_err();
        let (true, Some(call)) = (network.tell(number, reply), network.call(number)) else {
            return;
        };
        let when = node.when(now, self.server.clock.at(now));
        let by = revisions(&self.limits, &self.questions, call);
        self.checker.heard(when, call, is_silent, &by);
    }
}
