//! The `tidegate` command.

mod args;
mod chart;
mod check;
mod compare;
mod daemon;
mod decision_args;
mod explain;
mod lint;
mod overload;
mod schema;
mod secret;
mod serve;
mod settings;
mod simulate;
mod terminal;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command};
use crate::terminal::Terminal;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let terminal = Terminal::of_stdout(cli.color);
    let text = match cli.command {
        None => Ok(terminal.render(&Cli::command().render_help())),
        Some(Command::Compare(args)) => compare::compare(&args, terminal),
        Some(Command::Lint(args)) => return lint::lint(&args),
        Some(Command::Check(args)) => return check::check(&args),
        Some(Command::Explain(args)) => return explain::explain(&args, terminal),
        Some(Command::Schema(args)) => Ok(schema::schema(&args)),
        Some(Command::Gateway(args)) => return serve::serve(&args.serve()),
        Some(Command::Serve(args)) => return serve::serve(&args),
        Some(Command::Simulate(args)) => match simulate::simulate(&args, terminal) {
            Ok(code) => return code,
            Err(usage) => Err(usage),
        },
    };
    match text {
        Ok(text) => print(&text),
        Err(usage) => {
            // If this fails, the exit status still reports the error.
            let _ = usage.print();
            ExitCode::from(2)
        }
    }
}

/// Writes to standard output. A closed pipe (`| head`) is not a failure.
fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(gone) if gone.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
    }
}
