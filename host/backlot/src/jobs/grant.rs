//! What a job's runs ask to be granted, as it is written down.

use std::{str::FromStr, time::Duration};

use backlot_wasm::{Ask, LimitsAsk};
use serde::{Deserialize, Serialize};

/// What a job's runs ask to be granted: folders, variables and peers as the command line
/// writes them, sizes in bytes, times in milliseconds. What is left out is not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Grant {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) dirs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) net: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) udp: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) http: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) private: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grace_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) work_folder: Option<u64>,
}

impl Grant {
    /// Returns what a job's record asks for; nothing was said where there is none.
    ///
    /// # Errors
    ///
    /// In words, when a part cannot be read.
    pub(crate) fn of_record(grant: Option<&str>) -> Result<Ask, String> {
        let Some(grant) = grant else { return Ok(Ask::default()) };
        let grant: Self =
            serde_json::from_str(grant).map_err(|error| format!("the grant: {error}"))?;
        grant.ask()
    }

    /// Returns it as it is written down; `None` where nothing is asked for.
    pub(crate) fn to_record(&self) -> Option<String> {
        (*self != Self::default()).then(|| serde_json::to_string(self).unwrap_or_default())
    }

    /// Returns what is asked for.
    ///
    /// # Errors
    ///
    /// In words, when a part cannot be read.
    pub(crate) fn ask(&self) -> Result<Ask, String> {
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
