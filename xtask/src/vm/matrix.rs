//! What each kernel gives, as `reclaim check` found it in its machine: a table in the README that a run writes, and
//! every later run compares with what it found.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::machine::Machine;
use crate::command::workspace;

/// The lines of the README that the table lies between.
const BEGIN: &str = "<!-- matrix: written by `cargo xtask vm --write-matrix` -->";
const END: &str = "<!-- end of matrix -->";

/// The rows of one kernel, in the order of `reclaim check`.
type Column = Vec<(String, String)>;

/// Writes the table into the README. Columns of kernels that were not run stay as they are.
///
/// # Errors
/// A machine said something that is no report, or the README cannot be written.
pub(super) fn write(machines: &[Machine]) -> Result<()> {
    let path = workspace().join("README.md");
    let text = fs::read_to_string(&path).context("cannot read the README")?;
    let (before, written, after) = parts(&text)?;
    let columns = renewed(all_columns(written), columns(machines)?);
    fs::write(&path, format!("{before}{BEGIN}\n{}{END}{after}", table(&columns))).context("cannot write the README")
}

/// Compares what was found with the table. Kernels that it does not name are left alone.
///
/// # Errors
/// As [`write`]; or a kernel gives something else than the table says.
pub(super) fn compare(machines: &[Machine]) -> Result<()> {
    let text = fs::read_to_string(workspace().join("README.md")).context("cannot read the README")?;
    let (_, written, _) = parts(&text)?;
    let mut differences = Vec::new();
    for (kernel, found) in columns(machines)? {
        let Some(told) = column_of(written, &kernel) else { continue };
        for (row, cell) in &found {
            if told.get(row.as_str()) != Some(&cell.as_str()) {
                let told = told.get(row.as_str()).unwrap_or(&"(no such row)");
                differences.push(format!("{kernel}: {row}: {cell}, and the table says {told}"));
            }
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    bail!(
        "the table of kernels in the README is out of date ({}): run `cargo xtask vm --write-matrix`",
        differences.join("; ")
    )
}

/// What comes before the table, the table, and what comes after.
fn parts(text: &str) -> Result<(&str, &str, &str)> {
    let missing = || format!("the README has no place for the table of kernels: {BEGIN} and {END}");
    let (before, rest) = text.split_once(BEGIN).with_context(missing)?;
    let (table, after) = rest.split_once(END).with_context(missing)?;
    Ok((before, table.trim_start(), after))
}

fn columns(machines: &[Machine]) -> Result<Vec<(String, Column)>> {
    machines.iter().map(|machine| Ok((machine.name.clone(), column(&machine.check)?))).collect()
}

/// The rows that the objects of `reclaim check --json` make.
fn column(check: &[String]) -> Result<Column> {
    let mut rows = Column::new();
    let mut rungs = BTreeMap::<String, Vec<String>>::new();
    for line in check {
        let object: Value = serde_json::from_str(line).with_context(|| format!("no report: {line}"))?;
        let text = |key: &str| object[key].as_str().unwrap_or("?").to_owned();
        match object["type"].as_str() {
            Some("feature") => rows.push((text("name"), text("answer").replace('-', " "))),
            Some("probe") if text("state") == "attached" => rungs.entry(text("rung")).or_default().push(text("hook")),
            Some("check") => {
                rows.push(("mount clock".to_owned(), if object["clock"] == true { "yes" } else { "no" }.to_owned()));
                rows.push(("evidence in use".to_owned(), text("evidence")));
            }
            _ => {}
        }
    }
    let rungs: Vec<String> = rungs.iter().map(|(rung, hooks)| format!("{} by {rung}", hooks.len())).collect();
    rows.push(("hooks".to_owned(), rungs.join(", ")));
    Ok(rows)
}

/// The table in Markdown. A row that a kernel did not speak of is a dash there.
fn table(columns: &[(String, Column)]) -> String {
    let mut rows: Vec<&str> = Vec::new();
    for (row, _) in columns.iter().flat_map(|(_, column)| column) {
        if !rows.contains(&row.as_str()) {
            rows.push(row);
        }
    }
    let mut text = String::from("| |");
    for (kernel, _) in columns {
        let _ = write!(text, " {kernel} |");
    }
    let _ = writeln!(text, "\n|{}", " --- |".repeat(columns.len() + 1));
    for row in rows {
        let _ = write!(text, "| {row} |");
        for (_, column) in columns {
            let cell = column.iter().find(|(name, _)| name == row).map_or("-", |(_, cell)| cell);
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text
}

/// What was there, with what was found in its place, and what is found of other kernels behind it.
fn renewed(mut columns: Vec<(String, Column)>, found: Vec<(String, Column)>) -> Vec<(String, Column)> {
    for (kernel, column) in found {
        match columns.iter_mut().find(|(name, _)| *name == kernel) {
            Some((_, earlier)) => *earlier = column,
            None => columns.push((kernel, column)),
        }
    }
    columns
}

/// Every column of a table.
fn all_columns(table: &str) -> Vec<(String, Column)> {
    let cells = |line: &str| line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let mut lines = table.lines().map(cells);
    let names: Vec<String> = lines.next().unwrap_or_default();
    // After the line that parts names from cells.
    let rows: Vec<Vec<String>> = lines.skip(1).collect();
    let kernels = names.iter().enumerate().skip(1);
    let column = |at: usize| {
        let cells = rows.iter().filter_map(|row| Some((row.first()?.clone(), row.get(at)?.clone())));
        // What the kernel did not speak of is no row of its own.
        cells.filter(|(_, cell)| cell != "-").collect()
    };
    kernels.map(|(at, name)| (name.clone(), column(at))).collect()
}

/// One kernel's column of a table, by row; None where the table has none of that name.
fn column_of<'table>(table: &'table str, kernel: &str) -> Option<BTreeMap<&'table str, &'table str>> {
    let mut lines = table.lines().map(|line| line.trim().trim_matches('|').split('|').map(str::trim));
    let index = lines.next()?.position(|name| name == kernel)?;
    let rows = lines.skip(1).filter_map(|mut line| {
        let row = line.next()?;
        Some((row, line.nth(index - 1)?))
    });
    Some(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_back() -> Result<()> {
        let check = [
            r#"{"type":"feature","name":"walk","answer":"yes"}"#,
            r#"{"type":"feature","name":"list","answer":"could-not-tell","why":"?"}"#,
            r#"{"type":"probe","hook":"mount","rung":"fentry","state":"attached"}"#,
            r#"{"type":"probe","hook":"setns","rung":"fentry","state":"refused"}"#,
            r#"{"type":"check","clock":true,"evidence":"live"}"#,
        ];
        let column = column(&check.map(str::to_owned))?;
        let text = table(&[("6.1".to_owned(), Column::new()), ("6.12".to_owned(), column.clone())]);
        let read = column_of(&text, "6.12").context("a column")?;
        assert_eq!(read.len(), column.len());
        for (row, cell) in &column {
            assert_eq!(read.get(row.as_str()), Some(&cell.as_str()), "{text}");
        }
        assert_eq!(read["list"], "could not tell");
        assert_eq!(read["hooks"], "1 by fentry");
        assert_eq!(column_of(&text, "6.1").context("a column")?["walk"], "-");
        assert!(column_of(&text, "6").is_none());
        Ok(())
    }

    #[test]
    fn what_was_not_run_keeps_its_column() {
        let column = |cell: &str| vec![("walk".to_owned(), cell.to_owned())];
        let of = |kernels: &[(&str, &str)]| -> Vec<(String, Column)> {
            kernels.iter().map(|(kernel, cell)| ((*kernel).to_owned(), column(cell))).collect()
        };
        let written = table(&of(&[("6.1", "yes"), ("6.12", "no")]));
        let renewed = renewed(all_columns(&written), of(&[("6.12", "yes"), ("/boot/vmlinuz", "no")]));
        assert_eq!(renewed, of(&[("6.1", "yes"), ("6.12", "yes"), ("/boot/vmlinuz", "no")]));
        assert_eq!(all_columns(&table(&renewed)), renewed);
        assert_eq!(all_columns(""), []);
    }
}
