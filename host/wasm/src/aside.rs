//! Calls of a component beside its tasks: what it is, what follows a run of it.
//!
//! Each is made in a fresh instance without any capability, which is gone when it
//! returns. So what comes back depends on what was asked alone, and whoever asks need
//! not trust the component.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use backlot_registry::BoxFuture;
use tokio_util::task::AbortOnDropHandle;
use wasmtime::component::{Accessor, InstancePre};

use crate::{
    component::mappings,
    contract::{Exports, Indices},
    engine::Engine,
    grant::OpenGrant,
    limits::Limits,
    store::{Guest, Recipe, Stdio},
    trap,
};

/// Why a component has not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AsideError {
    /// It has trapped, or hit a limit.
    #[error("{0}")]
    Trap(String),
    /// It has not come back in time.
    #[error("it took longer than {0:?}")]
    Late(Duration),
}

/// Calls a function of a component, on the guests' runtime: a guest may block it.
pub(crate) async fn call<T: Send + 'static>(
    engine: &Engine,
    pre: &InstancePre<Guest>,
    indices: &Indices,
    deadline: Duration,
    call: impl for<'a> FnOnce(&'a Exports, &'a Accessor<Guest>) -> BoxFuture<'a, wasmtime::Result<T>>
    + Send
    + 'static,
) -> Result<T, AsideError> {
    let (pre, indices, home) = (pre.clone(), indices.clone(), engine.clone());
    // Others may have their turns first, which is not this one's delay.
    let live = home.admit_aside(mappings(&home, &pre)).await;
    let called = async move {
        let grant = OpenGrant::none();
        let mut store = Recipe {
            grant: &grant,
            work: None,
            limits: Limits::default(),
            args: &[],
            stdio: Stdio::None,
            link: None,
            peak: Arc::new(AtomicU64::new(0)),
            live,
        }
        .store(&home);
        let polled = home.polled();
        let answer = {
            let mut called = pin!(async {
                let instance = pre.instantiate_async(&mut store).await?;
                let guest = indices.load(&mut store, &instance)?;
                store.run_concurrent(async |accessor| call(&guest, accessor).await).await?
            });
            poll_fn(|cx| polled.during(|| called.as_mut().poll(cx))).await
        };
        answer.map_err(|error| trap::because(&error, store.data().meter.exceeded(&error)))
    };
    let called = AbortOnDropHandle::new(engine.runtime().spawn(called));
    match tokio::time::timeout(deadline, called).await {
        Ok(Ok(answer)) => answer.map_err(AsideError::Trap),
        Ok(Err(panic)) => Err(AsideError::Trap(panic.to_string())),
        Err(_) => Err(AsideError::Late(deadline)),
    }
}
