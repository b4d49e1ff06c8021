//! The command of another manager: words with places for what it is about.

use super::id::Id;
use std::fmt;

/// What stands for the id.
const ID: &str = "{id}";

/// What may stand in a word.
const PLACEHOLDERS: [&str; 3] = [ID, "{name}", "{path}"];

/// What can be filled into a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Name and path of an entry.
    Entry,
    /// Name, path and id of an entry.
    EntryAndId,
    /// An id alone, for what has no path.
    Id,
}

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
    /// Reads a program and its arguments. `places`: what will be known.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(words: Vec<String>, places: Places) -> Result<Self, CommandFault> {
        let fault = |what: String, remedy| Err(CommandFault { what, remedy });
        let Some((program, arguments)) = words.split_first() else {
            return fault("is empty".to_owned(), "name the program and its arguments: [\"acme\", \"rm\", \"{id}\"]");
        };
        if program.is_empty() || program.contains(['{', '}']) {
            return fault("names no program".to_owned(), "the first word is the program, without braces");
        }
        if let Some(fault) = program_fault(program) {
            return Err(fault);
        }
        if words.iter().any(|word| word.contains('\0')) {
            return fault("holds a NUL".to_owned(), "no argument can hold one: take it out");
        }
        let mut found = 0;
        for word in arguments {
            for (piece, is_placeholder) in pieces(word) {
                found += usize::from(is_placeholder);
                match (piece, is_placeholder, places) {
                    (ID, true, Places::Entry) => {
                        return fault(
                            "holds {id}, but no group `id` is in `match`".to_owned(),
                            "put (?<id>...) into `match`, or use {name} or {path}",
                        );
                    }
                    (ID, true, _) | (_, true, Places::Entry | Places::EntryAndId) => {}
                    (_, true, Places::Id) => {
                        return fault(format!("holds {piece}, but there is no `path`"), "use {id}, or name the `path`");
                    }
                    (text, false, _) if !text.contains(['{', '}']) => {}
                    (_, false, _) => {
                        let remedy = match places {
                            Places::Entry | Places::EntryAndId => "use {id}, {name} or {path}",
                            Places::Id => "use {id}",
                        };
                        return fault(format!("`{word}` holds braces that mean nothing"), remedy);
                    }
                }
            }
        }
        if found == 0 {
            let remedy = match places {
                Places::Entry | Places::EntryAndId => {
                    "put {id}, {name} or {path} into an argument, so that the command knows what to remove"
                }
                Places::Id => "put {id} into an argument, so that the command knows what it is about",
            };
            return fault("does the same whatever it is about".to_owned(), remedy);
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
                    (ID, true) => filled.extend_from_slice(id.ok_or_else(|| CommandFault {
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

    /// The words of a command that was read with [`Places::Id`], filled. No id becomes an option.
    #[must_use]
    pub fn fill_id(&self, id: &Id) -> Vec<String> {
        let fill =
            |word: &String| pieces(word).map(|piece| if piece == (ID, true) { id.as_str() } else { piece.0 }).collect();
        self.words.iter().map(fill).collect()
    }

    /// The id that such a command was filled with, where filled words are this command's; none when they are not.
    #[must_use]
    pub fn tells(&self, filled: &[String]) -> Option<Id> {
        let (word, text) = self.words.iter().zip(filled).find(|(word, _)| word.contains(ID))?;
        let count = word.matches(ID).count();
        let length = text.len().checked_sub(word.len() - count * ID.len())? / count;
        let start = word.find(ID)?;
        let id = Id::parse(text.as_bytes().get(start..start + length)?).ok()?;
        (self.fill_id(&id) == filled).then_some(id)
    }

    /// The command as it is for an id alone, where the name and the path of what it is about tell the id: `name` and `path`
    /// hold `{id}`. Options are left out, for they do not tell what it is about.
    #[must_use]
    pub fn about(&self, name: &str, path: &str) -> Self {
        let fill = |word: &String| {
            let piece = |piece| match piece {
                ("{name}", true) => name,
                ("{path}", true) => path,
                (text, _) => text,
            };
            pieces(word).map(piece).collect::<String>()
        };
        let is_option = |word: &String| word.starts_with('-') && !word.contains(ID);
        Self { words: self.words.iter().map(fill).filter(|word| !is_option(word)).collect() }
    }

    /// Bytes that are no part of the id. Of several commands that fit, the one with the most tells whose it is.
    #[must_use]
    pub fn literal(&self) -> usize {
        self.words.iter().map(|word| word.len() - word.matches(ID).count() * ID.len()).sum()
    }

    /// The program and its arguments, as they are configured.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }
}

impl fmt::Display for CommandTemplate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.words.join(" "))
    }
}

/// What is wrong with the name of a program: which one a path that is not whole leads to depends on who runs it where.
#[must_use]
pub fn program_fault(program: &str) -> Option<CommandFault> {
    (program.contains('/') && !program.starts_with('/')).then(|| CommandFault {
        what: format!("`{}` is a path that does not begin with /", program.escape_debug()),
        remedy: "give its whole path, or its name alone, which is looked for in PATH",
    })
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
