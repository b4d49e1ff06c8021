//! Which of the kernel's means a scan may use.

use crate::evidence::lacking;

/// Means that are left out are treated as if the kernel did not have them, so that tests reach every way of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanOptions {
    /// Enumerate namespaces by `NS_MNT_GET_NEXT`.
    pub use_namespace_list: bool,
    /// Read mounts by listmount and statmount.
    pub use_mount_list: bool,
    /// Enter namespaces by setns.
    pub use_entering: bool,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self { use_namespace_list: true, use_mount_list: true, use_entering: true }
    }
}

impl ScanOptions {
    /// Everything, but for tests of the built program: with `RECLAIM_TEST=1` in the environment, what
    /// `RECLAIM_TEST_DISABLE` lists (`nslist`, `listmount`, `setns`; separated by commas) is left out. Leaving something
    /// out can only lower what a scan claims.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::without(lacking::list())
    }

    fn without(list: &str) -> Self {
        let has = |name| !lacking::names(list, name);
        Self { use_namespace_list: has("nslist"), use_mount_list: has("listmount"), use_entering: has("setns") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_left_out() {
        assert_eq!(ScanOptions::without(""), ScanOptions::default());
        let some = ScanOptions::without("listmount, nslist");
        assert_eq!(some, ScanOptions { use_namespace_list: false, use_mount_list: false, use_entering: true });
    }
}
