//! The memory budget for data that a peer can make the server hold: unfinished messages, unread
//! answers and open streams. One budget bounds it for all connections of the process. Each
//! connection gets a part of the free bytes, so that no connection can use all of it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that all connections may hold together.
const MAX_HELD: usize = 64 << 20;

/// Determines the part of the free bytes that one connection may hold. A single connection may hold
/// a quarter of the budget, enough for all streams that it may open.
const SHARE: usize = 3;

/// Bytes of a call that waits for its peer, besides its message: the stream, its state and its
/// task.
const CALL: usize = 4 << 10;

/// Bytes of a connection whose peer does not read: the answers to requests that were read before.
const BLOCKED: usize = 256 << 10;

/// The budget of the process.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_HELD)))
    }
}

/// One connection's part of the budget.
#[derive(Debug)]
pub(crate) struct Account {
    process: Arc<Semaphore>,
    /// The free part of the whole budget after this connection's charges.
    connection: Arc<Semaphore>,
    unfinished: Arc<Semaphore>,
}

/// Bytes taken from the budget, returned when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    process: OwnedSemaphorePermit,
    connection: OwnedSemaphorePermit,
    /// The part for the message, if it is charged.
    unfinished: Option<OwnedSemaphorePermit>,
}

impl Account {
    /// `max_unfinished` bounds the bytes of unfinished messages on the connection.
    pub(crate) fn new(budget: &Budget, max_unfinished: usize) -> Self {
        Self {
            process: Arc::clone(&budget.0),
            connection: Arc::new(Semaphore::new(MAX_HELD)),
            unfinished: Arc::new(Semaphore::new(max_unfinished)),
        }
    }

    /// Charges a call that waits for its peer; `None` if the budget is exhausted.
    pub(crate) fn call(&self) -> Option<Charge> {
        self.charge(CALL)
    }

    /// Charges a connection whose peer does not read.
    pub(crate) fn blocked(&self) -> Option<Charge> {
        self.charge(BLOCKED)
    }

    /// Charges a call whose answer waits until the peer has room for it.
    pub(crate) fn answer(&self, bytes: usize) -> Option<Charge> {
        self.charge(bytes.saturating_add(CALL))
    }

    /// Charges a message of this length in addition, unless it is charged already.
    pub(crate) fn message(&self, charge: &mut Charge, bytes: usize) -> bool {
        if charge.unfinished.is_some() {
            return true;
        }
        let (Some(added), Some(unfinished)) = (self.charge(bytes), take(&self.unfinished, bytes))
        else {
            return false;
        };
        charge.process.merge(added.process);
        charge.connection.merge(added.connection);
        charge.unfinished = Some(unfinished);
        true
    }

    fn charge(&self, bytes: usize) -> Option<Charge> {
        let held = MAX_HELD - self.connection.available_permits();
        if held.saturating_add(bytes) > self.process.available_permits() / SHARE {
            return None;
        }
        let (process, connection) = (take(&self.process, bytes)?, take(&self.connection, bytes)?);
        Some(Charge { process, connection, unfinished: None })
    }
}

fn take(semaphore: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    let bytes = u32::try_from(bytes).ok()?;
    Arc::clone(semaphore).try_acquire_many_owned(bytes).ok()
}
