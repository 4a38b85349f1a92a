//! The way to one server: requests queue up, go out together, and are answered each.
//!
//! A request goes out at once while few commands are under way; what arrives meanwhile goes into
//! the next command together. So an idle server answers without delay and a busy one is asked with
//! few commands. How many are few follows the round trip: a server far away is sent more at a time.
//!
//! Requests are declared late here and not by their callers: only the task that listens to the
//! server knows whether the server was silent or this process did not run.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

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

/// A slot that is being moved is asked again after this long, once.
const TRY_AGAIN: Duration = Duration::from_millis(2);
/// Requests taken from the queue in one go.
const MOST_AT_ONCE: usize = 1_024;
/// A request that has waited in the queue for this long is refused: the server answers, but not as
/// fast as requests arrive.
const LONGEST_QUEUED: Duration = Duration::from_secs(1);
/// A request that has been sent on this often will not find its node.
const MOST_HOPS: u8 = 4;

/// The way to one server.
#[derive(Debug)]
pub(in crate::store::redis) struct ServerQueue {
    /// Bounded by `room` and `spare`: a request takes its share before it is queued.
    queue: mpsc::UnboundedSender<Vec<Request>>,
    room: Arc<Semaphore>,
    /// As much again for what gives back, or an overload would feed itself.
    spare: Arc<Semaphore>,
    pub(in crate::store::redis) connection: Arc<Connection>,
    /// Tells it from the other server_queues of its cluster.
    pub(in crate::store::redis) number: usize,
}

/// What all commands of a server_queue need.
#[derive(Debug)]
struct Sender {
    connection: Arc<Connection>,
    scripts: &'static Scripts,
    settled: Arc<AtomicBool>,
    cluster: Weak<Cluster>,
}

/// A call that the server replied to.
struct Sent {
    reply: Result<Value, Failure>,
    call: Call,
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
        let carrier =
            Arc::new(Sender { connection: Arc::clone(&connection), scripts, settled, cluster });
        let (queue, requests) = mpsc::unbounded_channel();
        let room = || Arc::new(Semaphore::new(config.max_in_flight));
        let (room, spare) = (room(), room());
        let limits = (config.max_batch, config.pipeline);
        let mut kept_up = JoinSet::new();
        kept_up.spawn(Arc::clone(&connection).keep_up());
        tokio::spawn(async move {
            dispatch(requests, carrier, limits).await;
            // The connection ends with the last request.
            drop(kept_up);
        });
        Self { queue, room, spare, connection, number }
    }

    pub(in crate::store::redis) fn submit(&self, request: Request) {
        self.submit_all(vec![request]);
    }

    /// Queues requests that go out together, or answers that there is no room for them.
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

