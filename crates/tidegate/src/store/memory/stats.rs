//! Statistics of the memory store.

/// Statistics of a memory store, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in use, at most the bound.
    pub bytes: u64,
    /// Keys with a slot, including idle ones.
    pub keys: u64,
    /// Live keys evicted since the start.
    pub evicted: u64,
    /// Upper bound of the units that were lost with the evicted keys.
    pub evicted_units: u64,
    /// Decisions on a state shared by keys without room.
    pub overflowed: u64,
    /// Open reservations.
    pub reservations: u64,
    /// Reservations that were not opened for lack of room; their units stay taken.
    pub unreserved: u64,
}
