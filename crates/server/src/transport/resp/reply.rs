//! Replies in the Redis protocol.

/// The protocol version of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// RESP2, the default.
    #[default]
    Resp2,
    /// RESP3, with maps and a null type.
    Resp3,
}

/// Appends replies to a buffer.
#[derive(Debug)]
pub(crate) struct Replies<'a> {
    pub(crate) bytes: &'a mut Vec<u8>,
    pub(crate) protocol: Protocol,
}

impl Replies<'_> {
    pub(crate) fn integer(&mut self, number: i64) {
        self.line(b':', number);
    }

    /// The head of an array of `length` values.
    pub(crate) fn array(&mut self, length: usize) {
        self.line(b'*', length as i64);
    }

    /// The head of a map of `pairs` pairs.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(pairs * 2),
            Protocol::Resp3 => self.line(b'%', pairs as i64),
        }
    }

    pub(crate) fn bulk(&mut self, text: &[u8]) {
        self.line(b'$', text.len() as i64);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(crate) fn null(&mut self) {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// A simple string.
    pub(crate) fn simple(&mut self, text: &'static str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(crate) fn ok(&mut self) {
        self.simple("OK");
    }

    /// An error: its first word is its code. It may quote the client's input, so line ends become
    /// blanks.
    pub(crate) fn error(&mut self, text: impl AsRef<[u8]>) {
        self.bytes.push(b'-');
        let one_line = text.as_ref().iter().map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            other => *other,
        });
        self.bytes.extend(one_line);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes a number without `write!`, which would cost a fifth of a whole decision.
    fn line(&mut self, kind: u8, number: i64) {
        // Most numbers are small, and most replies have six of them.
        match number {
            0..=9 => {
                return self.bytes.extend_from_slice(&[kind, b'0' + number as u8, b'\r', b'\n']);
            }
            10..=99 => {
                let (ten, one) = (b'0' + (number / 10) as u8, b'0' + (number % 10) as u8);
                return self.bytes.extend_from_slice(&[kind, ten, one, b'\r', b'\n']);
            }
            _ => {}
        }
        // The kind, a sign, nineteen digits, and the line end.
        let mut line = [0; 24];
        let mut at = line.len() - 2;
        line[at..].copy_from_slice(b"\r\n");
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            line[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            at -= 1;
            line[at] = b'-';
        }
        at -= 1;
        line[at] = kind;
        self.bytes.extend_from_slice(&line[at..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Replies<'_>)) -> String {
        let mut bytes = Vec::new();
        write(&mut Replies { bytes: &mut bytes, protocol });
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn writes_every_integer() {
        for number in [0, 1, 9, 10, 99, 100, -1, -10, i64::MAX, i64::MIN] {
            let text = written(Protocol::Resp2, |replies| replies.integer(number));
            assert_eq!(text, format!(":{number}\r\n"));
        }
    }

    #[test]
    fn maps_and_nulls_are_those_of_the_version() {
        let write = |replies: &mut Replies<'_>| {
            replies.map(1);
            replies.bulk(b"a");
            replies.null();
        };
        assert_eq!(written(Protocol::Resp2, write), "*2\r\n$1\r\na\r\n$-1\r\n");
        assert_eq!(written(Protocol::Resp3, write), "%1\r\n$1\r\na\r\n_\r\n");
    }

    #[test]
    fn an_error_cannot_smuggle_in_a_second_answer() {
        let text = written(Protocol::Resp2, |replies| replies.error("ERR 'a\r\n:1\r\n'"));
        assert_eq!(text, "-ERR 'a  :1  '\r\n");
    }
}
