//! Which tasks there are: the indexes and the caps.
//!
//! A plain value under the registry's one lock. Every operation costs what it
//! returns or drops, whatever the table holds. Tasks that it drops are handed
//! to the caller, so that their spools are freed outside the lock.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{Arc, Weak, atomic::Ordering},
};

use tokio::time::Instant;

use crate::{
    AgentId, Caller, Cap, Caps, Kind, Owner, Retention, SessionId, StartError, TaskId,
    owner::Registration,
    retention::{Archive, Swept},
    shelf::Shelf,
    task::Task,
};

/// Tasks in the order of their start.
type Tasks = Shelf<Arc<Task>>;

pub(crate) struct Table {
    /// Refuses every start once it is closed.
    pub(crate) open: bool,
    pub(crate) surfaces: usize,
    kinds: HashMap<Kind, OfKind>,
    /// The instance that is registered under an agent id now.
    agents: HashMap<AgentId, u64>,
    owners: HashMap<u64, OfOwner>,
    /// How many owners there were when the dead ones were last removed.
    owners_kept: usize,
    all: Tasks,
    unowned: Tasks,
    sessions: HashMap<SessionId, Tasks>,
    /// Live tasks, and starts that are on their way.
    live: usize,
    last_sequence: u64,
    last_owner: u64,
    archive: Archive,
}

struct OfKind {
    /// `None` once every number was used.
    next: Option<u64>,
    live: usize,
    tasks: HashMap<u64, Arc<Task>, BuildHasherDefault<NumberHasher>>,
}

