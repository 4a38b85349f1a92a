//! The event loop: one thing happens after the other, and every promise is looked at each time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tidegate::store::{Charge, Store, StoreError};
use tidegate::{Key, Scope};
use tidegate_core::{Limit, Op};

use super::chance::Chance;
use super::checker::{Checker, Verdict};
use super::executor::{Executor, lock};
use super::fault::{Fault, Incident, plan};
use super::network::{DEADLINE, Event, Network, Reply};
use super::report::WorldReport;
use super::server::{DriftingClock, Server};
use super::setup::{InvalidWorld, WorldSetup, stream};
use super::sim_store::SimStore;

/// Clocks run this many parts of a million fast or slow, at most.
const MAX_DRIFT: u64 = 200;

/// Runs a world. `stack` makes what a node asks out of its end of the wire, again after each crash.
pub fn simulate<S: Store + 'static>(
    setup: &WorldSetup,
    stack: impl Fn(SimStore) -> S,
) -> Result<WorldReport, InvalidWorld> {
    let limit = setup.limit()?;
    let mut world = World::new(setup, limit, stack);
    while world.checker.broken().is_none() && world.step() {}
    Ok(world.close())
}

/// A node, in one of its lives.
struct Node<S> {
    /// None while it is down.
    store: Option<Arc<S>>,
    life: u32,
    clock: DriftingClock,
    /// When it last stood still, until then.
    still_until: u64,
    /// Its requests that are not answered yet.
    open: BTreeSet<usize>,
}

struct World<'a, S, F> {
    setup: &'a WorldSetup,
    limit: Limit,
    scope: Scope,
    stack: F,
    network: Arc<Mutex<Network>>,
    server: Server,
    nodes: Vec<Node<S>>,
    executor: Executor<Verdict>,
    /// Which node each task belongs to.
    owners: Vec<usize>,
    plan: Vec<Incident>,
    traffic: Chance,
    checker: Checker,
    report: WorldReport,
}

