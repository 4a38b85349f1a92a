//! How a backend works on a request.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, oneshot};

use crate::measure::thread_cpu;

/// The bottleneck of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// P: threads that sleep, and a queue in front of them.
    Pool,
    /// C: every request burns processor time on a thread of its own.
    Cpu,
    /// D: handlers without bound, each of which needs a connection of a pool for its work.
    Connections,
    /// T: all requests at once, each slowed down by the others: time × (1 + (requests / 16)²).
    Thrashing,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Pool, Self::Cpu, Self::Connections, Self::Thrashing];

    pub const fn letter(self) -> &'static str {
        match self {
            Self::Pool => "P",
            Self::Cpu => "C",
            Self::Connections => "D",
            Self::Thrashing => "T",
        }
    }

    /// Mean work of a request, unless an experiment says otherwise.
    pub const fn mean(self) -> Duration {
        match self {
            Self::Cpu => Duration::from_millis(2),
            Self::Pool | Self::Connections | Self::Thrashing => Duration::from_millis(10),
        }
    }

    /// Workers or connections; for the other kinds a number that has no effect.
    pub const fn workers(self) -> usize {
        match self {
            Self::Connections => 8,
            Self::Pool | Self::Cpu | Self::Thrashing => 16,
        }
    }

    /// Number of clients of a closed loop with the highest throughput.
    pub const fn clients_at_peak(self) -> usize {
        match self {
            Self::Pool => 32,
            Self::Cpu => 8,
            Self::Connections => 24,
            Self::Thrashing => 16,
        }
    }
}

/// How the work of single requests is distributed around its mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Times {
    Constant,
    Exponential,
    /// The logarithm has a standard deviation of 1.
    Lognormal,
    /// One in ten takes eleven times as long as the others.
    Bimodal,
}

impl Times {
    fn draw(self, mean: f64, draws: &Draws) -> Duration {
        let micros = match self {
            Self::Constant => mean,
            Self::Exponential => mean * draws.exponential(),
            Self::Lognormal => {
                let (radius, angle) = ((2.0 * draws.exponential()).sqrt(), draws.uniform());
                mean * (radius * (std::f64::consts::TAU * angle).cos() - 0.5).exp()
            }
            Self::Bimodal if draws.uniform() < 0.1 => mean * 5.5,
            Self::Bimodal => mean * 0.5,
        };
        Duration::from_nanos((micros * 1_000.0) as u64)
    }
}

/// Random numbers by a seed, drawn by several threads.
pub struct Draws(AtomicU64);

