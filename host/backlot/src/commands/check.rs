//! `backlot check`: what component files are, and what they need.

use std::path::Path;

use backlot_wasm::{Component, Description};

use crate::{
    cli::{Check, Common},
    commands::{Verb, print, warn},
    console::Console,
    exit::Exit,
    host::Host,
    render, wire,
};

/// How many instances the host has room for: nothing is run but `describe`.
const INSTANCES: u32 = 4;
/// How much of a schema is shown, in bytes: one that a person would read.
const SCHEMA_BYTES: usize = 4 << 10;

pub(crate) async fn check(args: Check, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let host = match Host::start(common.config(INSTANCES)) {
        Ok(host) => host,
        Err(error) => {
            if args.json {
                print(console, Verb::Check.refusal(render::chain(&error))).await?;
            }
            console.err.say(&render::error(&error)).await;
            return Ok(Exit::Refused);
        }
    };
    let mut report = wire::Report { files: Vec::with_capacity(args.files.len()), error: None };
    let mut exit = Exit::Completed;
    for (nth, file) in args.files.iter().enumerate() {
        let loaded = host.load_file(file).await;
        if loaded.is_err() {
            exit = Exit::Refused;
        }
        if args.json {
            let about = loaded.as_ref().map(Component::description).map_err(render::chain);
            report.files.push(wire::File::of(file, about));
            continue;
        }
        match loaded {
            Ok(component) => {
                let blank = if nth == 0 { "" } else { "\n" };
                let text = format!("{blank}{}", text(file, component.description()));
                if !print(console, text).await? {
                    break;
                }
            }
            Err(error) => console.err.say(&render::error(&error)).await,
        }
    }
    if args.json {
        print(console, wire::line(&report)).await?;
    }
    warn(console, &host, common).await;
    Ok(exit)
}

/// Returns what people read about a component. What it says of itself is its
/// own, so each line is made safe to show.
pub(super) fn text(file: &Path, about: &Description) -> String {
    let mut lines = vec![render::one_line(&file.display().to_string())];
    let mut line = |name: &str, value: &str| {
        let most = if name == "input" { SCHEMA_BYTES } else { render::LINE_BYTES };
        lines.push(format!("  {name:<10} {}", render::line_of(most, value)));
    };
    line("form", &about.form.to_string());
    line(
        "contract",
        &match about.contract {
            Some(version) => format!("backlot:producer@{version}"),
            None => "none needed: a program with a `main`".to_owned(),
        },
    );
    line("kind", about.kind.as_str());
    line("summary", &about.summary);
    if let Some(schema) = &about.input_schema {
        let compact = serde_json::from_str::<serde_json::Value>(schema)
            .map_or_else(|_| schema.clone(), |schema| schema.to_string());
        line("input", &compact);
    }
    if about.stdout_is_output && about.contract.is_some() {
        line("manner", "what it prints is its output");
    }
    if about.stops_by_drop && about.contract.is_some() {
        line("manner", "a stop drops it without asking");
    }
    if about.steps {
        line("steps", "decides what follows each run of its jobs");
    }
    if about.contract.is_none() {
        line(
            "exit codes",
            match about.exit_codes {
                true => "0 to 255 (imports exit-with-code)",
                false => "0 and 1 (does not import exit-with-code)",
            },
        );
    }
    line("digest", &about.digest);
    let mut list = |name: &str, values: &mut dyn Iterator<Item = &str>| {
        let mut name = name;
        let mut none = true;
        for value in values {
            line(name, value);
            name = "";
            none = false;
        }
        if none {
            line(name, "none");
        }
    };
    list("exports", &mut about.exports.iter().map(String::as_str));
    list("imports", &mut about.imports.iter().map(String::as_str));
    list("may need", &mut about.needs.iter().copied());
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use backlot_wasm::ComponentForm;

    use super::*;

    #[test]
    fn what_a_component_says_of_itself_is_safe_to_show() {
        let hostile = format!("a\x1b[2J\u{202e}b\n  digest     fake{}", "c".repeat(100_000));
        let about = Description {
            form: ComponentForm::Producer,
            contract: Some("0.1.0"),
            kind: "hostile".parse().unwrap(),
            summary: hostile.clone(),
            input_schema: Some(hostile.clone()),
            stdout_is_output: false,
            stops_by_drop: false,
            exit_codes: false,
            steps: false,
            imports: vec![hostile.clone()],
            exports: vec![hostile.clone()],
            needs: vec![],
            digest: "sha256:00".into(),
        };
        let text = text(Path::new(&hostile), &about);
        assert!(!text.contains(['\x1b', '\u{202e}']), "{text}");
        assert_eq!(text.lines().count(), 10, "{text}");
        for line in text.lines() {
            let most = if line.starts_with("  input") { SCHEMA_BYTES } else { render::LINE_BYTES };
            assert!(line.len() <= 13 + most, "{} bytes: {line}", line.len());
        }
    }
}
