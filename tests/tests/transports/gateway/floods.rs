//! Clients that flood a connection of HTTP/2. Other clients are served meanwhile.

use tidegate_tests::http::get;

use super::Front;
use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, End, Frames, HEADERS, PING, RESET, SETTINGS,
    fields, frame,
};

/// A whole request.
fn request(stream: u32) -> Vec<u8> {
    let named = [(":method", "GET"), (":scheme", "http"), (":path", "/hang"), (":authority", "a")];
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&named))
}

/// Sends the nth piece until the gateway ends the connection, and says how.
fn flood(front: &Front, mut piece: impl FnMut(u32) -> Vec<u8>) -> End {
    const MOST: u32 = 100_000;
    let mut frames = Frames::open(front.address());
    let ended = (0..MOST).find(|number| frames.write(&piece(*number)).is_err());
    assert!(ended.is_some(), "the connection goes on");
    assert_eq!(get(front.address(), "/", "").status, 200);
    frames.end(u32::MAX)
}

#[test]
fn floods_of_frames_end_the_connection() {
    const CALM: End = End::Closed(11);
    let front = Front::open("");
    let resets = flood(&front, |number| {
        let stream = 2 * number + 1;
        [request(stream), frame(RESET, 0, stream, &[0, 0, 0, 8])].concat()
    });
    assert!(matches!(resets, CALM | End::Gone), "{resets:?}");
    let settings = flood(&front, |_| frame(SETTINGS, 0, 0, &[]).repeat(16));
    assert!(matches!(settings, CALM | End::Gone), "{settings:?}");
    let pings = flood(&front, |_| frame(PING, 0, 0, &[0; 8]).repeat(16));
    assert!(matches!(pings, CALM | End::Gone), "{pings:?}");
    let empty = flood(&front, |number| match number {
        0 => {
            let named =
                [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
            frame(HEADERS, END_HEADERS, 1, &fields(&named))
        }
        _ => frame(DATA, 0, 1, &[]).repeat(16),
    });
    assert!(matches!(empty, End::Closed(_) | End::Gone), "{empty:?}");
    let continuations = flood(&front, |number| match number {
        0 => frame(HEADERS, END_STREAM, 1, &fields(&[(":method", "GET")])),
        number => frame(CONTINUATION, 0, 1, &fields(&[(&format!("x-{number}"), "a")])),
    });
    assert!(matches!(continuations, End::Closed(_) | End::Gone), "{continuations:?}");
    front.service.release();
}

#[test]
fn at_most_128_requests_are_in_progress_on_a_connection() {
    let front = Front::open("");
    let mut frames = Frames::open(front.address());
    let settings = frames.read().expect("the settings come first");
    let streams = settings.payload.chunks(6).find(|it| it[..2] == [0, 3]).expect("a bound");
    assert_eq!((settings.kind, &streams[2..]), (SETTINGS, &[0, 0, 0, 128][..]));
    for number in 0..129 {
        frames.write(&request(2 * number + 1)).expect("sent");
    }
    const REFUSED: u32 = 7;
    assert_eq!(frames.end(257), End::Reset(REFUSED));
    front.service.release();
}
