//! The folders to watch, so that every way to change a policy causes an event.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use super::debounce::Debounce;
use super::fingerprint::Identity;
use crate::policy::document::source::Source;

/// The most folders that are watched; changes elsewhere are found by polling.
const MAX_FOLDERS: usize = 256;

/// The most symbolic links followed, as in Linux.
const MAX_LINKS: usize = 40;

/// How long to wait for the event thread to end, which takes microseconds.
const END: Duration = Duration::from_secs(1);

/// The watched folders: those whose entries decide which files the policy has.
#[derive(Debug)]
pub(super) struct WatchedFolders {
    /// `None` while ending, or if the system gives no events.
    watcher: Option<RecommendedWatcher>,
    watched: BTreeMap<PathBuf, Identity>,
    /// Disconnects when the event thread has dropped its reference to the debounce.
    ended: Receiver<()>,
    trouble: Option<String>,
}

impl WatchedFolders {
    /// Watches no folder yet.
    pub(super) fn new(debounce: Arc<Debounce>) -> Self {
        let (alive, ended) = sync_channel(1);
        let (watcher, trouble) = match notify::recommended_watcher(handler(debounce, alive)) {
            Ok(watcher) => (Some(watcher), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { watcher, watched: BTreeMap::new(), ended, trouble }
    }

    /// Watches the folders that are needed now, and no others. A folder that was deleted and
    /// recreated is a new folder.
    pub(super) fn follow(&mut self, source: &Source) {
        let Some(watcher) = &mut self.watcher else { return };
        let wanted = folders(source);
        self.watched.retain(|folder, identity| {
            let stays = wanted.get(folder) == Some(identity);
            if !stays {
                // Fails if the folder is gone; no cleanup is needed then.
                let _ = watcher.unwatch(folder);
            }
            stays
        });
        let are_too_many = wanted.len() == MAX_FOLDERS;
        self.trouble = are_too_many.then(|| format!("only {MAX_FOLDERS} folders are watched"));
        // Also watches folders that are already watched: a late deletion event of an old folder
        // ends the watch of the folder recreated in its place. Watching a folder twice has no
        // further effect.
        for (folder, identity) in wanted {
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(folder, identity);
                }
                Err(error) => self.trouble = Some(format!("{}: {error}", folder.display())),
            }
        }
    }

    /// Why changes may be found by polling only.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

impl Drop for WatchedFolders {
    fn drop(&mut self) {
        if self.watcher.take().is_some() {
            // Nothing is ever sent, so this returns on disconnection or timeout.
            let _ = self.ended.recv_timeout(END);
        }
    }
}

/// Handles events in the event thread. Ignores access events, which reading the files causes.
fn handler(
    debounce: Arc<Debounce>,
    alive: SyncSender<()>,
) -> impl FnMut(notify::Result<Event>) + Send {
    move |event| {
        let _held_until_the_end = &alive;
        let is_change = match event.map(|event| event.kind) {
            Ok(EventKind::Access(AccessKind::Close(AccessMode::Write))) => true,
            Ok(EventKind::Access(_)) => false,
            // Includes errors: a lost event may have been a change.
            Ok(_) | Err(_) => true,
        };
        if is_change {
            debounce.change();
        }
    }
}

/// All folders to watch, by their paths without links.
fn folders(source: &Source) -> BTreeMap<PathBuf, Identity> {
    let mut found = BTreeMap::new();
    let files = source.files().unwrap_or_default();
    for path in source.paths().iter().chain(&files) {
        for folder in folders_of(path) {
            if found.len() == MAX_FOLDERS {
                return found;
            }
            if let Ok(metadata) = fs::metadata(&folder) {
                found.insert(folder, Identity::of(&metadata));
            }
        }
    }
    found
}

/// The folders that contain the path and every link on it, or its first missing part; if the path
/// is a folder, that folder too.
///
/// A link is replaced by renaming another one over it. That is an event of the folder that contains
/// the link, not of its target; Kubernetes' `..data` and a swapped runtime root work this way.
fn folders_of(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(path) = std::path::absolute(path) else { return found };
    let mut at = PathBuf::new();
    let mut links = 0;
    let mut rest: VecDeque<OsString> = parts(&path).collect();
    while let Some(part) = rest.pop_front() {
        let next = match Path::new(&part).components().next() {
            Some(Component::Normal(_)) => at.join(&part),
            Some(Component::ParentDir) => {
                at.pop();
                continue;
            }
            Some(Component::CurDir) | None => continue,
            Some(Component::RootDir | Component::Prefix(_)) => {
                at.push(&part);
                continue;
            }
        };
        let Ok(metadata) = fs::symlink_metadata(&next) else {
            found.push(at);
            return found;
        };
        if !metadata.is_symlink() {
            at = next;
            continue;
        }
        found.push(at.clone());
        links += 1;
        let target = fs::read_link(&next).ok().filter(|_| links <= MAX_LINKS);
        let Some(target) = target else { return found };
        for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
            rest.push_front(part);
        }
    }
    found.extend(at.parent().map(Path::to_owned));
    if at.is_dir() {
        found.push(at);
    }
    found
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().map(|part| part.as_os_str().to_owned())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_folder_that_decides_is_found() {
        let name = format!("tidegate-folders-{}", std::process::id());
        let root = fs::canonicalize(std::env::temp_dir()).unwrap().join(name);
        let at = |path: &str| root.join(path);
        fs::create_dir_all(at("releases/1/limits")).unwrap();
        fs::write(at("releases/1/limits/a.yaml"), "").unwrap();
        symlink("releases/1", at("current")).unwrap();
        symlink(at("current/../1/limits"), at("limits")).unwrap();
        symlink("round", at("releases/round")).unwrap();

        let (one, limits) = (at("releases/1"), at("releases/1/limits"));
        assert_eq!(folders_of(&at("current/limits")), [root.clone(), one.clone(), limits.clone()]);
        assert_eq!(folders_of(&at("current/limits/a.yaml")), [root.clone(), limits.clone()]);
        // Both links on the path count, and `..` starts from the first one's target.
        assert_eq!(folders_of(&at("limits")), [root.clone(), root.clone(), one, limits]);
        // A missing path will appear in the last folder that exists.
        assert_eq!(folders_of(&at("releases/2/limits")), [at("releases")]);
        let round = folders_of(&at("releases/round"));
        assert!(
            round.len() == MAX_LINKS + 1 && round.iter().all(|folder| *folder == at("releases"))
        );
        fs::remove_dir_all(root).unwrap();
    }
}
