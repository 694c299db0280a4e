//! Clients that others wrote, against the real process: the conformance suite of MCP, the
//! TypeScript SDKs, the inspector's command line, and schemathesis over HTTP.
//!
//! `just test` brings them. Where they are missing the tests that need them say so on
//! stderr and pass; with `BACKLOT_CLIENTS=required`, as in CI, they fail.

use std::fs;

use backlot_tests::{Process, program};
use serde_json::Value;
use tempfile::TempDir;

/// What the component has in it before and after its tool's name.
const PLACE: &[u8] = b"the tool of this build is:";
const PLACE_BYTES: usize = 80;

/// The tools that the conformance suite calls, as kinds. Its names have underscores.
const TOOLS: [&str; 26] = [
    "confirm-delete",
    "failing-job",
    "greet",
    "json-schema-2020-12-tool",
    "protocol-error-job",
    "slow-compute",
    "test-audio-content",
    "test-elicitation",
    "test-elicitation-sep1034-defaults",
    "test-elicitation-sep1330-enums",
    "test-embedded-resource",
    "test-error-handling",
    "test-header-parameter",
    "test-image-content",
    "test-input-required-result-elicitation",
    "test-input-required-result-multi-round",
    "test-input-required-result-request-state",
    "test-input-required-result-tampered-state",
    "test-logging-tool",
    "test-multiple-content-types",
    "test-reconnection",
    "test-simple-text",
    "test-streaming-elicitation",
    "test-tool-with-logging",
    "test-tool-with-progress",
    "test-tool-with-task",
];

#[test]
fn each_tool_of_the_suite_is_a_kind() {
    let kinds = tools();
    let folder = kinds.path().to_str().unwrap();
    let listed = Process::run(["kinds", "--json", "--plugins", folder]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let document: Value = serde_json::from_str(&listed.stdout).unwrap();
    let names: Vec<&str> =
        document["kinds"].as_array().unwrap().iter().filter_map(|it| it["kind"].as_str()).collect();
    assert_eq!(names, TOOLS);
}

/// Returns a plugin folder with the tools.
fn tools() -> TempDir {
    let folder = TempDir::new().unwrap();
    let component = fs::read(program("conformance")).unwrap();
    for tool in TOOLS {
        fs::write(folder.path().join(format!("{tool}.wasm")), named(&component, tool)).unwrap();
    }
    folder
}

/// Returns the component in the build that is the tool of that name.
fn named(component: &[u8], tool: &str) -> Vec<u8> {
    let mut bytes = component.to_vec();
    let places: Vec<usize> =
        (0..bytes.len() - PLACE_BYTES).filter(|&at| bytes[at..].starts_with(PLACE)).collect();
    assert!(!places.is_empty(), "the component has its tool's name in it");
    let name = format!("{tool:.<width$}", width = PLACE_BYTES - PLACE.len());
    for place in places {
        bytes[place + PLACE.len()..place + PLACE_BYTES].copy_from_slice(name.as_bytes());
    }
    bytes
}
