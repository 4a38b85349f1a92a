//! Policy files that change under a watch, in every way that files do.

#![cfg(all(feature = "watch", unix))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tidegate::policy::{Merging, Policy, Refusal, Source, SourceError, Update, Watch};

/// Ten times the half second after which even a storm is read.
const LIMIT: Duration = Duration::from_secs(5);

/// So seldom that what a test sees came by an event.
const NEVER: Duration = Duration::from_secs(3_600);

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-watch-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A watch whose caller keeps the last good policy, as a daemon does.
struct Station {
    handed: Receiver<Result<Update, Refusal>>,
    in_force: Arc<ArcSwap<Policy>>,
    watch: Watch,
    _turn: MutexGuard<'static, ()>,
}

/// One watch at a time, so that each counts its own threads only and is not held up by others.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, PartialEq)]
enum By {
    Events,
    Polls,
}

impl Station {
    /// Watches what is loaded already.
    fn of(path: &Path, by: By) -> Self {
        let turn = turn();
        let source = Source::new([path.to_owned()], Merging::Refuse);
        let texts = source.read().unwrap();
        let in_force = Arc::new(ArcSwap::from_pointee(texts.load().policy.unwrap()));
        let (hand, handed) = channel();
        let slot = Arc::clone(&in_force);
        let builder = Watch::builder(source).in_force(&texts);
        let builder = match by {
            By::Events => builder.poll_every(NEVER),
            By::Polls => builder.poll_every(Duration::from_millis(100)).without_events(),
        };
        let watch = builder.start(move |outcome| {
            if let Ok(update) = &outcome {
                slot.store(Arc::new(update.policy.clone()));
            }
            let _ = hand.send(outcome);
        });
        let station = Self { handed, in_force, watch: watch.unwrap(), _turn: turn };
        // The answer says that the watch stands and that the first look is over.
        station.watch.reload_now();
        station.next().unwrap();
        assert_eq!(station.watch.trouble(), None);
        station
    }

    #[track_caller]
    fn next(&self) -> Result<Update, Refusal> {
        self.handed.recv_timeout(LIMIT).expect("the watch hands it on in time")
    }

    /// What is handed on until this version is; refusals on the way are as may be.
    #[track_caller]
    fn wait_for(&self, domain: &str, expected: u32) {
        while version(&self.in_force.load(), domain) != Some(expected) {
            let outcome = self.next();
            assert!(outcome.is_ok() || version(&self.in_force.load(), domain).is_some());
        }
    }

    /// The next refusal, in words.
    #[track_caller]
    fn refusal(&self) -> String {
        loop {
            if let Err(refusal) = self.next() {
                return refusal.to_string();
            }
        }
    }
}

/// A policy that says its version at its beginning and at its end.
fn text(domain: &str, version: u32, filler: usize) -> String {
    let filler = "# Between the two.\n".repeat(filler);
    format!(
        "domain: {domain}\ndescriptors:\n  - {{key: first, value: \"{version}\", rate: 5/s}}\n\
         {filler}  - {{key: last, value: \"{version}\", rate: 5/s}}\n"
    )
}

/// None without the domain; panics if it is a mixture.
fn version(policy: &Policy, domain: &str) -> Option<u32> {
    let rules = policy.domain(domain)?.rules();
    let said: Vec<&str> = rules.iter().filter_map(|rule| rule.path().rsplit('=').next()).collect();
    assert!(said.len() == 2 && said[0] == said[1], "a policy of several versions: {said:?}");
    Some(said[0].parse().unwrap())
}

fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

/// Makes a link lead elsewhere, as Kubernetes and runtime loaders do: there always is one.
fn swap_link(link: &Path, target: &str) {
    let beside = link.with_file_name("..next");
    let made = symlink(target, &beside);
    made.unwrap_or_else(|error| panic!("{}: {error}", beside.display()));
    fs::rename(beside, link).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "the system's file events keep their own time")]
fn now() -> Instant {
    Instant::now()
}

/// Threads of this process with this name. The system cuts names to 15 bytes.
fn threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

