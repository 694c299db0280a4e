//! The tools that there are, as models read of them.

use std::{
    fmt::Write as _,
    sync::{Arc, Once},
};

use backlot_registry::{Catalog, Form, Kind, KindDescriptor, KindState, KindView};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::Options;

/// The longest that a call may wait, in seconds.
pub(super) const WAIT_MOST: u64 = 120;

/// How many kinds the description of `spawn_task` tells of. More would take what a model can
/// take in, and it learns of the others by name.
const KINDS_TOLD: usize = 40;
/// How many kinds its schema names. Past that any name is taken, and looked up.
const KINDS_NAMED: usize = 200;
/// How much of a kind's summary it has, in characters.
const SUMMARY: usize = 120;
/// The longest schema of an input that it has, in bytes. Others are told by the error that
/// follows on an input that does not fit, and here by so many names.
const SCHEMA: usize = 400;
const NAMES: usize = 12;
/// The most of all kinds together, in bytes.
const KINDS_BYTES: usize = 8 << 10;

/// A verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Spawn,
    Status,
    Retry,
    Stop,
}

impl Verb {
    const ALL: [Self; 4] = [Self::Spawn, Self::Status, Self::Retry, Self::Stop];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Spawn => "spawn_task",
            Self::Status => "task_status",
            Self::Retry => "task_retry",
            Self::Stop => "task_stop",
        }
    }

    /// Returns the verb of that name.
    pub(super) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.name() == name)
    }
}

/// Returns what a kind is called as a tool. Every client takes an underscore in such a name,
/// and the verbs have them too. No kind has an underscore, so each name stands for one kind.
pub(super) fn name_of(kind: &Kind) -> String {
    kind.as_str().replace('-', "_")
}

/// Returns the kind that a tool of its own is called for.
pub(super) fn kind_of(tool: &str) -> Option<Kind> {
    if tool.contains('-') || Verb::of(tool).is_some() {
        return None;
    }
    Kind::new(&tool.replace('_', "-")).ok()
}

/// Tells whether a kind is a tool of its own.
pub(super) fn is_exposed(kind: &Kind, options: &Options) -> bool {
    /// One for each verb: lists are asked for often, and it stays as it is.
    static TOLD: [Once; Verb::ALL.len()] = [const { Once::new() }; Verb::ALL.len()];
    if !options.exposes(kind.as_str()) {
        return false;
    }
    let Some(verb) = Verb::of(&name_of(kind)) else { return true };
    TOLD[verb as usize].call_once(|| {
        let name = verb.name();
        tracing::warn!(%kind, "this kind is not listed as a tool: {name} is another one");
    });
    false
}

/// Returns the tools: the verbs, and the kinds that are exposed. Who may only look has the
/// one verb that does.
pub(super) fn offered(catalog: &dyn Catalog, options: &Options, may_change: bool) -> Vec<Tool> {
    if !may_change {
        return vec![status()];
    }
    let kinds = catalog.kinds();
    let kinds: Vec<_> = kinds.iter().filter_map(Offer::of).collect();
    let mut tools = vec![spawn(&kinds), status(), retry(), stop()];
    let exposed = kinds.iter().filter(|offer| is_exposed(offer.kind, options));
    tools.extend(exposed.map(|offer| offer.tool(options)));
    tools
}

/// Returns the tool of that name.
pub(super) fn named(
    catalog: &dyn Catalog,
    options: &Options,
    may_change: bool,
    name: &str,
) -> Option<Tool> {
    if Verb::of(name).is_some() {
        return offered(catalog, options, may_change).into_iter().find(|tool| tool.name == name);
    }
    let kind = kind_of(name).filter(|kind| may_change && is_exposed(kind, options))?;
    Some(Offer::of(&catalog.kind(&kind)?)?.tool(options))
}

/// A kind that can be started now.
pub(super) struct Offer<'a> {
    pub(super) kind: &'a Kind,
    descriptor: &'a KindDescriptor,
    /// Whether it is a program, which has arguments and reads its input.
    is_program: bool,
}

