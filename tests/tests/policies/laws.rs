//! Laws of policies, on random policies and traces: what is explained is what happens, a limit tried
//! beside changes nothing, the order of limits does not matter, and a denial charges nothing.

mod trace;

use fastrand::Rng;
use tidegate::policy::{Agreement, Form};
use tidegate::verdict::Standing;
use tidegate::{Outcome, Verdict};

use trace::{Asked, Bench, Sketch};

const TRACES: u64 = 1_500;
const STEPS: usize = 40;

/// Which part speaks for all.
fn binding(answer: &Verdict) -> Option<usize> {
    answer.binding()
}

fn outcomes(answer: &Verdict) -> Vec<Option<Outcome>> {
    answer.parts().map(|part| part.decision.map(|decision| decision.outcome)).collect()
}

fn denials(answer: &Verdict) -> Vec<bool> {
    answer.parts().map(|part| part.denies()).collect()
}

/// Two benches in step: one is asked for explanations before everything that it decides.
#[test]
fn an_explanation_predicts_the_decision_and_writes_nothing() {
    let (mut twice, mut denied) = (0, 0);
    for seed in 0..TRACES {
        let rng = &mut Rng::with_seed(seed);
        let text = Sketch::anything(rng).to_string();
        let (watched, alone) = (Bench::new(&text), Bench::new(&text));
        for step in 0..STEPS {
            let asked = Asked::anything(rng);
            let pause = trace::pause(rng);
            watched.advance(pause);
            alone.advance(pause);
            let reply = watched.explain(&asked);
            let again = watched.explain(&asked);
            let states = |it: &Verdict| {
                it.parts().map(|part| format!("{:?}", part.state)).collect::<Vec<_>>()
            };
            assert_eq!(
                states(&reply),
                states(&again),
                "seed {seed} step {step}\n{text}\n{asked:?}"
            );
            let (answer, unwatched) = (watched.check(&asked), alone.check(&asked));
            let at = format!(
                "seed {seed} step {step}\n{text}\n{asked:?}\n{:?}",
                answer.parts().collect::<Vec<_>>()
            );
            let decisions = |answer: &Verdict| -> Vec<_> {
                answer.parts().map(|part| part.decision.copied()).collect()
            };
            assert_eq!(decisions(&answer), decisions(&unwatched), "explaining wrote: {at}");
            denied += u64::from(!answer.is_allowed());
            if asked.meets_a_state_twice() && asked.gives_back() {
                // How much of it is given back depends on how much was taken.
                continue;
            }
            assert_eq!(reply.is_allowed(), answer.is_allowed(), "{at}");
            assert_eq!(denials(&reply), denials(&answer), "{at}");
            if asked.meets_a_state_twice() {
                // How long the second has to wait is known only once the first was charged.
                twice += 1;
                continue;
            }
            assert_eq!(outcomes(&reply), outcomes(&answer), "{at}");
            // A window that has counted beyond its limit does not tell what is left after a return.
            if !asked.gives_back() {
                assert_eq!(binding(&reply), binding(&answer), "{at}");
            }
        }
    }
    assert!(twice > 1_000 && denied > 1_000, "{twice} met a state twice, {denied} were denied");
}

