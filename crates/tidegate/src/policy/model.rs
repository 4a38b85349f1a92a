//! The policy as data: domains, rules, limits and their numbers.

pub(super) mod allowance;
pub(super) mod calendar;
pub(super) mod descriptor;
pub(super) mod fresh_start;
pub(super) mod in_words;
pub(super) mod leaf;
pub(super) mod limit;
pub(super) mod overload;
pub(super) mod revision;
pub(super) mod rule;
pub(super) mod settling;
pub(super) mod share;
