//! Large components: they load, or what they need and may have is told.

use std::{fs, path::PathBuf};

use backlot::{registry::Status, wasm::Limits};
use backlot_tests::{Memory, TestHost, With};
use tempfile::TempDir;

/// A program with that many pages of memory and that many bytes of data in it.
fn program(folder: &TempDir, pages: u64, data: usize) -> PathBuf {
    let wat = format!(
        r#"(component
            (core module $m (memory {pages}) (data (i32.const 0) "{}")
                (func (export "run") (result i32)
                    ;; 0 if the last byte of the data is there.
                    (i32.ne (i32.const 120) (i32.load8_u (i32.const {})))))
            (core instance $i (instantiate $m))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (instance $e (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $e)))"#,
        "x".repeat(data),
        data - 1,
    );
    let path = folder.path().join("large.wasm");
    fs::write(&path, wat::parse_str(wat).unwrap()).unwrap();
    path
}

/// C17: with the defaults they load and run.
#[tokio::test]
async fn c17_large_components_load_with_the_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let host = TestHost::start();
    for (pages, data) in [(223, 1), (480, 30_000_000), (800, 50_000_000), (4_096, 1)] {
        let path = program(&folder, pages, data);
        let size = fs::metadata(&path).unwrap().len();
        assert!(size > data as u64);
        let memory = Memory::from_now();
        let component = host.host.load_file(&path).await.unwrap();
        // The file, its compiled form, and what its memory begins with.
        let growth = memory.growth();
        assert!(growth < 6 * size + (64 << 20), "{growth} bytes for {size}");
        let ended = host.task(&component, "").await.end().await;
        assert_eq!(ended.status, Status::Completed, "{pages} pages, {data} bytes: {ended:?}");
        assert!(ended.usage.unwrap().peak_memory >= pages << 16);
    }
}

/// C17: past a limit, the need, the limit and the setting are named.
#[tokio::test]
async fn c17_what_needs_more_than_its_limit_is_told_of_both() {
    let folder = tempfile::tempdir().unwrap();
    let host = TestHost::start();
    let small = Limits { memory: 10 << 20, ..Limits::default() };
    for (pages, limits, need, limit) in [
        (223, small, "14272 KiB", "memory limit of 10 MiB"),
        (4_097, Limits::default(), "262208 KiB", "memory limit of 256 MiB"),
    ] {
        let component = host.host.load_file(&program(&folder, pages, 1)).await.unwrap();
        let with = With { limits, ..With::default() };
        let Err(error) = host.try_task(&component, "", with).await else {
            panic!("{pages} pages were started")
        };
        let error = error.to_string();
        for word in [need, limit, "--memory"] {
            assert!(error.contains(word), "{pages} pages: it does not say {word:?}: {error}");
        }
    }
    assert_eq!(host.host.engine().guest_memory(), 0);

    let path = folder.path().join("huge.wasm");
    fs::File::create(&path).unwrap().set_len((128 << 20) + 1).unwrap();
    let error = host.host.load_file(&path).await.unwrap_err().to_string();
    assert!(error.contains("larger than a component can be, which is 134217728 bytes"), "{error}");
}
