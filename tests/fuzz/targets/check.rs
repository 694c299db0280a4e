//! A component may be anything: it is loaded, or refused with a line that says why.
//!
//! The bytes are a component, or the text of one, which mutates into others that are
//! valid far more often.

#![no_main]

use std::sync::LazyLock;

use backlot_wasm::{Compiler, Component, Engine, EngineConfig, Profile};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};

static HOST: LazyLock<(Runtime, Engine)> = LazyLock::new(|| {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut config = EngineConfig::new(runtime.handle().clone());
    config.instances = Some(4);
    config.profile = Profile::Dense;
    // What a compiler does to its own process is looked at as well.
    config.compiler = Compiler::Inside;
    let engine = Engine::new(config).unwrap();
    (runtime, engine)
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(component) = wat::parse_bytes(bytes) else { return };
    let (runtime, engine) = &*HOST;
    match runtime.block_on(Component::load(engine, "fuzz", &*component, 1)) {
        Ok(component) => {
            let about = component.description();
            assert!(about.digest.starts_with("sha256:") && !about.exports.is_empty());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
