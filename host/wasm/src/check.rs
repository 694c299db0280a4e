//! What a component is, told from the names of its exports.
//!
//! Pure: the names go in, the form or the reason against it comes out.

use std::fmt;

use crate::contract::{self, CONTRACT_VERSION, Names, PACKAGE, Version};

const COMMAND: &str = "wasi:cli/run";

/// What form a component has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComponentForm {
    /// A producer whose tasks have one final output.
    Producer,
    /// A producer whose tasks make output while they run.
    StreamProducer,
    /// A stream producer that decides what follows each run of its jobs.
    SteppedProducer,
    /// A producer with one final output that decides what follows each run of its jobs.
    SteppedFinalProducer,
    /// A `wasi:cli/command`: a program with a `main`.
    Command,
}

impl ComponentForm {
    /// Tells whether the component hands over its output while it runs.
    pub(crate) fn has_output(self) -> bool {
        matches!(self, Self::StreamProducer | Self::SteppedProducer)
    }

    /// Tells whether the component decides what follows each run of its jobs.
    pub(crate) fn has_steps(self) -> bool {
        matches!(self, Self::SteppedProducer | Self::SteppedFinalProducer)
    }
}

impl fmt::Display for ComponentForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Producer => "producer",
            Self::StreamProducer => "stream-producer",
            Self::SteppedProducer => "stepped-producer",
            Self::SteppedFinalProducer => "stepped-final-producer",
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
        "found {found}, wanted `{}` or `wasi:cli/run`; implement the contract, or give the \
         program a `main`",
        Version::NEWEST.names().lifecycle
    )]
    NoContract {
        /// What it exports.
        found: String,
    },
    /// The component was built against a version of the contract that this host
    /// does not speak.
    #[error(
        "found contract version {found}, wanted {}; rebuild the component against \
         {PACKAGE}@{CONTRACT_VERSION}",
        contract::spoken()
    )]
    ContractVersion {
        /// The version that it exports.
        found: String,
    },
    /// The component implements two versions of the contract, or parts of them.
    #[error(
        "found `{found}` beside `{other}`, wanted one version of the contract; rebuild all of the \
         component against {PACKAGE}@{CONTRACT_VERSION}"
    )]
    MixedVersions {
        /// An export of one version.
        found: String,
        /// An export of another.
        other: String,
    },
    /// The component exports an interface of the contract that there is not.
    #[error(
        "found the export `{found}`, which {PACKAGE}@{version} does not have; it has lifecycle, \
         output and steps"
    )]
    UnknownInterface {
        /// The export.
        found: String,
        /// The version of the contract that it claims to be of.
        version: &'static str,
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

/// Tells what form a component with these exports has, and which version of the
/// contract it implements; only programs implement none.
pub(crate) fn form(exports: &[String]) -> Result<(ComponentForm, Option<Version>), NotRunnable> {
    let Some(version) = version(exports)? else {
        return match command(exports) {
            Some(_) => Ok((ComponentForm::Command, None)),
            None => Err(NotRunnable::NoContract { found: list(exports) }),
        };
    };
    let &Names { lifecycle, output, steps, .. } = version.names();
    let has = |name: &str| exports.iter().any(|export| export == name);
    let incomplete = |found, wanted| Err(NotRunnable::Incomplete { found, wanted });
    let form = match (has(lifecycle), has(output), has(steps)) {
        (true, true, true) => ComponentForm::SteppedProducer,
        (true, true, false) => ComponentForm::StreamProducer,
        (true, false, false) => ComponentForm::Producer,
        (true, false, true) => ComponentForm::SteppedFinalProducer,
        (false, true, _) => return incomplete(output, lifecycle),
        (false, false, _) => return incomplete(steps, lifecycle),
    };
    Ok((form, Some(version)))
}

/// Tells which version of the contract these exports are of, if they are of any.
fn version(exports: &[String]) -> Result<Option<Version>, NotRunnable> {
    let mut first: Option<(Version, &String)> = None;
    for export in exports {
        let Some(rest) = export.strip_prefix(PACKAGE).filter(|rest| rest.starts_with('/')) else {
            continue;
        };
        let found = rest.split_once('@').map_or("none", |(_, found)| found);
        let Some(version) = Version::named(found) else {
            return Err(NotRunnable::ContractVersion { found: found.to_owned() });
        };
        let names = version.names();
        if ![names.lifecycle, names.output, names.steps].contains(&export.as_str()) {
            let (found, version) = (export.clone(), names.version);
            return Err(NotRunnable::UnknownInterface { found, version });
        }
        let (of_first, other) = *first.get_or_insert((version, export));
        if of_first != version {
            let (found, other) = (export.clone(), other.clone());
            return Err(NotRunnable::MixedVersions { found, other });
        }
    }
    Ok(first.map(|(version, _)| version))
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

    const LIFECYCLE: &str = "backlot:producer/lifecycle@0.1.0";
    const OUTPUT: &str = "backlot:producer/output@0.1.0";
    const STEPS: &str = "backlot:producer/steps@0.1.0";

    fn of(exports: &[&str]) -> Result<(ComponentForm, Option<Version>), NotRunnable> {
        form(&exports.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    fn producer(form: ComponentForm) -> Result<(ComponentForm, Option<Version>), NotRunnable> {
        Ok((form, Some(Version::V0_1)))
    }

    #[test]
    fn optional_exports_are_found_by_looking() {
        assert_eq!(of(&[LIFECYCLE]), producer(ComponentForm::Producer));
        assert_eq!(of(&[OUTPUT, LIFECYCLE]), producer(ComponentForm::StreamProducer));
        assert_eq!(of(&[LIFECYCLE, OUTPUT, STEPS]), producer(ComponentForm::SteppedProducer));
        assert_eq!(of(&[LIFECYCLE, STEPS]), producer(ComponentForm::SteppedFinalProducer));
        assert_eq!(of(&["wasi:cli/run@0.2.6"]), Ok((ComponentForm::Command, None)));
        assert_eq!(of(&["wasi:cli/run@0.3.0"]), Ok((ComponentForm::Command, None)));
    }

    #[test]
    fn every_version_that_is_spoken_is_told_by_its_exports() {
        for &version in Version::ALL {
            let names = version.names();
            let found = of(&[names.output, "wasi:cli/run@0.2.6", names.lifecycle]);
            assert_eq!(found, Ok((ComponentForm::StreamProducer, Some(version))));
            let stray = of(&[names.lifecycle, names.host]).unwrap_err().to_string();
            assert!(stray.contains(&format!("{PACKAGE}@{} does not", names.version)), "{stray}");
        }
    }

    #[test]
    fn other_versions_are_refused_with_all_named() {
        let error = of(&["backlot:producer/lifecycle@0.3.0"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "found contract version 0.3.0, wanted 0.1.0 or 0.2.0; rebuild the component against \
             backlot:producer@0.1.0"
        );
        assert!(matches!(
            of(&[LIFECYCLE, "backlot:producer/output@0.1.1"]),
            Err(NotRunnable::ContractVersion { .. })
        ));
    }

    #[test]
    fn two_versions_in_one_component_are_refused_with_both_named() {
        let error = of(&[LIFECYCLE, "backlot:producer/output@0.2.0", OUTPUT]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "found `backlot:producer/output@0.2.0` beside `backlot:producer/lifecycle@0.1.0`, \
             wanted one version of the contract; rebuild all of the component against \
             backlot:producer@0.1.0"
        );
    }

    #[test]
    fn unknown_interfaces_of_the_contract_are_not_taken_for_absent() {
        let error = of(&[LIFECYCLE, "backlot:producer/outputs@0.1.0"]).unwrap_err();
        assert!(matches!(error, NotRunnable::UnknownInterface { .. }), "{error}");
    }

    #[test]
    fn half_a_contract_is_refused() {
        assert!(matches!(of(&[OUTPUT]), Err(NotRunnable::Incomplete { wanted: LIFECYCLE, .. })));
        assert!(matches!(of(&[STEPS]), Err(NotRunnable::Incomplete { wanted: LIFECYCLE, .. })));
    }

    #[test]
    fn components_without_any_contract_are_told_what_they_lack() {
        let error = of(&["a:b/c@1.0.0"]).unwrap_err().to_string();
        assert!(error.contains("`a:b/c@1.0.0`") && error.contains("wasi:cli/run"), "{error}");
        assert!(of(&["wasi:cli/run@0.1.0"]).is_err());
        let alike = of(&[LIFECYCLE, "backlot:producer-tools/x@9.0.0"]);
        assert_eq!(alike, producer(ComponentForm::Producer), "another package");
    }

    #[test]
    fn files_that_are_no_components_are_told_apart() {
        assert_eq!(preamble(b""), Err(NotRunnable::Empty));
        assert_eq!(preamble(b"#!/bin/sh"), Err(NotRunnable::NotWasm));
        assert_eq!(preamble(b"\0asm\x01\0\0\0"), Err(NotRunnable::CoreModule));
        assert_eq!(preamble(b"\0asm\x0d\0\x01\0"), Ok(()));
    }
}
