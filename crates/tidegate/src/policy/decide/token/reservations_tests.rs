use super::*;

fn limit(text: &str) -> Limit {
    let rate: Rate = text.parse().unwrap();
    Limit::sliding_log(rate).build().unwrap()
}

fn reservation(limit: Limit, settling: Settling) -> Reservation {
    let options =
        LimitOptions::default().on_store_failure(OnStoreFailure::Deny).refund_staleness(Span::ZERO);
    Reservation {
        id: ReservationId::new(u64::MAX).unwrap(),
        name: "per \"user\"".into(),
        settling: Arc::new(settling),
        units: 800,
        limit,
        scope: Scope::new("a", &limit),
        text: [0, 255, b'"'].into(),
        tag: (*b"tenant").into(),
        options,
        ends: None,
    }
}

fn by_count() -> Settling {
    let statuses = Statuses([(401, 401), (500, 599)].into());
    Settling { by_status: Some(ByStatus::Count(statuses)), actual: None }
}

fn by_trailer() -> Settling {
    let statuses = Statuses([(304, 304)].into());
    Settling {
        by_status: Some(ByStatus::Refund(statuses)),
        actual: Some(ActualSource::Trailer("x-tokens".into())),
    }
}

fn all() -> Reservations {
    let thirds = "3/s".parse::<Rate>().unwrap();
    let limits = [
        Limit::token_bucket(thirds).burst(50).build().unwrap(),
        Limit::fixed_window("7/min".parse().unwrap()).offset(Span::from_secs(9)).build().unwrap(),
        Limit::sliding_window("7/min".parse().unwrap()).build().unwrap(),
        limit("5/15min"),
        limit("5/15min").blocking(Span::from_secs(600)).unwrap(),
    ];
    let header = Settling { by_status: None, actual: Some(ActualSource::Header("x-cost".into())) };
    let application = Settling { by_status: None, actual: Some(ActualSource::Application) };
    let settlings = [by_count(), by_trailer(), header, application, by_count()];
    Reservations(limits.into_iter().zip(settlings).map(|(it, how)| reservation(it, how)).collect())
}

#[test]
fn a_text_reads_back_as_it_was_written() {
    let text = all().to_string();
    assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{text}");
    assert_eq!(text.parse(), Ok(all()));
    let monthly = Reservation {
        options: all().0[1].options.calendar(true),
        ends: Some(Timestamp::from_secs(7)),
        ..all().0[1].clone()
    };
    let monthly = Reservations(vec![monthly]);
    assert_eq!(monthly.to_string().parse(), Ok(monthly));
}

#[test]
fn other_texts_are_refused() {
    let one = Reservations(vec![all().0[4].clone()]);
    let text = one.to_string();
    for end in 0..text.len() {
        assert_eq!(text[..end].parse::<Reservations>(), Err(InvalidReservations), "{end}");
    }
    for text in ["", "01", "zz", "é", &text.replacen("01", "02", 1), &format!("{text}00")] {
        assert_eq!(text.parse::<Reservations>(), Err(InvalidReservations), "{text}");
    }
    let many = Reservations(vec![all().0[0].clone(); MAX_TOGETHER + 1]);
    assert_eq!(many.to_string().parse::<Reservations>(), Err(InvalidReservations));
    // A text of a flipped bit is another reservation or none, and never panics.
    let bytes = token::read(&text).unwrap();
    for bit in 0..8 * bytes.len() {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let text: String = flipped.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_ne!(text.parse(), Ok(one.clone()), "{bit}");
    }
}

/// The final cost of a request, by the known parts of its outcome.
#[test]
fn the_outcome_tells_the_cost_or_leaves_the_reservation_open() {
    let status = RequestOutcome::status;
    let unknown = RequestOutcome::default();
    let costs = [("per \"user\"", 9)];
    let application = Settling { by_status: None, actual: Some(ActualSource::Application) };
    for (settling, outcome, cost) in [
        (by_count(), status(401), Some(800)),
        (by_count(), status(503), Some(800)),
        (by_count(), status(200), Some(0)),
        (by_count(), unknown.cost(7), None),
        (by_count(), RequestOutcome::cancelled(), Some(0)),
        (by_trailer(), status(304).cost(7), Some(0)),
        (by_trailer(), status(200), None),
        (by_trailer(), status(200).cost(7), Some(7)),
        (by_trailer(), unknown.cost(7), Some(7)),
        (application.clone(), status(500), None),
        (application.clone(), status(500).cost(7).costs(&costs), Some(9)),
        (application.clone(), unknown.costs(&[("other", 9)]), None),
        (application, RequestOutcome::cancelled(), Some(0)),
    ] {
        let reservation = reservation(limit("1000/min"), settling);
        assert_eq!(reservation.cost(&outcome), cost, "{outcome:?}");
    }
}

#[test]
fn the_difference_is_returned_or_booked() {
    let settling = Settling { by_status: None, actual: Some(ActualSource::Application) };
    let now = Timestamp::from_secs(60);
    let open = reservation(limit("1000/min"), settling);
    let settle = |reservation: &Reservation, cost| {
        reservation.settle(now, &RequestOutcome::default().cost(cost)).unwrap()
    };
    assert_eq!(settle(&open, 300), Settle { op: Op::Return(500), unbooked: 0 });
    assert_eq!(settle(&open, 800), Settle { op: Op::Return(0), unbooked: 0 });
    assert_eq!(settle(&open, 1_200), Settle { op: Op::Force(400), unbooked: 0 });
    // The key of a calendar period is not used after its end.
    let over = Reservation { ends: Some(now), ..open.clone() };
    assert_eq!(settle(&over, 1_200), Settle { op: Op::Return(0), unbooked: 400 });
    assert_eq!(settle(&over, 300), Settle { op: Op::Return(500), unbooked: 0 });
    let month = Reservation { ends: Some(now + Span::from_micros(1)), ..open };
    assert_eq!(settle(&month, 1_200), Settle { op: Op::Force(400), unbooked: 0 });
}
