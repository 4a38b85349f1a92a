//! The request queue of one server: batches requests into commands and distributes the replies.
//!
//! A request is sent at once while few commands are in flight; requests that arrive meanwhile share
//! the next command. An idle server therefore answers without delay, and a busy one gets few
//! commands. The number of commands in flight follows the round trip: a distant server gets more.
//!
//! This task times requests out, and not their callers, because only the task that reads the
//! connection can tell a silent server from a process that did not run.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use redis::Value;
use tidegate_core::{Op, Timestamp};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{self, JoinSet, yield_now};
use tokio::time::sleep;

use crate::store::StoreError;
use crate::store::redis::config::RedisConfig;
use crate::store::redis::failure::Failure;
use crate::store::redis::routing::cluster::Cluster;
use crate::store::redis::wire::call::{Answered, Call, How, Item, Text};
use crate::store::redis::wire::connection::{Connected, Connection, Late, Target, Until};
use crate::store::redis::wire::deadline::QueueTime;
use crate::store::redis::wire::request::{Request, Waiting};
use crate::store::redis::wire::script::{Scripts, TimeSource};
use crate::store::redis::wire::script_args::{ScriptArgs, Work};

/// Delay before the single retry on a slot that is being moved.
const TRY_AGAIN: Duration = Duration::from_millis(2);
/// The most messages read from the queue at once.
const MOST_AT_ONCE: usize = 1_024;
/// How long a request may wait in the queue. After that it is refused: the server answers, but more
/// slowly than requests arrive.
const LONGEST_QUEUED: Duration = Duration::from_secs(1);
/// The most redirections of one request.
const MOST_HOPS: u8 = 4;

/// The request queue of one server.
#[derive(Debug)]
pub(in crate::store::redis) struct ServerQueue {
    /// Bounded by `room` and `spare`: a request takes a permit before it is queued.
    queue: mpsc::UnboundedSender<Vec<Request>>,
    room: Arc<Semaphore>,
    /// The same capacity again for requests that return units, so that an overload does not keep
    /// units from being freed.
    spare: Arc<Semaphore>,
    pub(in crate::store::redis) connection: Arc<Connection>,
    /// Number within its cluster.
    pub(in crate::store::redis) number: usize,
}

/// Sends the commands of a [`ServerQueue`].
#[derive(Debug)]
struct Sender {
    connection: Arc<Connection>,
    scripts: &'static Scripts,
    settled: Arc<AtomicBool>,
    cluster: Weak<Cluster>,
}

/// A call and the server's reply.
struct Sent {
    reply: Result<Value, Failure>,
    call: Box<Call>,
    requests: Vec<Request>,
    to: Connected,
}

impl ServerQueue {
    pub(in crate::store::redis) fn start(
        config: &RedisConfig,
        target: Target,
        settled: Arc<AtomicBool>,
        (cluster, number): (Weak<Cluster>, usize),
    ) -> Self {
        let connection = Connection::new(target, config);
        let scripts = Scripts::by(config.time);
        let sender =
            Arc::new(Sender { connection: Arc::clone(&connection), scripts, settled, cluster });
        let (queue, requests) = mpsc::unbounded_channel();
        let room = || Arc::new(Semaphore::new(config.max_in_flight));
        let (room, spare) = (room(), room());
        let limits = (config.max_batch, config.pipeline);
        let mut maintained = JoinSet::new();
        maintained.spawn(Arc::clone(&connection).maintain());
        tokio::spawn(async move {
            dispatch(requests, sender, limits).await;
            // The connection ends after the last request.
            drop(maintained);
        });
        Self { queue, room, spare, connection, number }
    }

    pub(in crate::store::redis) fn submit(&self, request: Request) {
        self.submit_all(vec![request]);
    }

