//! Kinds, and the versions of them that are loaded.
//!
//! A kind has one current version, which tasks started now will run. A task keeps the
//! version that it was started with, and a version's code is let go of with its last
//! task. The good versions before the current one are kept to go back to: their code
//! is not mapped, and can be again without their files.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use backlot_registry::{
    Announcer, Catalog, Change, Changes, Clock, Generation, GenerationView, Kind, KindDescriptor,
    KindState, KindView, Refusal,
};
use tokio::sync::{Mutex as Turns, Notify, OwnedMutexGuard};

use crate::{
    audit,
    code::Dormant,
    component::{Component, LoadError, Loaded, Starting},
    engine::Engine,
    instance::ComponentProducer,
    policy::{Ask, Decision, Manifest, Policy, Rules, Sources},
    terms::{Terms, decision},
    trap,
};

/// How many good versions of a kind there are to be, the current one among them.
const GOOD: usize = 3;

/// How many kinds are remembered; beyond that, those are forgotten that are gone. A
/// folder of some hundred kinds may be replaced as a whole.
pub(crate) const REMEMBERED: usize = 1_000;

/// The kinds of a host. Clones are handles to one catalogue.
#[derive(Clone)]
pub struct ComponentCatalog(Arc<Inner>);

struct Inner {
    engine: Engine,
    clock: Arc<dyn Clock>,
    announcer: Announcer,
    policy: Policy,
    sources: Sources,
    kinds: Mutex<BTreeMap<Kind, Entry>>,
    /// Wakes whoever waits for the last task of a version to end.
    idle: Arc<Notify>,
}

#[derive(Default)]
struct Entry {
    /// Whoever changes what is current has the turn.
    turns: Arc<Turns<()>>,
    last_number: u64,
    current: Option<Current>,
    /// Good versions that served before, the last one first.
    kept: VecDeque<Kept>,
    /// Versions that tasks may still run.
    leaving: Vec<Leaving>,
    /// Why no tasks are started.
    closed: Option<Closed>,
    /// Why the version that was offered last was not taken.
    trouble: Option<String>,
}

/// Why no tasks of a kind are started.
#[derive(Clone, Debug)]
struct Closed {
    state: KindState,
    why: String,
}

struct Current {
    about: About,
    serving: Arc<Serving>,
}

/// What tasks of a kind run that are started now, and what decides on their terms.
pub(crate) struct Serving {
    pub(crate) component: Component,
    manifest: Option<Manifest>,
    rules: Rules,
    plain: OnceLock<Plain>,
}

/// What starts get that ask for nothing in particular.
enum Plain {
    /// All of it is ready.
    Ready(Arc<ComponentProducer>),
    /// Folders have yet to be opened.
    Decided(Box<Decision>),
}

#[derive(Clone)]
struct Kept {
    about: About,
    dormant: Dormant,
    manifest: Option<Manifest>,
}

/// A good version from before that is ready again.
pub(crate) struct Earlier {
    pub(crate) component: Component,
    kept: Kept,
}

struct Leaving {
    about: About,
    loaded: Weak<Loaded>,
}

/// What there is to tell of a version.
#[derive(Clone)]
struct About {
    generation: Generation,
    contract: Option<&'static str>,
    loaded_at_ms: u64,
    descriptor: Arc<KindDescriptor>,
}

/// Why a kind did not go back to an earlier version.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    /// There is no such kind.
    #[error("there is no kind `{0}`; `backlot plugin ls` lists those that there are")]
    UnknownKind(Kind),
    /// No version is kept that the kind could go back to.
    #[error("{kind} has no earlier version to go back to; it has {}", numbers(.kept))]
    NoneKept {
        /// The kind.
        kind: Kind,
        /// The numbers of the versions that are kept.
        kept: Vec<u64>,
    },
    /// The version that was asked for is not kept.
    #[error("{kind} has no version {number} to go back to; it has {}", numbers(.kept))]
    NotKept {
        /// The kind.
        kind: Kind,
        /// The number that was asked for.
        number: u64,
        /// The numbers of the versions that are kept.
        kept: Vec<u64>,
    },
    /// Its code could not be made ready again.
    #[error("version {number} of {kind} cannot be made ready again")]
    Load {
        /// The kind.
        kind: Kind,
        /// The number of the version.
        number: u64,
        /// Why not.
        source: LoadError,
    },
}

