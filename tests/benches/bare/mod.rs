//! A no-op component without Backlot: a store, an instance, `run`, `done`.

use ::backlot::wasm::EngineConfig;
use backlot_tests::kind;
use wasmtime::{
    Result, Store, UpdateDeadline,
    component::{Component, HasSelf, InstancePre, Linker, ResourceTable},
};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

wasmtime::component::bindgen!({
    path: "../wit",
    world: "producer",
    exports: { default: async | store },
    require_store_data_send: true,
});
use self::{
    backlot::producer::{host, types},
    exports::backlot::producer::lifecycle,
};

pub(crate) struct Bare {
    engine: wasmtime::Engine,
    pre: InstancePre<Guest>,
    lifecycle: lifecycle::GuestIndices,
}

struct Guest {
    wasi: WasiCtx,
    table: ResourceTable,
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl host::Host for Guest {
    fn stop_requested(&mut self) -> Option<Option<String>> {
        None
    }
    fn report(&mut self, _detail: String) {}
}

impl host::HostWithStore<Guest> for HasSelf<Guest> {
    async fn cancelled(_: &wasmtime::component::Accessor<Guest, Self>) -> Option<String> {
        std::future::pending().await
    }
}

impl Bare {
    pub(crate) fn new(runtime: tokio::runtime::Handle) -> Result<Self> {
        let settings = EngineConfig::new(runtime).settings();
        let engine = wasmtime::Engine::new(&settings)?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        wasmtime_wasi::p3::add_to_linker(&mut linker)?;
        host::add_to_linker::<Guest, HasSelf<Guest>>(&mut linker, |guest| guest)?;
        let component = Component::from_file(&engine, kind("noop"))?;
        let pre = linker.instantiate_pre(&component)?;
        let lifecycle = lifecycle::GuestIndices::new(&pre)?;
        Ok(Self { engine, pre, lifecycle })
    }

    pub(crate) async fn once(&self) -> Result<()> {
        let guest = Guest { wasi: WasiCtx::builder().build(), table: ResourceTable::new() };
        let mut store = Store::new(&self.engine, guest);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));
        let instance = self.pre.instantiate_async(&mut store).await?;
        let guest = self.lifecycle.load(&mut store, &instance)?;
        let request = types::Request {
            task: "noop-1".to_owned(),
            label: "noop".to_owned(),
            input: String::new(),
            job: None,
            attempt: 1,
            step: 0,
            cause: types::Cause::Spawn,
            state: None,
            last_failure: None,
            answer: None,
        };
        let outcome = store
            .run_concurrent(async |accessor| {
                guest.call_run(accessor, request).await?.map_err(|refusal| {
                    wasmtime::format_err!("the no-op was refused: {refusal:?}")
                })?;
                guest.call_done(accessor).await
            })
            .await??;
        match outcome.ending {
            types::Ending::Completed => Ok(()),
            _ => Err(wasmtime::format_err!("{outcome:?}")),
        }
    }
}