impl<'a> Offer<'a> {
    pub(super) fn of(view: &'a KindView) -> Option<Self> {
        let current = view.current.as_ref().filter(|_| view.state == KindState::Serving)?;
        Some(Self {
            kind: &view.kind,
            descriptor: &current.descriptor,
            is_program: current.contract.is_none(),
        })
    }

    /// Returns the schema of its input, where it is one of objects, which are what the
    /// arguments of a tool are.
    fn schema(&self) -> Option<JsonObject> {
        let schema: JsonObject =
            serde_json::from_str(self.descriptor.input_schema.as_deref()?).ok()?;
        (schema.get("type").and_then(Value::as_str) == Some("object")).then_some(schema)
    }

    fn tool(&self, options: &Options) -> Tool {
        let seconds = options.foreground.as_secs();
        let description = format!(
            "{}\n\nWhat takes longer than {seconds} seconds goes on in the background: the answer \
             then names a task, and you are told when it ends.",
            line(&self.descriptor.summary, SUMMARY * 4)
        );
        let schema = self.schema().map_or_else(|| object(self.wrapped(), &[]), Arc::new);
        Tool::new(name_of(self.kind), description, schema)
            .with_title(self.kind.to_string())
            .with_annotations(ToolAnnotations::with_title(self.kind.as_str()))
    }

    /// Returns the properties of what is called instead, where its input is no object.
    fn wrapped(&self) -> Value {
        let input = match &self.descriptor.input_schema {
            Some(schema) => {
                format!("The input, as JSON that fits the schema {}", line(schema, 2_000))
            }
            None => "The input, as text.".to_owned(),
        };
        match self.is_program {
            true => json!({
                "args": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The arguments of the program.",
                },
                "input": {"type": "string", "description": "What the program reads from its standard input."},
            }),
            false => json!({"input": {"type": "string", "description": input}}),
        }
    }

    /// Returns what it is started with, by a call's arguments: its input, and its arguments
    /// where it is a program.
    ///
    /// # Errors
    ///
    /// In words for whoever called.
    pub(super) fn input(&self, arguments: JsonObject) -> Result<(String, Vec<String>), String> {
        if self.schema().is_some() {
            // Whether it fits is for the kind to say.
            return Ok((Value::Object(arguments).to_string(), Vec::new()));
        }
        let (mut input, mut args) = (String::new(), Vec::new());
        for (name, value) in arguments {
            match (name.as_str(), value) {
                ("input", Value::String(text)) => input = text,
                ("input", Value::Null) | ("args", Value::Null) => {}
                // What is no text is its JSON.
                ("input", value) => input = value.to_string(),
                ("args", value) if self.is_program => {
                    args = serde_json::from_value(value)
                        .map_err(|error| format!("`args` is a list of texts: {error}"))?;
                }
                (name, _) => {
                    let known = if self.is_program { "`args` and `input`" } else { "`input`" };
                    let tool = name_of(self.kind);
                    return Err(format!("there is no `{name}`: {tool} takes {known}"));
                }
            }
        }
        Ok((input, args))
    }

    /// Returns what is said of it in a line.
    fn line(&self) -> String {
        let summary = line(&self.descriptor.summary, SUMMARY);
        let mut text = format!("- {}: {}.", self.kind, summary.trim_end_matches('.'));
        if self.is_program {
            text.push_str(" A program: give `args`, and as `input` what it reads.");
        }
        if let Some(schema) = &self.descriptor.input_schema {
            let _ = write!(text, " Input: {}.", told_schema(schema));
        }
        if self.descriptor.form == Form::Stream {
            text.push_str(" Its output comes piece by piece.");
        }
        text
    }
}

/// Returns a schema without what means nothing to a model; none where it cannot be read.
pub(super) fn compact(schema: &str) -> Option<Value> {
    let mut schema: Value = serde_json::from_str(schema).ok()?;
    if let Value::Object(schema) = &mut schema {
        schema.remove("$schema");
        schema.remove("$id");
    }
    Some(schema)
}