    /// Queues requests that are sent together; they fail as overloaded if there is no room.
    pub(in crate::store::redis) fn submit_all(&self, mut requests: Vec<Request>) {
        let wanted = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        let share = |room: &Arc<Semaphore>| Arc::clone(room).try_acquire_many_owned(wanted).ok();
        let spare = || requests.iter().all(Request::gives_back).then(|| share(&self.spare));
        let Some(mut permits) = share(&self.room).or_else(|| spare().flatten()) else {
            return requests.into_iter().for_each(|request| request.fail(StoreError::Overloaded));
        };
        for request in &mut requests {
            request.permit = permits.split(1);
        }
        if let Err(mpsc::error::SendError(requests)) = self.queue.send(requests) {
            let error = StoreError::unavailable("shutting down");
            requests.into_iter().for_each(|request| request.fail(error.clone()));
        }
    }
}

/// Sends requests slot by slot, until the queue is closed and all requests are answered.
async fn dispatch(
    mut queue: mpsc::UnboundedReceiver<Vec<Request>>,
    sender: Arc<Sender>,
    (max_batch, pipeline): (usize, usize),
) {
    let mut slots: HashMap<u16, Waiting, RandomState> = HashMap::default();
    let mut in_flight: JoinSet<Option<StoreError>> = JoinSet::new();
    let mut slot_of: HashMap<task::Id, u16, RandomState> = HashMap::default();
    let (mut arrived, mut touched, mut is_open) = (Vec::new(), Vec::new(), true);
    let mut time = QueueTime::start();
    let bounds = Bounds { max_batch, one_time: sender.scripts.time == TimeSource::Caller };
    loop {
        tokio::select! {
            Some(done) = in_flight.join_next_with_id(), if !in_flight.is_empty() => {
                // A command whose task panicked is no longer in flight.
                let (task, unavailable) = match done {
                    Ok(ended) => ended,
                    Err(panicked) => (panicked.id(), None),
                };
                if let Some(error) = unavailable {
                    // Requests queued behind it would time out as well.
                    for waiting in slots.values_mut() {
                        waiting.requests.iter_mut().for_each(|it| it.expire(error.clone()));
                        waiting.requests.retain(|request| !request.is_pointless());
                    }
                }
                let Some(slot) = slot_of.remove(&task) else { continue };
                if let Some(waiting) = slots.get_mut(&slot) {
                    waiting.in_flight -= 1;
                }
                touched.push(slot);
            }
            count = queue.recv_many(&mut arrived, MOST_AT_ONCE), if is_open => {
                is_open = count > 0;
                // Lets other callers that woke at the same time send first, so that they share a
                // command.
                yield_now().await;
                while let Ok(requests) = queue.try_recv() {
                    arrived.push(requests);
                }
                for mut request in arrived.drain(..).flatten() {
                    request.queued = time.passed();
                    touched.push(request.slot);
                    slots.entry(request.slot).or_default().requests.push_back(request);
                }
            }
            else => return,
        }
        time.turn();
        for slot in touched.drain(..) {
            let Some(waiting) = slots.get_mut(&slot) else { continue };
            waiting.expire(time.passed().saturating_sub(LONGEST_QUEUED));
            while waiting.in_flight < sender.connection.depth(pipeline)
                && let Some((call, requests)) = gather(&mut waiting.requests, bounds)
            {
                waiting.in_flight += 1;
                let sender = Arc::clone(&sender);
                let task = in_flight.spawn(sender.deliver(call, requests));
                slot_of.insert(task.id(), slot);
            }
            // The only slot of a single server is kept.
            if waiting.in_flight == 0 && waiting.requests.is_empty() && slot != 0 {
                slots.remove(&slot);
            }
        }
    }
}

/// Bounds of one command.
#[derive(Clone, Copy)]
struct Bounds {
    max_batch: usize,
    /// Only requests of the same instant; the server's own clock has only one.
    one_time: bool,
}

/// The next command of a slot: as many requests as fit, without those whose callers have given up.
fn gather(waiting: &mut VecDeque<Request>, bounds: Bounds) -> Option<(Box<Call>, Vec<Request>)> {
    if waiting.is_empty() {
        return None;
    }
    let Bounds { max_batch, one_time } = bounds;
    let (mut call, mut requests) = (Box::<Call>::default(), Vec::<Request>::new());
    while let Some(request) = waiting.pop_front() {
        if request.is_pointless() {
            continue;
        }
        let alone = request.asking || max_batch == 1;
        let fits = requests.is_empty()
            || (!alone
                && !requests[0].asking
                && (!one_time || requests[0].now == request.now)
                && call.len() + request.items.len() <= max_batch);
        if !fits || !call.add(&request.items) {
            waiting.push_front(request);
            break;
        }
        requests.push(request);
    }
    (!requests.is_empty()).then_some((call, requests))
}

