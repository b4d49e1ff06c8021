use super::*;
use crate::model::report::{Name, Reason};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn id(text: &str) -> Id {
    Id::parse(text.as_bytes()).expect("an id")
}

fn template(text: &str) -> Template {
    Template::parse(text).unwrap_or_else(|fault| panic!("{text}: {fault:?}"))
}

#[test]
fn an_id_is_one_plain_component() {
    let long = "x".repeat(255);
    for good in ["a", "9f", "a b", "...", ".hidden", "ä", "a-", "{path}", "$(rm)", &long] {
        assert_eq!(Id::parse(good.as_bytes()).map(|id| id.to_string()), Ok(good.to_owned()));
    }
    let longer = "x".repeat(256);
    for (bad, fault) in [
        (&b""[..], IdFault::Empty),
        (b".", IdFault::Dots),
        (b"..", IdFault::Dots),
        (b"a/b", IdFault::Separator),
        (b"/", IdFault::Separator),
        (b"../a", IdFault::Separator),
        (b"a\0", IdFault::Zero),
        (b"-rf", IdFault::Dash),
        (b"a\nb", IdFault::Control),
        (b"\x1b[m", IdFault::Control),
        (b"\xff", IdFault::NotText),
        (longer.as_bytes(), IdFault::TooLong),
    ] {
        assert_eq!(Id::parse(bad).map_err(|error| error.fault), Err(fault), "{bad:?}");
    }
}

#[test]
fn a_template_has_the_id_once_and_in_its_last_component() {
    for (text, parent) in [("/srv/ws/{id}", "/srv/ws"), ("/srv/./ws//x-{id}.d/", "/srv/ws"), ("/a/.{id}", "/a")] {
        assert_eq!(template(text).parent(), Path::new(parent), "{text}");
    }
    let long = format!("/srv/{}{{id}}", "x".repeat(255));
    for (bad, part) in [
        ("srv/{id}", "not absolute"),
        ("/srv/../{id}", "`..`"),
        ("/srv/ws", "no {id}"),
        ("/srv/{id}/{id}", "more than once"),
        ("/srv/{id}-{id}", "more than once"),
        ("/srv/{id}/data", "before its last component"),
        ("/srv/{pid}/{id}", "braces"),
        ("/srv/{{id}}", "braces"),
        ("/{id}", "directly in `/`"),
        ("/srv/.reclaim/{id}", "for itself"),
        ("/srv/.reclaim/x/{id}", "for itself"),
        ("/srv/.reclaim-{id}", "for itself"),
        ("/srv/\0{id}", "NUL"),
        (&long, "no room"),
    ] {
        let fault = Template::parse(bad).expect_err(bad);
        assert!(fault.what.contains(part), "{bad}: {fault:?}");
    }
}

#[test]
fn an_id_never_names_what_ids_share() {
    let shared: Vec<PathBuf> = ["/srv/ws", "/srv/ws/_cache", "/srv/deep/er/root"].map(PathBuf::from).into();
    let expand = |text: &str, name: &str| template(text).expand(&id(name), &shared);
    assert_eq!(expand("/srv/ws/{id}", "a"), Ok("a".to_owned()));
    assert_eq!(expand("/srv/ws/_cache/{id}", "_cache"), Ok("_cache".to_owned()), "its own, in the shared one");
    assert_eq!(expand("/srv/ws/{id}", "_cach"), Ok("_cach".to_owned()), "a prefix is another name");
    for (text, name) in [("/srv/ws/{id}", "_cache"), ("/srv/{id}", "ws"), ("/srv/{id}", "deep"), ("/srv/w{id}", "s")] {
        assert!(matches!(expand(text, name), Err(ExpandError::Shared { .. })), "{text} of {name}");
    }
    assert!(matches!(expand("/srv/ws/{id}", ".reclaim"), Err(ExpandError::Reserved { .. })));
    assert!(matches!(expand("/srv/ws/.{id}", "reclaim"), Err(ExpandError::Reserved { .. })));
    assert!(matches!(expand("/srv/ws/{id}", ".reclaim-x"), Err(ExpandError::Reserved { .. })));
    assert_eq!(expand("/srv/ws/{id}", ".reclaimed"), Ok(".reclaimed".to_owned()));
    let long = "x".repeat(252);
    assert!(matches!(expand("/srv/ws/{id}.tmp", &long), Err(ExpandError::TooLong { length: 256, .. })));
    assert!(expand("/srv/ws/{id}.d", &long).is_ok());
}

