//! What `done` does in each mode.

use crate::bindings::backlot::producer::host;
use crate::bindings::backlot::producer::types::{Ending, Outcome, Request};
use crate::mode::{Mode, StopAt};
use crate::{faults, tries, write};
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};
use wasip3::clocks::monotonic_clock;
use wit_bindgen::{spawn_local, yield_async};

/// Output that the host has not collected is kept below this by waiting.
const PENDING: usize = 1 << 20;

/// A stop was asked for.
struct Stopped;

/// Does what the mode says and returns how it ended.
pub(crate) async fn work(mode: Mode, request: Request) -> Outcome {
    match misbehave(mode, request).await {
        Ok(outcome) => outcome,
        Err(Stopped) => outcome(Ending::Killed),
    }
}

/// Returns the outcome of work that broke.
pub(crate) fn failed(detail: &str) -> Outcome {
    Outcome { detail: Some(detail.to_owned()), ..outcome(Ending::Failed) }
}

fn outcome(ending: Ending) -> Outcome {
    Outcome { ending, detail: None, output: None }
}

fn completed() -> Outcome {
    outcome(Ending::Completed)
}

async fn misbehave(mode: Mode, request: Request) -> Result<Outcome, Stopped> {
    match mode {
        Mode::Now | Mode::RunBlock { .. } => {}
        // What these do wrong is done in `after`.
        Mode::AfterTrap | Mode::AfterSpin | Mode::AfterReport => {}
        Mode::AfterEnd { .. } | Mode::AfterProceed { .. } | Mode::AfterAsk { .. } => {}
        // These have ended in `run`.
        Mode::RefuseInput { .. } | Mode::RefuseUnavailable { .. } => {}
        Mode::RunTrap | Mode::RunSpin => {}

        Mode::Fail { detail } => return Ok(failed(&detail)),
        Mode::KilledUnasked => return Ok(outcome(Ending::Killed)),
        Mode::FinalOutput { bytes } => {
            return Ok(Outcome { output: Some("x".repeat(bytes)), ..completed() });
        }
        Mode::LongDetail { bytes } => {
            return Ok(Outcome { detail: Some("x".repeat(bytes)), ..completed() });
        }
        Mode::Trap { lines, ms } => {
            for number in 1..=lines {
                write(format!("line {number}\n"));
            }
            sleep(Duration::from_millis(ms)).await?;
            faults::trap();
        }
        Mode::Panic { text } => panic!("{text}"),
        Mode::Exit { code } => std::process::exit(code),
        Mode::Never => pending().await,
        Mode::ReturnThenSpin { ms } => go_on(Duration::from_millis(ms), || faults::spin()),
        Mode::ReturnThenTrap { ms } => go_on(Duration::from_millis(ms), || faults::trap()),
        Mode::ReturnThenSleep { s } => go_on(Duration::from_secs_f64(s), || ()),

        Mode::Sleep { s, deaf: false } => sleep(Duration::from_secs_f64(s)).await?,
        Mode::Sleep { s, deaf: true } => deaf_sleep(Duration::from_secs_f64(s)).await,
        Mode::Block { s } => std::thread::sleep(Duration::from_secs_f64(s)),
        Mode::Spin => faults::spin(),
        Mode::Looker => {
            faults::spin_until_asked();
            return Err(Stopped);
        }
        Mode::LateLooker => {
            faults::spin_until_asked();
            faults::spin();
        }
        Mode::Stubborn { every_ms: 0 } => {
            host::cancelled().await;
            pending::<()>().await;
        }
        Mode::Stubborn { every_ms } => {
            for number in 1_u64.. {
                write(format!("line {number}\n"));
                deaf_sleep(Duration::from_millis(every_ms)).await;
            }
        }
        Mode::StubbornSpin => {
            host::cancelled().await;
            faults::spin();
        }
        // What these do wrong is done in `cancel` or `read-output`.
        Mode::CancelErrs { .. }
        | Mode::CancelSlow { .. }
        | Mode::CancelSpin
        | Mode::CancelTrap
        | Mode::ReadBig { .. }
        | Mode::ReadSpin
        | Mode::ReadTrap { after_done: false } => until_stopped(pending()).await?,
        Mode::ReadTrap { after_done: true } => {
            write("line 1\n");
        }

        Mode::Flood { bytes, stop_at } => {
            flood(bytes).await?;
            match stop_at {
                StopAt::Return => {}
                StopAt::Fail => return Ok(failed("as the input asked")),
                StopAt::Trap => faults::trap(),
            }
        }
        Mode::FloodStdout { bytes } => numbered_lines(bytes).for_each(|line| print!("{line}")),
        Mode::FloodStderr { bytes } => numbered_lines(bytes).for_each(|line| eprint!("{line}")),
        Mode::FloodReports { count } => {
            (1..=count).for_each(|number| host::report(&format!("report {number}")));
        }
        Mode::Report { text } => {
            host::report(&text);
            until_stopped(pending()).await?;
        }
        Mode::SplitChars { times, every_ms } => {
            for _ in 0..times {
                for byte in "€✓🦀".bytes() {
                    write([byte]);
                    sleep(Duration::from_millis(every_ms)).await?;
                }
            }
        }

        Mode::Grow { tolerant } => {
            let mib = faults::grow();
            if !tolerant {
                faults::trap();
            }
            return Ok(Outcome { detail: Some(format!("refused after {mib} MiB")), ..completed() });
        }
        Mode::Recurse { calls_host } => {
            faults::recurse(0, calls_host);
        }
        Mode::Fifo { path } => match tries::read(&path) {
            Ok(bytes) => _ = write(bytes),
            Err(error) => return Ok(failed(&format!("{path}: {error}"))),
        },
        Mode::Fs { tries } => tries.iter().for_each(|each| _ = write(tries::try_file(each))),
        Mode::Env => _ = write(environment()),
        Mode::Net { connect, listen, resolve } => {
            connect.iter().for_each(|address| _ = write(tries::try_connect(address)));
            listen.iter().for_each(|address| _ = write(tries::try_listen(address)));
            resolve.iter().for_each(|address| _ = write(tries::try_resolve(address)));
        }

        Mode::Mark { s, path, every_ms, failing } => {
            let attempt = request.attempt;
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs_f64(s) {
                let ms = begun.elapsed().as_millis();
                if let Err(error) = tries::append(&path, &format!("attempt={attempt} t={ms}\n")) {
                    return Ok(failed(&format!("{path}: {error}")));
                }
                sleep(Duration::from_millis(every_ms)).await?;
            }
            if attempt <= failing {
                return Ok(failed(&format!("attempt {attempt} fails as the input asked")));
            }
        }
        Mode::Version { s, every_ms } => {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs_f64(s) {
                write(format!("{}\n", option_env!("FAULTY_VERSION").unwrap_or("A")));
                sleep(Duration::from_millis(every_ms)).await?;
            }
        }
    }
    Ok(completed())
}

