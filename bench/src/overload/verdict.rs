//! The acceptance criteria, each with its figure.

use std::fmt::Write as _;

use super::cell::{Cell, MOST_LATENESS_US, Store, p99_us, rate, success};
use super::contender::Contender;
use super::page::{names, peak_of};
use super::spec::{CLASSES, Second};
use super::work::Kind;

/// One criterion.
struct Verdict {
    experiment: &'static str,
    criterion: &'static str,
    figure: String,
    is_met: Option<bool>,
}

/// All criteria as a table.
pub fn table(store: &Store) -> String {
    let all = [
        e1(store),
        vec![peers(store)],
        e2(store),
        vec![e3(store)],
        e4(store),
        steps(store),
        rest(store),
    ];
    let mut text = "| | criterion | measured | |\n|---|---|---|---|\n".to_owned();
    for verdict in all.into_iter().flatten() {
        let result = match verdict.is_met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "not measured",
        };
        let Verdict { experiment, criterion, figure, .. } = verdict;
        let _ = writeln!(text, "| {experiment} | {criterion} | {figure} | {result} |");
    }
    text
}

fn goodput(store: &Store, name: &str) -> Option<f64> {
    let cell = store.read(name)?;
    Some(cell.rate() / peak_of(store, &cell)?)
}

fn e1(store: &Store) -> Vec<Verdict> {
    let lowest = |load: &str| {
        let each = Kind::ALL.iter().flat_map(|kind| {
            let name = |one: Contender| format!("E1-{}-{load}-{}", kind.letter(), one.name());
            [Contender::Tidegate, Contender::Gateway]
                .map(|one| (goodput(store, &name(one)), name(one)))
        });
        let known = each.filter_map(|(goodput, name)| Some((goodput?, name)));
        known.min_by(|one, other| one.0.total_cmp(&other.0))
    };
    let least = |criterion, load, bound: f64| {
        let found = lowest(load);
        Verdict {
            experiment: "E1",
            criterion,
            is_met: found.as_ref().map(|(goodput, _)| *goodput >= bound),
            figure: found.map_or_else(String::new, |(goodput, name)| {
                format!("{goodput:.3} at least ({})", short(&name))
            }),
        }
    };
    let slowest = Kind::ALL.iter().flat_map(|kind| {
        let unloaded = store.read(&format!("E1-{}-0.3x-none", kind.letter()));
        let bound = unloaded.map(|cell| 2 * p99_us(&cell.counted()) + 10_000);
        ["2x-tidegate", "10x-tidegate", "2x-gateway", "10x-gateway"].map(|rest| {
            let name = format!("E1-{}-{rest}", kind.letter());
            let p99 = store.read(&name).map(|cell| p99_us(&cell.counted()));
            Some((f64::from(p99?) / f64::from(bound?), p99?, bound?, name))
        })
    });
    let slowest = slowest.flatten().max_by(|one, other| one.0.total_cmp(&other.0));
    vec![
        least("goodput at 2 × at least 0.95 of the peak, P, C, D and T", "2x", 0.95),
        least("goodput at 10 × at least 0.90 of the peak", "10x", 0.90),
        Verdict {
            experiment: "E1",
            criterion: "p99 of admitted requests at most 2 × unloaded + 10 ms",
            is_met: slowest.as_ref().map(|(ratio, ..)| *ratio <= 1.0),
            figure: slowest.map_or_else(String::new, |(_, p99, bound, name)| {
                let (p99, bound) = (f64::from(p99) / 1e3, f64::from(bound) / 1e3);
                format!("{p99:.0} ms where {bound:.0} are allowed ({})", short(&name))
            }),
        },
    ]
}

/// The name of a cell without its experiment.
fn short(name: &str) -> String {
    name.split_once('-').map_or_else(String::new, |(_, rest)| rest.replace('-', ", "))
}

/// Two standard deviations of the difference between cells that serve 12,000 to 24,000 exponential times.
const SCATTER: f64 = 0.02;

