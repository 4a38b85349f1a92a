//! Resident memory of the gateway with many connections.

use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::load;
use super::members::{Members, OURS};
use crate::Failure;
use crate::server::Trouble;
use crate::server::load::Until;
use crate::server::member::{Member, rss_mib};
use crate::server::wire::{Answers, get};

const BUSY: usize = 1_000;
const IDLE: usize = 10_000;

/// Resident MiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    pub empty: f64,
    pub busy: f64,
    pub busy_connections: usize,
    pub idle: f64,
    pub idle_connections: usize,
}

impl Memory {
    /// A smoke run has too few connections for the targets.
    pub fn at_full_size(&self, mib: f64) -> Option<f64> {
        (self.idle_connections == IDLE).then_some(mib)
    }
}

/// Measures a new gateway, which has served no other load.
pub fn measure(members: &Members, quick: bool) -> Result<Memory, Failure> {
    let (busy_connections, idle_connections) = if quick { (20, 100) } else { (BUSY, IDLE) };
    let slice = Duration::from_millis(if quick { 40 } else { 2_000 });
    let fresh = || members.gateway(None);
    let member = fresh()?;
    let empty = rss_mib(member.pid());
    load(&member, busy_connections).run(Until::Over(slice)).map_err(|trouble| trouble.0)?;
    // Freed memory stays resident, so this is the peak.
    let busy = rss_mib(member.pid());
    drop(member);
    let member = fresh()?;
    let idle =
        idle(&member, idle_connections).map_err(|trouble| format!("{OURS}: {}", trouble.0))?;
    Ok(Memory { empty, busy, busy_connections, idle, idle_connections })
}

/// Memory with connections that have each had one answer.
fn idle(member: &Member, connections: usize) -> Result<f64, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Trouble::of)?.block_on(async {
        let (mut open, mut request) = (Vec::new(), Vec::new());
        get("/").write(1, &mut request);
        for _ in 0..connections {
            let mut socket = TcpStream::connect(member.address(0)).await.map_err(Trouble::of)?;
            socket.write_all(&request).await.map_err(Trouble::of)?;
            let mut bytes = Vec::new();
            while Answers::Http.first(&bytes)?.is_none() {
                if socket.read_buf(&mut bytes).await.map_err(Trouble::of)? == 0 {
                    return Err(Trouble(format!("closed after {} connections", open.len())));
                }
            }
            open.push(socket);
        }
        Ok(rss_mib(member.pid()))
    })
}
