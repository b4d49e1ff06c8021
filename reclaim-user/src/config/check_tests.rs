use super::super::{ClaimsConfig, ClaimsSource, KindRule, Loaded, RemoveRule, RetainFrom, WithoutRecord, raw};
use std::path::Path;
use std::time::Duration;

fn load(text: &str) -> Result<Loaded, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("reclaim.toml");
    std::fs::write(&file, text).expect("the file");
    Loaded::read(&file).map_err(|error| error.to_string())
}

fn root(rest: &str) -> String {
    format!("[[root]]\nname = \"a\"\npath = \"/no/such/root\"\n{rest}\n")
}

fn retained(table: &str, remove: &str) -> String {
    root(&format!("remove = \"{remove}\"\nretain = \"1h\"\nretain_from = {{ {table} }}"))
}

#[test]
fn every_fault_names_line_key_and_remedy() {
    let cases: &[(String, usize, &str, &str)] = &[
        ("[service]\nevry = \"5m\"\n".into(), 2, "`service.evry`", "did you mean `every`?"),
        ("[servce]\n".into(), 1, "`servce`", "did you mean `service`?"),
        (root("zzzzzzzz = 1"), 4, "`root.zzzzzzzz`", "known here are name"),
        ("[service]\nevery = 5\n".into(), 2, "`service.every`", "\"90s\""),
        ("[service]\nevery = \"5 parsecs\"\n".into(), 2, "`service.every`", "\"90s\""),
        ("[service]\nevery = \"0s\"\n".into(), 2, "`service.every`", "give it some time"),
        ("[service]\nbudget = \"0s\"\n".into(), 2, "`service.budget`", "give it some time"),
        ("[service]\nsocket = \"run/x\"\n".into(), 2, "`service.socket`", "begin it with /"),
        ("[service]\nmetrics = \"9467\"\n".into(), 2, "`service.metrics`", "127.0.0.1:9467"),
        ("[service]\nrefuse_binds = \"yes\"\n".into(), 2, "`service.refuse_binds`", "true or false"),
        ("[service]\n\nstate_dir = 3\n".into(), 3, "`service.state_dir`", "between quotes"),
        ("service = 3\n".into(), 1, "`service`", "write [service] once"),
        ("root = 3\n".into(), 1, "`root`", "[[root]]"),
        ("[[root]]\npath = \"/a\"\n".into(), 1, "`root.name`", "name ="),
        ("[[root]]\nname = \"a\"\n".into(), 1, "`root.path`", "path ="),
        ("[[root]]\nname = \"\"\npath = \"/a\"\n".into(), 2, "`root.name`", "letters"),
        ("[[root]]\nname = \"/no/{id}\"\npath = \"/a\"\n".into(), 2, "`root.name`", "letters"),
        ("[[root]]\nname = \"a{b\"\npath = \"/a\"\n".into(), 2, "`root.name`", "letters"),
        ("[[root]]\nname = \"a\"\npath = \"a/b\"\n".into(), 3, "`root.path`", "begin it with /"),
        ("[[root]]\nname = \"a\"\npath = \"/\"\n".into(), 3, "`root.path`", "name the directory"),
        ("[[root]]\nname = \"a\"\npath = \"/tmp/../etc\"\n".into(), 3, "`root.path`", "without `..`"),
        ("[[root]]\nname = \"a\"\npath = \"/proc/self/cwd\"\n".into(), 3, "`root.path`", "name the directory itself"),
        ("[[root]]\nname = \"a\"\npath = \"/etc/passwd\"\n".into(), 3, "`root.path`", "name a directory"),
        (root("match = '^(x$'"), 4, "`root.match`", "mend it"),
        (root("match = '^(?<pdi>x)$'"), 4, "`root.match`", "`pid` or `id`"),
        (root("match = 7"), 4, "`root.match`", "between quotes"),
        (root("owner = \"no-such-user-here\""), 4, "`root.owner`", "name a user that exists"),
        (root("owner = \"99999999999\""), 4, "`root.owner`", "user ids go up to"),
        (root("owner = 1000"), 4, "`root.owner`", "between quotes"),
        (root("kind = \"socket\""), 4, "`root.kind`", "\"dir\" or \"file\" or \"any\""),
        (root("mode = 448"), 4, "`root.mode`", "\"0700\""),
        (root("mode = \"0900\""), 4, "`root.mode`", "\"0700\""),
        (root("mode = \"77777\""), 4, "`root.mode`", "\"0700\""),
        (root("min_age = 60"), 4, "`root.min_age`", "\"90s\""),
        (root("backstop = \"24h\""), 4, "`root.backstop`", "(?<pid>"),
        (root("pile = -1"), 4, "`root.pile`", "whole number"),
        (root("pile = \"many\""), 4, "`root.pile`", "whole number"),
        (root("leases = \"yes\""), 4, "`root.leases`", "true or false"),
        (root("remove = \"command\""), 4, "`root.command`", "name the program"),
        (root("once = \"yes\""), 4, "`root.once`", "true or false"),
        (root("claims = \"/x\""), 4, "`root.claims`", "claims = {"),
        (root("claims = { }"), 4, "`root.claims`", "claims = {"),
        (root("claims = { file = \"/x\", command = [\"y\"] }"), 4, "`root.claims`", "keep one"),
        (root("claims = { file = \"x\" }"), 4, "`root.claims.file`", "begin it with /"),
        (root("claims = { command = \"acme list\" }"), 4, "`root.claims.command`", "claims = {"),
        (root("claims = { command = [] }"), 4, "`root.claims.command`", "claims = {"),
        (root("claims = { command = [\"bin/acme\"] }"), 4, "`root.claims.command`", "give its whole path"),
        (root("remove = \"command\"\ncommand = [\"./acme\", \"{name}\"]"), 5, "`root.command`", "give its whole path"),
        (root("claims = { command = [\"a\", 7] }"), 4, "`root.claims.command`", "claims = {"),
        (root("claims = { file = \"/x\", timeout = \"0s\" }"), 4, "`root.claims.timeout`", "some time"),
        (root("claims = { file = \"/x\", shell = true }"), 4, "`root.claims.shell`", "known here are"),
        (root("retain_from = { file = \"m\", field = \"f\" }"), 4, "`root.retain_from`", "add retain"),
        (retained("file = \"m\", field = \"f\"", "empty"), 6, "`root.retain_from`", "remove = \"tree\""),
        (retained("file = \"a/b\", field = \"f\"", "tree"), 6, "`root.retain_from.file`", "without `/`"),
        (retained("file = \"..\", field = \"f\"", "tree"), 6, "`root.retain_from.file`", "without `/`"),
        (retained("file = \"m\"", "tree"), 6, "`root.retain_from.field`", "retain_from = {"),
        (retained("file = \"m\", field = \"f\", absent = \"go\"", "tree"), 6, "`root.retain_from.absent`", "\"birth\""),
        (root("name = \"again\""), 4, "`root.name`", "mend"),
        (root("mode = \"0700"), 4, "`root.mode`", "mend"),
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
fn every_listed_key_is_known_to_the_reader() {
    let tables = [("[service]", raw::SERVICE_KEYS), ("[[root]]", raw::ROOT_KEYS), ("[[owned]]", raw::OWNED_KEYS)];
    for (table, keys) in tables {
        for key in keys {
            let message = load(&format!("{table}\n{key} = [[]]\n")).expect_err(key);
            assert!(!message.contains("unknown key"), "{message}");
        }
    }
}

#[test]
fn roots_must_not_overlap_by_text_or_by_identity() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = directory.path().canonicalize().expect("a real path");
    std::fs::create_dir_all(base.join("one/inner")).expect("directories");
    let two = |a: &Path, b: &Path| {
        let text = format!(
            "[[root]]\nname = \"a\"\npath = \"{}\"\n[[root]]\nname = \"b\"\npath = \"{}\"\n",
            a.display(),
            b.display()
        );
        load(&text)
    };
    let one = base.join("one");
    for (a, b) in [
        (one.clone(), one.clone()),
        (one.clone(), one.join("inner")),
        (one.join("inner"), one.clone()),
        ("/no/such".into(), "/no/./such//deep".into()),
    ] {
        let message = two(&a, &b).expect_err("they overlap");
        assert!(
            message.contains(":6:") && message.contains("`root.path`") && message.contains("keep one"),
            "{message}"
        );
    }
    assert!(two(&base.join("one"), &base.join("one-more")).is_ok(), "a longer name is another directory");
    let names = load("[[root]]\nname = \"a\"\npath = \"/x1\"\n[[root]]\nname = \"a\"\npath = \"/x2\"\n");
    assert!(names.expect_err("same name").contains(":5: `root.name`"));
}

#[test]
fn a_link_on_the_way_is_refused_with_the_real_path() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = directory.path().canonicalize().expect("a real path");
    std::fs::create_dir_all(base.join("real/root")).expect("directories");
    std::os::unix::fs::symlink(base.join("real"), base.join("link")).expect("a link");
    let text = format!("[[root]]\nname = \"a\"\npath = \"{}\"\n", base.join("link/root").display());
    let message = load(&text).expect_err("goes through a link");
    assert!(message.contains("goes through the symbolic link"), "{message}");
    assert!(message.contains(&base.join("real/root").display().to_string()), "{message}");
}

