//! The id that a purge is told.

use std::fmt;

/// Longest name of a file in bytes (`NAME_MAX` in the kernel's include/uapi/linux/limits.h).
pub(super) const NAME_MAX: usize = 255;

/// An id: text that is one plain component of a path and that no command takes for an option.
///
/// Invariant: 1 to 255 bytes, neither `.` nor `..`, without `/`, zero bytes and control characters, not begun by `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Id(String);

impl Id {
    /// Checks an id.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(id: &[u8]) -> Result<Self, IdError> {
        let wrong = |fault| IdError { id: String::from_utf8_lossy(id).escape_debug().to_string(), fault };
        let text = std::str::from_utf8(id).map_err(|_| wrong(IdFault::NotText))?;
        let fault = match text {
            "" => Some(IdFault::Empty),
            "." | ".." => Some(IdFault::Dots),
            _ if text.len() > NAME_MAX => Some(IdFault::TooLong),
            _ if text.contains('/') => Some(IdFault::Separator),
            _ if text.contains('\0') => Some(IdFault::Zero),
            _ if text.starts_with('-') => Some(IdFault::Dash),
            _ if text.chars().any(char::is_control) => Some(IdFault::Control),
            _ => None,
        };
        fault.map_or_else(|| Ok(Self(text.to_owned())), |fault| Err(wrong(fault)))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// An id that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{id}` is no id: {fault}; give the id alone, as it stands in the names of what belongs to it")]
pub struct IdError {
    /// The id, safe for a terminal.
    pub id: String,
    /// What is wrong.
    pub fault: IdFault,
}

/// What is wrong with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdFault {
    /// It is not UTF-8.
    #[error("it is not UTF-8")]
    NotText,
    /// There is nothing.
    #[error("it is empty")]
    Empty,
    /// `.` or `..`.
    #[error("it stands for a directory itself or for the one above")]
    Dots,
    /// No file can have the name.
    #[error("it is longer than {NAME_MAX} bytes, which no name of a file is")]
    TooLong,
    /// It is more than one component.
    #[error("it holds `/`, and must be one component of a path")]
    Separator,
    /// A zero byte.
    #[error("it holds a zero byte")]
    Zero,
    /// A command would take it for an option.
    #[error("it begins with `-`, which a command would take for an option")]
    Dash,
    /// Line breaks and the like.
    #[error("it holds a control character")]
    Control,
}
