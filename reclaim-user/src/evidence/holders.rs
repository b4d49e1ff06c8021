//! Which tasks live in a mount namespace, and what their control groups tell. For reports only: never for a decision.

use crate::model::id::NamespaceId;
use crate::model::pin_set::PinSet;
use crate::model::report::Name;
use crate::model::task::{self, Task};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;

/// Tasks looked up in one namespace at most: a report is for people.
const MOST: usize = 64;

/// The tasks of each of the namespaces that can be found now: those that the pin set names, and every process whose
/// namespace link says so. At most 64 of each.
#[must_use]
pub fn tasks(wanted: &BTreeSet<NamespaceId>, pins: &PinSet) -> BTreeMap<NamespaceId, Vec<Task>> {
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let mut ids: BTreeMap<NamespaceId, BTreeSet<u32>> = BTreeMap::new();
    for namespace in wanted {
        let named = pins.tasks(*namespace);
        // A task that left since, or whose number is another's by now, is not named. Only a link that cannot be read
        // leaves the pin set's word standing.
        let still = named.iter().filter(|pid| namespace_of(**pid).is_none_or(|now| now == *namespace)).take(MOST);
        ids.entry(*namespace).or_default().extend(still);
    }
    for pid in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = pid.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(found) = namespace_of(pid).and_then(|namespace| ids.get_mut(&namespace))
            && found.len() < MOST
        {
            found.insert(pid);
        }
    }
    ids.into_iter()
        .map(|(namespace, pids)| (namespace, pids.into_iter().filter_map(describe).take(MOST).collect()))
        .collect()
}

/// What processes are, as far as they are there still.
#[must_use]
pub fn processes(wanted: &BTreeSet<u32>) -> BTreeMap<u32, Task> {
    wanted.iter().take(MOST).filter_map(|pid| Some((*pid, describe(*pid)?))).collect()
}

fn namespace_of(pid: u32) -> Option<NamespaceId> {
    std::fs::metadata(format!("/proc/{pid}/ns/mnt")).ok().map(|stat| NamespaceId(stat.ino()))
}

/// One task; none when it is gone, or is none of ours to look at.
fn describe(pid: u32) -> Option<Task> {
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).ok();
    let mut comm = read("comm")?;
    if comm.last() == Some(&b'\n') {
        comm.pop();
    }
    let text = read("cgroup")?;
    let path = task::cgroup_path(&text).unwrap_or_default();
    Some(Task {
        pid,
        comm: Name(comm),
        unit: task::unit(path).map(str::to_owned),
        container: task::container(path).map(str::to_owned),
        cgroup: Name(path.to_vec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_is_found_in_its_own_namespace() {
        let own = namespace_of(std::process::id()).expect("an own namespace");
        let found = tasks(&BTreeSet::from([own]), &PinSet::default());
        assert!(found[&own].len() <= MOST);
        let me = describe(std::process::id()).expect("myself");
        assert!(!me.comm.0.is_empty() && !me.comm.0.contains(&b'\n'));
    }
}
