//! Version 0.1 of the contract, generated from `wit/`.
//!
//! Interfaces are loaded one by one, so that an optional export is found by
//! looking for it.

use backlot_registry as registry;
use wasmtime::{
    AsContextMut,
    component::{Access, Accessor, HasSelf, Instance, InstancePre, Linker},
};

use self::{
    backlot::producer::{host, types},
    exports::backlot::producer::{lifecycle, output, steps},
};
use super::{Descriptor, Manner, Names, Next, Signatures};
use crate::{check::ComponentForm, imports, store::Guest};

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "stepped-producer",
    imports: { default: trappable | store },
    exports: { default: async | store },
    require_store_data_send: true,
});

pub(super) const NAMES: Names = Names {
    version: "0.1.0",
    host: "backlot:producer/host@0.1.0",
    lifecycle: "backlot:producer/lifecycle@0.1.0",
    output: "backlot:producer/output@0.1.0",
    steps: "backlot:producer/steps@0.1.0",
};

pub(super) fn typecheck(of: &Signatures<'_>, form: ComponentForm) -> Result<(), String> {
    type Start = Result<(), types::Refusal>;
    type Stop = Result<(), types::StopRefusal>;
    let Names { lifecycle, output, steps, .. } = NAMES;
    of.check::<(), (types::Descriptor,)>(lifecycle, "describe", "func() -> descriptor")?;
    of.check::<(types::Request,), (Start,)>(
        lifecycle,
        "run",
        "func(request: request) -> result<_, refusal>",
    )?;
    of.check::<(Option<String>,), (Stop,)>(
        lifecycle,
        "cancel",
        "func(reason: option<string>) -> result<_, stop-refusal>",
    )?;
    of.check::<(), (types::Outcome,)>(lifecycle, "done", "async func() -> outcome")?;
    if form.has_steps() {
        of.check::<(types::Request, types::Outcome), (steps::Next,)>(
            steps,
            "after",
            "func(request: request, ended: outcome) -> next",
        )?;
        of.check::<(String,), (Option<String>,)>(
            steps,
            "render",
            "func(state: string) -> option<string>",
        )?;
    }
    if form.has_output() {
        of.check::<(u32,), (Vec<u8>,)>(output, "read-output", "func(max-bytes: u32) -> list<u8>")?;
    }
    Ok(())
}

#[derive(Clone)]
pub(crate) struct Indices {
    lifecycle: lifecycle::GuestIndices,
    output: Option<output::GuestIndices>,
    steps: Option<steps::GuestIndices>,
}

impl Indices {
    pub(super) fn new(pre: &InstancePre<Guest>, form: ComponentForm) -> wasmtime::Result<Self> {
        Ok(Self {
            lifecycle: lifecycle::GuestIndices::new(pre)?,
            output: match form.has_output() {
                true => Some(output::GuestIndices::new(pre)?),
                false => None,
            },
            steps: match form.has_steps() {
                true => Some(steps::GuestIndices::new(pre)?),
                false => None,
            },
        })
    }

    pub(super) fn has_output(&self) -> bool {
        self.output.is_some()
    }

    pub(super) fn has_steps(&self) -> bool {
        self.steps.is_some()
    }

    pub(super) fn load(
        &self,
        mut store: impl AsContextMut<Data = Guest>,
        instance: &Instance,
    ) -> wasmtime::Result<Exports> {
        Ok(Exports {
            lifecycle: self.lifecycle.load(&mut store, instance)?,
            output: match &self.output {
                Some(output) => Some(output.load(&mut store, instance)?),
                None => None,
            },
            steps: match &self.steps {
                Some(steps) => Some(steps.load(&mut store, instance)?),
                None => None,
            },
        })
    }
}

pub(crate) struct Exports {
    lifecycle: lifecycle::Guest,
    output: Option<output::Guest>,
    steps: Option<steps::Guest>,
}

impl Exports {
    pub(super) fn has_output(&self) -> bool {
        self.output.is_some()
    }

    pub(super) async fn describe(
        &self,
        accessor: &Accessor<Guest>,
    ) -> wasmtime::Result<Descriptor> {
        Ok(self.lifecycle.call_describe(accessor).await?.into())
    }

    pub(super) async fn run(
        &self,
        accessor: &Accessor<Guest>,
        request: registry::Request,
    ) -> wasmtime::Result<Result<(), registry::Refusal>> {
        let answer = self.lifecycle.call_run(accessor, request.into()).await?;
        Ok(answer.map_err(Into::into))
    }

    pub(super) async fn cancel(
        &self,
        accessor: &Accessor<Guest>,
        reason: Option<String>,
    ) -> wasmtime::Result<Result<(), registry::StopRefusal>> {
        let answer = self.lifecycle.call_cancel(accessor, reason).await?;
        Ok(answer.map_err(Into::into))
    }

    pub(super) async fn done(
        &self,
        accessor: &Accessor<Guest>,
    ) -> wasmtime::Result<registry::Outcome> {
        Ok(self.lifecycle.call_done(accessor).await?.into())
    }