/// Whether Tidegate is as good as the best peer in each cell of E1.
fn peers(store: &Store) -> Verdict {
    let mut worst: Option<(f64, String)> = None;
    for kind in Kind::ALL {
        for load in ["2x", "10x"] {
            let of = |one: Contender| {
                goodput(store, &format!("E1-{}-{load}-{}", kind.letter(), one.name()))
            };
            let ours = [Contender::Tidegate, Contender::Gateway].into_iter().filter_map(of);
            let theirs =
                [Contender::Tower, Contender::Envoy, Contender::Netflix, Contender::Failsafe];
            let best = theirs.into_iter().filter_map(|one| Some((of(one)?, one)));
            let best = best.max_by(|one, other| one.0.total_cmp(&other.0));
            if let (Some(ours), Some((theirs, one))) = (ours.reduce(f64::max), best) {
                let text = format!(
                    "{ours:.3} beside {theirs:.3} of {} ({} {load})",
                    one.name(),
                    kind.letter()
                );
                if worst.as_ref().is_none_or(|(lead, _)| ours - theirs < *lead) {
                    worst = Some((ours - theirs, text));
                }
            }
        }
    }
    Verdict {
        experiment: "E1",
        criterion: "goodput at least that of the best peer in the same run, within the scatter of 0.02",
        is_met: worst.as_ref().map(|(lead, _)| *lead >= -SCATTER),
        figure: worst.map_or_else(String::new, |(_, text)| format!("worst: {text}")),
    }
}

fn e2(store: &Store) -> Vec<Verdict> {
    let cell = store.read("E2-tidegate");
    let shed = |class: Option<usize>| {
        let seconds = cell.as_ref()?.counted();
        let of = |counts: &[u32; CLASSES.len()]| match class {
            Some(class) => counts[class],
            None => counts.iter().sum(),
        };
        let shed: u32 = seconds.iter().map(|second| of(&second.shed)).sum();
        let requests: u32 = seconds.iter().map(|second| of(&second.requests)).sum();
        Some(f64::from(shed) / f64::from(requests.max(1)))
    };
    let verdict = |criterion, share: Option<f64>, bound: f64| Verdict {
        experiment: "E2",
        criterion,
        figure: share.map_or_else(String::new, |share| format!("{:.3} %", share * 100.0)),
        is_met: share.map(|share| share <= bound),
    };
    vec![
        verdict("at 0.8 ×, at most 0.1 % shed", shed(None), 0.001),
        verdict("of the lowest class at most 0.5 %", shed(Some(CLASSES.len() - 1)), 0.005),
    ]
}

/// The second and the last minute of a long run, without seconds in which the generator was late.
pub fn minutes(cell: &Cell) -> Option<(Vec<Second>, Vec<Second>)> {
    let seconds = &cell.seconds;
    let on_schedule = |seconds: &[Second]| {
        let kept = seconds.iter().filter(|second| second.lateness_us <= MOST_LATENESS_US);
        kept.cloned().collect()
    };
    (seconds.len() >= 180)
        .then(|| (on_schedule(&seconds[60..120]), on_schedule(&seconds[seconds.len() - 60..])))
}

fn e3(store: &Store) -> Verdict {
    let cell = store.read("E3-tidegate");
    let ratio = cell.as_ref().and_then(minutes).map(|(second, last)| rate(&last) / rate(&second));
    let length = cell.as_ref().map_or(0, |cell| cell.seconds.len() / 60);
    Verdict {
        experiment: "E3",
        criterion: "an hour at 1.2 ×: the last minute at least 0.95 of the second",
        figure: ratio
            .map_or_else(String::new, |ratio| format!("{ratio:.3} after {length} minutes")),
        is_met: ratio.map(|ratio| ratio >= 0.95),
    }
}

