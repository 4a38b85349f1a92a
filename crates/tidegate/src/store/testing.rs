//! Helpers for the tests of several layers.

use std::future::pending;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tidegate_core::Span;

use super::Store;
use super::background::{Background, Runtime, Work};
use super::shared::{SharedOptions, SharedStore};
use crate::clock::Clock;

/// A runtime that does no background work.
pub(crate) struct Idle;

impl Runtime for Idle {
    fn spawn(&self, _work: Work) {}

    fn sleep(&self, _span: Span) -> Work {
        Box::pin(pending())
    }

    fn chance(&self) -> u64 {
        0
    }
}

/// All layers in front of a store, without background work.
pub(crate) fn layered<S: Store + 'static>(store: S, clock: impl Into<Clock>) -> SharedStore<S> {
    layered_with(store, clock, &SharedOptions::default())
}

/// The same with these options.
pub(crate) fn layered_with<S: Store + 'static>(
    store: S,
    clock: impl Into<Clock>,
    options: &SharedOptions,
) -> SharedStore<S> {
    SharedStore::start(store, options, clock.into(), &Background::new(Idle)).unwrap()
}

/// The value of a future that does not wait.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("no request waits here"),
    }
}
