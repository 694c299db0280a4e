//! Threads for work that blocks. Each does one piece of it at a time, and there are as many
//! as there are pieces: work that never ends holds up none.

use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{self, Sender},
    },
    thread::{self, ThreadId},
    time::Duration,
};

/// How many threads that have nothing to do are kept for what comes next: each start of a
/// task has a piece of work that is shorter than the start of a thread.
const KEPT: usize = 2;
/// For how long they are kept.
const STAYS: Duration = Duration::from_secs(10);

pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// The threads that have nothing to do, with how they get work. One that is taken off gets
/// some for certain.
static IDLE: Mutex<Vec<(ThreadId, Sender<Work>)>> = Mutex::new(Vec::new());

fn idle() -> MutexGuard<'static, Vec<(ThreadId, Sender<Work>)>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives work to a thread that has none, or to a new one.
///
/// # Errors
///
/// When there are no threads to be had.
pub(crate) fn give(work: Work) -> io::Result<()> {
    let thread = idle().pop();
    let work = match thread {
        None => work,
        Some((_, sender)) => match sender.send(work) {
            Ok(()) => return Ok(()),
            Err(mpsc::SendError(work)) => work,
        },
    };
    thread::Builder::new().name("backlot-job".to_owned()).spawn(move || stay(work)).map(drop)
}

/// Works, and waits a moment for more.
fn stay(work: Work) {
    let (me, (sender, received)) = (thread::current().id(), mpsc::channel());
    let mut work = work;
    loop {
        work();
        {
            let mut idle = idle();
            if idle.len() >= KEPT {
                return;
            }
            idle.push((me, sender.clone()));
        }
        let next = received.recv_timeout(STAYS).or_else(|_| {
            let mut idle = idle();
            let kept = idle.len();
            idle.retain(|(thread, _)| *thread != me);
            match idle.len() == kept {
                // Somebody has just taken it off, and is about to give it work.
                true => {
                    drop(idle);
                    received.recv()
                }
                false => Err(mpsc::RecvError),
            }
        });
        let Ok(next) = next else { return };
        work = next;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Gives work that tells which thread does it, and waits for that.
    fn who() -> ThreadId {
        let (tell, told) = mpsc::channel();
        give(Box::new(move || tell.send(thread::current().id()).unwrap())).unwrap();
        told.recv().unwrap()
    }

    #[test]
    fn a_thread_works_again_and_one_that_is_busy_holds_up_nobody() {
        let (go, wait) = mpsc::channel::<()>();
        give(Box::new(move || wait.recv().unwrap())).unwrap();
        // Far fewer threads than pieces of work.
        let threads: HashSet<ThreadId> = (0..1_000).map(|_| who()).collect();
        assert!(threads.len() < 500, "{}", threads.len());
        go.send(()).unwrap();
        // What panics takes its own thread with it, and no other.
        give(Box::new(|| panic!("it was told to"))).unwrap();
        who();
        assert!(idle().len() <= KEPT);
    }
}
