//! Sends the same requests to envoyproxy/ratelimit and Tidegate, and lists their differences.
//! `cargo xtask differential` builds both and runs it.
//!
//! ```text
//! rls_differential --envoyproxy PROGRAM --ours PROGRAM [--requests N] [--seed S] [--stage NAME]
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_tests::rls_differential::{
    Differences, Edition, Moment, Program, Seam, Service, Stage, Traffic,
};

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(|arguments| run(&arguments)) {
        Ok(differences) => {
            println!("\n{differences}");
            if differences.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(problem) => {
            eprintln!("rls_differential: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<Differences, String> {
    let edition = edition(arguments)?;
    let stages: Vec<Stage> =
        Stage::ALL.into_iter().filter(|stage| stage.name.contains(&arguments.stage)).collect();
    if stages.is_empty() {
        let names: Vec<&str> = Stage::ALL.iter().map(|stage| stage.name).collect();
        return Err(format!("no stage is called so; there are: {}", names.join("; ")));
    }
    let ours =
        [Program::OursInMemory(arguments.ours.clone()), Program::Ours(arguments.ours.clone())];
    let parts = u64::try_from(stages.len() * ours.len()).map_err(|error| error.to_string())?;
    let mut differences = Differences::default();
    for (program, store) in ours.iter().zip(["memory", "Redis"]) {
        for stage in &stages {
            let name = format!("{}, {store}", stage.name);
            let before = differences.compared();
            let mut pair = Pair::start(arguments, stage, edition, program)?;
            pair.compare(&name, arguments.requests.div_ceil(parts), &mut differences);
            eprintln!("{name}: {} answers compared", differences.compared() - before);
        }
    }
    Ok(differences)
}

/// The features of this version of envoyproxy/ratelimit: whether it answers for a domain of a newer
/// policy file.
fn edition(arguments: &Arguments) -> Result<Edition, String> {
    let envoyproxy = Program::Envoyproxy(arguments.envoyproxy.clone());
    let mut envoyproxy =
        Service::start(&envoyproxy, &Stage::ALL[0], Edition::Newer, &arguments.policies)?;
    let mut limits = envoyproxy.listing("/rlconfig");
    limits.retain(|name| name.starts_with("quotas."));
    if limits != tidegate_tests::rls_differential::Fields::default() {
        return Ok(Edition::Newer);
    }
    eprintln!(
        "LEFT OUT: quotas, stars within values and metadata, which this version reads otherwise"
    );
    Ok(Edition::Settled)
}

/// Both services, in the same environment.
struct Pair {
    envoyproxy: Service,
    ours: Service,
    traffic: Traffic,
}

impl Pair {
    fn start(
        arguments: &Arguments,
        stage: &Stage,
        edition: Edition,
        program: &Program,
    ) -> Result<Self, String> {
        let envoyproxy = Program::Envoyproxy(arguments.envoyproxy.clone());
        Ok(Self {
            envoyproxy: Service::start(&envoyproxy, stage, edition, &arguments.policies)?,
            ours: Service::start(program, stage, edition, &arguments.policies)?,
            traffic: Traffic::new(arguments.seed, edition),
        })
    }

    fn compare(&mut self, stage: &str, requests: u64, differences: &mut Differences) {
        let mut seam = Seam::default();
        for _ in 0..requests {
            let asked = self.traffic.ask();
            let start = Moment::to_ask();
            let envoyproxy = self.envoyproxy.ask(&asked);
            let ours = self.ours.ask(&asked);
            let end = Moment::now();
            seam.note(start, end);
            let units = || envoyproxy.units().chain(ours.units());
            if start != end || units().any(|unit| seam.touches(unit, start)) {
                differences.leave_out();
            } else {
                differences.compare(stage, &asked, &envoyproxy, &ours);
            }
        }
    }
}

struct Arguments {
    envoyproxy: PathBuf,
    ours: PathBuf,
    policies: PathBuf,
    requests: u64,
    seed: u64,
    stage: String,
}

impl Arguments {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self {
            envoyproxy: PathBuf::new(),
            ours: PathBuf::new(),
            policies: Path::new(env!("CARGO_MANIFEST_DIR")).join("differential"),
            requests: 100_000,
            seed: 1,
            stage: String::new(),
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} takes a value"))?;
            let number = || value.parse().map_err(|_| format!("{name} takes a whole number"));
            match name.as_str() {
                "--envoyproxy" => parsed.envoyproxy = value.into(),
                "--ours" => parsed.ours = value.into(),
                "--requests" => parsed.requests = number()?,
                "--seed" => parsed.seed = number()?,
                "--stage" => parsed.stage = value,
                unknown => return Err(format!("unknown option `{unknown}`")),
            }
        }
        for (name, program) in
            [("--envoyproxy", &mut parsed.envoyproxy), ("--ours", &mut parsed.ours)]
        {
            // Each service runs in a separate folder.
            *program = program.canonicalize().map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(parsed)
    }
}
