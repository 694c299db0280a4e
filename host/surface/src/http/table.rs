//! The table of routes, and the description of the interface that it makes.
//!
//! A route is added together with what is said about it, so there is none that the
//! description does not have.

use std::collections::{BTreeMap, BTreeSet};

use axum::{
    Router,
    handler::Handler,
    routing::{MethodRouter, delete, get, post, put},
};
use utoipa::{
    IntoParams, ToSchema,
    openapi::{
        Components, ContentBuilder, HeaderBuilder, HttpMethod, InfoBuilder, ObjectBuilder, OpenApi,
        OpenApiBuilder, Paths, Ref, RefOr, Required, ResponseBuilder, Schema, SchemaFormat,
        SecurityRequirement, Type,
        path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn},
        request_body::RequestBodyBuilder,
        schema::AdditionalProperties,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use super::{Surface, ask::SESSION_HEADER, no_method};
use crate::error::Reason;

/// What a description calls the way that whoever asks says who it is.
const TOKEN: &str = "token";
/// What errors are sent as.
const PROBLEM: &str = "application/problem+json";
/// The name of their shape.
const PROBLEM_NAME: &str = "Problem";

/// What can go wrong with any request of somebody who is let in.
const ALWAYS: &[Reason] = &[Reason::BadRequest, Reason::Forbidden, Reason::Busy, Reason::Internal];
/// What can go wrong where something is sent.
const WITH_BODY: &[Reason] = &[Reason::Invalid, Reason::TooLarge, Reason::TooSlow];
/// What can go wrong where the store is read.
pub(super) const READING: &[Reason] = &[Reason::Closed, Reason::Damaged, Reason::Newer, Reason::Io];
/// What can go wrong where the store is written.
pub(super) const WRITING: &[Reason] = &[
    Reason::Closed,
    Reason::DiskFull,
    Reason::ReadOnly,
    Reason::Damaged,
    Reason::Newer,
    Reason::Io,
];

/// Routes, and what is said about them.
pub(super) struct Table {
    pub(super) router: Router<Surface>,
    /// Every address, as the router has it.
    pub(super) addresses: BTreeSet<String>,
    paths: Paths,
    schemas: BTreeMap<String, RefOr<Schema>>,
}

impl Table {
    /// Returns an empty one.
    pub(super) fn new() -> Self {
        Self {
            router: Router::new(),
            addresses: BTreeSet::new(),
            paths: Paths::new(),
            schemas: BTreeMap::new(),
        }
    }

    /// Adds what answers where something is looked at.
    pub(super) fn get<H: Handler<T, Surface>, T: 'static>(
        self,
        path: &str,
        handler: H,
        about: About,
    ) -> Self {
        self.add(path, HttpMethod::Get, get(handler), about)
    }

    /// Adds what answers where something is looked at and not where its head alone is
    /// asked for: of that nothing is told, and nothing is settled by it.
    pub(super) fn get_whole<H: Handler<T, Surface>, T: 'static>(
        self,
        path: &str,
        handler: H,
        about: About,
    ) -> Self {
        self.add(path, HttpMethod::Get, get(handler).head(no_method), about)
    }

    /// Adds what answers where something is done.
    pub(super) fn post<H: Handler<T, Surface>, T: 'static>(
        self,
        path: &str,
        handler: H,
        about: About,
    ) -> Self {
        self.add(path, HttpMethod::Post, post(handler), about)
    }

    /// Adds what answers where something is put there.
    pub(super) fn put<H: Handler<T, Surface>, T: 'static>(
        self,
        path: &str,
        handler: H,
        about: About,
    ) -> Self {
        self.add(path, HttpMethod::Put, put(handler), about)
    }

    /// Adds what answers where something is deleted.
    pub(super) fn delete<H: Handler<T, Surface>, T: 'static>(
        self,
        path: &str,
        handler: H,
        about: About,
    ) -> Self {
        self.add(path, HttpMethod::Delete, delete(handler), about)
    }

    fn add(
        mut self,
        path: &str,
        method: HttpMethod,
        handler: MethodRouter<Surface>,
        about: About,
    ) -> Self {
        let described = path.replace("{*", "{");
        let (operation, schemas) = about.described(&described);
        self.paths.add_path_operation(described, vec![method], operation);
        self.schemas.extend(schemas);
        self.addresses.insert(path.to_owned());
        self.router = self.router.route(path, handler);
        self
    }

    /// Returns the description of the interface.
    pub(super) fn description(mut self) -> OpenApi {
        self.schemas.insert(PROBLEM_NAME.to_owned(), problem());
        let mut components = Components::new();
        components.schemas = self.schemas;
        let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
            "A token that `backlot token` has made. Over the host's socket none is needed: \
             whoever can connect there is the operator.",
        ));
        components
            .security_schemes
            .insert(TOKEN.to_owned(), SecurityScheme::Http(token.build()).into());
        let info = InfoBuilder::new()
            .title("Backlot")
            .version("1")
            .description(Some(
                "Jobs of a host: spawned, looked at, stopped and gone on with. Times are in \
                 milliseconds since the Unix epoch. Fields may be added to what is answered; a \
                 field that there is not is refused in what is asked. What belongs to somebody \
                 else is answered as what there is not.",
            ))
            .build();
        OpenApiBuilder::new()
            .info(info)
            .paths(self.paths)
            .components(Some(components))
            .security(Some([SecurityRequirement::new(TOKEN, [""; 0])]))
            .build()
    }
}

