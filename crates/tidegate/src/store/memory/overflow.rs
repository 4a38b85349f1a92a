//! The last resort: one shared state per limit for keys without room.
//!
//! It is used only if all slots near a new key's home hold keys that are being denied, so that none
//! may be evicted. New keys then share one state: some are denied without having used units, but no
//! key exceeds its limit.

use std::collections::HashMap;

use tidegate_core::algorithm::blocking::Block;
use tidegate_core::{Algorithm, Limit, State, Timestamp};

use crate::key::Scope;

/// The most limits with a shared state; more than a policy would configure.
const MOST: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Overflow {
    states: HashMap<Scope, (State, Timestamp)>,
}

impl Overflow {
    /// A copy of the state that the keys of `scope` share.
    pub(super) fn state(&self, scope: Scope) -> State {
        self.states.get(&scope).map(|(state, _)| state.clone()).unwrap_or_default()
    }

    pub(super) fn put(&mut self, scope: Scope, limit: &Limit, mut state: State, now: Timestamp) {
        if let State::Blocking(state) = &mut state {
            // One client's denial must not block all keys without room.
            state.block = Block::default();
        }
        let idle_at = limit.idle_at(&state);
        if self.states.len() >= MOST && !self.states.contains_key(&scope) {
            self.states.retain(|_, (_, idle_at)| *idle_at > now);
            let soonest = self.states.iter().min_by_key(|(_, (_, idle_at))| *idle_at);
            if let Some(scope) = soonest.map(|(scope, _)| *scope)
                && self.states.len() >= MOST
            {
                self.states.remove(&scope);
            }
        }
        self.states.insert(scope, (state, idle_at));
    }
}
