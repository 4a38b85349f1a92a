//! What the memory store holds and what it had to forget.

/// Figures of a memory store, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in use, at most the bound.
    pub bytes: u64,
    /// Keys with a slot, idle ones included.
    pub keys: u64,
    /// Live keys forgotten for want of memory, since the start.
    pub evicted: u64,
    /// At most so many units were forgotten with them.
    pub forgotten_units: u64,
    /// Decisions on a state shared by keys that found no room.
    pub overflowed: u64,
}
