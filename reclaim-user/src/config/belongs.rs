//! What a configuration says belongs to ids, as texts that two configurations can be compared by.

use super::{Config, ConfigError, KindRule, Loaded, OwnedConfig, RemoveRule, RootConfig};
use crate::model::purge::CommandTemplate;
use std::fmt::Write as _;
use std::time::Duration;

impl Config {
    /// A text for each table that says what belongs to an id and how it is removed, sorted. Two configurations with the same
    /// texts have a purge do the same.
    #[must_use]
    pub fn belongs(&self) -> Vec<String> {
        let owned = self.owned.iter().map(|owned| match owned {
            OwnedConfig::Path(owned) => with_rules(format!("[[owned]] path = {:?}", owned.rules.name), &owned.rules),
            OwnedConfig::Managed(managed) => {
                let mut text = "[[owned]] remove = \"command\"".to_owned();
                add_command(&mut text, "command", &managed.command);
                if let Some(present) = &managed.present {
                    add_command(&mut text, "present", present);
                }
                add_limit(&mut text, managed.limit);
                text
            }
        });
        let roots = self.roots.iter().filter(|root| root.has_id()).map(|root| {
            let pattern = root.pattern.as_ref().map_or("", |pattern| pattern.as_str());
            with_rules(format!("[[root]] path = {:?} match = {pattern:?}", root.path), root)
        });
        let mut all: Vec<String> = owned.chain(roots).collect();
        all.sort();
        all
    }
}

impl Loaded {
    /// Makes sure that by another configuration the same belongs to ids. `others`: what [`Config::belongs`] gave for that.
    ///
    /// # Errors
    /// The first difference.
    pub fn agrees(&self, others: &[String]) -> Result<(), ConfigError> {
        let own = self.config.belongs();
        let here = own.iter().find(|text| !others.contains(text)).map(|text| (text, "in that of the service alone"));
        let there = others.iter().find(|text| !own.contains(text)).map(|text| (text, "in that of this command alone"));
        match there.or(here) {
            None => Ok(()),
            Some((table, whose)) => {
                let file = self.file.clone().unwrap_or_default();
                Err(ConfigError::Differs { file, table: table.clone(), whose })
            }
        }
    }
}

/// The keys that a purge goes by, behind what tells the table.
fn with_rules(mut text: String, rules: &RootConfig) -> String {
    let kind = match rules.kind {
        KindRule::Directory => "dir",
        KindRule::File => "file",
        KindRule::Any => "any",
    };
    let remove = match rules.remove {
        RemoveRule::Empty => "empty",
        RemoveRule::Tree => "tree",
        RemoveRule::Command => "command",
    };
    if let Some(owner) = rules.owner {
        add(&mut text, format_args!("owner = \"{owner}\""));
    }
    if let Some(mode) = rules.mode {
        add(&mut text, format_args!("mode = \"{mode:04o}\""));
    }
    add(&mut text, format_args!("kind = \"{kind}\" remove = \"{remove}\" leases = {}", rules.leases));
    if let Some(command) = &rules.command {
        add_command(&mut text, "command", &command.words);
        add_limit(&mut text, command.limit);
    }
    text
}

fn add_command(text: &mut String, key: &str, command: &CommandTemplate) {
    add(text, format_args!("{key} = {:?}", command.words()));
}

fn add_limit(text: &mut String, limit: Duration) {
    add(text, format_args!("timeout = \"{limit:?}\""));
}

fn add(text: &mut String, key: std::fmt::Arguments<'_>) {
    // Text takes whatever is written to it.
    let _ = write!(text, " {key}");
}

#[cfg(test)]
mod tests {
    use super::super::Loaded;

    fn belongs(text: &str) -> Vec<String> {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("reclaim.toml");
        std::fs::write(&file, text).expect("the file");
        Loaded::read(&file).expect(text).config.belongs()
    }

    /// Each key that a purge goes by tells two configurations apart, and no other does.
    #[test]
    fn each_key_that_a_purge_goes_by_is_told() {
        let path = |rest: &str| format!("[[owned]]\npath = \"/no/such/{{id}}\"\n{rest}\n");
        let by = |rest: &str| path(&format!("remove = \"command\"\ncommand = [\"acme\", \"{{id}}\"]\n{rest}"));
        let net =
            |rest: &str| format!("[[owned]]\nremove = \"command\"\ncommand = [\"acme\", \"rm\", \"{{id}}\"]\n{rest}\n");
        let root =
            |rest: &str| format!("[[root]]\nname = \"a\"\npath = \"/no/root\"\nmatch = '^(?<id>[a-z]+)$'\n{rest}\n");
        let texts = [
            path(""),
            path("owner = \"1\""),
            path("kind = \"dir\""),
            path("remove = \"empty\""),
            path("leases = false"),
            by(""),
            by("timeout = \"1s\""),
            net(""),
            net("timeout = \"1s\""),
            net("present = [\"acme\", \"ask\", \"{id}\"]"),
            root(""),
            root("mode = \"0700\""),
            root("owner = \"1\""),
            root("kind = \"any\""),
            root("remove = \"tree\""),
        ];
        let all: Vec<Vec<String>> = texts.iter().map(|text| belongs(text)).collect();
        assert!(all.iter().all(|told| told.len() == 1), "{all:?}");
        for (at, told) in all.iter().enumerate() {
            assert!(!all[..at].contains(told), "{told:?}");
        }
        let same = ["min_age = \"1h\"", "retain = \"1h\"", "pile = 7", "once = true"];
        assert!(same.iter().all(|rest| belongs(&root(rest)) == all[10]));
        assert_eq!(belongs("[[root]]\nname = \"a\"\npath = \"/no/root\"\n"), Vec::<String>::new());
        let both = belongs(&format!("{}{}", root(""), net("")));
        assert_eq!(both, belongs(&format!("{}{}", net(""), root(""))), "whatever the order");
    }
}
