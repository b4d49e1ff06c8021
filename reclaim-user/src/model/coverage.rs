//! How much of the host some evidence saw: complete, and covered for one owner.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Something that lowers a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GapCause {
    /// A task whose mount namespace could not be learnt.
    TaskUnreadable,
    /// A task that was gone before it could be read, and that no later listing made up for.
    TaskDeparted,
    /// A namespace of which no table could be read from its own root.
    NamespaceUnread,
    /// Namespaces that no task is in could not be listed.
    NamespacesUnlisted,
    /// The task that a namespace was read through sees only a part of it.
    ReaderChrooted,
    /// A mount whose mount point cannot be seen, so that its target is not known.
    TargetHidden,
    /// procfs shows a part of the host's tasks only.
    ProcfsFiltered,
    /// procfs could not be listed.
    ProcfsUnreadable,
    /// Descriptors and directories of tasks were not looked at.
    ReferencesUnread,
    /// The kernel could not send records of events.
    EventsLost,
    /// Some probes are not attached.
    ProbesMissing,
}

impl GapCause {
    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TaskUnreadable => "task-unreadable",
            Self::TaskDeparted => "task-departed",
            Self::NamespaceUnread => "namespace-unread",
            Self::NamespacesUnlisted => "namespaces-unlisted",
            Self::ReaderChrooted => "reader-chrooted",
            Self::TargetHidden => "target-hidden",
            Self::ProcfsFiltered => "procfs-filtered",
            Self::ProcfsUnreadable => "procfs-unreadable",
            Self::ReferencesUnread => "references-unread",
            Self::EventsLost => "events-lost",
            Self::ProbesMissing => "probes-missing",
        }
    }
}

/// Whose entries something that was not seen could hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nobody's: what it could hold was seen in another way. Lowers complete only.
    Nobody,
    /// Those of any owner that [`Holder::could_hold`] names.
    Holder(Holder),
    /// Anybody's.
    Everybody,
}

/// What is known of a task that was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its real, effective, saved and file system user ids, as seen from reclaim's user namespace.
    pub uids: Vec<u32>,
    /// Owner of its user namespace; none where that could not be learnt. Owner 0 for the initial one.
    pub user_namespace_owner: Option<u32>,
}

/// What the host says of user ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identities {
    /// `/proc/sys/kernel/overflowuid`: what an id without a mapping is shown as; none where that could not be read.
    pub overflow: Option<u32>,
    /// Subordinate ranges of each user, from `/etc/subuid`; none where it is there and could not be read.
    pub subordinate: Option<BTreeMap<u32, Vec<RangeInclusive<u32>>>>,
}

impl Holder {
    /// Whether such a task could hold an entry owned by `owner`.
    #[must_use]
    pub fn could_hold(&self, owner: u32, identities: &Identities) -> bool {
        let Some(namespace_owner) = self.user_namespace_owner else {
            return true;
        };
        // Any id could be the one that stands for those without a mapping, or lie in a range that is not known.
        let (Some(subordinate), Some(overflow)) = (&identities.subordinate, identities.overflow) else {
            return true;
        };
        let ranges = subordinate.get(&owner).map_or(&[][..], Vec::as_slice);
        namespace_owner == owner
            || self.uids.is_empty()
            || self.uids.iter().any(|uid| {
                *uid == 0 || *uid == owner || *uid == overflow || ranges.iter().any(|range| range.contains(uid))
            })
    }
}

/// The claim that goes with a set of pins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    gaps: BTreeMap<GapCause, u64>,
    unseen: Vec<Holder>,
    blind: bool,
    identities: Identities,
}

impl Coverage {
    /// The claim of having seen everything.
    #[must_use]
    pub fn full(identities: Identities) -> Self {
        Self { gaps: BTreeMap::new(), unseen: Vec::new(), blind: false, identities }
    }