/// Returns a schema as it is told among others: whole where it is short, and the names of
/// what an input has where it is not.
fn told_schema(schema: &str) -> String {
    let Some(schema) = compact(schema) else { return "JSON".to_owned() };
    let whole = schema.to_string();
    if whole.len() <= SCHEMA {
        return whole;
    }
    let names = schema.get("properties").and_then(Value::as_object);
    let names = names.into_iter().flat_map(JsonObject::keys).take(NAMES).map(|name| line(name, 40));
    let names = names.collect::<Vec<_>>().join(", ");
    match names.is_empty() {
        true => "JSON, and what does not fit is told".to_owned(),
        false => format!("JSON with {names}, and what does not fit is told"),
    }
}

fn spawn(kinds: &[Offer<'_>]) -> Tool {
    let mut description = "\
Starts work in the background and answers with its task id, while the work goes on by itself. \
Use it for what takes longer than you want to wait for, and go on with something else meanwhile.

You are told when the task ends: a message that begins with [task-notification] comes with the \
answer of a later call. So do not ask again and again, and do not do the same work yourself as \
well. If you cannot go on without the result, give `wait_seconds`: a task that ends within that \
time answers with its result.

"
    .to_owned();
    description.push_str(&told(kinds));
    let mut kind = json!({"type": "string", "description": "What sort of work it is."});
    if (1..=KINDS_NAMED).contains(&kinds.len()) {
        let names = kinds.iter().map(|offer| offer.kind.to_string().into()).collect();
        kind["enum"] = Value::Array(names);
    }
    let properties = json!({
        "kind": kind,
        "input": {
            "type": ["string", "object"],
            "description": "What the work is done on: an object where the kind takes JSON, or text.",
        },
        "args": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The arguments, of a kind that is a program.",
        },
        "label": {
            "type": "string",
            "maxLength": 256,
            "description": "A few words under which the person sees the task.",
        },
        "wait_seconds": {
            "type": "integer",
            "minimum": 0,
            "maximum": WAIT_MOST,
            "description": "How long the answer may wait for the task to end. 0, which is usual, \
                            answers at once.",
        },
        "key": {
            "type": "string",
            "description": "A name of your choice for this piece of work. A second call with the \
                            same key gets the task of the first instead of another one.",
        },
        "attempts": {
            "type": "integer",
            "minimum": 1,
            "description": "How many attempts it may have in all.",
        },
        "retry": {
            "type": "boolean",
            "description": "Whether it is tried again by itself when it fails, with pauses, for \
                            as long as it has attempts.",
        },
        "queue": {
            "type": "boolean",
            "description": "Whether it waits for its turn where too many tasks are live, instead \
                            of being refused.",
        },
    });
    tool(Verb::Spawn, "Start a task", description, properties, &["kind"]).with_annotations(hints(
        "Start a task",
        false,
        false,
        false,
    ))
}

