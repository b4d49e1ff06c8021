//! The configurations in the documentation work as they stand.

use reclaim_tests::{ConfigFile, OrFail as _, Reclaim, Root, private_host};
use std::fs;
use std::path::{Path, PathBuf};

/// Every block of a page that is marked as TOML, with the line that it begins in.
fn blocks(page: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in page.lines().enumerate() {
        match (&mut open, line.trim_end()) {
            (None, "```toml") => open = Some((index + 2, String::new())),
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

fn pages() -> Vec<PathBuf> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let listed = fs::read_dir(&docs).or_fail("list docs").flatten().map(|entry| entry.path());
    let mut pages: Vec<_> =
        listed.filter(|path| path.extension().is_some_and(|end| end == "md" || end == "toml")).collect();
    pages.sort();
    pages.push(docs.join("../README.md"));
    pages
}

#[test]
fn every_configuration_of_the_documentation_is_accepted_as_it_stands() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let mut tried = 0;
        for page in pages() {
            let text = fs::read_to_string(&page).or_fail(format_args!("read {}", page.display()));
            let of_page = match page.extension().is_some_and(|end| end == "toml") {
                true => vec![(1, text)],
                false => blocks(&text),
            };
            for (line, block) in of_page {
                let at = format!("{}:{line}", page.display());
                config.write_text(&block);
                let (objects, code) = reclaim.objects(&["check"], &[0, 1, 2]);
                let faults: Vec<_> = objects
                    .iter()
                    .filter(|object| object["type"] == "fault" && object["about"] == "configuration")
                    .collect();
                // Neither a fault nor a note: what a page shows is not to look like a mistake.
                assert!(code != 2 && faults.is_empty(), "{at}: {faults:?}");
                assert!(objects.iter().any(|object| object["type"] == "root"), "{at}: there is no root in it");
                tried += 1;
            }
        }
        assert!(tried >= 5, "only {tried} blocks were found");
    });
}

#[test]
fn blocks_are_found_and_their_ends_are_missed() {
    let page = "text\n```toml\na = 1\n```\n```\nno toml\n```\n```toml\nb = 2\nc = 3\n```\n";
    assert_eq!(blocks(page), [(3, "a = 1\n".to_owned()), (9, "b = 2\nc = 3\n".to_owned())]);
}
