//! Finding the entries of a root whose names tell an id.

use crate::config::RootConfig;
use crate::model::purge::Id;
use crate::removal::condemn::makeshift;
use crate::removal::error::RemovalError;
use crate::removal::lock::STORE;
use crate::removal::place::Root;
use crate::sys::directory::{Names, Reader};
use std::ffi::CString;

/// Names of the entries of a root whose group `id` is the id, in the order of the directory.
///
/// # Errors
/// When the root cannot be opened or listed. A root that does not exist has none.
pub fn entries_of(rules: &RootConfig, id: &Id) -> Result<Vec<CString>, RemovalError> {
    let Some(root) = Root::open(&rules.path)? else { return Ok(Vec::new()) };
    let (mut reader, mut names) = (Reader::default(), Names::default());
    let mut found = Vec::new();
    let fault = |source| RemovalError::Call { call: "getdents64", path: rules.path.clone(), source };
    while reader.read(&root.directory, &mut names).map_err(fault)? {
        let listed = (0..names.len()).filter_map(|index| names.get(index)).map(|(name, _, _)| name);
        let is_own = |name: &std::ffi::CStr| name == STORE || makeshift(name).is_some();
        let of_id = |name: &std::ffi::CStr| rules.id_of(name.to_bytes()) == Some(id.as_str().as_bytes());
        found.extend(listed.filter(|name| !is_own(name) && of_id(name)).map(ToOwned::to_owned));
        names.clear();
    }
    Ok(found)
}
