//! `backlot kinds`: what the plugin folder has.

use std::{
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    pin::pin,
};

use backlot_wasm::{Component, Description, KindError, kind_files, kind_of};
use futures::{Stream, StreamExt as _, stream};

use crate::{
    cli::{Common, Kinds},
    commands::{print, warn},
    console::Console,
    exit::Exit,
    host::Host,
    render, wire,
};

/// How many instances the host has room for: nothing is run but `describe`.
const INSTANCES: u32 = 4;
/// How many files are loaded at a time. Each is in memory as a whole.
const AT_A_TIME: usize = 4;
/// The width of the column with the form: that of the longest, `stepped-final-producer`.
const FORM: usize = 22;

pub(crate) async fn kinds(args: Kinds, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let config = common.config(INSTANCES);
    let folder = config.plugins.clone();
    let prepared = kind_files(&folder).map_err(|error| cannot_list(&folder, &error));
    let prepared = prepared.and_then(|files| match Host::start(config) {
        Ok(host) => Ok((host, files)),
        Err(error) => Err(render::chain(&error)),
    });
    match prepared {
        Ok((host, files)) if args.json => {
            let exit = document(&host, &folder, &files, console).await;
            warn(console, &host, common).await;
            exit
        }
        Ok((host, files)) => {
            if files.is_empty() && !common.quiet {
                let none = format!("the plugin folder {} has no kinds", folder.display());
                console.err.say(&render::complaint(&none)).await;
            }
            let exit = lines(&host, &files, console).await;
            warn(console, &host, common).await;
            exit
        }
        Err(why) => {
            if args.json {
                let refused = wire::Kinds::refused(Some(&folder), render::one_line(&why));
                print(console, wire::line(&refused)).await?;
            }
            console.err.say(&render::complaint(&why)).await;
            Ok(Exit::Refused)
        }
    }
}

/// Prints a line for each kind, and what is wrong with the others, as they are loaded.
async fn lines(host: &Host, files: &[PathBuf], console: &Console) -> anyhow::Result<Exit> {
    let widest = files.iter().filter_map(|file| Some(kind_of(file).ok()?.as_str().len())).max();
    let width = io::stdout().is_terminal().then_some(widest.unwrap_or_default());
    let mut all_can_be_run = true;
    let mut loads = pin!(loads(host, files));
    while let Some((_, loaded)) = loads.next().await {
        match loaded {
            Ok(component) => {
                if !print(console, line(component.description(), width)).await? {
                    break;
                }
            }
            Err(error) => {
                all_can_be_run = false;
                console.err.say(&render::error(&error)).await;
            }
        }
    }
    Ok(exit(all_can_be_run))
}

/// Loads the files, some at a time, in their order.
fn loads<'a>(
    host: &'a Host,
    files: &'a [PathBuf],
) -> impl Stream<Item = (&'a PathBuf, Result<Component, KindError>)> {
    stream::iter(files)
        .map(async move |file| (file, host.load_kind_file(file).await))
        .buffered(AT_A_TIME)
}

/// Prints all of it as one document.
async fn document(
    host: &Host,
    folder: &Path,
    files: &[PathBuf],
    console: &Console,
) -> anyhow::Result<Exit> {
    let mut kinds = Vec::with_capacity(files.len());
    let mut loads = pin!(loads(host, files));
    while let Some((file, loaded)) = loads.next().await {
        let about = loaded.as_ref().map(Component::description).map_err(render::chain);
        kinds.push(wire::File::of(file, about));
    }
    let exit = exit(kinds.iter().all(|kind| kind.ok));
    let folder = Some(folder.display().to_string());
    print(console, wire::line(&wire::Kinds { folder, kinds, error: None })).await?;
    Ok(exit)
}

fn exit(all_can_be_run: bool) -> Exit {
    match all_can_be_run {
        true => Exit::Completed,
        false => Exit::Failed,
    }
}

/// Returns the line of a kind: in columns, the first of that width, or separated
/// by tabs.
fn line(about: &Description, width: Option<usize>) -> String {
    let kind = about.kind.as_str();
    let form = about.form.to_string();
    let summary = render::one_line(&about.summary);
    match width {
        Some(width) => format!("{kind:<width$}  {form:<FORM$}  {summary}\n"),
        None => format!("{kind}\t{form}\t{summary}\n"),
    }
}

fn cannot_list(folder: &Path, error: &io::Error) -> String {
    let folder = folder.display();
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "the plugin folder {folder} is missing; build the kinds with `just plugins`, or name \
             another folder with --plugins"
        ),
        _ => format!("cannot list the plugin folder {folder}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use backlot_wasm::ComponentForm;

    use super::*;

    #[test]
    fn a_kind_is_one_line_whatever_it_says_of_itself() {
        let about = Description {
            form: ComponentForm::SteppedFinalProducer,
            contract: Some("0.1.0"),
            kind: "hostile".parse().unwrap(),
            summary: "a\tb\x1b[2J\u{202e}\nc".into(),
            input_schema: None,
            stdout_is_output: false,
            stops_by_drop: false,
            exit_codes: false,
            steps: true,
            imports: vec![],
            exports: vec![],
            needs: vec![],
            digest: "sha256:00".into(),
        };
        assert_eq!(line(&about, None), "hostile\tstepped-final-producer\ta b [2J  c\n");
        assert_eq!(line(&about, Some(9)), "hostile    stepped-final-producer  a b [2J  c\n");
        assert_eq!(about.form.to_string().len(), FORM);
    }
}