/// Returns what is told of the kinds, no more than a model can take in.
fn told(kinds: &[Offer<'_>]) -> String {
    if kinds.is_empty() {
        return "There are no kinds of work now.".to_owned();
    }
    let mut text = "Kinds of work:\n".to_owned();
    let mut count = 0;
    for offer in kinds.iter().take(KINDS_TOLD) {
        let line = offer.line();
        if text.len() + line.len() > KINDS_BYTES {
            break;
        }
        text.push_str(&line);
        text.push('\n');
        count += 1;
    }
    if count < kinds.len() {
        let _ = writeln!(text, "and {} others, which `kind` names", kinds.len() - count);
    }
    text.truncate(text.trim_end().len());
    text
}

fn status() -> Tool {
    let description = format!(
        "\
Looks at a task: where it stands, what it has put out since you last looked, and its full result \
once it has ended.

With `wait_seconds` (up to {WAIT_MOST}) the answer comes as soon as the task ends or a person is \
asked something. One call that waits costs less than many that do not; and you need not look at \
all, because you are told when a task ends.

Without `task_id` it lists your tasks, the newest first, with ids and summaries: that is the way \
back to an id that you have lost. A task that is still working is marked so: do not redo its work."
    );
    let properties = json!({
        "task_id": {
            "type": "string",
            "description": "The id of a task, or its first digits as a notification has them. \
                            Leave it out for a list.",
        },
        "wait_seconds": {
            "type": "integer",
            "minimum": 0,
            "maximum": WAIT_MOST,
            "description": "How long the answer may wait for the task to end.",
        },
        "after": {
            "type": "integer",
            "minimum": 0,
            "description": "Where to read on in its output or result, as an answer that was cut \
                            says; 0 reads from the beginning. Without it you get what is new.",
        },
        "before": {
            "type": "integer",
            "minimum": 0,
            "description": "Where a list goes on, as the page before says.",
        },
    });
    tool(Verb::Status, "Look at tasks", description, properties, &[]).with_annotations(hints(
        "Look at tasks",
        true,
        false,
        true,
    ))
}

fn retry() -> Tool {
    let description = "\
Goes on with a task that has failed, from where it stopped, with the input and the id that it has. \
Look at why it failed first: if its input was wrong it will fail again, and another task is to be \
started instead. Only a failed task that has attempts left is tried again: one that completed has \
its result, and one that was stopped was stopped on purpose. You are told when it ends.";
    let properties = json!({
        "task_id": {"type": "string", "description": "The id of the task."},
    });
    tool(Verb::Retry, "Retry a task", description.to_owned(), properties, &["task_id"])
        .with_annotations(hints("Retry a task", false, false, false))
}

fn stop() -> Tool {
    let description = "\
Stops a task for good. What it has put out so far is kept, and it cannot be tried again. Stop what \
nobody needs any more or what went wrong; a task that merely takes long is to be left alone.";
    let properties = json!({
        "task_id": {"type": "string", "description": "The id of the task."},
        "reason": {
            "type": "string",
            "description": "Why, in a line that the person sees.",
        },
        "force": {
            "type": "boolean",
            "description": "Whether it is ended at once, with no time to wind down. Only for a \
                            task that was asked to stop and does not.",
        },
    });
    tool(Verb::Stop, "Stop a task", description.to_owned(), properties, &["task_id"])
        .with_annotations(hints("Stop a task", false, true, true))
}

fn tool(
    verb: Verb,
    title: &str,
    description: String,
    properties: Value,
    required: &[&str],
) -> Tool {
    Tool::new(verb.name(), description, object(properties, required)).with_title(title)
}

/// Returns the schema of an object with those properties and no others.
fn object(properties: Value, required: &[&str]) -> Arc<JsonObject> {
    let mut schema = JsonObject::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), properties);
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    schema.insert("additionalProperties".to_owned(), false.into());
    Arc::new(schema)
}

fn hints(title: &str, reads_only: bool, destroys: bool, can_be_repeated: bool) -> ToolAnnotations {
    ToolAnnotations::with_title(title)
        .read_only(reads_only)
        .destructive(destroys)
        .idempotent(can_be_repeated)
}

