//! Developer tasks: `cargo xtask <task>`. Nothing but cargo is needed to run them.

mod bench;
mod campaign;
mod chaos;
mod check;
mod clients;
mod differential;
mod fuzz;
mod help;
mod package;
mod peers;
mod soak;
mod step;
mod test;
mod throwaway;

use std::env;
use std::process::ExitCode;

use help::{HELP, TASKS};
use step::{Failure, Summary};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let Some((task, options)) = arguments.split_first() else {
        println!("{HELP}");
        return Err(Failure::new(format!("name a task: {TASKS}")));
    };
    let asks_help = |text: &String| matches!(text.as_str(), "help" | "--help" | "-h");
    if asks_help(task) || options.first().is_some_and(asks_help) {
        println!("{HELP}");
        return Ok(());
    }
    let mut summary = Summary::start(task);
    match task.as_str() {
        "check" => no_options(options).and_then(|()| check::run(&mut summary))?,
        "test" => no_options(options).and_then(|()| test::run(&mut summary))?,
        "package" => no_options(options).and_then(|()| package::run(&mut summary))?,
        "campaign" => campaign::run(&mut summary, options)?,
        "fuzz" => fuzz::run(&mut summary, options)?,
        "chaos" => chaos::run(&mut summary, options)?,
        "soak" => soak::run(&mut summary, options)?,
        "differential" => differential::run(&mut summary, options)?,
        "bench" => bench::run(&mut summary, options)?,
        unknown => {
            return Err(Failure::new(format!("unknown task `{unknown}`; known: {TASKS}")));
        }
    }
    println!("\n{}", summary.summary());
    Ok(())
}

fn no_options(options: &[String]) -> Result<(), Failure> {
    match options.first() {
        None => Ok(()),
        Some(option) => Err(Failure::new(format!("this task takes no options, found `{option}`"))),
    }
}