impl Sender {
    /// Sends a call and answers its requests. Returns an error if the server is unavailable.
    async fn deliver(
        self: Arc<Self>,
        mut call: Box<Call>,
        mut requests: Vec<Request>,
    ) -> Option<StoreError> {
        let connected = match self.connection.connected_soon().await {
            Ok(connected) => connected,
            Err(error) => {
                // Boxed, because few commands need it and the task of a command should be small.
                Box::pin(self.failed(Failure::Refused(error.clone()), requests)).await;
                return Some(error);
            }
        };
        // Some callers may have given up while the connection was being made.
        if requests.iter().any(Request::is_pointless) {
            requests.retain(|request| !request.is_pointless());
            *call = Call::default();
            requests.retain(|request| call.add(&request.items));
            if requests.is_empty() {
                return None;
            }
        }
        match self.send(call, requests, connected).await {
            Ok(Sent { reply: Ok(reply), call, requests, to }) => {
                self.answer(&call, &reply, requests, &to).await;
                None
            }
            Ok(Sent { reply: Err(failure), requests, .. }) => {
                Box::pin(self.failed(failure, requests)).await;
                None
            }
            Err(Late::Silent) => Some(StoreError::Timeout),
            Err(Late::Slow) => None,
        }
    }

    /// Sends a call and waits for the reply. If the reply is late, the callers get an error, and a
    /// background task handles the reply.
    async fn send(
        self: &Arc<Self>,
        call: Box<Call>,
        mut requests: Vec<Request>,
        to: Connected,
    ) -> Result<Sent, Late> {
        let asking = requests.first().is_some_and(|request| request.asking);
        let now = requests.first().map_or(Timestamp::EPOCH, |request| request.now);
        let (mut listening, number) = (self.connection.listening(), to.number);
        let sender = Arc::clone(self);
        let mut sending = Box::pin(async move {
            let reply = sender.send_as(&call, &to, Text::Hash, (asking, now)).await;
            let reply = match reply {
                // Retried only once: the server cannot lack a script that is sent with its text.
                Err(Failure::NoScript) => {
                    Box::pin(sender.send_as(&call, &to, Text::Whole, (asking, now))).await
                }
                reply => reply,
            };
            (reply, call, to)
        });
        match self.connection.wait(sending.as_mut(), &mut listening, Until::Deadline).await {
            Ok((reply, call, to)) => {
                self.connection.replied(&reply, &listening);
                Ok(Sent { reply, call, requests, to })
            }
            Err(late) => {
                let error = self.connection.late_error(late);
                requests.iter_mut().for_each(|request| request.expire(error.clone()));
                let sender = Arc::clone(self);
                tokio::spawn(async move {
                    let connection = &sender.connection;
                    match connection.wait(sending.as_mut(), &mut listening, Until::Lost).await {
                        Ok((reply, call, to)) => {
                            connection.replied(&reply, &listening);
                            if let Ok(reply) = reply {
                                sender.answer(&call, &reply, requests, &to).await;
                            }
                        }
                        Err(_) => drop(connection.lose(number)),
                    }
                });
                Err(late)
            }
        }
    }

    async fn send_as(
        &self,
        call: &Call,
        to: &Connected,
        text: Text,
        (asking, now): (bool, Timestamp),
    ) -> Result<Value, Failure> {
        let repairs = self.settled.load(Ordering::Relaxed);
        let command = call.command(self.scripts, How { text, repairs, now });
        match asking {
            true => Box::pin(self.connection.exchange_asking(to, &command)).await,
            false => self.connection.exchange(to, &command).await,
        }
    }

