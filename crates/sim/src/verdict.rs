//! Describes the result of a comparison in words.

use tidegate_core::{AlgorithmName, Span};

use crate::comparison::{Comparison, Simulated};
use crate::report::most_within;
use crate::spell::spell;

/// A few sentences about `comparison`; each appears only if the figures support it.
pub fn verdict(comparison: &Comparison) -> Vec<String> {
    let rows: Vec<&Simulated> = comparison.simulated().collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let view = Rows { comparison, rows };
    [view.peace(), view.over(), view.sharpest(), view.effort(), view.finish(), view.delay()]
        .into_iter()
        .flatten()
        .collect()
}

struct Rows<'a> {
    comparison: &'a Comparison,
    rows: Vec<&'a Simulated>,
}

impl Rows<'_> {
    fn limit(&self) -> u64 {
        self.comparison.setup.rate().count
    }

    fn demand(&self) -> u64 {
        self.comparison.demand.len() as u64
    }

    fn having(&self, test: impl Fn(&Simulated) -> bool) -> impl Iterator<Item = &Simulated> {
        self.rows.iter().copied().filter(move |row| test(row))
    }

    fn period(&self) -> String {
        spell(self.comparison.setup.rate().per)
    }

    /// Whether the demand stayed within the limit.
    fn peace(&self) -> Option<String> {
        let calm = self.rows.iter().all(|row| row.figures.denied == 0);
        let most = most_within(&self.comparison.demand, self.comparison.setup.rate().per);
        let within = most <= self.limit();
        (calm && within).then(|| {
            format!(
                "Never more than {} asked in {}, so no request was denied.",
                most,
                self.period()
            )
        })
    }

    /// The algorithms that admitted more than the limit in a rolling period, and why.
    fn over(&self) -> Option<String> {
        let limit = self.limit();
        let (over, kept): (Vec<&Simulated>, Vec<&Simulated>) =
            self.rows.iter().partition(|row| row.figures.max_in_window > limit);
        let kept = names(kept);
        let groups = alike(&over, |row| (mechanism(row.algorithm), row.figures.max_in_window));
        let groups: Vec<String> = groups
            .iter()
            .map(|((mechanism, most), names)| {
                format!("{} {most} ({})", list(names), self.because(*mechanism))
            })
            .collect();
        let period = self.period();
        if groups.is_empty() {
            let asked = most_within(&self.comparison.demand, self.comparison.setup.rate().per);
            let who = if let [only] = kept[..] { only.as_str() } else { "all" };
            return (asked > limit).then(|| format!("In any {period}, {who} kept to {limit}."));
        }
        let rest = match kept.is_empty() {
            true => String::new(),
            false => format!("; {} at most {limit}", list(&kept)),
        };
        Some(format!("Most in {period}: {}{rest}.", groups.join(", ")))
    }

    fn because(&self, mechanism: Mechanism) -> String {
        match mechanism {
            Mechanism::Counter => "its count restarts with each window".to_owned(),
            Mechanism::Estimate => "it assumes that the last window was even".to_owned(),
            Mechanism::Bucket => {
                format!("a burst of {} plus the refill", self.comparison.setup.burst())
            }
            Mechanism::Other => "more than its rate".to_owned(),
        }
    }

    /// The algorithms that admitted a multiple of a whole period's units within 2 seconds.
    fn sharpest(&self) -> Option<String> {
        let most = self.rows.iter().map(|row| row.figures.max_in_2s).max()?;
        let tells = self.comparison.setup.rate().per >= Span::from_secs(2);
        let names = names(self.having(|row| row.figures.max_in_2s == most));
        (tells && most * 2 >= self.limit() * 3)
            .then(|| format!("In 2s, {} let {most} through.", list(&names)))
    }

    /// The number of tries per served request, if clients retry and some give up.
    fn effort(&self) -> Option<String> {
        let lost = self.rows.iter().any(|row| row.figures.gave_up > 0);
        let retried = self.rows.iter().any(|row| row.figures.offered != self.demand());
        let tries = |row: &Simulated| (row.figures.offered * 10).checked_div(row.figures.admitted);
        let easy = self.rows.iter().min_by_key(|row| tries(row))?;
        let hard = self.rows.iter().max_by_key(|row| tries(row))?;
        let (least, most) = (tries(easy)?, tries(hard)?);
        (lost && retried && least != most).then(|| {
            format!(
                "Tries per request served: {} with {} ({} of {demand} gave up), {} with {} \
                 ({} gave up).",
                tenths(least),
                easy.algorithm,
                easy.figures.gave_up,
                tenths(most),
                hard.algorithm,
                hard.figures.gave_up,
                demand = self.demand(),
            )
        })
    }

    /// When all requests were served, if all were served at different times.
    fn finish(&self) -> Option<String> {
        let first = *self.comparison.demand.first()?;
        let complete = self.rows.iter().all(|row| row.figures.gave_up == 0);
        let took = |row: &Simulated| Some(row.figures.last_start?.since(first));
        let soonest = self.rows.iter().min_by_key(|row| took(row))?;
        let latest = self.rows.iter().max_by_key(|row| took(row))?;
        let (least, most) = (took(soonest)?, took(latest)?);
        (complete && least != most).then(|| {
            format!(
                "All {} served: {} was through after {}, {} after {}.",
                self.demand(),
                soonest.algorithm,
                spell(least),
                latest.algorithm,
                spell(most)
            )
        })
    }

    fn delay(&self) -> Option<String> {
        let row = self.rows.iter().find(|row| !row.figures.max_delay.is_zero())?;
        Some(format!(
            "{} spaced starts evenly, at the price of up to {} of delay.",
            row.algorithm,
            spell(row.figures.max_delay)
        ))
    }
}

