//! `reclaim run`: the service, in the foreground.

use super::context::{Context, warn_of_capabilities};
use crate::error::{Error, Outcome};
use crate::service::{self, ServiceOptions};
use crate::sys::heap;

pub(super) fn run(context: Context) -> Result<Outcome, Error> {
    heap::keep_little();
    context.need_anything()?;
    warn_of_capabilities();
    let Context { command: _, loaded, evidence, verbose, output } = context;
    service::run(ServiceOptions { loaded, evidence, per_entry: verbose > 0, output })?;
    Ok(Outcome::Done)
}
