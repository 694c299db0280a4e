//! `backlot retry` and `backlot answer`: a job goes on.

use backlot_jobs::output::{Part, Recording};
use backlot_surface::wire::{AnswerRequest, HandView, JobView, LookQuery};

use super::{
    Told,
    follow::Follow,
    gist, reach,
    reach::{Acting, Reach},
};
use crate::{
    cli::{Answer, Common, Retry},
    commands::{follow::Signals, print},
    console::Console,
    exit::Exit,
    wire,
};

pub(crate) async fn retry(args: Retry, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let acting = match reach::act(common, "backlot retry", reach::Stays::WhileJobsRun).await {
        Ok(acting) => acting,
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    let begin = recorded(&acting, &args.job).await;
    let job = acting.client.retry(&args.job, HandView::Person).await;
    let job = job.map_err(Told::from);
    went_on(acting, job, begin, args.json, common, console, &mut signals).await
}

pub(crate) async fn answer(
    args: Answer,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let acting = match reach::act(common, "backlot answer", reach::Stays::WhileJobsRun).await {
        Ok(acting) => acting,
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    let request = AnswerRequest { answer: args.answer };
    let begin = recorded(&acting, &args.job).await;
    let job = acting.client.answer(&args.job, &request, HandView::Person).await;
    let job = job.map_err(Told::from);
    went_on(acting, job, begin, args.json, common, console, &mut signals).await
}

/// Returns where what was recorded of a job ends: who goes on with it has seen the rest.
async fn recorded(acting: &Acting, digits: &str) -> (u64, u64) {
    let Ok(job) = acting.client.job(digits, &LookQuery::default()).await else { return (0, 0) };
    let folder = acting.folder.job(job.id);
    let ends = tokio::task::spawn_blocking(move || {
        let recording = Recording::new(folder);
        let end = |part| recording.end(part).unwrap_or_default();
        (end(Part::Output), end(Part::Log))
    });
    ends.await.unwrap_or_default()
}

/// Tells that a job goes on. Where it does so in this process, it is followed to its end.
async fn went_on(
    acting: Acting,
    job: Result<JobView, Told>,
    begin: (u64, u64),
    json: bool,
    common: &Common,
    console: &Console,
    signals: &mut Signals,
) -> anyhow::Result<Exit> {
    let Acting { client, folder, holding } = acting;
    let exit = match (&job, &holding) {
        (Err(told), _) => told.tell(json, console).await,
        (Ok(job), None) => {
            let text = if json { wire::line(job) } else { gist(job) + "\n" };
            print(console, text).await?;
            Exit::Completed
        }
        (Ok(job), Some(_)) => {
            let looking = (Reach::Host(client), Some(folder));
            let follow =
                Follow::new(looking, common, console, job.id.to_string(), json).from(begin);
            match follow.to_the_end(signals).await {
                Ok(exit) => exit,
                Err(told) => told.tell(json, console).await,
            }
        }
    };
    if let Some(holding) = holding {
        super::run::leave(holding, console, common.quiet, signals).await;
    }
    Ok(exit)
}
