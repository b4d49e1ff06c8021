//! Durations as people write them: `90s`, `5m`, `1h30m`, `7d`.

use std::time::Duration;

/// What a duration that cannot be read should have looked like.
pub const REMEDY: &str =
    "write a whole number with a unit (ms, s, m, h, d, w), such as \"90s\", \"5m\", \"1h30m\" or \"7d\"";

/// Reads one duration: one or more whole numbers, each with its unit.
///
/// # Errors
/// A fragment that says what is wrong.
pub fn parse(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Err("the duration is empty".to_owned());
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, behind) = behind.split_at(letters);
        if number.is_empty() || unit.is_empty() {
            return Err(format!("`{text}` is not a duration"));
        }
        let milliseconds: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return Err(format!("`{unit}` is not a unit of time")),
        };
        let part = number.parse::<u64>().ok().and_then(|count| count.checked_mul(milliseconds));
        let sum = part.and_then(|part| total.checked_add(Duration::from_millis(part)));
        total = sum.ok_or_else(|| format!("`{text}` is too long a time"))?;
        rest = behind;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::time::Duration;

    #[test]
    fn whole_numbers_with_units_add_up() {
        for (text, seconds) in
            [("0s", 0), ("90s", 90), ("5m", 300), ("72h", 259_200), ("7d", 604_800), ("1h30m", 5_400)]
        {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "5", "m", "5 m", "-5m", "1.5h", "5y", "5m3", "99999999999999999999s", "999999999999999999w"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
