//! A pass and its entries as lines of text. They are rendered from their JSON form, for a running service hands them over
//! in no other.

use super::text;
use crate::error::{Error, chain};
use crate::model::pin::Role;
use crate::model::report::{PassSummary, Producer, Reason};
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;

/// One line on a pass, an entry, or anything else that a sweep tells of.
#[must_use]
pub fn line(report: &impl Serialize) -> String {
    let object = serde_json::to_value(report).unwrap_or_default();
    match string(&object, "type") {
        "pass" => summary(&object),
        "entry" => entry(&object),
        "left-off" => {
            format!("{} more entries of {} are not told", number(&object, "entries"), string(&object, "root"))
        }
        _ => text::escape(object.to_string().as_bytes()),
    }
}

fn summary(pass: &Value) -> String {
    if let Some(since) = pass.get("retired_since").and_then(Value::as_str) {
        return format!("{}: retired since {}, not looked at", name(pass, "root"), text::escape(since.as_bytes()));
    }
    let dry_run = flag(pass, "dry_run");
    let mut parts = vec![text::counted(number(pass, "listed"), "entry", "entries")];
    parts.push(match dry_run {
        true => format!("{} would go", number(pass, "candidates")),
        false => format!("{} removed", number(pass, "removed")),
    });
    let kept = counts(pass, "kept");
    let all: u64 = kept.iter().map(|(_, count)| count).sum();
    parts.push(if all == 0 { "0 kept".to_owned() } else { format!("{all} kept ({})", list(&kept)) });
    for (key, words) in [("restored", "of them restored"), ("condemned", "condemned until a later pass")] {
        if number(pass, key) > 0 {
            parts.push(format!("{} {words}", number(pass, key)));
        }
    }
    let claim = match (flag(pass, "complete"), flag(pass, "covered")) {
        (true, _) => "complete",
        (false, true) => "covered for the owner",
        (false, false) => "neither complete nor covered for the owner",
    };
    let gaps = counts(pass, "gaps");
    let gaps = if gaps.is_empty() { String::new() } else { format!(", gaps: {}", list(&gaps)) };
    parts.push(format!("evidence: {}, {claim}{gaps}", string(pass, "evidence")));
    for (key, words) in [("claims_fault", "claims cannot be read"), ("keeps_fault", "keeps cannot be read")] {
        if !string(pass, key).is_empty() {
            let since = string(pass, "claims_unread_since");
            let since = if key == "claims_fault" { format!(" since {since}") } else { String::new() };
            parts.push(format!("{words}{since}: {}", name(pass, key)));
        }
    }
    if flag(pass, "truncated") {
        let why = if flag(pass, "cut") { "cut short for a request" } else { "budget used up" };
        parts.push(format!("{why}, the next pass goes on from here"));
    }
    let elapsed = match number(pass, "elapsed_ms") {
        0 => "under 1 ms".to_owned(),
        elapsed => format!("{:.1?}", Duration::from_millis(elapsed)),
    };
    format!("{}: {} [{elapsed}]", name(pass, "root"), parts.join("; "))
}

fn entry(entry: &Value) -> String {
    let name = match entry.get("name_hex").and_then(Value::as_str).and_then(unhex) {
        Some(bytes) => text::escape(&bytes),
        None => name(entry, "name"),
    };
    let mut line = format!("{:<12} {}/{name}", string(entry, "verdict"), self::name(entry, "root"));
    if let Some(reason) = entry.get("reason").and_then(Value::as_str) {
        line.push_str(&format!("  {reason}"));
    }
    let pins = entry.get("pins").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let shown: Vec<String> = pins.iter().take(3).map(pin).collect();
    if !shown.is_empty() {
        let more = pins.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        line.push_str(&format!(": {}{more}", shown.join(", ")));
    }
    if let Some(detail) = entry.get("detail").and_then(Value::as_str) {
        line.push_str(&format!(" ({})", text::escape(detail.as_bytes())));
    }
    line
}

