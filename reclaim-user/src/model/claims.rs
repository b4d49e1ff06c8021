//! Claims: what a program or a file says is live, one id a line.
//!
//! An answer is whole or it is worth nothing: a list that was cut short would give away what it does not name.

use regex::bytes::Regex;
use std::collections::HashSet;

/// Longest answer, in bytes.
pub const LONGEST: usize = 16 << 20;

/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What is known of the claims of a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Claims {
    /// The root has none.
    #[default]
    Unasked,
    /// These ids are live.
    Known(HashSet<Box<[u8]>>),
    /// They could not be read, so everything is claimed. Why, for people.
    Unknown(String),
}

impl Claims {
    /// Reads an answer. Ids are bytes. An id is taken as it stands and without white space around it, so that neither a
    /// carriage return nor an indent gives a live entry away.
    #[must_use]
    pub fn of(answer: &[u8]) -> Self {
        if answer.len() > LONGEST {
            return Self::Unknown(format!("the answer is longer than {LONGEST} bytes"));
        }
        if answer.last().is_some_and(|last| *last != b'\n') {
            return Self::Unknown("the answer was cut short: its last line has no end".to_owned());
        }
        // No name holds one, and text of two bytes a character does.
        if answer.contains(&0) {
            return Self::Unknown("the answer holds a zero byte, and an id is one line of plain bytes".to_owned());
        }
        if answer.starts_with(BYTE_ORDER_MARK) {
            let what = "the answer begins with a byte order mark, which would be taken for a part of the first id";
            return Self::Unknown(what.to_owned());
        }
        let lines = answer.split(|byte| *byte == b'\n');
        let ids = lines.flat_map(|line| [line, line.trim_ascii()]).filter(|id| !id.is_empty());
        Self::Known(ids.map(Into::into).collect())
    }

    /// Reads the text of a file. Unlike a program, which says by its exit code that it is through, a file of no bytes may be
    /// one that somebody was about to write.
    #[must_use]
    pub fn of_file(text: &[u8]) -> Self {
        match text {
            [] => Self::Unknown(
                "it is empty, as after a write that was cut short; an empty line says that nothing is live".into(),
            ),
            text => Self::of(text),
        }
    }

    /// The claims fence: whether an entry with this id is claimed.
    #[must_use]
    pub fn holds(&self, id: &[u8]) -> bool {
        match self {
            Self::Unasked => false,
            Self::Known(ids) => ids.contains(id),
            Self::Unknown(_) => true,
        }
    }

    /// Why they are not known; none when they are.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        match self {
            Self::Unknown(why) => Some(why),
            Self::Unasked | Self::Known(_) => None,
        }
    }
}

/// The id of an entry: the group `id` of its name where the pattern has one that takes part, else the whole name.
#[must_use]
pub fn id<'n>(pattern: Option<&Regex>, name: &'n [u8]) -> &'n [u8] {
    let pattern = pattern.filter(|pattern| pattern.capture_names().flatten().any(|group| group == "id"));
    let group = pattern.and_then(|pattern| pattern.captures(name)?.name("id"));
    group.map_or(name, |group| group.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_lines_of_bytes() {
        let claims = Claims::of(b"a\n\nb\xff\r\n  c \n");
        for id in [&b"a"[..], b"b\xff", b"b\xff\r", b"c", b"  c "] {
            assert!(claims.holds(id), "{id:?}");
        }
        for id in [&b""[..], b"b", b"A", b"a\n"] {
            assert!(!claims.holds(id), "{id:?}");
        }
        assert!(!Claims::of(b"").holds(b"a"), "nothing is live");
        assert!(Claims::of_file(b"").holds(b"a") && !Claims::of_file(b"\n").holds(b"a"), "a file says so by a line");
    }

    #[test]
    fn what_was_cut_short_claims_everything() {
        let too_long = [vec![b'a'; LONGEST], vec![b'\n']].concat();
        let utf_16 = b"\xff\xfea\0\n\0\n".to_vec();
        for answer in [b"a\nb".to_vec(), b"a".to_vec(), too_long, utf_16, b"\xef\xbb\xbfa\n".to_vec()] {
            let claims = Claims::of(&answer);
            assert!(claims.fault().is_some() && claims.holds(b"anything"));
        }
        assert!(Claims::of(&[vec![b'a'; LONGEST - 1], vec![b'\n']].concat()).fault().is_none());
    }

    #[test]
    fn the_id_is_the_group_or_the_name() {
        let pattern = Regex::new("^sb-(?<id>[a-z]+)?(?:-[0-9]+)?$").unwrap();
        assert_eq!(id(Some(&pattern), b"sb-abc-1"), b"abc");
        assert_eq!(id(Some(&pattern), b"sb--1"), b"sb--1");
        assert_eq!(id(Some(&Regex::new("^sb").unwrap()), b"sb-abc"), b"sb-abc");
        assert_eq!(id(None, b"sb"), b"sb");
    }
}
