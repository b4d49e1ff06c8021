//! Support for the tests of `reclaim`: private hosts, real sandboxes, and the built binary.
//!
//! A test runs in a mount namespace of its own ([`private_host`]), makes sandboxes as child processes ([`Actor`]) and
//! asks the binary that `RECLAIM_BIN` names ([`Reclaim`], [`Service`]). The names of test files tell what they need:
//! `host_` root on one machine, `race_` and `crash_` the same and more time.

mod actor;
mod background;
mod config;
mod fail;
mod hanging;
mod held;
mod helper;
mod hold;
mod host;
mod kept;
mod launcher;
mod loops;
mod namespace;
mod pages;
mod process;
mod protocol;
mod reclaim;
mod report;
mod sequence;
mod serve;
mod service;
mod share;
mod skip;
mod stand_in;
mod subject;
mod torture;
mod verdict;

pub use actor::Actor;
pub use background::{Background, Crowd, LoopCounts};
pub use config::{ConfigFile, Root};
pub use fail::OrFail;
pub use hanging::Hanging;
pub use held::Held;
pub use helper::helper_main;
pub use hold::{Hold, forge, manifest_of, manifests, wait_for_no_manifest};
pub use host::{Host, make_deep_tree, private_host, set_immutable, set_mode};
pub use kept::Kept;
pub use launcher::Way;
pub use pages::{blocks, claim_places, pages};
pub use process::{Finished, alive, helper_program, is_stopped, run_to_end, wait_until};
pub use protocol::{Answer, Request};
pub use reclaim::{Reclaim, reclaim_binary};
pub use report::{
    Covered, EntryLine, Pass, PinLine, PurgeLine, QueryLine, ReferenceLine, ScanLine, TargetLine, TaskLine, WhoLine,
};
pub use sequence::Sequence;
pub use service::{Connection, Service};
pub use share::share_of;
pub use skip::{kernel_lists_namespaces, program_on_path};
pub use stand_in::{check_then_delete, rename_whoever_holds_a_lease};
pub use subject::{Mode, Subject};
pub use torture::{Torture, TortureCounts};
pub use verdict::{query_for, verdict, verdicts};