/// What is said about a route.
pub(super) struct About {
    id: &'static str,
    summary: &'static str,
    description: Option<&'static str>,
    is_open: bool,
    parameters: Vec<Parameter>,
    /// What is sent: the name of its shape, and whether it has to be.
    body: Option<(String, Required)>,
    answers: Vec<(u16, &'static str, Option<Shape>)>,
    /// Whether a success tells where to find what was made.
    has_location: bool,
    reasons: Vec<Reason>,
    schemas: Vec<(String, RefOr<Schema>)>,
}

/// What is answered with.
enum Shape {
    /// JSON of the shape of that name.
    Json(String),
    /// JSON of any shape.
    Any,
    /// Events of a live stream.
    Events,
    /// Text for another program.
    Text,
    /// Whatever a file has in it.
    Bytes,
}

impl About {
    /// Returns what is said about what does that, under a name for programs.
    pub(super) fn new(id: &'static str, summary: &'static str) -> Self {
        Self {
            id,
            summary,
            description: None,
            is_open: false,
            parameters: Vec::new(),
            body: None,
            answers: Vec::new(),
            has_location: false,
            reasons: Vec::new(),
            schemas: Vec::new(),
        }
    }

    /// Says more.
    pub(super) fn more(self, description: &'static str) -> Self {
        Self { description: Some(description), ..self }
    }

    /// Says that nobody needs to say who asks.
    pub(super) fn open(self) -> Self {
        Self { is_open: true, ..self }
    }

    /// Says what stands behind the question mark.
    pub(super) fn query<T: IntoParams>(mut self) -> Self {
        self.parameters.extend(T::into_params(|| Some(ParameterIn::Query)));
        self
    }

    /// Says what a header is for that need not be there.
    pub(super) fn header(
        mut self,
        name: &str,
        schema: ObjectBuilder,
        description: &'static str,
    ) -> Self {
        let header = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(description))
            .schema(Some(schema));
        self.parameters.push(header.build());
        self
    }

    /// Says what is sent.
    pub(super) fn sent<T: ToSchema>(mut self) -> Self {
        self.body = Some((self.shape::<T>(), Required::True));
        self.reasons.extend(WITH_BODY);
        self
    }

