//! Measured values and their targets.

use std::fmt;
use std::time::Duration;

/// Factor for times on a machine that runs other tests as well.
const SLACK: f64 = 10.0;
/// The same for shares, in percentage points.
const SHARE_SLACK: f64 = 25.0;

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The behaviour that is measured.
    pub behaviour: String,
    measured: f64,
    target: Target,
    unit: Unit,
    firmness: Firmness,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
    Exactly(f64),
    /// The value is reported without a target.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Unit {
    Count,
    Millis,
    Percent,
    MiB,
    Times,
    /// The value was not measured.
    Nothing,
}

/// On which machines a target must be met.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Firmness {
    /// On every machine.
    Always,
    /// On a busy machine, with tenfold slack.
    Slack,
    /// On an idle machine only.
    Idle,
}

impl Figure {
    fn new(behaviour: impl Into<String>, measured: f64, most: f64, unit: Unit) -> Self {
        let (behaviour, target) = (behaviour.into(), Target::AtMost(most));
        Self { behaviour, measured, target, unit, firmness: Firmness::Always }
    }

    /// A count with a maximum, on every machine.
    pub(crate) fn count(behaviour: impl Into<String>, measured: u64, most: u64) -> Self {
        Self::new(behaviour, measured as f64, most as f64, Unit::Count)
    }

    /// A count with an exact target, on every machine.
    pub(crate) fn exactly(behaviour: impl Into<String>, measured: u64, wanted: u64) -> Self {
        let target = Target::Exactly(wanted as f64);
        Self { target, ..Self::count(behaviour, measured, wanted) }
    }

    /// A value that cannot be measured on this machine, for the reason in its text.
    pub(crate) fn left_out(behaviour: impl Into<String>) -> Self {
        let behaviour = behaviour.into();
        println!("!!! LEFT OUT: {behaviour}");
        Self::new(behaviour, 0.0, 0.0, Unit::Nothing).without_target()
    }

    /// A count that must be zero, on every machine.
    pub(crate) fn none(behaviour: impl Into<String>, measured: u64) -> Self {
        Self::count(behaviour, measured, 0)
    }

    /// A time with a maximum; on a busy machine ten times as long.
    pub(crate) fn time(behaviour: impl Into<String>, measured: Duration, most: Duration) -> Self {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let new = Self::new(behaviour, millis(measured), millis(most), Unit::Millis);
        Self { firmness: Firmness::Slack, ..new }
    }

    /// A share with a maximum in per cent.
    pub(crate) fn percent(behaviour: impl Into<String>, share: f64, most: f64) -> Self {
        Self::new(behaviour, 100.0 * share, most, Unit::Percent)
    }

    /// A size in MiB with a maximum.
    pub(crate) fn mebibytes(behaviour: impl Into<String>, measured: f64, most: f64) -> Self {
        Self::new(behaviour, measured, most, Unit::MiB)
    }

    /// A ratio with a maximum.
    pub(crate) fn times(behaviour: impl Into<String>, measured: f64, most: f64) -> Self {
        Self::new(behaviour, measured, most, Unit::Times)
    }

    /// Turns the maximum into a minimum.
    pub(crate) fn at_least(self) -> Self {
        let target = match self.target {
            Target::AtMost(bound) => Target::AtLeast(bound),
            other => other,
        };
        Self { target, ..self }
    }

    /// Reports the value without a target.
    pub(crate) fn without_target(self) -> Self {
        Self { target: Target::None, ..self }
    }

    /// Allows slack on a busy machine: ten times as much, or for a share some percentage points.
    pub(crate) fn roughly(self) -> Self {
        Self { firmness: Firmness::Slack, ..self }
    }

    /// Applies the target to idle machines only.
    pub(crate) fn when_idle(self) -> Self {
        Self { firmness: Firmness::Idle, ..self }
    }

    /// Whether there is a target.
    pub const fn has_target(&self) -> bool {
        !matches!(self.target, Target::None)
    }

