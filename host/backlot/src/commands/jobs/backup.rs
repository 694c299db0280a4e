//! `backlot backup` and `backlot restore`: the record of all jobs, elsewhere and back.

use backlot_jobs::{
    HoldError, Holder, SqliteOptions, SqliteStore, StoreError, restore as put_back,
};
use backlot_surface::{Client, ClientError, Failure, Reason, wire::BackupRequest};

use super::{Told, reach};
use crate::{
    cli::{Backup, Common, Restore},
    commands::print,
    console::Console,
    exit::Exit,
};

pub(crate) async fn backup(
    args: Backup,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    let to = std::path::absolute(&args.to)?;
    let done = async {
        let folder = reach::found(common)?;
        match Client::connect(&folder.socket_address()).await {
            Ok(client) => return Ok(client.backup(&BackupRequest { to: to.clone() }).await?),
            Err(ClientError::NoHost { .. }) => {}
            Err(error) => return Err(Told::from(error)),
        }
        let database = folder.database();
        let open = move || SqliteStore::open_read_only(&database, SqliteOptions::default());
        let store = tokio::task::spawn_blocking(open).await;
        let store = store.unwrap_or(Err(StoreError::Closed)).map_err(Failure::from)?;
        Ok(store.backup_to(&to).await.map_err(Failure::from)?)
    };
    match done.await {
        Ok(()) => {
            print(console, format!("{}\n", to.display())).await?;
            Ok(Exit::Completed)
        }
        Err(told) => Ok(told.tell(false, console).await),
    }
}

pub(crate) async fn restore(
    args: Restore,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    let done = async {
        let folder = reach::folder(common)?;
        let holder = Holder::this(concat!("backlot ", env!("CARGO_PKG_VERSION")));
        let hold = move || folder.hold(&holder);
        let held = tokio::task::spawn_blocking(hold).await;
        let held = held.map_err(|error| Told::by(&error))?;
        let held = held.map_err(|error| {
            let reason = match &error {
                HoldError::Held { .. } => Reason::OtherHost,
                _ => Reason::Refused,
            };
            Told::new(reason, error.to_string())
        })?;
        let (from, to) = (args.from.clone(), held.folder().database());
        let restored = tokio::task::spawn_blocking(move || put_back(&from, &to)).await;
        restored.unwrap_or(Err(StoreError::Closed)).map_err(Failure::from)?;
        Ok::<_, Told>(held.folder().database())
    };
    match done.await {
        Ok(database) => {
            print(console, format!("{}\n", database.display())).await?;
            Ok(Exit::Completed)
        }
        Err(told) => Ok(told.tell(false, console).await),
    }
}
