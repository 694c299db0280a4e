//! The tools by name: what each takes, asks and does.

use std::time::Duration;

use serde_json::{Value, json};
use wasip3::clocks::monotonic_clock;

use crate::bindings::backlot::producer::host;
use crate::content::{self, audio, image, resource, result, text};

/// One of the tools.
pub(crate) struct Tool {
    /// Its kind, which is what the suite calls it with hyphens.
    pub(crate) kind: &'static str,
    /// What it tells of itself.
    pub(crate) summary: &'static str,
    /// The schema of its input.
    pub(crate) input: &'static str,
    /// What it asks a person, one after the other.
    pub(crate) asks: &'static [Asks],
    /// What it does, once everything is answered.
    does: Does,
}

/// A question.
pub(crate) struct Asks {
    /// The work before it is asked, in milliseconds.
    pub(crate) after_ms: u64,
    /// What is asked; what is in braces is taken from the input.
    prompt: &'static str,
    /// The schema of the answer, whose anchor is what the answer is called.
    pub(crate) schema: &'static str,
}

enum Does {
    /// Answers with this content.
    Tells(fn() -> Value),
    /// Answers with what the person answered.
    TellsAnswer,
    /// Greets whoever the input names, or the person that has answered.
    Greets,
    /// Works so long first, in milliseconds, and then greets.
    GreetsAfter(u64),
    /// Works for the seconds of the input.
    Works,
    /// Writes three lines to its log, some time apart.
    Logs,
    /// Reports how far it is, three times.
    Reports,
    /// Ends failed.
    Fails,
    /// Works for a second, and tells that it has come to an error.
    TellsError,
    /// Works for a second, and traps.
    Traps,
}

/// The time from one line of a log to the next.
const APART: Duration = Duration::from_millis(50);
/// The time from one report to the next. Whoever is told of them is told one a second.
const REPORTS_APART: Duration = Duration::from_millis(1_500);
/// Long enough to be work that goes on in the background.
const WORK_MS: u64 = 1_000;

const NONE: &str = r#"{"type":"object"}"#;
const NAME: &str =
    r#"{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}"#;

