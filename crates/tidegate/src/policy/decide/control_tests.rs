use tidegate_core::Rate;

use super::*;
use crate::policy::{Descriptor, Entry, Merging, Policy, Request};
use crate::store::memory::MemoryStore;
use crate::{Clock, Hashing, ManualClock};

const POLICY: &str = "
domain: d
descriptors:
  - key: user
    rate: 10/min
  - key: window
    rate: 10/min
    algorithm: fixed_window
  - key: paced
    rate: 10/min
    algorithm: leaky_bucket
";

fn limiter() -> (PolicyLimiter<MemoryStore>, ManualClock) {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_secs(1_000_000));
    let store = MemoryStore::new(1 << 20, Hashing::Fast).unwrap();
    let store = store.with_clock(Clock::from(clock.clone()));
    let loaded = Policy::load(&[("p", POLICY)], Merging::Refuse);
    (PolicyLimiter::new(loaded.policy.unwrap(), store, clock.clone().into()), clock)
}

/// How many of twenty requests pass, each with a key of its own choice.
fn passed(limiter: &PolicyLimiter<MemoryStore>, key: &str, value: &str) -> usize {
    let entries = [Entry { key, value }];
    let descriptors = [Descriptor::new(&entries)];
    let request = Request { domain: "d", descriptors: &descriptors, hits: None };
    (0..20).filter(|_| limiter.check_now(&request).unwrap().is_allowed()).count()
}

fn percent(percent: u32, until: u64) -> Overruling {
    let numbers = OtherNumbers::Percent(percent);
    Overruling { numbers, until: Timestamp::from_secs(until), reason: None }
}

#[test]
fn an_override_holds_until_its_end_and_through_reloads() {
    let (limiter, clock) = limiter();
    for id in ["d/user#", "d/window#"] {
        limiter.overrule(id, &percent(50, 1_000_100)).unwrap();
    }
    assert_eq!((passed(&limiter, "user", "a"), passed(&limiter, "window", "a")), (5, 5));
    limiter.replace(Policy::load(&[("p", POLICY)], Merging::Refuse).policy.unwrap());
    assert_eq!(passed(&limiter, "user", "b"), 5);
    clock.set(Timestamp::from_secs(1_000_100));
    assert_eq!((passed(&limiter, "user", "c"), passed(&limiter, "window", "c")), (10, 10));
    let rate = Limit::token_bucket(Rate::per_second(1)).burst(17).build().unwrap();
    let other = Overruling { numbers: OtherNumbers::Limit(rate), ..percent(1, 1_000_200) };
    limiter.overrule("d/user#", &other).unwrap();
    assert_eq!(passed(&limiter, "user", "d"), 17);
    assert!(limiter.end_overruling("d/user#") && !limiter.end_overruling("d/user#"));
    assert_eq!(passed(&limiter, "user", "e"), 10);
}

/// A third of 10 per minute refills one unit in 18 seconds.
#[test]
fn a_scaled_bucket_refills_at_the_scaled_rate() {
    let (limiter, clock) = limiter();
    limiter.overrule("d/user#", &percent(33, 1_001_000)).unwrap();
    assert_eq!(passed(&limiter, "user", "a"), 3);
    clock.set(Timestamp::from_secs(1_000_018));
    assert_eq!(passed(&limiter, "user", "a"), 0);
    clock.set(Timestamp::from_secs(1_000_019));
    assert_eq!(passed(&limiter, "user", "a"), 1);
}

#[test]
fn a_switch_spares_a_limit_a_domain_or_all() {
    let (limiter, _) = limiter();
    let switches = ["d/user#"].map(|id| Switch::Limit(id.into()));
    let [limit] = &switches;
    limiter.switch_off(limit).unwrap();
    assert_eq!((passed(&limiter, "user", "a"), passed(&limiter, "window", "a")), (20, 10));
    assert!(limiter.switch_on(limit) && !limiter.switch_on(limit));
    // What was decided meanwhile was counted.
    assert_eq!(passed(&limiter, "user", "a"), 0);
    for switch in [Switch::Domain("d".into()), Switch::All] {
        limiter.switch_off(&switch).unwrap();
        assert_eq!(passed(&limiter, "window", "a"), 20);
        assert!(limiter.switch_on(&switch));
    }
    let over = limiter.limit_stats().into_iter().find(|(name, _)| name == "d.user").unwrap().1;
    assert_eq!((over.shadow_mode, over.over_limit), (10, 30));
}

#[test]
fn senseless_controls_are_refused() {
    let (limiter, _) = limiter();
    let refused = |id: &str, it: Overruling| limiter.overrule(id, &it).unwrap_err();
    assert_eq!(refused("d/other#", percent(50, 1_000_100)), ControlError::NoSuchLimit);
    assert_eq!(refused("d/user#", percent(50, 1_000_000)), ControlError::Until);
    assert_eq!(refused("d/user#", percent(50, 9_000_000)), ControlError::Until);
    assert_eq!(refused("d/user#", percent(0, 1_000_100)), ControlError::Unscalable);
    assert_eq!(refused("d/paced#", percent(50, 1_000_100)), ControlError::Unscalable);
    let unknown = Switch::Domain("x".into());
    assert_eq!(limiter.switch_off(&unknown), Err(ControlError::NoSuchDomain));
    let unknown = Switch::Limit("x".into());
    assert_eq!(limiter.switch_off(&unknown), Err(ControlError::NoSuchLimit));
}
