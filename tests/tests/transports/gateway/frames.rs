//! HTTP/2 by hand: frames as they stand in a test.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use tidegate_tests::http::connect;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RESET: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

/// A connection whose frames are written and read one by one.
pub(super) struct Frames(TcpStream);

/// A frame that was read.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

/// How a request ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With this status.
    Status(u16),
    /// The stream was reset with this code.
    Reset(u32),
    /// The connection was ended with this code.
    Closed(u32),
    /// The connection was closed without a word.
    Gone,
}

/// The bytes of a frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Fields as HPACK literals that no table takes up.
pub(super) fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            match text.len() {
                short @ 0..127 => block.push(short as u8),
                // One continuation byte, or two.
                long => {
                    block.push(127);
                    let mut rest = long - 127;
                    while rest >= 128 {
                        block.push(rest as u8 | 128);
                        rest >>= 7;
                    }
                    block.push(rest as u8);
                }
            }
            block.extend(text.as_bytes());
        }
    }
    block
}

impl Frames {
    pub(super) fn open(address: SocketAddr) -> Self {
        let mut socket = connect(address);
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("sent");
        let mut frames = Self(socket);
        frames.write(&frame(SETTINGS, 0, 0, &[])).expect("sent");
        frames
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    pub(super) fn read(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head)?;
        let [a, b, c, kind, _, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.0.read_exact(&mut payload)?;
        let stream = u32::from_be_bytes(stream);
        Ok(Frame { kind, stream, payload })
    }

    /// How the request on this stream ends, or the connection.
    pub(super) fn end(&mut self, stream: u32) -> End {
        loop {
            let Ok(frame) = self.read() else { return End::Gone };
            match frame.kind {
                HEADERS if frame.stream == stream => return End::Status(status(&frame.payload)),
                RESET if frame.stream == stream => return End::Reset(number(&frame.payload)),
                GOAWAY => return End::Closed(number(&frame.payload[4..])),
                _ => {}
            }
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The status that a block begins with: of the static table, or a literal.
fn status(block: &[u8]) -> u16 {
    match block {
        // The size of the table may change first.
        [0x20..=0x3f, rest @ ..] => status(rest),
        [indexed @ 0x88..=0x8e, ..] => {
            [200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)]
        }
        // Three digits in Huffman's code take two bytes, or three.
        [0x48, 0x03, digits @ ..] => {
            std::str::from_utf8(&digits[..3]).expect("digits").parse().expect("a status")
        }
        [0x48, 0x82 | 0x83, a, b, c, ..] => huffman(u32::from_be_bytes([*a, *b, *c, 0])),
        other => panic!("no status: {other:02x?}"),
    }
}

/// Digits 0 to 2 have five bits, from 00000 on; the others six, from 011001 on.
fn huffman(code: u32) -> u16 {
    let (mut left, mut status) = (32, 0);
    for _ in 0..3 {
        let five = (code >> (left - 5)) & 0b1_1111;
        let (digit, length) = match five {
            0..=2 => (five, 5),
            _ => (((code >> (left - 6)) & 0b11_1111) - 0b01_1001 + 3, 6),
        };
        (status, left) = (status * 10 + digit as u16, left - length);
    }
    status
}
