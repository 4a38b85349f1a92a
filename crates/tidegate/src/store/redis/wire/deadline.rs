//! Time limits that measure the server and not this process.
//!
//! A wait counts only the time in which this process listened. It is cut into ticks. A tick that
//! ends late, because the process was stopped, starved of CPU or busy, counts for little more than
//! a tick that ends on time, and the connection is read between two ticks. A reply that arrived
//! during a stall is therefore used, and a server is silent only if it sent nothing while several
//! ticks passed.
//!
//! # Numbers
//! | | |
//! |---|---|
//! | deadline | 2 × round trip + 4 × its deviation, at least [`SHORTEST`], at most [`LONGEST`] |
//! | tick | an eighth of the limit, at least 2 ms |
//! | counted per tick | at most 1.5 ticks, or the tick and 1 ms if that is longer |
//! | commands in flight | [`PER_MILLISECOND`] for each millisecond of the shortest round trip, at least [`FEWEST`] |

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

/// The shortest deadline: a nearby server may be saving, or paused by its host for a moment.
pub(in crate::store::redis) const SHORTEST: Duration = Duration::from_millis(10);
/// The longest deadline: a server that answers later counts as too slow.
pub(in crate::store::redis) const LONGEST: Duration = Duration::from_secs(1);
/// Commands in flight for each millisecond of the shortest round trip.
const PER_MILLISECOND: u64 = 16;
/// Commands in flight to a nearby server. Later requests share the next command, which costs the
/// server less than one command each.
const FEWEST: u64 = 4;

/// The most that the time between two turns of a queue counts for.
const LONGEST_TURN: Duration = Duration::from_millis(250);
const SHORTEST_TICK: Duration = Duration::from_millis(2);
const TICKS: u32 = 8;

/// The server sent nothing while this process listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct Silent;

