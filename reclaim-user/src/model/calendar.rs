//! Times of the calendar as text: RFC 3339, which JSON manifests and reports use.

use super::fence::Timestamp;
use std::time::Duration;

const SECONDS_A_DAY: i64 = 86_400;

/// A time as RFC 3339 in UTC, whole seconds, as `2026-03-01T12:00:00Z`. Fractions are cut off.
#[must_use]
pub fn written(time: Timestamp) -> String {
    let seconds = i64::try_from(time.0.div_euclid(1_000_000_000)).unwrap_or(i64::MAX);
    let (days, rest) = (seconds.div_euclid(SECONDS_A_DAY), seconds.rem_euclid(SECONDS_A_DAY));
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Reads RFC 3339: date, `T` or a space, time with an optional fraction, and `Z` or an offset. None when it is anything
/// else, a time without an offset among it, for that could be hours off.
#[must_use]
pub fn read(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let number = |from: usize, digits: usize| {
        let part = bytes.get(from..from + digits)?;
        part.iter().try_fold(0_i64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
    };
    let is = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|byte| wanted.contains(byte));
    let separated = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    // A leap second is told as 60.
    if !separated || !(1..=days_of(year, month)?).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut at = 19;
    let mut nanoseconds = 0;
    if is(at, b".") {
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        let kept = digits.min(9);
        nanoseconds = number(at + 1, kept)? * 10_i64.pow(u32::try_from(9 - kept).ok()?);
        at += 1 + digits;
    }
    let offset = match bytes.get(at..)? {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let (hours, minutes) = (number(at + 1, 2)?, number(at + 4, 2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 3600 + minutes * 60) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let seconds = days_since_1970(year, month, day) * SECONDS_A_DAY + hour * 3600 + minute * 60 + second - offset;
    Some(Timestamp::of(seconds, u32::try_from(nanoseconds).ok()?))
}

/// A time and some more; one that is too late for the type is as late as it can be.
#[must_use]
pub fn after(time: Timestamp, more: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(i128::try_from(more.as_nanos()).unwrap_or(i128::MAX)))
}

fn is_leap(year: i64) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

fn days_of(year: i64, month: i64) -> Option<i64> {
    Some(match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(is_leap(year)),
        _ => return None,
    })
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years are counted from March, so that the day that comes
/// every four years is their last, and in eras of 400 years, which all have the same number of days.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date that lies so many days after 1970-01-01.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * shifted + 2) / 5 + 1, (shifted + 2) % 12 + 1);
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_as_they_are_meant() {
        for (text, seconds, nanoseconds) in [
            ("1970-01-01T00:00:00Z", 0, 0),
            ("2000-02-29T00:00:00Z", 951_782_400, 0),
            ("2026-03-01T12:00:00+02:00", 1_772_359_200, 0),
            ("2026-03-01 10:00:00.25-00:00", 1_772_359_200, 250_000_000),
            ("2026-03-01t10:00:00.1234567891z", 1_772_359_200, 123_456_789),
            ("1969-12-31T23:59:59Z", -1, 0),
        ] {
            assert_eq!(read(text), Some(Timestamp::of(seconds, nanoseconds)), "{text}");
        }
    }

    #[test]
    fn what_could_mean_another_time_is_not_read() {
        for text in [
            "",
            "now",
            "2026-03-01",
            "2026-03-01T10:00:00",
            "2026-13-01T10:00:00Z",
            "2026-02-29T10:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T10:60:00Z",
            "2026-03-01T10:00:00.Z",
            "2026-03-01T10:00:00+2",
            "2026-03-01T10:00:00Z ",
            "+026-03-01T10:00:00Z",
            "2026/03/01T10:00:00Z",
            "2026-03-01T10:00:00+25:00",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(seconds in -62_135_596_800_i64..253_402_300_799) {
            let time = Timestamp::of(seconds, 0);
            prop_assert_eq!(read(&written(time)), Some(time));
        }

        #[test]
        fn no_text_breaks_the_reader(text in "\\PC{0,40}") {
            let _either = read(&text);
        }
    }
}
