//! Schemas: of a kind's input, and of the answer to a question.
//!
//! A schema of a few kilobytes can take for ever to be read or to check an input, or
//! overflow a stack, and what does so cannot be interrupted. So only one that is
//! plain, on an input that is not large, is checked here: then the work is bounded
//! by the size of both. For any other, a process that is limited does it.

use std::{sync::Arc, time::Duration};

use backlot_registry::Refusal;
use jsonschema::Validator;
use serde_json::Value;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    process::{Compiler, Events, Job, JobError, given_up, on_a_thread},
    text,
};

/// The name of the work.
pub(crate) const WORK: &str = "schema";
/// How large a schema may be, in bytes: one that people read is a few kilobytes.
const SCHEMA_BYTES: usize = 64 << 10;
/// How long an input may be checked, where nothing else bounds it.
const CHECK_DEADLINE: Duration = Duration::from_secs(1);
/// CPU time that reading a schema or checking an input may take, in seconds, and how
/// long that may last on a machine that is busy.
const CPU_SECS: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(3);
/// Memory that it may take, in bytes. An input at its limit takes 400 MB.
const MEMORY: u64 = 1 << 30;
/// Inputs above that many bytes are not checked here.
const INPUT_BYTES: usize = 256 << 10;
/// How many values of a schema may meet how many bytes of an input: some tens of
/// milliseconds.
const MEETINGS: usize = 16 << 20;
/// How long a plain schema is, in bytes, how many values it has and how deep they are
/// nested. Each keeps the way to it, so that its size is at most the product.
const PLAIN_BYTES: usize = 8 << 10;
const VALUES: usize = 1_000;
const DEPTH: usize = 64;
/// How many patterns a plain schema has, how large one gets when it is compiled, in
/// bytes, and how many values it counts for: matching takes the product of its size
/// and the input.
const PATTERNS: usize = 4;
const PATTERN_SIZE: usize = 16 << 10;
const PATTERN_VALUES: usize = 4_096;
/// How large a pattern of any schema gets when it is compiled, in bytes.
const LARGE_PATTERN_SIZE: usize = 256 << 10;