impl Draws {
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Between 0 and 1, never 0 (SplitMix64).
    pub fn uniform(&self) -> f64 {
        let mut number = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((number ^ (number >> 31)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// With a mean of 1.
    pub fn exponential(&self) -> f64 {
        -self.uniform().ln()
    }
}

/// The work of a backend.
pub struct Work {
    kind: Kind,
    times: Times,
    mean_us: f64,
    draws: Draws,
    /// Work of a request, in per cent of that of the healthy server.
    slowness: AtomicU32,
    in_progress: AtomicU32,
    pool: Arc<Pool>,
    connections: Semaphore,
    sleeper: Arc<Sleeper>,
}

impl Work {
    pub fn start(kind: Kind, times: Times, mean: Duration, workers: usize, seed: u64) -> Self {
        let pool = Arc::new(Pool::default());
        pool.workers.store(workers, Ordering::Relaxed);
        if kind == Kind::Pool {
            for number in 0..workers {
                let pool = Arc::clone(&pool);
                thread::spawn(move || pool.work(number));
            }
        }
        let sleeper = Arc::new(Sleeper::default());
        if matches!(kind, Kind::Connections | Kind::Thrashing) {
            let sleeper = Arc::clone(&sleeper);
            thread::spawn(move || sleeper.run());
        }
        Self {
            kind,
            times,
            mean_us: mean.as_secs_f64() * 1e6,
            draws: Draws::new(seed),
            slowness: AtomicU32::new(100),
            in_progress: AtomicU32::new(0),
            pool,
            connections: Semaphore::new(workers),
            sleeper,
        }
    }

    /// Sets the number of workers that take requests.
    pub fn set_workers(&self, workers: usize) {
        self.pool.workers.store(workers, Ordering::Relaxed);
        self.pool.changed.notify_all();
    }

    pub fn set_slowness(&self, percent: u32) {
        self.slowness.store(percent, Ordering::Relaxed);
    }

    /// Works on one request. To be called on a separate task, because a server with workers does
    /// not notice that a client has given up.
    pub async fn serve(&self) {
        let slowness = f64::from(self.slowness.load(Ordering::Relaxed)) / 100.0;
        let time = self.times.draw(self.mean_us * slowness, &self.draws);
        match self.kind {
            Kind::Pool => self.pool.serve(time).await,
            Kind::Cpu => {
                let _ = tokio::task::spawn_blocking(move || burn(time)).await;
            }
            Kind::Connections => {
                let _connection = self.connections.acquire().await;
                self.sleeper.sleep(time).await;
            }
            Kind::Thrashing => {
                let others = f64::from(self.in_progress.fetch_add(1, Ordering::Relaxed) + 1) / 16.0;
                self.sleeper.sleep(time.mul_f64(1.0 + others * others)).await;
                self.in_progress.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Uses processor time of this thread.
fn burn(time: Duration) {
    let start = thread_cpu();
    while thread_cpu() - start < time {
        std::hint::spin_loop();
    }
}

/// Threads that sleep.
#[derive(Default)]
struct Pool {
    jobs: Mutex<VecDeque<(Duration, oneshot::Sender<()>)>>,
    changed: Condvar,
    workers: AtomicUsize,
}

impl Pool {
    async fn serve(&self, time: Duration) {
        let (done, end) = oneshot::channel();
        lock(&self.jobs).push_back((time, done));
        // A failed worker would not take it.
        if self.workers.load(Ordering::Relaxed) < Kind::Pool.workers() {
            self.changed.notify_all();
        } else {
            self.changed.notify_one();
        }
        let _ = end.await;
    }

    fn work(&self, number: usize) {
        loop {
            let mut jobs = lock(&self.jobs);
            let (time, done) = loop {
                let is_at_work = number < self.workers.load(Ordering::Relaxed);
                if is_at_work && let Some(job) = jobs.pop_front() {
                    break job;
                }
                jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            };
            drop(jobs);
            thread::sleep(time);
            let _ = done.send(());
        }
    }
}

/// Wakes tasks more precisely than the runtime, whose timer has a step of a millisecond.
#[derive(Default)]
struct Sleeper {
    sleeping: Mutex<Sleeping>,
    changed: Condvar,
}

#[derive(Default)]
struct Sleeping {
    ends: BinaryHeap<Reverse<(Instant, u64)>>,
    wakers: std::collections::HashMap<u64, oneshot::Sender<()>>,
    last: u64,
}

impl Sleeper {
    async fn sleep(&self, time: Duration) {
        let end = self.enter(time);
        let _ = end.await;
    }

    fn enter(&self, time: Duration) -> oneshot::Receiver<()> {
        let (done, end) = oneshot::channel();
        let mut sleeping = lock(&self.sleeping);
        sleeping.last += 1;
        let number = sleeping.last;
        let entry = Reverse((Instant::now() + time, number));
        let is_first = sleeping.ends.peek().is_none_or(|first| entry > *first);
        sleeping.ends.push(entry);
        sleeping.wakers.insert(number, done);
        drop(sleeping);
        if is_first {
            self.changed.notify_one();
        }
        end
    }

    fn run(&self) {
        let mut sleeping = lock(&self.sleeping);
        loop {
            let now = Instant::now();
            let Some(&Reverse((at, number))) = sleeping.ends.peek() else {
                sleeping = self.changed.wait(sleeping).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if at > now {
                let waited = self.changed.wait_timeout(sleeping, at - now);
                sleeping = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            sleeping.ends.pop();
            if let Some(done) = sleeping.wakers.remove(&number) {
                let _ = done.send(());
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distribution_has_the_mean_it_was_given() {
        for times in [Times::Constant, Times::Exponential, Times::Lognormal, Times::Bimodal] {
            let draws = Draws::new(7);
            let sum: Duration = (0..200_000).map(|_| times.draw(10_000.0, &draws)).sum();
            let mean = sum.as_secs_f64() / 200.0;
            assert!((mean - 10.0).abs() < 0.3, "{times:?}: {mean} ms");
        }
    }
}