    /// Says what is sent where it is not all as usual.
    pub(super) fn may_be_sent<T: ToSchema>(mut self) -> Self {
        self.body = Some((self.shape::<T>(), Required::False));
        self.reasons.extend(WITH_BODY);
        self
    }

    /// Says what is answered in a shape.
    pub(super) fn answers<T: ToSchema>(mut self, status: u16, description: &'static str) -> Self {
        let shape = Shape::Json(self.shape::<T>());
        self.answers.push((status, description, Some(shape)));
        self
    }

    /// Says what is answered with nothing in it.
    pub(super) fn answers_nothing(mut self, status: u16, description: &'static str) -> Self {
        self.answers.push((status, description, None));
        self
    }

    /// Says what is answered as JSON that is described elsewhere.
    pub(super) fn answers_any(mut self, description: &'static str) -> Self {
        self.answers.push((200, description, Some(Shape::Any)));
        self
    }

    /// Says which events are sent.
    pub(super) fn answers_events(mut self, description: &'static str) -> Self {
        self.answers.push((200, description, Some(Shape::Events)));
        self
    }

    /// Says that text is answered.
    pub(super) fn answers_text(mut self, description: &'static str) -> Self {
        self.answers.push((200, description, Some(Shape::Text)));
        self
    }

    /// Says that the content of a file is answered.
    pub(super) fn answers_bytes(mut self, description: &'static str) -> Self {
        self.answers.push((200, description, Some(Shape::Bytes)));
        self
    }

    /// Says that successes tell where to find what was made.
    pub(super) fn with_location(self) -> Self {
        Self { has_location: true, ..self }
    }

    /// Adds a shape that events have.
    pub(super) fn event<T: ToSchema>(mut self) -> Self {
        self.shape::<T>();
        self
    }

    /// Says why it may fail.
    pub(super) fn fails(mut self, reasons: &[Reason]) -> Self {
        self.reasons.extend(reasons);
        self
    }

    fn shape<T: ToSchema>(&mut self) -> String {
        let name = T::name().into_owned();
        self.schemas.push((name.clone(), T::schema()));
        T::schemas(&mut self.schemas);
        name
    }

    /// Returns it as the description of a path has it, and the shapes that it names.
    fn described(mut self, path: &str) -> (OperationBuilder, Vec<(String, RefOr<Schema>)>) {
        let tag = path.split('/').nth(2).unwrap_or_default();
        let mut operation = OperationBuilder::new()
            .operation_id(Some(self.id))
            .summary(Some(self.summary))
            .description(self.description)
            .tag(match tag {
                "jobs" | "sessions" | "tasks" | "kinds" => tag,
                _ => "host",
            });
        for parameter in path_parameters(path) {
            operation = operation.parameter(parameter);
        }
        if self.is_open {
            operation = operation.security(SecurityRequirement::default());
        } else {
            self.reasons.extend(ALWAYS);
            let session = ObjectBuilder::new().schema_type(Type::String);
            let session = session.min_length(Some(1)).max_length(Some(256));
            let narrows = "Narrows who asks to that session, which then is all there is.";
            self = self.header(SESSION_HEADER, session, narrows);
        }
        for parameter in self.parameters {
            operation = operation.parameter(parameter);
        }
        if let Some((name, required)) = self.body {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(name)));
            let body = RequestBodyBuilder::new().required(Some(required));
            let body = body.content("application/json", content.build());
            operation = operation.request_body(Some(body.build()));
        }
        for (status, description, shape) in self.answers {
            let mut response = ResponseBuilder::new().description(description);
            if let Some(shape) = shape {
                let (kind, schema) = shape.content();
                response = response.content(kind, ContentBuilder::new().schema(schema).build());
            }
            if self.has_location {
                let at = ObjectBuilder::new().schema_type(Type::String);
                let at = at.format(Some(SchemaFormat::Custom("uri-reference".into())));
                let at = HeaderBuilder::new().schema(Some(at)).description(Some("Where it is."));
                response = response.header("Location", at.build());
            }
            operation = operation.response(status.to_string(), response);
        }
        for (status, codes) in by_status(&self.reasons) {
            operation = operation.response(status.to_string(), failure(&codes));
        }
        let other = ResponseBuilder::new().description(
            "It was turned away before it was looked at, as with no token, or too many requests.",
        );
        operation = operation.response("default", with_problem(other));
        (operation, self.schemas)
    }
}

