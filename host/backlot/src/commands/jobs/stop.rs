//! `backlot stop`: jobs are stopped, or will be.

use backlot_surface::wire::{StopHow, StopOutcome, StopReply, StopRequest};

use super::{Told, gist, reach};
use crate::{
    cli::{Common, Stop},
    commands::print,
    console::Console,
    exit::Exit,
    wire,
};

pub(crate) async fn stop(args: Stop, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let acting = match reach::act(common, "backlot stop", reach::Stays::ForAMoment).await {
        Ok(acting) => acting,
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    let how = match (args.force, args.after_step) {
        (true, _) => StopHow::Force,
        (_, true) => StopHow::AfterStep,
        _ => StopHow::Ask,
    };
    let mut exit = Exit::Completed;
    for digits in &args.jobs {
        let request =
            StopRequest { how, by: Some("terminal".to_owned()), why: args.reason.clone() };
        match acting.client.stop(digits, &request).await {
            Ok(reply) => {
                let text = if args.json { wire::line(&reply) } else { line(&reply) };
                print(console, text).await?;
            }
            Err(error) => {
                let own = Told::from(error).tell(args.json, console).await;
                exit = if exit == Exit::Completed { own } else { exit };
            }
        }
    }
    if let Some(holding) = acting.holding {
        holding.end().await;
    }
    Ok(exit)
}

fn line(reply: &StopReply) -> String {
    let id = reply.job.id.short();
    match reply.outcome {
        StopOutcome::Cancelled => format!("{id} cancelled\n"),
        StopOutcome::Stopping => format!("{id} is stopping\n"),
        StopOutcome::AfterStep => format!("{id} stops once its run has ended\n"),
        StopOutcome::Already => format!("{}\n", gist(&reply.job)),
    }
}
