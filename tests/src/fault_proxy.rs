//! A proxy in front of a server, on loopback, that causes network faults on request.
//!
//! It can also simulate distance: every byte then takes half a round trip in each direction, and
//! bytes in transit do not delay later ones.
//!
//! Memory is bounded by the number of connections and of pieces in transit in each direction.
//! Beyond these bounds the proxy stops reading, so that the sender has to wait.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep_until};

/// Maximum number of connections at a time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 256;
/// Maximum size of a forwarded piece.
const PIECE: usize = 16 << 10;
/// Maximum number of pieces in transit in one direction of a connection.
const MAX_PIECES: usize = 1_024;

/// The average lateness of a timer.
const TIMER_ROUNDING: Duration = Duration::from_micros(500);

/// The fault of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// Some replies are late, and all later bytes of their connections with them.
    Late {
        /// The share of late replies, in per cent.
        percent: u8,
        /// The delay of a late reply.
        by: Duration,
    },
    /// No bytes pass in either direction until the fault changes.
    Hold,
    /// Arriving bytes are lost, and all later bytes of the same connection.
    Lose,
    /// Existing and new connections are reset.
    Reset,
    /// With the next reply, the server's side of the connection ends; the client may continue to
    /// send.
    HalfClose,
    /// Half of the next reply arrives, and the connection ends.
    Truncate,
}

/// A proxy in front of one server; its connections end when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    /// The id of the thread that forwards the bytes.
    thread: u32,
    fault: watch::Sender<Fault>,
    round_trip: Arc<AtomicU64>,
    accepted: Arc<AtomicU64>,
}

/// State that all connections of a proxy share.
#[derive(Clone, Debug)]
struct Network {
    server: SocketAddr,
    fault: watch::Receiver<Fault>,
    /// The added round trip, in milliseconds.
    round_trip: Arc<AtomicU64>,
}

impl Network {
    /// Waits until bytes sent at `sent` are due.
    async fn delay(&self, sent: Instant, are_replies: bool) {
        let round_trip = self.round_trip.load(Ordering::Relaxed);
        let millis = if are_replies { round_trip.div_ceil(2) } else { round_trip / 2 };
        // The timer rounds up to the next millisecond, which this compensates on average.
        if let Some(early) = Duration::from_millis(millis).checked_sub(TIMER_ROUNDING) {
            sleep_until(sent + early).await;
        }
    }
}

impl FaultProxy {
    /// Listens on loopback, and forwards connections to this port.
    ///
    /// # Panics
    /// If no port is free or no thread can be started.
    pub fn start(port: u16) -> Self {
        let (fault, answer) = watch::channel(Fault::None);
        let accepted = Arc::new(AtomicU64::new(0));
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("it is bound");
        listener.set_nonblocking(true).expect("a new socket");
        let counter = Arc::clone(&accepted);
        let round_trip = Arc::<AtomicU64>::default();
        let server = (Ipv4Addr::LOCALHOST, port).into();
        let network =
            Network { server, fault: answer.clone(), round_trip: Arc::clone(&round_trip) };
        let (sender, thread) = std::sync::mpsc::channel();
        thread::spawn(move || {
            sender.send(own_thread()).expect("it is waited for");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // Ends with the sender, and all connections with it.
            runtime.expect("a runtime").block_on(async move {
                let mut ended = answer;
                let listener =
                    TcpListener::from_std(listener).expect("a socket that does not wait");
                tokio::select! {
                    () = accept(&listener, &network, &counter) => {}
                    _ = ended.wait_for(|_| false) => {}
                }
            });
        });
        Self { address, thread: thread.recv().expect("a thread"), fault, round_trip, accepted }
    }

    /// The id of the thread that forwards the bytes, for tests that must keep it running.
    pub const fn thread(&self) -> u32 {
        self.thread
    }

    /// The URL for clients under test.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Applies this fault to every connection from now on.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Adds this many milliseconds to every round trip from now on, half of them in each direction.
    pub fn set_round_trip(&self, millis: u64) {
        self.round_trip.store(millis, Ordering::Relaxed);
    }

    /// Number of connections so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// The id of the current thread: the link reads `PID/task/TID`.
fn own_thread() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").expect("Linux");
    let id = link.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    id.expect("a number")
}

async fn accept(listener: &TcpListener, network: &Network, accepted: &AtomicU64) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let Ok((client, _)) = listener.accept().await else { return };
        accepted.fetch_add(1, Ordering::Relaxed);
        let network = network.clone();
        tokio::spawn(async move {
            // An error of a connection is not an error of the proxy, which exists to cause them.
            let _ = carry(client, network).await;
            drop(place);
        });
    }
}

/// How a connection ends.
enum End {
    Closed,
    Reset,
}

async fn carry(mut client: TcpStream, mut network: Network) -> io::Result<()> {
    let mut server = TcpStream::connect(network.server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let end = {
        let (asking, asked) = (network.clone(), network.clone());
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        tokio::select! {
            end = pass(from_client, to_server, asking, false) => end?,
            end = pass(from_server, to_client, asked, true) => end?,
            _ = network.fault.wait_for(|fault| *fault == Fault::Reset) => End::Reset,
        }
    };
    match end {
        End::Reset => client.set_zero_linger(),
        End::Closed => Ok(()),
    }
}

/// Bytes in transit, and when they were sent; none at the end of a stream.
type Piece = (Instant, Vec<u8>);

/// Forwards the pieces in order, each after the delay.
async fn pass(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    network: Network,
    are_replies: bool,
) -> io::Result<End> {
    let (sender, pieces) = channel(MAX_PIECES);
    tokio::select! {
        Err(error) = receive(from, sender) => Err(error),
        end = deliver(pieces, to, network, are_replies) => end,
    }
}

async fn receive(mut from: impl AsyncRead + Unpin, pieces: Sender<Piece>) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let length = from.read(&mut buffer).await?;
        let piece = (Instant::now(), buffer[..length].to_vec());
        if pieces.send(piece).await.is_err() || length == 0 {
            return Ok(());
        }
    }
}

async fn deliver(
    mut pieces: Receiver<Piece>,
    mut to: impl AsyncWrite + Unpin,
    mut network: Network,
    are_replies: bool,
) -> io::Result<End> {
    let mut is_over = false;
    while let Some((sent, piece)) = pieces.recv().await {
        network.delay(sent, are_replies).await;
        if piece.is_empty() {
            break;
        }
        if is_over {
            continue;
        }
        // The peer has gone once the proxy is dropped.
        let held = network.fault.wait_for(|fault| *fault != Fault::Hold).await;
        let now = held.map_or(Fault::Reset, |fault| *fault);
        match now {
            Fault::Late { percent, by } if are_replies && fastrand::u8(..100) < percent => {
                sleep_until(Instant::now() + by).await;
            }
            Fault::HalfClose if are_replies => to.shutdown().await?,
            Fault::Truncate if are_replies => {
                to.write_all(&piece[..piece.len() / 2]).await?;
                return Ok(End::Closed);
            }
            Fault::None
            | Fault::Late { .. }
            | Fault::Hold
            | Fault::Lose
            | Fault::Reset
            | Fault::HalfClose
            | Fault::Truncate => {}
        }
        is_over = now == Fault::Lose || (now == Fault::HalfClose && are_replies);
        if !is_over {
            to.write_all(&piece).await?;
        }
    }
    Ok(End::Closed)
}
