//! Requests in parts, out of shape, and too long.

use super::*;

const ASKING: &[u8] =
    b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n";

#[test]
fn a_request_may_come_byte_by_byte() {
    let transport = Transport::open();
    let mut socket = transport.connect();
    socket.set_nodelay(true).unwrap();
    for byte in ASKING {
        socket.write_all(&[*byte]).unwrap();
    }
    let mut answer = [0; 27];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n");
}

#[test]
fn an_invalid_request_gets_an_error_and_ends_the_connection() {
    let transport = Transport::open();
    let long = format!("*2\r\n$4\r\nECHO\r\n$65530\r\n{}\r\n", "x".repeat(65_530));
    let deep = "*1\r\n".repeat(10_000);
    for (bytes, error) in [
        (&b"*65\r\nPING\r\n"[..], "invalid multibulk length"),
        (b"*1\r\n$-5\r\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$4\r\nPINGxxPING\r\n", "expected CRLF after bulk string"),
        (b"*1\r\n:4\r\nPING\r\n", "expected '$', got ':'"),
        (b"ECHO \"x\r\nPING\r\n", "unbalanced quotes in request"),
        (b"*1\r\n$1000000000\r\nPING\r\n", "invalid bulk length"),
        (deep.as_bytes(), "expected '$', got '*'"),
        (long.as_bytes(), "too big request"),
        (&[b'x'; 70_000], "too big inline request"),
    ] {
        // Closing before the peer has sent everything may cost it the answer, so no shutdown here.
        let mut socket = transport.connect();
        let _ = socket.write_all(bytes);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(answer, format!("-ERR Protocol error: {error}\r\n"));
    }
    assert_eq!(transport.tell(b"PING\r\n"), "+PONG\r\n");
}

#[test]
fn a_browser_is_sent_away() {
    let transport = Transport::open();
    let reply = transport.tell(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nCL.THROTTLE k 15 30 60\r\n");
    assert_eq!(reply, "-ERR this is the Redis protocol, not HTTP\r\n");
}

#[test]
fn the_longest_request_is_answered() {
    let transport = Transport::open();
    let longest = 65_536 - "*2\r\n$4\r\nECHO\r\n$65511\r\n\r\n".len();
    let text = "x".repeat(longest);
    let reply = transport.tell(format!("*2\r\n$4\r\nECHO\r\n${longest}\r\n{text}\r\n").as_bytes());
    assert_eq!(reply, format!("${longest}\r\n{text}\r\n"));
}

#[test]
fn ten_thousand_requests_at_once_are_answered_in_order() {
    let transport = Transport::open();
    let mut pipeline = redis::pipe();
    for number in 0..10_000 {
        match number % 2 {
            0 => pipeline.cmd("ECHO").arg(number),
            _ => pipeline.add_command(words("CL.THROTTLE k 9999 1 3600")),
        };
    }
    let answers: Vec<redis::Value> = pipeline.query(&mut transport.client()).unwrap();
    assert_eq!(answers.len(), 10_000);
    for (number, answer) in answers.into_iter().enumerate() {
        if number % 2 == 0 {
            assert_eq!(redis::from_redis_value::<usize>(answer).unwrap(), number);
        } else {
            let answer: Vec<i64> = redis::from_redis_value(answer).unwrap();
            assert_eq!(answer[..3], [0, 10_000, 9_999 - number as i64 / 2]);
        }
    }
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let transport = Transport::open();
    let socket = transport.connect();
    socket.set_nonblocking(true).unwrap();
    // A question of 1,000 bytes, and its answer of 1,001.
    let asking = format!("ECHO {}\r\n", "x".repeat(993)).repeat(100).into_bytes();
    let mut sent = 0;
    let mut since_progress = 0;
    while since_progress < 200 {
        match (&socket).write(&asking[sent % 1_000..]) {
            Ok(more) => (sent, since_progress) = (sent + more, 0),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                since_progress += 1;
                // Asking another connection takes longer than a round trip to the server.
                assert_eq!(transport.tell(b"PING\r\n"), "+PONG\r\n");
            }
        }
        assert!(sent < 64 << 20, "the server takes whatever comes");
    }
    // Once it reads again, every whole request is answered.
    socket.set_nonblocking(false).unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    (&socket).read_to_end(&mut answers).unwrap();
    assert_eq!(answers.len(), sent / 1_000 * 1_001);
}
