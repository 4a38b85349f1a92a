//! Ways to starve processes: busy loops, pauses, CPU limits.

use std::fmt;
use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;

use super::callers::DAEMONS;
use super::node::let_pass;
use crate::servers::{CPU_PERIOD, CpuGroup, Daemon, Stop};

/// One kind of starvation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Strain {
    Idle,
    /// This many threads that compute all the time.
    Loops(usize),
    /// One daemon after the other is stopped for this long, all the time.
    InTurn(Duration),
    /// Every daemon is stopped once for this long.
    Once(Duration),
    /// The CPU limit of each process, per 100 ms.
    Limit(Duration),
}

impl Strain {
    /// Whether processes other than the daemons get less CPU time too.
    pub(crate) const fn takes_from_all(self) -> bool {
        matches!(self, Self::Loops(_))
    }

    /// Puts each process into a group with the limit, if there is one.
    pub(crate) fn limits(self, pids: &[u32]) -> io::Result<Vec<CpuGroup>> {
        let Self::Limit(quota) = self else { return Ok(Vec::new()) };
        let group = |pid: &u32| {
            let group = CpuGroup::limited(quota)?;
            group.add(*pid)?;
            Ok(group)
        };
        pids.iter().map(group).collect()
    }

    /// Runs the work under busy loops and pauses. `answered` counts the answers of each daemon,
    /// which expects `each` requests.
    pub(crate) fn during<T>(
        self,
        daemons: &[Daemon],
        (answered, each): (&[AtomicU64], u64),
        work: impl FnOnce() -> T,
    ) -> T {
        let stops = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = Stop(&stops);
            self.start(scope, &stops, daemons, (answered, each));
            work()
        })
    }

    fn start<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        stops: &'scope AtomicBool,
        daemons: &'scope [Daemon],
        (answered, each): (&'scope [AtomicU64], u64),
    ) {
        let goes_on = || !stops.load(Ordering::Relaxed);
        match self {
            Self::Idle | Self::Limit(_) => {}
            Self::Loops(count) => {
                for _ in 0..count {
                    scope.spawn(move || {
                        while goes_on() {
                            spin_loop();
                        }
                    });
                }
            }
            Self::InTurn(time) => {
                scope.spawn(move || {
                    for daemon in daemons.iter().cycle() {
                        if !goes_on() {
                            return;
                        }
                        pause(daemon, time);
                    }
                });
            }
            Self::Once(time) => {
                for (number, (daemon, answered)) in (1_u64..).zip(daemons.iter().zip(answered)) {
                    // In the middle of the requests, and at different times.
                    let from = each * number / (2 * DAEMONS as u64);
                    scope.spawn(move || {
                        while goes_on() && answered.load(Ordering::Relaxed) < from {
                            let_pass(Duration::from_millis(1));
                        }
                        pause(daemon, time);
                    });
                }
            }
        }
    }
}

fn pause(daemon: &Daemon, time: Duration) {
    daemon.pause();
    let_pass(time);
    daemon.resume();
}

impl fmt::Display for Strain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = Duration::as_millis;
        match self {
            Self::Idle => write!(f, "idle"),
            Self::Loops(count) => write!(f, "{count} busy loops"),
            Self::InTurn(time) => write!(f, "each daemon paused {} ms in turn", ms(time)),
            Self::Once(time) => write!(f, "each daemon paused {} ms once", ms(time)),
            Self::Limit(quota) => {
                write!(f, "CPU limit {} ms per {} ms", ms(quota), ms(&CPU_PERIOD))
            }
        }
    }
}
