//! `backlot check`: what component files are, and what they need.

use std::path::Path;

use backlot_wasm::Description;
use serde::Serialize;

use crate::{
    cli::Check,
    config::Config,
    exit::Exit,
    host::{Host, KindError},
    render, wire,
};

pub(crate) async fn check(args: Check) -> anyhow::Result<Exit> {
    // Nothing is run but `describe`, one file after the other.
    let host = Host::start(Config { instances: 4, ..Config::default() })?;
    let mut report = Report { files: Vec::with_capacity(args.files.len()) };
    let mut refused = false;
    for (nth, file) in args.files.iter().enumerate() {
        let loaded = host.load_file(file).await;
        refused |= loaded.is_err();
        match (&loaded, args.json) {
            (loaded, true) => {
                report.files.push(Entry::of(
                    file,
                    loaded.as_ref().map(backlot_wasm::Component::description),
                ));
            }
            (Ok(component), false) => {
                let blank = if nth == 0 { "" } else { "\n" };
                if render::out(&format!("{blank}{}", text(file, component.description())))?
                    .is_closed()
                {
                    break;
                }
            }
            (Err(error), false) => render::refusal(error),
        }
    }
    if args.json {
        // Nothing follows, so a reader that is gone changes nothing.
        let _ = render::json(&report)?;
    }
    Ok(if refused { Exit::Refused } else { Exit::Completed })
}

#[derive(Serialize)]
struct Report {
    files: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    file: String,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    component: Option<wire::Component>,
}

impl Entry {
    fn of(file: &Path, loaded: Result<&Description, &KindError>) -> Self {
        Self {
            file: file.display().to_string(),
            ok: loaded.is_ok(),
            error: loaded.err().map(render::chain),
            component: loaded.ok().map(wire::Component::of),
        }
    }
}

fn text(file: &Path, about: &Description) -> String {
    let mut lines = vec![file.display().to_string()];
    let mut line = |name: &str, value: &str| lines.push(format!("  {name:<10} {value}"));
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
