//! A program that embeds a host and brings a kind of its own, written in Rust: it
//! stands behind the same trait as a component does, and is listed, read, stopped
//! and waited for in the same way.
//!
//! ```sh
//! cargo run -p backlot --example embed
//! ```

use std::{sync::Arc, time::Duration};

use backlot::{
    Config, Host,
    registry::{
        Agreed, BoxFuture, Caller, Control, Form, Kill, Kind, Mode, OnDrop, Outcome, Producer,
        Refusal, Request, Run, Start, Step, StopRefusal, TaskHost,
    },
};
use tokio::sync::watch;

/// Counts down from its input.
struct Countdown {
    kind: Kind,
}

impl Producer for Countdown {
    fn kind(&self) -> &Kind {
        &self.kind
    }

    fn form(&self) -> Form {
        Form::Stream
    }

    fn run(&self, request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        Box::pin(async move {
            let from: u32 = request
                .input
                .parse()
                .map_err(|error| Refusal::InvalidInput(format!("{:?}: {error}", request.input)))?;
            let (stop, stopped) = watch::channel(false);
            Ok(Run {
                control: Arc::new(Stop(stop)),
                done: Box::pin(count(from, host, stopped)),
                // All of the work is in that future, so nothing outlives it.
                on_drop: OnDrop::ReleasesAll,
            })
        })
    }
}

/// The work itself, which ends when it is asked to.
async fn count(from: u32, host: TaskHost, mut stopped: watch::Receiver<bool>) -> Outcome {
    for left in (1..=from).rev() {
        host.output().write(format!("{left}\n").as_bytes());
        host.report(&format!("{left} to go"));
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
            _ = stopped.changed() => return Outcome::killed(),
        }
    }
    Outcome::completed()
}

/// The way to the work while it runs.
struct Stop(watch::Sender<bool>);

impl Control for Stop {
    fn cancel(&self, _: Option<String>) -> BoxFuture<'static, Result<Agreed, StopRefusal>> {
        self.0.send_replace(true);
        Box::pin(async { Ok(Agreed::WindsDown) })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Before anything else: components are compiled by processes of this program.
    backlot::wasm::compile_if_asked();
    tokio::runtime::Runtime::new()?.block_on(embed())
}

async fn embed() -> Result<(), Box<dyn std::error::Error>> {
    let host = Host::start(Config::default())?;
    let registry = host.registry();
    // While a surface is attached there is somebody who can see and stop tasks.
    let _surface = registry.attach_surface("embed");
    let countdown = Arc::new(Countdown { kind: Kind::new("countdown")? });
    let start = |input: &str| Start {
        label: format!("count down from {input}"),
        input: input.to_owned(),
        owner: None,
        step: Step::default(),
    };

    let id = registry.start(countdown.clone(), start("3")).await?;
    let ended = registry.wait(&id, &Caller::Operator, Duration::from_secs(60)).await?;
    let read = registry.read(&id, &Caller::Operator, usize::MAX).await?;
    println!("{}: {}\n{}", ended.id, ended.status, read.text.trim_end());

    let id = registry.start(countdown.clone(), start("1000000")).await?;
    let kill = Kill { mode: Mode::Ask, reason: Some("it takes too long".to_owned()) };
    registry.kill(&id, &Caller::Operator, kill).await?;
    let ended = registry.wait(&id, &Caller::Operator, Duration::from_secs(60)).await?;
    println!("{}: {}", ended.id, ended.status);

    if let Err(refused) = registry.start(countdown, start("many")).await {
        println!("{refused}");
    }
    host.shutdown().await;
    Ok(())
}