#[test]
fn what_proves_nothing_by_its_name_is_asked_for_more() {
    let notes = |rules: &str| {
        load(&format!("[[root]]\nname = \"a\"\npath = \"/no/such/a\"\n{rules}")).expect("a good configuration").notes
    };
    let whole = "match = '^tmp$'\nowner = \"0\"\nmode = \"0700\"\nmin_age = \"1d\"\n";
    for (rules, key) in [("once = true\n", "once"), ("pile = 9\n", "pile")] {
        let told = notes(rules);
        let missing = "without `match`, `owner`, `mode`, `min_age`";
        assert!(told.len() == 1 && told[0].contains(&format!(":1: `root.{key}`")), "{told:?}");
        assert!(told[0].ends_with(missing), "{told:?}");
        assert!(notes(&format!("{whole}{rules}")).is_empty());
        let told = notes(&format!("{whole}{rules}kind = \"any\"\nremove = \"tree\"\n"));
        assert!(told.len() == 1 && told[0].ends_with("without kind = \"dir\", remove = \"empty\""), "{told:?}");
    }
    assert!(notes("once = false\nremove = \"tree\"\n").is_empty());
}

#[test]
fn the_documented_example_and_the_defaults() {
    let loaded = load(
        "[[root]]\nname = \"sandbox-sources\"\npath = \"/no/such/1000/\"\nowner = \"1000\"\n\
         match = '^acme_sb_(?<pid>\\d+)_[0-9a-f]{8}$'\nmode = \"0700\"\nmin_age = \"60s\"\nbackstop = \"24h\"\n\
         retain = \"72h\"\npile = 64\n[[root]]\nname = \"plain\"\npath = \"/no/such/plain\"\nowner = \"root\"\n",
    )
    .expect("a good configuration");
    assert!(loaded.notes.is_empty(), "{:?}", loaded.notes);
    assert_eq!(loaded.config.service.every, Duration::from_secs(300));
    assert_eq!(loaded.config.service.budget, Duration::from_secs(10));
    assert_eq!((loaded.config.service.metrics, loaded.config.service.refuse_binds), (None, false));
    let [sources, plain] = &loaded.config.roots[..] else { panic!("two roots") };
    assert_eq!(sources.path, Path::new("/no/such/1000"));
    assert_eq!((sources.owner, sources.mode, sources.pile), (Some(1000), Some(0o700), Some(64)));
    assert_eq!((sources.min_age, sources.backstop), (Duration::from_secs(60), Some(Duration::from_secs(86_400))));
    assert_eq!((plain.kind, plain.remove, plain.leases), (KindRule::Directory, RemoveRule::Empty, true));
    assert_eq!((plain.owner, plain.min_age, plain.backstop, plain.retain), (Some(0), Duration::ZERO, None, None));
}

#[test]
fn claims_once_and_manifests_are_read() {
    let text = retained("file = \"m.json\", field = \"begun\", deadline = \"until\", broken = \"birth\"", "tree");
    let more = "once = true\nclaims = { command = [\"acme\", \"list live\"], timeout = \"3s\" }\n";
    let loaded = load(&format!("{text}{more}")).expect("a good configuration");
    let read = &loaded.config.roots[0];
    let source = ClaimsSource::Command(vec!["acme".into(), "list live".into()]);
    assert_eq!(read.claims, Some(ClaimsConfig { source, timeout: Duration::from_secs(3) }));
    let (field, deadline) = ("begun".to_owned(), Some("until".to_owned()));
    let (absent, broken) = (WithoutRecord::Keep, WithoutRecord::Birth);
    assert_eq!(read.retain_from, Some(RetainFrom { file: c"m.json".into(), field, deadline, absent, broken }));
    assert!(read.once);
    let plain = load(&root("claims = { file = \"/run/live\" }")).expect("a good configuration");
    let claims = ClaimsConfig { source: ClaimsSource::File("/run/live".into()), timeout: Duration::from_secs(10) };
    assert_eq!(plain.config.roots[0].claims, Some(claims));
    assert!(!plain.config.roots[0].once);
}