/// What makes the cost of a check more than the product of schema and input, or
/// unbounded.
const COSTLY: [&str; 7] = [
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveRef",
    "patternProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Where costly work on schemas is done.
#[derive(Clone)]
pub(crate) struct Checker {
    pub(crate) compiler: Compiler,
    /// What it may take at a time, in bytes.
    pub(crate) memory: u64,
    /// Turns for all kinds together.
    pub(crate) turns: Arc<Semaphore>,
}

/// The schema of a kind's input. Clones share it.
#[derive(Clone)]
pub(crate) struct Schema(Arc<Inner>);

struct Inner {
    text: Box<str>,
    /// What checks small inputs; `None` where the schema is not plain.
    plain: Option<Plain>,
    checker: Checker,
    /// Turns at what may be costly, so that one kind does not take what all need.
    turns: Arc<Semaphore>,
}

struct Plain {
    validator: Validator,
    /// How many values it has.
    values: usize,
}

impl Schema {
    /// Reads a schema of a component. Nothing outside of it is ever fetched, and its
    /// patterns are matched in linear time.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in one line.
    pub(crate) async fn of(text: &str, checker: Checker) -> Result<Self, String> {
        if text.len() > SCHEMA_BYTES {
            return Err(format!("it has more than {SCHEMA_BYTES} bytes"));
        }
        let value: Value =
            serde_json::from_str(text).map_err(|error| text::line(&error.to_string()))?;
        // What cannot be read within the bounds of a plain one may be read apart.
        let plain = plainness(&value)
            .filter(|_| text.len() <= PLAIN_BYTES)
            .and_then(|values| Some(Plain { validator: read(&value, PATTERN_SIZE).ok()?, values }));
        let schema = Self(Arc::new(Inner {
            text: text.into(),
            plain,
            checker,
            turns: Arc::new(Semaphore::new(2)),
        }));
        if schema.0.plain.is_none() {
            schema.apart(None).await.map_err(|error| match error {
                JobError::Impossible(why) => why,
                JobError::TooCostly(what) => format!("it takes more than {what} to be read"),
                JobError::Broken(why) => format!("it cannot be read: {why}"),
            })?;
        }
        Ok(schema)
    }

    /// Checks an input.
    ///
    /// # Errors
    ///
    /// What is wrong with the input, without repeating it, or that it could not be
    /// checked.
    pub(crate) async fn check(&self, input: &str) -> Result<(), Refusal> {
        let mut is_wrong = false;
        if let Some(Plain { validator, values }) = &self.0.plain
            && input.len() <= INPUT_BYTES
            && input.len().saturating_mul(*values) <= MEETINGS
        {
            let value = json(input).map_err(Refusal::InvalidInput)?;
            if validator.is_valid(&value) {
                return Ok(());
            }
            // Saying what is wrong may take far more than finding out.
            is_wrong = true;
        }
        let late = "its schema takes too long to check it";
        self.apart(Some(input.into())).await.map_err(|error| match error {
            JobError::Impossible(why) => Refusal::InvalidInput(why),
            _ if is_wrong => Refusal::InvalidInput("it does not match its schema".to_owned()),
            JobError::TooCostly(_) => Refusal::Unavailable(late.to_owned()),
            JobError::Broken(why) => Refusal::Unavailable(format!("{late}: {why}")),
        })
    }

    /// Reads the schema, and checks an input if there is one, where it harms nobody.
    async fn apart(&self, input: Option<Box<str>>) -> Result<(), JobError> {
        let late = || JobError::TooCostly(format!("{CHECK_DEADLINE:?}"));
        let schema = Arc::clone(&self.0);
        let (own, all) = (Arc::clone(&schema.turns), Arc::clone(&schema.checker.turns));
        let turns =
            async { Some((own.acquire_owned().await.ok()?, all.acquire_owned().await.ok()?)) };
        let turns = timeout(PATIENCE, turns).await.map_err(|_| {
            JobError::Broken("others are being checked, and it had no turn".to_owned())
        })?;
        let (give_up, events) = given_up();
        let patience = match &schema.checker.compiler {
            Compiler::Inside => CHECK_DEADLINE,
            Compiler::Program(_) => PATIENCE,
        };
        // The turns go with the work.
        let work = on_a_thread(move || {
            let _turns = turns;
            schema.work(input.as_deref(), &events)
        });
        let done = timeout(patience, work).await.unwrap_or_else(|_| Err(late()));
        drop(give_up);
        done
    }
}

impl Inner {
    fn work(&self, input: Option<&str>, events: &Events) -> Result<(), JobError> {
        let args: &[&str] = if input.is_some() { &["check"] } else { &["read"] };
        let input_text = input.unwrap_or_default();
        let Compiler::Program(program) = &self.checker.compiler else {
            return judge(&self.text, input).map_err(JobError::Impossible);
        };
        let length = (self.text.len() as u64).to_le_bytes();
        let job = Job {
            work: WORK,
            args,
            input: &[&length, self.text.as_bytes(), input_text.as_bytes()],
            threads: None,
            cpu_secs: CPU_SECS,
            memory: self.checker.memory.min(MEMORY),
            answer: 0,
        };
        job.run(program, events).map(drop)
    }
}

/// What a process does that is asked to read a schema, or to check an input as well.
pub(crate) fn answer(args: &[String], input: &[u8]) -> Result<Vec<u8>, String> {
    let (length, rest) = input.split_first_chunk().ok_or("there is no schema")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (schema, input) = rest.split_at_checked(length).ok_or("the schema is cut off")?;
    let text = |bytes| std::str::from_utf8(bytes).map_err(|error| error.to_string());
    let input = (args == ["check"]).then(|| text(input)).transpose()?;
    judge(text(schema)?, input)?;
    Ok(Vec::new())
}

/// Reads a schema, and checks an input if there is one.
fn judge(schema: &str, input: Option<&str>) -> Result<(), String> {
    let schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
    let validator = read(&schema, LARGE_PATTERN_SIZE)?;
    input.map_or(Ok(()), |input| verdict(&validator, input))
}

fn read(schema: &Value, pattern_size: usize) -> Result<Validator, String> {
    let patterns = jsonschema::PatternOptions::regex().size_limit(pattern_size);
    jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .with_pattern_options(patterns)
        .build(schema)
        .map_err(|error| text::line(&error.to_string()))
}

fn json(input: &str) -> Result<Value, String> {
    serde_json::from_str(input).map_err(|error| format!("it takes JSON: {error}"))
}

/// Says what is wrong with an input, without repeating its values: they may be
/// secrets.
fn verdict(validator: &Validator, input: &str) -> Result<(), String> {
    let input = json(input)?;
    validator.validate(&input).map_err(|error| {
        let why = error.masked().to_string();
        match error.instance_path().as_str() {
            "" => text::line(&why),
            place => text::line(&format!("at {place}: {why}")),
        }
    })
}

/// Returns how many values a schema has, if it is plain. What it refers to counts at
/// each place, so that one that refers to itself has no end, and is not plain.
fn plainness(schema: &Value) -> Option<usize> {
    let mut patterns = 0;
    let mut values = 0;
    let mut left = vec![(schema, 0)];
    while let Some((value, depth)) = left.pop() {
        values += 1;
        if depth > DEPTH || values > VALUES {
            return None;
        }
        match value {
            Value::Array(items) => left.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => {
                for (name, field) in fields {
                    // Below the top, an `$id` changes what references mean.
                    if COSTLY.contains(&name.as_str()) || name == "$id" && depth > 0 {
                        return None;
                    }
                    if name == "$ref" {
                        left.push((referred(schema, field)?, depth + 1));
                    }
                    patterns += usize::from(name == "pattern");
                    left.push((field, depth + 1));
                }
            }
            _ => {}
        }
    }
    (patterns <= PATTERNS).then_some(values + patterns * PATTERN_VALUES)
}

/// Returns what a reference to a place in the schema itself refers to.
fn referred<'a>(schema: &'a Value, reference: &Value) -> Option<&'a Value> {
    let place = reference.as_str()?.strip_prefix('#')?;
    // Anything else is a name, or is written in a way that is to be decoded.
    let is_place = !place.contains('%') && (place.is_empty() || place.starts_with('/'));
    schema.pointer(place).filter(|_| is_place)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn schema(text: &str) -> Result<Schema, String> {
        let checker = Checker {
            compiler: Compiler::Inside,
            memory: MEMORY,
            turns: Arc::new(Semaphore::new(1)),
        };
        Schema::of(text, checker).await
    }

    fn is_plain(text: &str) -> bool {
        plainness(&serde_json::from_str(text).unwrap()).is_some()
    }

    #[tokio::test]
    async fn what_is_wrong_with_an_input_is_said_without_repeating_it() {
        for schema_text in [
            r#"{"properties":{"n":{"type":"integer"}}}"#,
            r##"{"properties":{"n":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer"}}}"##,
        ] {
            let schema = schema(schema_text).await.unwrap();
            let Err(refusal) = schema.check(r#"{"n":"hunter2"}"#).await else {
                panic!("it was taken")
            };
            let said = refusal.to_string();
            assert!(said.contains("at /n: ") && !said.contains("hunter2"), "{said}");
            assert!(schema.check("{").await.is_err());
            assert!(schema.check(r#"{"n":1}"#).await.is_ok());
        }
    }

    #[test]
    fn a_schema_is_plain_unless_it_is_large_in_a_way_that_size_does_not_tell() {
        assert!(is_plain(r#"{"type":"object","properties":{"a":{"pattern":"^[a-z]+$"}}}"#));
        for costly in COSTLY {
            assert!(!is_plain(&format!(r#"{{"properties":{{"a":{{"{costly}":{{}}}}}}}}"#)));
        }
        // What is referred to counts at each place, however that is written.
        let refers = |to: &str| {
            format!(
                r##"{{"$id":"https://e.x/s","items":{{"\u0024ref":"{to}"}},"$defs":{{"a":{{}}}}}}"##
            )
        };
        assert!(is_plain(&refers("#/$defs/a")));
        for not_plain in
            ["#", "#/items", "#a", "#/$defs/b", "#/%24defs/a", "https://e.x/s#/$defs/a"]
        {
            assert!(!is_plain(&refers(not_plain)), "{not_plain}");
        }
        assert!(!is_plain(r#"{"items":{"$id":"https://e.x/other"}}"#));
        let twice = |levels: usize| {
            let defs: Vec<String> = (0..levels)
                .map(|n| {
                    let next = format!(r##"{{"$ref":"#/$defs/a{}"}}"##, n + 1);
                    format!(r#""a{n}":{{"allOf":[{next},{next}]}}"#)
                })
                .collect();
            format!(r##"{{"$ref":"#/$defs/a0","$defs":{{{},"a{levels}":{{}}}}}}"##, defs.join(","))
        };
        assert!(is_plain(&twice(3)) && !is_plain(&twice(12)));
        let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        assert!(is_plain(&deep(DEPTH)) && !is_plain(&deep(DEPTH + 1)));
        let all_of = |one: &str, times| format!(r#"{{"allOf":[{}]}}"#, vec![one; times].join(","));
        assert!(is_plain(&all_of(r#"{"pattern":"a"}"#, PATTERNS)));
        assert!(!is_plain(&all_of(r#"{"pattern":"a"}"#, PATTERNS + 1)));
        assert!(is_plain(&all_of("true", VALUES - 2)) && !is_plain(&all_of("true", VALUES)));
    }

    #[test]
    fn a_schema_that_takes_for_ever_is_given_up_where_nothing_ends_it() {
        let levels: Vec<String> = (0..60)
            .map(|n| {
                let next = format!(r##"{{"$ref":"#/$defs/a{}"}}"##, n + 1);
                format!(r#""a{n}":{{"allOf":[{next},{next}]}}"#)
            })
            .collect();
        let text = format!(
            r##"{{"$ref":"#/$defs/a0","$defs":{{{},"a60":{{"type":"string"}}}}}}"##,
            levels.join(",")
        );
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let checked = runtime.block_on(async {
            let schema = schema(&text).await.unwrap();
            schema.check(r#""x""#).await
        });
        // What cannot be interrupted must not hold up the end of the test either.
        runtime.shutdown_background();
        assert!(matches!(checked, Err(Refusal::Unavailable(_))), "{checked:?}");
    }

    #[tokio::test]
    async fn schemas_are_bounded_and_read_nothing_from_outside() {
        let huge = format!(r#"{{"description":"{}"}}"#, "x".repeat(SCHEMA_BYTES));
        assert!(schema(&huge).await.err().unwrap().contains("65536 bytes"));
        for outside in ["file:///etc/passwd", "http://127.0.0.1:1/schema"] {
            let read = schema(&format!(r#"{{"$ref":"{outside}"}}"#)).await;
            assert!(read.is_err(), "{outside} was read");
        }
        assert!(schema("{").await.is_err());
        assert!(schema(r#"{"type":"nonsense"}"#).await.is_err());
        assert!(schema(r#"{"pattern":"\\pL{500}"}"#).await.is_err(), "it is too large");
    }
}