/// There is no such kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no kind `{0}`; `backlot plugin ls` lists those that there are")]
pub struct UnknownKind(pub Kind);

/// Why a kind was not drained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrainError {
    /// There is no such kind.
    #[error(transparent)]
    UnknownKind(#[from] UnknownKind),
    /// It was loaded again while its tasks ended.
    #[error("{0} was loaded again while it was drained, and takes tasks")]
    Reopened(Kind),
}

fn numbers(kept: &[u64]) -> String {
    match kept {
        [] => "none".to_owned(),
        kept => kept.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl ComponentCatalog {
    /// Returns a catalogue without kinds, whose tasks are on the terms of a policy.
    pub fn new(engine: Engine, clock: Arc<dyn Clock>, policy: Policy, sources: Sources) -> Self {
        Self(Arc::new(Inner {
            engine,
            clock,
            announcer: Announcer::default(),
            policy,
            sources,
            kinds: Mutex::default(),
            idle: Arc::default(),
        }))
    }

    /// Returns what tasks of the kind run that are started now.
    pub fn current(&self, kind: &Kind) -> Option<Component> {
        let kinds = self.0.kinds();
        let entry = kinds.get(kind).filter(|entry| entry.closed.is_none())?;
        Some(entry.current.as_ref()?.serving.component.clone())
    }

    /// Returns what tasks may reach and use, by their kinds.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    pub(crate) fn sources(&self) -> &Sources {
        &self.0.sources
    }

    /// Waits for the turn to change what is current for a kind. While it is held
    /// nobody else changes that.
    pub(crate) async fn turn(&self, kind: &Kind) -> Turn {
        loop {
            let turns = Arc::clone(&self.0.kinds().entry(kind.clone()).or_default().turns);
            let held = Arc::clone(&turns).lock_owned().await;
            let kinds = self.0.kinds();
            // The kind may have been forgotten meanwhile, and be another one by now.
            let entry = kinds.get(kind).filter(|entry| Arc::ptr_eq(&entry.turns, &turns));
            if let Some(Entry { last_number, .. }) = entry {
                let (inner, kind) = (Arc::clone(&self.0), kind.clone());
                return Turn { inner, kind, number: last_number + 1, _held: held };
            }
        }
    }

    /// Has a kind go back to a good version from before: to the one with that number,
    /// or else to the last one before the current.
    ///
    /// # Errors
    ///
    /// When there is none, or its code cannot be made ready; what was current then
    /// still is.
    pub async fn rollback(
        &self,
        kind: &Kind,
        number: Option<u64>,
    ) -> Result<Generation, RollbackError> {
        let (turn, earlier) = self.earlier(kind, number).await?;
        Ok(turn.put_back(earlier))
    }

    /// Makes a good version from before ready again, and returns it with the turn to put
    /// it back.
    pub(crate) async fn earlier(
        &self,
        kind: &Kind,
        number: Option<u64>,
    ) -> Result<(Turn, Earlier), RollbackError> {
        self.known(kind).map_err(|UnknownKind(kind)| RollbackError::UnknownKind(kind))?;
        let turn = self.turn(kind).await;
        let (kept, at) = self.0.choose(kind, number)?;
        let number = kept.about.generation.number;
        let component = match at {
            Some(loaded) => Component(loaded),
            None => Component::wake(&self.0.engine, kind.as_str(), &kept.dormant, number)
                .await
                .map_err(|source| RollbackError::Load { kind: kind.clone(), number, source })?,
        };
        Ok((turn, Earlier { component, kept }))
    }

    /// Starts no more tasks of a kind, and lets go of what is current. Tasks that run
    /// go on.
    ///
    /// # Errors
    ///
    /// When there is no such kind.
    pub async fn unload(&self, kind: &Kind) -> Result<(), UnknownKind> {
        self.known(kind)?;
        self.turn(kind).await.close(KindState::Unloaded, "it was unloaded".to_owned());
        Ok(())
    }

    /// Starts no more tasks of a kind, waits until none runs any more, and unloads it.
    /// Dropping the future leaves the kind draining.
    ///
    /// # Errors
    ///
    /// When there is no such kind, or it is loaded again meanwhile.
    pub async fn drain(&self, kind: &Kind) -> Result<(), DrainError> {
        self.known(kind)?;
        self.drain_in(self.turn(kind).await).await
    }

    pub(crate) async fn drain_in(&self, turn: Turn) -> Result<(), DrainError> {
        let kind = turn.kind.clone();
        // Given back at once: tasks may take days, and a load of the kind does not wait.
        turn.close_as(KindState::Draining, "it is being drained".to_owned());
        loop {
            self.0.idle_or_serving(&kind).await;
            let turn = self.turn(&kind).await;
            match self.0.drained(&kind) {
                (KindState::Serving, _) => return Err(DrainError::Reopened(kind)),
                // It was opened meanwhile, and closed by somebody else.
                (_, false) => {}
                (KindState::Draining, true) => {
                    turn.close(KindState::Unloaded, "it was drained".to_owned());
                    return Ok(());
                }
                (KindState::Unloaded | KindState::Broken | KindState::Loading, true) => {
                    return Ok(());
                }
            }
        }
    }

    /// Returns what a task runs that is started now, and keeps the kind from being
    /// drained until that is dropped.
    ///
    /// # Errors
    ///
    /// A refusal that says why there is nothing.
    pub(crate) fn starting(&self, kind: &Kind) -> Result<(Arc<Serving>, Starting), Refusal> {
        let kinds = self.0.kinds();
        // Before the lock is let go of: whoever closes the kind then looks for starts.
        let serving = serving(kind, kinds.get(kind))?;
        let starting = Starting::of(Arc::clone(&serving.component.0));
        Ok((serving, starting))
    }

    /// Returns what a task runs that is started now.
    ///
    /// # Errors
    ///
    /// A refusal that says why there is nothing.
    pub(crate) fn serving(&self, kind: &Kind) -> Result<Arc<Serving>, Refusal> {
        serving(kind, self.0.kinds().get(kind))
    }

    fn known(&self, kind: &Kind) -> Result<(), UnknownKind> {
        match self.0.kinds().contains_key(kind) {
            true => Ok(()),
            false => Err(UnknownKind(kind.clone())),
        }
    }
}

impl Catalog for ComponentCatalog {
    fn kinds(&self) -> Vec<KindView> {
        self.0.kinds().iter_mut().map(|(kind, entry)| entry.view(kind)).collect()
    }

    fn kind(&self, kind: &Kind) -> Option<KindView> {
        self.0.kinds().get_mut(kind).map(|entry| entry.view(kind))
    }

    fn changes(&self) -> Changes {
        self.0.announcer.listen()
    }
}

impl fmt::Debug for ComponentCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = self.0.kinds();
        f.debug_set().entries(kinds.keys()).finish()
    }
}