impl<'a, S: Store + 'static, F: Fn(SimStore) -> S> World<'a, S, F> {
    fn new(setup: &'a WorldSetup, limit: Limit, stack: F) -> Self {
        let mut clocks = Chance::new(setup.seed, stream::CLOCKS);
        let mut clock = || {
            let drift = clocks.below(2 * MAX_DRIFT + 1).cast_signed() - MAX_DRIFT.cast_signed();
            DriftingClock::new(drift)
        };
        let server = Server::new(clock());
        let network = Network::new(Chance::new(setup.seed, stream::NETWORK));
        let network = Arc::new(Mutex::new(network));
        let node = |number| Node {
            store: Some(Arc::new(stack(SimStore::new(Arc::clone(&network), number, 0)))),
            life: 0,
            clock: clock(),
            still_until: 0,
            open: BTreeSet::new(),
        };
        let nodes: Vec<Node<S>> = (0..setup.nodes).map(node).collect();
        let plan = plan(setup, &mut Chance::new(setup.seed, stream::PLAN));
        let mut traffic = Chance::new(setup.seed, stream::TRAFFIC);
        {
            let mut network = lock(&network);
            for (number, incident) in plan.iter().enumerate() {
                network.add(incident.from, Event::Begin(number));
            }
            for node in 0..setup.nodes {
                let first = traffic.below(2 * setup.gap());
                network.add(first, Event::Ask { node, life: 0 });
            }
        }
        Self {
            setup,
            limit,
            scope: Scope::new("simulated", &limit),
            stack,
            network,
            server,
            nodes,
            executor: Executor::default(),
            owners: Vec::new(),
            plan,
            traffic,
            checker: Checker::new(setup),
            report: WorldReport::default(),
        }
    }

    /// Lets the next thing happen, and all that follows from it at once; false at the end.
    fn step(&mut self) -> bool {
        let (now, event) = {
            let mut network = lock(&self.network);
            let Some(event) = network.next() else { return false };
            (network.now, event)
        };
        self.report.trace.note(now, event);
        match event {
            Event::Ask { node, life } => self.ask(now, node, life),
            Event::AtStore(call) => self.at_store(now, call),
            Event::AtNode(call) => self.at_node(now, call, event),
            Event::Deadline(call) => self.at_node(now, call, event),
            Event::Begin(number) => self.begin(now, number),
            Event::End(number) => self.end(now, number),
        }
        while let Some(task) = self.executor.woken() {
            lock(&self.network).asking = Some(task);
            if let Some(verdict) = self.executor.poll(task) {
                self.answered(now, task, &verdict);
            }
        }
        true
    }

    fn close(mut self) -> WorldReport {
        let network = lock(&self.network);
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

    /// A request comes in.
    fn ask(&mut self, now: u64, number: usize, life: u32) {
        let node = &mut self.nodes[number];
        let Some(store) = node.store.as_ref().filter(|_| node.life == life) else { return };
        let mut network = lock(&self.network);
        if node.still_until > now {
            return network.add(node.still_until, Event::Ask { node: number, life });
        }
        let gap = 1 + self.traffic.below(2 * self.setup.gap());
        if now + gap < self.setup.end() {
            network.add(now + gap, Event::Ask { node: number, life });
        }
        drop(network);
        let key = self.traffic.index(self.setup.keys);
        let cost = if self.traffic.permille(100) { self.traffic.between(2, 4) } else { 1 };
        let (store, limit, scope) = (Arc::clone(store), self.limit, self.scope);
        let local = node.clock.at(now);
        let task = self.executor.spawn(Box::pin(async move {
            let text = key.to_string();
            let charge = Charge::new(Key::new(scope, text.as_bytes()), &limit, Op::Take(cost));
            let mut decisions = Vec::with_capacity(1);
            let basis = store.decide(local, &[charge], &mut decisions).await;
            let is_allowed = basis.is_ok() && decisions.iter().all(|it| it.is_allowed());
            Verdict { basis, is_allowed }
        }));
        node.open.insert(task);
        self.owners.push(number);
        self.checker.asked(now, key, cost);
        self.report.asked(cost);
    }

    fn answered(&mut self, now: u64, task: usize, verdict: &Verdict) {
        let Some(node) = self.owners.get(task).and_then(|node| self.nodes.get_mut(*node)) else {
            return;
        };
        node.open.remove(&task);
        let may_be_late = now <= node.still_until + DEADLINE;
        self.checker.answered(now, task, verdict, may_be_late);
        self.report.answered(task, verdict);
    }

    /// A command arrives at the store.
    fn at_store(&mut self, now: u64, number: usize) {
        let mut network = lock(&self.network);
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
        let decisions = self.server.carry_out(now, &call.charges, call.is_each);
        let at = self.server.clock.at(now);
        for (charge, decision) in call.charges.iter().zip(&decisions) {
            if let (Some(request), Op::Take(_)) = (call.request, charge.op) {
                self.checker.decided(now, at, request, decision.is_allowed());
            }
        }
        call.reply = Some(Ok(decisions));
        network.send(Event::AtNode(number));
    }

    /// An answer arrives at a node, or the node's patience ends.
    fn at_node(&mut self, now: u64, number: usize, event: Event) {
        let mut network = lock(&self.network);
        let Some(call) = network.call(number) else { return };
        let (number_of_node, life) = (call.node, call.life);
        let reply: Option<Reply> = call.reply.clone();
        let node = &self.nodes[number_of_node];
        if node.life != life || node.store.is_none() {
            return;
        }
        if node.still_until > now {
            return network.add(node.still_until, event);
        }
        match (event, reply) {
            (Event::AtNode(_), Some(reply)) => {
                if network.gets_through(number_of_node, event) {
                    network.tell(number, reply);
                }
            }
            _ => network.tell(number, Err(StoreError::Timeout)),
        }
    }

    /// Something goes wrong.
    fn begin(&mut self, now: u64, number: usize) {
        let incident = self.plan[number];
        self.report.struck(incident.fault);
        match incident.fault {
            Fault::NodeClock => {
                self.nodes[incident.node].clock.step(incident.size, incident.is_back);
            }
            Fault::StoreClock => {
                let before = self.server.clock.at(now);
                self.server.clock.step(incident.size, incident.is_back);
                self.checker.clock_set(now, before, self.server.clock.at(now));
            }
            Fault::Failover => {
                let since = now.saturating_sub(incident.size);
                let key = |text: &[u8]| String::from_utf8_lossy(text).parse().ok();
                let lost = self.server.fail_over(since).into_iter();
                let lost: Vec<(usize, u64)> =
                    lost.filter_map(|(text, units)| Some((key(&text)?, units))).collect();
                self.checker.failed_over(now, &lost);
            }
            Fault::Pause => {
                let node = &mut self.nodes[incident.node];
                node.still_until = node.still_until.max(incident.until);
            }
            Fault::Crash => self.crash(now, incident.node),
            _ => {}
        }
        let mut network = lock(&self.network);
        if incident.until > now {
            network.incidents.push(incident);
            network.add(incident.until, Event::End(number));
        }
    }

    fn crash(&mut self, now: u64, number: usize) {
        let node = &mut self.nodes[number];
        node.store = None;
        node.life += 1;
        for request in std::mem::take(&mut node.open) {
            self.executor.drop_task(request);
            self.checker.dropped(now, request);
            self.report.dropped += 1;
        }
    }

    /// It is over.
    fn end(&mut self, now: u64, number: usize) {
        let incident = self.plan[number];
        let mut network = lock(&self.network);
        network.incidents.retain(|it| *it != incident);
        let is_down = network.until(Fault::Crash, Some(incident.node)).is_some();
        if incident.fault != Fault::Crash || is_down {
            return;
        }
        let node = &mut self.nodes[incident.node];
        let life = node.life;
        network.add(now, Event::Ask { node: incident.node, life });
        drop(network);
        let wire = SimStore::new(Arc::clone(&self.network), incident.node, life);
        node.store = Some(Arc::new((self.stack)(wire)));
    }
}
