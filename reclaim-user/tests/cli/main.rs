//! The built program: its command line, its exit codes, what it prints, and its service.

mod commands;
mod service;
mod support;
