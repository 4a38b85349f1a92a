//! gRPC.

use super::Stream;
use crate::worker::House;

/// Answers until the peer has had enough or the server stops.
pub(crate) async fn converse(_stream: Stream, _house: House) {}