/// Has the guest go on after `done` has resolved: it sleeps, and then does `last`.
fn go_on(pause: Duration, last: impl FnOnce() + 'static) {
    // Not waited for: the handle only tells when it has ended.
    drop(spawn_local(async move {
        deaf_sleep(pause).await;
        last();
    }));
}

async fn deaf_sleep(duration: Duration) {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    monotonic_clock::wait_for(ns).await;
}

async fn sleep(duration: Duration) -> Result<(), Stopped> {
    until_stopped(deaf_sleep(duration)).await
}

async fn until_stopped<T>(work: impl Future<Output = T>) -> Result<T, Stopped> {
    let mut stopped = pin!(host::cancelled());
    let mut work = pin!(work);
    poll_fn(|context| {
        if stopped.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(Stopped));
        }
        work.as_mut().poll(context).map(Ok)
    })
    .await
}

/// Writes lines with so many bytes in all as fast as the host takes them.
async fn flood(bytes: u64) -> Result<(), Stopped> {
    until_stopped(async {
        for line in numbered_lines(bytes) {
            if write(line) < PENDING {
                continue;
            }
            while write("") >= PENDING / 2 {
                yield_async().await;
            }
        }
        // Handed over before it ends, so that a trap costs nothing.
        while write("") > 0 {
            yield_async().await;
        }
    })
    .await
}

/// Returns `line 1`, `line 2` and so on; the last is cut where `bytes` are used up.
fn numbered_lines(mut bytes: u64) -> impl Iterator<Item = String> {
    (1_u64..).map_while(move |number| {
        let mut line = format!("line {number}\n");
        line.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        bytes -= line.len() as u64;
        (!line.is_empty()).then_some(line)
    })
}

fn environment() -> String {
    let mut lines = String::new();
    for (at, argument) in std::env::args().enumerate() {
        lines += &format!("arg {at}: {argument}\n");
    }
    for (name, value) in std::env::vars() {
        lines += &format!("env {name}={value}\n");
    }
    match std::env::current_dir() {
        Ok(folder) => lines + &format!("folder: {}\n", folder.display()),
        Err(error) => lines + &format!("folder: {error}\n"),
    }
}
