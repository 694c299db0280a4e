//! Ended tasks: kept up to a limit that is documented, and gone past it.

use std::{
    future::ready,
    sync::Arc,
    time::{Duration, Instant},
};

use backlot::registry::{
    Agreed, BoxFuture, Caller, Control, Form, Kind, OnDrop, Outcome, Producer, Refusal, Registry,
    Request, Run, Start, StopRefusal, TaskHost,
};
use backlot_tests::{Memory, TestHost};

/// Work that writes two kilobytes and has ended as soon as it is started.
struct Now(Kind);

impl Producer for Now {
    fn kind(&self) -> &Kind {
        &self.0
    }

    fn form(&self) -> Form {
        Form::Stream
    }

    fn run(&self, _: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        host.output().write(&[b'x'; 2_000]);
        let done = Box::pin(ready(Outcome::completed()));
        Box::pin(ready(Ok(Run { control: Arc::new(Over), done, on_drop: OnDrop::ReleasesAll })))
    }
}

struct Over;

impl Control for Over {
    fn cancel(&self, _: Option<String>) -> BoxFuture<'static, Result<Agreed, StopRefusal>> {
        Box::pin(ready(Ok(Agreed::DropNow)))
    }
}

/// Ends that many tasks, and has somebody told of each if asked to.
async fn end(registry: &Registry, producer: &Arc<Now>, count: u64, waits: bool) {
    for _ in 0..count {
        let id = registry.start(producer.clone(), Start::default()).await.unwrap();
        if waits {
            registry.wait(&id, &Caller::Operator, Duration::from_secs(10)).await.unwrap();
        }
        // Nobody waits, and yet they must not pile up alive either.
        until_live(registry, 64).await;
    }
    until_live(registry, 0).await;
}

async fn until_live(registry: &Registry, most: usize) {
    while registry.health().live > most {
        tokio::task::yield_now().await;
    }
}

/// C53: whether or not somebody was told of them.
#[tokio::test]
async fn c53_ended_tasks_do_not_pile_up() {
    let kept = backlot::Config::default().registry.retention.count;
    assert_eq!(kept, 10_000, "as the configuration documents");
    for waits in [true, false] {
        let host = TestHost::start();
        let registry = host.registry();
        let producer = Arc::new(Now("now".parse().unwrap()));
        let listed = || {
            let since = Instant::now();
            let all = registry.list(&Caller::Operator).len();
            let page = registry.list_page(&Caller::Operator, 100, 0);
            let took = since.elapsed();
            assert!(took < Duration::from_millis(200), "{took:?} for {all}");
            assert_eq!((page.tasks.len(), page.next.is_some()), (100, true));
            all
        };
        end(registry, &producer, 1_000, waits).await;
        assert_eq!(listed(), 1_000);
        end(registry, &producer, 11_000, waits).await;
        assert_eq!(listed(), kept);

        // The limit is reached: from here on nothing more is held.
        let memory = Memory::from_now();
        end(registry, &producer, 20_000, waits).await;
        assert_eq!(listed(), kept);
        // Those that went had written 40 MB.
        assert!(memory.growth() < 8 << 20, "{} bytes more", memory.growth());
        let health = registry.health();
        assert_eq!((health.live, health.terminal), (0, kept));
        assert_eq!(health.output_memory, 2_000 * kept as u64);
        // What goes without anybody having been told of it is counted.
        assert_eq!(health.untold_dropped, if waits { 0 } else { 32_000 - kept as u64 });

        // Those that ended last are left, and all of what they wrote is there. Some that
        // run at once end in an order of their own.
        let oldest = &registry.list_page(&Caller::Operator, 1, 0).tasks[0];
        let last = 32_000 - kept as u64;
        match waits {
            true => assert_eq!(oldest.id.number, last + 1),
            false => assert!(oldest.id.number > last - 200, "{}", oldest.id),
        }
        let read = registry.read(&oldest.id, &Caller::Operator, usize::MAX).await.unwrap();
        assert_eq!(read.text.len(), 2_000);
    }
}
