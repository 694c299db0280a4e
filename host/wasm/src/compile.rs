//! Compiling components, in a process that may not take more than it is given.
#![allow(unsafe_code, reason = "what was just compiled is looked at")]

use wasmparser::{Parser, Payload, Validator, WasmFeatures};
use wasmtime::component::Component;

use crate::{
    capacity::Capacity,
    process::{Compiler, Events, Job, JobError},
    profile::{Profile, settings},
    trap,
};

/// The name of the work.
pub(crate) const WORK: &str = "compile";
/// What a compiler may take, in bytes. An interpreter of 20 MB takes 400 MB.
const MEMORY: u64 = 1 << 30;
/// CPU time that every component has, in seconds, and that each megabyte of its
/// functions adds. That is about five times what an interpreter needs, and a hundred
/// times what most do.
const CPU_SECS: u64 = 10;
const CPU_SECS_PER_MIB: u64 = 4;
/// The longest code that is taken, in bytes, and for each byte of the component: two
/// to three times the component is usual, and much more is a trick.
const CODE: u64 = 64 << 20;
const CODE_PER_BYTE: u64 = 8;

/// Why there is no compiled code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// It is not a component, or one that uses what this host does not have.
    #[error("the component does not compile: {0}")]
    Invalid(String),
    /// It takes more to compile than a component may.
    #[error("the component takes too much to compile: more than {0}")]
    TooCostly(String),
    /// The compiler could not be run.
    #[error("the compiler could not be run: {0}")]
    Compiler(String),
}

impl From<JobError> for CompileError {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Impossible(why) => Self::Invalid(why),
            JobError::TooCostly(what) => Self::TooCostly(what),
            JobError::Broken(why) => Self::Compiler(why),
        }
    }
}

/// What a compiler may take of the machine.
pub(crate) struct Bounds {
    /// In bytes.
    pub(crate) memory: u64,
    /// As many as there are cores when `None`.
    pub(crate) threads: Option<usize>,
}

impl Compiler {
    /// Compiles a component for an engine of that profile, taking no more memory than
    /// is given. Blocks.
    pub(crate) fn compile(
        &self,
        profile: Profile,
        component: &[u8],
        bounds: &Bounds,
        events: &Events,
    ) -> Result<Vec<u8>, CompileError> {
        match self {
            Self::Inside => compile_checked(profile, component).map_err(CompileError::Invalid),
            Self::Program(program) => {
                let job = Job {
                    work: WORK,
                    args: &[profile.name()],
                    input: &[component],
                    cpu_secs: CPU_SECS + CPU_SECS_PER_MIB * (function_bytes(component) >> 20),
                    threads: bounds.threads,
                    memory: bounds.memory.min(MEMORY),
                    answer: CODE + CODE_PER_BYTE * component.len() as u64,
                };
                Ok(job.run(program, events)?)
            }
        }
    }
}

/// Returns how many bytes of functions a component has. What is not one has none.
fn function_bytes(component: &[u8]) -> u64 {
    let payloads = Parser::new(0).parse_all(component).map_while(Result::ok);
    payloads
        .filter_map(|payload| match payload {
            Payload::CodeSectionStart { size, .. } => Some(u64::from(size)),
            _ => None,
        })
        .sum()
}

/// What a process does that is asked to compile.
pub(crate) fn answer(args: &[String], component: &[u8]) -> Result<Vec<u8>, String> {
    let [profile] = args else { return Err("it is told no profile".to_owned()) };
    let profile: Profile = profile.parse().map_err(|_| format!("no profile `{profile}`"))?;
    compile_checked(profile, component)
}

/// Compiles a component that is valid, and not too large for a host to hold.
fn compile_checked(profile: Profile, component: &[u8]) -> Result<Vec<u8>, String> {
    // A compiler finds an invalid function when it comes to it, and goes on with all
    // others. What is valid with every feature may yet not be for this engine.
    Validator::new_with_features(WasmFeatures::all())
        .validate_all(component)
        .map_err(|error| error.to_string())?;
    let code = compile(profile, component)?;
    // What is too large for a host to hold is found out here, where it costs the host
    // nothing. Only a pool tells, and there is one in the profile `fast`; elsewhere
    // what could be too large is compiled for it as well.
    match profile {
        Profile::Fast => fits(&code)?,
        Profile::Dense if may_be_large(component) => fits(&compile(Profile::Fast, component)?)?,
        Profile::Dense => {}
    }
    Ok(code)
}

