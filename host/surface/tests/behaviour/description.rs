//! The description of the interface: it is checked in, and it tells the truth.

use std::{collections::BTreeSet, env, fs};

use axum::{body::Body, http::Request};
use backlot_surface::{description, router};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;

use crate::harness::{Host, raw};

const METHODS: [&str; 5] = ["get", "post", "put", "delete", "patch"];

fn described() -> Value {
    serde_json::from_str(description()).unwrap()
}

/// Returns every operation: its path, its method, and what is said about it.
fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let all = paths.iter().flat_map(|(path, item)| {
        let item = item.as_object().unwrap();
        item.iter().map(|(method, operation)| (path.as_str(), method.as_str(), operation))
    });
    all.collect()
}

#[tokio::test]
async fn the_description_that_is_checked_in_is_the_one_that_is_served() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    if env::var_os("UPDATE_OPENAPI").is_some() {
        fs::write(path, description()).unwrap();
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    assert!(kept == description(), "`UPDATE_OPENAPI=1 cargo test -p backlot-surface` writes it");
    let host = Host::start().await;
    let request = "GET /v1/openapi.json HTTP/1.1\r\nhost: x\r\nbacklot-session: chat\r\n\
                   connection: close\r\n\r\n";
    let answer = raw(&host, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&kept));
}

/// Sends a request to every path by every method, and compares what there is with what is
/// said.
#[tokio::test]
async fn each_route_is_described_and_each_that_is_described_is_there() {
    let host = Host::start().await;
    let service = TowerToHyperService::new(router(host.api.clone()));
    let document = described();
    let operations = operations(&document);
    let paths: BTreeSet<&str> = operations.iter().map(|(path, ..)| *path).collect();
    for path in paths {
        let address = path.replace("{id}", "x").replace("{kind}", "x").replace("{path}", "x");
        for method in METHODS {
            let is_described = operations.iter().any(|(at, by, _)| (*at, *by) == (path, method));
            // What would be done is not: it is for a session that may not, or is not there.
            let request = Request::builder().method(method.to_uppercase().as_str());
            let request = request.uri(&address).header("backlot-session", "nobody");
            let answer = service.call(request.body(Body::empty()).unwrap()).await.unwrap();
            let status = answer.status().as_u16();
            assert_eq!(status != 405, is_described, "{method} {path}: {status}");
            if status == 200 {
                continue;
            }
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert!(!body.windows(8).any(|it| it == b"no_route"), "{method} {path}");
            if is_described {
                let (.., operation) =
                    operations.iter().find(|(at, by, _)| (*at, *by) == (path, method)).unwrap();
                let said = operation["responses"].as_object().unwrap();
                assert!(said.contains_key(&status.to_string()), "{method} {path}: {status}");
            }
        }
    }
}

#[test]
fn each_operation_has_a_name_of_its_own_and_an_answer() {
    let document = described();
    let operations = operations(&document);
    let names: BTreeSet<&str> =
        operations.iter().map(|(.., it)| it["operationId"].as_str().unwrap()).collect();
    assert_eq!(names.len(), operations.len());
    for (path, method, operation) in operations {
        let answers = operation["responses"].as_object().unwrap();
        assert!(answers.keys().any(|status| status.starts_with('2')), "{method} {path}");
        for (status, answer) in answers {
            assert!(!answer["description"].as_str().unwrap().is_empty());
            let is_error = !status.starts_with('2');
            let is_problem = answer["content"]["application/problem+json"].is_object();
            assert_eq!(is_problem, is_error, "{method} {path}: {status}");
        }
        let named = path.matches('{').count();
        let parameters = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        let of_path = parameters.iter().filter(|it| it["in"] == "path");
        assert_eq!(of_path.count(), named, "{method} {path}");
    }
}

#[test]
fn what_is_named_is_there_and_what_is_asked_is_strict() {
    let document = described();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut named = BTreeSet::new();
    names(&document, &mut named);
    for name in &named {
        assert!(schemas.contains_key(name), "{name}");
    }
    for (_, _, operation) in operations(&document) {
        let sent = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        if let Some(sent) = sent.as_str() {
            let name = sent.strip_prefix("#/components/schemas/").unwrap();
            assert_eq!(schemas[name]["additionalProperties"], false, "{name}");
        }
    }
    let job = schemas["JobView"]["required"].as_array().unwrap();
    assert!(job.contains(&"status".into()) && !job.contains(&"summary".into()));
    assert_eq!(document["openapi"], "3.1.0");
}

fn names(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                match (field.as_str(), value) {
                    ("$ref", Value::String(name)) => {
                        let name = name.strip_prefix("#/components/schemas/").unwrap();
                        into.insert(name.to_owned());
                    }
                    _ => names(value, into),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names(value, into)),
        _ => {}
    }
}
