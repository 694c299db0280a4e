//! What is counted and measured, for whoever watches the host.

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt as _;

use super::{Surface, ask::Overseeing, jobs::blocking};
use crate::{
    error::{Failure, Reason},
    metrics::{Format, Measured, Metrics, Route},
    process::Process,
};

pub(super) async fn page(
    State(surface): State<Surface>,
    _: Overseeing,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Failure> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::of_accepted(accept.unwrap_or_default());
    let api = &surface.api;
    let jobs = api.manager.health().await?;
    // Both take locks, or read files.
    let (host, registry, catalog) = (api.host.clone(), api.registry.clone(), api.catalog.clone());
    let measured = blocking(move || {
        Ok(Measured {
            jobs,
            host: host.gauges(),
            tasks: Some(registry.health()),
            kinds: catalog.kinds(),
            process: Process::look(),
        })
    });
    let page = api.metrics.page(measured.await?, format);
    let page = page.map_err(|_| Failure::new(Reason::Internal, "the metrics cannot be written"))?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], page))
}

/// Counts requests, and the streams that come of them.
pub(super) async fn count(
    State(surface): State<Surface>,
    request: Request,
    next: Next,
) -> Response {
    let metrics = &surface.api.metrics;
    let route = Route::of(request.uri().path());
    let response = next.run(request).await;
    metrics.answered(route, response.status());
    counted(response, metrics)
}

/// Has a response counted as an open stream, if it is one, for as long as it has a body.
fn counted(response: Response, metrics: &Metrics) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(EVENTS));
    if !is_stream {
        return response;
    }
    let open = metrics.stream();
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &open;
            frame
        }))
    })
}

/// What the content of a stream of events is called.
const EVENTS: &[u8] = b"text/event-stream";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_is_open_until_its_body_is_gone() {
        let metrics = Metrics::default();
        let of = |kind: &'static str| {
            counted(([(header::CONTENT_TYPE, kind)], "data: 1\n\n").into_response(), &metrics)
        };
        let plain = of("application/json");
        assert_eq!(metrics.streams(), 0);
        let (one, other) = (of("text/event-stream"), of("text/event-stream; charset=utf-8"));
        assert_eq!(metrics.streams(), 2);
        drop((plain, one));
        assert_eq!(metrics.streams(), 1);
        let read = other.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((&*read, metrics.streams()), (&b"data: 1\n\n"[..], 0));
    }
}
