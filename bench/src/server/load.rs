//! Callers with one request after the other, all in one thread, because only the server is
//! measured.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::Trouble;
use super::calls;
use super::wire::{Answers, Template};

/// A load: target, request, and concurrency.
#[derive(Clone, Debug)]
pub struct Load {
    pub address: SocketAddr,
    pub speech: Speech,
    pub template: Template,
    /// Connections.
    pub conns: usize,
    pub keys: u32,
}

/// The form of the requests.
#[derive(Clone, Copy, Debug)]
pub enum Speech {
    /// This many requests at a time on each connection.
    Bytes { answers: Answers, pipeline: usize },
    /// This many calls in flight, over all connections.
    Calls { streams: usize },
}

/// The callers' measurements.
#[derive(Debug, Default)]
pub struct Seen {
    /// Microseconds from asking to the last answer of each batch.
    pub latencies: Vec<f32>,
    pub decisions: u64,
    pub wall: Duration,
}

/// When to stop, and which keys are asked for.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// Any keys, for this long.
    Over(Duration),
    /// Every key once.
    All,
}

impl Seen {
    /// The time that this per cent of the batches did not exceed; latencies are sorted.
    pub fn percentile(&self, percent: usize) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get(last * percent / 100).copied().map_or(f64::NAN, f64::from)
    }

    pub fn add(&mut self, asked: Instant, decisions: usize) {
        self.latencies.push(asked.elapsed().as_secs_f32() * 1e6);
        self.decisions += decisions as u64;
    }
}

impl Load {
    /// Asks until it is over.
    pub fn run(&self, until: Until) -> Result<Seen, Trouble> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Trouble::of)?;
        let start = Instant::now();
        let parts = LocalSet::new().block_on(&runtime, async {
            let callers: Vec<_> = (0..self.conns)
                .map(|number| {
                    let (load, keys) = (self.clone(), Keys::new(self, until, number, start));
                    tokio::task::spawn_local(async move {
                        match load.speech {
                            Speech::Bytes { answers, pipeline } => {
                                load.exchange(answers, pipeline, keys).await
                            }
                            Speech::Calls { streams } => {
                                let share = (streams + number) / load.conns;
                                calls::run(&load, share, keys).await
                            }
                        }
                    })
                })
                .collect();
            let mut parts = Vec::new();
            for caller in callers {
                parts.push(caller.await.map_err(Trouble::of)??);
            }
            Ok(parts)
        });
        let mut seen = Seen { wall: start.elapsed(), ..Seen::default() };
        for part in parts? {
            seen.latencies.extend(part.latencies);
            seen.decisions += part.decisions;
        }
        seen.latencies.sort_by(f32::total_cmp);
        Ok(seen)
    }

    async fn exchange(
        &self,
        answers: Answers,
        pipeline: usize,
        mut keys: Keys,
    ) -> Result<Seen, Trouble> {
        let mut stream = TcpStream::connect(self.address).await.map_err(Trouble::of)?;
        stream.set_nodelay(true).map_err(Trouble::of)?;
        let (mut out, mut bytes, mut seen) = (Vec::new(), Vec::new(), Seen::default());
        loop {
            out.clear();
            let batch: Vec<u32> = keys.by_ref().take(pipeline).collect();
            if batch.is_empty() {
                return Ok(seen);
            }
            batch.iter().for_each(|key| self.template.write(*key, &mut out));
            let asked = Instant::now();
            stream.write_all(&out).await.map_err(Trouble::of)?;
            let (mut left, mut at) = (batch.len(), 0);
            bytes.clear();
            while left > 0 {
                if stream.read_buf(&mut bytes).await.map_err(Trouble::of)? == 0 {
                    return Err(Trouble(format!("{} closed the connection", self.address)));
                }
                while let Some(length) = answers.first(&bytes[at..])? {
                    at += length;
                    left -= 1;
                }
            }
            seen.add(asked, batch.len());
        }
    }
}

/// The keys that one caller asks for.
#[derive(Clone, Debug)]
pub struct Keys {
    state: u64,
    /// A range of its own, or the end of time.
    end: End,
    keys: u32,
}

#[derive(Clone, Copy, Debug)]
enum End {
    At(Instant),
    Key(u64),
}

impl Keys {
    fn new(load: &Load, until: Until, number: usize, start: Instant) -> Self {
        let (number, conns) = (number as u64, load.conns as u64);
        let keys = load.keys;
        match until {
            Until::Over(slice) => Self { state: number, end: End::At(start + slice), keys },
            Until::All => {
                let bound = |number: u64| u64::from(keys) * number / conns;
                Self { state: bound(number), end: End::Key(bound(number + 1)), keys }
            }
        }
    }

    /// The keys of caller `number` of `of` callers that share these.
    pub fn share(&self, number: usize, of: usize) -> Self {
        let (number, of) = (number as u64, of as u64);
        match self.end {
            End::At(_) => Self { state: self.state + 1_000 * number, ..self.clone() },
            End::Key(last) => {
                let bound = |number: u64| self.state + (last - self.state) * number / of;
                Self { state: bound(number), end: End::Key(bound(number + 1)), ..self.clone() }
            }
        }
    }
}

impl Iterator for Keys {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        match self.end {
            End::Key(last) => {
                let key = self.state;
                self.state += 1;
                (key < last).then_some(key as u32)
            }
            End::At(end) => {
                self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                (Instant::now() < end).then(|| {
                    let mixed =
                        (self.state ^ (self.state >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    ((mixed >> 33) % u64::from(self.keys)) as u32
                })
            }
        }
    }
}
