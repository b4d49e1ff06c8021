//! shim
use crate::error::{Error, Outcome};
use crate::evidence::engine::EvidenceChoice;
use crate::render::output::Output;
use std::path::Path;
pub(super) fn run(_: Option<&Path>, _: EvidenceChoice, _: Output) -> Result<Outcome, Error> {
    Ok(Outcome::Done)
}
