use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tidegate_core::Span;

use super::*;
use crate::policy::{Descriptor, Hits, Merging, Policy, Request, RequestLimit, Unit};
use crate::store::memory::MemoryStore;
use crate::store::testing::layered;
use crate::{Clock, Hashing, ManualClock};

const POLICY: &str = "
domain: d
descriptors:
  - key: tenant
    limits:
      - {name: second, rate: 100/s, burst: 40}
      - {name: minute, rate: 600/min, algorithm: fixed_window}
";

fn limiter() -> (PolicyLimiter<MemoryStore>, ManualClock) {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_secs(1_000_020));
    let store = MemoryStore::new(1 << 20, Hashing::Fast).unwrap();
    let store = store.with_clock(Clock::from(clock.clone()));
    let loaded = Policy::load(&[("p", POLICY)], Merging::Refuse);
    (PolicyLimiter::new(loaded.policy.unwrap(), store, clock.clone().into()), clock)
}

fn passed(limiter: &PolicyLimiter<MemoryStore>, value: &str, limit: Option<RequestLimit>) -> usize {
    let entries = [Entry { key: "tenant", value }];
    let descriptors =
        [Descriptor { limit, hits: Some(Hits::Take(1)), ..Descriptor::new(&entries) }];
    let request = Request { domain: "d", descriptors: &descriptors, hits: None };
    (0..2_000).filter(|_| limiter.check_now(&request).unwrap().is_allowed()).count()
}

const ACME: &[Entry<'static>] = &[Entry { key: "tenant", value: "acme" }];

fn local_override(nodes: u32, until: Option<u64>) -> LocalOverride {
    let until = until.map(Timestamp::from_secs);
    LocalOverride { nodes: Nodes::fixed(nodes.try_into().unwrap()), until, reason: None }
}

/// One key is decided by this node's share; other keys are not affected.
#[test]
fn a_local_override_gives_this_nodes_share_until_it_ends() {
    let (limiter, clock) = limiter();
    limiter.override_locally("d", ACME, &local_override(4, Some(1_000_100))).unwrap();
    assert_eq!(limiter.controls().local_overrides().count(limiter.0.clock.now()), 1);
    // 1.5 / 4 of 40 at once, and of 600.
    assert_eq!((passed(&limiter, "acme", None), passed(&limiter, "other", None)), (15, 40));
    clock.advance(Span::from_secs(1));
    assert_eq!(passed(&limiter, "acme", None), 15, "37.5 a second, 15 at once");
    clock.set(Timestamp::from_secs(1_000_100));
    assert_eq!(passed(&limiter, "acme", None), 40, "the store's state is as if nothing had been");
    assert_eq!(limiter.controls().local_overrides().count(limiter.0.clock.now()), 0);
}

#[test]
fn a_local_override_without_an_end_is_ended_by_hand() {
    let (limiter, clock) = limiter();
    limiter.override_locally("d", ACME, &local_override(1_000, None)).unwrap();
    clock.advance(Span::from_secs(86_400 * 365));
    assert_eq!(passed(&limiter, "acme", None), 1, "at least one unit");
    assert!(limiter.end_local_override("d", ACME) && !limiter.end_local_override("d", ACME));
    assert_eq!(passed(&limiter, "acme", None), 40);
}

/// It goes by the descriptor, so for limits that come with the request too.
#[test]
fn local_overrides_hold_for_limits_that_come_with_the_request() {
    let (limiter, _) = limiter();
    let limit = Some(RequestLimit { requests_per_unit: 100, unit: Unit::Minute });
    limiter.override_locally("d", ACME, &local_override(3, None)).unwrap();
    assert_eq!((passed(&limiter, "acme", limit), passed(&limiter, "other", limit)), (50, 100));
}

#[test]
fn a_local_override_names_a_key_and_ends_in_time() {
    let (limiter, _) = limiter();
    let override_key = |domain: &str, entries: &[Entry<'_>], until| {
        limiter.override_locally(domain, entries, &local_override(1, until))
    };
    assert_eq!(override_key("e", ACME, None), Err(ControlError::NoSuchDomain));
    assert_eq!(override_key("d", &[], None), Err(ControlError::NoEntries));
    assert_eq!(override_key("d", ACME, Some(1_000_000)), Err(ControlError::Until));
    assert_eq!(override_key("d", ACME, Some(1 << 40)), Err(ControlError::Until));
    for number in 0..MAX_CONTROLS {
        let value = number.to_string();
        override_key("d", &[Entry { key: "tenant", value: &value }], None).unwrap();
    }
    assert_eq!(override_key("d", ACME, None), Err(ControlError::TooMany));
    assert_eq!(
        override_key("d", &[Entry { key: "tenant", value: "7" }], None),
        Ok(()),
        "it is there"
    );
}

/// What this node decides by itself never reaches the store behind.
#[test]
fn the_store_gets_no_charge_of_a_key_with_a_local_override() {
    let clock = Clock::from(ManualClock::at(Timestamp::from_secs(1_000_020)));
    let store = MemoryStore::new(1 << 20, Hashing::Fast).unwrap().with_clock(clock.clone());
    let policy = Policy::load(&[("p", POLICY)], Merging::Refuse).policy.unwrap();
    let store = layered(store, clock.clone());
    let limiter = PolicyLimiter::new(policy, store, clock);
    limiter.override_locally("d", ACME, &local_override(4, None)).unwrap();
    let descriptors = [Descriptor::new(ACME)];
    let request = Request { domain: "d", descriptors: &descriptors, hits: None };
    let mut check = pin!(limiter.check(&request));
    let answer = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(answer, Poll::Ready(Ok(answer)) if answer.is_allowed()));
    assert_eq!(limiter.store().store().stats().keys, 0);
    assert_eq!(limiter.store().stats().local.allowed, 2, "both limits of the descriptor");
}
