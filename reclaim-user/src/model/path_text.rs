//! Paths as JSON has them: text, or hexadecimal digits where the bytes are no text.

use super::report::Name;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// A path: text, or `{"hex": "…"}` for bytes that are not.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged, expecting = "a path is text, or bytes as {\"hex\": \"2f61ff\"}")]
pub enum PathArgument {
    /// Text.
    Text(String),
    /// Bytes in hexadecimal.
    Hex {
        /// The digits.
        hex: String,
    },
}

impl PathArgument {
    /// For these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let name = Name(bytes.to_vec());
        match name.hex() {
            Some(hex) => Self::Hex { hex },
            None => Self::Text(name.to_string()),
        }
    }

    /// The bytes that are meant.
    ///
    /// # Errors
    /// A sentence when the digits are none.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text(text) => Ok(text.clone().into_bytes()),
            Self::Hex { hex } => unhex(hex).ok_or_else(|| format!("`{hex}` is not hexadecimal")),
        }
    }

    /// The path that is meant.
    ///
    /// # Errors
    /// A sentence when it is not an absolute path.
    pub fn path(&self) -> Result<PathBuf, String> {
        let bytes = self.bytes()?;
        match bytes.as_slice() {
            [b'/', ..] if !bytes.contains(&0) => Ok(PathBuf::from(OsStr::from_bytes(&bytes))),
            _ => Err(format!("`{}` is not an absolute path", String::from_utf8_lossy(&bytes).escape_debug())),
        }
    }
}

/// Bytes from hexadecimal digits; none when they are none.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_mean_something() {
        let hex = |hex: &str| PathArgument::Hex { hex: hex.to_owned() }.path();
        assert_eq!(hex("2fff"), Ok(PathBuf::from(OsStr::from_bytes(b"/\xff"))));
        for bad in ["2f0", "zz", "2f00", "61"] {
            assert!(hex(bad).is_err(), "{bad}");
        }
        assert!(PathArgument::Text("a/b".to_owned()).path().is_err());
        assert!(PathArgument::Text(String::new()).path().is_err());
    }

    #[test]
    fn bytes_come_back_as_they_were() {
        for bytes in [&b"/a b"[..], b"/\xff\n", b""] {
            assert_eq!(PathArgument::of(bytes).bytes().as_deref(), Ok(bytes));
        }
    }
}
