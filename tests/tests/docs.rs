//! The configurations in the documentation work as they stand.

use reclaim_tests::{ConfigFile, OrFail as _, Reclaim, Root, blocks, pages, private_host};
use std::fs;

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
                false => blocks(&text, "toml"),
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
