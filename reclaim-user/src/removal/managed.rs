//! What another manager owns and no path leads to: its commands alone tell whether it is there, and remove it.
//!
//! Nothing can be proved of it, and nothing is condemned: weaker than all that has a path.

use super::program::{Ended, run};
use std::time::Duration;

/// Something without a path, as its manager is told of it. No shell sees the words.
#[derive(Clone, Debug)]
pub struct Managed {
    /// The program that removes it, and its arguments.
    pub command: Vec<String>,
    /// The program that tells whether it is there: exit code 0 if it is, 1 if it is not. None when that is not asked.
    pub present: Option<Vec<String>>,
    /// Either is killed after this time.
    pub limit: Duration,
}

/// Whether something is there, as far as its manager tells.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is, or is not asked about.
    There,
    /// It is not.
    Absent,
    /// It cannot be told, for this reason.
    Unknown(String),
}

impl Managed {
    /// Asks the manager whether it is there.
    pub(super) fn presence(&self, go_on: &mut dyn FnMut() -> bool) -> Presence {
        let Some(words) = &self.present else { return Presence::There };
        match run(words, self.limit, go_on) {
            Err(why) => Presence::Unknown(why),
            Ok(ended) => match ended.code() {
                Some(0) => Presence::There,
                Some(1) => Presence::Absent,
                _ => Presence::Unknown(ended.well().err().unwrap_or_default()),
            },
        }
    }

    /// Has the manager remove it, and asks whether it is gone.
    ///
    /// # Errors
    /// When it is not, or that cannot be told. A sentence for people.
    pub(super) fn remove(&self, go_on: &mut dyn FnMut() -> bool) -> Result<(), String> {
        let ended = run(&self.command, self.limit, go_on).and_then(Ended::well);
        if self.present.is_none() {
            return ended;
        }
        match (self.presence(go_on), ended) {
            (Presence::Absent, Ok(())) => Ok(()),
            (Presence::Absent, Err(fault)) => {
                tracing::warn!("what `{}` is about is gone, and yet {fault}", self.command.join(" ").escape_debug());
                Ok(())
            }
            (Presence::There, Ok(())) => Err(format!("`{}` ended well, and it is still there", self.program())),
            (Presence::There, Err(fault)) => Err(fault),
            (Presence::Unknown(why), Ok(())) => {
                Err(format!("`{}` ended well, and whether it is gone cannot be told: {why}", self.program()))
            }
            (Presence::Unknown(why), Err(fault)) => Err(format!("{fault}; whether it is gone cannot be told: {why}")),
        }
    }

    fn program(&self) -> &str {
        self.command.first().map_or("", String::as_str)
    }
}
