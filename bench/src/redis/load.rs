//! Concurrent callers, each with one request after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::contender::{Contender, Trouble};
use crate::traffic::{Names, Request};

/// The callers' measurements.
#[derive(Debug, Default)]
pub struct Seen {
    /// Microseconds from asking to the answer, in order of length.
    pub latencies: Vec<f32>,
    pub wall: Duration,
}

impl Seen {
    pub fn decisions(&self) -> f64 {
        self.latencies.len() as f64
    }

    /// The time that this per cent of the decisions did not exceed.
    pub fn percentile(&self, percent: usize) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get(last * percent / 100).copied().map_or(f64::NAN, f64::from)
    }
}

/// Asks for the requests in a loop until the time is over.
pub async fn run<C: Contender>(
    contender: &C,
    requests: &Arc<[Request]>,
    callers: usize,
    slice: Duration,
) -> Result<Seen, Trouble> {
    let (next, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let caller = || {
        let (mut contender, next) = (contender.clone(), Arc::clone(&next));
        let requests = Arc::clone(requests);
        tokio::spawn(async move {
            let mut latencies = Vec::with_capacity(1 << 12);
            loop {
                let request = &requests[next.fetch_add(1, Ordering::Relaxed) % requests.len()];
                let asked = Instant::now();
                allowed(contender.decide(&request.key).await?)?;
                let answered = Instant::now();
                latencies.push((answered - asked).as_secs_f32() * 1e6);
                if answered - start >= slice {
                    return Ok(latencies);
                }
            }
        })
    };
    let callers: Vec<_> = (0..callers).map(|_| caller()).collect();
    let mut seen = Seen::default();
    for caller in callers {
        seen.latencies.extend(caller.await.map_err(Trouble::of)??);
    }
    seen.wall = start.elapsed();
    seen.latencies.sort_unstable_by(f32::total_cmp);
    Ok(seen)
}

/// Sends one request for each of `keys` keys.
pub async fn fill<C: Contender>(contender: &C, keys: u32, callers: usize) -> Result<(), Trouble> {
    let next = Arc::new(AtomicUsize::new(0));
    let caller = || {
        let (mut contender, next) = (contender.clone(), Arc::clone(&next));
        tokio::spawn(async move {
            let mut request = Names::Single.request();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed) as u32;
                if index >= keys {
                    return Ok(());
                }
                Names::Single.write(&mut request, index);
                allowed(contender.decide(&request.key).await?)?;
            }
        })
    };
    let callers: Vec<_> = (0..callers).map(|_| caller()).collect();
    for caller in callers {
        caller.await.map_err(Trouble::of)??;
    }
    Ok(())
}

/// The limits are so wide that a denial is a mistake.
fn allowed(allowed: bool) -> Result<(), Trouble> {
    if allowed { Ok(()) } else { Err(Trouble("denied what must be allowed".into())) }
}
