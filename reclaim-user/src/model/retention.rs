//! Retention: until when an entry is to be there, by its birth or by what a manifest in it says.

use super::calendar;
use super::fence::Timestamp;
use super::windows::Windows;
use crate::config::{RetainFrom, WithoutRecord};
use serde_json::Value;
use std::time::Duration;

/// Longest manifest, in bytes.
pub const LONGEST_MANIFEST: usize = 64 << 10;

/// What was learnt from an entry's manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// No manifest is asked about.
    Unasked,
    /// It says when the entry began, and perhaps until when it was to be there when it was taken in.
    Told {
        /// When it began.
        begun: Timestamp,
        /// The deadline that was recorded then.
        deadline: Option<Timestamp>,
    },
    /// There is none.
    Absent,
    /// It makes no sense: not JSON, not a regular file, too long, or a field that is no time.
    Broken,
    /// It could not be read at the moment.
    Unread,
}

/// Whether an entry is past its retention.
///
/// The deadline is the earlier one of what was recorded when the entry was taken in and of what the window in force says:
/// a shorter window applies to all that is there, and a longer one does not give back what was to go. Where the manifest
/// records no deadline, the window that was in force then does. A window of 0 lets everything pass but what cannot be read at
/// the moment. What is not known is retained. (A keep-until is judged before, and overrules all of this.)
#[must_use]
pub fn is_over(
    window: Option<Duration>,
    from: Option<&RetainFrom>,
    windows: &Windows,
    birth: Option<Timestamp>,
    record: Record,
    now: Timestamp,
) -> bool {
    let Some(window) = window else { return true };
    if window.is_zero() {
        // Whatever it says, but it has to be known that it says something: it is read again before the entry is removed.
        return record != Record::Unread;
    }
    let without = |rule: WithoutRecord| match rule {
        WithoutRecord::Birth => birth.map(|birth| (birth, None)),
        WithoutRecord::Keep => None,
    };
    let start = match (from, record) {
        (None, _) => birth.map(|birth| (birth, None)),
        (Some(_), Record::Told { begun, deadline }) => Some((begun, deadline)),
        (Some(from), Record::Absent) => without(from.absent),
        (Some(from), Record::Broken) => without(from.broken),
        (Some(_), Record::Unread | Record::Unasked) => None,
    };
    start.is_some_and(|(begun, recorded)| {
        let by_window = calendar::after(begun, window);
        // What is used again was taken in when it began anew, not when its directory was made.
        let taken_in = || Some(calendar::after(begun, windows.at(birth?.max(begun))?));
        recorded.or_else(taken_in).map_or(by_window, |recorded| recorded.min(by_window)) <= now
    })
}

/// Reads the text of a manifest: a JSON object with the configured fields, each RFC 3339 text or seconds since 1970.
///
/// A recorded deadline may be missing or null; the begin may not.
#[must_use]
pub fn read(text: &[u8], from: &RetainFrom) -> Record {
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(text) else { return Record::Broken };
    let Some(begun) = fields.get(&from.field).and_then(time) else { return Record::Broken };
    match from.deadline.as_ref().and_then(|field| fields.get(field)) {
        None | Some(Value::Null) => Record::Told { begun, deadline: None },
        Some(value) => match time(value) {
            Some(deadline) => Record::Told { begun, deadline: Some(deadline) },
            None => Record::Broken,
        },
    }
}