fn e4(store: &Store) -> Vec<Verdict> {
    let read = |load: &str| store.read(&format!("E4-P-{load}x-tidegate"));
    let least = |criterion, loads: &[&str], bound: f64| {
        let each = loads.iter().filter_map(|load| Some(success(&read(load)?.counted(), 0)));
        let lowest = each.reduce(f64::min);
        Verdict {
            experiment: "E4",
            criterion,
            figure: lowest.map_or_else(String::new, |lowest| format!("{lowest:.4}")),
            is_met: lowest.map(|lowest| lowest >= bound),
        }
    };
    let inversions: Vec<String> = ["1.2", "2", "2.5", "4", "8"]
        .into_iter()
        .filter(|load| {
            read(load).is_some_and(|cell| {
                let each: Vec<f64> =
                    (0..CLASSES.len()).map(|class| success(&cell.counted(), class)).collect();
                // A difference within the scatter of the counts is none.
                each.windows(2).any(|pair| pair[1] > pair[0] + 0.005)
            })
        })
        .map(str::to_owned)
        .collect();
    let shedder = store.read("E4-P-4x-utilisation").map(|cell| success(&cell.counted(), 0));
    vec![
        least(
            "critical at least 0.99 while its load is at most half of the capacity",
            &["1.2", "2", "2.5"],
            0.99,
        ),
        least("at least 0.95 up to 0.8 of the capacity", &["4"], 0.95),
        Verdict {
            experiment: "E4",
            criterion: "at least 0.99 there with the utilisation shedder",
            figure: shedder.map_or_else(String::new, |share| format!("{share:.4}")),
            is_met: shedder.map(|share| share >= 0.99),
        },
        Verdict {
            experiment: "E4",
            criterion: "each class at least as successful as the one below",
            figure: match (read("2"), inversions.is_empty()) {
                (None, _) => String::new(),
                (_, true) => "at every load".to_owned(),
                (_, false) => format!("not at {}", inversions.join(", ")),
            },
            is_met: read("2").map(|_| inversions.is_empty()),
        },
    ]
}

/// Success around a storm of retries.
pub struct Storm {
    pub before: f64,
    pub during: f64,
    /// From 50 to 60 s after.
    pub later: f64,
    /// Seconds after the storm from which on 99 % of the requests of any three seconds succeeded.
    pub recovered: Option<usize>,
}

pub fn storm(cell: &Cell) -> Option<Storm> {
    let [before, during, after] = parts(cell)?;
    // Without seconds in which the generator was late.
    let total = |seconds: &[Second]| {
        let kept = || seconds.iter().filter(|second| second.lateness_us <= MOST_LATENESS_US);
        let served: u32 = kept().map(Second::served).sum();
        let requests: u32 = kept().map(Second::requests).sum();
        if requests == 0 { 1.0 } else { f64::from(served) / f64::from(requests) }
    };
    let recovered = (0..after.len().saturating_sub(3))
        .find(|start| after[*start..].windows(3).all(|three| total(three) >= 0.99));
    let later = after.get(50..60).unwrap_or(after);
    Some(Storm { before: total(before), during: total(during), later: total(later), recovered })
}

/// The seconds of three phases.
pub fn parts(cell: &Cell) -> Option<[&[Second]; 3]> {
    let lengths: Vec<usize> =
        cell.plan.load.phases.iter().map(|phase| phase.seconds as usize).collect();
    let [first, second, _] = lengths[..] else { return None };
    let (before, rest) = cell.seconds.split_at_checked(first)?;
    let (during, after) = rest.split_at_checked(second)?;
    Some([before, during, after])
}