impl Inner {
    fn kinds(&self) -> MutexGuard<'_, BTreeMap<Kind, Entry>> {
        // Every change is whole before anything can panic.
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until tasks of a kind neither run nor are being started, or until it takes
    /// tasks again.
    async fn idle_or_serving(&self, kind: &Kind) {
        loop {
            let mut idle = pin!(self.idle.notified());
            // Registered before the look, so that no wake-up falls between.
            idle.as_mut().enable();
            match self.drained(kind) {
                (KindState::Serving, _) | (_, true) => return,
                _ => idle.await,
            }
        }
    }

    /// Returns the state of a kind, and whether its tasks neither run nor are being
    /// started.
    fn drained(&self, kind: &Kind) -> (KindState, bool) {
        let kinds = self.kinds();
        kinds.get(kind).map_or((KindState::Unloaded, true), |it| (it.state(), it.is_idle()))
    }

    /// Returns the version that a kind is to go back to, and its code where tasks still
    /// run it.
    fn choose(
        &self,
        kind: &Kind,
        number: Option<u64>,
    ) -> Result<(Kept, Option<Arc<Loaded>>), RollbackError> {
        let kinds = self.kinds();
        let entry = kinds.get(kind).ok_or_else(|| RollbackError::UnknownKind(kind.clone()))?;
        let kept = || entry.kept.iter().map(|kept| kept.about.generation.number).collect();
        let chosen = match number {
            Some(number) => {
                entry.kept.iter().find(|kept| kept.about.generation.number == number).ok_or_else(
                    || RollbackError::NotKept { kind: kind.clone(), number, kept: kept() },
                )
            }
            None => {
                let current = entry.current.as_ref().map(|it| it.about.generation.number);
                entry
                    .kept
                    .iter()
                    .find(|it| current.is_none_or(|now| it.about.generation.number < now))
                    .ok_or_else(|| RollbackError::NoneKept { kind: kind.clone(), kept: kept() })
            }
        }?;
        let number = chosen.about.generation.number;
        let runs = entry.leaving.iter().find(|it| it.about.generation.number == number);
        let loaded = runs.and_then(|leaving| leaving.loaded.upgrade());
        Ok((chosen.clone(), loaded))
    }
}