    /// Handles a refused call, which changed nothing: retries its requests where possible.
    async fn failed(self: &Arc<Self>, failure: Failure, requests: Vec<Request>) {
        let cluster = self.cluster.upgrade();
        match (failure, cluster) {
            (Failure::Redirected { host, port, once }, Some(cluster)) => {
                // A node that does not know its own address leaves the host out.
                let own = self.connection.address();
                let own = own.rsplit_once(':').map_or("", |(host, _)| host);
                let host = if host.is_empty() { own } else { &host };
                for mut request in requests {
                    request.hops += 1;
                    request.asking = once;
                    match request.hops > MOST_HOPS {
                        true => request.fail(StoreError::unavailable("the slot keeps moving")),
                        false => cluster.send_on(host, port, request),
                    }
                }
            }
            (Failure::TryAgain | Failure::WrongType(_), _) if requests.len() > 1 => {
                // One request caused the failure: send all of them separately and concurrently.
                for request in requests {
                    tokio::spawn(Arc::clone(self).alone(request));
                }
            }
            (Failure::TryAgain, _) => {
                sleep(TRY_AGAIN).await;
                for request in requests {
                    Arc::clone(self).alone(request).await;
                }
            }
            (failure, cluster) => {
                if let Some(cluster) = cluster {
                    cluster.request_update();
                }
                let error = failure.into_error();
                requests.into_iter().for_each(|request| request.fail(error.clone()));
            }
        }
    }

    /// Sends one request alone. Boxed, because a retried request may come back here.
    fn alone(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            if request.is_pointless() {
                return;
            }
            let mut call = Box::<Call>::default();
            call.add(&request.items);
            let connected = match self.connection.connected_soon().await {
                Ok(connected) => connected,
                Err(error) => return self.failed(Failure::Refused(error), vec![request]).await,
            };
            // The callers of late requests have their error already.
            let Ok(sent) = self.send(call, vec![request], connected).await else { return };
            let Sent { reply, call, requests, to } = sent;
            match reply {
                Ok(reply) => self.answer(&call, &reply, requests, &to).await,
                Err(failure @ Failure::Redirected { .. }) => self.failed(failure, requests).await,
                Err(failure) => {
                    let error = failure.into_error();
                    requests.into_iter().for_each(|request| request.fail(error.clone()));
                }
            }
        })
    }

    /// Distributes the answers. If the caller has given up, an in-flight lease is released, because
    /// no other code would; units of a rate stay charged, because the caller may have relied on
    /// them.
    async fn answer(&self, call: &Call, reply: &Value, requests: Vec<Request>, to: &Connected) {
        let now = requests.first().map_or(Timestamp::EPOCH, |request| request.now);
        let orphans = distribute(call, reply, requests);
        if orphans.len() > 0 {
            let repairs = self.settled.load(Ordering::Relaxed);
            let command = orphans.command(self.scripts, How { text: Text::Whole, repairs, now });
            // If this fails too, the lease expires.
            let _ = Box::pin(self.connection.send(to, &command)).await;
        }
    }
}

/// Answers requests, and returns the releases of leases whose callers have given up.
fn distribute(call: &Call, reply: &Value, requests: Vec<Request>) -> Call {
    let mut orphans = Call::default();
    let answers = match call.answers(reply) {
        Ok(answers) => answers,
        Err(error) => {
            requests.into_iter().for_each(|request| request.fail(error.clone()));
            return orphans;
        }
    };
    for (request, answered) in requests.into_iter().zip(answers) {
        let Request { items, answer, .. } = request;
        let undelivered = match answer {
            Some(answer) => answer.send(answered).err(),
            None => Some(answered),
        };
        if let Some(Ok(Answered::Decisions(decided))) = undelivered {
            for (item, decision) in items.iter().zip(decided.decisions) {
                if let (Some(lease), Work::Operate(Op::Take(_) | Op::Force(_))) =
                    (decision.lease, item.script_args.work)
                {
                    let work = Work::Operate(Op::Release(lease));
                    let script_args = ScriptArgs { work, ..item.script_args };
                    orphans.add(&[Item { name: item.name.clone(), script_args }]);
                }
            }
        }
    }
    orphans
}
