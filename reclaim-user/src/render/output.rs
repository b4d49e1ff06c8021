//! Where a command writes to: JSON objects one a line, or text for people.

use super::table::Table;
use serde::Serialize;
use std::io::{self, IsTerminal as _, Write};

/// Standard output in the form that was asked for.
pub struct Output {
    out: Box<dyn Write + Send>,
    json: bool,
    terminal: bool,
    color: bool,
}

/// When text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// Whether text for a stream is coloured.
    #[must_use]
    pub fn on(self, terminal: bool) -> bool {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match self {
            Self::Auto => terminal && !refused,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

impl Output {
    /// Standard output.
    #[must_use]
    pub fn standard(json: bool, color: Color) -> Self {
        let terminal = io::stdout().is_terminal();
        Self { out: Box::new(io::BufWriter::new(io::stdout())), json, terminal, color: color.on(terminal) }
    }

    /// Whether JSON was asked for.
    #[must_use]
    pub fn json(&self) -> bool {
        self.json
    }

    /// Writes one object on a line of its own; nothing when JSON was not asked for.
    ///
    /// # Errors
    /// When writing fails.
    pub fn object(&mut self, object: &impl Serialize) -> io::Result<()> {
        if self.json {
            serde_json::to_writer(&mut self.out, object)?;
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Writes one line for people; nothing when JSON was asked for.
    ///
    /// # Errors
    /// When writing fails.
    pub fn line(&mut self, line: &str) -> io::Result<()> {
        if self.json { Ok(()) } else { writeln!(self.out, "{line}") }
    }

    /// Writes a table for people; nothing when JSON was asked for.
    ///
    /// # Errors
    /// When writing fails.
    pub fn table(&mut self, table: &Table) -> io::Result<()> {
        if self.json { Ok(()) } else { table.write(&mut self.out, self.terminal, self.color) }
    }

    /// Hands on everything that was written.
    ///
    /// # Errors
    /// When writing fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