pub(super) fn pin(pin: &Value) -> String {
    let role = string(pin, "role");
    let point = pin.get("mount_point").and_then(Value::as_str);
    let point = point.map_or_else(|| "an unreachable mount point".to_owned(), |point| text::escape(point.as_bytes()));
    match (pin.get("namespace").and_then(Value::as_u64), string(pin, "state")) {
        (Some(namespace), _) => format!("{role} of {point} in namespace {namespace}"),
        (None, "unmounted") => format!("{role} of a mount that was unmounted while busy"),
        (None, _) => format!("{role} of a mount in no namespace"),
    }
}

pub(super) fn string<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn name(object: &Value, key: &str) -> String {
    text::escape(string(object, key).as_bytes())
}

pub(super) fn number(object: &Value, key: &str) -> u64 {
    object.get(key).and_then(Value::as_u64).unwrap_or_default()
}

fn flag(object: &Value, key: &str) -> bool {
    object.get(key).and_then(Value::as_bool).unwrap_or_default()
}

fn counts<'a>(object: &'a Value, key: &str) -> Vec<(&'a str, u64)> {
    let map = object.get(key).and_then(Value::as_object).into_iter().flatten();
    map.map(|(name, count)| (name.as_str(), count.as_u64().unwrap_or_default())).collect()
}

fn list(counts: &[(&str, u64)]) -> String {
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    parts.join(", ")
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

/// A role as people say it.
#[must_use]
pub fn role(role: Role) -> &'static str {
    match role {
        Role::Source => "source",
        Role::Layer => "layer",
        Role::Target => "target",
    }
}

/// A producer as reports call it.
#[must_use]
pub fn producer(producer: Producer) -> &'static str {
    match producer {
        Producer::Live => "live",
        Producer::Walk => "walk",
        Producer::Scan => "scan",
    }
}

/// What a pass holds back for want of knowledge, and why; none when nothing is. Claims and keeps that cannot be read are
/// told by the pass itself.
#[must_use]
pub fn held_back(pass: &PassSummary) -> Option<String> {
    let held = *pass.kept.get(&Reason::NoEvidence)?;
    let gaps: Vec<(&str, u64)> = pass.gaps.iter().map(|(cause, count)| (*cause, *count)).collect();
    let why =
        if gaps.is_empty() { "no fresh evidence could be taken".to_owned() } else { format!("gaps: {}", list(&gaps)) };
    let entries = text::counted(held, "entry is", "entries are");
    Some(format!("{}: {entries} held back, for the evidence is too weak: {why}", text::escape(pass.root.as_bytes())))
}

/// What a pass that failed holds back.
#[must_use]
pub fn nothing_went(root: &str, error: &Error) -> String {
    let root = text::escape(root.as_bytes());
    format!("{root}: the pass failed, so whatever it had not come to is held back until one succeeds: {}", chain(error))
}

/// Whether a pass kept entries for want of evidence.
#[must_use]
pub fn is_weak(pass: &PassSummary) -> bool {
    pass.kept.get(&Reason::NoEvidence).is_some_and(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pass_says_its_counts_and_its_claim() {
        let pass = json!({"type": "pass", "root": "r", "evidence": "walk", "complete": false, "covered": true,
            "gaps": {"task-unreadable": 2}, "listed": 12, "candidates": 9, "kept": {"pinned": 2, "young": 1},
            "removed": 9, "restored": 1, "condemned": 0, "truncated": false, "dry_run": false, "elapsed_ms": 1500});
        assert_eq!(
            line(&pass),
            "r: 12 entries; 9 removed; 3 kept (pinned 2, young 1); 1 of them restored; \
             evidence: walk, covered for the owner, gaps: task-unreadable 2 [1.5s]"
        );
    }

    #[test]
    fn an_entry_says_its_reason_and_its_pins() {
        let entry = json!({"type": "entry", "root": "r", "name": "a\u{1b}", "verdict": "kept", "reason": "pinned",
            "pins": [{"role": "source", "namespace": 7, "mount_id": 1, "mount_point": "/m", "state": "attached"}]});
        assert_eq!(line(&entry), "kept         r/a\\u{1b}  pinned: source of /m in namespace 7");
        let hex = json!({"type": "entry", "root": "r", "name": "\u{fffd}", "name_hex": "ff", "verdict": "removed"});
        assert_eq!(line(&hex), "removed      r/\\xff");
    }
}
