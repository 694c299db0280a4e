//! Messages as they come: what is none is told so, and whoever sent it goes on.

use rmcp::{
    ErrorData,
    model::{
        CallToolRequestParams, CancelTaskParams, ClientJsonRpcMessage, ClientRequest, ErrorCode,
        GetMeta as _, GetTaskParams, InitializeRequestParams, ProtocolVersion, RequestId,
        UpdateTaskParams,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, error::Category};

/// The longest message, in bytes: an input, with room for what JSON makes of it.
pub(super) const MESSAGE_BYTES: usize = 16 << 20;

/// What revision 2026-07-28 has no more, of what is read here.
const GONE: [&str; 3] = ["initialize", "ping", "logging/setLevel"];

/// What was sent and is no message: what is answered, and to what.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Malformed {
    pub(super) id: Option<RequestId>,
    pub(super) error: ErrorData,
}

/// Reads a message, of that revision where something besides the message says so.
///
/// # Errors
///
/// With what is to be answered.
pub(super) fn read(
    bytes: &[u8],
    revision: Option<&str>,
) -> Result<ClientJsonRpcMessage, Malformed> {
    match serde_json::from_slice::<ClientJsonRpcMessage>(bytes) {
        Ok(ClientJsonRpcMessage::Request(request)) => match &request.request {
            // What has the name of a request, and is taken for one that nobody knows, has
            // parameters that it cannot have.
            ClientRequest::CustomRequest(custom) => {
                let own = request.request.get_meta().protocol_version();
                let own = own.map(|own| own.as_str().to_owned());
                if is_gone(&custom.method, own.as_deref().or(revision)) {
                    let (id, error) = (Some(request.id.clone()), unknown_method(&custom.method));
                    return Err(Malformed { id, error });
                }
                match what_is_wrong(&custom.method, custom.params.as_ref()) {
                    Some(why) => Err(Malformed {
                        id: Some(request.id.clone()),
                        error: ErrorData::invalid_params(why, None),
                    }),
                    None => Ok(ClientJsonRpcMessage::Request(request)),
                }
            }
            _ => Ok(ClientJsonRpcMessage::Request(request)),
        },
        Ok(message) => Ok(message),
        Err(error) => Err(malformed(bytes, &error, revision)),
    }
}

/// Tells whether a request is of a revision that has it no more, whatever its parameters.
fn is_gone(method: &str, revision: Option<&str>) -> bool {
    let is_newer = |revision: &str| revision >= ProtocolVersion::V_2026_07_28.as_str();
    GONE.contains(&method) && revision.is_some_and(is_newer)
}

fn unknown_method(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method.to_owned(), None)
}

fn malformed(bytes: &[u8], error: &serde_json::Error, revision: Option<&str>) -> Malformed {
    let value = match serde_json::from_slice::<Value>(bytes) {
        Ok(value) => value,
        Err(error) => {
            let error = ErrorData::parse_error(format!("this is not JSON: {error}"), None);
            return Malformed { id: None, error };
        }
    };
    let id = value.get("id").cloned().and_then(|id| serde_json::from_value(id).ok());
    if let (Some(_), Some(method), Some(params)) =
        (&id, value.get("method").and_then(Value::as_str), value.get("params"))
        && !params.is_object()
    {
        if is_gone(method, revision) {
            return Malformed { id, error: unknown_method(method) };
        }
        let why = format!("the parameters of {method} are no object");
        return Malformed { id, error: ErrorData::invalid_params(why, None) };
    }
    let why = match &value {
        Value::Array(_) => "messages are sent one by one, and not as a list".to_owned(),
        Value::Object(_) if error.classify() == Category::Data => error.to_string(),
        _ => "a message is an object".to_owned(),
    };
    Malformed { id, error: ErrorData::invalid_request(why, None) }
}

/// Returns what is wrong with the parameters of a request that the protocol has.
fn what_is_wrong(method: &str, params: Option<&Value>) -> Option<String> {
    fn check<T: DeserializeOwned>(method: &str, params: Option<&Value>) -> String {
        let params = params.cloned().unwrap_or_default();
        match serde_json::from_value::<T>(params) {
            Err(error) => format!("the parameters of {method} cannot be read: {error}"),
            Ok(_) => format!("the parameters of {method} cannot be read"),
        }
    }
    Some(match method {
        "initialize" => check::<InitializeRequestParams>(method, params),
        "tools/call" => check::<CallToolRequestParams>(method, params),
        "tasks/get" => check::<GetTaskParams>(method, params),
        "tasks/update" => check::<UpdateTaskParams>(method, params),
        "tasks/cancel" => check::<CancelTaskParams>(method, params),
        "tools/list" | "ping" | "logging/setLevel" | "server/discover" | "subscriptions/listen" => {
            format!("the parameters of {method} cannot be read")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> String {
        let Malformed { id, error } = read(text.as_bytes(), None).unwrap_err();
        let id = id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        format!("{id} {} {}", error.code.0, error.message)
    }

    #[test]
    fn what_is_no_message_is_told_why() {
        assert!(told("{").starts_with("- -32700 this is not JSON: EOF"), "{}", told("{"));
        assert!(told("\u{1}").starts_with("- -32700"));
        assert_eq!(told("[]"), "- -32600 messages are sent one by one, and not as a list");
        assert_eq!(told("7"), "- -32600 a message is an object");
        assert!(told("{}").starts_with("- -32600 "), "{}", told("{}"));
        let version = r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#;
        assert!(told(version).starts_with("7 -32600 "), "{}", told(version));
        let id = r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#;
        assert!(told(id).starts_with("- -32600 "), "{}", told(id));
        let deep = "[".repeat(1_000_000);
        assert!(told(&deep).starts_with("- -32700"), "{}", told(&deep));
    }

    #[test]
    fn parameters_that_cannot_be_are_told_of() {
        let call = |params: &str| {
            told(&format!(
                r#"{{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{params}}}"#
            ))
        };
        assert_eq!(
            call(r#"{"name":5}"#),
            "a -32602 the parameters of tools/call cannot be read: invalid type: integer \
             `5`, expected a string"
        );
        assert!(call(r#"{"name":"x","arguments":[]}"#).contains("expected a map"));
        assert!(call("[]").starts_with("a -32602"), "{}", call("[]"));
        // What nobody knows is for others to refuse.
        let unknown = r#"{"jsonrpc":"2.0","id":1,"method":"no/such","params":{}}"#;
        read(unknown.as_bytes(), None).unwrap();
    }

    #[test]
    fn what_a_revision_has_no_more_is_unknown_whatever_its_parameters() {
        let code = |method: &str, params: &str, revision| {
            let text =
                format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#);
            let Malformed { id, error } = read(text.as_bytes(), revision).unwrap_err();
            assert_eq!(id.map(|id| id.to_string()), Some("7".into()));
            error.code.0
        };
        let own = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        for method in ["initialize", "logging/setLevel"] {
            assert_eq!(code(method, own, None), -32_601, "{method}");
            for params in ["{}", "[]"] {
                assert_eq!(code(method, params, Some("2026-07-28")), -32_601, "{method}");
                assert_eq!(code(method, params, Some("2025-11-25")), -32_602, "{method}");
                assert_eq!(code(method, params, None), -32_602, "{method}");
            }
        }
        assert_eq!(code("tools/call", "[]", Some("2026-07-28")), -32_602);
    }
}
