//! The way to one server: requests queue up, go out together, and are answered each.
//!
//! A request goes out at once while few commands are under way; what arrives meanwhile goes into
//! the next command together. So an idle server answers without delay and a busy one is asked with
//! few commands.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;
use tidegate_core::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::sleep;

use super::call::{Answered, Call, How, Item, Text};
use super::cluster::Cluster;
use super::config::RedisConfig;
use super::failure::Failure;
use super::link::{Connected, Link, Target};
use super::script::Scripts;
use crate::store::StoreError;

/// A slot that is being moved is asked again after this long, once.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// Requests taken from the queue in one go.
const MOST_AT_ONCE: usize = 1_024;
/// A request that has been sent on this often will not find its node.
const MOST_HOPS: u8 = 4;

/// Charges that one script call decides, and who waits for them.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) items: Vec<Item>,
    pub(super) slot: u16,
    pub(super) now: Timestamp,
    /// How often it was sent on, and whether the node it goes to must be told.
    pub(super) hops: u8,
    pub(super) asking: bool,
    /// Its share of what may be under way; given back with the request.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    pub(super) answer: oneshot::Sender<Result<Answered, StoreError>>,
}

impl Request {
    fn fail(self, error: StoreError) {
        // Whoever asked may have gone away.
        let _ = self.answer.send(Err(error));
    }
}

/// The way to one server.
#[derive(Debug)]
pub(super) struct Lane {
    /// Bounded by `room`: a request takes its share before it is queued.
    queue: mpsc::UnboundedSender<Request>,
    room: Arc<Semaphore>,
    pub(super) link: Arc<Link>,
    tasks: [JoinHandle<()>; 2],
}

/// What all commands of a lane need.
#[derive(Debug)]
struct Carrier {
    link: Arc<Link>,
    scripts: &'static Scripts,
    settled: Arc<AtomicBool>,
    cluster: Weak<Cluster>,
}

/// Commands under way for a slot, and requests that wait for them.
#[derive(Default)]
struct Waiting {
    under_way: usize,
    requests: VecDeque<Request>,
}