#[test]
fn a_command_is_filled_once_and_no_name_becomes_an_option() {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let command =
        CommandTemplate::parse(words(&["acme", "rm", "--at={path}", "{id}", "{name}{id}"]), Places::EntryAndId)
            .expect("good");
    let filled = command.fill(Some(b"{path}"), b"n{id}", b"/p").expect("filled");
    let filled: Vec<_> = filled.iter().map(|word| String::from_utf8_lossy(word)).collect();
    assert_eq!(filled, ["acme", "rm", "--at=/p", "{path}", "n{id}{path}"]);
    let by_name = CommandTemplate::parse(words(&["acme", "{name}"]), Places::Entry).expect("good");
    assert!(by_name.fill(None, b"-rf", b"/p/-rf").is_err());
    assert!(by_name.fill(None, b"rf", b"/p/rf").is_ok());
    assert!(command.fill(None, b"n", b"/p").is_err(), "an id that is not known");
    for (bad, places) in [
        (&[][..], Places::EntryAndId),
        (&[""], Places::EntryAndId),
        (&["{id}"], Places::EntryAndId),
        (&["acme"], Places::EntryAndId),
        (&["acme", "rm"], Places::EntryAndId),
        (&["acme", "{pid}"], Places::EntryAndId),
        (&["acme", "{{id}}"], Places::EntryAndId),
        (&["acme", "{id}\0"], Places::EntryAndId),
        (&["acme", "{id}"], Places::Entry),
        (&["acme", "rm"], Places::Id),
        (&["acme", "{id}", "{path}"], Places::Id),
        (&["acme", "{name}{id}"], Places::Id),
        (&["acme", "{id}", "{pid}"], Places::Id),
    ] {
        assert!(CommandTemplate::parse(words(bad), places).is_err(), "{bad:?}");
    }
}

#[test]
fn a_command_without_a_path_is_of_the_id_that_it_was_filled_with() {
    let command = |words: &[&str]| {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        CommandTemplate::parse(words, Places::Id).expect("good")
    };
    let (net, data) = (command(&["acme", "rm", "n-{id}"]), command(&["acme", "rm", "n-{id}-data"]));
    let filled = net.fill_id(&id("a-data"));
    assert_eq!(filled, ["acme", "rm", "n-a-data"]);
    assert_eq!(net.fill_id(&id("{id}$(x) y"))[2], "n-{id}$(x) y", "filled once, and one word");
    let told = |command: &CommandTemplate, filled: &[String]| command.tells(filled).map(|id| id.to_string());
    assert_eq!((told(&net, &filled), told(&data, &filled)), (Some("a-data".to_owned()), Some("a".to_owned())));
    assert!(data.literal() > net.literal());
    let twice = command(&["acme", "{id}/{id}", "--of={id}"]);
    assert_eq!(told(&twice, &twice.fill_id(&id("abc"))), Some("abc".to_owned()));
    for other in
        [&["acme", "ab/ac", "--of=ab"][..], &["acme", "a/a"], &["acme", "a/a", "--of=b"], &["other", "a/a", "--of=a"]]
    {
        let other: Vec<String> = other.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(told(&twice, &other), None, "{other:?}");
    }
}

