//! From reports to text: tables, plain columns, JSON. Nothing here decides anything.

pub mod output;
pub mod pass;
pub mod progress;
pub mod purge;
pub mod table;
pub mod text;
pub mod who;
