//! A live set of any size, fed through the library as the scanner feeds it.

use reclaim_user::evidence::scan::identities;
use reclaim_user::model::coverage::Coverage;
use reclaim_user::model::id::{Location, MountId, NamespaceId};
use reclaim_user::model::live::LiveSet;
use reclaim_user::model::mount::{Mount, MountTable};
use reclaim_user::model::pin_set::NamespacePins;

/// The name of the entry that a bind in a namespace relies on.
pub(super) fn entry(namespace: u64, bind: u64) -> Vec<u8> {
    format!("acme_{namespace}_{bind}").into_bytes()
}

/// So many namespaces, each with so many tasks and binds of entries of the root.
pub(super) fn live_set(root: &Location, namespaces: u64, tasks: u32, binds: u64) -> LiveSet {
    let mount = |namespace: u64, bind: u64| Mount {
        id: MountId(namespace * binds + bind),
        parent: MountId(u64::MAX),
        device: root.device,
        root: root.join(&entry(namespace, bind)).path,
        root_deleted: false,
        point: Some(format!("/mnt/work/{bind}").into_bytes().into()),
        peer_group: 0,
        master: 0,
    };
    let table = |namespace: u64| {
        let table = MountTable { mounts: (0..binds).map(|bind| mount(namespace, bind)).collect(), layers: Vec::new() };
        let first = u32::try_from(namespace).unwrap_or_default().wrapping_mul(tasks);
        (NamespaceId(1 << 32 | namespace), NamespacePins { table, tasks: (first..).take(tasks as usize).collect() })
    };
    LiveSet::baseline([root.clone()], (0..namespaces).map(table).collect(), Coverage::full(identities()))
}