#[test]
fn overwriting_a_file_is_noticed() {
    for by in [By::Events, By::Polls] {
        let folder = Folder::new();
        let file = folder.join("a.yaml");
        fs::write(&file, text("a", 1, 0)).unwrap();
        let station = Station::of(&file, by);
        fs::write(&file, text("a", 2, 0)).unwrap();
        station.wait_for("a", 2);
    }
}

#[test]
fn renaming_a_file_over_another_is_noticed() {
    for by in [By::Events, By::Polls] {
        let folder = Folder::new();
        let file = folder.join("a.yaml");
        fs::write(&file, text("a", 1, 0)).unwrap();
        let station = Station::of(&file, by);
        for number in 2..5 {
            replace(&file, &text("a", number, 0));
            station.wait_for("a", number);
        }
    }
}

#[test]
fn a_truncated_file_keeps_the_policy_until_it_is_written() {
    let folder = Folder::new();
    let (a, b) = (folder.join("a.yaml"), folder.join("b.yaml"));
    fs::write(&a, text("a", 1, 0)).unwrap();
    let station = Station::of(&folder.0, By::Events);
    fs::write(&a, "").unwrap();
    let said = station.refusal();
    assert!(said.contains("a.yaml is empty: no domain left; keeping the last policy"), "{said}");
    assert_eq!(version(&station.in_force.load(), "a"), Some(1));
    fs::write(&a, text("a", 2, 0)).unwrap();
    station.wait_for("a", 2);

    // With another file beside it the rest would be a policy, but not the one that was meant.
    fs::write(&b, text("b", 1, 0)).unwrap();
    station.wait_for("b", 1);
    fs::write(&a, "# limits\n").unwrap();
    let said = station.refusal();
    assert!(said.contains("a.yaml has become empty; keeping the last policy"), "{said}");
    assert_eq!(version(&station.in_force.load(), "a"), Some(2));
    fs::remove_file(&a).unwrap();
    while station.in_force.load().domain("a").is_some() {
        let _ = station.next();
    }
    assert_eq!(version(&station.in_force.load(), "b"), Some(1));
}

#[test]
fn a_mistake_keeps_the_policy_and_is_told_once() {
    let folder = Folder::new();
    let file = folder.join("a.yaml");
    fs::write(&file, text("a", 1, 0)).unwrap();
    let station = Station::of(&file, By::Events);
    replace(&file, &text("a", 2, 0).replace("5/s", "often"));
    let Err(Refusal::Wrong { errors, findings }) = station.next() else { panic!("not refused") };
    assert!(errors == 2 && findings.contains("a.yaml:3:"), "{findings}");
    assert_eq!(version(&station.in_force.load(), "a"), Some(1));

    // The same mistake in a new file, then the old text: only the latter is news.
    replace(&file, &text("a", 2, 0).replace("5/s", "often"));
    replace(&file, &text("a", 1, 0));
    assert_eq!(version(&station.next().unwrap().policy, "a"), Some(1));
    // A requested reload is reported although nothing has changed.
    station.watch.reload_now();
    assert_eq!(version(&station.next().unwrap().policy, "a"), Some(1));
    assert!(station.handed.try_recv().is_err());
}

#[test]
fn an_unchanged_text_is_not_handed_on() {
    let folder = Folder::new();
    let file = folder.join("a.yaml");
    fs::write(&file, text("a", 1, 0)).unwrap();
    let station = Station::of(&folder.0, By::Events);
    replace(&file, &text("a", 1, 0));
    fs::write(folder.join("notes.txt"), "changed").unwrap();
    fs::write(folder.join(".a.yaml"), text("hidden", 1, 0)).unwrap();
    // Longer than the quiet of a burst, so these were looked at before the next change.
    let waited = station.handed.recv_timeout(Duration::from_millis(300));
    assert!(matches!(waited, Err(RecvTimeoutError::Timeout)), "{waited:?}");
    replace(&file, &text("a", 2, 0));
    assert_eq!(version(&station.next().unwrap().policy, "a"), Some(2));
    assert!(station.in_force.load().domain("hidden").is_none());
}

