//! Tells HTTP/2 from HTTP/1.1 by ALPN, or by the first bytes of a connection.

use std::io;

use tokio::io::AsyncReadExt;

use crate::transport::Stream;

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The connection, and whether its client speaks HTTP/2.
pub(super) async fn read(mut stream: Stream) -> io::Result<(Stream, bool)> {
    if let Some(protocol) = stream.alpn() {
        let is_http2 = protocol == b"h2";
        return Ok((stream, is_http2));
    }
    let (mut bytes, mut filled) = ([0; PREFACE.len()], 0);
    loop {
        let length = stream.read(&mut bytes[filled..]).await?;
        filled += length;
        let is_preface = bytes[..filled] == PREFACE[..filled];
        let is_known = !is_preface || filled == PREFACE.len();
        if length == 0 || is_known {
            return Ok((stream.begun(&bytes[..filled]), is_preface && is_known));
        }
    }
}
