//! Causes every failure of the failure table on real servers under load, and prints the measured
//! values with their targets. `cargo xtask chaos [--only F2] [--quick]`. Fails if a target is
//! missed that a busy machine does not explain.

#[path = "chaos/page.rs"]
mod page;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use page::Page;
use tidegate_tests::chaos::{CASES, Case, Pace};

fn main() -> ExitCode {
    let wish = match Wish::read() {
        Ok(wish) => wish,
        Err(problem) => {
            eprintln!("{problem}\nusage: chaos [--only F2] [--quick] [--write FILE]");
            return ExitCode::from(2);
        }
    };
    let mut page = Page::default();
    for case in &wish.cases {
        eprintln!("{}: {} …", case.id, case.outage);
        // A case that cannot be measured must not hide the others.
        match catch_unwind(AssertUnwindSafe(|| (case.run)(&wish.pace))) {
            Ok(figures) => page.add(case, &figures),
            Err(_) => page.fail(case),
        }
    }
    println!("{}\n{}", page.table(), page.sum());
    if let Some(file) = &wish.file
        && let Err(error) = std::fs::write(file, page.to_string())
    {
        eprintln!("cannot write {}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    match page.is_sound() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The options of the run.
struct Wish {
    cases: Vec<&'static Case>,
    pace: Pace,
    file: Option<PathBuf>,
}

impl Wish {
    fn read() -> Result<Self, String> {
        let mut wish = Self { cases: CASES.iter().collect(), pace: Pace::FULL, file: None };
        let mut arguments = std::env::args().skip(1);
        while let Some(option) = arguments.next() {
            match option.as_str() {
                "--quick" => wish.pace = Pace::QUICK,
                "--write" => wish.file = arguments.next().map(PathBuf::from),
                "--only" => {
                    let id = arguments.next().unwrap_or_default();
                    // `F2` includes `F2b`.
                    let is_meant = |case: &&Case| {
                        case.id.trim_end_matches(char::is_alphabetic) == id || case.id == id
                    };
                    wish.cases = CASES.iter().filter(is_meant).collect();
                    if wish.cases.is_empty() {
                        let known: Vec<&str> = CASES.iter().map(|case| case.id).collect();
                        return Err(format!("no case {id:?}; there are {}", known.join(", ")));
                    }
                }
                _ => return Err(format!("unknown option {option}")),
            }
        }
        Ok(wish)
    }
}
