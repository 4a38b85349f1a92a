//! Repeatable random numbers.

/// The seed of all random numbers. Draws are looked up and not consumed: a client's numbers do not depend on other
/// clients, so algorithms are compared on the same traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seed(
    /// Any number.
    pub u64,
);

impl Seed {
    /// The draw for the `attempt`th try of `client`, uniform over all 64 bits.
    pub fn draw(self, client: usize, attempt: u32) -> u64 {
        mix(mix(mix(self.0) ^ client as u64) ^ u64::from(attempt))
    }

    /// As [`Seed::draw`], below `bound`; 0 if `bound` is 0.
    pub fn below(self, bound: u64, client: usize, attempt: u32) -> u64 {
        let scaled = u128::from(self.draw(client, attempt)) * u128::from(bound);
        u64::try_from(scaled >> 64).unwrap_or(0)
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_outputs_are_those_of_splitmix64() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn draws_repeat_and_spread() {
        let sum: u64 = (0..10_000).map(|client| Seed(7).below(100, client, 0)).sum();
        assert!((480_000..510_000).contains(&sum), "{sum}");
        assert_eq!(Seed(7).draw(3, 1), Seed(7).draw(3, 1));
        assert_ne!(Seed(7).draw(3, 1), Seed(8).draw(3, 1));
        assert_eq!(Seed(7).below(0, 1, 1), 0);
    }
}
