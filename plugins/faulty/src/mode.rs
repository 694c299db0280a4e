//! The ways to misbehave as an input names them; `lib.rs` describes each.

use serde::Deserialize;

#[derive(Clone, Deserialize)]
#[serde(
    tag = "mode",
    rename_all = "kebab-case",
    rename_all_fields = "snake_case",
    deny_unknown_fields
)]
pub(crate) enum Mode {
    RefuseInput {
        #[serde(default = "some_text")]
        text: String,
    },
    RefuseUnavailable {
        #[serde(default = "some_text")]
        text: String,
    },
    RunTrap,
    RunSpin,
    RunBlock {
        s: f64,
    },

    Now,
    Fail {
        #[serde(default = "some_text")]
        detail: String,
    },
    KilledUnasked,
    FinalOutput {
        bytes: usize,
    },
    LongDetail {
        bytes: usize,
    },
    Trap {
        #[serde(default = "three")]
        lines: u32,
        #[serde(default = "hundred")]
        ms: u64,
    },
    Panic {
        #[serde(default = "some_text")]
        text: String,
    },
    Exit {
        #[serde(default)]
        code: i32,
    },
    Never,
    ReturnThenSpin {
        #[serde(default = "fifty")]
        ms: u64,
    },
    ReturnThenTrap {
        #[serde(default = "fifty")]
        ms: u64,
    },
    ReturnThenSleep {
        s: f64,
    },

    Sleep {
        s: f64,
        #[serde(default)]
        deaf: bool,
    },
    Block {
        s: f64,
    },
    Spin,
    Looker,
    LateLooker,
    Stubborn {
        #[serde(default)]
        every_ms: u64,
    },
    StubbornSpin,
    CancelErrs {
        #[serde(default)]
        how: Refusing,
        #[serde(default = "for_ever_times")]
        times: u32,
    },
    CancelSlow {
        ms: u64,
    },
    CancelSpin,
    CancelTrap,

    Flood {
        #[serde(default = "for_ever")]
        bytes: u64,
        #[serde(default)]
        stop_at: StopAt,
    },
    FloodStdout {
        #[serde(default = "for_ever")]
        bytes: u64,
    },
    FloodStderr {
        #[serde(default = "for_ever")]
        bytes: u64,
    },
    FloodReports {
        #[serde(default = "for_ever")]
        count: u64,
    },
    Report {
        text: String,
    },
    SplitChars {
        times: u64,
        #[serde(default = "twenty")]
        every_ms: u64,
    },
    ReadBig {
        bytes: usize,
    },
    ReadSpin,
    ReadTrap {
        #[serde(default)]
        after_done: bool,
    },

    Grow {
        #[serde(default)]
        tolerant: bool,
    },
    Recurse {
        #[serde(default)]
        calls_host: bool,
    },
    Fifo {
        path: String,
    },
    Fs {
        tries: Vec<Try>,
    },
    Env,
    Net {
        #[serde(default)]
        connect: Vec<String>,
        #[serde(default)]
        listen: Vec<String>,
        #[serde(default)]
        resolve: Vec<String>,
    },

    Mark {
        s: f64,
        #[serde(default = "marks")]
        path: String,
        #[serde(default = "two_hundred")]
        every_ms: u64,
        #[serde(default)]
        failing: u32,
    },
    Version {
        s: f64,
        #[serde(default = "two_hundred")]
        every_ms: u64,
    },

    AfterTrap,
    AfterSpin,
    AfterReport,
    AfterEnd {
        failure: Option<String>,
    },
    AfterProceed {
        kind: Option<String>,
        #[serde(default = "one")]
        bytes: usize,
        #[serde(default)]
        state_bytes: usize,
    },
    AfterAsk {
        #[serde(default = "one")]
        bytes: usize,
        schema: Option<String>,
    },
}

/// How `cancel` refuses.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Refusing {
    #[default]
    NotNow,
    Broken,
}

/// How a flood ends.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StopAt {
    #[default]
    Return,
    Fail,
    Trap,
}

/// One thing to try with the file system.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Try {
    pub(crate) op: Op,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) to: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    Stat,
    List,
    Read,
    Write,
    Append,
    Mkdir,
    Remove,
    Rename,
    Link,
    Symlink,
}

fn some_text() -> String {
    "as the input asked".to_owned()
}

fn marks() -> String {
    "/job/marks.txt".to_owned()
}

fn one() -> usize {
    1
}

fn three() -> u32 {
    3
}

fn twenty() -> u64 {
    20
}

fn fifty() -> u64 {
    50
}

fn hundred() -> u64 {
    100
}

fn two_hundred() -> u64 {
    200
}

fn for_ever() -> u64 {
    u64::MAX
}

fn for_ever_times() -> u32 {
    u32::MAX
}
