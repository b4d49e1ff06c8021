//! What a pass did, for a reader who has not seen the project before: groups, and each pinned entry by itself.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::service::Pass;

/// Pinned entries that were shown, so that a later pass shows only what is different.
#[derive(Default)]
pub(super) struct Teller {
    passes: u32,
    shown: BTreeSet<String>,
}

impl Teller {
    /// Prints one pass.
    pub(super) fn pass(&mut self, pass: &Pass) {
        self.passes += 1;
        let summary = &pass.summary;
        println!(
            "\nPass {}: {} looked at in {} ms, on evidence of the {}{}",
            self.passes,
            entries(count(summary, "listed")),
            count(summary, "elapsed_ms"),
            evidence(summary),
            claim(summary),
        );
        let removed = names(pass, |entry| entry["verdict"] == "removed");
        if let Some(first) = removed.first() {
            let example = if removed.len() == 1 { String::new() } else { ", such as".to_owned() };
            println!("  gone   {:>6}{example} {first}", grouped(count(summary, "removed")));
        } else {
            println!("  gone        0");
        }
        for (what, key) in [("given back", "restored"), ("still condemned", "condemned")] {
            if count(summary, key) > 0 {
                println!("  {} {what}", entries(count(summary, key)));
            }
        }
        let kept: BTreeMap<&str, u64> = summary["kept"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(reason, number)| (reason.as_str(), number.as_u64().unwrap_or(0)))
            .collect();
        for (reason, number) in &kept {
            println!("  stays  {:>6}  {reason}: {}", grouped(*number), why(reason));
            if *reason == "pinned" {
                self.pinned(pass);
            }
        }
    }

    /// Each pinned entry, the first time it is seen.
    fn pinned(&mut self, pass: &Pass) {
        let mut before = 0_u64;
        for entry in pass.entries.iter().filter(|entry| entry["reason"] == "pinned") {
            let name = text(&entry["name"]);
            if !self.shown.insert(name.clone()) {
                before += 1;
                continue;
            }
            println!("                 {name}");
            for pin in entry["pins"].as_array().into_iter().flatten() {
                println!("                   {}", describe(pin));
            }
        }
        if before > 0 {
            println!("                 {} as shown before", grouped(before));
        }
    }
}

/// One pin in words.
fn describe(pin: &Value) -> String {
    let below = if pin["where"] == "below" { "something below it" } else { "it" };
    let relation = match pin["role"].as_str() {
        Some("source") => format!("{below} is mounted"),
        Some("layer") => format!("an overlay uses {below}"),
        Some("target") => format!("something is mounted on {below}"),
        _ => format!("{} on {below}", text(&pin["role"])),
    };
    let place = match pin["mount_point"].as_str() {
        Some(point) if pin["role"] != "target" => format!(" at {point}"),
        _ => String::new(),
    };
    let namespace = match pin["namespace"].as_u64() {
        Some(namespace) => format!(", namespace {namespace}"),
        None => ", in no namespace".to_owned(),
    };
    let tasks: Vec<String> = pin["tasks"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|task| format!("{} {}", text(&task["comm"]), text(&task["pid"])))
        .collect();
    let tasks = if tasks.is_empty() { String::new() } else { format!(", by {}", tasks.join(", ")) };
    format!("{relation}{place}{namespace}{tasks}")
}

/// What a reason means.
fn why(reason: &str) -> &'static str {
    match reason {
        "pinned" => "a mount in the kernel relies on it",
        "young" => "younger than min_age, its launcher may be about to mount it",
        "pid-alive" => "the process that its name tells is alive",
        "owner" => "it belongs to another user than the configured one",
        "kind" => "no directory",
        "mode" => "not the mode that the launcher gives",
        "name" => "not named as the launcher names",
        "leased" => "somebody holds a lock on it",
        "keep-until" => "its owner asked to keep it",
        "claimed" => "its launcher says that it is in use",
        "pile" => "too few to act on",
        "not-empty" => "somebody's files are in it",
        "no-evidence" => "too little of the host was seen to be sure",
        "retained" => "inside its retention window",
        "failed" => "a call on it failed",
        _ => "see the contract for this reason",
    }
}

/// Who took the evidence.
fn evidence(summary: &Value) -> String {
    match summary["evidence"].as_str() {
        Some("live") => "live set, which the probes in the kernel feed".to_owned(),
        Some("walk") => "walk over the kernel's own list of mounts".to_owned(),
        Some("scan") => "scan of the mount namespaces in /proc".to_owned(),
        _ => text(&summary["evidence"]),
    }
}

/// How much the evidence claims to have seen.
fn claim(summary: &Value) -> String {
    let gaps: Vec<String> =
        summary["gaps"].as_object().into_iter().flatten().map(|(cause, number)| format!("{cause} {number}")).collect();
    let gaps = if gaps.is_empty() { String::new() } else { format!(" (gaps: {})", gaps.join(", ")) };
    let seen = match (summary["complete"].as_bool(), summary["covered"].as_bool()) {
        (Some(true), _) => "every task and namespace of the host was seen",
        (_, Some(true)) => "every task that could hold an entry of this owner was seen",
        _ => "not enough of the host was seen",
    };
    format!("; {seen}{gaps}")
}

fn names(pass: &Pass, wanted: impl Fn(&Value) -> bool) -> Vec<String> {
    pass.entries.iter().filter(|entry| wanted(entry)).map(|entry| text(&entry["name"])).collect()
}

/// A number in the summary; 0 where it is missing, which the check of the sums then tells.
pub(super) fn count(summary: &Value, key: &str) -> u64 {
    summary[key].as_u64().unwrap_or(0)
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn entries(number: u64) -> String {
    if number == 1 { "1 entry".to_owned() } else { format!("{} entries", grouped(number)) }
}

/// A number with its thousands set apart: 2,000.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_pin_is_told_with_its_place_and_its_tasks() {
        let pin = serde_json::json!({"role": "source", "where": "exact", "namespace": 4_026_532_000_u64,
            "mount_id": 7, "mount_point": "/work", "state": "attached", "tasks": [{"pid": 12, "comm": "sandbox"}]});
        assert_eq!(describe(&pin), "it is mounted at /work, namespace 4026532000, by sandbox 12");
    }
}
