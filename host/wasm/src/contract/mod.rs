//! The contract `backlot:producer`, in every version that this host speaks.
//!
//! A version is one file: its generated bindings, the names and types of its
//! interfaces, what it imports, and how its values become the registry's and this
//! crate's own. Those mean what the newest version means; the rest of the crate
//! sees nothing else, so a version is added and removed here alone. A version
//! that was released is frozen, with the WIT that its file reads.

use backlot_registry::{Outcome, Refusal, Request, StopRefusal};
use wasmtime::{
    AsContextMut,
    component::{Accessor, Instance, InstancePre, Linker},
};

use crate::{check::ComponentForm, store::Guest};

mod signature;
mod v0_1;

// What another version costs is seen with one that is never released.
#[cfg(test)]
mod next;

pub(crate) use self::signature::Signatures;

/// The version of the contract that components are to be built against, the newest.
pub const CONTRACT_VERSION: &str = Version::NEWEST.names().version;
/// The package that all interfaces of the contract are in.
pub(crate) const PACKAGE: &str = "backlot:producer";

/// A version of the contract that this host speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V0_1,
    #[cfg(test)]
    Next,
}

/// What a version calls itself and its interfaces.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) version: &'static str,
    /// What the host offers to a running producer.
    pub(crate) host: &'static str,
    /// The export that makes a component a producer.
    pub(crate) lifecycle: &'static str,
    /// The export that makes a producer a stream producer.
    pub(crate) output: &'static str,
    /// The export that lets a producer decide what follows a run.
    pub(crate) steps: &'static str,
}

/// What a component says of itself.
pub(crate) struct Descriptor {
    pub(crate) kind: String,
    pub(crate) summary: String,
    pub(crate) input_schema: Option<String>,
    pub(crate) manner: Manner,
}

/// What a producer says is to follow a run.
pub(crate) enum Next {
    End { state: Option<String>, failure: Option<String> },
    Proceed { kind: Option<String>, input: String, state: Option<String> },
    Ask { prompt: String, schema: Option<String>, state: Option<String> },
}

/// How a producer written in blocking style wants to be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    pub(crate) stdout_is_output: bool,
    pub(crate) stops_by_drop: bool,
}

impl Version {
    /// Every version, the oldest first.
    pub(crate) const ALL: &[Self] = &[
        Self::V0_1,
        #[cfg(test)]
        Self::Next,
    ];
    /// The one that components are to be built against, and the last released.
    pub(crate) const NEWEST: Self = Self::V0_1;

    /// Returns the version of that number, if this host speaks it.
    pub(crate) fn named(number: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|version| version.names().version == number)
    }

    /// Returns what the version calls itself and its interfaces.
    pub(crate) const fn names(self) -> &'static Names {
        match self {
            Self::V0_1 => &v0_1::NAMES,
            #[cfg(test)]
            Self::Next => &next::NAMES,
        }
    }

    /// Offers what components of the version may import of the contract.
    pub(crate) fn add_host(self, linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
        match self {
            Self::V0_1 => v0_1::add_host(linker),
            #[cfg(test)]
            Self::Next => next::add_host(linker),
        }
    }

    /// Compares the types of a component's functions with those of the version, and
    /// says what differs.
    pub(crate) fn typecheck(self, of: &Signatures<'_>, form: ComponentForm) -> Result<(), String> {
        match self {
            Self::V0_1 => v0_1::typecheck(of, form),
            #[cfg(test)]
            Self::Next => next::typecheck(of, form),
        }
    }

    /// Finds the functions of a component that was checked.
    pub(crate) fn indices(
        self,
        pre: &InstancePre<Guest>,
        form: ComponentForm,
    ) -> wasmtime::Result<Indices> {
        Ok(match self {
            Self::V0_1 => Indices::V0_1(v0_1::Indices::new(pre, form)?),
            #[cfg(test)]
            Self::Next => Indices::Next(next::Indices::new(pre, form)?),
        })
    }
}