/// The offline run knows nothing of shadows: it is two policies, asked in turn.
#[test]
fn a_limit_tried_beside_changes_nothing_and_is_counted_as_if_run_alone() {
    let mut all = Agreement::default();
    for seed in 0..TRACES {
        let rng = &mut Rng::with_seed(seed);
        let (live, tried) = (trace::plain_limit(rng), trace::plain_limit(rng));
        let other = trace::plain_limit(rng);
        let head = "domain: api\ndescriptors:\n";
        let rest = format!("  - {{key: b, {other}}}\n");
        let with =
            Bench::new(&format!("{head}  - {{key: a, {live}, shadow: {{{tried}}}}}\n{rest}"));
        let without = Bench::new(&format!("{head}  - {{key: a, {live}}}\n{rest}"));
        let offline = Bench::new(&format!("{head}  - {{key: a, {tried}}}\n"));
        let mut expected = Agreement::default();
        for step in 0..STEPS {
            let asked = Asked::of_both(rng);
            let pause = trace::pause(rng);
            [&with, &without, &offline].iter().for_each(|bench| bench.advance(pause));
            let (answer, plain) = (with.check(&asked), without.check(&asked));
            let alone = offline.check(&asked.only("a"));
            let at = format!("seed {seed} step {step}: {live} beside {tried}\n{asked:?}");
            assert_eq!(answer.is_allowed(), plain.is_allowed(), "{at}");
            let counting = answer.parts().filter(|part| part.standing != Standing::Beside);
            let counting: Vec<_> = counting.map(|part| part.decision).collect();
            let plain_parts: Vec<_> = plain.parts().map(|part| part.decision).collect();
            assert_eq!(counting, plain_parts, "{at}");
            let live_allows = !plain.parts().next().expect("a part").denies();
            match (live_allows, alone.is_allowed()) {
                (true, false) => expected.would_deny += 1,
                (false, true) => expected.would_allow += 1,
                _ => expected.agree += 1,
            }
        }
        let counted = with.agreement("a");
        assert_eq!(counted, expected, "seed {seed}: {live} beside {tried}");
        all.agree += counted.agree;
        all.would_deny += counted.would_deny;
        all.would_allow += counted.would_allow;
    }
    assert!(all.would_deny > 1_000 && all.would_allow > 1_000, "{all:?}");
}

#[test]
fn the_order_of_limits_changes_no_verdict() {
    for seed in 0..TRACES {
        let rng = &mut Rng::with_seed(seed);
        let mut limits: Vec<String> = (0..3)
            .map(|number| format!("{{name: l{number}, {}}}", trace::any_limit(rng)))
            .collect();
        let policy = |limits: &[String]| {
            let limits = limits.join(", ");
            Bench::new(&format!("domain: api\ndescriptors:\n  - {{key: a, limits: [{limits}]}}\n"))
        };
        let given = policy(&limits);
        rng.shuffle(&mut limits);
        let shuffled = policy(&limits);
        for step in 0..STEPS {
            let asked = Asked::anything(rng).only("a");
            let pause = trace::pause(rng);
            [&given, &shuffled].iter().for_each(|bench| bench.advance(pause));
            if asked.is_empty() {
                continue;
            }
            let (one, other) = (given.check(&asked), shuffled.check(&asked));
            let by_name = |answer: &Verdict| {
                let mut parts: Vec<_> = answer
                    .parts()
                    .map(|part| {
                        let name = part.rule.and_then(|(_, limit)| limit.name());
                        let beside = part.standing == Standing::Beside;
                        let name = name.unwrap_or_default().to_owned();
                        (part.descriptor, name, beside, format!("{:?}", part.decision))
                    })
                    .collect();
                parts.sort();
                parts
            };
            let at = format!("seed {seed} step {step}\n{limits:?}\n{asked:?}");
            assert_eq!(one.is_allowed(), other.is_allowed(), "{at}");
            assert_eq!(one.retry_after(), other.retry_after(), "{at}");
            assert_eq!(by_name(&one), by_name(&other), "{at}");
        }
    }
}

/// What is denied leaves every limit of ours as it was.
#[test]
fn a_denied_request_changes_nothing() {
    let mut denied = 0;
    for seed in 0..TRACES {
        let rng = &mut Rng::with_seed(seed);
        let text = Sketch::ours(rng).to_string();
        let bench = Bench::new(&text);
        for step in 0..STEPS {
            let asked = Asked::taking(rng);
            bench.advance(trace::pause(rng));
            let before = bench.states();
            let answer = bench.check(&asked);
            if answer.is_allowed() {
                continue;
            }
            denied += 1;
            let ours = |answer: &Verdict| {
                answer
                    .parts()
                    .all(|part| part.rule.is_none_or(|(_, limit)| limit.form() == Form::Native))
            };
            assert!(ours(&answer), "the sketch has limits of ours only");
            let at = format!(
                "seed {seed} step {step}\n{text}\n{asked:?}\n{:?}",
                answer.parts().collect::<Vec<_>>()
            );
            assert_eq!(before, bench.states(), "{at}");
        }
    }
    assert!(denied > 1_000, "{denied} were denied");
}
