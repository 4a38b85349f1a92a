//! Registry entries: how a node formats its own entry and parses the entries of other nodes.

use std::collections::BTreeSet;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;
use tidegate_core::Timestamp;

use crate::store::DomainRevision;

/// The most nodes of a registry. Further nodes are not listed or counted.
pub(in crate::store::redis) const MAX_NODES: usize = 1_024;
/// The most domains of an entry. A node with more lists all of them as one, `*`.
pub(in crate::store::redis) const MAX_DOMAINS: usize = 16;
/// The longest name of a domain in an entry, in bytes.
const MAX_DOMAIN_NAME: usize = 64;
/// The longest name of a node, in bytes.
const MAX_NAME: usize = 64;
/// The entry for all domains of a node.
const ALL: &str = "*";

/// The id of this node: its name and a number unique to its process.
pub(in crate::store::redis) fn id(name: Option<&str>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '_' };
    let name: String = match name {
        Some(name) => name.chars().take(MAX_NAME).map(plain).collect(),
        None => format!("pid-{}", std::process::id()),
    };
    format!("{name}-{:08x}", fastrand::u32(..))
}

/// The revisions as registered: at most [`MAX_DOMAINS`] domains with names that fit.
pub(in crate::store::redis) fn listed(mut held: Vec<DomainRevision>) -> Vec<DomainRevision> {
    held.sort_unstable();
    let fits = |it: &DomainRevision| {
        (1..=MAX_DOMAIN_NAME).contains(&it.domain.len()) && !it.domain.contains(['\n', '*'])
    };
    if held.len() <= MAX_DOMAINS && held.iter().all(fits) {
        return held;
    }
    let mut hasher = SipHasher13::new_with_keys(0x616c_6c00, 0x646f_6d61);
    for DomainRevision { domain, revision } in &held {
        hasher.write(&(domain.len() as u64).to_le_bytes());
        hasher.write(domain.as_bytes());
        hasher.write(&revision.to_le_bytes());
    }
    vec![DomainRevision { domain: ALL.into(), revision: hasher.finish() }]
}

/// A node of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name and a unique number.
    pub id: String,
    /// Whether it is this node.
    pub is_own: bool,
    /// When it last registered, by the store's clock.
    pub seen: Timestamp,
    /// The domains that it serves; one `*` for all of them if there are more than 16.
    pub domains: Vec<DomainRevision>,
}

impl Node {
    /// Parses a member of the registry; `None` if it has another format.
    pub(in crate::store::redis) fn read(member: &str, seen: Timestamp, own: &str) -> Option<Self> {
        let mut lines = member.lines();
        let id = lines.next().filter(|id| !id.is_empty())?.to_owned();
        let domain = |line: &str| {
            let (revision, domain) = line.split_once(' ')?;
            let revision = u64::from_str_radix(revision, 16).ok()?;
            Some(DomainRevision { domain: domain.into(), revision })
        };
        let domains = lines.take(MAX_DOMAINS).map(domain).collect::<Option<Vec<_>>>()?;
        Some(Self { is_own: id == own, id, seen, domains })
    }

    /// Formats the registry member of a node with these revisions.
    pub(in crate::store::redis) fn write(id: &str, held: &[DomainRevision]) -> String {
        let mut member = format!("{id}\n");
        held.iter().for_each(|it| member.push_str(&format!("{it}\n")));
        member
    }

    /// The revisions of domains that both nodes serve and that differ from `held`.
    pub(in crate::store::redis) fn differing(
        &self,
        held: &[DomainRevision],
    ) -> BTreeSet<DomainRevision> {
        let is_whole = |all: &[DomainRevision]| all.iter().any(|it| &*it.domain == ALL);
        let differs = |it: &&DomainRevision| {
            // An entry for all domains can only be compared with another one for all domains.
            let apart = !held.is_empty() && is_whole(held) != is_whole(&self.domains);
            let own = held.iter().find(|own| own.domain == it.domain);
            apart || own.is_some_and(|own| own.revision != it.revision)
        };
        self.domains.iter().filter(differs).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(all: &[(&str, u64)]) -> Vec<DomainRevision> {
        let one = |(domain, revision): &(&str, u64)| DomainRevision {
            domain: (*domain).into(),
            revision: *revision,
        };
        all.iter().map(one).collect()
    }

    fn node(all: &[(&str, u64)]) -> Node {
        let member = Node::write("a", &listed(held(all)));
        Node::read(&member, Timestamp::EPOCH, "b").unwrap()
    }

    #[test]
    fn written_requests_are_read() {
        let all = [("api", 7), ("web site", u64::MAX)];
        let read = node(&all);
        assert_eq!((&*read.id, read.is_own, read.domains), ("a", false, held(&all)));
        assert!(Node::read("a\n", Timestamp::EPOCH, "a").unwrap().is_own);
        for odd in ["", "\n", "a\nnonsense", "a\nxyz api"] {
            assert_eq!(Node::read(odd, Timestamp::EPOCH, "a"), None, "{odd:?}");
        }
    }

    #[test]
    fn an_entry_is_bounded() {
        let many: Vec<DomainRevision> = (0..10_000)
            .map(|number| DomainRevision { domain: format!("d{number}").into(), revision: number })
            .collect();
        let mut shuffled = many.clone();
        shuffled.reverse();
        assert_eq!(listed(many.clone()), listed(shuffled), "in any order");
        assert_eq!(listed(many).len(), 1);
        let long = "x".repeat(65);
        for name in ["a\nb", "", "*", &long] {
            assert_eq!(&*listed(held(&[(name, 1)]))[0].domain, "*", "{name:?}");
        }
        assert!(id(Some(&"host:\n".repeat(100))).len() <= MAX_NAME + 9);
        assert_ne!(id(None), id(None));
    }

    #[test]
    fn only_domains_of_both_are_compared() {
        let own = held(&[("api", 1), ("web", 2)]);
        assert_eq!(node(&[("api", 1), ("mail", 9)]).differing(&own), BTreeSet::new());
        assert_eq!(node(&[]).differing(&own), BTreeSet::new());
        assert_eq!(node(&[("api", 1)]).differing(&[]), BTreeSet::new());
        let differing = node(&[("api", 3), ("web", 2)]).differing(&own);
        assert_eq!(differing.into_iter().collect::<Vec<_>>(), held(&[("api", 3)]));
        let many: Vec<_> = (0..20).map(|_| ("api", 1)).collect();
        assert_eq!(node(&many).differing(&own).len(), 1, "all against some");
        assert_eq!(node(&many).differing(&node(&many).domains), BTreeSet::new());
    }
}