/// Folds line breaks, and cuts what is longer than so many characters.
pub(super) fn line(text: &str, most: usize) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let text = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use backlot_registry::{Announcer, Changes, Generation, GenerationView};

    use super::*;

    struct Shelf(Vec<KindView>);

    impl Catalog for Shelf {
        fn kinds(&self) -> Vec<KindView> {
            self.0.clone()
        }

        fn kind(&self, kind: &Kind) -> Option<KindView> {
            self.0.iter().find(|view| view.kind == *kind).cloned()
        }

        fn changes(&self) -> Changes {
            Announcer::default().listen()
        }
    }

    fn view(name: &str, summary: &str, schema: Option<&str>) -> KindView {
        let descriptor = KindDescriptor {
            summary: summary.into(),
            input_schema: schema.map(Into::into),
            form: Form::Final,
        };
        let current = GenerationView {
            generation: Generation { number: 1, digest: "d".into() },
            contract: Some("0.1.0"),
            loaded_at_ms: 0,
            tasks: 0,
            kept: true,
            descriptor: Arc::new(descriptor),
        };
        KindView {
            kind: name.parse().unwrap(),
            state: KindState::Serving,
            current: Some(current),
            earlier: Vec::new(),
            trouble: None,
        }
    }

    fn spawn_of(shelf: Vec<KindView>) -> (String, Value) {
        let tools = offered(&Shelf(shelf), &Options::default(), true);
        let description = tools[0].description.clone().unwrap().into_owned();
        (description, tools[0].input_schema["properties"]["kind"].clone())
    }

    #[test]
    fn a_kind_has_one_name_as_a_tool_and_none_has_that_of_a_verb() {
        let kind = |name: &str| Kind::new(name).unwrap();
        assert_eq!(name_of(&kind("find-all-2")), "find_all_2");
        assert_eq!(kind_of("find_all_2"), Some(kind("find-all-2")));
        for name in ["find-all", "find__all", "_find", "Find", "", "spawn_task"] {
            assert_eq!(kind_of(name), None, "{name}");
        }
        let every = Options { expose: vec!["*".to_owned()], ..Options::default() };
        let shelf = Shelf(vec![view("task-stop", "", None), view("task-go", "", None)]);
        let tools = offered(&shelf, &every, true);
        let names: Vec<_> = tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["spawn_task", "task_status", "task_retry", "task_stop", "task_go"]);
        // It can be started all the same.
        assert_eq!(tools[0].input_schema["properties"]["kind"]["enum"][0], "task-stop");
    }

    #[test]
    fn many_kinds_are_told_of_within_bounds() {
        let shelf = |count: usize| {
            let schema = format!(r#"{{"description":"{}"}}"#, "s".repeat(4_000));
            let summary = format!("- forged: line\n{}", "é".repeat(1_000));
            (0..count).map(|at| view(&format!("kind-{at}"), &summary, Some(&schema))).collect()
        };
        let (description, kind) = spawn_of(shelf(100));
        assert!(description.len() < 12 << 10, "{}", description.len());
        assert!(description.ends_with("others, which `kind` names"), "{description}");
        assert_eq!(description.matches("\n- ").count(), description.matches("\n- kind-").count());
        assert_eq!(kind["enum"].as_array().unwrap().len(), 100);
        let (_, kind) = spawn_of(shelf(1_000));
        assert_eq!(kind.get("enum"), None);
        let (description, kind) = spawn_of(Vec::new());
        assert!(description.ends_with("There are no kinds of work now."));
        assert_eq!(kind.get("enum"), None);
    }

    #[test]
    fn a_long_schema_is_told_by_its_names() {
        let short = r#"{ "$schema": "https://a.example", "type": "object" }"#;
        assert_eq!(told_schema(short), r#"{"type":"object"}"#);
        let long =
            format!(r#"{{"properties":{{"a":{{"description":"{}"}},"b":{{}}}}}}"#, "x".repeat(500));
        assert_eq!(told_schema(&long), "JSON with a, b, and what does not fit is told");
        let long = format!(r#"{{"description":"{}"}}"#, "x".repeat(500));
        assert_eq!(told_schema(&long), "JSON, and what does not fit is told");
        assert_eq!(told_schema("{"), "JSON");
    }

    #[test]
    fn what_an_input_is_made_of() {
        let input = |schema: Option<&str>, arguments: Value| {
            let view = view("a-b", "", schema);
            let arguments = arguments.as_object().cloned().unwrap();
            Offer::of(&view).unwrap().input(arguments).map(|(input, _)| input)
        };
        let object = Some(r#"{"type":"object"}"#);
        assert_eq!(input(object, json!({"input": 1})), Ok(r#"{"input":1}"#.into()));
        assert_eq!(input(None, json!({"input": "text"})), Ok("text".into()));
        assert_eq!(input(None, json!({})), Ok(String::new()));
        let list = Some(r#"{"type":"array"}"#);
        assert_eq!(input(list, json!({"input": [1]})), Ok("[1]".into()));
        assert_eq!(
            input(None, json!({"args": []})),
            Err("there is no `args`: a_b takes `input`".into())
        );
        // One that cannot be read is none.
        assert_eq!(input(Some("{"), json!({"input": "text"})), Ok("text".into()));
    }
}
