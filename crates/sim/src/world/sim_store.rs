//! A node's end of the wire: the store as production code sees it.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};

use tidegate::Explanation;
use tidegate::store::{Basis, Charge, Store, StoreError};
use tidegate_core::{Decision, Timestamp};

use super::executor::lock;
use super::network::{Network, Reply};

/// A store that is asked over a simulated network. What it says is decided by the store's clock; the
/// caller's is set aside, as Redis does.
#[derive(Clone, Debug)]
pub struct SimStore {
    network: Arc<Mutex<Network>>,
    node: usize,
    life: u32,
}

impl SimStore {
    pub(crate) const fn new(network: Arc<Mutex<Network>>, node: usize, life: u32) -> Self {
        Self { network, node, life }
    }

    async fn ask(&self, charges: &[Charge<'_>], is_each: bool) -> Reply {
        let call = lock(&self.network).ask(self.node, self.life, charges, is_each);
        poll_fn(|context| lock(&self.network).hear(call, context)).await
    }
}

impl Store for SimStore {
    async fn decide(
        &self,
        _now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<Basis, StoreError> {
        decisions.append(&mut self.ask(charges, false).await?);
        Ok(Basis::Store)
    }

    async fn decide_each(
        &self,
        _now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<Basis, StoreError> {
        decisions.append(&mut self.ask(charges, true).await?);
        Ok(Basis::Store)
    }

    async fn explain(
        &self,
        _now: Timestamp,
        _charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        Err(StoreError::Protocol("the simulated store decides, and explains nothing".into()))
    }
}
