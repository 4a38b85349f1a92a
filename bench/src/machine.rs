//! What the floors and the isolated loop need from the processor.

/// The time stamp counter: the cheapest clock there is.
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

/// Lets nothing after it start before everything ahead of it is done, so that the next decision
/// cannot hide its cache misses behind this one.
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

/// Asks for the cache line of `target` without waiting for it.
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
