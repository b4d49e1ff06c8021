//! Purging by id: what an id may be, which targets it stands for, and what became of them. Text in, text out: whether a
//! target exists, and whether it may go, is asked elsewhere.

mod command;
mod id;
mod report;
mod template;

pub use command::{CommandFault, CommandTemplate, Places, program_fault};
pub use id::{Id, IdError, IdFault};
pub use report::{PurgeReport, TargetName, TargetReport, TargetVerdict};
pub use template::{ExpandError, Template, TemplateFault, shared_by, told_otherwise};

#[cfg(test)]
mod tests;
