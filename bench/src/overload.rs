//! `overload`: goodput of real servers under more load than they can serve, with and without a limiter.

mod backend;
mod cell;
mod client;
mod connection;
mod contender;
mod cpu;
mod experiments;
mod load;
mod micro;
mod page;
mod plot;
mod simulated;
mod spec;
mod verdict;
mod work;

use std::path::Path;

use crate::Failure;
use crate::options::Options;
use crate::usage::USAGE;

/// The suite, or one of its processes.
pub fn start(command: &str, arguments: &[String]) -> Result<(), Failure> {
    match command {
        "overload" => run(&Options::parse(arguments)?),
        backend::COMMAND => backend::serve(arguments),
        load::COMMAND => load::generate(arguments),
        client::COMMAND => client::generate(arguments),
        _ => Err(USAGE.into()),
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let out = options.out(if options.quick { "overload-quick" } else { "overload" });
    let again = options.again || options.quick;
    let store = cell::Store { folder: out, again, quick: options.quick };
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let left_out = experiments::run(&store, options)?;
    left_out.iter().for_each(|reason| println!("LEFT OUT: {reason}"));
    match store.quick {
        // A smoke run only shows that all parts run; its results mean nothing.
        true if !left_out.is_empty() => Err("a smoke run leaves nothing out".into()),
        true => Ok(()),
        false => page::write(&store, &docs),
    }
}
