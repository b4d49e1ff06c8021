//! What a user could do without root: nothing more is done on the word of that user.

use super::store::Store;
use crate::model::hold::may_change;
use crate::sys::file_status::FileStatus;
use std::fs;

/// A user, and the groups that are known of it: that of its store, and those of the host's own list.
#[derive(Debug)]
pub(super) struct Rights {
    user: u32,
    groups: Vec<u32>,
}

impl Rights {
    /// Of the owner of a store.
    pub(super) fn of(store: &Store) -> Self {
        let listed = || {
            let groups = fs::read_to_string("/etc/group").ok()?;
            Some(groups_of(&name_of(&fs::read_to_string("/etc/passwd").ok()?, store.owner())?, &groups))
        };
        // Without the list a user is in fewer groups, so less is removed.
        let mut groups = listed().unwrap_or_default();
        groups.extend(store.group());
        Self { user: store.owner(), groups }
    }

    /// Whether that user could take names out of a directory.
    pub(super) fn may_change(&self, directory: &FileStatus) -> bool {
        let status = &directory.status;
        may_change(status.mode, status.owner, directory.group, self.user, &self.groups)
    }
}

/// `name:x:uid:gid:...` of passwd(5).
fn name_of(passwd: &str, user: u32) -> Option<String> {
    let of = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    };
    passwd.lines().find_map(of)
}

/// `name:x:gid:user,user` of group(5).
fn groups_of(name: &str, groups: &str) -> Vec<u32> {
    let of = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let group = fields.next()?.parse().ok()?;
        fields.next()?.split(',').any(|member| member == name).then_some(group)
    };
    groups.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_that_list_the_user() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n# a comment\ndev:x:1000:100::/home/dev:/bin/sh\n";
        assert_eq!(name_of(passwd, 1000).as_deref(), Some("dev"));
        assert_eq!(name_of(passwd, 100), None);
        let groups = "a:x:5:dev,other\nb:x:6:developer\nc:x:7:\nbroken\nd:x:8:other,dev\n";
        assert_eq!(groups_of("dev", groups), [5, 8]);
    }
}
