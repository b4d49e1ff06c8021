//! `reclaim status`: the running service.

use super::context::Context;
use crate::error::{Error, Outcome};
use crate::render::{pass, text};
use crate::service::client::Client;
use crate::service::protocol::Request;
use serde_json::Value;

pub(super) fn run(context: &mut Context) -> Result<Outcome, Error> {
    let status = Client::connect(&context.loaded.config.service.socket)?.ask(&Request::Status {})?;
    context.output.object(&status)?;
    let number = |key: &str| status.get(key).and_then(Value::as_u64);
    let shown = |key: &str| number(key).map_or_else(|| "-".to_owned(), |value| value.to_string());
    let seconds = |key: &str| number(key).map_or_else(|| "-".to_owned(), |value| format!("{}s", value / 1000));
    let evidence = status.get("evidence").and_then(Value::as_str).unwrap_or("-");
    let yes = |key: &str| if status.get(key).and_then(Value::as_bool) == Some(true) { "yes" } else { "no" };
    let lines = [
        format!("process      {}, up {}", shown("pid"), seconds("uptime_ms")),
        format!(
            "evidence     {evidence}, complete {}, mount clock {}, {} ms old",
            yes("complete"),
            yes("clock"),
            shown("age_ms")
        ),
        format!("known        {} namespaces, {} mounts", shown("namespaces"), shown("mounts")),
        format!(
            "events       {} arrived, {} lost, {} namespaces read again, {} baselines",
            shown("events"),
            shown("lost"),
            shown("rereads"),
            shown("baselines")
        ),
        format!("next pass    {}", seconds("next_pass_ms")),
    ];
    for line in lines {
        context.output.line(&line)?;
    }
    for (cause, count) in status.get("gaps").and_then(Value::as_object).into_iter().flatten() {
        context.output.line(&format!("gap          {} {count}", text::escape(cause.as_bytes())))?;
    }
    if let Some(why) = status.get("probes_missing").and_then(Value::as_str) {
        context.output.line(&format!("probes       {}", text::escape(why.as_bytes())))?;
    }
    if let Some(root) = status.get("sweeping").and_then(Value::as_str) {
        context.output.line(&format!("sweeping     {}", text::escape(root.as_bytes())))?;
    }
    for last in status.get("passes").and_then(Value::as_array).into_iter().flatten() {
        context.output.line(&format!("last pass    {}", pass::line(last)))?;
    }
    for (root, fault) in status.get("faults").and_then(Value::as_object).into_iter().flatten() {
        let fault = fault.as_str().unwrap_or_default();
        context.output.line(&format!(
            "fault        {}: {}",
            text::escape(root.as_bytes()),
            text::escape(fault.as_bytes())
        ))?;
    }
    Ok(Outcome::Done)
}