/// E5 to E9.
fn steps(store: &Store) -> Vec<Verdict> {
    let of = |name: &str, figure: &dyn Fn(&Cell, f64) -> Option<f64>| {
        let cell = store.read(name)?;
        let peak = peak_of(store, &cell)?;
        figure(&cell, peak)
    };
    // From the third second after the change on.
    let reached = |seconds: &[Second], possible: f64| {
        seconds.get(2..).map(|seconds| rate(seconds) / possible)
    };
    let fail = of("E5-tidegate", &|cell, peak| reached(parts(cell)?[1], peak / 2.0));
    let back = of("E5-tidegate", &|cell, peak| reached(parts(cell)?[2], peak));
    let slow = of("E6-tidegate", &|cell, peak| Some(rate(parts(cell)?[1]) / (peak / 3.0)));
    let recovered =
        of("E6-tidegate", &|cell, peak| Some(rate(parts(cell)?[2].get(5..)?) / (peak * 0.8)));
    let first = of("E9-tidegate", &|cell, peak| Some(rate(parts(cell)?[2].get(..1)?) / peak));
    let at_least = |experiment, criterion, value: Option<f64>, bound: f64| Verdict {
        experiment,
        criterion,
        figure: value.map_or_else(String::new, |value| format!("{value:.3}")),
        is_met: value.map(|value| value >= bound),
    };
    let unprotected = store.read("E7-none").as_ref().and_then(storm);
    let protected = store.read("E7-tidegate").as_ref().and_then(storm);
    let attempts = store.read("E8-tidegate").map(|cell| {
        let attempts: u32 = cell.seconds.iter().map(|second| second.attempts).sum();
        let requests: u32 = cell.seconds.iter().map(Second::requests).sum();
        f64::from(attempts) / f64::from(requests.max(1))
    });
    vec![
        at_least("E5", "half of the workers fail: 0.9 of the possible from 2 s on", fail, 0.9),
        at_least("E5", "they return: 0.9 of the possible from 2 s on", back, 0.9),
        at_least("E6", "latency × 3 for 60 s: at least 0.85 of the possible", slow, 0.85),
        at_least("E6", "recovered within 5 s: 0.99 of the load from then on", recovered, 0.99),
        Verdict {
            experiment: "E7",
            criterion: "retry storm without a limiter: still down 60 s later",
            figure: unprotected
                .as_ref()
                .map_or_else(String::new, |storm| format!("success {:.3}", storm.later)),
            is_met: unprotected.map(|storm| storm.later < 0.5),
        },
        Verdict {
            experiment: "E7",
            criterion: "with the limiter: 99 % within 5 s",
            figure: protected.as_ref().map_or_else(String::new, |storm| {
                storm
                    .recovered
                    .map_or_else(|| "never".to_owned(), |seconds| format!("after {seconds} s"))
            }),
            is_met: protected.map(|storm| storm.recovered.is_some_and(|seconds| seconds <= 5)),
        },
        Verdict {
            experiment: "E8",
            criterion: "with Tidegate's client: at most 1.15 attempts per request",
            figure: attempts.map_or_else(String::new, |ratio| format!("{ratio:.3}")),
            is_met: attempts.map(|ratio| ratio <= 1.15),
        },
        at_least("E9", "3 × after a minute of idleness: first second at least 0.9", first, 0.9),
    ]
}

/// The mean of the limits that were read.
pub fn mean_limit(seconds: &[Second]) -> Option<f64> {
    let limits: Vec<u32> = seconds.iter().filter_map(|second| second.limit).collect();
    let sum: u32 = limits.iter().sum();
    (!limits.is_empty()).then(|| f64::from(sum) / limits.len() as f64)
}

/// E10 to E12.
fn rest(store: &Store) -> Vec<Verdict> {
    let speeds: Vec<f64> = names(store)
        .iter()
        .filter(|name| name.starts_with("E10-"))
        .filter_map(|name| goodput(store, name))
        .collect();
    let slowest = speeds.iter().copied().reduce(f64::min);
    let limit = |name: &str| mean_limit(&store.read(name)?.counted());
    let readers = |with: &str, without: &str| Some(limit(with)? / limit(without)?);
    let slow = |criterion, ratio: Option<f64>| Verdict {
        experiment: "E11",
        criterion,
        figure: ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} times")),
        is_met: ratio.map(|ratio| (0.9..=1.1).contains(&ratio)),
    };
    let other = store.read("E12-each").and_then(|cell| {
        let seconds = cell.seconds.get(10..)?;
        Some(success(seconds, 2).min(success(seconds, 3)))
    });
    vec![
        Verdict {
            experiment: "E10",
            criterion: "mean work of 0.5 ms to 4 s: goodput at least 0.95 each",
            figure: slowest.map_or_else(String::new, |lowest| format!("{lowest:.3} at least")),
            is_met: slowest.map(|lowest| lowest >= 0.95),
        },
        slow("20 % slow readers, `hold: body`: limit within 10 %", readers("E11-body", "E11-none")),
        slow(
            "20 % slow readers, `hold: head`: limit within 10 %",
            readers("E11-head", "E11-none-head"),
        ),
        Verdict {
            experiment: "E12",
            criterion: "two services, one unhealthy, a limiter each: the other at least 0.99",
            figure: other.map_or_else(String::new, |share| format!("{share:.4}")),
            is_met: other.map(|share| share >= 0.99),
        },
    ]
}