/// Waits for `work`, but no longer than `limit` spent listening.
pub(in crate::store::redis) async fn listen<T>(
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, Silent> {
    wait(&mut Listening::start(limit), limit, work).await
}

/// Waits for `work` as [`listen`] does, and returns how long that took, if this process ran without
/// a pause.
pub(in crate::store::redis) async fn measure<T>(
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<(T, Option<Duration>), Silent> {
    let mut listening = Listening::start(limit);
    let value = wait(&mut listening, limit, work).await?;
    Ok((value, listening.undisturbed()))
}

async fn wait<T>(
    listening: &mut Listening,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, Silent> {
    let mut work = pin!(work);
    while listening.heard_nothing_for < limit {
        tokio::select! {
            biased;
            value = &mut work => return Ok(value),
            () = listening.tick() => {}
        }
    }
    last_look(work).await
}

/// Reads replies that have arrived before `work` is given up.
pub(in crate::store::redis) async fn last_look<T>(
    work: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Silent> {
    let reading = async {
        // Once for the runtime to see the data, once for the connection to deliver it.
        for _ in 0..2 {
            yield_now().await;
        }
    };
    tokio::select! {
        biased;
        value = work => Ok(value),
        () = reading => Err(Silent),
    }
}

/// How long this process has listened for a reply.
#[derive(Debug)]
pub(in crate::store::redis) struct Listening {
    started: Instant,
    ticked: Instant,
    tick: Duration,
    /// Total time listened.
    pub(in crate::store::redis) listened: Duration,
    /// Time listened since the server last sent anything.
    pub(in crate::store::redis) heard_nothing_for: Duration,
}

impl Listening {
    pub(in crate::store::redis) fn start(limit: Duration) -> Self {
        let (started, tick) = (Instant::now(), (limit / TICKS).max(SHORTEST_TICK).min(limit));
        let (listened, heard_nothing_for) = (Duration::ZERO, Duration::ZERO);
        Self { started, ticked: started, tick, listened, heard_nothing_for }
    }

    /// Waits for one tick. If it is dropped half-way, the next tick counts for both.
    pub(in crate::store::redis) async fn tick(&mut self) {
        sleep(self.tick).await;
        let now = Instant::now();
        let counted = (now - self.ticked).min(self.most());
        self.ticked = now;
        self.listened += counted;
        self.heard_nothing_for += counted;
    }

    /// The most that one tick counts for.
    fn most(&self) -> Duration {
        self.tick + (self.tick / 2).max(Duration::from_millis(1))
    }

    /// Records that the server sent something.
    pub(in crate::store::redis) const fn heard(&mut self) {
        self.heard_nothing_for = Duration::ZERO;
    }

    /// How long the wait took, if this process ran without a pause.
    pub(in crate::store::redis) fn undisturbed(&self) -> Option<Duration> {
        let took = self.started.elapsed();
        (took <= self.listened + self.most()).then_some(took)
    }
}

/// Time that a queue has been processed. The time between two turns counts for at most
/// [`LONGEST_TURN`], because this process may have been stopped meanwhile.
#[derive(Debug)]
pub(in crate::store::redis) struct QueueTime {
    passed: Duration,
    turned: Instant,
}

impl QueueTime {
    pub(in crate::store::redis) fn start() -> Self {
        Self { passed: Duration::ZERO, turned: Instant::now() }
    }

    pub(in crate::store::redis) const fn passed(&self) -> Duration {
        self.passed
    }

    /// Starts the next turn of the queue.
    pub(in crate::store::redis) fn turn(&mut self) {
        self.passed += self.turned.elapsed().min(LONGEST_TURN);
        self.turned = Instant::now();
    }
}

/// The measured round trip to one server, and the limits that follow from it.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct RoundTrip(Mutex<Option<Measured>>);

/// In microseconds.
#[derive(Clone, Copy, Debug)]
struct Measured {
    mean: u64,
    deviation: u64,
    /// The shortest on the current connection.
    shortest: u64,
}

impl Measured {
    const fn first(micros: u64) -> Self {
        Self { mean: micros, deviation: micros / 2, shortest: micros }
    }

    fn deadline(self) -> Duration {
        let micros = 2 * self.mean + 4 * self.deviation;
        Duration::from_micros(micros).clamp(SHORTEST, LONGEST)
    }
}

impl RoundTrip {
    fn lock(&self) -> MutexGuard<'_, Option<Measured>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one measurement.
    pub(in crate::store::redis) fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 8).min(u64::MAX / 8);
        let mut measured = self.lock();
        *measured = Some(match *measured {
            // One late reply is enough for the deadline to follow a server that is suddenly further
            // away.
            Some(known) if took <= known.deadline() => {
                let difference = known.mean.abs_diff(micros);
                Measured {
                    mean: (7 * known.mean + micros) / 8,
                    deviation: (3 * known.deviation + difference) / 4,
                    shortest: known.shortest.min(micros),
                }
            }
            known => {
                let shortest = known.map_or(micros, |known| known.shortest.min(micros));
                Measured { shortest, ..Measured::first(micros) }
            }
        });
    }

    /// Starts measuring a new connection, which may take another route; `took` is its first round
    /// trip, if known.
    pub(in crate::store::redis) fn reconnected(&self, took: Option<Duration>) {
        let Some(took) = took else { return };
        if let Some(known) = &mut *self.lock() {
            known.shortest = u64::MAX;
        }
        self.record(took);
    }

    /// The mean round trip, once one was measured.
    pub(in crate::store::redis) fn mean(&self) -> Option<Duration> {
        self.lock().map(|measured| Duration::from_micros(measured.mean))
    }

    /// How long a server may be silent; `otherwise` before the first measurement.
    pub(in crate::store::redis) fn deadline(&self, otherwise: Duration) -> Duration {
        self.lock().map_or(otherwise, Measured::deadline)
    }

    /// How many commands may be in flight, at most `most`.
    pub(in crate::store::redis) fn depth(&self, most: usize) -> usize {
        let shortest = self.lock().map_or(0, |measured| measured.shortest);
        let depth = (shortest.saturating_mul(PER_MILLISECOND) / 1_000).max(FEWEST);
        usize::try_from(depth).unwrap_or(usize::MAX).min(most)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;
    use tokio::time::advance;

    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The clock jumps, as in a process that was stopped, and a reply arrives meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_stalled_process_reads_the_reply_before_it_gives_up() {
        let (reply, replied) = oneshot::channel();
        let stalled = async {
            advance(millis(60)).await;
            reply.send(()).unwrap();
            pending().await
        };
        tokio::select! {
            biased;
            answer = listen(millis(10), replied) => assert_eq!(answer, Ok(Ok(()))),
            () = stalled => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stalls_hardly_count() {
        let mut listening = Listening::start(millis(10));
        for _ in 0..3 {
            advance(millis(40)).await;
            listening.tick().await;
        }
        assert!(listening.heard_nothing_for < millis(10), "{listening:?}");
        assert_eq!(listening.undisturbed(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_the_wait_at_the_limit() {
        let started = Instant::now();
        assert_eq!(listen(millis(10), pending::<()>()).await, Err(Silent));
        assert!(started.elapsed() >= millis(10) && started.elapsed() <= millis(15));
    }

    #[test]
    fn the_deadline_follows_the_round_trip() {
        let trip = RoundTrip::default();
        assert_eq!(trip.deadline(millis(250)), millis(250));
        for _ in 0..100 {
            trip.record(Duration::from_micros(200));
        }
        assert_eq!((trip.deadline(millis(250)), trip.depth(1_024)), (SHORTEST, 4));
        // One late reply is enough to extend the deadline for the next.
        trip.record(millis(50));
        assert!(trip.deadline(millis(250)) >= millis(100));
        assert_eq!(trip.depth(1_024), 4, "the way was shorter a moment ago");
        for _ in 0..100 {
            trip.record(millis(50));
        }
        let settled = trip.deadline(millis(250));
        assert!(settled >= millis(100) && settled <= millis(110), "{settled:?}");
        trip.reconnected(Some(millis(50)));
        assert_eq!((trip.depth(1_024), trip.depth(100)), (800, 100));
        trip.record(Duration::from_secs(30));
        assert_eq!(trip.deadline(millis(250)), LONGEST);
    }
}