impl Lane {
    pub(super) fn start(
        config: &RedisConfig,
        target: Target,
        settled: Arc<AtomicBool>,
        cluster: Weak<Cluster>,
    ) -> Self {
        let link = Link::new(target, config.tls.clone(), config.connect_timeout);
        let scripts = Scripts::by(config.time);
        let carrier = Arc::new(Carrier { link: Arc::clone(&link), scripts, settled, cluster });
        let (queue, requests) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(config.max_in_flight));
        let limits = (config.max_batch, config.pipeline);
        let tasks = [
            tokio::spawn(Arc::clone(&link).keep_up()),
            tokio::spawn(dispatch(requests, carrier, limits)),
        ];
        Self { queue, room, link, tasks }
    }

    /// Queues a request, or answers that there is no room.
    pub(super) fn submit(&self, mut request: Request) {
        match Arc::clone(&self.room).try_acquire_owned() {
            Ok(permit) => request.permit = Some(permit),
            Err(_) => return request.fail(StoreError::Overloaded),
        }
        if let Err(mpsc::error::SendError(request)) = self.queue.send(request) {
            request.fail(StoreError::unavailable("shutting down"));
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Sends requests out slot by slot.
async fn dispatch(
    mut queue: mpsc::UnboundedReceiver<Request>,
    carrier: Arc<Carrier>,
    (max_batch, pipeline): (usize, usize),
) {
    let mut slots: HashMap<u16, Waiting> = HashMap::new();
    let mut under_way: JoinSet<u16> = JoinSet::new();
    let (mut arrived, mut touched) = (Vec::new(), Vec::new());
    loop {
        tokio::select! {
            Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                // A command whose task was aborted or panicked is not under way any more either.
                let Ok(slot) = done else { continue };
                if let Some(waiting) = slots.get_mut(&slot) {
                    waiting.under_way -= 1;
                }
                touched.push(slot);
            }
            count = queue.recv_many(&mut arrived, MOST_AT_ONCE) => {
                if count == 0 {
                    return;
                }
                // Callers that were woken together ask together: let them come first.
                yield_now().await;
                while let Ok(request) = queue.try_recv() {
                    arrived.push(request);
                }
                for request in arrived.drain(..) {
                    touched.push(request.slot);
                    slots.entry(request.slot).or_default().requests.push_back(request);
                }
            }
        }
        for slot in touched.drain(..) {
            let Some(waiting) = slots.get_mut(&slot) else { continue };
            while waiting.under_way < pipeline
                && let Some((call, requests)) = gather(&mut waiting.requests, max_batch)
            {
                waiting.under_way += 1;
                let carrier = Arc::clone(&carrier);
                under_way.spawn(async move {
                    carrier.carry(call, requests).await;
                    slot
                });
            }
            if waiting.under_way == 0 && waiting.requests.is_empty() {
                slots.remove(&slot);
            }
        }
    }
}

/// The next command of a slot: as many requests as fit, less those that nobody waits for any more.
fn gather(waiting: &mut VecDeque<Request>, max_batch: usize) -> Option<(Call, Vec<Request>)> {
    let (mut call, mut requests) = (Call::default(), Vec::<Request>::new());
    while let Some(request) = waiting.pop_front() {
        if request.answer.is_closed() {
            continue;
        }
        let alone = request.asking || max_batch == 1;
        let fits = requests.is_empty()
            || (!alone
                && !requests[0].asking
                && requests[0].now == request.now
                && call.len() + request.items.len() <= max_batch);
        if !fits || !call.add(&request.items) {
            waiting.push_front(request);
            break;
        }
        requests.push(request);
    }
    (!requests.is_empty()).then_some((call, requests))
}

impl Carrier {
    /// Sends a call and answers its requests.
    async fn carry(&self, call: Call, requests: Vec<Request>) {
        match self.send(&call, &requests).await {
            Ok(reply) => answer(&call, &reply, requests),
            Err(failure) => self.failed(failure, requests).await,
        }
    }

    /// Sends a call by its hash, and whole if the server does not know the script: once, for sent
    /// whole it cannot be unknown.
    async fn send(&self, call: &Call, requests: &[Request]) -> Result<Value, Failure> {
        let connected = self.link.connected().await.map_err(Failure::Refused)?;
        match self.send_as(call, requests, &connected, Text::Hash).await {
            Err(Failure::NoScript) => self.send_as(call, requests, &connected, Text::Whole).await,
            sent => sent,
        }
    }

    async fn send_as(
        &self,
        call: &Call,
        requests: &[Request],
        to: &Connected,
        text: Text,
    ) -> Result<Value, Failure> {
        let repairs = self.settled.load(Ordering::Relaxed);
        let now = requests.first().map_or(Timestamp::EPOCH, |request| request.now);
        let command = call.command(self.scripts, How { text, repairs, now });
        match requests.first().is_some_and(|request| request.asking) {
            true => self.link.send_asking(to, &command).await,
            false => self.link.send(to, &command).await,
        }
    }

    /// A call that was refused changed nothing: what can be asked elsewhere or again, is.
    async fn failed(&self, failure: Failure, requests: Vec<Request>) {
        let cluster = self.cluster.upgrade();
        match (failure, cluster) {
            (Failure::Redirected { host, port, once }, Some(cluster)) => {
                for mut request in requests {
                    request.hops += 1;
                    request.asking = once;
                    match request.hops > MOST_HOPS {
                        true => request.fail(StoreError::unavailable("the slot keeps moving")),
                        false => cluster.send_on(&host, port, request),
                    }
                }
            }
            (Failure::TryAgain | Failure::WrongType(_), _) if requests.len() > 1 => {
                // One of them is at fault; the others must not suffer.
                for request in requests {
                    self.alone(request).await;
                }
            }
            (Failure::TryAgain, _) => {
                sleep(TRY_AGAIN).await;
                for mut request in requests {
                    request.hops += 1;
                    match request.hops > 1 {
                        true => request.fail(Failure::TryAgain.into_error()),
                        false => self.alone(request).await,
                    }
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

    async fn alone(&self, request: Request) {
        let mut call = Call::default();
        call.add(&request.items);
        let requests = vec![request];
        match self.send(&call, &requests).await {
            Ok(reply) => answer(&call, &reply, requests),
            Err(failure @ Failure::Redirected { .. }) => {
                Box::pin(self.failed(failure, requests)).await;
            }
            Err(failure) => {
                let error = failure.into_error();
                requests.into_iter().for_each(|request| request.fail(error.clone()));
            }
        }
    }
}

fn answer(call: &Call, reply: &Value, requests: Vec<Request>) {
    match call.answers(reply) {
        Ok(answers) => {
            for (request, answered) in requests.into_iter().zip(answers) {
                let _ = request.answer.send(Ok(answered));
            }
        }
        Err(error) => requests.into_iter().for_each(|request| request.fail(error.clone())),
    }
}
