//! Distributes units over shards.

/// Distributes `units` evenly, and gives no shard more than it has room for. Units that fit nowhere are added to
/// the last shard.
pub(super) fn spread(units: u64, room: &[u64]) -> Vec<u64> {
    let mut parts = vec![0; room.len()];
    let mut order: Vec<usize> = (0..room.len()).collect();
    order.sort_by_key(|place| room[*place]);
    let mut left = units;
    for (done, place) in order.iter().enumerate() {
        let alike = left / (room.len() - done) as u64;
        let part = room[*place].min(alike);
        parts[*place] = part;
        left -= part;
    }
    if let Some(last) = order.last() {
        parts[*last] += left;
    }
    parts
}

#[cfg(test)]
#[path = "spread_tests.rs"]
mod tests;
