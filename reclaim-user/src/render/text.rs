//! Bytes that others chose, made safe for a terminal.

use crate::model::report::Name;
use std::fmt::Write as _;

/// A name for people: what is not UTF-8 and every character that could steer a terminal or turn text around is shown as
/// an escape, and so is the backslash, so that two names never look the same.
#[must_use]
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                c if c.is_control() || turns(c) => {
                    write!(text, "\\u{{{:x}}}", u32::from(c)).expect("writing to a string cannot fail");
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect("writing to a string cannot fail");
        }
    }
    text
}

/// Characters without a width that change the direction or the order of what follows.
fn turns(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A name for people.
#[must_use]
pub fn name(name: &Name) -> String {
    escape(&name.0)
}

/// A name that may be missing.
#[must_use]
pub fn name_or_dash(name: Option<&Name>) -> String {
    name.map_or_else(|| "-".to_owned(), self::name)
}

/// A number and its noun.
#[must_use]
pub fn counted(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn nothing_that_steers_a_terminal_gets_through() {
        assert_eq!(escape(b"plain \xc3\xa9"), "plain \u{e9}");
        assert_eq!(escape(b"\x1b[31mred"), "\\u{1b}[31mred");
        assert_eq!(escape(b"a\nb\tc\\d"), "a\\nb\\tc\\\\d");
        assert_eq!(escape(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(escape("\u{202e}gnp".as_bytes()), "\\u{202e}gnp");
        assert_eq!(escape("\u{9b}x".as_bytes()), "\\u{9b}x");
    }
}
