//! Searches a tree for lines that match a regular expression.
//!
//! What is searched is what `git grep -I --untracked` searches: hidden files
//! too, but nothing that `.gitignore` excludes, no binary files, and nothing
//! that a symbolic link leads to. One thing cannot be known without reading
//! git's index: a file that is ignored and tracked all the same is not searched.

mod search;
mod walk;

use backlot_sdk::{
    Completed, Descriptor, Error, Producer, Refusal, Request, Stopped, Stream, Task,
};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use ignore::overrides::{Override, OverrideBuilder};
use search::Search;
use serde::Deserialize;
use std::fmt;
use std::fs;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use walk::Walk;

/// How often progress is shown: often enough to be watched, too seldom to cost.
const REPORT_EVERY: Duration = Duration::from_millis(250);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    pattern: String,
    path: PathBuf,
    #[serde(default)]
    ignore_case: bool,
    glob: Option<String>,
    max_matches: Option<NonZeroU64>,
}

struct Grep {
    path: PathBuf,
    matcher: RegexMatcher,
    globs: Override,
    max_matches: u64,
}

impl Producer for Grep {
    type Input = Input;
    type Form = Stream;
    const DESCRIPTOR: Descriptor = Descriptor::new(
        "grep",
        "Searches a tree for lines that match a regular expression, honouring .gitignore",
    )
    .input_schema(include_str!("input.schema.json"));

    fn start(input: Input, _: &Request) -> Result<Self, Refusal> {
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(input.ignore_case)
            .line_terminator(Some(b'\n'))
            // Many lines are searched at once, and `^` and `$` mean each of them.
            .multi_line(true)
            .build(&input.pattern)
            .map_err(|error| invalid("pattern", &input.pattern, error))?;
        let kind = fs::metadata(&input.path).map_err(|error| {
            let path = input.path.display();
            Refusal::Unavailable(format!("`path` `{path}` cannot be searched: {error}"))
        })?;
        if !kind.is_dir() && !kind.is_file() {
            let path = input.path.display();
            return Err(invalid("path", path, "it is neither a folder nor a file"));
        }
        let root = match input.path.parent() {
            Some(folder) if kind.is_file() => folder,
            _ => &input.path,
        };
        let mut globs = OverrideBuilder::new(root);
        if let Some(glob) = &input.glob {
            globs.add(glob).map_err(|error| invalid("glob", glob, error))?;
        }
        Ok(Self {
            globs: globs
                .build()
                .map_err(|error| invalid("glob", input.glob.unwrap_or_default(), error))?,
            path: input.path,
            matcher,
            max_matches: input.max_matches.map_or(u64::MAX, NonZeroU64::get),
        })
    }

    async fn run(&self, task: &Task<Stream>) -> Result<Completed, Error> {
        let mut tally = Tally::default();
        match self.search_tree(task, &mut tally).await {
            Ok(()) => Ok(Completed::with_detail(tally.to_string())),
            Err(stopped) => Err(stopped.with_detail(tally.to_string()).into()),
        }
    }
}

impl Grep {
    async fn search_tree(&self, task: &Task<Stream>, tally: &mut Tally) -> Result<(), Stopped> {
        let mut search = Search::new(&self.matcher, self.max_matches);
        let mut reported = Instant::now();
        for found in Walk::new(&self.path, self.globs.clone()) {
            let searched = match found {
                Ok(path) => search.file(&path, task).await?,
                Err(error) => Err(error),
            };
            match searched {
                Ok(matches) => {
                    tally.files += 1;
                    tally.matches += matches;
                }
                // One unreadable file is no reason to give up the others.
                Err(error) => {
                    eprintln!("{error}");
                    tally.unreadable += 1;
                }
            }
            if tally.matches >= self.max_matches {
                tally.cut_short = true;
                break;
            }
            if reported.elapsed() >= REPORT_EVERY {
                task.report(tally.to_string());
                reported = Instant::now();
            }
            task.checkpoint().await?;
        }
        Ok(())
    }
}

/// How far a search has come.
#[derive(Default)]
struct Tally {
    matches: u64,
    files: u64,
    unreadable: u64,
    cut_short: bool,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let es = |count| if count == 1 { "" } else { "es" };
        let s = |count| if count == 1 { "" } else { "s" };
        let (matches, files) = (self.matches, self.files);
        write!(f, "{matches} match{} in {files} file{}", es(matches), s(files))?;
        if self.cut_short {
            write!(f, ", as many as were asked for")?;
        }
        if self.unreadable > 0 {
            write!(f, "; {} could not be read", self.unreadable)?;
        }
        Ok(())
    }
}

fn invalid(field: &str, value: impl fmt::Display, error: impl fmt::Display) -> Refusal {
    Refusal::InvalidInput(format!("`{field}` `{value}` is not usable: {error}"))
}

backlot_sdk::export!(stream: Grep);
