//! Broken components: damaged, cut off, or no components at all.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use backlot::{
    Config,
    wasm::{Component, LoadError},
};
use backlot_tests::{Memory, Process, TestHost, kind, program};

/// What the whole process may hold at its peak, however broken what it loads is.
const PEAK: u64 = 1 << 30;
/// Compiling the largest kind takes a second or two where others compile as well.
const LOAD: Duration = Duration::from_secs(30);

/// Files that are no component, each with a word of what is said of it.
fn no_components(folder: &Path) -> Vec<(PathBuf, &'static str)> {
    let whole = fs::read(program("hello")).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        bytes
    };
    let zeros = |preamble: &[u8]| {
        let mut bytes = preamble.to_vec();
        bytes.resize(50_000_000, 0);
        bytes
    };
    let core_module = wat::parse_str("(module (func))").unwrap();
    vec![
        (write("empty.wasm", b""), "empty"),
        (write("text.wasm", b"#!/bin/sh\necho hello\n"), "no WebAssembly"),
        (PathBuf::from("/bin/ls"), "no WebAssembly"),
        (write("core-module.wasm", &core_module), "core WebAssembly module"),
        (write("half.wasm", &whole[..whole.len() / 2]), "does not compile"),
        (write("preamble.wasm", &whole[..8]), "no exports"),
        (write("other-version.wasm", b"\0asm\x0c\0\x01\0"), "does not compile"),
        (write("other-layer.wasm", b"\0asm\x0d\0\x02\0"), "does not compile"),
        (write("no-magic.wasm", &flipped(1)), "no WebAssembly"),
        (write("flipped.wasm", &flipped(9)), "does not compile"),
        // Sections of size 0, as a file is that was made and never written.
        (write("zeros.wasm", &zeros(b"\0asm\x0d\0\x01\0")), "does not compile"),
        (write("core-zeros.wasm", &zeros(b"\0asm\x01\0\0\0")), "core WebAssembly module"),
        (write("only-zeros.wasm", &zeros(b"")), "no WebAssembly"),
    ]
}

#[tokio::test]
async fn what_is_no_component_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let files = no_components(folder.path());
    let host = TestHost::with(Config { instances: Some(16), ..Config::default() });
    for (file, says) in &files {
        let loaded = tokio::time::timeout(LOAD, host.host.load_file(file)).await.unwrap();
        let error = loaded.unwrap_err().to_string();
        assert!(error.contains(says), "{}: {error}", file.display());
        assert!(error.len() < 1_000 && !error.contains('\n'), "{error}");
    }
    assert_eq!(host.host.engine().instances(), 0);
    assert!(Memory::peak() < PEAK, "{} bytes", Memory::peak());
}

#[test]
fn check_tells_of_every_file_that_is_no_component() {
    let folder = tempfile::tempdir().unwrap();
    let files = no_components(folder.path());
    let paths = files.iter().map(|(path, _)| path.clone().into_os_string());
    let checked = Process::run(["check".into(), "--json".into()].into_iter().chain(paths));
    assert_eq!(checked.code, Some(3), "{}", checked.stderr);
    let report: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
    let told = report["files"].as_array().unwrap();
    assert_eq!(told.len(), files.len());
    for ((path, says), told) in files.iter().zip(told) {
        assert_eq!((&told["ok"], &told["file"]), (&false.into(), &path.to_str().unwrap().into()));
        assert!(told["error"].as_str().unwrap().contains(says), "{told}");
    }
    assert!(!checked.stderr.contains("panicked"), "{}", checked.stderr);
}

/// A file that is still being written ends anywhere.
#[tokio::test]
async fn a_component_that_is_cut_off_anywhere_is_refused() {
    let host = TestHost::with(Config { instances: Some(16), ..Config::default() });
    let whole = fs::read(kind("noop")).unwrap();
    // Every length up to where the code begins, and steps from there.
    let lengths = (0..2_000).chain((2_000..whole.len()).step_by(499)).chain([whole.len() - 1]);
    for length in lengths {
        let load = Component::load(host.host.engine(), "noop", whole[..length].to_vec(), 1);
        let loaded = tokio::time::timeout(LOAD, load).await.unwrap();
        // Between two sections it compiles, and exports nothing yet.
        let refused = matches!(loaded, Err(LoadError::NotRunnable(_) | LoadError::Compile(_)));
        assert!(refused, "{length} bytes: {loaded:?}");
    }
    assert!(Memory::peak() < PEAK, "{} bytes", Memory::peak());
}

