//! What an error of the server or the connection means.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::{Misconfigured, StoreError};

/// What to do about a command that failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The script is not known there (any more).
    NoScript,
    /// Another node serves the slot now, or for this once.
    Redirected { host: String, port: u16, once: bool },
    /// The slot is being moved, and some of the keys are here and some there.
    TryAgain,
    /// Some key of the call holds something else. Nothing was written.
    WrongType(StoreError),
    /// The connection cannot be trusted any more.
    Broken(StoreError),
    /// The node will not do; another may.
    NotHere(StoreError),
    /// The answer to whoever asked.
    Refused(StoreError),
}

impl Failure {
    pub(super) fn of(error: &RedisError) -> Self {
        let unavailable = || StoreError::unavailable(error);
        let wrong = |what| StoreError::misconfigured(what, error);
        match error.kind() {
            ErrorKind::Server(kind) => match kind {
                ServerErrorKind::NoScript => Self::NoScript,
                ServerErrorKind::Moved | ServerErrorKind::Ask => match error.redirect_node() {
                    Some((address, _)) => redirected(address, kind == ServerErrorKind::Ask),
                    None => Self::Refused(StoreError::protocol(error)),
                },
                ServerErrorKind::TryAgain => Self::TryAgain,
                ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown => {
                    Self::NotHere(unavailable())
                }
                ServerErrorKind::BusyLoading => Self::Refused(unavailable()),
                ServerErrorKind::ReadOnly => Self::NotHere(wrong(Misconfigured::ReadOnly)),
                ServerErrorKind::CrossSlot => Self::Refused(wrong(Misconfigured::CrossSlot)),
                ServerErrorKind::NoPerm => Self::Refused(wrong(Misconfigured::Permission)),
                _ => Self::of_text(error),
            },
            ErrorKind::AuthenticationFailed => Self::Broken(wrong(Misconfigured::Authentication)),
            ErrorKind::InvalidClientConfig => Self::Broken(wrong(Misconfigured::Setting)),
            ErrorKind::RESP3NotSupported => Self::Broken(wrong(Misconfigured::Version)),
            ErrorKind::Extension => Self::of_text(error),
            ErrorKind::Io if error.to_string().contains("certificate") => {
                Self::Broken(wrong(Misconfigured::Setting))
            }
            ErrorKind::Io => Self::Broken(unavailable()),
            ErrorKind::Parse => Self::Broken(StoreError::protocol(error)),
            _ if error.is_connection_dropped() || error.is_unrecoverable_error() => {
                Self::Broken(unavailable())
            }
            _ => Self::Refused(StoreError::protocol(error)),
        }
    }

    /// By the code that the message begins with, or that a script passed on within its own.
    fn of_text(error: &RedisError) -> Self {
        let text = error.to_string();
        let says = |code: &str| error.code() == Some(code) || text.contains(code);
        let wrong = |what| StoreError::misconfigured(what, error);
        if says("WRONGTYPE") {
            Self::WrongType(wrong(Misconfigured::WrongType))
        } else if says("OOM") {
            Self::Refused(wrong(Misconfigured::OutOfMemory))
        } else if says("NOAUTH") || says("WRONGPASS") || says("invalid username-password") {
            Self::Broken(wrong(Misconfigured::Authentication))
        } else if says("NOPERM") || text.contains("can't run this command or subcommand") {
            Self::Refused(wrong(Misconfigured::Permission))
        } else if says("READONLY") || text.contains("read only replica") {
            Self::NotHere(wrong(Misconfigured::ReadOnly))
        } else if says("MISCONF") || says("NOREPLICAS") {
            Self::Refused(wrong(Misconfigured::ReadOnly))
        } else if says("CROSSSLOT") || text.contains("same slot") {
            Self::Refused(wrong(Misconfigured::CrossSlot))
        } else if says("LOADING") || says("BUSY") || says("UNKILLABLE") {
            Self::Refused(StoreError::unavailable(error))
        } else if says("CLUSTERDOWN") || says("MASTERDOWN") {
            Self::NotHere(StoreError::unavailable(error))
        } else if text.contains("nknown Redis command") || text.contains("unknown command") {
            Self::Refused(wrong(Misconfigured::Version))
        } else {
            Self::Refused(StoreError::protocol(error))
        }
    }

    /// What whoever asked is told if nothing else can be done.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::NoScript => StoreError::protocol("the script was sent whole and yet is unknown"),
            Self::Redirected { host, port, .. } => {
                StoreError::unavailable(format!("moved to {host}:{port}"))
            }
            Self::TryAgain => StoreError::unavailable("the slot is being moved"),
            Self::WrongType(error)
            | Self::Broken(error)
            | Self::NotHere(error)
            | Self::Refused(error) => error,
        }
    }
}

fn redirected(address: &str, once: bool) -> Failure {
    match address.rsplit_once(':').map(|(host, port)| (host, port.parse())) {
        Some((host, Ok(port))) => Failure::Redirected { host: host.into(), port, once },
        _ => Failure::Refused(StoreError::protocol(format!("redirected to {address:?}"))),
    }
}
