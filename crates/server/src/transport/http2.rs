//! Protection of HTTP/2 listeners against peers that flood: counted frames, a memory budget, PINGs.

mod budget;
mod frames;
mod pings;

pub(crate) use self::budget::{Account, Budget, Charge};
pub(crate) use self::frames::{Counted, FrameLimits, Frames};
pub(crate) use self::pings::{KEEP_ALIVE, Pings};
