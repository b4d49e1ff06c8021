//! What an audit tells.

use super::report::{Name, Producer};
use serde::Serialize;
use std::collections::BTreeMap;

/// A pinned entry that some producers saw and others did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "difference")]
pub struct DifferenceReport {
    /// Name of the root.
    pub root: String,
    /// The entry.
    pub entry: Name,
    /// Its exact bytes where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry_hex: Option<String>,
    /// Who saw it.
    pub seen_by: Vec<Producer>,
    /// Who did not.
    pub missed_by: Vec<Producer>,
    /// Why, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// What one producer saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProducerCounts {
    /// Namespaces read.
    pub namespaces: usize,
    /// Mounts seen.
    pub mounts: usize,
    /// Entries found pinned.
    pub pinned_entries: usize,
    /// How long it took.
    pub elapsed_ms: u64,
    /// Every task and namespace was accounted for.
    pub complete: bool,
    /// Why it does not work here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// The end of an audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "audit")]
pub struct AuditReport {
    /// Every producer that works here saw the same.
    pub agree: bool,
    /// Number of differences.
    pub differences: usize,
    /// What each of them saw.
    pub producers: BTreeMap<Producer, ProducerCounts>,
}

impl AuditReport {
    /// Producers that work here.
    #[must_use]
    pub fn working(&self) -> usize {
        self.producers.values().filter(|counts| counts.unavailable.is_none()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shapes_are_those_of_the_contract() {
        let difference = DifferenceReport {
            root: "r".to_owned(),
            entry: Name(b"a".to_vec()),
            entry_hex: None,
            seen_by: vec![Producer::Walk],
            missed_by: vec![Producer::Scan],
            cause: None,
        };
        assert_eq!(
            serde_json::to_string(&difference).expect("json"),
            r#"{"type":"difference","root":"r","entry":"a","seen_by":["walk"],"missed_by":["scan"]}"#
        );
        let counts = ProducerCounts {
            namespaces: 1,
            mounts: 2,
            pinned_entries: 3,
            elapsed_ms: 4,
            complete: true,
            unavailable: None,
        };
        let audit = AuditReport { agree: false, differences: 1, producers: BTreeMap::from([(Producer::Scan, counts)]) };
        let text = serde_json::to_string(&audit).expect("json");
        assert!(text.starts_with(r#"{"type":"audit","agree":false,"differences":1,"producers":{"scan":{"#), "{text}");
    }
}
