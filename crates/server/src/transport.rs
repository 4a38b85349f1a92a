//! Doors: each turns bytes of a protocol into questions, and answers into bytes.

pub(crate) mod http;
pub(crate) mod resp;

use std::sync::Arc;

/// What is spoken on a listener.
#[derive(Clone, Debug)]
pub(crate) enum Door {
    /// The Redis protocol.
    Resp {
        /// What clients have to say first.
        password: Option<Arc<str>>,
    },
    /// HTTP/1.1.
    Http,
}

impl Door {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Resp { .. } => "RESP",
            Self::Http => "HTTP",
        }
    }
}