struct OfOwner {
    registration: Weak<Registration>,
    disposed: bool,
    live: usize,
    starting: usize,
    tasks: Tasks,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            open: true,
            surfaces: 0,
            kinds: HashMap::new(),
            agents: HashMap::new(),
            owners: HashMap::new(),
            owners_kept: 0,
            all: Shelf::default(),
            unowned: Shelf::default(),
            sessions: HashMap::new(),
            live: 0,
            last_sequence: 0,
            last_owner: 0,
            archive: Archive::default(),
        }
    }

    // Starts.

    /// Makes a kind known, whose tasks are numbered from there.
    pub(crate) fn learn(&mut self, kind: &Kind, first: u64) {
        self.kinds.entry(kind.clone()).or_insert_with(|| OfKind {
            next: Some(first),
            live: 0,
            tasks: HashMap::default(),
        });
    }

    /// Checks all that the table knows of, and takes a place under the caps. A
    /// refusal changes nothing. `None` if the kind has to be learned first.
    pub(crate) fn take_place(
        &mut self,
        kind: &Kind,
        owner: Option<&Owner>,
        caps: &Caps,
    ) -> Result<Option<TaskId>, StartError> {
        if !self.open {
            return Err(StartError::Disposed);
        }
        if self.surfaces == 0 {
            return Err(StartError::NoSurface);
        }
        if let Some(owner) = owner {
            let live = self.live_under(owner)?;
            check(live, caps.per_owner, || Cap::Owner(owner.agent().clone()))?;
        }
        let Some(of_kind) = self.kinds.get_mut(kind) else { return Ok(None) };
        check(of_kind.live, caps.per_kind, || Cap::Kind(kind.clone()))?;
        check(self.live, caps.total, || Cap::Total)?;
        let number =
            of_kind.next.ok_or_else(|| StartError::NumbersExhausted { kind: kind.clone() })?;

        of_kind.next = number.checked_add(1);
        of_kind.live += 1;
        self.live += 1;
        if let Some(of_owner) = owner.and_then(|owner| self.owners.get_mut(&owner.number())) {
            of_owner.live += 1;
            of_owner.starting += 1;
        }
        Ok(Some(TaskId { kind: kind.clone(), number }))
    }

    /// Returns how many tasks live under the owner, if it is the instance that
    /// is registered under its agent id.
    fn live_under(&self, owner: &Owner) -> Result<usize, StartError> {
        let current = self.agents.get(owner.agent()) == Some(&owner.number());
        match self.owners.get(&owner.number()) {
            Some(of_owner) if current => Ok(of_owner.live),
            _ => Err(StartError::OwnerGone { agent: owner.agent().clone() }),
        }
    }

    /// Says whether a start that has taken its place may still go on.
    pub(crate) fn admits(&self, owner: Option<&Owner>) -> Result<(), StartError> {
        if !self.open {
            return Err(StartError::Disposed);
        }
        match owner {
            Some(owner) if self.owners.get(&owner.number()).is_none_or(|of| of.disposed) => {
                Err(StartError::OwnerGone { agent: owner.agent().clone() })
            }
            _ => Ok(()),
        }
    }

    /// Records that a start has come to its end, whatever that was.
    pub(crate) fn start_over(&mut self, owner: Option<&Owner>) {
        if let Some(of_owner) = owner.and_then(|owner| self.owners.get_mut(&owner.number())) {
            of_owner.starting -= 1;
        }
    }

    /// Puts a started task into the table, under the place that it took.
    ///
    /// An owner that was registered anew meanwhile keeps what it had started.
    pub(crate) fn insert(&mut self, task: &Arc<Task>) -> Result<(), StartError> {
        self.admits(task.owner.as_ref())?;
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        task.sequence.store(sequence, Ordering::Relaxed);
        match &task.owner {
            None => self.unowned.push(sequence, task.clone()),
            Some(owner) => {
                if let Some(of_owner) = self.owners.get_mut(&owner.number()) {
                    of_owner.starting -= 1;
                    of_owner.tasks.push(sequence, task.clone());
                }
                let of_session = self.sessions.entry(owner.session().clone()).or_default();
                of_session.push(sequence, task.clone());
            }
        }
        self.all.push(sequence, task.clone());
        if let Some(of_kind) = self.kinds.get_mut(&task.id.kind) {
            of_kind.tasks.insert(task.id.number, task.clone());
        }
        Ok(())
    }

    /// Frees the place of a task that has ended, or that came to nothing.
    pub(crate) fn leave(&mut self, kind: &Kind, owner: Option<&Owner>) {
        self.live -= 1;
        if let Some(of_kind) = self.kinds.get_mut(kind) {
            of_kind.live -= 1;
        }
        if let Some(of_owner) = owner.and_then(|owner| self.owners.get_mut(&owner.number())) {
            of_owner.live -= 1;
        }
    }

    // Owners.

    /// Registers an instance; it takes the place of another under the same agent id.
    pub(crate) fn register(&mut self, agent: AgentId, make: impl FnOnce(u64) -> Owner) -> Owner {
        self.forget_dead_owners();
        self.last_owner += 1;
        let owner = make(self.last_owner);
        self.agents.insert(agent, owner.number());
        self.owners.insert(
            owner.number(),
            OfOwner {
                registration: owner.downgrade(),
                disposed: false,
                live: 0,
                starting: 0,
                tasks: Shelf::default(),
            },
        );
        owner
    }

    /// Removes owners that nothing can name any more. Runs when their number
    /// has doubled, so that a registration costs the same on average.
    fn forget_dead_owners(&mut self) {
        if self.owners.len() <= 2 * self.owners_kept + 16 {
            return;
        }
        self.owners.retain(|_, of_owner| of_owner.registration.strong_count() > 0);
        let owners = &self.owners;
        self.agents.retain(|_, number| owners.contains_key(number));
        self.owners_kept = self.owners.len();
    }

    /// Refuses further starts under the owner and returns its tasks.
    pub(crate) fn close_owner(&mut self, owner: &Owner) -> Vec<Arc<Task>> {
        if self.agents.get(owner.agent()) == Some(&owner.number()) {
            self.agents.remove(owner.agent());
        }
        match self.owners.get_mut(&owner.number()) {
            None => Vec::new(),
            Some(of_owner) => {
                of_owner.disposed = true;
                of_owner.tasks.iter().cloned().collect()
            }
        }
    }

    /// Returns how many starts under the owner are on their way.
    pub(crate) fn starting(&self, owner: &Owner) -> usize {
        self.owners.get(&owner.number()).map_or(0, |of_owner| of_owner.starting)
    }

    /// Drops the owner and the records of its tasks.
    pub(crate) fn remove_owner(&mut self, owner: &Owner) -> Vec<Arc<Task>> {
        let Some(of_owner) = self.owners.remove(&owner.number()) else { return Vec::new() };
        let tasks: Vec<_> = of_owner.tasks.iter().cloned().collect();
        for task in &tasks {
            self.archive.forget(task);
            self.remove(task);
        }
        tasks
    }

    /// Refuses further starts and returns the tasks that live.
    pub(crate) fn close(&mut self) -> Vec<Arc<Task>> {
        self.open = false;
        self.live_tasks().cloned().collect()
    }

    /// Forgets all owners; those that live on hold nothing of the registry.
    pub(crate) fn detach_owners(&mut self) {
        self.agents.clear();
        self.owners.clear();
    }

    pub(crate) fn owners(&self) -> Vec<Owner> {
        self.owners.values().filter_map(|of_owner| Owner::upgrade(&of_owner.registration)).collect()
    }

    // Lookups.

    pub(crate) fn get(&self, id: &TaskId) -> Option<Arc<Task>> {
        self.kinds.get(&id.kind)?.tasks.get(&id.number).cloned()
    }

    /// Returns up to `limit` tasks that the caller may see, and whether there are more.
    pub(crate) fn page(&self, caller: &Caller, limit: usize, after: u64) -> (Vec<Arc<Task>>, bool) {
        let none = Shelf::default();
        let (first, second) = match caller {
            Caller::Operator => (&self.all, &none),
            Caller::Anyone => (&self.unowned, &none),
            Caller::Session(session) => {
                (&self.unowned, self.sessions.get(session).unwrap_or(&none))
            }
        };
        let mut first = first.after(after).peekable();
        let mut second = second.after(after).peekable();
        let mut merged = std::iter::from_fn(|| match (first.peek(), second.peek()) {
            (Some((one, _)), Some((other, _))) if other < one => second.next(),
            (None, _) => second.next(),
            _ => first.next(),
        })
        .map(|(_, task)| task.clone());
        let tasks: Vec<_> = merged.by_ref().take(limit).collect();
        let more = merged.next().is_some();
        (tasks, more)
    }

    pub(crate) fn live(&self) -> usize {
        self.live
    }

    pub(crate) fn terminal(&self) -> usize {
        self.archive.len()
    }

    /// Returns every task that has not ended.
    pub(crate) fn live_tasks(&self) -> impl Iterator<Item = &Arc<Task>> {
        self.all.iter().filter(|task| !task.is_terminal())
    }

    // Retention.

    /// Files an ended task for retention. Filing it again moves it where it
    /// belongs once somebody was told of its end.
    pub(crate) fn file(&mut self, task: &Arc<Task>) {
        // One that never came in, or has gone with its owner, is not kept.
        if task.sequence() != 0 {
            self.archive.file(task);
        }
    }

    /// Moves the records that are over the count or the age to where they are dropped.
    pub(crate) fn sweep(&mut self, now: Instant, retention: &Retention, swept: &mut Vec<Swept>) {
        while let Some(due) = self.archive.next_due(now, retention) {
            self.remove(&due.task);
            swept.push(due);
        }
    }

    fn remove(&mut self, task: &Arc<Task>) {
        let sequence = task.sequence.swap(0, Ordering::Relaxed);
        self.all.remove(sequence);
        if let Some(of_kind) = self.kinds.get_mut(&task.id.kind) {
            of_kind.tasks.remove(&task.id.number);
        }
        match &task.owner {
            None => {
                self.unowned.remove(sequence);
            }
            Some(owner) => {
                if let Some(of_owner) = self.owners.get_mut(&owner.number()) {
                    of_owner.tasks.remove(sequence);
                }
                if let Some(shelf) = self.sessions.get_mut(owner.session()) {
                    shelf.remove(sequence);
                    if shelf.is_empty() {
                        self.sessions.remove(owner.session());
                    }
                }
            }
        }
    }
}

/// Hashes the numbers of tasks. They are issued one after the other and by
/// nobody else, so neighbours may lie side by side: a start then touches memory
/// that the start before it has touched.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        // The map tells entries apart by the highest bits, which small numbers lack.
        self.0 ^ (self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) & 0xFE00_0000_0000_0000)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

fn check(live: usize, limit: Option<usize>, cap: impl FnOnce() -> Cap) -> Result<(), StartError> {
    match limit {
        Some(limit) if live >= limit => Err(StartError::Full { cap: cap(), limit }),
        _ => Ok(()),
    }
}
