//! The page of results, from the finished cells.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::backend::Setup;
use super::cell::{Cell, Store, p99_us, rate, success};
use super::contender::Contender;
use super::spec::{CLASSES, Second};
use super::work::Kind;
use super::{micro, plot, simulated, verdict};
use crate::Failure;

/// The text around the tables.
const TEMPLATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/overload/page.txt");

/// Writes the page and its plots into `docs`.
pub fn write(store: &Store, docs: &Path) -> Result<(), Failure> {
    let page = Page { store };
    let mut text = fs::read_to_string(TEMPLATE)?;
    for (mark, table) in [
        ("@MACHINE@", machine(store)),
        ("@VERDICTS@", verdict::table(store)),
        ("@E1@", page.e1()),
        ("@SIMULATED@", simulated::table(store)),
        ("@E3@", page.e3()),
        ("@E4@", page.e4()),
        ("@E7@", page.e7()),
        ("@FRAGILE@", page.fragile()),
        ("@OTHERS@", page.others()),
        ("@MICRO@", micro::table(&store.folder)),
        ("@LATE@", page.lateness()),
    ] {
        text = text.replace(mark, table.trim_end());
    }
    let folder = docs.join("overload");
    fs::create_dir_all(&folder)?;
    for (name, picture) in plot::all(store) {
        fs::write(folder.join(name), picture)?;
    }
    let file = docs.join("overload.md");
    fs::write(&file, text)?;
    eprintln!("wrote {}", file.display());
    Ok(())
}

/// Cores, kernel and day.
fn machine(store: &Store) -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel: Vec<&str> = kernel.split(['.', '-']).take(2).collect();
    let latest =
        names(store).iter().filter_map(|name| store.read(name)).map(|cell| cell.date).max();
    format!(
        "{cores} cores of {}, Linux {}, {}",
        model.unwrap_or("an unknown processor"),
        kernel.join("."),
        latest.map_or_else(|| "not measured".to_owned(), day)
    )
}

/// A day from seconds since 1970 (Howard Hinnant's algorithm).
fn day(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let years = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * years + years / 4 - years / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + years + u64::from(month <= 2);
    format!("{year}-{month:02}-{:02}", of_year - (153 * from_march + 2) / 5 + 1)
}

/// Names of the cells that were measured.
pub fn names(store: &Store) -> Vec<String> {
    let files = fs::read_dir(&store.folder).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<String> = files
        .filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
        .collect();
    names.sort();
    names
}

/// Requests per second that the server of a cell can serve.
pub fn peak_of(store: &Store, cell: &Cell) -> Option<f64> {
    let setup = &cell.plan.setup;
    if setup.mean_us >= 1_000_000 {
        return Some(setup.workers as f64 * 1e6 / setup.mean_us as f64);
    }
    store.read(&setup.peak_name()).map(|cell| cell.rate())
}

/// A share with three digits, or a dash.
pub fn share(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"))
}

fn millis(value: Option<u32>) -> String {
    value.map_or_else(|| "–".to_owned(), |us| format!("{:.0}", f64::from(us) / 1e3))
}

struct Page<'a> {
    store: &'a Store,
}

