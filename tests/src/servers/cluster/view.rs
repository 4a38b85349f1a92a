//! The cluster from the view of one node.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::super::server::RedisServer;

/// A parsed `CLUSTER NODES`, by id.
#[derive(Debug)]
pub(super) struct View(BTreeMap<String, Member>);

#[derive(Debug)]
struct Member {
    flags: String,
    /// Its primary.
    primary: String,
    epoch: u64,
    slots: Vec<RangeInclusive<u16>>,
}

impl View {
    /// `None` if the node does not answer.
    pub(super) fn of(server: &RedisServer) -> Option<Self> {
        let answer = server.try_command(&["CLUSTER", "NODES"]).ok()?;
        let text: String = redis::from_redis_value(answer).ok()?;
        text.lines().map(member).collect::<Option<_>>().map(Self)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_primary(&self, id: &str) -> bool {
        self.0.get(id).is_some_and(Member::is_primary)
    }

    pub(super) fn owner_of(&self, slot: u16) -> Option<&String> {
        self.owners_of(slot).next().map(|(id, _)| id)
    }

    /// The owner, after the epoch since which it owns the slot, so that the larger pair is the
    /// newer one.
    pub(super) fn newest_owner_of(&self, slot: u16) -> Option<(u64, String)> {
        self.owners_of(slot).map(|(id, member)| (member.epoch, id.clone())).max()
    }

    /// Replicas that are not marked as failed.
    pub(super) fn answering_replicas_of(&self, id: &str) -> usize {
        let replicates = |member: &&Member| member.primary == id && !member.has("fail");
        self.0.values().filter(replicates).count()
    }

    /// Whether both views have the same owners and replicas.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let roles = |view: &Self| -> Vec<_> {
            let role = |(id, member): (&String, &Member)| {
                (id.clone(), member.primary.clone(), member.slots.clone())
            };
            view.0.iter().map(role).collect()
        };
        roles(self) == roles(other)
    }

    fn owners_of(&self, slot: u16) -> impl Iterator<Item = (&String, &Member)> {
        let owns = move |member: &Member| {
            member.is_primary() && member.slots.iter().any(|range| range.contains(&slot))
        };
        self.0.iter().filter(move |(_, member)| owns(member))
    }
}

impl Member {
    fn is_primary(&self) -> bool {
        self.has("master")
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.split(',').any(|own| own == flag)
    }
}

/// One line: id, address, flags, primary, ping, pong, epoch, link, slots.
fn member(line: &str) -> Option<(String, Member)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (&[id, _, flags, primary, _, _, epoch, _], slots) = fields.split_first_chunk()?;
    // In brackets: migrating slots, which still belong to their source.
    let slots = slots.iter().filter(|slot| !slot.starts_with('['));
    let slots = slots.map(|slot| {
        let (first, last) = slot.split_once('-').unwrap_or((slot, slot));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    let member = Member {
        flags: flags.into(),
        primary: primary.into(),
        epoch: epoch.parse().ok()?,
        slots: slots.collect::<Option<_>>()?,
    };
    Some((id.into(), member))
}
