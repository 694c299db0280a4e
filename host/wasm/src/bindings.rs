//! The contract as Rust sees it, generated from `wit/`.
//!
//! Interfaces are loaded one by one, so that an optional export is found by
//! looking for it. The rest of the crate works with the registry's own types;
//! the conversions are here.

use backlot_registry as registry;

use self::backlot::producer::types;
pub(crate) use self::{
    backlot::producer::{
        host,
        types::{Descriptor, Manner},
    },
    exports::backlot::producer::{lifecycle, output, steps},
};

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "stepped-producer",
    imports: { default: trappable | store },
    exports: { default: async | store },
    require_store_data_send: true,
});

/// The version of the contract that this host speaks.
pub const CONTRACT_VERSION: &str = "0.1.0";
/// The package that all interfaces of the contract are in.
pub(crate) const PACKAGE: &str = "backlot:producer";
/// The export that makes a component a producer.
pub(crate) const LIFECYCLE: &str = "backlot:producer/lifecycle@0.1.0";
/// The export that makes a producer a stream producer.
pub(crate) const OUTPUT: &str = "backlot:producer/output@0.1.0";
/// The export that lets a producer decide what follows a run.
pub(crate) const STEPS: &str = "backlot:producer/steps@0.1.0";

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
