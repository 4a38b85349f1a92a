//! Listeners on TCP ports and Unix sockets.

use std::fs;
use std::io;
use std::net::{IpAddr, TcpListener as StdTcp};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener as StdUnix, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::listen;
use rustix::net::sockopt::set_socket_linger;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::settings::Address;
use crate::transport::Stream;

/// Maximum number of connections that wait to be accepted. With the 128 of the standard library,
/// further clients would wait a second for their next try. The system allows at most
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4_096;

/// An open listener that is not registered with a runtime yet.
#[derive(Debug)]
pub(crate) enum Bound {
    Tcp(StdTcp),
    /// With its socket file, unless the socket was inherited: then the file belongs to the parent.
    Unix(StdUnix, Option<SocketFile>),
}

/// A listening socket that the parent of the process has opened, and keeps open: connections wait in it
/// while no process serves them.
#[derive(Debug)]
pub enum Inherited {
    /// A TCP socket.
    Tcp(StdTcp),
    /// A Unix socket.
    Unix(StdUnix),
}

impl Inherited {
    /// Its address.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(listener) => unix_address(listener),
        }
    }
}

fn unix_address(listener: &StdUnix) -> io::Result<Address> {
    let address = listener.local_addr()?;
    let path = address.as_pathname().ok_or_else(|| io::Error::other("the socket has no path"))?;
    Ok(Address::Unix(path.into()))
}

/// An open listener, registered with a runtime.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: Option<SocketFile> },
}

/// A connection that is not registered with a runtime.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(std::net::TcpStream),
    Unix(StdUnixStream),
}

/// Removes a socket file when dropped, because the system keeps it.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If the removal fails, the next start replaces the file.
        let _ = fs::remove_file(&self.0);
    }
}

impl Bound {
    /// Opens a listener.
    pub(crate) fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let listener = StdTcp::bind(address)?;
                listen(&listener, BACKLOG)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Address::Unix(path) => {
                remove_leftover(path)?;
                let listener = StdUnix::bind(path)?;
                listen(&listener, BACKLOG)?;
                let file = SocketFile(path.clone());
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener, Some(file)))
            }
        }
    }

    /// Takes over a listener.
    pub(crate) fn inherit(socket: Inherited) -> io::Result<Self> {
        match socket {
            Inherited::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            Inherited::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener, None))
            }
        }
    }

    /// The address, with the port that the system chose.
    pub(crate) fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(listener, _) => unix_address(listener),
        }
    }

    /// Registers the listener with the current runtime.
    pub(crate) fn register(self) -> io::Result<Listener> {
        match self {
            Self::Tcp(listener) => TcpListener::from_std(listener).map(Listener::Tcp),
            Self::Unix(listener, file) => {
                Ok(Listener::Unix { listener: UnixListener::from_std(listener)?, _file: file })
            }
        }
    }
}

/// Removes the socket file of a process that has ended. If a process still accepts connections
/// there, the path is in use.
fn remove_leftover(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let kind = found.file_type();
    if !kind.is_socket() {
        let what = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_symlink() => "a symbolic link",
            () if kind.is_file() => "a regular file",
            () => "not a socket",
        };
        return Err(io::Error::other(format!(
            "the path is {what}; remove it, or choose another path"
        )));
    }
    if StdUnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    fs::remove_file(path)
}

impl Listener {
    /// Accepts the next connection, which is not registered with this runtime.
    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => Ok(Socket::Tcp(listener.accept().await?.0.into_std()?)),
            Self::Unix { listener, .. } => Ok(Socket::Unix(listener.accept().await?.0.into_std()?)),
        }
    }
}

impl Socket {
    /// The peer's address, if it has one.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(socket) => socket.peer_addr().ok().map(|peer| peer.ip().to_canonical()),
            Self::Unix(_) => None,
        }
    }

    /// Closes the connection with a reset, so that the system keeps no state for it.
    pub(crate) fn reset(self) {
        if let Self::Tcp(socket) = &self {
            // This fails if the client has closed the connection already.
            let _ = set_socket_linger(socket, Some(Duration::ZERO));
        }
    }

    /// Registers the connection with the current runtime.
    pub(crate) fn register(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(socket) => {
                let socket = TcpStream::from_std(socket)?;
                // Answers are written in one piece, so waiting for more bytes would only delay the
                // rest of a long answer.
                socket.set_nodelay(true)?;
                Ok(Stream::Tcp(socket))
            }
            Self::Unix(socket) => UnixStream::from_std(socket).map(Stream::Unix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file and a directory are refused with the reason; the socket of an ended process is
    /// replaced.
    #[test]
    fn a_path_that_is_no_socket_is_refused_with_the_reason() {
        let folder = std::env::temp_dir().join(format!("tidegate-listener-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        fs::write(&path, "precious").unwrap();
        let why = |path: &Path| {
            Bound::open(&Address::Unix(path.into())).map(drop).unwrap_err().to_string()
        };
        assert_eq!(why(&path), "the path is a regular file; remove it, or choose another path");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        assert_eq!(why(&folder), "the path is a directory; remove it, or choose another path");
        let socket = folder.join("socket");
        drop(StdUnix::bind(&socket).unwrap());
        let bound = Bound::open(&Address::Unix(socket.clone())).unwrap();
        let taken = Bound::open(&Address::Unix(socket)).map(drop).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(bound);
        fs::remove_dir_all(&folder).unwrap();
    }
}