impl Shape {
    fn content(self) -> (&'static str, Option<RefOr<Schema>>) {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        match self {
            Self::Json(name) => ("application/json", Some(Ref::from_schema_name(name).into())),
            Self::Any => ("application/json", Some(ObjectBuilder::new().into())),
            Self::Events => ("text/event-stream", Some(text().into())),
            Self::Text => ("text/plain", Some(text().into())),
            Self::Bytes => ("application/octet-stream", None),
        }
    }
}

/// Returns the codes that are answered with each status.
fn by_status(reasons: &[Reason]) -> BTreeMap<u16, Vec<&'static str>> {
    let mut statuses = BTreeMap::<u16, Vec<&str>>::new();
    for reason in reasons {
        let codes = statuses.entry(reason.status().as_u16()).or_default();
        if !codes.contains(&reason.code()) {
            codes.push(reason.code());
        }
    }
    statuses
}

fn failure(codes: &[&str]) -> ResponseBuilder {
    let codes: Vec<String> = codes.iter().map(|code| format!("`{code}`")).collect();
    with_problem(ResponseBuilder::new().description(codes.join(", ")))
}

fn with_problem(response: ResponseBuilder) -> ResponseBuilder {
    let schema = Ref::from_schema_name(PROBLEM_NAME);
    response.content(PROBLEM, ContentBuilder::new().schema(Some(schema)).build())
}

/// Returns what an address names.
fn path_parameters(path: &str) -> Vec<Parameter> {
    let parts: Vec<&str> = path.split('/').collect();
    let named = parts.windows(2).filter_map(|pair| {
        let name = pair[1].strip_prefix('{')?.strip_suffix('}')?;
        let text = ObjectBuilder::new().schema_type(Type::String);
        let (schema, what) = match pair[0] {
            "jobs" => (
                text.pattern(Some("^[0-9a-f]{1,32}$")),
                "The id of a job, or the first digits of it where no other begins so.",
            ),
            "tasks" => (text, "The id of a task: its kind and a number."),
            "kinds" => (text.max_length(Some(64)), "The name of a kind."),
            "sessions" => {
                (text.min_length(Some(1)).max_length(Some(256)), "The name of a session.")
            }
            _ => (text.min_length(Some(1)), "The path of a file, which may have slashes in it."),
        };
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some(what))
            .schema(Some(schema));
        Some(parameter.build())
    });
    named.collect()
}

/// Returns the shape of what is told where something went wrong, which is that of RFC
/// 9457.
fn problem() -> RefOr<Schema> {
    let text = |what| ObjectBuilder::new().schema_type(Type::String).description(Some(what));
    let address = text("Names what went wrong, as an address.");
    let address = address.format(Some(SchemaFormat::Custom("uri-reference".into())));
    let status = ObjectBuilder::new().schema_type(Type::Integer);
    let status = status.description(Some("The status of the answer."));
    ObjectBuilder::new()
        .description(Some("Something went wrong."))
        .property("type", address)
        .property("title", text("What, in short."))
        .property("status", status.minimum(Some(400)).maximum(Some(599)))
        .property("detail", text("What was found, and of what."))
        .property("code", text("What, in a word for programs."))
        .property("hint", text("What to do about it, where `detail` does not say so."))
        .required("type")
        .required("title")
        .required("status")
        .required("detail")
        .required("code")
        .additional_properties(Some(AdditionalProperties::FreeForm(true)))
        .into()
}
