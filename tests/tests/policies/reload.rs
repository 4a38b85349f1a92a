//! A policy that changes under load: no request is lost, none is decided by a mixture, and keys of
//! unchanged limits keep their state.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::Verdict;
use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request, Source, Watch};
use tidegate::store::memory::MemoryStore;
use tidegate_tests::servers::{Stop, wait_until};

/// Two limits that always allow the same, so a mixture of two versions shows; and one that never
/// changes.
fn version(number: u64) -> String {
    let count = 1_000_000_000 + number;
    format!(
        "domain: api
descriptors:
  - key: pair
    limits:
      - {{name: left, rate: {count}/day}}
      - {{name: right, rate: {count}/day}}
  - key: steady
    rate: 500/day
"
    )
}

fn check(limiter: &PolicyLimiter<MemoryStore>, key: &str) -> Verdict {
    let entries = [Entry { key, value: "x" }];
    let descriptors = [Descriptor::new(&entries)];
    let request = Request { domain: "api", descriptors: &descriptors, hits: None };
    limiter.check_now(&request).expect("every request is answered")
}

/// What each limit of the answer allows at most.
fn limits(answer: &Verdict) -> Vec<u64> {
    answer.parts().filter_map(|part| Some(part.decision?.limit)).collect()
}

fn replace(folder: &Path, text: &str) {
    let draft = folder.join(".draft");
    std::fs::write(&draft, text).expect("the folder can be written");
    std::fs::rename(&draft, folder.join("policy.yaml")).expect("the folder can be written");
}

/// 100 changes a second for ten seconds, half of them broken.
#[test]
fn a_storm_of_changes_disturbs_no_request() {
    let folder = std::env::temp_dir().join(format!("tidegate-storm-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    replace(&folder, &version(0));
    let source = Source::new([folder.clone()], Merging::Refuse);
    let texts = source.read().expect("the folder can be read");
    let policy: Policy = texts.load().policy.expect("the first version is right");
    let limiter = PolicyLimiter::in_memory(policy).expect("memory for a store");

    let (replaced, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counters = (Arc::clone(&replaced), Arc::clone(&refused));
    let watched = limiter.clone();
    let watch = Watch::builder(source).in_force(&texts).start(move |result| match result {
        Ok(update) => {
            watched.replace(update.policy);
            counters.0.fetch_add(1, Ordering::Relaxed);
        }
        Err(_) => {
            counters.1.fetch_add(1, Ordering::Relaxed);
        }
    });
    let watch = watch.expect("a thread");

    let (stop, steady) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut decided, mut last) = (0, 0);
    std::thread::scope(|scope| {
        let ask = || {
            let mut count = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let answer = check(&limiter, "pair");
                assert!(answer.is_allowed());
                let limits = limits(&answer);
                assert!(limits.len() == 2 && limits[0] == limits[1], "a mixture: {limits:?}");
                steady.fetch_add(
                    u64::from(check(&limiter, "steady").is_allowed()),
                    Ordering::Relaxed,
                );
                count += 2;
            }
            count
        };
        let askers = [scope.spawn(ask), scope.spawn(ask)];
        let stopping = Stop(&stop);
        for number in 1..=1_000_u64 {
            let broken = number % 2 == 1;
            let text = if broken { "domain: [api\n".to_owned() } else { version(number) };
            replace(&folder, &text);
            if !broken {
                last = number;
            }
            // The pace of the storm; nothing waits for it.
            std::thread::park_timeout(Duration::from_millis(10));
        }
        let in_force = || limits(&check(&limiter, "pair"))[0] == 1_000_000_000 + last;
        wait_until("the last good version is in force", Duration::from_secs(10), in_force);
        drop(stopping);
        for asker in askers {
            decided += asker.join().expect("no asker found a mixture");
        }
    });
    drop(watch);
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    let (replaced, refused) = (replaced.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    println!("{decided} decisions, {replaced} policies in force, {refused} refused");
    assert!(replaced > 1, "policies were replaced");
    assert!(decided > 10_000, "there was load: {decided}");
    // A day refills 500 units, so in seconds at most one more comes.
    let steady = steady.load(Ordering::Relaxed);
    assert!((500..=501).contains(&steady), "what was used is kept: {steady}");
}

/// Every version is in force for a moment, which the watch would not let happen.
#[test]
fn a_thousand_policies_in_a_row_are_never_mixed() {
    let policy = |number| {
        let text = version(number);
        Policy::load(&[("p.yaml", &text)], Merging::Refuse).policy.expect("it is right")
    };
    let limiter = PolicyLimiter::in_memory(policy(0)).expect("memory for a store");
    let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            let mut last = 0;
            while !stop.load(Ordering::Relaxed) {
                let limits = limits(&check(&limiter, "pair"));
                assert!(limits.len() == 2 && limits[0] == limits[1], "a mixture: {limits:?}");
                seen.fetch_add(u64::from(limits[0] != last), Ordering::Relaxed);
                last = limits[0];
            }
        });
        // On a busy machine the asker may not get its turn for a while.
        let enough = |number: &u64| *number < 1_000 || seen.load(Ordering::Relaxed) < 100;
        let numbers = (1..1_000_000).take_while(|it| enough(it) && !asker.is_finished());
        numbers.for_each(|number| limiter.replace(policy(number)));
        stop.store(true, Ordering::Relaxed);
        asker.join().expect("the asker found no mixture");
        let seen = seen.load(Ordering::Relaxed);
        assert!(seen >= 100, "many versions were asked: {seen}");
    });
}

#[test]
fn replacing_keeps_the_counts_of_shadows() {
    let policy = |rate: u64| {
        let text = format!(
            "{{domain: api, descriptors: [{{key: pair, rate: {rate}/day, shadow: {{rate: 1/day}}}}]}}"
        );
        Policy::load(&[("p.yaml", &text)], Merging::Refuse).policy.expect("it is right")
    };
    let limiter = PolicyLimiter::in_memory(policy(100)).expect("memory for a store");
    for rate in 100..150 {
        assert!(check(&limiter, "pair").is_allowed());
        limiter.replace(policy(rate));
    }
    let domain = limiter.policy();
    let rule = &domain.domain("api").expect("the domain is there").rules()[0];
    let agreement = rule.limits()[0].shadow().expect("the shadow is there").agreement();
    assert_eq!((agreement.agree, agreement.would_deny, agreement.would_allow), (1, 49, 0));
}
