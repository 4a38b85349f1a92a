//! The algorithms against exact rationals, and the rationals against numbers worked out by hand.

mod differential;
mod vectors;
