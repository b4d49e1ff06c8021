use super::super::{KindRule, Loaded, ManagedConfig, OwnedConfig, OwnedPath, RemoveRule};
use crate::model::purge::Id;
use std::path::Path;
use std::time::Duration;

fn load(text: &str) -> Result<Loaded, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("reclaim.toml");
    std::fs::write(&file, text).expect("the file");
    Loaded::read(&file).map_err(|error| error.to_string())
}

fn owned(rest: &str) -> String {
    format!("[[owned]]\npath = \"/no/such/{{id}}\"\n{rest}\n")
}

/// A table without a path.
fn managed(rest: &str) -> String {
    format!("[[owned]]\nremove = \"command\"\n{rest}\n")
}

/// The one table there is, which has a path.
fn only_path(text: &str) -> OwnedPath {
    match load(text).expect("good").config.owned.remove(0) {
        OwnedConfig::Path(path) => *path,
        OwnedConfig::Managed(managed) => panic!("it has a path: {managed:?}"),
    }
}

fn root(rest: &str) -> String {
    format!("[[root]]\nname = \"a\"\npath = \"/no/such\"\n{rest}\n")
}

#[test]
fn every_fault_names_line_key_and_remedy() {
    let path = |path: &str| format!("[[owned]]\npath = '{path}'\n");
    let by = |rest: &str| owned(&format!("remove = \"command\"\n{rest}"));
    let net = |rest: &str| managed(&format!("command = [\"acme\", \"rm\", \"{{id}}\"]\n{rest}"));
    let cases: &[(String, usize, &str, &str)] = &[
        ("[[owned]]\nowner = \"0\"\n".into(), 1, "`owned.path`", "path = \"/.../{id}\""),
        (owned("pth = 1"), 3, "`owned.pth`", "did you mean `path`?"),
        ("owned = \"/x/{id}\"\n".into(), 1, "`owned`", "[[owned]]"),
        (path("/no/such/x"), 2, "`owned.path`", "put {id} into its last component"),
        (path("/no/{id}/x"), 2, "`owned.path`", "let it end with the component"),
        (path("/no/{id}{id}"), 2, "`owned.path`", "once"),
        (path("/{id}"), 2, "`owned.path`", "a directory of their own"),
        (path("no/{id}"), 2, "`owned.path`", "begin it with /"),
        (path("/no/../{id}"), 2, "`owned.path`", "without `..`"),
        (path("/no/.reclaim/{id}"), 2, "`owned.path`", "leave `.reclaim` to reclaim"),
        (path("/no/{name}-{id}"), 2, "`owned.path`", "only {id} stands for something"),
        (path("/dev/null/{id}"), 2, "`owned.path`", "below a directory"),
        (format!("{}{}", owned(""), owned("")), 5, "`owned.path`", "take one of the two out"),
        (owned("owner = \"no-such-user-here\""), 3, "`owned.owner`", "name a user that exists"),
        (owned("kind = \"link\""), 3, "`owned.kind`", "\"dir\""),
        (owned("remove = \"all\""), 3, "`owned.remove`", "\"tree\" or \"command\""),
        (owned("leases = 1"), 3, "`owned.leases`", "true or false"),
        (owned("command = [\"a\", \"{id}\"]"), 3, "`owned.command`", "add remove = \"command\""),
        (owned("timeout = \"1s\""), 3, "`owned.timeout`", "add remove = \"command\""),
        (by(""), 3, "`owned.command`", "name the program"),
        (by("command = \"acme rm\""), 4, "`owned.command`", "[\"acme\", \"rm\", \"{id}\"]"),
        (by("command = []"), 4, "`owned.command`", "name the program"),
        (by("command = [\"acme\", 1]"), 4, "`owned.command`", "name the program"),
        (by("command = [\"bin/acme\", \"{id}\"]"), 4, "`owned.command`", "give its whole path"),
        (net("present = [\"./acme\", \"{id}\"]"), 4, "`owned.present`", "give its whole path"),
        (by("command = [\"acme\", \"rm\"]"), 4, "`owned.command`", "put {id}, {name} or {path}"),
        (by("command = [\"acme\", \"{pid}\"]"), 4, "`owned.command`", "use {id}, {name} or {path}"),
        (by("command = [\"acme\", \"{id}\"]\ntimeout = \"0s\""), 5, "`owned.timeout`", "give it some time"),
        (
            root("remove = \"command\"\ncommand = [\"acme\", \"{id}\"]"),
            5,
            "`root.command`",
            "put (?<id>...) into `match`",
        ),
        ("[[owned]]\nremove = \"tree\"\n".into(), 1, "`owned.path`", "remove = \"command\" and `command`"),
        ("[[owned]]\ncommand = [\"a\", \"{id}\"]\n".into(), 1, "`owned.path`", "remove = \"command\" and `command`"),
        (managed(""), 2, "`owned.command`", "name the program"),
        (managed("command = [\"acme\", \"rm\"]"), 3, "`owned.command`", "put {id} into an argument"),
        (managed("command = [\"acme\", \"{path}\", \"{id}\"]"), 3, "`owned.command`", "use {id}, or name the `path`"),
        (managed("command = [\"acme\", \"{id}{name}\"]"), 3, "`owned.command`", "use {id}, or name the `path`"),
        (managed("command = [\"acme\", \"{id}\", \"{pid}\"]"), 3, "`owned.command`", "use {id}"),
        (net("owner = \"0\""), 4, "`owned.owner`", "take the key out, or name the `path`"),
        (net("kind = \"dir\""), 4, "`owned.kind`", "take the key out, or name the `path`"),
        (net("leases = true"), 4, "`owned.leases`", "take the key out, or name the `path`"),
        (net("timeout = \"0s\""), 4, "`owned.timeout`", "give it some time"),
        (net("present = \"acme\""), 4, "`owned.present`", "present = [\"acme\""),
        (net("present = []"), 4, "`owned.present`", "name the program"),
        (net("present = [\"acme\", 1]"), 4, "`owned.present`", "present = [\"acme\""),
        (net("present = [\"acme\", \"ls\"]"), 4, "`owned.present`", "put {id} into an argument"),
        (net("present = [\"acme\", \"{name}\", \"{id}\"]"), 4, "`owned.present`", "use {id}, or name the `path`"),
        (net("present = [\"acme\", \"rm\", \"{id}\"]"), 4, "`owned.present`", "what only tells of it"),
        (owned("present = [\"acme\", \"{id}\"]"), 3, "`owned.present`", "take the key out"),
        (
            by("command = [\"acme\", \"{id}\"]\npresent = [\"acme\", \"{id}\"]"),
            5,
            "`owned.present`",
            "take the key out",
        ),
        (format!("{}{}", net(""), net("present = [\"b\", \"{id}\"]")), 7, "`owned.command`", "take one of the two out"),
        (
            format!("{}{}", net(""), by("command = [\"acme\", \"rm\", \"{id}\"]")),
            8,
            "`owned.command`",
            "take one of the two out",
        ),
    ];
    for (text, line, key, remedy) in cases {
        let message = load(text).expect_err(&format!("must be refused:\n{text}"));
        assert!(message.contains(&format!("reclaim.toml:{line}:")), "line {line} of\n{text}\n{message}");
        assert!(message.contains(key), "key {key} of\n{text}\n{message}");
        assert!(message.contains(remedy), "remedy {remedy} of\n{text}\n{message}");
        assert!(!message.contains('\n'), "one message, one line: {message}");
    }
}