impl Page<'_> {
    fn goodput(&self, name: &str) -> Option<f64> {
        let cell = self.store.read(name)?;
        Some(cell.rate() / peak_of(self.store, &cell)?)
    }

    fn e1(&self) -> String {
        let mut text = String::new();
        for kind in Kind::ALL {
            let letter = kind.letter();
            let unloaded = self.store.read(&format!("E1-{letter}-0.3x-none"));
            let unloaded = unloaded.map(|cell| p99_us(&cell.counted()));
            let peak = self.store.read(&Setup::of(kind).peak_name()).map(|cell| cell.rate());
            let _ = writeln!(
                text,
                "**{letter}**: peak {:.0} requests per second, p99 {} ms at 0.3 × the peak.\n",
                peak.unwrap_or(f64::NAN),
                millis(unloaded)
            );
            text += "| | 2 ×: goodput | p99, ms | limit | 10 ×: goodput | p99, ms | limit |\n";
            text += "|---|---|---|---|---|---|---|\n";
            let own = [Contender::Fixed, Contender::Aimd, Contender::Gradient2];
            for contender in Contender::PEERS.into_iter().chain(own) {
                let cells = ["2x", "10x"].map(|times| {
                    self.store.read(&format!("E1-{letter}-{times}-{}", contender.name()))
                });
                if cells.iter().all(Option::is_none) {
                    continue;
                }
                let _ = write!(text, "| {} |", contender.title());
                for cell in &cells {
                    let goodput = cell
                        .as_ref()
                        .and_then(|cell| Some(cell.rate() / peak_of(self.store, cell)?));
                    let p99 = cell.as_ref().map(|cell| p99_us(&cell.counted()));
                    let limit = cell.as_ref().and_then(|cell| median_limit(&cell.counted()));
                    let _ = write!(
                        text,
                        " {} | {} | {} |",
                        share(goodput),
                        millis(p99),
                        limit.map_or_else(|| "–".to_owned(), |limit| limit.to_string())
                    );
                }
                text.push('\n');
            }
            text.push('\n');
        }
        text +=
            "P with other times of service, Tidegate's layer:\n\n| | 2 × | 10 × |\n|---|---|---|\n";
        for times in ["Lognormal", "Bimodal"] {
            let [two, ten] =
                ["2x", "10x"].map(|load| self.goodput(&format!("E1-{times}-P-{load}-tidegate")));
            let _ =
                writeln!(text, "| {} | {} | {} |", times.to_lowercase(), share(two), share(ten));
        }
        text
    }

    fn e3(&self) -> String {
        let mut text =
            "| | minute 2: goodput | limit | last minute: goodput | limit | last / second |\n\
                        |---|---|---|---|---|---|\n"
                .to_owned();
        for contender in [Contender::Tidegate, Contender::Netflix, Contender::Envoy] {
            let Some(cell) = self.store.read(&format!("E3-{}", contender.name())) else { continue };
            let Some(peak) = peak_of(self.store, &cell) else { continue };
            let Some((second, last)) = verdict::minutes(&cell) else { continue };
            let limit = |seconds: &[Second]| {
                median_limit(seconds).map_or_else(|| "–".to_owned(), |limit| limit.to_string())
            };
            let _ = writeln!(
                text,
                "| {} | {:.3} | {} | {:.3} | {} | {:.3} |",
                contender.title(),
                rate(&second) / peak,
                limit(&second),
                rate(&last) / peak,
                limit(&last),
                rate(&last) / rate(&second).max(1e-9),
            );
        }
        text
    }

    fn e4(&self) -> String {
        let loads = ["1.2", "2", "2.5", "4", "8"];
        let mut text =
            "Success of critical requests; their load in parts of the capacity:\n\n|".to_owned();
        for load in loads {
            let critical = load.parse::<f64>().unwrap_or(0.0) / 5.0;
            let _ = write!(text, " | {load} × ({critical:.2})");
        }
        text += " |\n|---|---|---|---|---|---|\n";
        for contender in Contender::PEERS {
            let _ = write!(text, "| {} |", contender.title());
            for load in loads {
                let cell = self.store.read(&format!("E4-P-{load}x-{}", contender.name()));
                let critical = cell.map(|cell| success(&cell.counted(), 0));
                let _ = write!(text, " {} |", share(critical));
            }
            text.push('\n');
        }
        text += "\nAll classes behind Tidegate's layer, and goodput:\n\n| load |";
        CLASSES.iter().for_each(|class| {
            let _ = write!(text, " {class} |");
        });
        text += " goodput |\n|---|---|---|---|---|---|\n";
        let rows = loads.map(|load| (format!("{load} ×"), format!("E4-P-{load}x-tidegate")));
        let shedder = ("4 ×, utilisation shedder".to_owned(), "E4-P-4x-utilisation".to_owned());
        for (title, name) in rows.into_iter().chain([shedder]) {
            let Some(cell) = self.store.read(&name) else { continue };
            let _ = write!(text, "| {title} |");
            for class in 0..CLASSES.len() {
                let _ = write!(text, " {:.3} |", success(&cell.counted(), class));
            }
            let _ = writeln!(text, " {} |", share(self.goodput(&name)));
        }
        text
    }

    fn e7(&self) -> String {
        let mut text =
            "| | success before | in the storm | 60 s after | seconds until 99 % |\n|---|---|---|---|---|\n"
                .to_owned();
        let rows = [
            ("E7-none", "no limiter, three naive retries"),
            ("E7-tower", "tower ConcurrencyLimit(32) + LoadShed, three naive retries"),
            ("E7-tidegate", "Tidegate, three naive retries"),
            ("E8-tidegate", "Tidegate, Tidegate's client"),
        ];
        for (name, title) in rows {
            let Some(cell) = self.store.read(name) else { continue };
            let Some(storm) = verdict::storm(&cell) else { continue };
            let _ = writeln!(
                text,
                "| {title} | {:.3} | {:.3} | {:.3} | {} |",
                storm.before,
                storm.during,
                storm.later,
                storm.recovered.map_or_else(|| "never".to_owned(), |seconds| seconds.to_string()),
            );
        }
        text
    }

    /// The thrashing backend at ten times its peak.
    fn fragile(&self) -> String {
        let mut text = "| | goodput at 10 × | p99, ms |\n|---|---|---|\n".to_owned();
        for (contender, title) in [
            (Contender::None, "clients connect to the backend"),
            (Contender::BareGateway, "gateway without `protect`"),
            (Contender::Gateway, "gateway with `protect: [{name: api}]`"),
        ] {
            let name = format!("E1-T-10x-{}", contender.name());
            let p99 = self.store.read(&name).map(|cell| p99_us(&cell.counted()));
            let goodput = share(self.goodput(&name));
            let _ = writeln!(text, "| {title} | {goodput} | {} |", millis(p99));
        }
        text
    }

    fn others(&self) -> String {
        let mut text = "| | mean work | seconds | goodput |\n|---|---|---|---|\n".to_owned();
        for us in [500, 100_000, 1_000_000, 4_000_000] {
            let name = format!("E10-{us}us");
            let Some(cell) = self.store.read(&name) else { continue };
            let _ = writeln!(
                text,
                "| E10 | {} ms | {} | {} |",
                f64::from(us) / 1e3,
                cell.counted().len(),
                share(self.goodput(&name))
            );
        }
        text += "\n| E11 | limit | goodput of quick readers |\n|---|---|---|\n";
        for (name, title) in [
            ("none", "`hold: body`, no slow readers"),
            ("body", "`hold: body`, 20 % slow readers"),
            ("none-head", "`hold: head`, no slow readers"),
            ("head", "`hold: head`, 20 % slow readers"),
        ] {
            let name = format!("E11-{name}");
            let Some(cell) = self.store.read(&name) else { continue };
            let limit = verdict::mean_limit(&cell.counted());
            let limit = limit.map_or_else(|| "–".to_owned(), |limit| format!("{limit:.1}"));
            let _ = writeln!(text, "| {title} | {limit} | {} |", share(self.goodput(&name)));
        }
        text
    }

    /// The lateness of the generators.
    fn lateness(&self) -> String {
        let cells = names(self.store).into_iter().filter_map(|name| self.store.read(&name));
        let cells: Vec<Cell> = cells.filter(|cell| cell.plan.load.closed.is_none()).collect();
        let seconds: usize = cells.iter().map(|cell| cell.seconds.len()).sum();
        let late: usize = cells.iter().map(Cell::late_seconds).sum();
        let mut worst: Vec<u32> = cells.iter().map(Cell::lateness_us).collect();
        worst.sort_unstable();
        let Some(median) = worst.get(worst.len() / 2) else { return "not measured".to_owned() };
        format!(
            "{} cells with {seconds} seconds, of which {late} are left out; the worst lateness in a cell is {:.1} ms \
             in the median",
            cells.len(),
            f64::from(*median) / 1e3,
        )
    }
}

/// The median of the limits that were read.
pub fn median_limit(seconds: &[Second]) -> Option<u32> {
    let mut limits: Vec<u32> = seconds.iter().filter_map(|second| second.limit).collect();
    limits.sort_unstable();
    limits.get(limits.len() / 2).copied()
}