#[test]
fn a_swapped_config_map_is_noticed() {
    for by in [By::Events, By::Polls] {
        let folder = Folder::new();
        let volume = |name: &str, files: &[(&str, u32)]| {
            fs::create_dir(folder.join(name)).unwrap();
            for (file, number) in files {
                let path = folder.join(name).join(format!("{file}.yaml"));
                fs::write(path, text(file, *number, 0)).unwrap();
            }
        };
        volume("..2024_1", &[("a", 1)]);
        symlink("..2024_1", folder.join("..data")).unwrap();
        symlink("..data/a.yaml", folder.join("a.yaml")).unwrap();
        let station = Station::of(&folder.0, by);

        volume("..2024_2", &[("a", 2)]);
        swap_link(&folder.join("..data"), "..2024_2");
        fs::remove_dir_all(folder.join("..2024_1")).unwrap();
        station.wait_for("a", 2);

        // A file is added: Kubernetes swaps first and links afterwards.
        volume("..2024_3", &[("a", 3), ("b", 3)]);
        swap_link(&folder.join("..data"), "..2024_3");
        symlink("..data/b.yaml", folder.join("b.yaml")).unwrap();
        station.wait_for("a", 3);
        station.wait_for("b", 3);

        // And removed: until its link is gone it leads nowhere.
        volume("..2024_4", &[("b", 4)]);
        swap_link(&folder.join("..data"), "..2024_4");
        fs::remove_file(folder.join("a.yaml")).unwrap();
        station.wait_for("b", 4);
        assert!(station.in_force.load().domain("a").is_none());
    }
}

#[test]
fn a_folder_that_is_deleted_and_made_anew_is_noticed() {
    for by in [By::Events, By::Polls] {
        let folder = Folder::new();
        let parent = folder.join("deep");
        let inner = parent.join("limits");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("a.yaml"), text("a", 1, 0)).unwrap();
        let station = Station::of(&inner, by);
        for (number, gone) in [(2, &inner), (3, &parent)] {
            fs::remove_dir_all(gone).unwrap();
            let said = station.refusal();
            assert!(said.contains("cannot read") || said.contains("no domain left"), "{said}");
            assert!(version(&station.in_force.load(), "a").is_some());
            fs::create_dir_all(&inner).unwrap();
            fs::write(inner.join("a.yaml"), text("a", number, 0)).unwrap();
            station.wait_for("a", number);
            // The new folder is watched as the old one was.
            replace(&inner.join("a.yaml"), &text("a", number + 10, 0));
            station.wait_for("a", number + 10);
        }
    }
}

#[test]
fn a_folder_made_anew_at_once_is_watched_as_the_old_one_was() {
    let folder = Folder::new();
    let inner = folder.join("limits");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("a.yaml"), text("a", 1, 0)).unwrap();
    let station = Station::of(&inner, By::Events);
    for number in 2..6 {
        // The new folder may get the inode of the old one.
        fs::remove_dir_all(&inner).unwrap();
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("a.yaml"), text("a", number, 0)).unwrap();
        station.wait_for("a", number);
        fs::write(inner.join("a.yaml"), text("a", number + 10, 0)).unwrap();
        station.wait_for("a", number + 10);
    }
}

#[test]
fn an_empty_folder_keeps_the_policy() {
    let folder = Folder::new();
    fs::write(folder.join("a.yaml"), text("a", 1, 0)).unwrap();
    let station = Station::of(&folder.0, By::Events);
    fs::remove_file(folder.join("a.yaml")).unwrap();
    let said = station.refusal();
    assert!(said.ends_with("no domain left; keeping the last policy"), "{said}");
    assert_eq!(version(&station.in_force.load(), "a"), Some(1));
}

#[test]
fn a_swapped_root_is_noticed() {
    for by in [By::Events, By::Polls] {
        let folder = Folder::new();
        for number in 1..4 {
            let config = folder.join(&format!("release-{number}/ratelimit/config"));
            fs::create_dir_all(&config).unwrap();
            fs::write(config.join("a.yaml"), text("a", number, 0)).unwrap();
        }
        symlink("release-1", folder.join("current")).unwrap();
        let station = Station::of(&folder.join("current/ratelimit/config"), by);
        for number in 2..4 {
            swap_link(&folder.join("current"), &format!("release-{number}"));
            station.wait_for("a", number);
        }
        // Where the link leads now is watched too.
        fs::write(folder.join("release-3/ratelimit/config/a.yaml"), text("a", 9, 0)).unwrap();
        station.wait_for("a", 9);
    }
}

