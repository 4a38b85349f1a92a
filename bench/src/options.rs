//! The command line.

use std::path::{Path, PathBuf};

use crate::Failure;

/// The options of a run. Each command reads those that it needs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub keys: Option<Vec<u32>>,
    pub rounds: Option<usize>,
    pub millis: Option<u64>,
    pub max_mib: Option<u64>,
    /// Comma-separated parts of names.
    pub only: Option<String>,
    pub quick: bool,
    /// Measures finished cells again.
    pub again: bool,
    pub out: Option<PathBuf>,
}

impl Options {
    pub fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--again" => options.again = true,
                _ => options.set(argument, arguments.next())?,
            }
        }
        Ok(options)
    }

    fn set(&mut self, argument: &str, value: Option<&String>) -> Result<(), Failure> {
        let value = value.ok_or_else(|| format!("{argument} needs a value"))?;
        match argument {
            "--keys" => self.keys = Some(numbers(value)?),
            "--rounds" => self.rounds = Some(number(value)?.max(1) as usize),
            "--millis" => self.millis = Some(u64::from(number(value)?.max(1))),
            "--max-mib" => self.max_mib = Some(u64::from(number(value)?.max(1))),
            "--only" => self.only = Some(value.clone()),
            "--out" => self.out = Some(value.into()),
            _ => return Err(format!("unknown option {argument}").into()),
        }
        Ok(())
    }

    pub fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.split(',').any(|part| name.contains(part)))
    }

    /// The path of the results: in the target directory unless set.
    pub fn out(&self, file: &str) -> PathBuf {
        let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = bench.parent().unwrap_or(bench);
        self.out.clone().unwrap_or_else(|| root.join("target/bench").join(file))
    }
}

/// `10000000` or `10_000_000`.
pub fn number(text: &str) -> Result<u32, Failure> {
    text.replace('_', "").parse().map_err(|_| format!("{text} is not a number").into())
}

fn numbers(text: &str) -> Result<Vec<u32>, Failure> {
    let numbers: Vec<u32> = text.split(',').map(number).collect::<Result<_, _>>()?;
    if numbers.contains(&0) { Err("0 keys cannot be measured".into()) } else { Ok(numbers) }
}
