//! Explanations of a key's state.

use tidegate_core::Op;

use super::Engine;
use super::backend::Backend;
use crate::verdict::Verdict;

impl<S: Backend> Engine<S> {
    /// The verdict of a check, with the state of each limit. Changes nothing.
    pub(super) async fn explain(&self, key: &[u8]) -> Result<Verdict, S::Error> {
        let (mut details, now) = self.details(key, Op::Read(1)).await?;
        for limit in self.limits.load().iter().take(details.records.len()) {
            let state = self.store.explain(now, &limit.charge(key, Op::Read(0))).await?;
            details.explained.push((None, Some(state)));
        }
        Ok(details.fold(self.store.clock(now)))
    }
}
