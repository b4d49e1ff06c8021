//! Deciding: pure types and functions. Nothing here opens a file, reads a clock or waits.

pub mod answer;
pub mod audit;
pub mod calendar;
pub mod check;
pub mod claims;
pub mod coverage;
pub mod entry;
pub mod event;
pub mod fence;
pub mod id;
pub mod keep;
pub mod live;
pub mod mount;
pub mod mountinfo;
pub mod overlay;
pub mod pin;
pub mod pin_set;
pub mod plan;
pub mod reference;
pub mod report;
pub mod retention;
pub mod scan_report;
pub mod status;
pub mod tally;
pub mod task;
pub mod verdict;
