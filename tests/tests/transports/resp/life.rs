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
    let door = Door::with(&Settings { max_connections: 3, ..settings() });
    let mut inside: Vec<TcpStream> = (0..3).map(|_| door.connect()).collect();
    assert!(inside.iter_mut().all(ping));
    assert!(is_closed(&mut door.connect()));
    assert!(inside.iter_mut().all(ping));
    drop(inside.pop());
    wait_until("the place is free again", PATIENCE, || ping(&mut door.connect()));
}

#[test]
fn whoever_completes_nothing_is_closed() {
    let idle_after = Duration::from_millis(100);
    let door = Door::with(&Settings { idle_after, ..settings() });
    let mut silent = door.connect();
    assert!(is_closed(&mut silent));
    // A connection with a started request has a shorter timeout than an idle one.
    let stuck_after = Duration::from_millis(100);
    let strict = Door::with(&Settings { stuck_after, ..settings() });
    let (mut idle, mut begun) = (strict.connect(), strict.connect());
    begun.write_all(b"*2\r\n$4\r\n").unwrap();
    assert!(is_closed(&mut begun));
    assert!(ping(&mut idle));
    // A byte now and then does not help.
    let slow = door.connect();
    slow.set_nonblocking(true).unwrap();
    wait_until("the slow one is closed", PATIENCE, || {
        // Every look takes some milliseconds, so this is a byte now and then.
        let gone = matches!((&slow).read(&mut [0]), Ok(0));
        gone || (&slow).write_all(b"x").is_err()
    });
    // Long enough that a slow client does not count as silent.
    let idle_after = Duration::from_millis(800);
    let door = Door::with(&Settings { idle_after, ..settings() });
    let mut steady = door.connect();
    let mut rounds = 0;
    wait_until("a steady one outlives the time", PATIENCE, || {
        assert!(ping(&mut steady));
        rounds += 1;
        rounds > 300
    });
}

#[test]
fn a_port_that_is_taken_is_told() {
    let door = Door::open();
    let taken = Settings { resp: Some(door.address().into()), ..settings() };
    let error = serve(&taken, &door.gate).unwrap_err().to_string();
    let told = format!(
        "cannot bind {} (RESP): address already in use; choose another with --resp or listen.resp.address",
        door.address()
    );
    assert_eq!(error, told);
}

#[test]
fn stopping_closes_those_who_ask_nothing() {
    let door = Door::open();
    let mut quiet = door.connect();
    assert!(ping(&mut quiet));
    let address = door.address();
    let reader = thread::spawn(move || is_closed(&mut quiet));
    door.server.stop();
    assert!(reader.join().unwrap());
    assert!(TcpStream::connect(address).is_err());
}

/// Everything that was charged was also answered: what remains says how much was charged.
#[test]
fn stopping_under_load_loses_no_answer() {
    const CLIENTS: usize = 8;
    let door = Door::open();
    let started = AtomicUsize::new(0);
    let (address, gate) = (door.address(), door.gate.clone());
    let answered: usize = thread::scope(|scope| {
        let client = || {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
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
        wait_until("there is load", PATIENCE, || started.load(Ordering::Relaxed) > 200);
        door.server.stop();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    let again = serve(&settings(), &gate).unwrap();
    let door = Door { server: again, gate, clock: door.clock };
    let remaining = numbers(&mut door.client(), "CL.THROTTLE k 3000000000 1 1 0").unwrap()[2];
    assert_eq!(3_000_000_001 - remaining, answered as i64);
}

fn lines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}