#[test]
fn the_report_has_the_shape_of_the_contract_and_counts() {
    let target = |path: &[u8], verdict| {
        let path = Name(path.to_vec());
        TargetReport {
            name: TargetName::Path { path_hex: path.hex(), path },
            verdict,
            reason: (verdict == TargetVerdict::Refused).then_some(Reason::Leased),
            pins: Vec::new(),
            detail: None,
            weaker_proof: false,
        }
    };
    let verdicts = [TargetVerdict::Kept, TargetVerdict::Refused, TargetVerdict::Absent];
    let report = PurgeReport::of(&id("a"), verdicts.map(|verdict| target(b"/x", verdict)).into(), false);
    let text = r#"{"type":"purge","id":"a","targets":[{"path":"/x","verdict":"kept"},{"path":"/x","verdict":"refused","reason":"leased"},{"path":"/x","verdict":"absent"}],"removed":0,"absent":1,"refused":1,"failed":0,"dry_run":false}"#;
    assert_eq!(serde_json::to_string(&report).expect("json"), text);
    let odd = serde_json::to_value(target(b"/\xff", TargetVerdict::WouldRemove)).expect("json");
    assert_eq!((odd["path_hex"].as_str(), odd["verdict"].as_str()), (Some("2fff"), Some("would-remove")));
    let name = TargetName::Command { command: ["acme", "rm", "n-a"].map(str::to_owned).to_vec() };
    let removed = TargetReport { name, weaker_proof: true, ..target(b"/x", TargetVerdict::Removed) };
    let text = r#"{"command":["acme","rm","n-a"],"verdict":"removed","weaker_proof":true}"#;
    assert_eq!(serde_json::to_string(&removed).expect("json"), text);
}

proptest! {
    #[test]
    fn whatever_is_accepted_lies_one_component_below_the_parent(
        id in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'-'), Just(0), any::<u8>()], 0..8),
        prefix in "[.a/-]{0,3}",
        suffix in "[.b-]{0,3}",
    ) {
        let Ok(id) = Id::parse(&id) else { return Ok(()) };
        let Ok(template) = Template::parse(&format!("/srv/ws/{prefix}{{id}}{suffix}")) else { return Ok(()) };
        let shared = [template.parent().to_owned()];
        let Ok(name) = template.expand(&id, &shared) else { return Ok(()) };
        let path = template.parent().join(&name);
        prop_assert_eq!(path.parent(), Some(template.parent()));
        prop_assert_eq!(path.file_name().and_then(|name| name.to_str()), Some(name.as_str()));
        prop_assert_eq!(path.components().count(), template.parent().components().count() + 1);
        prop_assert!(name.len() <= 255 && !name.contains(['/', '\0']) && name.contains(id.as_str()));
        prop_assert_ne!(name.as_bytes(), b".reclaim");
    }

    #[test]
    fn no_bytes_break_the_readers(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let _either = Id::parse(&bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let _either = Template::parse(&text);
        let _either = Template::parse(&format!("/srv/{text}{{id}}"));
        let _either = CommandTemplate::parse(vec!["acme".to_owned(), text.clone()], Places::EntryAndId);
        if let Ok(command) = CommandTemplate::parse(vec!["acme".to_owned(), format!("{text}{{id}}")], Places::Id) {
            let _either = command.tells(&["acme".to_owned(), text]);
        }
    }
}

#[test]
fn a_name_is_of_the_id_that_the_closest_template_tells() {
    let all = ["/ws/{id}", "/ws/{id}-data", "/ws/{id}.lock", "/ws/job-{id}"].map(template);
    let of = |own: usize, text: &str| {
        let name = all[own].expand(&id(text), &[]).expect("a name");
        told_otherwise(&name, &id(text), Some(&all[own]), &all).map(|(_, told)| told.to_string())
    };
    assert_eq!((of(0, "a"), of(1, "a"), of(2, "a"), of(3, "a")), (None, None, None, None));
    assert_eq!(of(0, "a-data"), Some("a".to_owned()));
    assert_eq!(of(0, "a.lock"), Some("a".to_owned()));
    assert_eq!(of(0, "job-a"), Some("a".to_owned()));
    assert_eq!(of(1, "job-a"), None, "the longer suffix says more of the name");
    assert_eq!(of(3, "a-data"), Some("job-a".to_owned()));
    // What a root's pattern found was made by no template.
    assert_eq!(told_otherwise("x.lock", &id("x.lock"), None, &all).map(|(_, told)| told.to_string()), Some("x".into()));
    assert!(told_otherwise("x", &id("y"), None, &all).is_none(), "what fits every name tells nothing");
}
