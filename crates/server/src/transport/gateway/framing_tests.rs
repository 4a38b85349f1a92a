use super::*;

/// Reads the text in pieces of `size`; fails with the number of sound bytes if it is refused.
fn read_in(text: &[u8], size: usize) -> Result<State, usize> {
    let mut framing = Framing::default();
    for (number, piece) in text.chunks(size).enumerate() {
        let before = number * size;
        framing.read(piece).map_err(|refused| before + refused.sound)?;
    }
    Ok(framing.state)
}

const SIZES: [usize; 5] = [1, 2, 7, 64, 100_000];

#[test]
fn requests_that_servers_frame_differently_are_refused() {
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding:",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: -1",
        "Content-Length: 0x5",
        "Content-Length: 99999999999999999999",
        "Content-Length:",
    ] {
        let first = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
        let text = format!("{first}POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\nhello");
        for size in SIZES {
            let sound = read_in(text.as_bytes(), size).expect_err(fields);
            // A part of the refused head that arrived earlier may have been passed on.
            assert!(
                sound >= first.len() && sound < text.len() - "hello".len(),
                "{fields}: {sound}"
            );
        }
        assert_eq!(read_in(text.as_bytes(), 100_000), Err(first.len()), "{fields}");
    }
    let old = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(read_in(old, 100_000), Err(0));
}

#[test]
fn a_message_ends_where_its_framing_says() {
    for body in [
        "Host: a\r\n\r\n",
        "Host: a\r\nContent-Length: 0\r\n\r\n",
        "Host: a\r\nContent-Length: 20\r\n\r\nGET / HTTP/1.1\r\n\r\nxx",
        "transfer-encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5;a=b\r\n\r\n\r\n0\r\n0\r\nA: b\r\nC: d\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n00000000000000a\r\n0123456789\r\n0\r\n\r\n",
    ] {
        let text = format!("POST / HTTP/1.1\r\n{body}").repeat(3);
        for size in SIZES {
            assert_eq!(read_in(text.as_bytes(), size), Ok(State::Head), "{body} in {size}");
        }
        let mut framing = Framing::default();
        framing.read(&text.as_bytes()[..text.len() - 1]).expect("a message without its last byte");
        let is_between = framing.state == State::Head && !framing.is_in_head();
        assert!(!is_between, "{body}: one byte less is not the end");
    }
}

#[test]
fn malformed_chunks_are_refused() {
    let long = format!("1;{}\r\nx\r\n", "e".repeat(MAX_EXTENSION + 1));
    let trailers = format!("0\r\nA: {}\r\n\r\n", "t".repeat(MAX_TRAILERS));
    for chunks in [
        "\r\n",
        ";a\r\n",
        "g\r\n",
        "5 \r\nhello",
        "5\nhello",
        "5\r\nhello0",
        "5\r\nhello\n",
        "5\rx",
        "5;a\nb",
        "00000000000000005\r\n",
        "0\r\nA: b\nC: d\r\n\r\n",
        "0\r\nA: b\rC",
        "0\r\n\rx",
        "0\r\nA\0: b\r\n\r\n",
        &long,
        &trailers,
    ] {
        let text = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        for size in SIZES {
            assert!(read_in(text.as_bytes(), size).is_err(), "{chunks:?} in {size}");
        }
    }
}

/// hyper refuses a head that is malformed or too long, and nothing after it is read as a message.
#[test]
fn a_head_that_hyper_refuses_ends_the_connection() {
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS + 1));
    for text in ["GET  / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nA : b\r\n\r\n", &many] {
        assert_eq!(read_in(text.as_bytes(), 4_096), Ok(State::Broken), "{text:.40}");
    }
}

/// hyper might finally accept the head, with a body that is not followed.
#[test]
fn a_head_without_end_is_refused() {
    let text = format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(2 * MAX_FOLLOWED));
    for size in [1_000, 4_096, 1_000_000] {
        assert!(read_in(text.as_bytes(), size).is_err(), "{size}");
    }
}
