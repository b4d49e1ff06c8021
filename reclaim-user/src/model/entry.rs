//! What became of one entry, as a pass tells it.

use super::pin::{Pin, Role, State};
use super::report::{Name, Reason, Verdict};
use serde::Serialize;

/// One entry of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "entry")]
pub struct EntryReport {
    /// Name of the root.
    pub root: String,
    /// Name of the entry.
    pub name: Name,
    /// Its exact bytes where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    /// What became of it.
    pub verdict: Verdict,
    /// Why, where it is not gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The pins that keep it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<KeepingPin>,
    /// More about the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A pin that keeps an entry. `reclaim who` tells the tasks, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeepingPin {
    /// How the mount relies on the entry.
    pub role: Role,
    /// The mount namespace; none for a mount that is in none.
    pub namespace: Option<u64>,
    /// The mount.
    pub mount_id: u64,
    /// Where it is mounted.
    pub mount_point: Option<Name>,
    /// What holds it.
    pub state: State,
}

impl From<&Pin> for KeepingPin {
    fn from(pin: &Pin) -> Self {
        let Pin { role, location: _, namespace, mount, mount_point, state, inside: _ } = pin;
        Self {
            role: *role,
            namespace: namespace.map(|namespace| namespace.0),
            mount_id: mount.0,
            mount_point: mount_point.as_ref().map(|point| Name(point.to_vec())),
            state: *state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_that_of_the_contract() {
        let mut entry = EntryReport {
            root: "r".to_owned(),
            name: Name(b"a".to_vec()),
            name_hex: None,
            verdict: Verdict::WouldRemove,
            reason: None,
            pins: Vec::new(),
            detail: None,
        };
        let json = |entry: &EntryReport| serde_json::to_string(entry).expect("json");
        assert_eq!(json(&entry), r#"{"type":"entry","root":"r","name":"a","verdict":"would-remove"}"#);
        entry.name = Name(b"\xff".to_vec());
        entry.name_hex = entry.name.hex();
        entry.verdict = Verdict::Kept;
        entry.reason = Some(Reason::PidAlive);
        let text = "{\"type\":\"entry\",\"root\":\"r\",\"name\":\"\u{fffd}\",\"name_hex\":\"ff\",\"verdict\":\"kept\",\"reason\":\"pid-alive\"}";
        assert_eq!(json(&entry), text);
    }
}
