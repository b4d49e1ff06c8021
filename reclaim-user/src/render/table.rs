//! Rows of text: a table with a head on a terminal, columns between tabs in a pipe.

use std::io::{self, Write};

/// Rows under a head.
#[derive(Clone, Debug)]
pub struct Table {
    head: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(head: &'static [&'static str]) -> Self {
        Self { head, rows: Vec::new() }
    }

    /// Adds a row. A row has as many cells as the head.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.head.len(), "a row has as many cells as the head");
        self.rows.push(cells.into());
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes the rows. Nothing at all when there are none.
    ///
    /// # Errors
    /// When writing fails.
    pub fn write(&self, out: &mut dyn Write, terminal: bool, color: bool) -> io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        if !terminal {
            for row in &self.rows {
                writeln!(out, "{}", row.join("\t"))?;
            }
            return Ok(());
        }
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([self.head[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let head: Vec<String> = self.head.iter().map(|cell| (*cell).to_owned()).collect();
        let (bold, plain) = if color { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        writeln!(out, "{bold}{}{plain}", line(&head, &widths))?;
        for row in &self.rows {
            writeln!(out, "{}", line(row, &widths))?;
        }
        Ok(())
    }
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let padded: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
    padded.join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn a_terminal_gets_a_head_and_a_pipe_gets_tabs() {
        let mut table = Table::new(&["NAME", "N"]);
        table.row(["long name".to_owned(), "1".to_owned()]);
        let text = |terminal, color| {
            let mut out = Vec::new();
            table.write(&mut out, terminal, color).expect("writes to memory");
            String::from_utf8(out).expect("text")
        };
        assert_eq!(text(true, false), "NAME       N\nlong name  1\n");
        assert_eq!(text(false, false), "long name\t1\n");
        assert!(text(true, true).starts_with("\x1b[1mNAME"));
    }
}
