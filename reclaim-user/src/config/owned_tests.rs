use super::super::{KindRule, Loaded, RemoveRule};
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

fn root(rest: &str) -> String {
    format!("[[root]]\nname = \"a\"\npath = \"/no/such\"\n{rest}\n")
}

#[test]
fn every_fault_names_line_key_and_remedy() {
    let path = |path: &str| format!("[[owned]]\npath = '{path}'\n");
    let by = |rest: &str| owned(&format!("remove = \"command\"\n{rest}"));
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
        (by("command = [\"acme\", \"rm\"]"), 4, "`owned.command`", "put {id}, {name} or {path}"),
        (by("command = [\"acme\", \"{pid}\"]"), 4, "`owned.command`", "use {id}, {name} or {path}"),
        (by("command = [\"acme\", \"{id}\"]\ntimeout = \"0s\""), 5, "`owned.timeout`", "give it some time"),
        (
            root("remove = \"command\"\ncommand = [\"acme\", \"{id}\"]"),
            5,
            "`root.command`",
            "put (?<id>...) into `match`",
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
    let plain = load(&owned("")).expect("good").config.owned.remove(0);
    assert_eq!((plain.rules.path.as_path(), plain.rules.kind), (Path::new("/no/such"), KindRule::Any));
    assert_eq!((plain.rules.remove, plain.rules.leases, plain.rules.owner), (RemoveRule::Tree, true, None));
    assert!(plain.rules.command.is_none());
    let text = owned("remove = \"command\"\ncommand = [\"acme\", \"rm\", \"{id}\"]\nowner = \"7\"\nkind = \"dir\"");
    let given = load(&text).expect("good").config.owned.remove(0);
    assert_eq!((given.rules.remove, given.rules.owner), (RemoveRule::Command, Some(7)));
    assert_eq!(given.rules.command.map(|command| command.limit), Some(Duration::from_secs(60)));
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
