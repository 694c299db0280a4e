//! R23: from the foreground to the background.

use std::time::Duration;

use backlot_registry::{Foreground, Outcome, Start, StartError, Status};
use tokio::{sync::oneshot, time::Instant};

use crate::support::{Beginning, Host, until};

#[tokio::test(start_paused = true)]
async fn r23_what_ends_within_the_budget_is_given_as_a_result() {
    let host = Host::new();
    let budget = Duration::from_secs(3);
    let running = host.registry.run_within(host.fake.clone(), Start::default(), budget);
    let ending = async {
        until(|| host.registry.health().waiters == 1).await;
        let work = host.fake.work();
        work.write("result");
        work.end(Outcome::completed());
    };
    let (ran, ()) = tokio::join!(running, ending);
    let Foreground::Ended(ended) = ran.unwrap() else { panic!("it ended") };
    assert_eq!((ended.status, ended.reported), (Status::Completed, true));
    assert_eq!(host.read(&ended.id).await, "result");
}

#[tokio::test(start_paused = true)]
async fn r23_what_takes_longer_goes_on_under_its_id() {
    let host = Host::new();
    let owner = host.owner("agent", "session");
    let start = Start { owner: Some(owner), ..Start::default() };
    let begun = Instant::now();
    let budget = Duration::from_secs(3);
    let ran = host.registry.run_within(host.fake.clone(), start, budget).await.unwrap();
    assert_eq!(begun.elapsed(), budget);
    let Foreground::Background(id) = ran else { panic!("it goes on") };
    let live = host.get(&id);
    assert_eq!((live.status, live.reported), (Status::Running, false));
    host.fake.work().end(Outcome::completed());
    assert_eq!(host.wait(&id).await.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn r23_the_start_counts_towards_the_budget() {
    let host = Host::new();
    let (signal, after) = oneshot::channel();
    host.fake.begin(Beginning::After(after));
    let begun = Instant::now();
    let budget = Duration::from_secs(3);
    let running = host.registry.run_within(host.fake.clone(), Start::default(), budget);
    let signalling = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        signal.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(running, signalling);
    assert!(matches!(ran, Ok(Foreground::Background(_))));
    assert_eq!(begun.elapsed(), budget);
}

#[tokio::test(start_paused = true)]
async fn r23_what_does_not_start_is_an_error() {
    let host = Host::new();
    host.fake.begin(Beginning::Panic);
    let ran = host.registry.run_within(host.fake.clone(), Start::default(), Duration::ZERO).await;
    assert!(matches!(ran, Err(StartError::Panicked { .. })));
}
