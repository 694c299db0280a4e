//! Many threads at once: what the paused tests cannot show.

use std::{collections::HashSet, sync::Arc, time::Duration};

use backlot_registry::{
    Agreed, BoxFuture, Channel, Control, Form, Kill, Kind, Mode, OnDrop, Outcome, Producer,
    Refusal, Request, Run, Start, Stream, TaskHost,
};

use crate::support::{Host, LONG, OPERATOR};

/// Starts work that writes its number of lines, ends by itself or is stopped.
struct Busy {
    kind: Kind,
}

struct Stoppable;

impl Control for Stoppable {
    fn cancel(
        &self,
        _reason: Option<String>,
    ) -> BoxFuture<'static, Result<Agreed, backlot_registry::StopRefusal>> {
        Box::pin(async { Ok(Agreed::DropNow) })
    }
}

impl Producer for Busy {
    fn kind(&self) -> &Kind {
        &self.kind
    }

    fn form(&self) -> Form {
        Form::Stream
    }

    fn run(&self, request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        let lines: usize = request.input.parse().unwrap();
        let done = Box::pin(async move {
            for line in 0..lines {
                host.output().write_as(Channel::Out, format!("{line}\n").as_bytes());
                tokio::task::yield_now().await;
            }
            Outcome::completed()
        });
        let run = Run { control: Arc::new(Stoppable), done, on_drop: OnDrop::ReleasesAll };
        Box::pin(async { Ok(run) })
    }
}

fn lines(lines: usize) -> String {
    (0..lines).map(|line| format!("{line}\n")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_lose_and_double_nothing() {
    const CALLERS: usize = 8;
    const ROUNDS: usize = 200;
    let host = Arc::new(Host::new());
    let notices = host.notices();
    let busy = Arc::new(Busy { kind: Kind::new("busy").unwrap() });
    let callers = (0..CALLERS).map(|caller| {
        let (host, busy) = (host.clone(), busy.clone());
        tokio::spawn(async move {
            let registry = &host.registry;
            let mut ids = Vec::new();
            for round in 0..ROUNDS {
                let count = (caller * 31 + round * 7) % 40;
                let start = Start { input: count.to_string(), ..Start::default() };
                let id = registry.start(busy.clone(), start).await.unwrap();
                ids.push(id.clone());
                match round % 4 {
                    // Five wait, and all get the end.
                    0 => {
                        let waits = (0..5).map(|_| registry.wait(&id, &OPERATOR, LONG));
                        for waited in futures::future::join_all(waits).await {
                            let ended = waited.unwrap();
                            assert!(ended.status.is_terminal() && ended.reported);
                        }
                        assert_eq!(host.read(&id).await, lines(count));
                    }
                    // Two read at once, and an observer sees all of it.
                    1 => {
                        let reader = || async {
                            let mut bytes = 0;
                            loop {
                                let read = registry.read(&id, &OPERATOR, 7).await.unwrap();
                                bytes += read.text.len();
                                if read.snapshot.status.is_terminal() && !read.more {
                                    return bytes;
                                }
                                tokio::task::yield_now().await;
                            }
                        };
                        let observing = async {
                            let mut observer =
                                registry.observe(&id, &OPERATOR, Stream::Output, 0).unwrap();
                            let mut bytes = Vec::new();
                            while let Some(piece) = observer.next(13).await {
                                bytes.extend_from_slice(&piece.bytes);
                            }
                            bytes
                        };
                        let (one, other, seen) = tokio::join!(reader(), reader(), observing);
                        assert_eq!(one + other, lines(count).len());
                        assert_eq!(seen, lines(count).into_bytes());
                    }
                    // Kills cross the end, and each other.
                    2 => {
                        let mode = if round % 8 == 2 { Mode::Ask } else { Mode::Force };
                        let kill = Kill { mode, reason: None };
                        let (one, other) = tokio::join!(
                            registry.kill(&id, &OPERATOR, kill.clone()),
                            registry.kill(&id, &OPERATOR, kill)
                        );
                        one.unwrap();
                        other.unwrap();
                        assert!(registry.wait(&id, &OPERATOR, LONG).await.unwrap().reported);
                    }
                    // A wait is given up, wherever the task is by then.
                    _ => {
                        let wait = registry.wait(&id, &OPERATOR, LONG);
                        let _ = tokio::time::timeout(Duration::from_micros(50), wait).await;
                    }
                }
            }
            ids
        })
    });
    let mut ids = HashSet::new();
    for caller in futures::future::join_all(callers).await {
        for id in caller.unwrap() {
            assert!(ids.insert(id), "an id is used once");
        }
    }
    for id in &ids {
        host.wait(id).await;
    }
    assert_eq!(ids.len(), CALLERS * ROUNDS);
    let mut told = HashSet::new();
    for _ in 0..ids.len() {
        assert!(told.insert(notices.next().snapshot.id), "an end is announced once");
    }
    assert_eq!(told, ids);
    let health = host.registry.health();
    assert_eq!((health.live, health.waiters, health.missed_notices), (0, 0, 0));
    host.registry.dispose().await;
    assert!(notices.is_over(), "and there is no notice beyond");
}
