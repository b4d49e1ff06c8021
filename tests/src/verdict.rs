//! Queries through the control socket.

use crate::{Connection, OrFail as _};
use serde_json::{Value, json};
use std::path::Path;

/// The request for the verdicts of paths.
#[track_caller]
#[must_use]
pub fn query_for<P: AsRef<Path>>(paths: &[P]) -> Value {
    let paths = paths.iter().map(|path| path.as_ref().to_str().or_fail("a path that is UTF-8"));
    json!({"op": "query", "paths": paths.collect::<Vec<_>>()})
}

/// The verdicts in an answer to a query, in the order of its paths.
#[track_caller]
#[must_use]
pub fn verdicts(answer: &Value) -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("verdict").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| collect(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(answer, &mut found);
    assert!(!found.is_empty(), "no verdict in {answer}");
    found
}

/// The verdict of one path.
#[track_caller]
pub fn verdict(connection: &mut Connection, path: &Path) -> String {
    verdicts(&connection.ask(&query_for(&[path]))).remove(0)
}
