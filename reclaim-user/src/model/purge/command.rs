//! The command of another manager: words with places for what it is about.

use std::fmt;

/// What may stand in a word.
const PLACEHOLDERS: [&str; 3] = ["{id}", "{name}", "{path}"];

/// A program and its arguments. No shell ever sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandTemplate {
    words: Vec<String>,
}

/// What is wrong with a command, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandFault {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: &'static str,
}

impl fmt::Display for CommandFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}; {}", self.what, self.remedy)
    }
}

impl CommandTemplate {
    /// Reads a program and its arguments. `has_id`: an id will be known.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(words: Vec<String>, has_id: bool) -> Result<Self, CommandFault> {
        let fault = |what: String, remedy| Err(CommandFault { what, remedy });
        let Some((program, arguments)) = words.split_first() else {
            return fault("is empty".to_owned(), "name the program and its arguments: [\"acme\", \"rm\", \"{id}\"]");
        };
        if program.is_empty() || program.contains(['{', '}']) {
            return fault("names no program".to_owned(), "the first word is the program, without braces");
        }
        if words.iter().any(|word| word.contains('\0')) {
            return fault("holds a NUL".to_owned(), "no argument can hold one: take it out");
        }
        let mut found = 0;
        for word in arguments {
            for (piece, is_placeholder) in pieces(word) {
                found += usize::from(is_placeholder);
                if !is_placeholder && piece.contains(['{', '}']) {
                    return fault(format!("`{word}` holds braces that mean nothing"), "use {id}, {name} or {path}");
                }
                if piece == "{id}" && is_placeholder && !has_id {
                    return fault(
                        "holds {id}, but no group `id` is in `match`".to_owned(),
                        "put (?<id>...) into `match`, or use {name} or {path}",
                    );
                }
            }
        }
        if found == 0 {
            return fault(
                "does the same whatever it is about".to_owned(),
                "put {id}, {name} or {path} into an argument, so that the command knows what to remove",
            );
        }
        Ok(Self { words })
    }

    /// The words with the places filled, the program first. What is filled in is never looked at for places again.
    ///
    /// # Errors
    /// When the id is not known, or a name would become an option of the command.
    pub fn fill(&self, id: Option<&[u8]>, name: &[u8], path: &[u8]) -> Result<Vec<Vec<u8>>, CommandFault> {
        let fill = |word: &String| {
            let mut filled = Vec::new();
            for piece in pieces(word) {
                match piece {
                    ("{id}", true) => filled.extend_from_slice(id.ok_or_else(|| CommandFault {
                        what: "the name tells no id".to_owned(),
                        remedy: "use {name} or {path} in `command`",
                    })?),
                    ("{name}", true) => filled.extend_from_slice(name),
                    ("{path}", true) => filled.extend_from_slice(path),
                    (text, _) => filled.extend_from_slice(text.as_bytes()),
                }
            }
            if filled.starts_with(b"-") && !word.starts_with('-') {
                return Err(CommandFault {
                    what: "the command would take the name for an option".to_owned(),
                    remedy: "use {path} in `command`: it begins with `/`",
                });
            }
            Ok(filled)
        };
        self.words.iter().map(fill).collect()
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }
}

/// A word in its pieces: text, and places that are to be filled.
fn pieces(word: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = word;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let found = PLACEHOLDERS.iter().filter_map(|place| Some((rest.find(place)?, place.len()))).min();
        let (end, is_placeholder) = match found {
            Some((0, length)) => (length, true),
            Some((at, _)) => (at, false),
            None => (rest.len(), false),
        };
        let (piece, left) = rest.split_at(end);
        rest = left;
        Some((piece, is_placeholder))
    })
}
