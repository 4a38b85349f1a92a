//! Atomics and locks, replaced by instrumented ones when shuttle explores schedules.

#[cfg(not(tidegate_shuttle))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

#[cfg(tidegate_shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

/// Locks, ignoring a poisoned lock: the guarded data is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Waits a moment for another thread: first spins, then yields the processor, because a preempted
/// lock holder cannot continue while this thread spins.
#[cfg(not(tidegate_shuttle))]
#[inline]
pub(crate) fn pause(attempt: u32) {
    const SPINS: u32 = 200;
    if attempt < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

#[cfg(tidegate_shuttle)]
pub(crate) fn pause(_attempt: u32) {
    shuttle::thread::yield_now();
}
