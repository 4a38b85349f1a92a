//! A network that can be made to fail: stands in front of a server, on the loopback, and does to its
//! connections what it is told.
//!
//! What it keeps is bounded: so many connections, and one piece of each direction at a time. What waits
//! here is not read, so that whoever sends has to wait as well.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep_until};

/// The most connections at a time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 256;
/// The longest piece that is passed on at once.
const PIECE: usize = 16 << 10;

/// What is wrong with the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// So many of a hundred replies come so much later, and with them what follows on the connection.
    Late {
        /// How many of a hundred.
        percent: u8,
        /// How much later.
        by: Duration,
    },
    /// Nothing passes in either direction, until the fault is another.
    Hold,
    /// What comes is lost, and so is all that follows on the same connection.
    Lose,
    /// Connections are reset, those that are there and new ones.
    Reset,
    /// With the next reply the server's side of a connection ends; the client may go on to send.
    HalfClose,
    /// Half of the next reply comes, and the connection ends.
    Truncate,
}

/// A proxy in front of one server; its connections end when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    fault: watch::Sender<Fault>,
    accepted: Arc<AtomicU64>,
}

impl FaultProxy {
    /// Listens on the loopback, and leads to this port there.
    ///
    /// # Panics
    /// If the system has no port or no thread for it.
    pub fn start(port: u16) -> Self {
        let (fault, told) = watch::channel(Fault::None);
        let accepted = Arc::new(AtomicU64::new(0));
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("it is bound");
        listener.set_nonblocking(true).expect("a new socket");
        let counter = Arc::clone(&accepted);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let server = (Ipv4Addr::LOCALHOST, port).into();
            // Ends with the sender, and all connections with it.
            runtime.expect("a runtime").block_on(async move {
                let mut ended = told.clone();
                let listener =
                    TcpListener::from_std(listener).expect("a socket that does not wait");
                tokio::select! {
                    () = accept(&listener, server, &told, &counter) => {}
                    _ = ended.wait_for(|_| false) => {}
                }
            });
        });
        Self { address, fault, accepted }
    }

    /// What a client under test is given.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Does this to every connection, from now on.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// How many connections there have been.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

async fn accept(
    listener: &TcpListener,
    server: SocketAddr,
    fault: &watch::Receiver<Fault>,
    accepted: &AtomicU64,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let Ok((client, _)) = listener.accept().await else { return };
        accepted.fetch_add(1, Ordering::Relaxed);
        let fault = fault.clone();
        tokio::spawn(async move {
            // How a connection ends is what the proxy is for.
            let _ = carry(client, server, fault).await;
            drop(place);
        });
    }
}

/// How a connection ends.
enum End {
    Closed,
    Reset,
}

async fn carry(
    mut client: TcpStream,
    server: SocketAddr,
    mut fault: watch::Receiver<Fault>,
) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let end = {
        let (mut asking, mut asked) = (fault.clone(), fault.clone());
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        tokio::select! {
            end = pass(from_client, to_server, &mut asking, false) => end?,
            end = pass(from_server, to_client, &mut asked, true) => end?,
            _ = fault.wait_for(|fault| *fault == Fault::Reset) => End::Reset,
        }
    };
    match end {
        End::Reset => client.set_zero_linger(),
        End::Closed => Ok(()),
    }
}

/// Passes on what comes, one piece after the other.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    fault: &mut watch::Receiver<Fault>,
    are_replies: bool,
) -> io::Result<End> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return Ok(End::Closed);
        }
        // Nobody can be told any more once the proxy is gone.
        let held = fault.wait_for(|fault| *fault != Fault::Hold).await;
        let now = held.map_or(Fault::Reset, |fault| *fault);
        let mut passed = &piece[..length];
        match now {
            Fault::Lose => passed = &[],
            Fault::Late { percent, by } if are_replies && fastrand::u8(..100) < percent => {
                sleep_until(Instant::now() + by).await;
            }
            Fault::HalfClose if are_replies => to.shutdown().await?,
            Fault::Truncate if are_replies => {
                to.write_all(&passed[..length / 2]).await?;
                return Ok(End::Closed);
            }
            Fault::None
            | Fault::Late { .. }
            | Fault::Hold
            | Fault::Reset
            | Fault::HalfClose
            | Fault::Truncate => {}
        }
        let is_over = now == Fault::Lose || (now == Fault::HalfClose && are_replies);
        if is_over {
            return swallow(from, &mut piece).await;
        }
        to.write_all(passed).await?;
    }
}

/// Reads what still comes, for nobody.
async fn swallow(mut from: impl AsyncRead + Unpin, piece: &mut [u8]) -> io::Result<End> {
    while from.read(piece).await? > 0 {}
    Ok(End::Closed)
}
