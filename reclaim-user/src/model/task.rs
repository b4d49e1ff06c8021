//! A task as reports show it, and what its control group tells.

use super::report::Name;
use serde::Serialize;

/// A task that lives in a mount namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Task {
    /// Process or thread id, as reclaim's own PID namespace shows it.
    pub pid: u32,
    /// Its command name.
    pub comm: Name,
    /// Path of its control group; empty where the host has none.
    pub cgroup: Name,
    /// The systemd unit that the control group belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The container that the control group belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// The path in the text of `/proc/PID/cgroup`: that of the unified hierarchy unless it is `/` and another one tells more.
#[must_use]
pub fn cgroup_path(text: &[u8]) -> Option<&[u8]> {
    let paths = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let unified = hierarchy == b"0";
        let systemd = controllers == b"name=systemd";
        Some((u8::from(path != b"/") * 4 + u8::from(unified) * 2 + u8::from(systemd), path))
    });
    paths.max_by_key(|(rank, _)| *rank).map(|(_, path)| path)
}

/// The innermost systemd unit in a control group's path.
#[must_use]
pub fn unit(cgroup: &[u8]) -> Option<&str> {
    const KINDS: [&str; 3] = [".service", ".scope", ".socket"];
    let mut parts = cgroup.split(|byte| *byte == b'/').filter_map(|part| std::str::from_utf8(part).ok());
    parts.rfind(|part| KINDS.iter().any(|kind| part.len() > kind.len() && part.ends_with(kind)))
}

/// The innermost container id in a control group's path: 64 hexadecimal digits, bare or with the runtime's name before
/// them (`docker-`, `crio-`, `libpod-`, `cri-containerd-`) and `.scope` behind.
#[must_use]
pub fn container(cgroup: &[u8]) -> Option<&str> {
    let parts = cgroup.split(|byte| *byte == b'/').filter_map(|part| std::str::from_utf8(part).ok());
    let mut ids = parts.filter_map(|part| {
        let bare = part.strip_suffix(".scope").or_else(|| part.strip_suffix(".service")).unwrap_or(part);
        let id = bare.rsplit(['-', ':']).next()?;
        (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
    });
    ids.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn containers_are_found_behind_any_runtimes_name() {
        for path in [
            format!("/system.slice/docker-{ID}.scope"),
            format!("/docker/{ID}"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/kubepods.slice/kubepods-pod7.slice/crio-{ID}.scope"),
            format!("/kubepods-burstable-pod7.slice:cri-containerd:{ID}"),
        ] {
            assert_eq!(container(path.as_bytes()), Some(ID), "{path}");
        }
        assert_eq!(container(b"/user.slice/user-1000.slice/session-3.scope"), None);
        assert_eq!(container(&[b"/docker/".as_slice(), &ID.as_bytes()[1..]].concat()), None);
    }

    #[test]
    fn the_innermost_unit_counts() {
        let path = b"/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope";
        assert_eq!(unit(path), Some("app-x.scope"));
        assert_eq!(unit(b"/system.slice/cron.service"), Some("cron.service"));
        assert_eq!(unit(b"/user.slice"), None);
    }

    #[test]
    fn the_hierarchy_that_tells_most_counts() {
        assert_eq!(cgroup_path(b"0::/a.slice\n"), Some(&b"/a.slice"[..]));
        assert_eq!(cgroup_path(b"3:cpu:/x\n1:name=systemd:/y\n0::/\n"), Some(&b"/y"[..]));
        assert_eq!(cgroup_path(b"3:cpu:/x\n0::/with:colon\n"), Some(&b"/with:colon"[..]));
        assert_eq!(cgroup_path(b""), None);
    }
}
