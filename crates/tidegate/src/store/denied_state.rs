//! What a store saw when it denied.

use tidegate_core::{State, Timestamp};

/// What a denial was decided on. From it, whoever stands in front of the store can tell what the
/// store would say a little later.
#[derive(Clone, Debug, PartialEq)]
pub struct DeniedState {
    /// The state of the key before the denial. A log may be a short one, on which this cost is
    /// decided as on the whole.
    pub state: State,
    /// What the clock of the store said.
    pub at: Timestamp,
}