fn time(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => calendar::read(text),
        Value::Number(number) => match number.as_i64() {
            Some(seconds) => Some(Timestamp::of(seconds, 0)),
            None => {
                let seconds = number.as_f64().filter(|seconds| seconds.abs() < 1e12)?;
                #[expect(clippy::cast_possible_truncation, reason = "bounded just above, far inside the type")]
                let nanoseconds = (seconds * 1e9) as i128;
                Some(Timestamp(nanoseconds))
            }
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn from(absent: WithoutRecord, broken: WithoutRecord) -> RetainFrom {
        let file = c"manifest.json".into();
        RetainFrom { file, field: "created_at".into(), deadline: Some("expires_at".into()), absent, broken }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::of(seconds, 0)
    }

    #[test]
    fn the_earlier_deadline_counts() {
        let rules = from(WithoutRecord::Keep, WithoutRecord::Keep);
        let over = |window, deadline: Option<i64>, now| {
            let record = Record::Told { begun: at(0), deadline: deadline.map(at) };
            is_over(Some(window), Some(&rules), &Windows::default(), None, record, at(now))
        };
        assert!(!over(HOUR, None, 3599) && over(HOUR, None, 3600));
        assert!(over(HOUR, Some(1800), 1800), "a longer window does not give back what was to go");
        assert!(over(HOUR / 4, Some(1800), 900), "a shorter one applies");
        assert!(!over(HOUR, Some(1800), 1799));
        assert!(over(Duration::ZERO, Some(1800), 0), "a window of 0 lets everything pass");
        assert!(!over(HOUR, None, -5), "it begins later");
    }

    #[test]
    fn the_window_that_an_entry_was_taken_in_under_counts_where_nothing_else_is_recorded() {
        let rules = from(WithoutRecord::Keep, WithoutRecord::Keep);
        let mut windows = Windows::default();
        windows.note(Some(HOUR), at(10));
        windows.note(Some(HOUR * 3), at(20));
        let over = |from, record, birth, now| is_over(Some(HOUR * 2), from, &windows, Some(at(birth)), record, at(now));
        assert!(over(None, Record::Unasked, 0, 3600) && !over(None, Record::Unasked, 0, 3599));
        assert!(
            !over(None, Record::Unasked, 15, 7214) && over(None, Record::Unasked, 15, 7215),
            "a shorter one applies"
        );
        let told = |deadline: Option<i64>| Record::Told { begun: at(5), deadline: deadline.map(at) };
        assert!(over(Some(&rules), told(None), 0, 3605) && !over(Some(&rules), told(None), 0, 3604));
        assert!(!over(Some(&rules), told(Some(5000)), 0, 4999), "the manifest records another");
        let again = Record::Told { begun: at(15), deadline: None };
        assert!(!over(Some(&rules), again, 0, 7214), "a directory that is used again is taken in again");
    }

    #[test]
    fn what_is_not_known_is_retained_unless_its_rule_says_otherwise() {
        use WithoutRecord::{Birth, Keep};
        let over = |absent, broken, record, birth| {
            is_over(Some(HOUR), Some(&from(absent, broken)), &Windows::default(), birth, record, at(7200))
        };
        let old = Some(at(0));
        assert!(over(Birth, Keep, Record::Absent, old) && !over(Keep, Birth, Record::Absent, old));
        assert!(over(Keep, Birth, Record::Broken, old) && !over(Birth, Keep, Record::Broken, old));
        assert!(!over(Birth, Birth, Record::Absent, None));
        for record in [Record::Unread, Record::Unasked] {
            assert!(!over(Birth, Birth, record, old), "{record:?}");
        }
        assert!(!is_over(Some(HOUR), None, &Windows::default(), None, Record::Unasked, at(7200)));
        assert!(is_over(Some(HOUR), None, &Windows::default(), old, Record::Unasked, at(7200)));
        assert!(is_over(None, None, &Windows::default(), None, Record::Unasked, at(0)));
    }

    #[test]
    fn a_window_of_nothing_holds_only_what_cannot_be_read_now() {
        use WithoutRecord::{Birth, Keep};
        let told = Record::Told { begun: at(9_000), deadline: Some(at(9_000)) };
        for rule in [Birth, Keep] {
            let over = |record| {
                is_over(Some(Duration::ZERO), Some(&from(rule, rule)), &Windows::default(), None, record, at(0))
            };
            assert!([told, Record::Absent, Record::Broken].into_iter().all(over) && !over(Record::Unread), "{rule:?}");
        }
        assert!(is_over(Some(Duration::ZERO), None, &Windows::default(), None, Record::Unasked, at(0)));
    }

    #[test]
    fn a_manifest_is_read_or_broken() {
        let rules = from(WithoutRecord::Keep, WithoutRecord::Keep);
        let read = |text: &str| read(text.as_bytes(), &rules);
        let told = |begun, deadline: Option<i64>| Record::Told { begun: at(begun), deadline: deadline.map(at) };
        assert_eq!(read(r#"{"created_at":"1970-01-01T00:01:00Z","x":[]}"#), told(60, None));
        assert_eq!(read(r#"{"created_at":60,"expires_at":90}"#), told(60, Some(90)));
        assert_eq!(read(r#"{"created_at":60.0,"expires_at":null}"#), told(60, None));
        for broken in [
            "",
            "{",
            "[]",
            "7",
            "{}",
            r#"{"created_at":null}"#,
            r#"{"created_at":"yesterday"}"#,
            r#"{"created_at":60,"expires_at":"soon"}"#,
            r#"{"created_at":1e300}"#,
            "{\"created_at\":60}x",
        ] {
            assert_eq!(read(broken), Record::Broken, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn a_shorter_window_never_holds_longer(
            begun in 0_i64..10_000, recorded in proptest::option::of(0_i64..10_000), now in 0_i64..20_000,
            (short, more) in (1_u64..5_000, 0_u64..5_000),
        ) {
            let rules = from(WithoutRecord::Keep, WithoutRecord::Keep);
            let record = Record::Told { begun: at(begun), deadline: recorded.map(at) };
            let over = |window| is_over(Some(Duration::from_secs(window)), Some(&rules), &Windows::default(), None, record, at(now));
            prop_assert!(over(short) || !over(short + more));
            prop_assert!(recorded.is_none_or(|recorded| recorded > now) || over(short + more));
        }

        #[test]
        fn no_bytes_break_the_reader(text in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _any = read(&text, &from(WithoutRecord::Keep, WithoutRecord::Keep));
        }
    }
}
