//! Processor instructions for the floors and the isolated loop.

/// The time stamp counter, the cheapest clock.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86_64 processor has the instruction, and it touches no memory.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::LazyLock;
        static CLOCK: LazyLock<quanta::Clock> = LazyLock::new(quanta::Clock::new);
        CLOCK.raw()
    }
}

/// Waits until all earlier instructions have finished, so that the next decision cannot overlap its
/// cache misses with this one.
#[inline(always)]
pub fn isolate() {
    #[cfg(target_arch = "x86_64")]
    #[allow(unused_unsafe, reason = "safe only where the compiler knows that SSE2 is there")]
    // SAFETY: SSE2 is part of the x86_64 base line.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Prefetches the cache line of `target`.
#[inline(always)]
pub fn prefetch<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and `target` is valid anyway.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(target).cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(target);
}
