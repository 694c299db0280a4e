//! What a job's runs ask to be granted, as it is written down.

use std::{str::FromStr, time::Duration};

use backlot_surface::wire::Grant;
use backlot_wasm::{Ask, LimitsAsk};

/// How a grant is written down, and what it asks for.
pub(crate) trait Recorded: Sized {
    /// Returns what a job's record asks for; nothing was said where there is none.
    ///
    /// # Errors
    ///
    /// In words, when a part cannot be read.
    fn of_record(grant: Option<&str>) -> Result<Ask, String>;

    /// Returns it as it is written down; `None` where nothing is asked for.
    fn to_record(&self) -> Option<String>;

    /// Returns what is asked for.
    ///
    /// # Errors
    ///
    /// In words, when a part cannot be read.
    fn ask(&self) -> Result<Ask, String>;
}

impl Recorded for Grant {
    fn of_record(grant: Option<&str>) -> Result<Ask, String> {
        let Some(grant) = grant else { return Ok(Ask::default()) };
        let grant: Self =
            serde_json::from_str(grant).map_err(|error| format!("the grant: {error}"))?;
        grant.ask()
    }

    fn to_record(&self) -> Option<String> {
        (!self.is_empty()).then(|| serde_json::to_string(self).unwrap_or_default())
    }

    fn ask(&self) -> Result<Ask, String> {
        let millis = |ms: Option<u64>| ms.map(Duration::from_millis);
        Ok(Ask {
            dirs: parsed("dirs", &self.dirs)?,
            env: parsed("env", &self.env)?,
            tcp: parsed("net", &self.net)?,
            udp: parsed("udp", &self.udp)?,
            http: parsed("http", &self.http)?,
            private: parsed("private", &self.private)?,
            limits: LimitsAsk {
                memory: self.memory,
                deadline: millis(self.deadline_ms),
                cpu: millis(self.cpu_ms),
                work_folder: self.work_folder,
                ..LimitsAsk::default()
            },
            grace: millis(self.grace_ms),
            ..Ask::default()
        })
    }
}

/// Returns what was named, unless nothing was.
fn parsed<T: FromStr>(name: &str, texts: &[String]) -> Result<Option<Vec<T>>, String>
where
    T::Err: std::fmt::Display,
{
    let parse = |text: &String| {
        text.parse().map_err(|error| format!("the grant's {name}, {text:?}: {error}"))
    };
    let values = texts.iter().map(parse).collect::<Result<Vec<T>, String>>()?;
    Ok((!values.is_empty()).then_some(values))
}
