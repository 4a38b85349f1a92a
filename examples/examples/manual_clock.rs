//! Tests with a manual clock: take the limiter's clock as a parameter, and advance it in the test. The
//! tests at the end of this file run with `cargo test`; `main` does the same.

use std::error::Error;
use std::time::Duration;

use tidegate::{BuildError, Clock, Limit, Limiter, ManualClock, Rate, Span};

/// Your code: three login attempts per fifteen minutes, reset on success.
struct Login {
    attempts: Limiter,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Welcome,
    WrongPassword,
    LockedFor(Duration),
}

impl Login {
    /// `Clock::default()` in production, a [`ManualClock`] in tests.
    fn new(clock: impl Into<Clock>) -> Result<Self, Box<dyn Error>> {
        let limit = Limit::sliding_log(Rate::new(3, Span::from_secs(15 * 60))).build()?;
        let builder = Limiter::builder().limit("attempts", limit).clock(clock);
        Ok(Self { attempts: builder.build().map_err(|error: BuildError| Box::new(error))? })
    }

    fn attempt(&self, user: &str, password: &str) -> Outcome {
        if let Some(wait) = self.attempts.check(user).retry_after() {
            return Outcome::LockedFor(wait);
        }
        if password != "correct horse" {
            return Outcome::WrongPassword;
        }
        self.attempts.reset(user);
        Outcome::Welcome
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new();
    let login = Login::new(clock.clone())?;
    for _ in 0..3 {
        assert_eq!(login.attempt("alice", "guess"), Outcome::WrongPassword);
        clock.advance(Span::from_secs(60));
    }
    let locked = login.attempt("alice", "correct horse");
    println!("after three guesses: {locked:?}");
    assert_eq!(locked, Outcome::LockedFor(Duration::from_secs(12 * 60)));

    clock.advance(Span::from_secs(12 * 60));
    let later = login.attempt("alice", "correct horse");
    println!("twelve minutes later, in no time: {later:?}");
    assert_eq!(later, Outcome::Welcome);

    Login::new(Clock::default())?.attempt("alice", "and on the real clock");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login() -> (Login, ManualClock) {
        let clock = ManualClock::new();
        (Login::new(clock.clone()).unwrap(), clock)
    }

    #[test]
    fn the_lock_ends_at_the_instant_it_said() {
        let (login, clock) = login();
        for _ in 0..3 {
            login.attempt("alice", "guess");
        }
        let Outcome::LockedFor(wait) = login.attempt("alice", "guess") else { panic!("no lock") };
        clock.advance(wait - Duration::from_micros(1));
        assert_eq!(login.attempt("alice", "guess"), Outcome::LockedFor(Duration::from_micros(1)));
        clock.advance(Span::from_micros(1));
        assert_eq!(login.attempt("alice", "guess"), Outcome::WrongPassword);
    }

    #[test]
    fn success_forgives() {
        let (login, _) = login();
        for _ in 0..10 {
            assert_eq!(login.attempt("alice", "guess"), Outcome::WrongPassword);
            assert_eq!(login.attempt("alice", "correct horse"), Outcome::Welcome);
        }
    }

    #[test]
    fn one_users_guesses_lock_no_other_user_out() {
        let (login, _) = login();
        for _ in 0..9 {
            login.attempt("mallory", "guess");
        }
        assert_eq!(login.attempt("alice", "correct horse"), Outcome::Welcome);
    }
}
