//! The pages of the documentation, and the examples in them.

use crate::{Host, OrFail as _};
use std::fs;
use std::path::{Path, PathBuf};

/// Every page, and every file of configuration beside them.
///
/// # Panics
/// When they cannot be listed.
#[track_caller]
#[must_use]
pub fn pages() -> Vec<PathBuf> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let listed = fs::read_dir(&docs).or_fail("list docs").flatten().map(|entry| entry.path());
    let mut pages: Vec<_> =
        listed.filter(|path| path.extension().is_some_and(|end| end == "md" || end == "toml")).collect();
    pages.sort();
    pages.push(docs.join("../README.md"));
    pages
}

/// Gives a host directories of its own where the pages have their examples.
///
/// # Panics
/// When they cannot be mounted.
#[track_caller]
pub fn claim_places(host: &Host) {
    for place in ["/srv", "/var/lib", "/run"] {
        let own = host.make_tmpfs(&format!("place{}", place.replace('/', "-")));
        host.bind(&own, Path::new(place));
    }
}

/// Every block of a page that is marked as written in a language, with the line that it begins in.
///
/// # Panics
/// When a block has no end.
#[track_caller]
#[must_use]
pub fn blocks(page: &str, language: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in page.lines().enumerate() {
        match (&mut open, line.trim_end()) {
            (None, line) if line.strip_prefix("```") == Some(language) => open = Some((index + 2, String::new())),
            (Some(_), "```") => blocks.extend(open.take()),
            (Some((_, text)), line) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, _) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_their_language() {
        let page = "text\n```toml\na = 1\n```\n```\nno toml\n```\n```sh\nx\n```\n```toml\nb = 2\nc = 3\n```\n";
        assert_eq!(blocks(page, "toml"), [(3, "a = 1\n".to_owned()), (12, "b = 2\nc = 3\n".to_owned())]);
        assert_eq!(blocks(page, "sh"), [(9, "x\n".to_owned())]);
    }
}