    pub(super) async fn read_output(
        &self,
        accessor: &Accessor<Guest>,
        max_bytes: u32,
    ) -> wasmtime::Result<Vec<u8>> {
        match &self.output {
            Some(output) => output.call_read_output(accessor, max_bytes).await,
            None => Ok(Vec::new()),
        }
    }

    pub(super) async fn after(
        &self,
        accessor: &Accessor<Guest>,
        request: registry::Request,
        ended: registry::Outcome,
    ) -> wasmtime::Result<Option<Next>> {
        match &self.steps {
            Some(steps) => {
                let next = steps.call_after(accessor, request.into(), ended.into()).await?;
                Ok(Some(next.into()))
            }
            None => Ok(None),
        }
    }

    pub(super) async fn render(
        &self,
        accessor: &Accessor<Guest>,
        state: String,
    ) -> wasmtime::Result<Option<String>> {
        match &self.steps {
            Some(steps) => steps.call_render(accessor, state).await,
            None => Ok(None),
        }
    }
}

pub(super) fn add_host(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    host::add_to_linker::<Guest, HasSelf<Guest>>(linker, |guest| guest)
}

impl host::Host for Guest {}

impl host::HostWithStore<Guest> for HasSelf<Guest> {
    async fn cancelled(accessor: &Accessor<Guest, Self>) -> wasmtime::Result<Option<String>> {
        let link = accessor.with(|mut access| imports::host::link(access.get()).cloned())?;
        Ok(link.told().await)
    }

    fn stop_requested(
        mut access: Access<'_, Guest, Self>,
    ) -> wasmtime::Result<Option<Option<String>>> {
        Ok(imports::host::link(access.get())?.look())
    }

    fn report(mut access: Access<'_, Guest, Self>, detail: String) -> wasmtime::Result<()> {
        imports::host::link(access.get())?.report(detail);
        Ok(())
    }
}

impl From<types::Descriptor> for Descriptor {
    fn from(descriptor: types::Descriptor) -> Self {
        let types::Descriptor { kind, summary, input_schema, manner } = descriptor;
        Self {
            kind,
            summary,
            input_schema,
            manner: Manner {
                stdout_is_output: manner.contains(types::Manner::STDOUT_IS_OUTPUT),
                stops_by_drop: manner.contains(types::Manner::STOPS_BY_DROP),
            },
        }
    }
}

impl From<registry::Request> for types::Request {
    fn from(request: registry::Request) -> Self {
        let registry::Request { task, label, input, step } = request;
        Self {
            task: task.to_string(),
            label,
            input,
            job: step.job,
            attempt: step.attempt,
            step: step.number,
            cause: match step.cause {
                registry::Cause::Spawn => types::Cause::Spawn,
                registry::Cause::Retry => types::Cause::Retry,
                registry::Cause::Step => types::Cause::Step,
                registry::Cause::Answer => types::Cause::Answer,
            },
            state: step.state,
            last_failure: step.last_failure,
            answer: step.answer,
        }
    }
}

impl From<types::Refusal> for registry::Refusal {
    fn from(refusal: types::Refusal) -> Self {
        match refusal {
            types::Refusal::InvalidInput(why) => Self::InvalidInput(why),
            types::Refusal::Unavailable(why) => Self::Unavailable(why),
        }
    }
}

impl From<types::StopRefusal> for registry::StopRefusal {
    fn from(refusal: types::StopRefusal) -> Self {
        match refusal {
            types::StopRefusal::NotNow(why) => Self::NotNow(why),
            types::StopRefusal::Broken(why) => Self::Broken(why),
        }
    }
}

impl From<types::Outcome> for registry::Outcome {
    fn from(outcome: types::Outcome) -> Self {
        Self {
            ending: match outcome.ending {
                types::Ending::Completed => registry::Ending::Completed,
                types::Ending::Killed => registry::Ending::Killed,
                types::Ending::Failed => registry::Ending::Failed,
            },
            detail: outcome.detail,
            output: outcome.output,
        }
    }
}

impl From<registry::Outcome> for types::Outcome {
    fn from(outcome: registry::Outcome) -> Self {
        Self {
            ending: match outcome.ending {
                registry::Ending::Completed => types::Ending::Completed,
                registry::Ending::Killed => types::Ending::Killed,
                registry::Ending::Failed => types::Ending::Failed,
            },
            detail: outcome.detail,
            output: outcome.output,
        }
    }
}

impl From<steps::Next> for Next {
    fn from(next: steps::Next) -> Self {
        match next {
            steps::Next::End(steps::Closing { state, failure }) => Self::End { state, failure },
            steps::Next::Proceed(steps::Continuation { kind, input, state }) => {
                Self::Proceed { kind, input, state }
            }
            steps::Next::Ask(steps::Question { prompt, schema, state }) => {
                Self::Ask { prompt, schema, state }
            }
        }
    }
}