/// Sends requests out slot by slot, until nobody can bring any and all are answered.
async fn dispatch(
    mut queue: mpsc::UnboundedReceiver<Vec<Request>>,
    carrier: Arc<Sender>,
    (max_batch, pipeline): (usize, usize),
) {
    let mut slots: HashMap<u16, Waiting> = HashMap::new();
    let mut under_way: JoinSet<Option<StoreError>> = JoinSet::new();
    let mut slot_of: HashMap<task::Id, u16> = HashMap::new();
    let (mut arrived, mut touched, mut is_open) = (Vec::new(), Vec::new(), true);
    let mut time = QueueTime::start();
    let bounds = Bounds { max_batch, one_time: carrier.scripts.time == TimeSource::Caller };
    loop {
        tokio::select! {
            Some(done) = under_way.join_next_with_id(), if !under_way.is_empty() => {
                // A command whose task panicked is not under way any more either.
                let (task, unavailable) = match done {
                    Ok(ended) => ended,
                    Err(panicked) => (panicked.id(), None),
                };
                if let Some(error) = unavailable {
                    // Requests that wait for a place behind it would only be late as well.
                    for waiting in slots.values_mut() {
                        waiting.requests.iter_mut().for_each(|it| it.expire(error.clone()));
                        waiting.requests.retain(|request| !request.is_pointless());
                    }
                }
                let Some(slot) = slot_of.remove(&task) else { continue };
                if let Some(waiting) = slots.get_mut(&slot) {
                    waiting.under_way -= 1;
                }
                touched.push(slot);
            }
            count = queue.recv_many(&mut arrived, MOST_AT_ONCE), if is_open => {
                is_open = count > 0;
                // Callers that were woken together ask together: let them come first.
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
            while waiting.under_way < carrier.connection.depth(pipeline)
                && let Some((call, requests)) = gather(&mut waiting.requests, bounds)
            {
                waiting.under_way += 1;
                let carrier = Arc::clone(&carrier);
                let task = under_way.spawn(carrier.carry(call, requests));
                slot_of.insert(task.id(), slot);
            }
            if waiting.under_way == 0 && waiting.requests.is_empty() {
                slots.remove(&slot);
            }
        }
    }
}

/// What may go into one command.
#[derive(Clone, Copy)]
struct Bounds {
    max_batch: usize,
    /// Only requests of the same instant; a server that goes by its own clock has only one.
    one_time: bool,
}

/// The next command of a slot: as many requests as fit, less those that nobody waits for any more.
fn gather(waiting: &mut VecDeque<Request>, bounds: Bounds) -> Option<(Call, Vec<Request>)> {
    let Bounds { max_batch, one_time } = bounds;
    let (mut call, mut requests) = (Call::default(), Vec::<Request>::new());
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
    /// Sends a call and answers its requests. Returns an error if the server cannot be had.
    async fn carry(
        self: Arc<Self>,
        mut call: Call,
        mut requests: Vec<Request>,
    ) -> Option<StoreError> {
        let connected = match self.connection.connected_soon().await {
            Ok(connected) => connected,
            Err(error) => {
                self.failed(Failure::Refused(error.clone()), requests).await;
                return Some(error);
            }
        };
        // While the connection was made, some may have given up.
        if requests.iter().any(Request::is_pointless) {
            requests.retain(|request| !request.is_pointless());
            call = Call::default();
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
                self.failed(failure, requests).await;
                None
            }
            Err(Late::Silent) => Some(StoreError::Timeout),
            Err(Late::Slow) => None,
        }
    }

    /// Sends a call and waits for the reply. If the reply is late, the callers are told so, and
    /// what comes of the call is seen to in the background.
    async fn send(
        self: &Arc<Self>,
        call: Call,
        mut requests: Vec<Request>,
        to: Connected,
    ) -> Result<Sent, Late> {
        let asking = requests.first().is_some_and(|request| request.asking);
        let now = requests.first().map_or(Timestamp::EPOCH, |request| request.now);
        let (mut listening, number) = (self.connection.listening(), to.number);
        let carrier = Arc::clone(self);
        let mut sending = Box::pin(async move {
            let reply = carrier.send_as(&call, &to, Text::Hash, (asking, now)).await;
            let reply = match reply {
                // Once: a script that is sent whole cannot be unknown.
                Err(Failure::NoScript) => {
                    carrier.send_as(&call, &to, Text::Whole, (asking, now)).await
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
                let carrier = Arc::clone(self);
                tokio::spawn(async move {
                    let connection = &carrier.connection;
                    match connection.wait(sending.as_mut(), &mut listening, Until::Lost).await {
                        Ok((reply, call, to)) => {
                            connection.replied(&reply, &listening);
                            if let Ok(reply) = reply {
                                carrier.answer(&call, &reply, requests, &to).await;
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
            true => self.connection.exchange_asking(to, &command).await,
            false => self.connection.exchange(to, &command).await,
        }
    }

    /// A call that was refused changed nothing: what can be asked elsewhere or again, is.
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
                // One of them is at fault; the others must not suffer, nor wait for each other.
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
                    cluster.look_again();
                }
                let error = failure.into_error();
                requests.into_iter().for_each(|request| request.fail(error.clone()));
            }
        }
    }

    /// Boxed, for a request that is sent on may come back.
    fn alone(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            if request.is_pointless() {
                return;
            }
            let mut call = Call::default();
            call.add(&request.items);
            let connected = match self.connection.connected_soon().await {
                Ok(connected) => connected,
                Err(error) => return self.failed(Failure::Refused(error), vec![request]).await,
            };
            // Late requests were told so already.
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

    /// Hands out the answers. A place that was taken for somebody who has gone is given back, for
    /// nobody else ever would; units of a rate stay spent, for they may have been relied on.
    async fn answer(&self, call: &Call, reply: &Value, requests: Vec<Request>, to: &Connected) {
        let answers = match call.answers(reply) {
            Ok(answers) => answers,
            Err(error) => return requests.into_iter().for_each(|r| r.fail(error.clone())),
        };
        let now = requests.first().map_or(Timestamp::EPOCH, |request| request.now);
        let mut orphans = Call::default();
        for (request, answered) in requests.into_iter().zip(answers) {
            let Request { items, answer, .. } = request;
            let unheard = match answer {
                Some(answer) => answer.send(answered).err(),
                None => Some(answered),
            };
            if let Some(Ok(Answered::Decisions(decided))) = unheard {
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
        if orphans.len() > 0 {
            let repairs = self.settled.load(Ordering::Relaxed);
            let command = orphans.command(self.scripts, How { text: Text::Whole, repairs, now });
            // If this fails too, the lease ends by itself.
            let _ = self.connection.send(to, &command).await;
        }
    }
}