/// Why an algorithm exceeds the limit within a rolling period.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mechanism {
    Counter,
    Estimate,
    Bucket,
    Other,
}

const fn mechanism(algorithm: AlgorithmName) -> Mechanism {
    match algorithm {
        AlgorithmName::FixedWindow => Mechanism::Counter,
        AlgorithmName::SlidingWindow => Mechanism::Estimate,
        AlgorithmName::TokenBucket | AlgorithmName::Gcra => Mechanism::Bucket,
        AlgorithmName::SlidingLog | AlgorithmName::LeakyBucket => Mechanism::Other,
    }
}

/// Groups the algorithms that share a figure, in their order.
fn alike<K: PartialEq>(
    rows: &[&Simulated],
    figure: impl Fn(&Simulated) -> K,
) -> Vec<(K, Vec<AlgorithmName>)> {
    let mut groups: Vec<(K, Vec<AlgorithmName>)> = Vec::new();
    for row in rows {
        let key = figure(row);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, names)) => names.push(row.algorithm),
            None => groups.push((key, vec![row.algorithm])),
        }
    }
    groups
}

fn names<'a>(rows: impl IntoIterator<Item = &'a Simulated>) -> Vec<AlgorithmName> {
    rows.into_iter().map(|row| row.algorithm).collect()
}

/// `a, b and c`.
fn list(names: &[AlgorithmName]) -> String {
    match names {
        [] => String::new(),
        [only] => only.to_string(),
        [init @ .., last] => {
            let init: Vec<_> = init.iter().map(|name| name.as_str()).collect();
            format!("{} and {last}", init.join(", "))
        }
    }
}

fn tenths(tenths: u64) -> String {
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rate;

    use super::*;
    use crate::seed::Seed;
    use crate::setup::Setup;
    use crate::shape::Shape;

    fn words(shape: Shape, algorithms: &[AlgorithmName]) -> String {
        let setup = Setup::new(Rate::per_minute(100), None, Seed(1)).unwrap();
        verdict(&Comparison::of(&setup, shape, algorithms)).join(" ")
    }

    #[test]
    fn names_who_exceeded_the_limit_and_who_did_not() {
        let said = words(Shape::BoundaryBurst, &AlgorithmName::ALL);
        assert!(said.contains("In 2s, fixed_window let 200 through."), "{said}");
        assert!(said.contains("sliding_log and leaky_bucket at most 100."), "{said}");
    }

    #[test]
    fn says_nothing_that_the_figures_do_not_show() {
        let said = words(Shape::BoundaryBurst, &[AlgorithmName::SlidingLog]);
        assert_eq!(said, "In any 60s, sliding_log kept to 100.");
        let said = words(Shape::Steady, &AlgorithmName::ALL);
        assert_eq!(said, "Never more than 91 asked in 60s, so no request was denied.");
    }
}
