//! The tools that the conformance suite of MCP calls, so that it meets real work.
//!
//! The suite wants some twenty tools by set names, and a component is one kind. So this
//! is built once, and which tool it is stands in a place of its own, [`TOOL`], which
//! whoever runs the suite fills in: each copy is a kind like any other. It uses the
//! contract directly, since the SDK's descriptors are fixed when it is compiled.

mod content;
mod tools;

use std::{cell::RefCell, hint::black_box, time::Duration};

use serde_json::Value;
use tools::{Asks, Tool};

mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "backlot:producer/stepped-final-producer",
    });
}

use bindings::{
    backlot::producer::types::{
        Descriptor, Ending, Manner, Outcome, Refusal, Request, StopRefusal,
    },
    exports::backlot::producer::{lifecycle, steps},
};

/// Which tool this is: what stands between the colon and the first dot. A test makes
/// others by changing it.
static TOOL: &[u8; 80] =
    b"the tool of this build is:greet.................................................";

/// Returns the tool that this build is.
fn tool() -> Option<&'static Tool> {
    // Else the compiler would read it, and the place would be gone.
    let place = black_box(TOOL);
    let name = place.split(|&byte| byte == b':').nth(1)?.split(|&byte| byte == b'.').next()?;
    tools::named(std::str::from_utf8(name).ok()?)
}

struct Conformance;

thread_local! {
    /// The one task of this instance.
    static REQUEST: RefCell<Option<Request>> = RefCell::default();
}

impl lifecycle::Guest for Conformance {
    fn describe() -> Descriptor {
        // What stands there in place of a tool's name is told as a kind that no file has.
        let (kind, summary, input) =
            tool().map_or(("no-such-tool", "", ""), |tool| (tool.kind, tool.summary, tool.input));
        Descriptor {
            kind: kind.to_owned(),
            summary: summary.to_owned(),
            input_schema: Some(input.to_owned()),
            // None holds anything, so that nothing is lost when one is dropped.
            manner: Manner::STOPS_BY_DROP,
        }
    }

    fn run(request: Request) -> Result<(), Refusal> {
        REQUEST.set(Some(request));
        Ok(())
    }

    fn cancel(_reason: Option<String>) -> Result<(), StopRefusal> {
        Ok(())
    }

    async fn done() -> Outcome {
        match (tool(), REQUEST.take()) {
            (Some(tool), Some(request)) => work(tool, &request).await,
            _ => failed("nothing was started"),
        }
    }
}

/// Does what the tool does in this run of its job.
async fn work(tool: &Tool, request: &Request) -> Outcome {
    if let Some((_, asks)) = question(tool, request) {
        tools::pause(Duration::from_millis(asks.after_ms)).await;
        return completed(String::new());
    }
    let answer = request.answer.as_deref().map(given).unwrap_or_default();
    match tool.run(&given(&request.input), &answer).await {
        Ok(result) => completed(result.to_string()),
        Err(why) => failed(&why),
    }
}

impl steps::Guest for Conformance {
    fn after(request: Request, ended: Outcome) -> steps::Next {
        let asked = tool().and_then(|tool| question(tool, &request));
        match (asked, ended.ending) {
            (Some((round, asks)), Ending::Completed) => steps::Next::Ask(steps::Question {
                prompt: asks.prompt(&given(&request.input)),
                schema: Some(asks.schema.to_owned()),
                state: Some((round + 1).to_string()),
            }),
            _ => steps::Next::End(steps::Closing { state: None, failure: None }),
        }
    }

    fn render(state: String) -> Option<String> {
        Some(format!("question {state}"))
    }
}

/// Returns the question that follows this run, and how many came before it. The state of
/// a job is how many it has asked.
fn question<'a>(tool: &'a Tool, request: &Request) -> Option<(usize, &'a Asks)> {
    let round = request.state.as_deref().map_or(Ok(0), str::parse).ok()?;
    tool.asks.get(round).map(|asks| (round, asks))
}

fn given(input: &str) -> Value {
    serde_json::from_str(input).unwrap_or_default()
}

fn completed(output: String) -> Outcome {
    Outcome { ending: Ending::Completed, detail: None, output: Some(output) }
}

fn failed(why: &str) -> Outcome {
    Outcome { ending: Ending::Failed, detail: Some(why.to_owned()), output: None }
}

bindings::export!(Conformance with_types_in bindings);