#[test]
fn what_is_left_out_has_its_default() {
    let plain = only_path(&owned(""));
    assert_eq!((plain.rules.path.as_path(), plain.rules.kind), (Path::new("/no/such"), KindRule::Any));
    assert_eq!((plain.rules.remove, plain.rules.leases, plain.rules.owner), (RemoveRule::Tree, true, None));
    assert!(plain.rules.command.is_none());
    let text = owned("remove = \"command\"\ncommand = [\"acme\", \"rm\", \"{id}\"]\nowner = \"7\"\nkind = \"dir\"");
    let given = only_path(&text);
    assert_eq!((given.rules.remove, given.rules.owner), (RemoveRule::Command, Some(7)));
    assert_eq!(given.rules.command.map(|command| command.limit), Some(Duration::from_secs(60)));
}

#[test]
fn what_has_no_path_has_commands_in_the_order_of_the_file() {
    let net = "command = [\"acme\", \"rm\", \"n-{id}\"]";
    let asked = format!("{}\npresent = [\"acme\", \"ls\", \"n-{{id}}\"]\ntimeout = \"5s\"", net.replace("rm", "del"));
    let text = format!("{}{}{}", managed(net), owned(""), managed(&asked));
    let config = load(&text).expect("good").config;
    let is_path = |owned: &OwnedConfig| matches!(owned, OwnedConfig::Path(_));
    assert_eq!(config.owned.iter().map(is_path).collect::<Vec<_>>(), [false, true, false]);
    let [plain, given] = config.managed().collect::<Vec<&ManagedConfig>>().try_into().expect("two");
    assert_eq!((plain.present.as_ref(), plain.limit), (None, Duration::from_secs(60)));
    let id = Id::parse(b"7").expect("an id");
    assert_eq!(given.command.fill_id(&id), ["acme", "del", "n-7"]);
    assert_eq!(given.present.as_ref().map(|present| present.fill_id(&id).join(" ")), Some("acme ls n-7".into()));
    assert_eq!(given.limit, Duration::from_secs(5));
    // Two paths may share a command, which is told them.
    let by = "remove = \"command\"\ncommand = [\"acme\", \"rm\", \"{path}\"]";
    assert!(load(&format!("{}{}", owned(by), owned(by).replace("such", "other"))).is_ok());
    let shared: Vec<_> = config.shared().into_iter().filter(|path| path.starts_with("/no")).collect();
    assert_eq!(shared, [Path::new("/no/such")], "it shares no directory");
}

