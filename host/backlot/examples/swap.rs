//! A kind that is replaced three times under its running tasks: by a new version, by
//! one that is broken, and by another new one.
//!
//! `cargo run -p backlot --example swap -- target/plugins/ticker.wasm`

use std::{env, error::Error, fs, path::Path, sync::Arc, time::Duration};

use backlot::{
    Config, Host, Reload,
    registry::{Caller, Catalog as _, Change, Changes, Kind, Registry, Start, TaskId},
    wasm::{Ask, compile_if_asked},
};

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    // Components are compiled by a process of this program.
    compile_if_asked();
    let file = env::args().nth(1).ok_or("name the file of the kind: target/plugins/ticker.wasm")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(swap(&fs::read(file)?))
}

async fn swap(ticker: &[u8]) -> Result<(), Box<dyn Error>> {
    let folder = env::temp_dir().join(format!("backlot-swap-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let shown = show(ticker, &folder).await;
    fs::remove_dir_all(&folder)?;
    shown
}

async fn show(ticker: &[u8], folder: &Path) -> Result<(), Box<dyn Error>> {
    let file = folder.join("ticker.wasm");
    fs::write(&file, ticker)?;
    let config = Config { plugins: folder.to_owned(), reload: Reload::Watch, ..Config::default() };
    let host = Host::start(config)?;
    let _surface = host.registry().attach_surface("swap");
    let kind = Kind::new("ticker")?;
    host.load_kind("ticker").await?;
    let mut changes = host.catalog().changes();

    let mut tasks = Vec::new();
    let versions = [
        ("is replaced by a new version", version(ticker, 1)),
        ("is replaced by half a file", ticker[..ticker.len() / 2].to_vec()),
        ("is replaced by another new version", version(ticker, 2)),
    ];
    println!("ticker is loaded, and the folder is watched");
    tasks.push(start(&host, &kind).await?);
    for (what, bytes) in versions {
        println!("\nticker.wasm {what}");
        // As careful programs save files: whole, and then under its name.
        let draft = folder.join(".draft");
        fs::write(&draft, bytes)?;
        fs::rename(&draft, &file)?;
        println!("  the host: {}", noticed(&mut changes).await?);
        tasks.push(start(&host, &kind).await?);
        for task in &tasks {
            println!("  {}", line(host.registry(), task)?);
        }
    }

    println!("\nthe tasks end, each with the version that it was started with");
    for task in &tasks {
        host.registry().wait(task, &Caller::Operator, PATIENCE).await?;
        println!("  {}", line(host.registry(), task)?);
    }
    let freed = [noticed(&mut changes).await?, noticed(&mut changes).await?];
    println!("  the host: {}; {}", freed[0], freed[1]);
    host.shutdown().await;
    Ok(())
}

/// Returns a version of a component that does the same. It stands in for a new build:
/// a custom section makes it another file, with another digest.
fn version(component: &[u8], number: u8) -> Vec<u8> {
    [component, &[0, 6, 4], b"demo", &[number]].concat()
}

/// Starts a task that ticks for some seconds.
async fn start(host: &Host, kind: &Kind) -> Result<TaskId, Box<dyn Error>> {
    let producer = host.producer(kind.as_str(), Ask::default()).await?;
    let input = r#"{"count":25,"every_ms":100}"#.to_owned();
    let start = Start { label: "ticks".to_owned(), input, ..Start::default() };
    Ok(host.registry().start(Arc::new(producer), start).await?)
}

/// Waits for what the host says next.
async fn noticed(changes: &mut Changes) -> Result<String, Box<dyn Error>> {
    let change = tokio::time::timeout(PATIENCE, changes.next()).await?;
    Ok(match change.ok_or("the host is gone")? {
        Change::Swapped { generation, .. } => format!("version {} serves", generation.number),
        Change::Refused { why, .. } => format!("not taken: {why}"),
        Change::Freed { generation, .. } => format!("version {} is freed", generation.number),
        other => format!("{other:?}"),
    })
}

fn line(registry: &Registry, task: &TaskId) -> Result<String, Box<dyn Error>> {
    let task = registry.get(task, &Caller::Operator)?;
    let version = task.generation.map(|generation| generation.number).unwrap_or_default();
    let (id, status, bytes) = (task.id, task.status, task.output_bytes);
    Ok(format!("{id} is {status}, version {version}, {bytes} bytes of output"))
}