    /// Records `count` things of one kind that were not seen. A count of 0 records nothing.
    pub fn lower(&mut self, cause: GapCause, count: u64, reach: Reach) {
        if count == 0 {
            return;
        }
        *self.gaps.entry(cause).or_default() += count;
        match reach {
            Reach::Nobody => {}
            Reach::Holder(holder) => {
                if !self.unseen.contains(&holder) {
                    self.unseen.push(holder);
                }
            }
            Reach::Everybody => self.blind = true,
        }
    }

    /// Every task and namespace of the host was accounted for.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Every task that could hold an entry owned by `owner` was read.
    #[must_use]
    pub fn covered(&self, owner: u32) -> bool {
        !self.blind && !self.unseen.iter().any(|holder| holder.could_hold(owner, &self.identities))
    }

    /// Gaps by cause.
    #[must_use]
    pub fn gaps(&self) -> &BTreeMap<GapCause, u64> {
        &self.gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identities() -> Identities {
        Identities { overflow: Some(65_534), subordinate: Some(BTreeMap::from([(1000, vec![100_000..=165_535])])) }
    }

    fn covered_beside(uid: u32, namespace_owner: Option<u32>, owner: u32) -> bool {
        let mut coverage = Coverage::full(identities());
        let holder = Holder { uids: vec![uid], user_namespace_owner: namespace_owner };
        coverage.lower(GapCause::TaskUnreadable, 1, Reach::Holder(holder));
        assert!(!coverage.complete());
        coverage.covered(owner)
    }

    #[test]
    fn another_users_task_does_not_uncover() {
        assert!(covered_beside(1001, Some(0), 1000));
        assert!(!covered_beside(1000, Some(0), 1000));
    }

    #[test]
    fn root_overflow_subordinates_and_owned_user_namespaces_do() {
        assert!(!covered_beside(0, Some(0), 1000));
        assert!(!covered_beside(65_534, Some(0), 1000));
        assert!(!covered_beside(100_007, Some(0), 1000));
        assert!(covered_beside(100_007, Some(0), 1001));
        assert!(!covered_beside(200_000, Some(1000), 1000));
    }

    #[test]
    fn without_the_ranges_any_task_could_hold_anything() {
        let holder = Holder { uids: vec![1001], user_namespace_owner: Some(0) };
        assert!(!holder.could_hold(1000, &identities()));
        assert!(holder.could_hold(1000, &Identities { subordinate: None, ..identities() }));
    }

    #[test]
    fn without_the_overflow_id_any_task_could_hold_anything() {
        let mut coverage = Coverage::full(Identities { overflow: None, ..identities() });
        assert!(coverage.covered(1000), "nobody was left out");
        let holder = Holder { uids: vec![1001], user_namespace_owner: Some(0) };
        coverage.lower(GapCause::TaskUnreadable, 1, Reach::Holder(holder));
        assert!(!coverage.covered(1000) && !coverage.covered(1002));
    }

    #[test]
    fn what_is_not_known_uncovers() {
        assert!(!covered_beside(1001, None, 1000));
        let mut coverage = Coverage::full(identities());
        coverage.lower(
            GapCause::TaskDeparted,
            1,
            Reach::Holder(Holder { uids: vec![], user_namespace_owner: Some(0) }),
        );
        assert!(!coverage.covered(1000));
    }

    #[test]
    fn nobody_lowers_complete_only_and_everybody_both() {
        let mut coverage = Coverage::full(identities());
        coverage.lower(GapCause::TaskUnreadable, 0, Reach::Everybody);
        assert!(coverage.complete());
        coverage.lower(GapCause::TaskUnreadable, 2, Reach::Nobody);
        assert!(!coverage.complete() && coverage.covered(0));
        coverage.lower(GapCause::ProcfsFiltered, 1, Reach::Everybody);
        assert!(!coverage.covered(1000));
        assert_eq!(coverage.gaps()[&GapCause::TaskUnreadable], 2);
    }
}
