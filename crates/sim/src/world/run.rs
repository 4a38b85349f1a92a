//! The event loop: events happen one after the other, and the judge sees each of them.

mod incidents;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};

use tidegate::Scope;
use tidegate::store::StoreError;
use tidegate::store::deny_cache::DRIFT_PPM;
use tidegate_core::{LeaseId, Limit};

use super::faults::{Fault, Incident, plan};
use super::judge::Judge;
use super::machine::chance::Chance;
use super::machine::clock::DriftingClock;
use super::machine::executor::{Executor, lock};
use super::machine::network::{DEADLINE, Event, Network};
use super::machine::node::{Ground, Node};
use super::machine::server::Server;
use super::machine::stack::{NodeParts, NodeStack, production};
use super::report::WorldReport;
use super::request::{Outcome, Request};
use super::setup::{InvalidWorld, Revision, Stack, WorldSetup, stream};

/// How long a node that shuts down waits for its open requests, in microseconds.
const DRAINS: u64 = 8 * DEADLINE;
/// Maximum drift of a clock in parts per million. No two clocks differ by more than nodes allow
/// for.
const MAX_DRIFT: u64 = DRIFT_PPM / 2;
/// Time until all nodes have a new policy, in microseconds.
const LEARNS_WITHIN: u64 = 500_000;
/// The longest time for which a place is held, in microseconds.
const LONGEST_STAY: u64 = 200_000;
/// Maximum number of admitted requests of a node that may be refunded later.
const MOST_SERVED: usize = 16;

/// Runs a world with the stack of its setup.
pub fn simulate_as_set_up(setup: &WorldSetup) -> Result<WorldReport, InvalidWorld> {
    match setup.stack {
        Stack::Bare => simulate(setup, |parts| Ok(parts.store)),
        Stack::Exact | Stack::Leased => simulate(setup, |parts| production(setup, parts)),
    }
}

/// Runs a world. `stack` builds the store of a node, again after each crash.
pub fn simulate<S: NodeStack>(
    setup: &WorldSetup,
    stack: impl Fn(NodeParts) -> io::Result<S>,
) -> Result<WorldReport, InvalidWorld> {
    let mut world = World::new(setup, stack)?;
    while world.judge.broken().is_none() && world.step() {}
    match world.is_out_of_memory {
        true => Err(InvalidWorld::Memory),
        false => Ok(world.close()),
    }
}

/// The result of a task.
enum Done {
    Answered(Outcome, Option<LeaseId>),
    /// A node has shut down.
    Closed,
    /// Background work has ended.
    Worked,
}

/// The owner of a task.
#[derive(Clone, Copy, Debug)]
struct Owner {
    node: usize,
    /// The request that the task is for, if any.
    request: Option<usize>,
}

/// A place in flight, and its holder.
#[derive(Clone, Copy, Debug)]
struct Held {
    node: usize,
    life: u32,
    request: usize,
    key: usize,
    lease: LeaseId,
}

struct World<'a, S, F> {
    setup: &'a WorldSetup,
    limits: Vec<Limit>,
    /// Whether the limit of each revision can be leased.
    is_leased: Vec<bool>,
    /// The newest revision of the policy.
    published: usize,
    scope: Scope,
    pre_limit: Option<(Scope, Limit)>,
    stack: F,
    ground: Ground,
    server: Server,
    nodes: Vec<Node<S>>,
    executor: Executor<Done>,
    owners: Vec<Owner>,
    requests: Vec<Request>,
    held: Vec<Held>,
    /// Tasks of requests whose callers will give up, and requests whose callers have given up.
    impatient: BTreeMap<usize, usize>,
    given_up: BTreeSet<usize>,
    plan: Vec<Incident>,
    traffic: Chance,
    judge: Judge,
    report: WorldReport,
    is_out_of_memory: bool,
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
        let judge = Judge::new(setup, limits[0], &revisions);
        let mut world = Self {
            setup,
            published: 0,
            scope: Scope::new("simulated", &limits[0]),
            pre_limit: setup.pre_limit.and_then(requests::pre_limit),
            limits,
            is_leased,
            stack,
            ground,
            server,
            nodes: (0..setup.nodes).map(|_| Node::new(clock())).collect(),
            executor: Executor::default(),
            owners: Vec::new(),
            requests: Vec::new(),
            held: Vec::new(),
            impatient: BTreeMap::new(),
            given_up: BTreeSet::new(),
            plan,
            traffic,
            judge,
            report: WorldReport::default(),
            is_out_of_memory: false,
        };
        (0..setup.nodes).for_each(|node| world.start(0, node));
        Ok(world)
    }

    fn start(&mut self, now: u64, number: usize) {
        let node = &mut self.nodes[number];
        node.revision = self.published;
        self.is_out_of_memory |= node.start((number, now), &self.ground, &self.stack).is_err();
    }

    /// Handles the next event and its immediate effects; false at the end.
    fn step(&mut self) -> bool {
        let (now, event) = {
            let mut network = lock(&self.ground.network);
            // Timers alone would continue forever.
            let Some(event) = network.next().filter(|_| network.now <= self.setup.end() + DEADLINE)
            else {
                return false;
            };
            (network.now, event)
        };
        self.report.trace.note(now, event);
        self.judge.tick(now, self.server.clock.at(now));
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
        !self.is_out_of_memory
    }

    /// Polls every task that has been woken.
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
            self.nodes[node].tick(now);
            lock(&self.ground.network).asking = request;
            let done = self.executor.poll(task);
            self.note_sent();
            if let Some(done) = done {
                self.nodes[node].tasks.remove(&task);
                match (done, request) {
                    (Done::Answered(outcome, lease), Some(request)) => {
                        self.answered(now, request, &outcome, lease);
                    }
                    (Done::Closed, _) => self.crash(node),
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

    /// Shows the judge the commands that were sent.
    fn note_sent(&mut self) {
        let mut network = lock(&self.ground.network);
        for number in network.fresh() {
            if let Some(call) = network.call(number) {
                self.judge.sent(call);
            }
        }
    }

    fn close(mut self) -> WorldReport {
        self.report.store_calls = lock(&self.ground.network).calls() as u64;
        if self.judge.broken().is_none() {
            self.judge.end();
        }
        self.report.broken = self.judge.broken().cloned();
        self.report.envelope = super::report::envelope(self.setup);
        self.report
    }

    /// A timer ends; on a paused node, when the pause ends.
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

    /// A node gets a new policy.
    fn learn(&mut self, now: u64, number: usize, revision: usize) {
        let node = &mut self.nodes[number];
        if node.body.is_none() || node.revision >= revision {
            return;
        }
        if node.still_until > now {
            let event = Event::Learn { node: number, revision };
            return lock(&self.ground.network).add(node.still_until, event);
        }
        node.revision = revision;
        if revision == self.published {
            self.judge.learned(number);
        }
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
        self.judge.carried_out(call, &answer);
        call.reply = Some(Ok(answer));
        network.send(Event::AtNode(number));
    }

    /// An answer arrives at a node, or its deadline passes.
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
        let answer = reply.as_ref().ok().cloned();
        if let (true, Some(answer)) = (network.deliver(number, reply), answer)
            && let Some(call) = network.call(number)
        {
            self.judge.heard(call, &answer);
        }
    }
}
