//! Starting, stopping, and who has to wait outside.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tidegate_tests::servers::wait_until;

use super::*;

/// Whether the server has closed this connection.
fn is_closed(socket: &mut TcpStream) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    match socket.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => !matches!(error.kind(), TimedOut | WouldBlock),
    }
}

fn ping(socket: &mut TcpStream) -> bool {
    let mut answer = [0; 7];
    socket.write_all(b"PING\r\n").is_ok()
        && socket.read_exact(&mut answer).is_ok()
        && &answer == b"+PONG\r\n"
}

#[test]
fn one_connection_too_many_is_closed_at_once() {
    let transport = Transport::with(&Settings { max_connections: 3, ..settings() });
    let mut inside: Vec<TcpStream> = (0..3).map(|_| transport.connect()).collect();
    assert!(inside.iter_mut().all(ping));
    assert!(is_closed(&mut transport.connect()));
    assert!(inside.iter_mut().all(ping));
    drop(inside.pop());
    wait_until("the place is free again", TIMEOUT, || ping(&mut transport.connect()));
}

#[test]
fn a_client_that_completes_no_request_is_closed() {
    let idle_after = Duration::from_millis(100);
    let transport = Transport::with(&Settings { idle_after, ..settings() });
    let mut silent = transport.connect();
    assert!(is_closed(&mut silent));
    // A connection with a started request has a shorter timeout than an idle one.
    let stuck_after = Duration::from_millis(100);
    let strict = Transport::with(&Settings { stuck_after, ..settings() });
    let (mut idle, mut begun) = (strict.connect(), strict.connect());
    begun.write_all(b"*2\r\n$4\r\n").unwrap();
    assert!(is_closed(&mut begun));
    assert!(ping(&mut idle));
    // A byte now and then does not help.
    let slow = transport.connect();
    slow.set_nonblocking(true).unwrap();
    wait_until("the slow one is closed", TIMEOUT, || {
        // Every look takes some milliseconds, so this is a byte now and then.
        let gone = matches!((&slow).read(&mut [0]), Ok(0));
        gone || (&slow).write_all(b"x").is_err()
    });
    // Long enough that a slow client does not count as silent.
    let idle_after = Duration::from_millis(800);
    let transport = Transport::with(&Settings { idle_after, ..settings() });
    let mut steady = transport.connect();
    let mut rounds = 0;
    wait_until("a steady one outlives the time", TIMEOUT, || {
        assert!(ping(&mut steady));
        rounds += 1;
        rounds > 300
    });
}

#[test]
fn a_port_that_is_taken_is_told() {
    let transport = Transport::open();
    let taken = Settings { resp: Some(transport.address().into()), ..settings() };
    let error = serve(&taken, &transport.service).unwrap_err().to_string();
    let reply = format!(
        "cannot bind {} (RESP): address already in use; choose another with --resp or listen.resp.address",
        transport.address()
    );
    assert_eq!(error, reply);
}

#[test]
fn stopping_closes_those_who_ask_nothing() {
    let transport = Transport::open();
    let mut quiet = transport.connect();
    assert!(ping(&mut quiet));
    let address = transport.address();
    let reader = thread::spawn(move || is_closed(&mut quiet));
    transport.server.stop();
    assert!(reader.join().unwrap());
    assert!(TcpStream::connect(address).is_err());
}

/// Everything that was charged was also answered: what remains says how much was charged.
#[test]
fn stopping_under_load_loses_no_answer() {
    const CLIENTS: usize = 8;
    let transport = Transport::open();
    let started = AtomicUsize::new(0);
    let (address, service) = (transport.address(), transport.service.clone());
    let answered: usize = thread::scope(|scope| {
        let client = || {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            let batch = b"CL.THROTTLE k 3000000000 1 1\r\n".repeat(16);
            let (mut found, mut chunk) = (0, [0; 4_096]);
            'asking: while socket.write_all(&batch).is_ok() {
                started.fetch_add(1, Ordering::Relaxed);
                // Each answer is six lines.
                let whole = found + 16 * 6;
                while found < whole {
                    match socket.read(&mut chunk) {
                        Ok(read @ 1..) => found += lines(&chunk[..read]),
                        _ => break 'asking,
                    }
                }
            }
            assert_eq!(found % 6, 0, "no answer was cut off");
            found / 6
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        wait_until("there is load", TIMEOUT, || started.load(Ordering::Relaxed) > 200);
        transport.server.stop();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    let again = serve(&settings(), &service).unwrap();
    let transport = Transport { server: again, service, clock: transport.clock };
    let remaining = numbers(&mut transport.client(), "CL.THROTTLE k 3000000000 1 1 0").unwrap()[2];
    assert_eq!(3_000_000_001 - remaining, answered as i64);
}

fn lines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}