#[test]
fn a_template_lies_in_no_entry_that_a_pass_may_remove() {
    let deeper = |rest: &str| format!("{}[[owned]]\npath = \"/no/such/_cache/{{id}}\"\n", root(rest));
    let message = load(&deeper("")).expect_err("any name is an entry");
    assert!(message.contains(":6: `owned.path`") && message.contains("inside the entry `_cache`"), "{message}");
    let message = load(&deeper("match = '^_'")).expect_err("the pattern takes it");
    assert!(message.contains("inside the entry `_cache`"), "{message}");
    assert!(load(&deeper("match = '^job-'")).is_ok(), "the pattern leaves it alone");
    assert!(load(&format!("{}{}", root(""), owned(""))).is_ok(), "a template may share its directory with a root");
    assert!(
        load(&format!("{}[[owned]]\npath = \"/no/{{id}}\"\n", root(""))).is_ok(),
        "ids are looked at when they come"
    );
}

#[test]
fn no_link_leads_to_a_template() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = directory.path().canonicalize().expect("a real path");
    std::fs::create_dir_all(base.join("real/ws")).expect("directories");
    std::os::unix::fs::symlink(base.join("real"), base.join("link")).expect("a link");
    for path in ["link/{id}", "link/ws/{id}"] {
        let message = load(&format!("[[owned]]\npath = \"{}\"\n", base.join(path).display())).expect_err(path);
        assert!(message.contains("symbolic link"), "{message}");
    }
    assert!(load(&format!("[[owned]]\npath = \"{}\"\n", base.join("real/ws/{id}").display())).is_ok());
}
