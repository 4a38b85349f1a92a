//! How much a limit allows, by fixed periods or by the calendar.

use std::fmt;
use std::sync::Arc;

use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{Limit, Rate, Span, Timestamp};

use crate::key::Scope;
use crate::policy::model::calendar::Calendar;
use crate::policy::model::in_words::in_words;

/// How much a limit allows.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowance {
    /// Any number of units, not counted.
    Unlimited,
    /// The units of a limit.
    Limited {
        /// The limit's numbers.
        limit: Limit,
        /// The limit's part of its keys.
        scope: Scope,
    },
    /// A count of units per calendar period.
    Calendar(CalendarQuota),
}

/// A quota per calendar period.
#[derive(Clone, Debug, PartialEq)]
pub struct CalendarQuota {
    pub(in crate::policy) id: Arc<str>,
    pub(in crate::policy) count: u64,
    pub(in crate::policy) denied: Denied,
    pub(in crate::policy) calendar: Calendar,
}

impl Allowance {
    /// The numbers at `now`, and the scope of the keys; `None` if unlimited.
    pub fn at(&self, now: Timestamp) -> Option<(Limit, Scope)> {
        match self {
            Self::Unlimited => None,
            Self::Limited { limit, scope } => Some((*limit, *scope)),
            Self::Calendar(quota) => quota.at(now),
        }
    }

    /// Whether its windows are calendar periods.
    pub const fn is_calendar(&self) -> bool {
        matches!(self, Self::Calendar(_))
    }
}

impl CalendarQuota {
    /// A fixed window equal to the period that contains `now`. The scope includes length and
    /// offset, so each period is counted separately, however long it is.
    fn at(&self, now: Timestamp) -> Option<(Limit, Scope)> {
        let period = self.calendar.period(now);
        let length = period.end.as_micros() - period.start.as_micros();
        let offset = Span::from_micros(period.start.as_micros() % length);
        let rate = Rate::new(self.count, Span::from_micros(length));
        let window = Limit::fixed_window(rate).offset(offset);
        let window = match self.denied {
            Denied::Counted => window.count_denied(),
            Denied::Ignored => window,
        };
        // Count and length were checked when the policy was loaded.
        let limit = window.build().ok()?;
        Some((limit, Scope::new(&self.id, &limit)))
    }
}

/// As in `100/60s token bucket`, for explanations.
impl fmt::Display for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Limited { limit, .. } => write!(f, "{}", in_words(limit)),
            Self::Calendar(quota) => write!(f, "{} in each {}", quota.count, quota.calendar),
        }
    }
}
