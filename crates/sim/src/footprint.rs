//! The memory that a key needs.

use tidegate_core::algorithm::sliding_log::Entry;
use tidegate_core::{Limit, State};

/// Bytes of the numbers in `state`, in words of 8, without the key and the table's overhead.
///
/// A bucket keeps one instant (and its fraction, where the interval is not whole microseconds), a
/// fixed window its end and a count, a sliding window its end and two counts (of 4 bytes while they
/// fit), a log one entry per instant of admission.
pub fn state_bytes(limit: &Limit, state: &State) -> usize {
    const WORD: usize = size_of::<u64>();
    match (limit, state) {
        (Limit::Bucket(bucket), State::Bucket(_)) if bucket.denominator() == 1 => WORD,
        (_, State::Bucket(_) | State::FixedWindow(_)) => 2 * WORD,
        (_, State::SlidingWindow(window)) => {
            let small = window.previous.max(window.current) <= u64::from(u32::MAX);
            if small { 2 * WORD } else { 3 * WORD }
        }
        (_, State::SlidingLog(log)) => log.entries().len() * size_of::<Entry>(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, AlgorithmName, Op, Rate, Timestamp};

    use super::*;
    use crate::seed::Seed;
    use crate::setup::Setup;

    fn bytes(rate: &str, algorithm: AlgorithmName) -> usize {
        let limit = Setup::new(rate.parse::<Rate>().unwrap(), None, Seed(1))
            .unwrap()
            .limit(algorithm)
            .unwrap();
        let mut state = State::default();
        assert_eq!(state_bytes(&limit, &state), 0, "a key never seen costs nothing");
        for micros in 0..3 {
            limit.decide(&mut state, Timestamp::from_micros(micros), Op::Take(1));
        }
        state_bytes(&limit, &state)
    }

    #[test]
    fn only_the_log_grows_with_what_it_admits() {
        assert_eq!(bytes("100/60s", AlgorithmName::FixedWindow), 16);
        assert_eq!(bytes("100/60s", AlgorithmName::SlidingWindow), 16);
        assert_eq!(bytes("100/60s", AlgorithmName::SlidingLog), 3 * 16);
        assert_eq!(bytes("100/60s", AlgorithmName::Gcra), 8);
        assert_eq!(bytes("100/60s", AlgorithmName::LeakyBucket), 8);
        assert_eq!(bytes("3/s", AlgorithmName::TokenBucket), 16, "a third of a microsecond");
    }
}