impl Entry {
    /// Has the current version leave: it is kept to go back to, and runs as long as its
    /// tasks do. What is returned is to be dropped without the lock.
    fn retire(&mut self) -> Option<Arc<Serving>> {
        let Current { about, serving } = self.current.take()?;
        match serving.component.dormant() {
            Ok(dormant) => {
                let manifest = serving.manifest.clone();
                self.kept.push_front(Kept { about: about.clone(), dormant, manifest });
                self.kept.truncate(GOOD - 1);
            }
            Err(error) => {
                let why = trap::line(&error);
                tracing::warn!(generation = about.generation.number, why, "cannot be kept");
            }
        }
        self.leaving.push(Leaving { about, loaded: Arc::downgrade(&serving.component.0) });
        Some(serving)
    }

    /// Tells whether no task runs any version, and none is being started.
    fn is_idle(&self) -> bool {
        let current = self.current.iter().map(|current| &current.serving.component.0);
        let leaving = self.leaving.iter().filter_map(|leaving| leaving.loaded.upgrade());
        current.cloned().chain(leaving).all(|loaded| loaded.is_idle())
    }

    /// Tells whether the kind was unloaded and nothing of it runs.
    fn is_over(&self) -> bool {
        self.state() == KindState::Unloaded && self.current.is_none() && self.is_idle()
    }

    fn state(&self) -> KindState {
        match (&self.closed, &self.current) {
            (Some(closed), _) => closed.state,
            (None, Some(_)) => KindState::Serving,
            (None, None) if self.trouble.is_some() => KindState::Broken,
            (None, None) if self.last_number == 0 => KindState::Loading,
            (None, None) => KindState::Unloaded,
        }
    }

    fn view(&mut self, kind: &Kind) -> KindView {
        self.leaving.retain(|leaving| leaving.loaded.strong_count() > 0);
        let mut earlier: BTreeMap<u64, GenerationView> = BTreeMap::new();
        for leaving in &self.leaving {
            let tasks = leaving.loaded.upgrade().map_or(0, |loaded| loaded.tasks());
            earlier.insert(leaving.about.generation.number, leaving.about.view(tasks, false));
        }
        for kept in &self.kept {
            let about = &kept.about;
            earlier
                .entry(about.generation.number)
                .and_modify(|view| view.kept = true)
                .or_insert_with(|| about.view(0, true));
        }
        let current = self.current.as_ref();
        let current =
            current.map(|current| current.about.view(current.serving.component.0.tasks(), true));
        if let Some(current) = &current {
            earlier.remove(&current.generation.number);
        }
        KindView {
            kind: kind.clone(),
            state: self.state(),
            current,
            earlier: earlier.into_values().rev().filter(|it| it.kept || it.tasks > 0).collect(),
            trouble: self.trouble.clone(),
        }
    }
}

