//! The load of clients with the layers of this project: `RetryLayer`, then `ThrottleLayer`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use http::{Request, Response};
use tidegate_tower::Timeout;
use tidegate_tower::client::{RetryLayer, ThrottleLayer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use super::connection::parse;
use super::load::BEGINS;
use super::spec::{Second, Spec};
use super::work::Draws;
use crate::Failure;

/// The first argument of the process.
pub const COMMAND: &str = "overload-client";

/// The error of an attempt.
type Broken = Box<dyn std::error::Error + Send + Sync>;

/// State that all clients share.
struct Shared {
    address: SocketAddr,
    deadline: Duration,
    idle: Mutex<Vec<TcpStream>>,
    seconds: Mutex<Vec<Second>>,
    start: Instant,
}

/// Runs the process: reads a [`Spec`], and writes the seconds.
pub fn generate(arguments: &[String]) -> Result<(), Failure> {
    let [spec] = arguments else { return Err("a load is needed".into()) };
    let spec: Spec = serde_json::from_str(spec)?;
    let shared = Arc::new(Shared {
        address: spec.address,
        deadline: Duration::from_millis(spec.deadline_ms),
        idle: Mutex::default(),
        seconds: Mutex::new(vec![Second::default(); spec.seconds() as usize]),
        start: Instant::now(),
    });
    println!("{BEGINS}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(send(&spec, &shared));
    let seconds = shared.seconds.lock().unwrap_or_else(PoisonError::into_inner);
    serde_json::to_writer(std::io::stdout(), &*seconds)?;
    Ok(std::io::stdout().flush()?)
}

async fn send(spec: &Spec, shared: &Arc<Shared>) {
    let inner = Arc::clone(shared);
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(ThrottleLayer::new())
        .service(service_fn(move |_| attempt(Arc::clone(&inner))));
    let draws = Draws::new(spec.seed);
    let (mut due, mut begin, mut tasks) = (0.0, 0.0, tokio::task::JoinSet::new());
    for phase in &spec.phases {
        let end = begin + f64::from(phase.seconds);
        due = f64::max(due, begin);
        loop {
            due += draws.exponential() / phase.rate.max(1e-6);
            if due >= end {
                break;
            }
            let (at, service) = (shared.start + Duration::from_secs_f64(due), service.clone());
            tokio::time::sleep_until(at.into()).await;
            // Bounded by the time in which a request gives up.
            while tasks.try_join_next().is_some() {}
            let shared = Arc::clone(shared);
            tasks.spawn(async move {
                shared.count(at, |second| {
                    second.requests[0] += 1;
                    second.lateness_us = second.lateness_us.max(micros(at.elapsed()));
                });
                // All attempts together have as much time as those of a client with three retries.
                let deadline = shared.deadline * 4;
                let request = Request::get("/critical").extension(Timeout(deadline));
                let Ok(request) = request.body(Body::empty()) else { return };
                let answer = tokio::time::timeout(deadline, service.oneshot(request)).await;
                if answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status() == 200)) {
                    shared.count(at, |second| second.served[0] += 1);
                }
            });
        }
        begin = end;
    }
    while tasks.join_next().await.is_some() {}
}

/// One attempt, on a connection that is kept.
async fn attempt(shared: Arc<Shared>) -> Result<Response<Body>, Broken> {
    let now = Instant::now();
    shared.count(now, |second| second.attempts += 1);
    let answer = tokio::time::timeout(shared.deadline, shared.ask()).await;
    let (status, head, stream) = answer??;
    shared.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    if status == 503 {
        shared.count(now, |second| second.shed[0] += 1);
    }
    let mut response = Response::builder().status(status);
    for line in head.split("\r\n").skip(1) {
        if let Some((name, value)) = line.split_once(": ") {
            response = response.header(name, value);
        }
    }
    Ok(response.body(Body::empty())?)
}

impl Shared {
    async fn ask(&self) -> Result<(u16, String, TcpStream), Broken> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => TcpStream::connect(self.address).await?,
        };
        stream.set_nodelay(true)?;
        stream.write_all(b"GET /critical HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
        let (mut buffer, mut length) = (vec![0; 16 * 1_024], 0);
        loop {
            let read = stream.read(&mut buffer[length..]).await?;
            if read == 0 {
                return Err("the connection ended".into());
            }
            length += read;
            let head = buffer[..length].windows(4).position(|four| four == b"\r\n\r\n");
            let Some(end) = head else { continue };
            let (status, body) = parse(&buffer[..end]).ok_or("a malformed response")?;
            if length >= end + 4 + body {
                return Ok((status, String::from_utf8_lossy(&buffer[..end]).into_owned(), stream));
            }
        }
    }

    fn count(&self, at: Instant, change: impl FnOnce(&mut Second)) {
        let second = at.duration_since(self.start).as_secs() as usize;
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(second) = seconds.get_mut(second) {
            change(second);
        }
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