    /// Whether the target is met.
    pub fn is_met(&self) -> bool {
        self.is_met_within(1.0)
    }

    /// Whether the target is met, with slack for a busy machine.
    pub fn holds_on_a_busy_machine(&self) -> bool {
        match self.firmness {
            Firmness::Always => self.is_met(),
            Firmness::Slack if self.unit == Unit::Percent => self.is_met_about(),
            Firmness::Slack => self.is_met_within(SLACK),
            Firmness::Idle => true,
        }
    }

    fn is_met_within(&self, slack: f64) -> bool {
        match self.target {
            Target::AtMost(most) => self.measured <= most * slack,
            Target::AtLeast(least) => self.measured * slack >= least,
            Target::Exactly(wanted) => self.measured == wanted,
            Target::None => true,
        }
    }

    fn is_met_about(&self) -> bool {
        match self.target {
            Target::AtMost(most) => self.measured <= most + SHARE_SLACK,
            Target::AtLeast(least) => self.measured >= least - SHARE_SLACK,
            Target::Exactly(wanted) => (self.measured - wanted).abs() <= SHARE_SLACK,
            Target::None => true,
        }
    }

    /// The cells of the table: measured value, target, and whether it is met.
    pub fn cells(&self) -> [String; 3] {
        let show = |value: f64| Shown(value, self.unit).to_string();
        let (target, bound) = match self.target {
            Target::AtMost(0.0) => ("0".to_owned(), 0.0),
            Target::AtMost(most) => (format!("≤ {}", show(most)), most),
            Target::AtLeast(least) => (format!("≥ {}", show(least)), least),
            Target::Exactly(wanted) => (show(wanted), wanted),
            Target::None => ("–".to_owned(), 0.0),
        };
        let met = match (self.target, self.is_met()) {
            (Target::None, _) => "–".to_owned(),
            (_, true) => "yes".to_owned(),
            (_, false) => format!("no, off by {}", show((self.measured - bound).abs())),
        };
        [show(self.measured), target, met]
    }
}

struct Shown(f64, Unit);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value, unit) = *self;
        match unit {
            Unit::Count => write!(f, "{value:.0}"),
            Unit::Millis if value >= 10_000.0 => write!(f, "{:.1} s", value / 1e3),
            Unit::Millis if value >= 10.0 => write!(f, "{value:.0} ms"),
            Unit::Millis => write!(f, "{value:.2} ms"),
            Unit::Percent => write!(f, "{value:.1} %"),
            Unit::MiB => write!(f, "{value:.1} MiB"),
            Unit::Times => write!(f, "{value:.2} ×"),
            Unit::Nothing => write!(f, "–"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_off_says_by_how_much() {
        let ms = Duration::from_millis;
        let late = Figure::time("late", ms(70), ms(50));
        assert_eq!(late.cells(), ["70 ms", "≤ 50 ms", "no, off by 20 ms"]);
        assert!(!late.is_met() && late.holds_on_a_busy_machine());
        assert!(!Figure::none("errors", 1).holds_on_a_busy_machine());
        let used = Figure::percent("used", 0.97, 99.0).at_least();
        assert_eq!(used.cells(), ["97.0 %", "≥ 99.0 %", "no, off by 2.0 %"]);
        assert!(used.clone().roughly().holds_on_a_busy_machine());
        let hardly = Figure::percent("used", 0.7, 99.0).at_least().roughly();
        assert!(!hardly.holds_on_a_busy_machine(), "ten times as little is not about as much");
        assert!(Figure::count("told", 7, 0).without_target().is_met());
        let exact = Figure::exactly("admitted", 499, 500);
        assert_eq!(exact.cells(), ["499", "500", "no, off by 1"]);
        assert!(!exact.holds_on_a_busy_machine());
        assert!(Figure::exactly("admitted", 500, 500).is_met());
        assert_eq!(Figure::left_out("no cgroup").cells(), ["–", "–", "–"]);
        assert!(Figure::times("peak", 9.0, 1.5).when_idle().holds_on_a_busy_machine());
    }
}