/// Where the functions of a producer are, whichever version it implements.
#[derive(Clone)]
pub(crate) enum Indices {
    V0_1(v0_1::Indices),
    #[cfg(test)]
    Next(next::Indices),
}

/// The functions of a producer's instance, whichever version it implements.
pub(crate) enum Exports {
    V0_1(v0_1::Exports),
    #[cfg(test)]
    Next(next::Exports),
}

/// Does the same with a value of whichever version.
macro_rules! with {
    ($kind:ident, $value:expr, $it:ident => $does:expr) => {
        match $value {
            $kind::V0_1($it) => $does,
            #[cfg(test)]
            $kind::Next($it) => $does,
        }
    };
}

impl Indices {
    /// Tells whether the producer hands over its output while it runs.
    pub(crate) fn has_output(&self) -> bool {
        with!(Indices, self, it => it.has_output())
    }

    /// Tells whether the producer decides what follows its runs.
    pub(crate) fn has_steps(&self) -> bool {
        with!(Indices, self, it => it.has_steps())
    }

    /// Finds the functions in an instance.
    pub(crate) fn load(
        &self,
        store: impl AsContextMut<Data = Guest>,
        instance: &Instance,
    ) -> wasmtime::Result<Exports> {
        Ok(match self {
            Self::V0_1(it) => Exports::V0_1(it.load(store, instance)?),
            #[cfg(test)]
            Self::Next(it) => Exports::Next(it.load(store, instance)?),
        })
    }
}

impl Exports {
    /// Tells whether the producer hands over its output while it runs.
    pub(crate) fn has_output(&self) -> bool {
        with!(Exports, self, it => it.has_output())
    }

    /// Asks what the component is.
    pub(crate) async fn describe(
        &self,
        accessor: &Accessor<Guest>,
    ) -> wasmtime::Result<Descriptor> {
        with!(Exports, self, it => it.describe(accessor).await)
    }

    /// Starts the work.
    pub(crate) async fn run(
        &self,
        accessor: &Accessor<Guest>,
        request: Request,
    ) -> wasmtime::Result<Result<(), Refusal>> {
        with!(Exports, self, it => it.run(accessor, request).await)
    }

    /// Asks the guest to stop.
    pub(crate) async fn cancel(
        &self,
        accessor: &Accessor<Guest>,
        reason: Option<String>,
    ) -> wasmtime::Result<Result<(), StopRefusal>> {
        with!(Exports, self, it => it.cancel(accessor, reason).await)
    }

    /// Resolves when the work has ended.
    pub(crate) async fn done(&self, accessor: &Accessor<Guest>) -> wasmtime::Result<Outcome> {
        with!(Exports, self, it => it.done(accessor).await)
    }

    /// Takes the oldest output that the guest holds; empty when there is none.
    pub(crate) async fn read_output(
        &self,
        accessor: &Accessor<Guest>,
        max_bytes: u32,
    ) -> wasmtime::Result<Vec<u8>> {
        with!(Exports, self, it => it.read_output(accessor, max_bytes).await)
    }

    /// Asks what follows a run; `None` of a producer that does not decide that.
    pub(crate) async fn after(
        &self,
        accessor: &Accessor<Guest>,
        request: Request,
        ended: Outcome,
    ) -> wasmtime::Result<Option<Next>> {
        with!(Exports, self, it => it.after(accessor, request, ended).await)
    }

    /// Asks for a state in words.
    pub(crate) async fn render(
        &self,
        accessor: &Accessor<Guest>,
        state: String,
    ) -> wasmtime::Result<Option<String>> {
        with!(Exports, self, it => it.render(accessor, state).await)
    }
}

/// Returns the versions that this host speaks, for people.
pub(crate) fn spoken() -> String {
    let versions: Vec<&str> = Version::ALL.iter().map(|it| it.names().version).collect();
    versions.join(" or ")
}

/// Returns what this host offers of the contract to a guest, for people.
pub(crate) fn hosts() -> String {
    let hosts: Vec<&str> = Version::ALL.iter().map(|it| it.names().host).collect();
    hosts.join(" and ")
}

#[cfg(test)]
mod tests;
