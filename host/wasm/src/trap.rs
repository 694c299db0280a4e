//! Errors of wasmtime in one line, for people.

use wasmtime_wasi::{I32Exit, ResourceTableError};

use crate::{contract::Version, limits::Exceeded, link::Call, text};

/// Returns the exit code, if the error is a guest that has exited.
pub(crate) fn exit_code(error: &wasmtime::Error) -> Option<i32> {
    error.downcast_ref::<I32Exit>().map(|exit| exit.0)
}

/// Tells whether a guest has handed over more in one call than it may. wasmtime
/// keeps the error's type to itself, so its text has to do.
pub(crate) fn is_host_call_limit(error: &wasmtime::Error) -> bool {
    error.root_cause().to_string().starts_with("too much data is being copied")
}

/// Tells whether the host keeps as many objects for a guest as it may.
pub(crate) fn is_table_full(error: &wasmtime::Error) -> bool {
    matches!(error.downcast_ref(), Some(ResourceTableError::Full))
}

/// Tells whether there was no room for one more instance.
pub(crate) fn is_capacity(error: &wasmtime::Error) -> bool {
    error.downcast_ref::<wasmtime::PoolConcurrencyLimitError>().is_some()
}

/// Says in one line why a guest's execution ended, the limit first where one
/// was hit: an allocation that failed is mostly followed by a trap.
pub(crate) fn because(error: &wasmtime::Error, exceeded: Option<Exceeded>) -> String {
    let cause = match exit_code(error) {
        Some(code) => format!("the guest called exit with code {code}"),
        None => match error.downcast_ref::<wasmtime::Trap>() {
            Some(trap) => trap.to_string(),
            None => line(error),
        },
    };
    match exceeded {
        Some(limit) => format!("{limit} ({cause})"),
        None => cause,
    }
}

/// Returns the error and its causes in one line, without backtraces.
pub(crate) fn line(error: &wasmtime::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let first = text::line(cause.lines().next().unwrap_or_default());
        let is_frame = first.starts_with("error while executing at wasm backtrace");
        if !first.is_empty() && !is_frame && !parts.contains(&first) {
            parts.push(first);
        }
    }
    match parts.is_empty() {
        true => "an unknown error".to_owned(),
        false => parts.join(": "),
    }
}

/// Returns the call that the guest was executing, where the names in the component
/// tell it. `done` and another can be under way at a time, and it is `done` that
/// goes on when both can.
pub(crate) fn executing(error: &wasmtime::Error) -> Option<Call> {
    let backtrace = error.downcast_ref::<wasmtime::WasmBacktrace>()?;
    let outermost = backtrace.frames().last()?.func_name()?;
    let is =
        |interface: &str, call: Call| outermost.ends_with(&format!("{interface}#{}", call.name()));
    Version::ALL.iter().find_map(|version| {
        let names = version.names();
        let calls = [
            (names.lifecycle, Call::Run),
            (names.lifecycle, Call::Done),
            (names.lifecycle, Call::Cancel),
            (names.output, Call::ReadOutput),
        ];
        calls.into_iter().find(|(interface, call)| is(interface, *call)).map(|(_, call)| call)
    })
}

/// Returns the guest's frames, innermost first, a line each.
pub(crate) fn frames(error: &wasmtime::Error) -> Option<String> {
    let backtrace = error.downcast_ref::<wasmtime::WasmBacktrace>()?;
    let frames: Vec<String> = backtrace
        .frames()
        .iter()
        .enumerate()
        // The names are the guest's own.
        .map(|(depth, frame)| {
            format!("  {depth:>2}: {}", text::line(frame.func_name().unwrap_or("?")))
        })
        .collect();
    (!frames.is_empty()).then(|| frames.join("\n"))
}
