//! A run of zeroed words, reserved at once and backed by memory only where it is touched.

use std::fmt;
use std::io;

use crate::sync::AtomicU64;

/// From this many bytes on, an arena asks for huge pages: a small table would only be rounded up,
/// a large one misses the translation cache on almost every look-up without them.
#[cfg(all(target_os = "linux", not(tidegate_shuttle)))]
const HUGE_FROM: usize = 8 << 20;

#[cfg(not(tidegate_shuttle))]
mod mapped {
    use memmap2::MmapMut;
    use self_cell::{MutBorrow, self_cell};

    use super::AtomicU64;

    pub(super) type Words<'a> = &'a [AtomicU64];

    self_cell!(
        pub(super) struct Mapped {
            owner: MutBorrow<MmapMut>,
            #[covariant]
            dependent: Words,
        }
    );
}

/// The words, shared by all threads.
pub(super) struct Arena {
    #[cfg(not(tidegate_shuttle))]
    mapped: mapped::Mapped,
    #[cfg(tidegate_shuttle)]
    words: Box<[AtomicU64]>,
}

#[cfg(not(tidegate_shuttle))]
impl Arena {
    /// Reserves `words` words of address space.
    pub(super) fn new(words: usize) -> io::Result<Self> {
        use memmap2::MmapOptions;
        use zerocopy::FromBytes;

        let bytes = words * size_of::<AtomicU64>();
        let map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
        #[cfg(target_os = "linux")]
        if bytes > HUGE_FROM {
            use memmap2::Advice;
            // Only speed depends on it: a kernel without huge pages refuses, and that is fine.
            let _ = map.advise_range(Advice::HugePage, HUGE_FROM, bytes - HUGE_FROM);
        }
        let mapped = mapped::Mapped::try_new(self_cell::MutBorrow::new(map), |map| {
            <[AtomicU64]>::mut_from_bytes(map.borrow_mut())
                .map(|words| &*words)
                .map_err(|error| io::Error::other(error.to_string()))
        })?;
        Ok(Self { mapped })
    }

    #[inline]
    pub(super) fn words(&self) -> &[AtomicU64] {
        self.mapped.borrow_dependent()
    }
}

#[cfg(tidegate_shuttle)]
impl Arena {
    pub(super) fn new(words: usize) -> io::Result<Self> {
        Ok(Self { words: (0..words).map(|_| AtomicU64::new(0)).collect() })
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.words
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("words", &self.words().len()).finish_non_exhaustive()
    }
}