/// Damages the shape of a kind a thousand times, and in addition whatever is hit
/// that many times. Nothing that comes of it panics, hangs or takes much memory.
///
/// What is not valid, nearly all of the first, is refused in some milliseconds. Of
/// the others many are valid, and cost as much to compile as the whole component.
async fn survives_damage(name: &str, anywhere: usize) {
    let host = TestHost::with(Config { instances: Some(16), ..Config::default() });
    let whole = fs::read(kind(name)).unwrap();
    let mut skeleton = skeleton(&whole);
    // Names are half of it, and one in eight of their bytes is enough.
    skeleton.retain(|at| at % 8 == 0 || !is_in_name(&whole, *at));
    let mut refused = 0;
    for nth in 0..1_000 + anywhere {
        // A seed for each, so that one can be repeated alone.
        let mut dice = Dice(nth as u64);
        let at = match nth {
            ..1_000 => skeleton[dice.below(skeleton.len())],
            _ => dice.below(whole.len()),
        };
        let mut bytes = whole.clone();
        damage(&mut bytes, at, &mut dice);
        // A panic on another thread would be told as an error.
        let load = Component::load(host.host.engine(), name, bytes, 1);
        match tokio::time::timeout(LOAD, load).await {
            Err(_) => panic!("{name}, damage {nth}: it hangs"),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                refused += 1;
                let error = error.to_string();
                assert!(!error.contains(" panicked"), "{name}, damage {nth}: {error}");
            }
        }
        assert!(Memory::peak() < PEAK, "{name}, damage {nth}: {} bytes", Memory::peak());
    }
    assert!(refused > 900, "{refused} were refused");
    // Instances of `describe` that were given up go with their last turn.
    let gone = async {
        while host.host.engine().instances() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LOAD, gone).await.unwrap();
    // The host is none the worse for it.
    let component = Component::load(host.host.engine(), name, whole, 1).await.unwrap();
    assert_eq!(component.description().kind.as_str(), name);
}

#[tokio::test]
async fn a_damaged_noop_is_survived() {
    survives_damage("noop", 50).await;
}

#[tokio::test]
async fn a_damaged_ticker_is_survived() {
    survives_damage("ticker", 30).await;
}

#[tokio::test]
async fn a_damaged_checksum_is_survived() {
    survives_damage("checksum", 20).await;
}

#[tokio::test]
async fn a_damaged_faulty_is_survived() {
    survives_damage("faulty", 10).await;
}

#[tokio::test]
async fn a_damaged_grep_is_survived() {
    survives_damage("grep", 5).await;
}

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    /// Returns the next number, by splitmix64.
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`, or 0 if that is 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.roll() % (end.max(1) as u64)).unwrap()
    }
}

/// Returns where the bytes are that give a component its shape. Damage elsewhere is
/// mostly found by running it, or never.
fn skeleton(bytes: &[u8]) -> Vec<usize> {
    const CUSTOM: u8 = 0;
    const CORE_MODULE: u8 = 1;
    const COMPONENT: u8 = 4;
    const FUNCTION: u8 = 3;
    const ELEMENT: u8 = 9;
    const CODE: u8 = 10;
    const DATA: u8 = 11;
    const PREAMBLE: usize = 8;
    // The version field says what the sections are numbered for.
    let is_component = bytes[6] == 1;
    let mut all: Vec<usize> = (0..PREAMBLE).collect();
    let mut at = PREAMBLE;
    while at < bytes.len() {
        let (id, header) = (bytes[at], at);
        at += 1;
        let (mut size, mut shift) = (0, 0);
        loop {
            let byte = bytes[at];
            at += 1;
            size |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        all.extend(header..at);
        match id {
            CUSTOM => {}
            CORE_MODULE | COMPONENT if is_component => {
                all.extend(skeleton(&bytes[at..at + size]).into_iter().map(|inner| at + inner));
            }
            FUNCTION | ELEMENT | CODE | DATA if !is_component => {}
            _ => all.extend(at..at + size),
        }
        at += size;
    }
    all
}

/// Tells whether a byte is inside of a name. A component with another name in it is
/// mostly valid, and found out when it has been compiled.
fn is_in_name(bytes: &[u8], at: usize) -> bool {
    let of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-:/@.".contains(byte);
    bytes.get(at.saturating_sub(1)..at + 2).is_some_and(|around| around.iter().all(of_name))
}

/// Damages a component in one of the ways in which files are damaged on purpose
/// or by accident.
fn damage(bytes: &mut Vec<u8>, at: usize, dice: &mut Dice) {
    let chunk = at..(at + 1 + dice.below(256)).min(bytes.len());
    match dice.below(8) {
        0 | 1 => bytes[at] ^= 1 << dice.below(8),
        2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][dice.below(5)],
        3 => bytes[chunk].fill_with(|| dice.roll().to_le_bytes()[0]),
        4 => drop(bytes.drain(chunk)),
        5 => {
            let again = bytes[chunk].to_vec();
            bytes.splice(at..at, again);
        }
        6 => bytes.truncate(at),
        // A number that is as large as can be, where a small one may have been.
        _ => drop(bytes.splice(at..=at, [0xff, 0xff, 0xff, 0xff, 0x0f])),
    }
}