impl Serving {
    /// Returns the producer for starts that ask for nothing in particular. What they get
    /// is decided once, and a folder is opened for each: by then another may have its
    /// name.
    pub(crate) fn plain(&self, sources: &Sources) -> Result<Arc<ComponentProducer>, Refusal> {
        let plain = match self.plain.get() {
            Some(plain) => plain,
            None => {
                let ask = Ask::default();
                let decision = decision(&self.rules, self.manifest.as_ref(), &ask, sources)?;
                let plain = match decision.grant.dirs.is_empty() {
                    true => Plain::Ready(Arc::new(self.opened(decision)?)),
                    false => Plain::Decided(Box::new(decision)),
                };
                // Two at once may both decide, and to the same.
                self.plain.get_or_init(|| plain)
            }
        };
        match plain {
            Plain::Ready(producer) => Ok(Arc::clone(producer)),
            Plain::Decided(decision) => Ok(Arc::new(self.opened(Decision::clone(decision))?)),
        }
    }

    fn opened(&self, decision: Decision) -> Result<ComponentProducer, Refusal> {
        Ok(self.component.on_terms(Terms::open(&self.rules, decision)?))
    }

    /// Returns what the plugin asks for.
    pub(crate) fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Returns the producer for a start that asks for that much.
    pub(crate) fn narrowed(
        &self,
        ask: &Ask,
        sources: &Sources,
    ) -> Result<ComponentProducer, Refusal> {
        self.component.decided(&self.rules, self.manifest.as_ref(), ask, sources)
    }
}

impl About {
    fn of(component: &Component, loaded_at_ms: u64) -> Self {
        let about = component.description();
        Self {
            generation: component.generation().clone(),
            contract: about.contract,
            loaded_at_ms,
            descriptor: Arc::new(KindDescriptor {
                summary: about.summary.clone(),
                input_schema: about.input_schema.clone(),
                form: component.0.form(),
            }),
        }
    }

    fn view(&self, tasks: usize, kept: bool) -> GenerationView {
        let Self { generation, contract, loaded_at_ms, descriptor } = self.clone();
        GenerationView { generation, contract, loaded_at_ms, tasks, kept, descriptor }
    }
}

/// Returns what a task of a kind runs that is started now.
fn serving(kind: &Kind, entry: Option<&Entry>) -> Result<Arc<Serving>, Refusal> {
    let why = match entry.map(|entry| (&entry.closed, &entry.current, &entry.trouble)) {
        Some((None, Some(current), _)) => return Ok(Arc::clone(&current.serving)),
        Some((Some(closed), ..)) => format!("{kind} takes no tasks: {}", closed.why),
        Some((None, None, Some(trouble))) => format!("{kind} cannot be run: {trouble}"),
        Some((None, None, None)) => format!("no version of {kind} is loaded yet"),
        None => format!("there is no kind `{kind}`"),
    };
    Err(Refusal::Unavailable(why))
}

/// The turn to change what is current for a kind. Dropping it changes nothing.
#[must_use = "a version that is loaded is to be swapped in, or refused"]
pub(crate) struct Turn {
    inner: Arc<Inner>,
    kind: Kind,
    number: u64,
    _held: OwnedMutexGuard<()>,
}

impl Turn {
    /// Returns the number that the next version has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns what tasks are started with, if it is that component on these terms.
    pub(crate) fn serves(
        &self,
        component: &Component,
        manifest: Option<&Manifest>,
    ) -> Option<Component> {
        let kinds = self.inner.kinds();
        let entry = kinds.get(&self.kind).filter(|entry| entry.closed.is_none())?;
        let serving = &entry.current.as_ref()?.serving;
        let is_same = serving.component.generation().digest == component.generation().digest
            && serving.manifest.as_ref() == manifest;
        is_same.then(|| serving.component.clone())
    }

    /// Returns what the policy says of the kind.
    pub(crate) fn rules(&self) -> Rules {
        self.inner.policy.rules(&self.kind)
    }

