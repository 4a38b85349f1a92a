//! One connection, kept up by a task of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, TlsCertificates, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::config::Tls;
use super::failure::Failure;
use super::sentinel::{self, Watched};
use crate::store::{Misconfigured, StoreError};

/// A server that nobody asks is asked whether it is still there this often.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Between attempts to connect: from the first to the longest pause.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];

/// Where a link leads.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Fixed(ConnectionInfo),
    /// A node of a cluster: what it may decide, it knows by its slots.
    Node(ConnectionInfo),
    /// The primary that sentinels name at the time.
    Primary(Watched),
}

/// A connection that is made anew when it breaks.
#[derive(Debug)]
pub(super) struct Link {
    target: Target,
    tls: Tls,
    patience: Duration,
    state: watch::Sender<State>,
    broken: Notify,
    made: AtomicU64,
    /// The last address connected to, for people.
    address: Mutex<String>,
}

#[derive(Clone)]
enum State {
    /// A first attempt is under way: worth waiting for.
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

/// A connection as it was when asked for.
#[derive(Clone)]
pub(super) struct Connected {
    connection: MultiplexedConnection,
    number: u64,
}

impl Connected {
    /// A number that no other connection of its link has.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }
}

impl Link {
    pub(super) fn new(target: Target, tls: Tls, patience: Duration) -> Arc<Self> {
        let address = match &target {
            Target::Fixed(info) | Target::Node(info) => info.addr().to_string(),
            Target::Primary(watched) => watched.name.clone(),
        };
        Arc::new(Self {
            target,
            tls,
            patience,
            state: watch::Sender::new(State::Connecting),
            broken: Notify::new(),
            made: AtomicU64::new(0),
            address: Mutex::new(address),
        })
    }

    pub(super) fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection; waits for one that is just being made, but not for a server that is gone.
    pub(super) async fn connected(&self) -> Result<Connected, StoreError> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Connecting));
        match settled.await.map(|state| state.clone()) {
            Ok(State::Up(connected)) => Ok(connected),
            Ok(State::Down(error)) => Err(error),
            Ok(State::Connecting) | Err(_) => Err(StoreError::unavailable("shutting down")),
        }
    }

    /// Sends a command. A server that is silent for too long counts as gone.
    pub(super) async fn send(&self, to: &Connected, command: &Cmd) -> Result<Value, Failure> {
        let mut connection = to.connection.clone();
        let sent = timeout(self.patience, connection.send_packed_command(command)).await;
        self.judge(to, sent.map(|reply| reply.and_then(Value::extract_error)))
    }

    /// Sends a command to a node that does not serve its slot yet.
    pub(super) async fn send_asking(
        &self,
        to: &Connected,
        command: &Cmd,
    ) -> Result<Value, Failure> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(command.clone());
        let mut connection = to.connection.clone();
        // Both replies as they are: of a pipeline's own error one cannot tell where it redirects to.
        let sent = timeout(self.patience, connection.send_packed_commands(&pipeline, 0, 2)).await;
        let second = |mut replies: Vec<Value>| {
            replies.pop().map_or_else(|| Ok(Value::Nil), Value::extract_error)
        };
        self.judge(to, sent.map(|replies| replies.and_then(second)))
    }

    fn judge(
        &self,
        to: &Connected,
        sent: Result<redis::RedisResult<Value>, tokio::time::error::Elapsed>,
    ) -> Result<Value, Failure> {
        let failure = match sent {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => Failure::of(&error, self.address()),
            Err(_) => {
                let why = format!("{} is silent", self.address());
                Failure::Broken(StoreError::unavailable(why))
            }
        };
        if let Failure::Broken(_) | Failure::NotHere(_) = failure {
            self.give_up(to);
        }
        Err(match (failure, &self.target) {
            // A primary that sentinels have replaced: nobody has to act, they name the next.
            (Failure::NotHere(StoreError::Misconfigured(_, why)), Target::Primary(_)) => {
                Failure::NotHere(StoreError::Unavailable(why))
            }
            (failure, _) => failure,
        })
    }

    /// This connection is of no use any more; a newer one may be.
    fn give_up(&self, connected: &Connected) {
        let gave_up = self.state.send_if_modified(|state| {
            let current = matches!(state, State::Up(up) if up.number == connected.number);
            if current {
                *state = State::Connecting;
            }
            current
        });
        if gave_up {
            self.broken.notify_one();
        }
    }

    /// Connects, and connects again, for as long as the link is used.
    pub(super) async fn keep_up(self: Arc<Self>) {
        let mut pause = Duration::ZERO;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    pause = Duration::ZERO;
                    let number = self.made.fetch_add(1, Ordering::Relaxed);
                    let connected = Connected { connection, number };
                    self.state.send_replace(State::Up(connected.clone()));
                    self.until_broken(&connected).await;
                    // Others lost theirs at the same moment: do not all come back in the same.
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
            // Sentinels that are silent must not hold up what a request has found out.
            tokio::select! {
                () = self.broken.notified() => return,
                () = self.look(connected, &beat) => {}
            }
        }
    }

    /// Gives the connection up if it does not lead to the primary any more.
    async fn look(&self, connected: &Connected, beat: &Cmd) {
        // A refusal is a sign of life, and a connection that gives none is given up by `send`.
        // A replica refuses to write, but would go on to deny by what it has copied.
        if self.send(connected, beat).await.is_ok_and(|role| sentinel::is_replica(&role)) {
            self.give_up(connected);
        }
        if let Target::Primary(watched) = &self.target {
            let named = sentinel::primary(watched, &self.tls, self.patience).await;
            if named.is_ok_and(|info| info.addr().to_string() != self.address()) {
                self.give_up(connected);
            }
        }
    }

    /// One attempt.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        let info = match &self.target {
            Target::Fixed(info) | Target::Node(info) => info.clone(),
            Target::Primary(watched) => {
                sentinel::primary(watched, &self.tls, self.patience).await?
            }
        };
        let address = info.addr().to_string();
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address.clone();
        let connection = open(info, &self.tls, self.patience).await?;
        self.verify(&mut connection.clone(), &address).await?;
        Ok(connection)
    }

    /// No decision is made on a replica.
    async fn verify(
        &self,
        connection: &mut MultiplexedConnection,
        address: &str,
    ) -> Result<(), StoreError> {
        if matches!(self.target, Target::Node(_)) {
            return Ok(());
        }
        let primary = sentinel::is_primary(connection, address, self.patience).await;
        match (primary, &self.target) {
            (Ok(true), _) => Ok(()),
            (Ok(false), Target::Primary(_)) => {
                Err(StoreError::unavailable(format!("{address} is not primary yet")))
            }
            (Ok(false), _) => {
                let why = format!("{address} is a replica");
                Err(StoreError::misconfigured(Misconfigured::ReadOnly, why))
            }
            // Proxies do not know the command. Whoever is behind them refuses to write.
            (Err(StoreError::Misconfigured(Misconfigured::Version, _)), Target::Fixed(_)) => Ok(()),
            (Err(error), _) => Err(error),
        }
    }
}

/// Opens a connection to exactly this server.
pub(super) async fn open(
    info: ConnectionInfo,
    tls: &Tls,
    patience: Duration,
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
        .set_connection_timeout(Some(patience))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1_024);
    let client = client.map_err(|error| failed(&error))?;
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    match timeout(patience, connecting).await {
        Ok(connected) => connected.map_err(|error| failed(&error)),
        Err(_) => Err(StoreError::unavailable(format!("{address} does not answer"))),
    }
}

/// Half to one and a half times as long.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64())
}
