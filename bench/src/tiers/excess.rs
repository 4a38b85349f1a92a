//! Measures how much more was admitted than a limit allows.
//!
//! A request was admitted at some instant between request and answer. Only requests that were both
//! sent and answered within an interval count in it, because a request in flight at its ends may
//! have been admitted before or after.

use ::tidegate::Timestamp;

/// The most that any interval admitted above `rate + rate x time`, for a bucket that holds the
/// units of one second; 0 if none did.
pub fn of(admitted: &[(Timestamp, Timestamp)], rate: u32) -> f64 {
    let units = |at: Timestamp| at.as_micros() as f64 * f64::from(rate) / 1e6;
    let mut starts: Vec<Timestamp> = admitted.iter().map(|(asked, _)| *asked).collect();
    starts.sort_unstable();
    let first = starts.first().map_or(0.0, |at| units(*at));
    // For each start: the admissions since, and the units refilled by then.
    let mut since = Most::new(starts.iter().map(|at| units(*at) - first));
    let mut answer = admitted.to_vec();
    answer.sort_unstable_by_key(|(_, answer)| *answer);
    let over = answer.iter().map(|(asked, answer)| {
        since.grow(starts.partition_point(|start| start <= asked));
        let most = since.most(starts.partition_point(|start| start <= answer));
        most - (units(*answer) - first) - f64::from(rate)
    });
    over.fold(0.0, f64::max)
}

/// A sequence of values in which any number of the first ones can grow by one, and with the largest
/// of any number of the first ones. A tree: each node has the largest value below it, and the
/// growth of all values below it.
struct Most {
    leaves: usize,
    largest: Vec<f64>,
    grown: Vec<f64>,
}

impl Most {
    fn new(values: impl ExactSizeIterator<Item = f64>) -> Self {
        let leaves = values.len().next_power_of_two();
        let mut largest = vec![f64::MIN; 2 * leaves];
        for (place, value) in largest[leaves..].iter_mut().zip(values) {
            *place = value;
        }
        for node in (1..leaves).rev() {
            largest[node] = largest[2 * node].max(largest[2 * node + 1]);
        }
        Self { leaves, largest, grown: vec![0.0; 2 * leaves] }
    }

    /// The largest of the first `count` values.
    fn most(&self, count: usize) -> f64 {
        // From the first leaf that does not count upwards: all subtrees to the left of the path
        // count.
        let (mut node, mut most) = (self.leaves + count, f64::MIN);
        if count == self.leaves {
            return self.largest[1];
        }
        while node > 1 {
            if node % 2 == 1 {
                most = most.max(self.largest[node - 1]);
            }
            node /= 2;
            most += self.grown[node];
        }
        most
    }

    /// Adds one to the first `count` values.
    fn grow(&mut self, count: usize) {
        let mut node = self.leaves + count;
        if count == self.leaves {
            return self.grow_below(1);
        }
        while node > 1 {
            if node % 2 == 1 {
                self.grow_below(node - 1);
            }
            node /= 2;
            let below = self.largest[2 * node].max(self.largest[2 * node + 1]);
            self.largest[node] = below + self.grown[node];
        }
    }

    fn grow_below(&mut self, node: usize) {
        self.largest[node] += 1.0;
        self.grown[node] += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 100;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_000_000 + millis * 1_000)
    }

    #[test]
    fn an_interval_admits_its_burst_and_what_the_rate_gives() {
        let burst = vec![(at(0), at(0)); RATE as usize];
        assert_eq!(of(&burst, RATE), 0.0);
        assert_eq!(of(&[burst.clone(), vec![(at(10), at(10))]].concat(), RATE), 0.0);
        assert_eq!(of(&[burst.clone(), vec![(at(10), at(10)); 3]].concat(), RATE), 2.0);
        // A second later and without the first burst, as much again.
        assert_eq!(of(&[burst, vec![(at(1_000), at(1_000)); 103]].concat(), RATE), 3.0);
    }

    #[test]
    fn a_request_in_progress_counts_in_no_shorter_interval() {
        let waited = vec![(at(0), at(1_000)); 200];
        assert_eq!(of(&waited, RATE), 0.0);
        assert_eq!(of(&[waited, vec![(at(500), at(500)); 104]].concat(), RATE), 104.0);
        assert_eq!(of(&[], RATE), 0.0);
    }
}