    /// Makes a version current, whether it is new or was there before.
    pub(crate) fn swap(self, component: Component, manifest: Option<Manifest>) -> Generation {
        let now = self.inner.clock.epoch_ms();
        self.put(component, manifest, now)
    }

    /// Makes a version from before current again.
    pub(crate) fn put_back(self, Earlier { component, kept }: Earlier) -> Generation {
        self.put(component, kept.manifest, kept.about.loaded_at_ms)
    }

    fn put(
        self,
        component: Component,
        manifest: Option<Manifest>,
        loaded_at_ms: u64,
    ) -> Generation {
        let about = About::of(&component, loaded_at_ms);
        let generation = about.generation.clone();
        let rules = self.rules();
        component.0.say_farewell(self.inner.announcer.clone(), Arc::clone(&self.inner.idle));
        let before = {
            let mut kinds = self.inner.kinds();
            let entry = kinds.entry(self.kind.clone()).or_default();
            // Before the current one joins them, so that none makes room for itself.
            entry.kept.retain(|kept| kept.about.generation.number != generation.number);
            let before = entry.retire();
            entry.leaving.retain(|it| {
                it.about.generation.number != generation.number && it.loaded.strong_count() > 0
            });
            entry.last_number = entry.last_number.max(generation.number);
            let serving = Serving { component, manifest, rules, plain: OnceLock::new() };
            entry.current = Some(Current { about, serving: Arc::new(serving) });
            entry.closed = None;
            entry.trouble = None;
            before
        };
        // Whoever drains the kind need not wait any more.
        self.inner.idle.notify_waiters();
        audit::swap(
            &self.kind,
            &generation,
            before.as_ref().map(|before| before.component.generation()),
        );
        self.tell(Change::Swapped { kind: self.kind.clone(), generation: generation.clone() });
        generation
    }

    /// Notes why a version was not taken. What is current stays.
    pub(crate) fn refuse(self, why: String) {
        self.inner.kinds().entry(self.kind.clone()).or_default().trouble = Some(why.clone());
        audit::refusal(&self.kind, &why);
        self.tell(Change::Refused { kind: self.kind.clone(), why });
    }

    /// Notes that what is current is what there is.
    pub(crate) fn same(self) {
        self.inner.kinds().entry(self.kind.clone()).or_default().trouble = None;
    }

    /// Forgets the kind, if no version of it was ever good, and tells whether it did.
    pub(crate) fn forget(&self) -> bool {
        let forgotten = {
            let mut kinds = self.inner.kinds();
            match kinds.get(&self.kind).is_some_and(|entry| entry.last_number == 0) {
                true => kinds.remove(&self.kind),
                false => return false,
            }
        };
        if forgotten.is_some_and(|entry| entry.trouble.is_some()) {
            self.tell(Change::Closed { kind: self.kind.clone(), state: KindState::Unloaded });
        }
        true
    }

    /// Lets go of what is current, and starts no more tasks.
    pub(crate) fn close(self, state: KindState, why: String) {
        self.shut(state, why, Entry::retire);
    }

    /// Starts no more tasks, and leaves what is current where it is.
    fn close_as(self, state: KindState, why: String) {
        self.shut(state, why, |_| None);
    }

    fn shut(
        self,
        state: KindState,
        why: String,
        let_go: impl FnOnce(&mut Entry) -> Option<Arc<Serving>>,
    ) {
        let before = {
            let mut kinds = self.inner.kinds();
            let entry = kinds.entry(self.kind.clone()).or_default();
            entry.closed = Some(Closed { state, why: why.clone() });
            entry.trouble = None;
            let before = let_go(entry);
            if kinds.len() > REMEMBERED {
                kinds.retain(|kind, entry| *kind == self.kind || !entry.is_over());
            }
            before
        };
        drop(before);
        audit::closed(&self.kind, state, &why);
        self.tell(Change::Closed { kind: self.kind.clone(), state });
    }

    fn tell(&self, change: Change) {
        self.inner.announcer.tell(change);
    }
}
