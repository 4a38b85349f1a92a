//! The PROXY protocol, versions 1 and 2: a load balancer sends the client's address before the
//! bytes of the connection.
//!
//! # Bounds
//! A header arrives within [`TIME`], and has at most 107 bytes in version 1 and [`MAX_HEADER`] in
//! version 2. No byte behind it is read.

use std::net::IpAddr;
use std::time::Duration;

use ppp::{HeaderResult, v1, v2};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

/// How long a header may take.
const TIME: Duration = Duration::from_secs(5);

/// Maximum size of a binary header. The largest ones contain a client's certificate name and vendor
/// fields.
const MAX_HEADER: usize = 4 << 10;

/// Maximum size of a text header, including the end of its line.
const MAX_LINE: usize = 107;

/// The first bytes of a binary header.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The shortest header of either version, which is `PROXY UNKNOWN`.
const SHORTEST: usize = 15;

/// The error for a refused header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsound;

/// Reads a header, and returns the client's address; `None` if the load balancer connects on its
/// own behalf or does not know the client.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<IpAddr>, Unsound> {
    let header = timeout(TIME, bytes(stream)).await.map_err(|_| Unsound)??;
    client(&header)
}

/// Reads the bytes of a header, and none after it.
async fn bytes(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, Unsound> {
    let mut header = vec![0; SHORTEST];
    stream.read_exact(&mut header).await.map_err(|_| Unsound)?;
    if header.starts_with(SIGNATURE) {
        header.push(stream.read_u8().await.map_err(|_| Unsound)?);
        let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
        let start = header.len();
        if start + length > MAX_HEADER {
            return Err(Unsound);
        }
        header.resize(start + length, 0);
        stream.read_exact(&mut header[start..]).await.map_err(|_| Unsound)?;
        return Ok(header);
    }
    if !header.starts_with(b"PROXY ") {
        return Err(Unsound);
    }
    // Byte by byte, because the bytes after the header belong to the connection.
    while !header.ends_with(b"\r\n") {
        if header.len() >= MAX_LINE {
            return Err(Unsound);
        }
        header.push(stream.read_u8().await.map_err(|_| Unsound)?);
    }
    Ok(header)
}

fn client(header: &[u8]) -> Result<Option<IpAddr>, Unsound> {
    let client = match HeaderResult::parse(header) {
        // The header is the whole line; a second line is refused.
        HeaderResult::V1(Ok(it)) if it.header.len() == header.len() => match it.addresses {
            v1::Addresses::Unknown => None,
            v1::Addresses::Tcp4(it) => Some(IpAddr::from(it.source_address)),
            v1::Addresses::Tcp6(it) => Some(IpAddr::from(it.source_address)),
        },
        HeaderResult::V2(Ok(it)) => match (it.command, it.addresses) {
            (v2::Command::Local, _) | (_, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => {
                None
            }
            (_, v2::Addresses::IPv4(it)) => Some(IpAddr::from(it.source_address)),
            (_, v2::Addresses::IPv6(it)) => Some(IpAddr::from(it.source_address)),
        },
        HeaderResult::V1(_) | HeaderResult::V2(_) => return Err(Unsound),
    };
    Ok(client.map(|client| client.to_canonical()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parsed header, and the bytes after it.
    fn parsed(mut bytes: &[u8]) -> (Result<Option<String>, Unsound>, String) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let outcome = runtime.block_on(read(&mut bytes));
        let outcome = outcome.map(|client| client.map(|client| client.to_string()));
        (outcome, String::from_utf8_lossy(bytes).into_owned())
    }

    fn binary(command: u8, family: u8, fields: &[u8]) -> Vec<u8> {
        let length = u16::try_from(fields.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, fields].concat()
    }

    #[test]
    fn the_clients_address_is_read_and_nothing_behind_it() {
        let v4 = [192, 0, 2, 1, 10, 0, 0, 1, 0, 80, 1, 187];
        let v6 = [[0x20, 1, 0xd, 0xb8].as_slice(), &[0; 11], &[7], &[0; 16], &[0; 4]].concat();
        let more = [&v4[..], &[4, 0, 1, 9]].concat();
        for (header, client) in [
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 80 443\r\n".to_vec(), Some("192.0.2.1")),
            (b"PROXY TCP6 2001:db8::7 ::1 80 443\r\n".to_vec(), Some("2001:db8::7")),
            (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 80 443\r\n".to_vec(), Some("192.0.2.1")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ::1 ::1 1 1\r\n".to_vec(), None),
            (binary(0x21, 0x11, &v4), Some("192.0.2.1")),
            (binary(0x21, 0x11, &more), Some("192.0.2.1")),
            (binary(0x21, 0x21, &v6), Some("2001:db8::7")),
            (binary(0x20, 0x11, &v4), None),
            (binary(0x20, 0, &[]), None),
            (binary(0x21, 0, &[]), None),
            (binary(0x21, 0x31, &[0; 216]), None),
        ] {
            let shown = header.escape_ascii().to_string();
            let (outcome, rest) = parsed(&[&header[..], b"GET / HTTP"].concat());
            assert_eq!(outcome, Ok(client.map(ToOwned::to_owned)), "{shown}");
            assert_eq!(rest, "GET / HTTP", "{shown}");
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let long = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200], b"\r\n"].concat();
        for header in [
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 80 443\n GET / HTTP/1.1\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.256 10.0.0.1 80 443\r\n".to_vec(),
            b"PROXY TCP4 2001:db8::7 ::1 80 443\r\n".to_vec(),
            b"PROXY TCP5 192.0.2.1 10.0.0.1 80 443\r\n".to_vec(),
            b"PROXY X\r\nPROXY UNKNOWN\r\n".to_vec(),
            b"proxy tcp4 192.0.2.1 10.0.0.1 80 443\r\n".to_vec(),
            b"PROXY UNKNOWN".to_vec(),
            b"".to_vec(),
            long,
            // An unknown version, an unknown command, too few bytes, too many.
            binary(0x31, 0x11, &[0; 12]),
            binary(0x22, 0x11, &[0; 12]),
            binary(0x21, 0x11, &[0; 11]),
            binary(0x21, 0x11, &[0; 5_000]),
            binary(0x21, 0x11, &[0; 12])[..20].to_vec(),
        ] {
            assert_eq!(parsed(&header).0, Err(Unsound), "{}", header.escape_ascii());
        }
    }
}