#[test]
fn a_storm_ends_with_the_last_good_policy() {
    const CHANGES: u32 = 200;
    let folder = Folder::new();
    let file = folder.join("a.yaml");
    fs::write(&file, text("a", 0, 0)).unwrap();
    let station = Station::of(&file, By::Events);
    let start = now();
    let mut handed: Vec<Result<Update, Refusal>> = Vec::new();
    for number in 1..=CHANGES {
        match number % 4 {
            // In place only within one page: the rest of a longer text would come later.
            0 => fs::write(&file, text("a", number, 0)).unwrap(),
            1 => fs::write(&file, text("a", number, 0).replace("5/s", "often")).unwrap(),
            2 => replace(&file, &text("a", number, 5_000)),
            _ => replace(&file, "domain: [unfinished"),
        }
        handed.extend(station.handed.recv_timeout(Duration::from_millis(10)));
    }
    let during = handed.len();
    station.wait_for("a", CHANGES);
    let elapsed = start.elapsed();
    handed.extend(station.handed.try_iter());
    for update in handed.iter().flatten() {
        assert!(version(&update.policy, "a").is_some());
    }
    // A look every half second, or after each quiet of 50 ms if the writer was held up; on a busy machine
    // one in all may be late.
    let most = usize::try_from(elapsed.as_millis() / 50).unwrap() + 2;
    assert!((1..=most).contains(&during), "{during} handed on within {elapsed:?}");
    println!("{during} handed on during a storm of {elapsed:?}");
    assert_eq!(version(&station.in_force.load(), "a"), Some(CHANGES));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = Folder::new();
    fs::write(folder.join("a.yaml"), text("a", 1, 0)).unwrap();
    let station = Station::of(&folder.0, By::Events);
    // Stands for a file without permission, which root would read all the same.
    fs::create_dir(folder.join("b.yaml")).unwrap();
    let Err(Refusal::Unreadable(SourceError::Unreadable { path, .. })) = station.next() else {
        panic!("not refused")
    };
    assert_eq!(path, folder.join("b.yaml"));
    assert_eq!(version(&station.in_force.load(), "a"), Some(1));
    fs::remove_dir(folder.join("b.yaml")).unwrap();
    assert!(station.next().is_ok());
    // No process writes to the pipe, so opening it would block forever.
    let made = Command::new("mkfifo").arg(folder.join("c.yaml")).status().unwrap();
    assert!(made.success());
    let said = station.refusal();
    assert!(said.contains("c.yaml: neither a file nor a folder"), "{said}");
}

#[test]
fn a_change_before_the_watch_began_is_reported() {
    let _turn = turn();
    let folder = Folder::new();
    let file = folder.join("a.yaml");
    fs::write(&file, text("a", 1, 0)).unwrap();
    let source = Source::new([file.clone()], Merging::Refuse);
    let texts = source.read().unwrap();
    fs::write(&file, text("a", 2, 0)).unwrap();
    let (hand, handed) = channel();
    let builder = Watch::builder(source).in_force(&texts).poll_every(NEVER);
    let _watch = builder.start(move |outcome| hand.send(outcome).unwrap()).unwrap();
    let update = handed.recv_timeout(LIMIT).unwrap().unwrap();
    assert_eq!(version(&update.policy, "a"), Some(2));
    assert_ne!(update.revision, texts.revision());
}

#[test]
fn dropping_the_watch_ends_its_threads() {
    let folder = Folder::new();
    fs::write(folder.join("a.yaml"), text("a", 1, 0)).unwrap();
    let station = Station::of(&folder.0, By::Events);
    assert_eq!(threads("tidegate-watch"), 1);
    let Station { watch, handed, _turn, .. } = station;
    drop(watch);
    // The callback and its sender went with the thread.
    assert_eq!(handed.recv_timeout(Duration::ZERO).unwrap_err(), RecvTimeoutError::Disconnected);
    // The system lists a thread for a moment after it was joined.
    let start = now();
    while threads("tidegate-watch") + threads("notify-rs inoti") > 0 {
        assert!(start.elapsed() < LIMIT, "a thread outlives the watch");
        std::thread::yield_now();
    }
}
