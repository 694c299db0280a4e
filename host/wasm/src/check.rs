//! What a component is, told from the names of its exports.
//!
//! Pure: the names go in, the form or the reason against it comes out.

use std::fmt;

use crate::bindings::{CONTRACT_VERSION, LIFECYCLE, OUTPUT, PACKAGE, STEPS};

const COMMAND: &str = "wasi:cli/run";

/// What form a component has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComponentForm {
    /// A producer whose tasks have one final output.
    Producer,
    /// A producer whose tasks make output while they run.
    StreamProducer,
    /// A stream producer that decides what follows each of its runs.
    SteppedProducer,
    /// A `wasi:cli/command`: a program with a `main`.
    Command,
}

impl fmt::Display for ComponentForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Producer => "producer",
            Self::StreamProducer => "stream-producer",
            Self::SteppedProducer => "stepped-producer",
            Self::Command => "command",
        })
    }
}

/// Why a file is not a component that this host can run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRunnable {
    /// The file is empty.
    #[error("the file is empty; it may still be being written")]
    Empty,
    /// The file is no WebAssembly at all.
    #[error("found no WebAssembly, wanted a component; compile for the target wasm32-wasip2")]
    NotWasm,
    /// The file is a core module.
    #[error(
        "found a core WebAssembly module, wanted a component; compile for the target \
         wasm32-wasip2, or wrap it with `wasm-tools component new`"
    )]
    CoreModule,
    /// The component exports neither the contract nor a program.
    #[error(
        "found {found}, wanted `{LIFECYCLE}` or `wasi:cli/run`; implement the contract, or give \
         the program a `main`"
    )]
    NoContract {
        /// What it exports.
        found: String,
    },
    /// The component was built against another version of the contract.
    #[error(
        "found contract version {found}, wanted {CONTRACT_VERSION}; rebuild the component against \
         {PACKAGE}@{CONTRACT_VERSION}"
    )]
    ContractVersion {
        /// The version that it exports.
        found: String,
    },
    /// The component exports an interface of the contract that there is not.
    #[error(
        "found the export `{found}`, which {PACKAGE}@{CONTRACT_VERSION} does not have; it has \
         lifecycle, output and steps"
    )]
    UnknownInterface {
        /// The export.
        found: String,
    },
    /// The component exports an optional interface without the one it needs.
    #[error("found `{found}` without `{wanted}`; a component that has the one has the other")]
    Incomplete {
        /// The export that is there.
        found: &'static str,
        /// The export that is missing.
        wanted: &'static str,
    },
}

/// Tells whether the bytes begin like a component.
pub(crate) fn preamble(bytes: &[u8]) -> Result<(), NotRunnable> {
    match bytes {
        [] => Err(NotRunnable::Empty),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => Err(NotRunnable::CoreModule),
        // The rest of the version field is for the compiler to judge.
        [0, b'a', b's', b'm', ..] => Ok(()),
        _ => Err(NotRunnable::NotWasm),
    }
}

/// Tells what form a component with these exports has.
pub(crate) fn form(exports: &[String]) -> Result<ComponentForm, NotRunnable> {
    let has = |name: &str| exports.iter().any(|export| export == name);
    for export in exports {
        let Some(rest) = export.strip_prefix(PACKAGE).filter(|rest| rest.starts_with('/')) else {
            continue;
        };
        let version = rest.split_once('@').map_or("none", |(_, version)| version);
        if version != CONTRACT_VERSION {
            return Err(NotRunnable::ContractVersion { found: version.to_owned() });
        }
        if ![LIFECYCLE, OUTPUT, STEPS].contains(&export.as_str()) {
            return Err(NotRunnable::UnknownInterface { found: export.clone() });
        }
    }
    match (has(LIFECYCLE), has(OUTPUT), has(STEPS)) {
        (true, true, true) => Ok(ComponentForm::SteppedProducer),
        (true, true, false) => Ok(ComponentForm::StreamProducer),
        (true, false, false) => Ok(ComponentForm::Producer),
        (true, false, true) => Err(NotRunnable::Incomplete { found: STEPS, wanted: OUTPUT }),
        (false, true, _) => Err(NotRunnable::Incomplete { found: OUTPUT, wanted: LIFECYCLE }),
        (false, false, true) => Err(NotRunnable::Incomplete { found: STEPS, wanted: LIFECYCLE }),
        (false, false, false) if command(exports).is_some() => Ok(ComponentForm::Command),
        (false, false, false) => Err(NotRunnable::NoContract { found: list(exports) }),
    }
}

