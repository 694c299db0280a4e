//! A program whose `run` is async: WASI 0.3 without the contract.
//!
//! It prints a line, sleeps as many milliseconds as its argument says, prints
//! another, and fails when a second argument is there.

struct Program;

wasip3::cli::command::export!(Program);

impl wasip3::exports::cli::run::Guest for Program {
    async fn run() -> Result<(), ()> {
        let args = wasip3::cli::environment::get_arguments();
        let ms: u64 = args.get(1).and_then(|ms| ms.parse().ok()).unwrap_or(0);
        print("before\n").await?;
        wasip3::clocks::monotonic_clock::wait_for(ms * 1_000_000).await;
        print("after\n").await?;
        match args.len() {
            0..=2 => Ok(()),
            _ => Err(()),
        }
    }
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
