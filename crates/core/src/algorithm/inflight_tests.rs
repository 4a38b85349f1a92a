use super::*;
use alloc::vec::Vec;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn secs(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn places(limit: u64, ttl_secs: u64) -> InFlight {
    InFlight::new(limit, Span::from_secs(ttl_secs)).unwrap()
}

fn take(limit: &InFlight, state: &mut InFlightState, now: Timestamp, cost: u64) -> Decision {
    limit.decide(state, now, Op::Take(cost))
}

/// Takes `cost` units, which must be free, and returns the lease.
fn lease(limit: &InFlight, state: &mut InFlightState, now: Timestamp, cost: u64) -> LeaseId {
    take(limit, state, now, cost).lease.unwrap()
}

fn wait(decision: Decision) -> Option<u64> {
    decision.retry_after().map(Span::as_micros)
}

/// 2.6
#[test]
fn a_released_place_can_be_taken_again() {
    let (limit, mut state) = (places(2, 30), InFlightState::default());
    let first = lease(&limit, &mut state, secs(10), 1);
    assert_eq!(take(&limit, &mut state, secs(10), 1).remaining, 0);
    let denied = take(&limit, &mut state, secs(12), 1);
    assert_eq!((wait(denied), denied.lease), (Some(28_000_000), None));
    assert_eq!(limit.decide(&mut state, secs(12), Op::Release(first)).remaining, 1);
    assert!(take(&limit, &mut state, secs(12), 1).is_allowed());
}

/// 2.6
#[test]
fn releasing_twice_frees_one_place() {
    let (limit, mut state) = (places(3, 30), InFlightState::default());
    let first = lease(&limit, &mut state, secs(0), 1);
    lease(&limit, &mut state, secs(0), 1);
    for _ in 0..3 {
        assert_eq!(limit.decide(&mut state, secs(1), Op::Release(first)).remaining, 2);
    }
}

/// 2.6: the units of a crashed holder are freed by expiry, to the microsecond.
#[test]
fn a_lease_ends_after_its_time_to_live() {
    let (limit, mut state) = (places(5, 30), InFlightState::default());
    lease(&limit, &mut state, secs(10), 2);
    lease(&limit, &mut state, secs(20), 3);
    assert_eq!(wait(take(&limit, &mut state, secs(25), 2)), Some(15_000_000));
    assert_eq!(wait(take(&limit, &mut state, secs(25), 3)), Some(25_000_000));
    assert!(!take(&limit, &mut state, at(39_999_999), 1).is_allowed());
    assert!(take(&limit, &mut state, secs(40), 2).is_allowed());
}

/// 2.6: a late release frees no other holder's units.
#[test]
fn a_late_release_frees_nothing() {
    let (limit, mut state) = (places(1, 30), InFlightState::default());
    let late = lease(&limit, &mut state, secs(0), 1);
    let present = lease(&limit, &mut state, secs(30), 1);
    assert_ne!(late, present);
    assert_eq!(limit.decide(&mut state, secs(31), Op::Release(late)).remaining, 0);
    assert_eq!(limit.decide(&mut state, secs(31), Op::Release(present)).remaining, 1);
}

#[test]
fn a_lease_id_is_never_given_out_twice() {
    let (limit, mut state) = (places(2, 1), InFlightState::default());
    let mut seen = Vec::new();
    for step in 0..200_u64 {
        // Also after a reset, after releases and while the clock goes back.
        let now = at(5_000_000 + step % 7 - 3 * (step % 2));
        match step % 10 {
            9 => _ = limit.decide(&mut state, now, Op::Reset),
            4 => _ = limit.decide(&mut state, now, Op::Release(*seen.last().unwrap())),
            _ => seen.extend(take(&limit, &mut state, now, 1).lease),
        }
    }
    assert!(seen.len() > 40);
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
}

/// A state is not idle while evicting it could issue one of its ids again.
#[test]
fn a_state_is_not_idle_before_its_ids_are_past() {
    let (limit, mut state) = (places(100, 1), InFlightState::default());
    let micro = InFlight::new(100, Span::from_micros(1)).unwrap();
    let last = (0..50).map(|_| lease(&micro, &mut state, at(10), 1)).last().unwrap();
    assert_eq!(last.number(), 59);
    assert_eq!(micro.idle_at(&state), at(60));
    let fresh = lease(&micro, &mut InFlightState::default(), at(60), 1);
    assert_eq!((lease(&micro, &mut state, at(60), 1), fresh.number()), (fresh, 60));
    limit.decide(&mut state, at(60), Op::Reset);
    assert_eq!(limit.idle_at(&state), at(61));
}

#[test]
fn a_heavy_request_holds_its_weight() {
    let (limit, mut state) = (places(5, 30), InFlightState::default());
    let heavy = lease(&limit, &mut state, secs(0), 4);
    assert!(!take(&limit, &mut state, secs(0), 2).is_allowed());
    assert_eq!(limit.decide(&mut state, secs(0), Op::Release(heavy)).remaining, 5);
    assert!(take(&limit, &mut state, secs(0), 6).is_never());
}

/// 2.6: a lowered limit ends no lease; the key drains.
#[test]
fn a_lowered_limit_drains() {
    let (limit, mut state) = (places(10, 30), InFlightState::default());
    let leases: Vec<_> = (0..10).map(|_| lease(&limit, &mut state, secs(0), 1)).collect();
    let lowered = places(4, 30);
    for (released, id) in leases.into_iter().enumerate() {
        let decision = take(&lowered, &mut state, secs(1), 1);
        assert!(!decision.is_allowed(), "{released} released");
        let left = lowered.decide(&mut state, secs(1), Op::Release(id)).remaining;
        assert_eq!(left, (released as u64 + 1).saturating_sub(6));
        if left > 0 {
            break;
        }
    }
}

/// No lease ends later than one taken now would.
#[test]
fn a_denial_writes_the_repair_so_a_stepped_clock_costs_one_time_to_live() {
    let (limit, mut state) = (places(1, 30), InFlightState::default());
    lease(&limit, &mut state, secs(3_600), 1);
    let stale = state.clone();
    assert_eq!(wait(limit.decide(&mut state, secs(0), Op::Read(1))), Some(30_000_000));
    assert_eq!(state, stale, "a peek repairs nothing");
    assert_eq!(wait(take(&limit, &mut state, secs(0), 1)), Some(30_000_000));
    assert!(!take(&limit, &mut state, at(29_999_999), 1).is_allowed());
    assert!(take(&limit, &mut state, secs(30), 1).is_allowed());
}

/// Whatever may write repairs, even if nothing could be booked.
#[test]
fn a_key_that_is_only_ever_forced_does_not_stay_locked() {
    let (limit, mut state) = (places(1, 30), InFlightState::default());
    lease(&limit, &mut state, secs(3_600), 1);
    assert_eq!(limit.decide(&mut state, secs(0), Op::Force(1)).unbooked, 1);
    assert_eq!(limit.decide(&mut state, secs(30), Op::Force(1)).unbooked, 0);
}

/// `Force` stops at the limit; what it booked is a lease like any other.
#[test]
fn a_forced_cost_takes_the_places_there_are() {
    let (limit, mut state) = (places(5, 30), InFlightState::default());
    lease(&limit, &mut state, secs(0), 3);
    let forced = limit.decide(&mut state, secs(0), Op::Force(4));
    assert_eq!((forced.outcome, forced.remaining, forced.unbooked), (Outcome::Allow, 0, 2));
    let freed = limit.decide(&mut state, secs(0), Op::Release(forced.lease.unwrap()));
    assert_eq!(freed.remaining, 2);
}

/// What books nothing writes nothing, unless it has to repair.
#[test]
fn a_forced_cost_that_books_nothing_leaves_a_sound_state_alone() {
    let (limit, mut state) = (places(5, 30), InFlightState::default());
    lease(&limit, &mut state, secs(0), 1);
    lease(&limit, &mut state, secs(20), 4);
    let kept = state.clone();
    // The first lease has expired, but the second alone fills a limit of four.
    let forced = places(4, 30).decide(&mut state, secs(31), Op::Force(2));
    assert_eq!((forced.outcome, forced.remaining, forced.unbooked), (Outcome::Allow, 0, 2));
    assert_eq!((forced.lease, &state), (None, &kept));
    // Forcing 0 is a peek, also where a lease expires too late: 50 s is beyond 0 + 30 s.
    for (now, remaining) in [(31, 1), (0, 0)] {
        let forced = limit.decide(&mut state, secs(now), Op::Force(0));
        assert_eq!((forced.remaining, forced.lease, &state), (remaining, None, &kept));
    }
}

/// Expired leases free their memory with the next write.
#[test]
fn a_forced_cost_drops_expired_leases() {
    let (limit, mut state) = (places(5, 30), InFlightState::default());
    lease(&limit, &mut state, secs(0), 1);
    lease(&limit, &mut state, secs(20), 4);
    limit.decide(&mut state, secs(31), Op::Force(1));
    let left: Vec<_> = state.leases().map(|lease| (lease.expires, lease.weight)).collect();
    assert_eq!(left, [(50_000_000, 4), (61_000_000, 1)]);
}

#[test]
fn units_are_returned_by_their_lease_only() {
    let (limit, mut state) = (places(5, 30), InFlightState::default());
    lease(&limit, &mut state, secs(0), 3);
    assert_eq!(limit.decide(&mut state, secs(0), Op::Return(3)).remaining, 2);
}

#[test]
fn explains_the_leases() {
    let (limit, mut state) = (places(5, 30), InFlightState::default());
    lease(&limit, &mut state, secs(10), 2);
    lease(&limit, &mut state, secs(20), 3);
    let explained = limit.explain(&state, secs(25));
    assert_eq!((explained.remaining, explained.next_allowed_at), (0, Some(secs(40))));
    let Detail::InFlight { held, leases } = &explained.detail else { panic!("{explained:?}") };
    assert_eq!((*held, leases.len(), leases[0].weight, leases[1].weight), (5, 2, 2, 3));
    assert_eq!(
        explained.to_string(),
        "0 of 5 left: 5 in flight under 2 leases; one more is allowed at 1970-01-01T00:00:40Z; \
         equals a fresh key from 1970-01-01T00:00:50Z"
    );
    let after = limit.explain(&state, secs(45));
    assert!(after.to_string().starts_with("2 of 5 left: 3 in flight under 1 leases"), "{after}");
}

#[test]
fn a_lease_takes_24_bytes() {
    assert_eq!(size_of::<Lease>(), 24);
}

/// A store with a memory budget asks first: the reported growth is sufficient, and 0 if there is
/// room for one more lease of 24 bytes.
#[test]
fn growth_is_known_before_it_happens() {
    let (limit, mut state) = (places(100, 30), InFlightState::default());
    assert_eq!((state.heap_bytes(), state.growth_bytes()), (0, 4 * 24));
    for held in 1..=100 {
        let (before, growth) = (state.heap_bytes(), state.growth_bytes());
        assert_eq!(growth == 0, before >= 24 * held, "lease {held}: {before} and {growth} bytes");
        lease(&limit, &mut state, secs(0), 1);
        assert!((24 * held..=before + growth).contains(&state.heap_bytes()), "lease {held}");
    }
}

/// A lease is held until it is released, even if it has expired.
#[test]
fn a_state_knows_its_leases() {
    let (limit, mut state) = (places(5, 30), InFlightState::default());
    let first = lease(&limit, &mut state, secs(0), 1);
    let second = lease(&limit, &mut state, secs(10), 1);
    assert!(state.holds(first) && state.holds(second));
    limit.decide(&mut state, secs(50), Op::Release(first));
    assert!(!state.holds(first) && state.holds(second));
}

/// The limit bounds concurrency; over an interval, any number of requests can start and end.
#[test]
fn an_in_flight_limit_promises_nothing_per_time() {
    assert_eq!(places(5, 30).promise(Span::from_secs(60)), None);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let second = Span::from_secs(1);
    assert_eq!(InFlight::new(0, second), Err(InvalidLimit::InFlight));
    assert_eq!(InFlight::new(100_001, second), Err(InvalidLimit::InFlight));
    assert_eq!(InFlight::new(1, Span::ZERO), Err(InvalidLimit::LeaseTime));
    let longer = InFlight::NO_EXPIRY + Span::from_micros(1);
    assert_eq!(InFlight::new(1, longer), Err(InvalidLimit::LeaseTime));
    assert!(InFlight::new(100_000, InFlight::NO_EXPIRY).is_ok());
    // A hundred years: 36,500 days of 86,400 s.
    assert_eq!(InFlight::NO_EXPIRY, Span::from_secs(3_153_600_000));
}

/// 2.6: a holder that needs longer keeps its units for another full time to live.
#[test]
fn a_renewed_lease_ends_a_time_to_live_later() {
    let (limit, mut state) = (places(2, 30), InFlightState::default());
    let first = lease(&limit, &mut state, secs(0), 1);
    let second = lease(&limit, &mut state, secs(10), 1);
    let renewed = limit.decide(&mut state, secs(20), Op::Renew(first));
    assert_eq!((renewed.outcome, renewed.lease), (Outcome::Allow, Some(first)));
    let ends: Vec<_> = state.leases().map(|lease| (lease.id, lease.expires)).collect();
    assert_eq!(ends, [(second.number(), 40_000_000), (first.number(), 50_000_000)]);
    // Ids are out of order now, and both are still found.
    assert!(state.holds(first) && state.holds(second));
    assert_eq!(limit.decide(&mut state, secs(21), Op::Release(first)).remaining, 1);
    assert!(!state.holds(first) && state.holds(second));
}

/// The units of an expired lease may belong to another holder: it is not renewed, and nothing is
/// written.
#[test]
fn a_lease_that_has_ended_is_not_renewed() {
    let (limit, mut state) = (places(2, 30), InFlightState::default());
    let ended = lease(&limit, &mut state, secs(0), 1);
    let kept = state.clone();
    for now in [30, 31] {
        assert!(limit.decide(&mut state, secs(now), Op::Renew(ended)).is_never(), "at {now} s");
        assert_eq!(state, kept);
    }
    // It is renewed one microsecond before it expires: at 1970-01-01T00:00:29.999999Z for 30 s
    // more.
    assert!(limit.decide(&mut state, at(29_999_999), Op::Renew(ended)).is_allowed());
    assert_eq!(state.leases().next().map(|lease| lease.expires), Some(59_999_999));
    let unknown = LeaseId::new(77).unwrap();
    assert!(limit.decide(&mut state, secs(30), Op::Renew(unknown)).is_never());
}

#[test]
fn a_restored_state_decides_as_the_one_it_came_from() {
    let (limit, mut state) = (places(5, 30), InFlightState::default());
    lease(&limit, &mut state, secs(10), 2);
    let last = lease(&limit, &mut state, secs(20), 1);
    assert_eq!(InFlightState::restore(state.leases(), last.number()), state);
    assert_eq!((limit.limit(), limit.ttl()), (5, Span::from_secs(30)));
}
