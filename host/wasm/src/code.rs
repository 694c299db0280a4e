//! The code of a component: from the cache, or else from the compiler.
#![allow(unsafe_code, reason = "compiled code is trusted, and this is where")]

use std::{fs::File, sync::Arc};

use tokio::task::spawn_blocking;
use wasmtime::component::Component;

use crate::{
    cache::{ComponentDigest, FileStamp, Key, path_of},
    compile::CompileError,
    engine::Engine,
    process::{given_up, on_a_thread},
    trap,
};

/// A component's code, and the digest of what it was compiled from.
pub(crate) struct Code {
    pub(crate) component: Component,
    pub(crate) digest: ComponentDigest,
    pub(crate) source: Source,
}

/// Where code can be had from again once it is mapped no more.
#[derive(Clone)]
pub(crate) enum Source {
    /// The entry of the cache, which stays what it is as long as it is open.
    Entry(Arc<File>),
    /// The code itself, where there is no cache.
    Mapped,
}

/// Code that is not mapped, and can be again without its component.
#[derive(Clone)]
pub(crate) struct Dormant {
    digest: ComponentDigest,
    code: Unmapped,
    /// What it was compiled from, where that was a file.
    file: Option<Arc<File>>,
}

#[derive(Clone)]
enum Unmapped {
    Entry(Arc<File>),
    Bytes(Arc<[u8]>),
}

impl Dormant {
    /// Puts code aside.
    ///
    /// # Errors
    ///
    /// When it can be had from nowhere again.
    pub(crate) fn of(
        component: &Component,
        digest: ComponentDigest,
        source: &Source,
        file: Option<Arc<File>>,
    ) -> wasmtime::Result<Self> {
        let code = match source {
            Source::Entry(file) => Unmapped::Entry(Arc::clone(file)),
            Source::Mapped => Unmapped::Bytes(component.serialize()?.into()),
        };
        Ok(Self { digest, code, file })
    }

    /// Returns the file that it was compiled from, if it was one.
    pub(crate) fn file(&self) -> Option<Arc<File>> {
        self.file.clone()
    }

    /// Maps the code again.
    pub(crate) async fn wake(&self, engine: &Engine) -> Result<Code, CompileError> {
        let digest = self.digest;
        let engine = engine.clone();
        let (component, source) = match &self.code {
            Unmapped::Entry(file) => {
                let entry = Arc::clone(file);
                let source = Source::Entry(Arc::clone(file));
                let map = move || {
                    map(&engine, &entry).map_err(|error| CompileError::Compiler(trap::line(&error)))
                };
                (on_a_thread(map).await?, source)
            }
            Unmapped::Bytes(code) => {
                let code = Arc::clone(code);
                (on_a_thread(move || take(&engine, &code)).await?, Source::Mapped)
            }
        };
        Ok(Code { component, digest, source })
    }
}

/// Returns the code of the component in a file, if an earlier load of the same file
/// has left it in the cache.
pub(crate) async fn recall(engine: &Engine, stamp: FileStamp) -> Option<Code> {
    let engine = engine.clone();
    let recall = move || {
        let digest = engine.cache()?.recall(&stamp)?;
        let (component, source) = kept(&engine, &Key::new(engine.wasmtime(), digest))?;
        Some(Code { component, digest, source })
    };
    spawn_blocking(recall).await.ok()?
}

/// Returns the code of a component, compiled if need be. `stamp` is of the file that
/// was read, so that it need not be read again.
pub(crate) async fn of(
    engine: &Engine,
    bytes: Arc<[u8]>,
    stamp: Option<FileStamp>,
) -> Result<Code, CompileError> {
    let lost = |panic: tokio::task::JoinError| CompileError::Compiler(panic.to_string());
    let (home, component) = (engine.clone(), Arc::clone(&bytes));
    let look = move || {
        let digest = ComponentDigest::of(&component);
        if let (Some(cache), Some(stamp)) = (home.cache(), stamp) {
            cache.remember(&stamp, &digest);
        }
        let key = Key::new(home.wasmtime(), digest);
        (digest, key, kept(&home, &key))
    };
    let (digest, key, found) = spawn_blocking(look).await.map_err(lost)?;
    if let Some((component, source)) = found {
        return Ok(Code { component, digest, source });
    }
    // The semaphore is never closed; without a turn it is only one more.
    let turn = engine.compile_turn().await;
    let home = engine.clone();
    // Whoever no longer waits for the code has given it up.
    let (_give_up, events) = given_up();
    let compile = move || {
        let _turn = turn;
        // Whoever had the turn before may have compiled the same.
        if let Some(found) = kept(&home, &key) {
            return Ok(found);
        }
        let code = home.compile(&bytes, &events)?;
        if let Some(cache) = home.cache() {
            cache.keep(&key, &code);
        }
        // What is mapped is shared with every process that has mapped it.
        let taken = || take(&home, &code).map(|component| (component, Source::Mapped));
        kept(&home, &key).map_or_else(taken, Ok)
    };
    let (component, source) = on_a_thread(compile).await?;
    Ok(Code { component, digest, source })
}

/// Returns what is kept under a key, if it can be used.
fn kept(engine: &Engine, key: &Key) -> Option<(Component, Source)> {
    let cache = engine.cache()?;
    let file = cache.find(key)?;
    match map(engine, &file) {
        Ok(component) => Some((component, Source::Entry(Arc::new(file)))),
        Err(error) => {
            tracing::debug!(?error, "an entry of the compile cache is of no use");
            // Unless it is this process that cannot reach what it has open, or has no
            // room for it.
            let has_room = !trap::line(&error).contains("Cannot allocate memory");
            if has_room && path_of(&file).exists() {
                cache.forget(key);
            }
            None
        }
    }
}

fn map(engine: &Engine, file: &File) -> wasmtime::Result<Component> {
    // SAFETY: the file is an entry of the cache whose checksum was verified on this
    // very file, in a folder that only this user can write to; entries are replaced
    // by others, and never changed. So this host has compiled it.
    unsafe { Component::deserialize_file(engine.wasmtime(), path_of(file)) }
}

fn take(engine: &Engine, code: &[u8]) -> Result<Component, CompileError> {
    // SAFETY: the code comes from the compiler of this host.
    unsafe { Component::deserialize(engine.wasmtime(), code) }
        .map_err(|error| CompileError::Compiler(trap::line(&error)))
}
