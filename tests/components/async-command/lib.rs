//! A program whose `run` is async: WASI 0.3 without the contract.
//!
//! ```text
//! sleep MS [fail]    prints `before`, sleeps, prints `after`, and fails if asked to
//! wait NS            waits for a duration, and prints `over`
//! wait-until NS      waits for an instant, and prints `over`
//! list               prints the names in the first granted folder, sorted
//! hold COUNT         begins that many listings of it, reads none, then opens `file`
//! touch PATH         sets the times of a path, following links, and prints what came of it
//! ```

use wasip3::filesystem::{
    preopens::get_directories,
    types::{Descriptor, DescriptorFlags, NewTimestamp, OpenFlags, PathFlags},
};

struct Program;

wasip3::cli::command::export!(Program);

impl wasip3::exports::cli::run::Guest for Program {
    async fn run() -> Result<(), ()> {
        let args = wasip3::cli::environment::get_arguments();
        let args: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
        match args.as_slice() {
            ["sleep", ms, rest @ ..] => {
                let ms: u64 = ms.parse().map_err(drop)?;
                print("before\n").await?;
                wasip3::clocks::monotonic_clock::wait_for(ms * 1_000_000).await;
                print("after\n").await?;
                if rest.is_empty() { Ok(()) } else { Err(()) }
            }
            ["wait", ns] => {
                wasip3::clocks::monotonic_clock::wait_for(ns.parse().map_err(drop)?).await;
                print("over\n").await
            }
            ["wait-until", ns] => {
                wasip3::clocks::monotonic_clock::wait_until(ns.parse().map_err(drop)?).await;
                print("over\n").await
            }
            ["list"] => {
                let (entries, ended) = folder()?.read_directory();
                let mut names: Vec<String> =
                    entries.collect().await.into_iter().map(|entry| entry.name).collect();
                names.sort();
                ended.await.map_err(drop)?;
                print(&(names.join("\n") + "\n")).await
            }
            ["hold", count] => {
                let folder = folder()?;
                let count: usize = count.parse().map_err(drop)?;
                let held: Vec<_> = (0..count).map(|_| folder.read_directory()).collect();
                let opened = folder
                    .open_at(
                        PathFlags::empty(),
                        "file".to_owned(),
                        OpenFlags::empty(),
                        DescriptorFlags::READ,
                    )
                    .await;
                print(&format!("held {}, opened {}\n", held.len(), opened.is_ok())).await
            }
            ["touch", path] => {
                let touched = folder()?
                    .set_times_at(
                        PathFlags::SYMLINK_FOLLOW,
                        (*path).to_owned(),
                        NewTimestamp::Now,
                        NewTimestamp::Now,
                    )
                    .await;
                print(&format!("{touched:?}\n")).await
            }
            _ => Err(()),
        }
    }
}

fn folder() -> Result<Descriptor, ()> {
    get_directories().into_iter().next().map(|(folder, _)| folder).ok_or(())
}

async fn print(text: &str) -> Result<(), ()> {
    let (mut writer, reader) = wasip3::wit_stream::new();
    let (written, rest) = futures::future::join(
        async { wasip3::cli::stdout::write_via_stream(reader).await },
        async {
            let rest = writer.write_all(text.as_bytes().to_vec()).await;
            drop(writer);
            rest
        },
    )
    .await;
    if written.is_err() || !rest.is_empty() {
        return Err(());
    }
    Ok(())
}
