//! Maps that count requests per key and decide nothing, to measure a look-up alone.

use std::cell::UnsafeCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::candidate::{Candidate, Decider};
use crate::traffic::Request;

pub const CANDIDATES: &[Candidate] = &[
    Candidate::new("hashbrown", |_| Box::new(Hashbrown(Exclusive::default()))),
    Candidate::new("dashmap", |_| Box::new(Dashmap(dashmap::DashMap::new()))),
    Candidate::new("papaya", |_| Box::new(Papaya(papaya::HashMap::new()))),
];

/// State that needs `&mut`: without a lock while one thread runs, and behind a mutex, as a user
/// would need it, while two run.
#[derive(Default)]
pub struct Exclusive<T> {
    state: UnsafeCell<T>,
    guard: Mutex<()>,
    shared: AtomicBool,
}

// SAFETY: `with` hands out one `&mut T` at a time: by the mutex once `share` announced two
// threads, and because there is only one thread otherwise.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    pub fn new(state: T) -> Self {
        Self { state: UnsafeCell::new(state), guard: Mutex::new(()), shared: false.into() }
    }

    /// Announces the number of threads; call it before they start.
    pub fn share(&self, threads: usize) {
        self.shared.store(threads > 1, Relaxed);
    }

    #[inline(always)]
    pub fn with<R>(&self, run: impl FnOnce(&mut T) -> R) -> R {
        let _guard = self.shared.load(Relaxed).then(|| self.guard.lock());
        // SAFETY: see `Sync` above; `run` cannot come back here, it has no `self`.
        run(unsafe { &mut *self.state.get() })
    }
}

struct Hashbrown(Exclusive<hashbrown::HashMap<String, u64>>);

impl Decider for Hashbrown {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        self.0.with(|map| {
            if let Some(count) = map.get_mut(request.key.as_str()) {
                *count += 1;
            } else {
                map.insert(request.key.clone(), 1);
            }
        });
        true
    }

    fn share(&self, threads: usize) {
        self.0.share(threads);
    }
}

struct Dashmap(dashmap::DashMap<String, u64>);

impl Decider for Dashmap {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        if let Some(mut count) = self.0.get_mut(request.key.as_str()) {
            *count += 1;
            return true;
        }
        self.0.insert(request.key.clone(), 1);
        true
    }
}

struct Papaya(papaya::HashMap<String, AtomicU64>);

impl Decider for Papaya {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        let map = self.0.pin();
        if let Some(count) = map.get(request.key.as_str()) {
            count.fetch_add(1, Relaxed);
        } else {
            map.insert(request.key.clone(), AtomicU64::new(1));
        }
        true
    }
}
