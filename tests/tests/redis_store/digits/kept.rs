//! What a server keeps of a key, read digit by digit.

use redis::{Commands, Connection};
use tidegate::{Limit, State, Timestamp};
use tidegate_core::algorithm::bucket::{BucketState, Moment};
use tidegate_core::algorithm::fixed_window::FixedWindowState;
use tidegate_core::algorithm::inflight::{InFlightState, Lease};
use tidegate_core::algorithm::sliding_log::{Entry, SlidingLogState};
use tidegate_core::algorithm::sliding_window::SlidingWindowState;

/// The largest sum that a log keeps is one less.
const MODULUS: u64 = 1 << 52;

/// A whole number with all its digits: no sign, no point, no exponent.
fn whole(text: &str) -> u64 {
    assert!(!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()), "{text:?}");
    assert!(text == "0" || !text.starts_with('0'), "{text:?}");
    text.parse().expect("digits")
}

fn fields<const COUNT: usize>(text: &str) -> [u64; COUNT] {
    let fields: Vec<u64> = text.split(':').map(whole).collect();
    fields.try_into().unwrap_or_else(|_| panic!("{text:?} has not {COUNT} fields"))
}

/// The state that is kept under `key`, or none.
pub(crate) fn read(server: &mut Connection, key: &str, limit: &Limit) -> State {
    let value = |server: &mut Connection| -> Option<String> { server.get(key).expect("a text") };
    match limit {
        Limit::Bucket(_) => value(server).map_or(State::Absent, |kept| {
            let [ticks, part] = match kept.contains(':') {
                true => fields(&kept),
                false => [whole(&kept), 0],
            };
            State::Bucket(BucketState { full_at: Moment { ticks, part } })
        }),
        Limit::FixedWindow(_) => value(server).map_or(State::Absent, |kept| {
            let [end, count] = fields(&kept);
            State::FixedWindow(FixedWindowState { end, count })
        }),
        Limit::SlidingWindow(_) => value(server).map_or(State::Absent, |kept| {
            let [end, previous, current] = fields(&kept);
            State::SlidingWindow(SlidingWindowState { end, previous, current })
        }),
        Limit::SlidingLog(_) => log(&server.lrange::<_, Vec<String>>(key, 0, -1).expect("a list")),
        Limit::InFlight(_) => leases(
            &server.zrange_withscores::<_, Vec<(String, String)>>(key, 0, -1).expect("a set"),
        ),
        _ => unreachable!("every family is above"),
    }
}

fn log(kept: &[String]) -> State {
    let mut expected = None;
    let entries = kept.iter().map(|entry| {
        let [at, before, weight] = fields(entry);
        assert_eq!(before, expected.unwrap_or(before), "the sums are broken in {kept:?}");
        expected = Some((before + weight) % MODULUS);
        Entry { at, weight }
    });
    let entries: Vec<Entry> = entries.collect();
    match entries.is_empty() {
        true => State::Absent,
        false => State::SlidingLog(SlidingLogState::restore(entries)),
    }
}

fn leases(kept: &[(String, String)]) -> State {
    let negative = |member: &str| {
        let score = kept.iter().find(|(name, _)| name == member)?;
        Some(whole(score.1.strip_prefix('-').expect("below nought")))
    };
    let ids = kept.iter().filter(|(id, _)| id.bytes().all(|byte| byte.is_ascii_digit()));
    let leases = ids.map(|(id, expires)| {
        let weight = negative(&format!("w{id}")).unwrap_or(1);
        Lease { id: whole(id), expires: whole(expires), weight }
    });
    let leases: Vec<Lease> = leases.collect();
    let (Some(last), Some(held)) = (negative("@"), negative("#")) else {
        assert!(kept.is_empty(), "no head in {kept:?}");
        return State::Absent;
    };
    let weight: u64 = leases.iter().map(|lease| lease.weight).sum();
    assert_eq!(held, weight + 1, "the sum is broken in {kept:?}");
    State::InFlight(InFlightState::restore(leases, last))
}

/// A state without expired entries: when they are removed does not matter.
pub(crate) fn alive(limit: &Limit, state: &State, now: Timestamp) -> State {
    let now = now.as_micros();
    match (limit, state) {
        (Limit::SlidingLog(log), State::SlidingLog(state)) => {
            let length = log.length().as_micros();
            let entries: Vec<Entry> =
                state.entries().filter(|entry| entry.at + length > now).collect();
            State::SlidingLog(SlidingLogState::restore(entries))
        }
        (Limit::InFlight(_), State::InFlight(state)) => {
            let mut leases: Vec<Lease> =
                state.leases().filter(|lease| lease.expires > now).collect();
            leases.sort_by_key(|lease| (lease.expires, lease.id));
            State::InFlight(InFlightState::restore(leases, 0))
        }
        (Limit::SlidingLog(_), _) => State::SlidingLog(SlidingLogState::default()),
        (Limit::InFlight(_), _) => State::InFlight(InFlightState::default()),
        (_, state) => state.clone(),
    }
}
