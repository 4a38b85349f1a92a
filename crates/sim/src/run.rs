//! Runs traffic for one key through one limit, on simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_core::{Algorithm, Limit, Op, Outcome, Span, State, Timestamp};

use crate::footprint::state_bytes;
use crate::seed::Seed;
use crate::traffic::Traffic;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// When each admitted request started, in order: at once, or after the delay it was given.
    pub starts: Vec<Timestamp>,
    /// Denials.
    pub denied: u64,
    /// Requests that were never admitted, because their client gave up.
    pub gave_up: u64,
    /// The longest delay given.
    pub max_delay: Span,
    /// The delays of all admitted requests together, in microseconds.
    pub total_delay_us: u128,
    /// The most bytes of state there were at any time.
    pub state_bytes: usize,
}

/// Sends `traffic` through `limit`, with a cost of 1 per request.
pub fn run(limit: &Limit, traffic: &Traffic, seed: Seed) -> Run {
    let mut state = State::default();
    let mut bytes = 0;
    let run = play(traffic, seed, |now| {
        let decision = limit.decide(&mut state, now, Op::Take(1));
        if decision.is_allowed() {
            bytes = bytes.max(state_bytes(limit, &state));
        }
        decision.outcome
    });
    Run { state_bytes: bytes, ..run }
}

/// When requests would start without a limit.
pub(crate) fn unlimited(traffic: &Traffic, seed: Seed) -> Vec<Timestamp> {
    play(traffic, seed, |_| Outcome::Allow).starts
}

/// The progress of one client.
#[derive(Clone, Copy, Default)]
struct Progress {
    served: u64,
    tried: u32,
}

/// The event loop: the next client makes its request, and is queued again if it has more. Of two requests at the
/// same instant, the client that is listed first goes first.
fn play(traffic: &Traffic, seed: Seed, mut answer: impl FnMut(Timestamp) -> Outcome) -> Run {
    let mut run = Run::default();
    let mut progress = vec![Progress::default(); traffic.clients.len()];
    let wanting = traffic.clients.iter().enumerate().filter(|(_, client)| client.requests > 0);
    let mut agenda: BinaryHeap<_> =
        wanting.map(|(who, client)| Reverse((client.at, who))).collect();
    while let Some(Reverse((now, who))) = agenda.pop() {
        let (client, mine) = (&traffic.clients[who], &mut progress[who]);
        let delay = match answer(now) {
            Outcome::Allow => Span::ZERO,
            Outcome::Delay(delay) => delay,
            Outcome::Deny { retry_after } => {
                run.denied += 1;
                mine.tried = mine.tried.saturating_add(1);
                match client.on_denial.wait(mine.tried, retry_after, who, seed) {
                    Some(wait) => agenda.push(Reverse((now + wait, who))),
                    None => run.gave_up += client.requests - mine.served,
                }
                continue;
            }
        };
        let start = now + delay;
        run.starts.push(start);
        run.max_delay = run.max_delay.max(delay);
        run.total_delay_us += u128::from(delay.as_micros());
        *mine = Progress { served: mine.served + 1, tried: 0 };
        if mine.served < client.requests {
            agenda.push(Reverse((start + client.pause, who)));
        }
    }
    debug_assert!(run.starts.is_sorted(), "a limit never starts a later request earlier");
    run
}

#[cfg(test)]
mod tests {
    use tidegate_core::{AlgorithmName, Rate};

    use super::*;
    use crate::client::{Client, OnDenial};
    use crate::setup::Setup;
    use crate::shape::Shape;

    fn setup() -> Setup {
        Setup::new(Rate::per_minute(100), None, Seed(1)).unwrap()
    }

    #[test]
    fn every_request_is_served_or_given_up() {
        for shape in Shape::ALL {
            let traffic = setup().traffic(shape);
            for algorithm in AlgorithmName::ALL {
                let run = run(&setup().limit(algorithm).unwrap(), &traffic, Seed(1));
                let served = run.starts.len() as u64;
                assert_eq!(served + run.gave_up, traffic.demand(), "{shape} {algorithm}");
                assert!(run.starts.is_sorted(), "{shape} {algorithm}");
            }
        }
    }

    #[test]
    fn without_a_limit_everything_starts_when_it_is_asked() {
        for shape in Shape::ALL {
            let traffic = setup().traffic(shape);
            let starts = unlimited(&traffic, Seed(1));
            assert_eq!(starts.len() as u64, traffic.demand(), "{shape}");
        }
    }

    #[test]
    fn a_client_that_honours_the_wait_needs_one_retry() {
        let client = |at| Client {
            on_denial: OnDenial::Honour { tries: 2 },
            ..Client::once(Timestamp::from_secs(at))
        };
        let traffic = Traffic {
            clients: vec![client(0), client(1)],
            from: Timestamp::EPOCH,
            until: Timestamp::from_secs(60),
        };
        let limit = Limit::gcra(Rate::new(1, Span::from_secs(10))).build().unwrap();
        let run = run(&limit, &traffic, Seed(1));
        assert_eq!(run.starts, [0, 10].map(Timestamp::from_secs));
        assert_eq!((run.denied, run.gave_up), (1, 0));
    }

    #[test]
    fn a_leaky_bucket_starts_requests_one_interval_apart() {
        let limit = setup().limit(AlgorithmName::LeakyBucket).unwrap();
        let run = run(&limit, &setup().traffic(Shape::FlashSale), Seed(1));
        let apart = run.starts.windows(2).map(|pair| pair[1].since(pair[0])).min();
        assert_eq!(apart, Some(Span::from_millis(600)));
        assert!(run.max_delay <= Span::from_secs(60), "the queue holds one minute's worth");
    }
}
