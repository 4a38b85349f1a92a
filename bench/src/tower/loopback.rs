//! axum on one thread, with requests from another over loopback.

use std::net::SocketAddr;
use std::thread;

use axum::Router;
use axum::routing::get;
use tidegate_tower::Answers;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::{BARE, FIELDS, PLAIN, Row, layer, rows};
use crate::Failure;
use crate::measure::thread_cpu;
use crate::options::Options;

const CONNECTIONS: usize = 32;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nx-user: 17\r\n\r\n";

pub fn measure(options: &Options) -> Result<Vec<Row>, Failure> {
    let rounds = options.rounds.unwrap_or(if options.quick { 2 } else { 15 });
    let requests = if options.quick { 20 } else { 1_000 };
    let names = [BARE, PLAIN, FIELDS];
    let mut measured = Vec::new();
    for _ in 0..rounds {
        let round = [
            serve(router(), requests)?,
            serve(router().layer(layer(Answers::problem_json().on_denials_only())?), requests)?,
            serve(router().layer(layer(Answers::problem_json())?), requests)?,
        ];
        measured.push(round.to_vec());
    }
    Ok(rows(&names, BARE, &measured))
}

fn router() -> Router {
    Router::new().route("/", get(async || "served"))
}

/// Processor time of the server's thread per request.
fn serve(router: Router, requests: usize) -> Result<f64, Failure> {
    let (address_to, address) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = thread::spawn(move || -> std::io::Result<f64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let started = thread_cpu();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let _ = address_to.send(listener.local_addr()?);
            tokio::select! {
                ended = axum::serve(listener, router) => ended,
                _ = stopped => Ok(()),
            }
        })?;
        Ok((thread_cpu() - started).as_nanos() as f64)
    });
    let address = address.recv()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let clients: Vec<_> =
            (0..CONNECTIONS).map(|_| tokio::spawn(ask(address, requests))).collect();
        for client in clients {
            client.await??;
        }
        Ok::<(), Failure>(())
    })?;
    let _ = stop.send(());
    let spent = server.join().map_err(|_| "the server panicked")??;
    Ok(spent / (CONNECTIONS * requests) as f64)
}

/// One connection, one request at a time.
async fn ask(address: SocketAddr, requests: usize) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut buffer = [0; 2_048];
    for _ in 0..requests {
        stream.write_all(REQUEST).await?;
        // A response this small comes in one piece.
        let length = stream.read(&mut buffer).await?;
        if !buffer[..length].starts_with(b"HTTP/1.1 200") {
            return Err(std::io::Error::other("not served"));
        }
    }
    Ok(())
}