fn compile(profile: Profile, component: &[u8]) -> Result<Vec<u8>, String> {
    wasmtime::Engine::new(&settings(profile, None))
        .and_then(|engine| engine.precompile_component(component))
        .map_err(|error| trap::line(&error))
}

/// Tells whether there is a slot in the pool that code of the profile `fast` fits.
fn fits(code: &[u8]) -> Result<(), String> {
    let settings = settings(Profile::Fast, Some(&Capacity::of_one()));
    // Where there is no address space for a pool, no host has one either.
    let Ok(engine) = wasmtime::Engine::new(&settings) else { return Ok(()) };
    // SAFETY: the code was compiled a moment ago, by this very process.
    let loaded = unsafe { Component::deserialize(&engine, code) };
    loaded.map(drop).map_err(|error| too_large(&error))
}

/// Tells whether the instances of a component may be much larger than usual: by the
/// number of instances, which multiply with each level, or by that of globals.
fn may_be_large(component: &[u8]) -> bool {
    /// 21 instances of 21 of 21 are nine thousand, which take two megabytes.
    const INSTANCES: u32 = 64;
    const LEVELS: usize = 3;
    const GLOBALS: u32 = 4_096;
    let (mut instances, mut globals, mut levels) = (0_u32, 0_u32, 0_usize);
    for payload in Parser::new(0).parse_all(component).map_while(Result::ok) {
        match payload {
            Payload::ComponentInstanceSection(section) => {
                instances = instances.saturating_add(section.count());
            }
            Payload::GlobalSection(section) => globals = globals.saturating_add(section.count()),
            Payload::ComponentSection { .. } | Payload::ModuleSection { .. } => levels += 1,
            Payload::End(_) => levels = levels.saturating_sub(1),
            _ => {}
        }
        if instances > INSTANCES || globals > GLOBALS || levels > LEVELS {
            return true;
        }
    }
    false
}

/// Says what is too large, without what only wasmtime's embedder can set.
fn too_large(error: &wasmtime::Error) -> String {
    let why = trap::line(error);
    match why.contains("pooling allocator") || why.contains("exceeds the") {
        true => format!("it is larger than this host allows: {why}"),
        false => why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_given_for_functions_and_not_for_padding() {
        let module = "(core module (func) (func) (data \"xyz\"))";
        let one = wat::parse_str(format!("(component {module})")).unwrap();
        let two = wat::parse_str(format!("(component {module} (component {module}))")).unwrap();
        assert!(function_bytes(&one) > 0);
        assert_eq!(function_bytes(&two), 2 * function_bytes(&one));
        assert_eq!(function_bytes(b"text"), 0);
        assert_eq!(function_bytes(&one[..one.len() - 3]), function_bytes(&one));
    }

    #[test]
    fn what_is_too_large_for_a_host_is_refused_in_both_profiles() {
        // Ten levels, each with ten of the level below.
        let bomb = (0..7).fold("(component $c)".to_owned(), |inner, level| {
            let name = if level == 6 { "" } else { "$c" };
            format!("(component {name} {inner} {})", "(instance (instantiate $c))".repeat(10))
        });
        let bomb = wat::parse_str(bomb).unwrap();
        let globals = "(global v128 (v128.const i64x2 0 0))".repeat(200_000);
        let globals = wat::parse_str(format!(
            "(component (core module $m {globals}) (core instance (instantiate $m)))"
        ));
        for profile in Profile::ALL {
            for (name, component) in [("instances", &bomb), ("globals", globals.as_ref().unwrap())]
            {
                let answer = answer(&[profile.name().to_owned()], component);
                let why = answer.map(|code| code.len()).unwrap_err();
                assert!(why.contains("larger than this host allows"), "{profile} {name}: {why}");
            }
        }
    }
}
