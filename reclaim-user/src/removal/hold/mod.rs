//! Placeholders of holds: made, recorded before they exist, and looked at once their holders have ended.
//!
//! 1. a store is opened and locked ([`Store`]), so that holders of one user agree on who names what;
//! 2. the pipe that tells whether the holder lives is made and locked, and the manifest written ([`Alive`]);
//! 3. each placeholder gets its name, unless something has it already ([`make`]). The user's own file stays what it is;
//!    one that another hold made is named by this manifest, too;
//! 4. when a holder has ended, what no living manifest names is found ([`left`]), and removed as a purge removes things.
//!
//! Invariant: there is no moment at which a placeholder exists and no manifest names it.

mod error;
mod left;
mod make;
mod rights;
mod source;
mod store;

pub use error::HoldError;
pub use left::{Leavings, Remains, boot, left};
pub use make::{Wanted, make};
pub use source::lease;
pub use store::{Alive, Seen, Store, StoreStatus, Stores};
