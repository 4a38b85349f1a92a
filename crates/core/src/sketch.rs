//! Heavy hitters in constant memory: a count-min sketch and the keys with the highest counts.
//!
//! # Promise
//! The reported count of a key is never below its true count since the counts were last halved. It
//! may be higher, by at most the units of the other keys that share a cell with it in every row.
//! Only the [`HeavyHitters::TOP`] highest keys are reported.
//!
//! # Reference
//! Cormode and Muthukrishnan, *An Improved Data Stream Summary*, with conservative update.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Counts keys by their hash, and keeps the keys with the highest counts.
#[derive(Clone, Debug)]
pub struct HeavyHitters {
    /// The counters, row by row.
    cells: Box<[u32]>,
    top: Vec<Hitter>,
    /// Units since the counts were last halved.
    units: u64,
}

/// A key with a high count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hitter {
    /// The key, cut off after [`HeavyHitters::MAX_KEY`] bytes.
    pub key: Box<[u8]>,
    /// Approximate number of units counted.
    pub units: u64,
    hash: u64,
}

impl HeavyHitters {
    /// Number of keys that are reported.
    pub const TOP: usize = 32;

    /// The longest key that is kept; longer keys are cut off.
    pub const MAX_KEY: usize = 128;

    const ROWS: usize = 4;
    const WIDTH: usize = 1 << 12;

    /// Number of units after which all counts are halved, so that old traffic makes room for new.
    const HALF_LIFE: u64 = 1 << 22;

    /// A sketch without counts.
    pub fn new() -> Self {
        let cells = vec![0; Self::ROWS * Self::WIDTH].into_boxed_slice();
        Self { cells, top: Vec::with_capacity(Self::TOP), units: 0 }
    }

    /// Counts `units` of a key. `hash` must be keyed with a secret, or a client could construct
    /// keys that share every cell. `key` is called only if the key enters the top list.
    pub fn add(&mut self, hash: u64, units: u32, key: impl FnOnce() -> Box<[u8]>) {
        self.units += u64::from(units);
        if self.units >= Self::HALF_LIFE {
            self.halve();
        }
        let indexes = Self::indexes(hash);
        let least = indexes.iter().map(|index| self.cells[*index]).min().unwrap_or(0);
        let count = least.saturating_add(units);
        for index in indexes {
            self.cells[index] = self.cells[index].max(count);
        }
        self.insert_top(hash, u64::from(count), key);
    }

    /// The keys with the highest counts, highest first.
    pub fn top(&self) -> Vec<Hitter> {
        let mut top = self.top.clone();
        top.sort_by(|one, other| other.units.cmp(&one.units).then(one.key.cmp(&other.key)));
        top
    }

    fn insert_top(&mut self, hash: u64, units: u64, key: impl FnOnce() -> Box<[u8]>) {
        if let Some(known) = self.top.iter_mut().find(|hitter| hitter.hash == hash) {
            known.units = units;
            return;
        }
        let fresh = || {
            let mut key = key();
            if key.len() > Self::MAX_KEY {
                key = key[..Self::MAX_KEY].into();
            }
            Hitter { key, units, hash }
        };
        if self.top.len() < Self::TOP {
            self.top.push(fresh());
        } else if let Some(last) = self.top.iter_mut().min_by_key(|hitter| hitter.units)
            && last.units < units
        {
            *last = fresh();
        }
    }

    fn halve(&mut self) {
        self.units = 0;
        for cell in &mut self.cells {
            *cell /= 2;
        }
        for hitter in &mut self.top {
            hitter.units /= 2;
        }
        self.top.retain(|hitter| hitter.units > 0);
    }

    /// The index of one cell per row.
    fn indexes(hash: u64) -> [usize; Self::ROWS] {
        // Two halves of a hash yield as many hashes as needed (Kirsch and Mitzenmacher).
        let (low, high) = (hash & 0xffff_ffff, (hash >> 32) | 1);
        let mut indexes = [0; Self::ROWS];
        for (row, index) in (0_u64..).zip(&mut indexes) {
            let column = low.wrapping_add(row.wrapping_mul(high)) % (Self::WIDTH as u64);
            *index = usize::try_from(row * (Self::WIDTH as u64) + column).unwrap_or(0);
        }
        indexes
    }
}

impl Default for HeavyHitters {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spreads a number over 64 bits.
    fn hash(number: u64) -> u64 {
        let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn add(hitters: &mut HeavyHitters, number: u64, units: u32) {
        hitters.add(hash(number), units, || number.to_string().into_bytes().into());
    }

    #[test]
    fn finds_the_few_among_many() {
        let mut hitters = HeavyHitters::new();
        for round in 0..20_000 {
            add(&mut hitters, 1_000 + round, 1);
            if round % 10 == 0 {
                for heavy in 0..8 {
                    add(&mut hitters, heavy, 1);
                }
            }
        }
        let top = hitters.top();
        let mut first: Vec<&[u8]> = top[..8].iter().map(|hitter| &*hitter.key).collect();
        first.sort_unstable();
        let names: Vec<String> = (0..8).map(|heavy| heavy.to_string()).collect();
        assert_eq!(first, names.iter().map(String::as_bytes).collect::<Vec<_>>());
        for hitter in &top[..8] {
            // Never below the true count, and not much above it.
            assert!((2_000..2_200).contains(&hitter.units), "{hitter:?}");
        }
        assert_eq!(top.len(), HeavyHitters::TOP);
    }

    #[test]
    fn old_traffic_makes_room() {
        let mut hitters = HeavyHitters::new();
        add(&mut hitters, 1, 1_000);
        for _ in 0..12 {
            add(&mut hitters, 2, u32::try_from(HeavyHitters::HALF_LIFE).unwrap());
        }
        let top = hitters.top();
        assert_eq!(&*top[0].key, b"2");
        assert!(top.iter().all(|hitter| &*hitter.key != b"1"), "{top:?}");
    }

    #[test]
    fn long_keys_are_cut_and_counts_do_not_overflow() {
        let mut hitters = HeavyHitters::new();
        for _ in 0..3 {
            hitters.add(7, u32::MAX, || vec![b'x'; 1_000].into());
        }
        assert_eq!(hitters.top()[0].key.len(), HeavyHitters::MAX_KEY);
    }
}
