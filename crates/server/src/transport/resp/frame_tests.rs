use super::*;

/// The requests of a stream that arrives in these pieces, and the error that ended it.
fn requests(pieces: &[&[u8]]) -> (Vec<Vec<Vec<u8>>>, Option<Broken>) {
    let (mut pending, mut found) = (Vec::new(), Vec::new());
    let mut places = WordRanges::default();
    for piece in pieces {
        pending.extend_from_slice(piece);
        loop {
            match read(&pending, &mut places) {
                Frame::Complete(length) => {
                    let words = Words::new(&pending, &places);
                    found.push(words.from(0).map(<[u8]>::to_vec).collect());
                    pending.drain(..length);
                }
                Frame::Part => break,
                Frame::Broken(broken) => return (found, Some(broken)),
            }
        }
    }
    (found, None)
}

fn one(text: &[u8]) -> Vec<Vec<u8>> {
    let (mut found, broken) = requests(&[text]);
    assert_eq!((found.len(), broken), (1, None), "{}", text.escape_ascii());
    found.remove(0)
}

#[test]
fn reads_arrays_and_lines() {
    assert_eq!(one(b"*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n"), [&b"ECHO"[..], b"\r\n"]);
    assert_eq!(one(b"PING\r\n"), [b"PING"]);
    assert_eq!(one(b"PING\n"), [b"PING"]);
    assert_eq!(one(b" echo\t 'a \"b' \"\" \r\n"), [&b"echo"[..], b"a \"b", b""]);
    for nothing in [&b"*0\r\n"[..], b"*-1\r\n", b"\r\n", b"\n", b"  \r\n"] {
        assert!(one(nothing).is_empty(), "{}", nothing.escape_ascii());
    }
}

#[test]
fn refuses_bytes_that_can_never_become_a_request() {
    let long_word = format!("*1\r\n${MAX_FRAME}\r\n");
    let long_inline = vec![b'x'; MAX_FRAME];
    let many = "x ".repeat(MAX_WORDS + 1) + "\n";
    let digits = b"*11111111111111111111111111111111111";
    for (text, broken) in [
        (&b"*65\r\n"[..], Broken::WordCount),
        (b"*x\r\n", Broken::WordCount),
        (b"*1x", Broken::WordCount),
        (b"*1\rx", Broken::WordCount),
        (b"*99999999999999999999\r\n", Broken::WordCount),
        (digits, Broken::LongLine),
        (b"*1\r\n*1\r\n", Broken::NoWord(b'*')),
        (b"*1\r\n:1\r\n", Broken::NoWord(b':')),
        (b"*1\r\n$-1\r\n", Broken::WordLength),
        (b"*1\r\n$65537\r\n", Broken::WordLength),
        (b"*1\r\n$9223372036854775807\r\n", Broken::WordLength),
        (b"*1\r\n$1\r\nabc", Broken::WordEnd),
        (long_word.as_bytes(), Broken::Long),
        (&long_inline, Broken::LongInline),
        (many.as_bytes(), Broken::WordCount),
        (b"echo \"a\n", Broken::Quotes),
        (b"echo \"a\\n\"\n", Broken::Quotes),
        (b"echo a\"b\"\n", Broken::Quotes),
        (b"echo \"a\"b\n", Broken::Quotes),
    ] {
        assert_eq!(requests(&[text]).1, Some(broken), "{}", text.escape_ascii());
    }
}

#[test]
fn integers_are_nothing_but_digits() {
    for number in [0, 1, -1, 42, i64::MAX, i64::MIN] {
        assert_eq!(integer(number.to_string().as_bytes()), Some(number));
    }
    for text in ["", "-", "+1", " 1", "1 ", "1.0", "0x1", "9223372036854775808", "\u{661}"] {
        assert_eq!(integer(text.as_bytes()), None, "{text:?}");
    }
    assert_eq!(integer(b"-9223372036854775809"), None);
    assert_eq!(integer(b"99999999999999999999"), None);
}

/// A stream of valid requests, sometimes with an invalid one among them.
fn stream(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..random.usize(1..12) {
        let words: Vec<Vec<u8>> = (0..random.usize(0..6))
            .map(|_| (0..random.usize(0..20)).map(|_| random.u8(..)).collect())
            .collect();
        match random.u8(..20) {
            0 => stream.extend((0..random.usize(0..9)).map(|_| random.u8(..))),
            1..6 => stream.extend_from_slice(b"CL.THROTTLE 'some body' 15 30 60\r\n"),
            _ => {
                stream.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
                for word in words {
                    stream.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                    stream.extend_from_slice(&word);
                    stream.extend_from_slice(b"\r\n");
                }
            }
        }
    }
    stream
}

#[test]
fn any_split_gives_the_same_requests() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..3_000 {
        let stream = stream(&mut random);
        let whole = requests(&[&stream]);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(requests(&bytes), whole, "{}", stream.escape_ascii());
        let mut rest = &stream[..];
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(random.usize(1..=rest.len()));
            pieces.push(piece);
            rest = after;
        }
        assert_eq!(requests(&pieces), whole, "{}", stream.escape_ascii());
    }
}

#[test]
fn no_bytes_panic() {
    let mut random = fastrand::Rng::with_seed(6);
    let mut places = WordRanges::default();
    for _ in 0..200_000 {
        let letters = b"*$-0123456789\r\n '\"\\ab\0\xff";
        let length = random.usize(0..40);
        let bytes: Vec<u8> = (0..length).map(|_| letters[random.usize(..letters.len())]).collect();
        if let Frame::Complete(length) = read(&bytes, &mut places) {
            assert!((1..=bytes.len()).contains(&length));
            let words = Words::new(&bytes, &places);
            assert!(words.from(0).map(<[u8]>::len).sum::<usize>() < length);
        }
    }
}
