//! Traffic shapes on simulated time.
