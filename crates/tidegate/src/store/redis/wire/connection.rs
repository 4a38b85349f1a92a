//! A connection to one server, maintained by a background task.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, TlsCertificates, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use crate::store::redis::config::{RedisConfig, Tls};
use crate::store::redis::failure::Failure;
use crate::store::redis::routing::sentinel::{self, Watched};
use crate::store::redis::wire::deadline::{
    LONGEST, Listening, RoundTrip, Silent, last_look, listen, measure,
};
use crate::store::{Misconfigured, StoreError};

/// Interval between checks of an idle connection.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A connection is given up once the server was silent for this long, or for two deadlines.
const LOST: Duration = Duration::from_millis(250);
/// A reply this late is not expected any more, whatever else the server sends.
const MOST_LATE: Duration = Duration::from_secs(30);
/// The first and the longest pause between attempts to connect.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];

/// The server of a connection.
#[derive(Clone, Debug)]
pub(in crate::store::redis) enum Target {
    Fixed(ConnectionInfo),
    /// A cluster node, which decides only the keys of its slots.
    Node(ConnectionInfo),
    /// The primary that sentinels currently name.
    Primary(Watched),
}

/// A connection that is re-established when it breaks.
#[derive(Debug)]
pub(in crate::store::redis) struct Connection {
    target: Target,
    tls: Tls,
    connect_timeout: Duration,
    /// Replaces the deadline that follows the round trip.
    fixed_deadline: Option<Duration>,
    /// False until the first self-test is over, which may take longer.
    started: Arc<AtomicBool>,
    round_trip: RoundTrip,
    /// Number of replies over all connections.
    replies: AtomicU64,
    state: watch::Sender<State>,
    broken: Notify,
    made: AtomicU64,
    /// The last address connected to, for messages.
    address: Mutex<String>,
}

#[derive(Clone)]
enum State {
    /// The first attempt to connect is in progress; requests wait for it.
    Connecting,
    Up(Connected),
    Down(StoreError),
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connecting => f.write_str("Connecting"),
            Self::Up(connected) => write!(f, "Up({})", connected.number),
            Self::Down(error) => write!(f, "Down({error})"),
        }
    }
}

/// When a wait for a reply ends at the latest.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::redis) enum Until {
    /// At the caller's deadline.
    Deadline,
    /// When the connection counts as lost.
    Lost,
}

/// Why a wait for a reply ended without it.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::redis) enum Late {
    /// The server sent nothing while this process listened.
    Silent,
    /// The server replied to other commands meanwhile.
    Slow,
}

/// A handle of the current connection.
#[derive(Clone)]
pub(in crate::store::redis) struct Connected {
    connection: MultiplexedConnection,
    pub(in crate::store::redis) number: u64,
}

impl Connected {
    /// Unique number of this connection.
    pub(in crate::store::redis) const fn number(&self) -> u64 {
        self.number
    }
}

impl Connection {
    pub(in crate::store::redis) fn new(target: Target, config: &RedisConfig) -> Arc<Self> {
        let address = match &target {
            Target::Fixed(info) | Target::Node(info) => info.addr().to_string(),
            Target::Primary(watched) => watched.name.clone(),
        };
        Arc::new(Self {
            target,
            tls: config.tls.clone(),
            connect_timeout: config.connect_timeout,
            fixed_deadline: config.deadline,
            started: Arc::clone(&config.started),
            round_trip: RoundTrip::default(),
            replies: AtomicU64::new(0),
            state: watch::Sender::new(State::Connecting),
            broken: Notify::new(),
            made: AtomicU64::new(0),
            address: Mutex::new(address),
        })
    }