const TOOLS: &[Tool] = &[
    Tool {
        kind: "test-simple-text",
        summary: "Answers with a text",
        input: NONE,
        asks: &[],
        does: Does::Tells(|| result(&[text("This is a simple text response for testing.")])),
    },
    Tool {
        kind: "test-image-content",
        summary: "Answers with an image",
        input: NONE,
        asks: &[],
        does: Does::Tells(|| result(&[image()])),
    },
    Tool {
        kind: "test-audio-content",
        summary: "Answers with a sound",
        input: NONE,
        asks: &[],
        does: Does::Tells(|| result(&[audio()])),
    },
    Tool {
        kind: "test-embedded-resource",
        summary: "Answers with a resource",
        input: NONE,
        asks: &[],
        does: Does::Tells(|| {
            let words = "This is an embedded resource content.";
            result(&[resource("test://embedded-resource", "text/plain", words)])
        }),
    },
    Tool {
        kind: "test-multiple-content-types",
        summary: "Answers with a text, an image and a resource",
        input: NONE,
        asks: &[],
        does: Does::Tells(|| {
            let (uri, words) = ("test://mixed-content-resource", r#"{"test":"data","value":123}"#);
            let words = resource(uri, "application/json", words);
            result(&[text("Multiple content types test:"), image(), words])
        }),
    },
    Tool {
        kind: "test-error-handling",
        summary: "Fails",
        input: NONE,
        asks: &[],
        does: Does::Fails,
    },
    Tool {
        kind: "test-tool-with-logging",
        summary: "Writes three lines to its log",
        input: NONE,
        asks: &[],
        does: Does::Logs,
    },
    Tool {
        kind: "test-logging-tool",
        summary: "Writes three lines to its log",
        input: NONE,
        asks: &[],
        does: Does::Logs,
    },
    Tool {
        kind: "test-tool-with-progress",
        summary: "Reports how far it is",
        input: NONE,
        asks: &[],
        does: Does::Reports,
    },
    Tool {
        kind: "test-reconnection",
        summary: "Answers after a second",
        input: NONE,
        asks: &[],
        does: Does::GreetsAfter(WORK_MS),
    },
    Tool {
        kind: "test-header-parameter",
        summary: "Greets, and has its input in a header as well",
        input: r#"{"type":"object","properties":{
            "name":{"type":"string","x-mcp-header":"Name"}},"required":["name"]}"#,
        asks: &[],
        does: Does::Greets,
    },
    Tool {
        kind: "json-schema-2020-12-tool",
        summary: "Tool with JSON Schema 2020-12 features",
        input: include_str!("schemas/json-schema-2020-12.json"),
        asks: &[],
        does: Does::Greets,
    },
    Tool {
        kind: "test-elicitation",
        summary: "Asks what the input says",
        input: r#"{"type":"object","properties":{"message":{"type":"string"}},"required":["message"]}"#,
        asks: &[Asks {
            after_ms: 0,
            prompt: "{message}",
            schema: r#"{"type":"object","properties":{
                "username":{"type":"string","description":"User's response"},
                "email":{"type":"string","description":"User's email address"}},
                "required":["username","email"]}"#,
        }],
        does: Does::TellsAnswer,
    },
    Tool {
        kind: "test-elicitation-sep1034-defaults",
        summary: "Asks for values that have defaults",
        input: NONE,
        asks: &[Asks {
            after_ms: 0,
            prompt: "Please check these values",
            schema: include_str!("schemas/defaults.json"),
        }],
        does: Does::TellsAnswer,
    },
    Tool {
        kind: "test-elicitation-sep1330-enums",
        summary: "Asks for choices",
        input: NONE,
        asks: &[Asks {
            after_ms: 0,
            prompt: "Please choose",
            schema: include_str!("schemas/choices.json"),
        }],
        does: Does::TellsAnswer,
    },
    Tool {
        kind: "test-streaming-elicitation",
        summary: "Asks for a name",
        input: NONE,
        asks: &[ASKS_NAME],
        does: Does::Greets,
    },
    Tool {
        kind: "test-input-required-result-elicitation",
        summary: "Asks for a name",
        input: NONE,
        asks: &[ASKS_NAME],
        does: Does::Greets,
    },
    Tool {
        kind: "test-input-required-result-request-state",
        summary: "Asks for a confirmation",
        input: NONE,
        asks: &[CONFIRMS],
        does: Does::Tells(|| result(&[text("state-ok")])),
    },
    Tool {
        kind: "test-input-required-result-tampered-state",
        summary: "Asks for a confirmation",
        input: NONE,
        asks: &[CONFIRMS],
        does: Does::Tells(|| result(&[text("state-ok")])),
    },
    Tool {
        kind: "test-input-required-result-multi-round",
        summary: "Asks for a name, and then for a colour",
        input: NONE,
        asks: &[
            Asks {
                after_ms: 0,
                prompt: "Step 1: What is your name?",
                schema: r#"{"$anchor":"step1","type":"object","properties":{
                    "name":{"type":"string"}},"required":["name"]}"#,
            },
            Asks {
                after_ms: 0,
                prompt: "Step 2: What is your favorite color?",
                schema: r#"{"$anchor":"step2","type":"object","properties":{
                    "color":{"type":"string"}},"required":["color"]}"#,
            },
        ],
        does: Does::TellsAnswer,
    },
    Tool {
        kind: "greet",
        summary: "Greets somebody at once",
        input: NAME,
        asks: &[],
        does: Does::Greets,
    },
    Tool {
        kind: "slow-compute",
        summary: "Works for some seconds",
        input: r#"{"type":"object","properties":{
            "seconds":{"type":"number","minimum":0},"label":{"type":"string"}},"required":["seconds"]}"#,
        asks: &[],
        does: Does::Works,
    },
    Tool {
        kind: "failing-job",
        summary: "Works for a second, and tells that it has come to an error",
        input: NONE,
        asks: &[],
        does: Does::TellsError,
    },
    Tool {
        kind: "protocol-error-job",
        summary: "Works for a second, and traps",
        input: NONE,
        asks: &[],
        does: Does::Traps,
    },
    Tool {
        kind: "confirm-delete",
        summary: "Asks whether a file is to be deleted, and deletes nothing",
        input: r#"{"type":"object","properties":{"filename":{"type":"string"}},"required":["filename"]}"#,
        asks: &[Asks {
            // Long enough to be a task by then.
            after_ms: WORK_MS,
            prompt: "Delete {filename}?",
            schema: r#"{"type":"object","properties":{"confirm":{"type":"boolean"}},"required":["confirm"]}"#,
        }],
        does: Does::TellsAnswer,
    },
    Tool {
        kind: "test-tool-with-task",
        summary: "Asks for a name at once, and then works",
        input: NONE,
        asks: &[ASKS_NAME],
        does: Does::GreetsAfter(WORK_MS),
    },
];

