//! Classifies errors of servers and connections.

use std::fmt::Display;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::{Misconfigured, StoreError};

/// How to handle a failed command.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server does not have the script, or no longer has it.
    NoScript,
    /// Another node serves the slot, permanently or for this command only.
    Redirected { host: String, port: u16, once: bool },
    /// The slot is being moved, and its keys are on two nodes.
    TryAgain,
    /// A key of the call has another type. Nothing was written.
    WrongType(StoreError),
    /// The connection can no longer be used.
    Broken(StoreError),
    /// This node cannot decide; another one may.
    NotHere(StoreError),
    /// The error is returned to the caller.
    Refused(StoreError),
}

impl Failure {
    /// Classifies an error of `server`.
    pub(super) fn of(error: &RedisError, server: impl Display) -> Self {
        let said = format!("{server}: {}", said(error));
        let unavailable = || StoreError::unavailable(&said);
        let wrong = |what| StoreError::misconfigured(what, &said);
        match error.kind() {
            ErrorKind::Server(kind) => match kind {
                ServerErrorKind::NoScript => Self::NoScript,
                ServerErrorKind::Moved | ServerErrorKind::Ask => match error.redirect_node() {
                    Some((address, _)) => redirected(address, kind == ServerErrorKind::Ask),
                    None => Self::Refused(StoreError::protocol(said)),
                },
                ServerErrorKind::TryAgain => Self::TryAgain,
                ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown => {
                    Self::NotHere(unavailable())
                }
                ServerErrorKind::BusyLoading => Self::Refused(unavailable()),
                ServerErrorKind::ReadOnly => Self::NotHere(wrong(Misconfigured::ReadOnly)),
                ServerErrorKind::CrossSlot => Self::Refused(wrong(Misconfigured::CrossSlot)),
                ServerErrorKind::NoPerm => Self::Refused(wrong(Misconfigured::Permission)),
                _ => Self::of_text(&said),
            },
            ErrorKind::AuthenticationFailed => Self::Broken(wrong(Misconfigured::Authentication)),
            ErrorKind::InvalidClientConfig => Self::Broken(wrong(Misconfigured::Setting)),
            ErrorKind::RESP3NotSupported => Self::Broken(wrong(Misconfigured::Version)),
            ErrorKind::Extension => Self::of_text(&said),
            ErrorKind::Io if is_about_certificates(&said) => {
                Self::Broken(wrong(Misconfigured::Setting))
            }
            ErrorKind::Io => Self::Broken(unavailable()),
            ErrorKind::Parse => Self::Broken(StoreError::protocol(said)),
            _ if error.is_connection_dropped() || error.is_unrecoverable_error() => {
                Self::Broken(unavailable())
            }
            _ => Self::Refused(StoreError::protocol(said)),
        }
    }

    /// Classifies an error by the code that its message begins with, or that a script passed on in
    /// its own message.
    fn of_text(said: &str) -> Self {
        let says = |codes: &[&str]| codes.iter().any(|code| said.contains(code));
        let wrong = |what| StoreError::misconfigured(what, said);
        if says(&["WRONGTYPE", "attempt to "]) {
            // Lua fails on a list or a set with entries that no script writes.
            Self::WrongType(wrong(Misconfigured::WrongType))
        } else if says(&["OOM "]) {
            Self::Refused(wrong(Misconfigured::OutOfMemory))
        } else if says(&["NOAUTH", "WRONGPASS", "invalid username-password"]) {
            Self::Broken(wrong(Misconfigured::Authentication))
        } else if says(&["NOPERM", "no permissions", "The user executing the script can't"]) {
            Self::Refused(wrong(Misconfigured::Permission))
        } else if says(&["READONLY", "read only replica"]) {
            Self::NotHere(wrong(Misconfigured::ReadOnly))
        } else if says(&["MISCONF", "NOREPLICAS"]) {
            Self::Refused(wrong(Misconfigured::ReadOnly))
        } else if says(&["CROSSSLOT", "same slot"]) {
            Self::Refused(wrong(Misconfigured::CrossSlot))
        } else if says(&["LOADING", "BUSY", "UNKILLABLE"]) {
            Self::Refused(StoreError::unavailable(said))
        } else if says(&["CLUSTERDOWN", "MASTERDOWN"]) {
            Self::NotHere(StoreError::unavailable(said))
        } else if says(&["nknown Redis command", "unknown command"]) {
            Self::Refused(wrong(Misconfigured::Version))
        } else if says(&["DB index", "SELECT is not allowed"]) {
            Self::Refused(wrong(Misconfigured::Setting))
        } else {
            Self::Refused(StoreError::protocol(said))
        }
    }

    /// The error for the caller if no retry is possible.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::NoScript => StoreError::protocol(
                "the server does not know a script that was sent with its text",
            ),
            // Clusters follow redirections, so this is a cluster node that is configured as a
            // single server.
            Self::Redirected { host, port, .. } => {
                let why = format!("another node, {host}:{port}, serves the key");
                StoreError::misconfigured(Misconfigured::CrossSlot, why)
            }
            Self::TryAgain => StoreError::unavailable("the slot is being moved"),
            Self::WrongType(error)
            | Self::Broken(error)
            | Self::NotHere(error)
            | Self::Refused(error) => error,
        }
    }
}

/// The server's message without the position in the script.
fn said(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {}", without_place(detail)),
        _ => without_place(&error.to_string()).to_owned(),
    }
}

/// Removes ` script: <hash>, on @user_script:<line>.`, which Redis appends.
fn without_place(detail: &str) -> &str {
    match detail.rsplit_once(" script: ") {
        Some((words, place)) if place.contains("user_script") => words,
        _ => detail,
    }
}

/// Whether the error is about certificates: the server's is not trusted, or the server does not
/// trust ours.
fn is_about_certificates(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    ["certificate", "unknownca", "decrypterror", "invalidcontenttype", "pem", "private key"]
        .iter()
        .any(|word| said.contains(word))
}

fn redirected(address: &str, once: bool) -> Failure {
    match address.rsplit_once(':').map(|(host, port)| (host, port.parse())) {
        Some((host, Ok(port))) => Failure::Redirected { host: host.into(), port, once },
        _ => Failure::Refused(StoreError::protocol(format!("redirected to {address:?}"))),
    }
}