    pub(in crate::store::redis) fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection; waits for one that is being made, but not for an unavailable server.
    pub(in crate::store::redis) async fn connected(&self) -> Result<Connected, StoreError> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Connecting));
        match settled.await.map(|state| state.clone()) {
            Ok(State::Up(connected)) => Ok(connected),
            Ok(State::Down(error)) => Err(error),
            Ok(State::Connecting) | Err(_) => Err(StoreError::unavailable("shutting down")),
        }
    }

    /// Like [`Connection::connected`], but waits no longer than the deadline.
    pub(in crate::store::redis) async fn connected_soon(&self) -> Result<Connected, StoreError> {
        if let State::Up(connected) = &*self.state.borrow() {
            return Ok(connected.clone());
        }
        Box::pin(self.connecting_soon()).await
    }

    async fn connecting_soon(&self) -> Result<Connected, StoreError> {
        let connected = listen(self.deadline(), self.connected()).await;
        connected.unwrap_or_else(|Silent| {
            Err(StoreError::unavailable(format!("no connection to {} yet", self.address())))
        })
    }

    /// How long the server may be silent before a request fails.
    pub(in crate::store::redis) fn deadline(&self) -> Duration {
        let unmeasured = self.connect_timeout.max(LOST);
        let deadline = match self.fixed_deadline {
            Some(fixed) => fixed,
            None => self.round_trip.deadline(unmeasured),
        };
        if self.started.load(Ordering::Relaxed) { deadline } else { deadline.max(2 * unmeasured) }
    }

    /// How long an attempt to connect may take. A server known to be nearby gets less time, so that
    /// a dead server does not delay the connection to its successor.
    fn attempt_timeout(&self) -> Duration {
        let known = self.round_trip.mean().map(|mean| LOST + 8 * mean);
        known.map_or(self.connect_timeout, |known| known.min(self.connect_timeout))
    }

    /// The mean round trip, once one was measured.
    pub(in crate::store::redis) fn round_trip(&self) -> Option<Duration> {
        self.round_trip.mean()
    }

    /// How many commands may be in flight, at most `most`.
    pub(in crate::store::redis) fn depth(&self, most: usize) -> usize {
        self.round_trip.depth(most)
    }

    /// Starts to count the time spent listening for the reply to a command that is sent now.
    pub(in crate::store::redis) fn listening(&self) -> Listening {
        Listening::start(self.deadline())
    }

    /// Waits for `reply`, until the request or the connection is late.
    pub(in crate::store::redis) async fn wait<T>(
        &self,
        mut reply: Pin<&mut impl Future<Output = T>>,
        listening: &mut Listening,
        until: Until,
    ) -> Result<T, Late> {
        let mut replies = self.replies.load(Ordering::Relaxed);
        loop {
            tokio::select! {
                biased;
                value = reply.as_mut() => return Ok(value),
                () = listening.tick() => {}
            }
            let known = std::mem::replace(&mut replies, self.replies.load(Ordering::Relaxed));
            if known != replies {
                listening.heard();
            }
            if let Some(late) = self.late(listening, until) {
                return last_look(reply).await.map_err(|Silent| late);
            }
        }
    }

    fn late(&self, listening: &Listening, until: Until) -> Option<Late> {
        let Listening { listened, heard_nothing_for, .. } = *listening;
        let silent = |limit| (heard_nothing_for >= limit).then_some(Late::Silent);
        match (until, self.fixed_deadline) {
            (Until::Lost, _) if listened >= MOST_LATE => Some(Late::Silent),
            // Independent of a fixed deadline: the round trip decides how long a silence is a loss.
            (Until::Lost, _) => {
                silent(LOST.max(2 * self.round_trip.deadline(self.connect_timeout)))
            }
            (Until::Deadline, None) => {
                let slow = || (listened >= LONGEST.max(self.deadline())).then_some(Late::Slow);
                silent(self.deadline()).or_else(slow)
            }
            (Until::Deadline, Some(_)) if listened < self.deadline() => None,
            (Until::Deadline, Some(_)) if heard_nothing_for < listened => Some(Late::Slow),
            (Until::Deadline, Some(_)) => Some(Late::Silent),
        }
    }

    /// The error of a request whose reply is late.
    pub(in crate::store::redis) fn late_error(&self, late: Late) -> StoreError {
        match late {
            Late::Silent => StoreError::Timeout,
            Late::Slow => {
                let (address, deadline) = (self.address(), self.deadline());
                StoreError::Slow(format!("{address} replies, but not within {deadline:?}").into())
            }
        }
    }

    /// Records a reply. An error of the connection does not count.
    pub(in crate::store::redis) fn replied(
        &self,
        reply: &Result<Value, Failure>,
        listening: &Listening,
    ) {
        if matches!(reply, Err(Failure::Broken(_))) {
            return;
        }
        self.replies.fetch_add(1, Ordering::Relaxed);
        if let Some(took) = listening.undisturbed() {
            self.round_trip.record(took);
        }
    }

    /// Sends a command. A connection whose server stays silent is given up.
    pub(in crate::store::redis) async fn send(
        &self,
        to: &Connected,
        command: &Cmd,
    ) -> Result<Value, Failure> {
        let mut listening = self.listening();
        let sent = pin!(self.exchange(to, command));
        match self.wait(sent, &mut listening, Until::Lost).await {
            Ok(reply) => {
                self.replied(&reply, &listening);
                reply
            }
            Err(_) => Err(Failure::Broken(self.lose(to.number))),
        }
    }

    /// Sends a command and waits for the reply, however long that takes.
    pub(in crate::store::redis) async fn exchange(
        &self,
        to: &Connected,
        command: &Cmd,
    ) -> Result<Value, Failure> {
        let mut connection = to.connection.clone();
        let reply = connection.send_packed_command(command).await;
        self.judge(to, reply.and_then(Value::extract_error))
    }

    /// Like [`Connection::exchange`], for a node that does not serve the command's slot yet.
    pub(in crate::store::redis) async fn exchange_asking(
        &self,
        to: &Connected,
        command: &Cmd,
    ) -> Result<Value, Failure> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(command.clone());
        let mut connection = to.connection.clone();
        // Reads both raw replies, because an error of the pipeline does not contain the
        // redirection.
        let replies = connection.send_packed_commands(&pipeline, 0, 2).await;
        let second = |mut replies: Vec<Value>| {
            replies.pop().map_or_else(|| Ok(Value::Nil), Value::extract_error)
        };
        self.judge(to, replies.and_then(second))
    }

    fn judge(&self, to: &Connected, sent: redis::RedisResult<Value>) -> Result<Value, Failure> {
        let failure = match sent {
            Ok(value) => return Ok(value),
            Err(error) => Failure::of(&error, self.address()),
        };
        if let Failure::Broken(_) | Failure::NotHere(_) = failure {
            self.give_up(to.number);
        }
        Err(match (failure, &self.target) {
            // Sentinels have replaced this primary and name the next one, so this is an outage.
            (Failure::NotHere(StoreError::Misconfigured(_, why)), Target::Primary(_)) => {
                Failure::NotHere(StoreError::Unavailable(why))
            }
            (failure, _) => failure,
        })
    }

    /// Gives up a connection whose server is silent.
    pub(in crate::store::redis) fn lose(&self, number: u64) -> StoreError {
        self.give_up(number);
        StoreError::unavailable(format!("{} is silent", self.address()))
    }

    /// Marks this connection as unusable, unless a newer one has replaced it.
    fn give_up(&self, number: u64) {
        let gave_up = self.state.send_if_modified(|state| {
            let current = matches!(state, State::Up(up) if up.number == number);
            if current {
                *state = State::Connecting;
            }
            current
        });
        if gave_up {
            self.broken.notify_one();
        }
    }

    /// Connects and reconnects for as long as the connection is used.
    pub(in crate::store::redis) async fn maintain(self: Arc<Self>) {
        let mut pause = Duration::ZERO;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    pause = Duration::ZERO;
                    let number = self.made.fetch_add(1, Ordering::Relaxed);
                    let connected = Connected { connection, number };
                    self.state.send_replace(State::Up(connected.clone()));
                    self.until_broken(&connected).await;
                    // Jitter, because other nodes lost their connections at the same moment.
                    sleep(jittered(PAUSES[0])).await;
                }
                Err(error) => {
                    self.state.send_replace(State::Down(error));
                    pause = (pause * 2).clamp(PAUSES[0], PAUSES[1]);
                    sleep(jittered(pause)).await;
                }
            }
        }
    }

    async fn until_broken(&self, connected: &Connected) {
        let is_node = matches!(self.target, Target::Node(_));
        let beat = redis::cmd(if is_node { "PING" } else { "ROLE" });
        loop {
            if timeout(HEARTBEAT, self.broken.notified()).await.is_ok() {
                return;
            }
            // Silent sentinels must not delay the reaction to a failure that a request has found.
            tokio::select! {
                () = self.broken.notified() => return,
                () = self.look(connected, &beat) => {}
            }
        }
    }

    /// Gives the connection up if its server is no longer the primary.
    async fn look(&self, connected: &Connected, beat: &Cmd) {
        // A refusal shows that the server lives, and `send` gives up a silent connection. A replica
        // refuses writes but would still deny by its copy.
        if self.send(connected, beat).await.is_ok_and(|role| sentinel::is_replica(&role)) {
            self.give_up(connected.number);
        }
        if let Target::Primary(watched) = &self.target {
            let named = sentinel::primary(watched, &self.tls, self.attempt_timeout()).await;
            if named.is_ok_and(|info| info.addr().to_string() != self.address()) {
                self.give_up(connected.number);
            }
        }
    }

    /// Tries once to connect.
    pub(in crate::store::redis) async fn connect(
        &self,
    ) -> Result<MultiplexedConnection, StoreError> {
        let info = match &self.target {
            Target::Fixed(info) | Target::Node(info) => info.clone(),
            Target::Primary(watched) => {
                sentinel::primary(watched, &self.tls, self.attempt_timeout()).await?
            }
        };
        let address = info.addr().to_string();
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address.clone();
        let connection = open(info, &self.tls, self.attempt_timeout()).await?;
        let mut asked = connection.clone();
        let verified = measure(self.attempt_timeout(), self.verify(&mut asked, &address)).await;
        let Ok((verified, took)) = verified else {
            return Err(StoreError::unavailable(format!("{address} is silent")));
        };
        verified?;
        self.round_trip.reconnected(took);
        Ok(connection)
    }

    /// Checks that the server is not a replica, on which no decision is made.
    async fn verify(
        &self,
        connection: &mut MultiplexedConnection,
        address: &str,
    ) -> Result<(), StoreError> {
        if matches!(self.target, Target::Node(_)) {
            // Measures the round trip, whatever the answer.
            let _ = redis::cmd("PING").query_async::<Value>(connection).await;
            return Ok(());
        }
        let primary = sentinel::is_primary(connection, address, self.attempt_timeout()).await;
        match (primary, &self.target) {
            (Ok(true), _) => Ok(()),
            (Ok(false), Target::Primary(_)) => {
                Err(StoreError::unavailable(format!("{address} is not primary yet")))
            }
            (Ok(false), _) => {
                let why = format!("{address} is a replica");
                Err(StoreError::misconfigured(Misconfigured::ReadOnly, why))
            }
            // Proxies do not have the command. The server behind them refuses writes if it is a
            // replica.
            (Err(StoreError::Misconfigured(Misconfigured::Version, _)), Target::Fixed(_)) => Ok(()),
            (Err(error), _) => Err(error),
        }
    }
}

/// Opens a connection to exactly this server.
pub(in crate::store::redis) async fn open(
    info: ConnectionInfo,
    tls: &Tls,
    connect_timeout: Duration,
) -> Result<MultiplexedConnection, StoreError> {
    let address = info.addr().to_string();
    let failed = |error: &redis::RedisError| Failure::of(error, &address).into_error();
    let encrypted = matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. });
    let client = if encrypted {
        let certificates =
            TlsCertificates { client_tls: tls.client(), root_cert: tls.authority.clone() };
        Client::build_with_tls(info, certificates)
    } else {
        Client::open(info)
    };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1_024);
    let client = client.map_err(|error| failed(&error))?;
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    match listen(connect_timeout, connecting).await {
        Ok(connected) => connected.map_err(|error| failed(&error)),
        Err(Silent) => Err(StoreError::unavailable(format!("{address} does not answer"))),
    }
}

/// Half to one and a half times `pause`.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64())
}
