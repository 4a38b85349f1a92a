//! The sequence of keys. It depends only on the seed, so every implementation gets the same
//! requests.

use serde::{Deserialize, Serialize};

/// How requests choose their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// One key gets all requests.
    Hot,
    /// Every key is equally likely.
    Uniform,
    /// The key of rank r comes with probability ~ 1 / r^1.1.
    Zipf,
}

impl Access {
    /// The kinds of access that apply to this many keys.
    pub fn over(keys: u32) -> &'static [Self] {
        if keys == 1 { &[Self::Hot] } else { &[Self::Uniform, Self::Zipf] }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }
}

/// One request.
pub struct Request {
    /// The key as text; two concatenated keys with [`Names::Pair`].
    pub key: String,
    /// The key's number, for floors that hash nothing.
    pub index: u32,
}

/// How a number becomes a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// `user:00001234`
    Single,
    /// `user:00001234addr:00001234`: two keys of [`Names::LENGTH`] bytes each.
    Pair,
}

impl Names {
    /// Bytes of one key.
    pub const LENGTH: usize = 13;

    pub fn request(self) -> Request {
        let length = if self == Self::Pair { 2 * Self::LENGTH } else { Self::LENGTH };
        Request { key: String::with_capacity(length), index: 0 }
    }

    /// Makes `request` the one of this key, reusing its memory.
    pub fn write(self, request: &mut Request, index: u32) {
        request.index = index;
        request.key.clear();
        push_name(&mut request.key, "user:", index);
        if self == Self::Pair {
            push_name(&mut request.key, "addr:", index);
        }
    }
}

/// Requests prepared before the measurement, in order: their keys are read sequentially, and only
/// the table under test is accessed at random.
pub fn requests(names: Names, keys: u32, access: Access, seed: u64) -> Vec<Request> {
    // Enough requests to miss the caches wherever the table does.
    let count = keys.saturating_mul(4).clamp(1 << 16, 1 << 21);
    let mut random = Random(seed);
    let zipf = Zipf::new(keys, 1.1);
    (0..count)
        .map(|_| {
            let index = match access {
                Access::Hot => 0,
                Access::Uniform => random.below(keys),
                Access::Zipf => scatter(zipf.rank(&mut random) - 1, keys),
            };
            let mut request = names.request();
            names.write(&mut request, index);
            request
        })
        .collect()
}

/// `SplitMix64`: small, seeded, and a bijection of its counter.
pub struct Random(pub u64);

impl Random {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::STEP);
        Self::mix(self.0)
    }

    /// Different inputs never give the same output.
    pub fn mix(value: u64) -> u64 {
        let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u32
    }

    /// In [0, 1).
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Zipf's law by rejection-inversion (Hörmann and Derflinger, 1996): no table, any number of ranks.
struct Zipf {
    ranks: f64,
    exponent: f64,
    first: f64,
    last: f64,
    squeeze: f64,
}

impl Zipf {
    fn new(ranks: u32, exponent: f64) -> Self {
        let mut zipf =
            Self { ranks: f64::from(ranks), exponent, first: 0.0, last: 0.0, squeeze: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.ranks + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - 2_f64.powf(-exponent));
        zipf
    }

    /// From 1 to the number of ranks.
    fn rank(&self, random: &mut Random) -> u32 {
        loop {
            let area = self.last + random.fraction() * (self.first - self.last);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.ranks);
            let accepted = rank - x <= self.squeeze
                || area >= self.integral(rank + 0.5) - rank.powf(-self.exponent);
            if accepted {
                return rank as u32;
            }
        }
    }

    fn integral(&self, x: f64) -> f64 {
        ((1.0 - self.exponent) * x.ln()).exp_m1() / (1.0 - self.exponent)
    }

    fn inverse(&self, area: f64) -> f64 {
        (((1.0 - self.exponent) * area).ln_1p() / (1.0 - self.exponent)).exp()
    }
}

/// Spreads the popular ranks over the key space, so that neighbours in rank are not neighbours in
/// memory. A bijection as long as `keys` is no multiple of the prime.
fn scatter(rank: u32, keys: u32) -> u32 {
    (u64::from(rank) * 7_368_787 % u64::from(keys)) as u32
}

fn push_name(key: &mut String, prefix: &str, index: u32) {
    key.push_str(prefix);
    let mut place = 10_000_000;
    while place > 0 {
        key.push(char::from(b'0' + (index / place % 10) as u8));
        place /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_length_the_adapters_split_at() {
        let mut request = Names::Pair.request();
        Names::Pair.write(&mut request, 1_234);
        assert_eq!(request.key.split_at(Names::LENGTH), ("user:00001234", "addr:00001234"));
    }

    #[test]
    fn zipf_gives_the_first_rank_its_share() {
        let (keys, draws) = (1_000_u32, 200_000_u32);
        let zipf = Zipf::new(keys, 1.1);
        let mut random = Random(1);
        let firsts = (0..draws).filter(|_| zipf.rank(&mut random) == 1).count() as f64;
        let total: f64 = (1..=keys).map(|rank| f64::from(rank).powf(-1.1)).sum();
        let expected = f64::from(draws) / total;
        assert!((firsts / expected - 1.0).abs() < 0.03, "{firsts} instead of {expected}");
    }
}
