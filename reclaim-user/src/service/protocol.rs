//! The control socket's language: one JSON request a line, one JSON answer a line.

pub use crate::model::path_text::PathArgument;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest request.
pub const LONGEST: usize = 1 << 20;

/// Who is at the other end of a connection, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User id.
    pub uid: u32,
}

impl Peer {
    /// Whether the peer may do everything.
    #[must_use]
    pub fn is_root(self) -> bool {
        self.uid == 0
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// The decision on each path.
    Query {
        /// The paths.
        paths: Vec<PathArgument>,
    },
    /// Who pins each path.
    Who {
        /// The paths.
        paths: Vec<PathArgument>,
    },
    /// The pins on the entries of all roots, or of one.
    Pins {
        /// Name of the root.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root: Option<String>,
    },
    /// Keep an entry for some time.
    Keep {
        /// The entry.
        path: PathArgument,
        /// For how long, as durations are written in the configuration.
        #[serde(rename = "for")]
        time: String,
    },
    /// End the keep of an entry.
    Unkeep {
        /// The entry.
        path: PathArgument,
    },
    /// What is kept: everything for root, else the peer's own.
    Keeps {},
    /// The service itself.
    Status {},
    /// One pass.
    Sweep {
        /// Names of the roots; all when empty.
        #[serde(default)]
        roots: Vec<String>,
        /// Change nothing.
        #[serde(default)]
        dry_run: bool,
        /// Answer with one object for each entry, too.
        #[serde(default)]
        entries: bool,
    },
    /// Removal of what holders that have ended left in the peer's store; of every user's for root.
    Settle {},
    /// Removal of all that belongs to an id.
    Purge {
        /// The id.
        id: String,
        /// Change nothing.
        #[serde(default)]
        dry_run: bool,
        /// What belongs to ids by the configuration of who asks, as [`Config::belongs`](crate::config::Config::belongs) has
        /// it. None from who has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        belongs: Option<Vec<String>>,
    },
}

impl Request {
    /// Whether it has to wait for its turn among the passes.
    #[must_use]
    pub fn is_work(&self) -> bool {
        matches!(self, Self::Sweep { .. } | Self::Settle {} | Self::Purge { .. })
    }
}

/// Reads one request.
///
/// # Errors
/// A sentence for the peer.
pub fn parse(line: &[u8]) -> Result<Request, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("the request is not JSON: {error}"))?;
    let Some(op) = value.get("op").and_then(Value::as_str).map(str::to_owned) else {
        return Err("the request is not an object with the text `op`".to_owned());
    };
    serde_json::from_value(value).map_err(|error| format!("the request `{}` is wrong: {error}", op.escape_debug()))
}

/// What a service says to whoever it can do nothing for any more.
pub const ENDING: &str = "the service is ending";

/// An answer that says what went wrong.
#[must_use]
pub fn error(message: &str) -> String {
    serde_json::json!({ "error": message }).to_string()
}

/// An answer with one object for each thing asked for.
///
/// # Panics
/// Never: the reports hold only what JSON can hold.
#[must_use]
pub fn results(results: &[Value]) -> String {
    serde_json::json!({ "results": results }).to_string()
}

/// What stands in an answer for a path of which nothing can be said.
#[must_use]
pub fn path_error(path: &PathArgument, message: &str) -> Value {
    serde_json::json!({ "type": "error", "path": path, "error": message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_read_and_written_the_same() {
        for line in [
            r#"{"op":"query","paths":["/a",{"hex":"2fff"}]}"#,
            r#"{"op":"who","paths":[]}"#,
            r#"{"op":"pins"}"#,
            r#"{"op":"keep","path":"/a","for":"7d"}"#,
            r#"{"op":"unkeep","path":{"hex":"2fff"}}"#,
            r#"{"op":"keeps"}"#,
            r#"{"op":"status"}"#,
            r#"{"op":"sweep","roots":["x"],"dry_run":true,"entries":false}"#,
            r#"{"op":"settle"}"#,
            r#"{"op":"purge","id":"x","dry_run":true}"#,
            r#"{"op":"purge","id":"x","dry_run":false,"belongs":["a","b"]}"#,
        ] {
            let request = parse(line.as_bytes()).expect(line);
            let written = serde_json::to_string(&request).expect("json");
            assert_eq!(parse(written.as_bytes()), Ok(request));
        }
        assert_eq!(parse(br#"{"op":"sweep"}"#), Ok(Request::Sweep { roots: vec![], dry_run: false, entries: false }));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, part) in [
            (&b"garbage"[..], "not JSON"),
            (b"", "not JSON"),
            (b"[1]", "`op`"),
            (b"{\"op\":1}", "`op`"),
            (b"{\"op\":\"fly\"}", "`fly`"),
            (b"{\"op\":\"query\"}", "paths"),
            (b"{\"op\":\"query\",\"paths\":[],\"x\":1}", "x"),
            (b"{\"op\":\"purge\"}", "id"),
            (b"\xff\xfe", "not JSON"),
        ] {
            let message = parse(line).expect_err("must be refused");
            assert!(message.contains(part), "{message}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _either = parse(&line);
        }
    }
}