const ASKS_NAME: Asks = Asks {
    after_ms: 0,
    prompt: "What is your name?",
    schema: r#"{"$anchor":"user_name","type":"object","properties":{"name":{"type":"string"}},"required":["name"]}"#,
};

const CONFIRMS: Asks = Asks {
    after_ms: 0,
    prompt: "Please confirm",
    schema: r#"{"$anchor":"confirm","type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}"#,
};

/// Returns the tool of that kind.
pub(crate) fn named(kind: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.kind == kind)
}

impl Asks {
    /// Returns what is asked of whoever gave that input.
    pub(crate) fn prompt(&self, input: &Value) -> String {
        match self
            .prompt
            .split_once('{')
            .and_then(|(start, rest)| Some((start, rest.split_once('}')?)))
        {
            Some((start, (name, end))) => {
                format!("{start}{}{end}", input[name].as_str().unwrap_or_default())
            }
            None => self.prompt.to_owned(),
        }
    }
}

impl Tool {
    /// Does it, and returns what it has come to, or why it has failed.
    pub(crate) async fn run(&self, input: &Value, answer: &Value) -> Result<Value, String> {
        match self.does {
            Does::Tells(content) => return Ok(content()),
            Does::TellsAnswer => {
                let words = format!("User response: action=accept, content={answer}");
                return Ok(result(&[text(&words)]));
            }
            Does::Greets => {}
            Does::GreetsAfter(ms) => pause(Duration::from_millis(ms)).await,
            Does::Works => {
                pause(Duration::from_secs_f64(input["seconds"].as_f64().unwrap_or_default())).await;
            }
            Does::Logs => {
                eprintln!("Tool execution started");
                pause(APART).await;
                eprintln!("Tool processing data");
                pause(APART).await;
                eprintln!("Tool execution completed");
            }
            Does::Reports => {
                for percent in [0, 50, 100] {
                    host::report(&format!("{percent}/100"));
                    pause(REPORTS_APART).await;
                }
            }
            Does::Fails => {
                return Err("This tool intentionally returns an error for testing".to_owned());
            }
            Does::TellsError => {
                pause(Duration::from_millis(WORK_MS)).await;
                return Ok(content::error("The job has come to an error, as it always does"));
            }
            Does::Traps => {
                pause(Duration::from_millis(WORK_MS)).await;
                std::process::abort();
            }
        }
        let name = [answer, input].iter().find_map(|given| given["name"].as_str());
        Ok(match name {
            Some(name) => result(&[text(&format!("Hello, {name}!"))]),
            None => result(&[text(&json!({ "tool": self.kind, "input": input }).to_string())]),
        })
    }
}

/// Lets time pass.
pub(crate) async fn pause(time: Duration) {
    if !time.is_zero() {
        monotonic_clock::wait_for(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)).await;
    }
}
