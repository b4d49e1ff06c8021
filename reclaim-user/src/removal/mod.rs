//! The only code that changes a disk: list, condemn, wait, confirm, remove.
//!
//! One pass over one root:
//!
//! 1. what others say of entries is heard ([`words`]): claims ([`claims`]) and keeps ([`keeps`]);
//!    leftovers of earlier passes are judged first ([`leftover`]);
//! 2. the root is listed by descriptor and every entry goes through the fences and the pins seen so far ([`list`]),
//!    where there are many, after a thread has looked at them ahead ([`ahead`]) and locked them ([`leases`]);
//! 3. what passed is *condemned*: moved into `.reclaim/BATCH/` under its own name, so that no path leads to it ([`condemn`]);
//! 4. every mount call that could have resolved its path in time is waited for, and fresh evidence is taken ([`confirm`]),
//!    which tells of many directories at once that they are what was looked at; all else is looked at once more;
//! 5. what is pinned gets its name back, the rest is removed by descriptor ([`remove`], [`tree`]), beside the listing
//!    that goes on ([`finish`]).
//!
//! Invariants: nothing is done by path but opening the root; only [`confirm`] makes the token that [`remove`] takes;
//! a crash at any step leaves condemned entries that the next pass restores or removes; every entry is in one count.

mod ahead;
mod claims;
mod command;
mod condemn;
mod confirm;
mod crash;
mod cursors;
mod elsewhere;
mod error;
mod examine;
mod finish;
pub mod hold;
mod keeps;
mod leases;
mod leftover;
mod limits;
mod list;
mod listing;
mod lock;
mod managed;
mod manifest;
mod memory;
mod options;
mod pass;
mod place;
mod process;
mod program;
mod purge;
mod remove;
mod report;
mod restore;
mod retired;
mod state_file;
mod tree;
mod troubles;
mod words;

pub use cursors::Cursors;
pub use elsewhere::lies_condemned;
pub use error::RemovalError;
pub use examine::now;
pub use keeps::{Entry as KeptEntry, KeepError, KeepStore, place as kept_place};
pub use managed::Managed;
pub use memory::Memory;
pub use options::{Cursor, EntryEvent, PassEvent, PassOptions, RootState};
pub use pass::pass;
pub use place::{locate, open_root};
pub use purge::{EntryTarget, PurgeOptions, Purged, Site, Target, entries_of, purge};
pub use retired::{marker as retired_marker, retire, retired_since};
pub use troubles::{Trouble, Troubles};

#[cfg(test)]
mod tests;