/// Returns the export that starts the program, if there is one.
pub(crate) fn command(exports: &[String]) -> Option<&String> {
    exports.iter().find(|export| {
        export
            .strip_prefix(COMMAND)
            .is_some_and(|rest| rest.starts_with("@0.2.") || rest.starts_with("@0.3."))
    })
}

/// Returns what a component with these imports may need to be granted, one
/// line each. Many toolchains import more than their programs use.
pub(crate) fn needs(imports: &[String]) -> Vec<&'static str> {
    let uses = |prefix: &str| imports.iter().any(|import| import.starts_with(prefix));
    let mut needs = Vec::new();
    if uses("wasi:filesystem/") {
        needs.push("folders: --dir HOST[::GUEST][:ro|rw]");
    }
    if uses("wasi:cli/environment") {
        needs.push("environment variables: --env NAME=VALUE");
    }
    if uses("wasi:sockets/") || uses("wasi:http/") {
        needs.push("network peers: --net HOST:PORT");
    }
    needs
}

fn list(exports: &[String]) -> String {
    /// Enough to recognise a component by, and still one line.
    const SHOWN: usize = 5;
    match exports {
        [] => "no exports".to_owned(),
        _ if exports.len() > SHOWN => {
            format!("`{}` and {} more", exports[..SHOWN].join("`, `"), exports.len() - SHOWN)
        }
        _ => format!("`{}`", exports.join("`, `")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(exports: &[&str]) -> Result<ComponentForm, NotRunnable> {
        form(&exports.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn optional_exports_are_found_by_looking() {
        assert_eq!(of(&[LIFECYCLE]), Ok(ComponentForm::Producer));
        assert_eq!(of(&[OUTPUT, LIFECYCLE]), Ok(ComponentForm::StreamProducer));
        assert_eq!(of(&[LIFECYCLE, OUTPUT, STEPS]), Ok(ComponentForm::SteppedProducer));
        assert_eq!(of(&["wasi:cli/run@0.2.6"]), Ok(ComponentForm::Command));
        assert_eq!(of(&["wasi:cli/run@0.3.0"]), Ok(ComponentForm::Command));
    }

    #[test]
    fn other_versions_are_refused_with_both_named() {
        let error = of(&["backlot:producer/lifecycle@0.2.0"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "found contract version 0.2.0, wanted 0.1.0; rebuild the component against \
             backlot:producer@0.1.0"
        );
        assert!(matches!(
            of(&[LIFECYCLE, "backlot:producer/output@0.1.1"]),
            Err(NotRunnable::ContractVersion { .. })
        ));
    }

    #[test]
    fn unknown_interfaces_of_the_contract_are_not_taken_for_absent() {
        let error = of(&[LIFECYCLE, "backlot:producer/outputs@0.1.0"]).unwrap_err();
        assert!(matches!(error, NotRunnable::UnknownInterface { .. }), "{error}");
    }

    #[test]
    fn half_a_contract_is_refused() {
        assert!(matches!(of(&[OUTPUT]), Err(NotRunnable::Incomplete { wanted: LIFECYCLE, .. })));
        assert!(matches!(
            of(&[LIFECYCLE, STEPS]),
            Err(NotRunnable::Incomplete { wanted: OUTPUT, .. })
        ));
    }

    #[test]
    fn components_without_any_contract_are_told_what_they_lack() {
        let error = of(&["a:b/c@1.0.0"]).unwrap_err().to_string();
        assert!(error.contains("`a:b/c@1.0.0`") && error.contains("wasi:cli/run"), "{error}");
        assert!(of(&["wasi:cli/run@0.1.0"]).is_err());
        let alike = of(&[LIFECYCLE, "backlot:producer-tools/x@9.0.0"]);
        assert_eq!(alike, Ok(ComponentForm::Producer), "another package");
    }

    #[test]
    fn files_that_are_no_components_are_told_apart() {
        assert_eq!(preamble(b""), Err(NotRunnable::Empty));
        assert_eq!(preamble(b"#!/bin/sh"), Err(NotRunnable::NotWasm));
        assert_eq!(preamble(b"\0asm\x01\0\0\0"), Err(NotRunnable::CoreModule));
        assert_eq!(preamble(b"\0asm\x0d\0\x01\0"), Ok(()));
    }
}
