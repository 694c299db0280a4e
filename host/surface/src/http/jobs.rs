//! Jobs: spawned, listed, looked at, stopped and gone on with; and their files.

use std::{ffi::OsStr, fs::File, os::unix::ffi::OsStrExt as _, path::Path, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use backlot_jobs::{Hand, Job, JobId, Query, Run, files};
use backlot_registry::Caller;
use bytes::{Bytes, BytesMut};
use futures::stream::try_unfold;
use percent_encoding::percent_decode_str;
use tokio::{io::AsyncReadExt as _, task::spawn_blocking};
use utoipa::openapi::{ObjectBuilder, Type};

use super::{
    Surface,
    ask::{Asked, Changing, Named, Sent, Who},
    to_the_end,
};
use crate::{
    error::{Failure, Reason},
    wire::{
        AnswerRequest, FilesQuery, FilesReply, HandQuery, JobView, KEY, ListQuery, LookQuery, Page,
        PruneReply, SpawnRequest, StopOutcome, StopReply, StopRequest, TraceParent, check_key,
    },
};

/// The header with the key under which a job is spawned once.
pub(super) const KEY_HEADER: &str = "idempotency-key";
/// The header with the trace that a request belongs to.
const TRACE_HEADER: &str = "traceparent";
/// How many jobs a page has where nothing was said, and at most.
const PAGE: usize = 50;
const PAGE_MOST: usize = 1_000;
/// How many files a listing has where nothing was said, and at most.
const FILES: usize = 1_000;
const FILES_MOST: usize = 10_000;
/// How much of a file is read at a time.
const CHUNK: usize = 64 << 10;

pub(super) async fn spawn(
    State(surface): State<Surface>,
    Changing(who): Changing,
    headers: HeaderMap,
    Sent(mut request): Sent<SpawnRequest>,
) -> Result<impl IntoResponse, Failure> {
    request.key = key(request.key, &headers)?;
    request.traceparent = request.traceparent.or_else(|| trace(&headers));
    request.check()?;
    let has_policy = surface.api.host.about().policy.is_some();
    who.principal.may_spawn(&request, has_policy)?;
    if let Caller::Session(own) = &who.caller {
        let session = request.session.as_deref().unwrap_or(own.as_str());
        request.session = Some(who.session(session)?.to_string());
    }
    let host = surface.api.host.clone();
    let is_keyed = request.key.is_some();
    let begun_ms = surface.api.manager.now_ms();
    let job = to_the_end(async move { host.spawn(request).await }).await?;
    // One that was there before it was asked for is what an earlier request came to.
    let status = match is_keyed && job.created_ms < begun_ms {
        true => StatusCode::OK,
        false => StatusCode::CREATED,
    };
    let location = format!("/v1/jobs/{}", job.id);
    let view = brief(&surface, job).await;
    Ok((status, [(header::LOCATION, location)], Json(view)))
}

/// Returns the schema of a key that is given by its header.
pub(super) fn key_schema() -> ObjectBuilder {
    let key = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
    key.max_length(Some(KEY)).pattern(Some("^[!-~]([ -~]*[!-~])?$"))
}

/// Returns the key under which a job is spawned once, by what is sent or its header.
fn key(sent: Option<String>, headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(value) = values.next() else { return Ok(sent) };
    let bad = |why: &str| Failure::invalid(format!("`{KEY_HEADER}` {why}"));
    if values.next().is_some() {
        return Err(bad("is there several times"));
    }
    let key = value.to_str().map_err(|_| bad("has other characters than those of ASCII"))?;
    check_key(KEY_HEADER, key)?;
    match sent {
        Some(sent) if sent != key => Err(bad("and `key` differ, and one is meant")),
        _ => Ok(Some(key.to_owned())),
    }
}

/// Returns the trace that a request belongs to. One that cannot be read is none, as W3C's
/// Trace Context has it.
fn trace(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(TRACE_HEADER).iter();
    let trace = values.next()?.to_str().ok()?;
    let trace: TraceParent = trace.parse().ok()?;
    values.next().is_none().then(|| trace.to_string())
}

pub(super) async fn list(
    State(surface): State<Surface>,
    who: Who,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<Page>, Failure> {
    let query = Query {
        session: query.session.map(Into::into),
        status: query.status,
        before: query.before,
        limit: query.limit.unwrap_or(PAGE).clamp(1, PAGE_MOST),
    };
    let page = surface.api.manager.list(&who.caller, query).await?;
    let progress = surface.api.manager.progress(&page.jobs).await;
    let jobs = page.jobs.iter().zip(progress).map(|(job, progress)| JobView::brief(job, progress));
    Ok(Json(Page { jobs: jobs.collect(), next: page.next }))
}

pub(super) async fn look(
    State(surface): State<Surface>,
    who: Who,
    Named(digits): Named,
    Asked(query): Asked<LookQuery>,
) -> Result<Json<JobView>, Failure> {
    let manager = &surface.api.manager;
    let id = manager.find(&digits, &who.caller).await?;
    let wait = Duration::from_millis(query.wait_ms.unwrap_or_default());
    let job = tokio::select! {
        job = manager.status(id, &who.caller, wait, Hand::Person) => job?,
        () = surface.closing() => manager.get(id, &who.caller).await?,
    };
    let runs = runs_of(&job, manager.runs(id, &who.caller).await?);
    let progress = progress(&surface, &job).await;
    // Last of all, so that nothing is settled that is not told.
    if query.hand.map(Hand::from) == Some(Hand::Model) {
        who.principal.may_change()?;
        let (manager, job) = (manager.clone(), job.clone());
        to_the_end(async move { Ok(manager.delivered(&job).await?) }).await?;
    }
    Ok(Json(JobView::whole(&job, progress, &runs)))
}

/// Returns the runs that there were when the job was as it is told.
fn runs_of(job: &Job, mut runs: Vec<Run>) -> Vec<Run> {
    let last = job.last_run();
    let place = runs.iter().position(|run| last.is_some_and(|last| last.id == run.id));
    runs.truncate(place.unwrap_or_default());
    runs.extend(last.cloned());
    runs
}

pub(super) async fn remove(
    State(surface): State<Surface>,
    Changing(who): Changing,
    Named(digits): Named,
) -> Result<Json<PruneReply>, Failure> {
    let manager = surface.api.manager;
    let id = manager.find(&digits, &who.caller).await?;
    let removed = to_the_end(async move { Ok(manager.remove(id, &who.caller).await?) }).await?;
    Ok(Json(PruneReply { removed: removed.len() }))
}

pub(super) async fn stop(
    State(surface): State<Surface>,
    Changing(who): Changing,
    Named(digits): Named,
    Sent(request): Sent<StopRequest>,
) -> Result<Json<StopReply>, Failure> {
    request.check()?;
    let manager = surface.api.manager.clone();
    let id = manager.find(&digits, &who.caller).await?;
    let by = who.in_name_of(request.by);
    let stop = async move {
        Ok(manager.stop(id, &who.caller, request.how.into(), &by, request.why).await?)
    };
    let reply = to_the_end(stop).await?;
    let outcome = StopOutcome::of(&reply);
    let job = brief(&surface, reply.job().clone()).await;
    Ok(Json(StopReply { outcome, job }))
}

pub(super) async fn retry(
    State(surface): State<Surface>,
    Changing(who): Changing,
    Named(digits): Named,
    Asked(query): Asked<HandQuery>,
) -> Result<Json<JobView>, Failure> {
    let manager = &surface.api.manager;
    let id = manager.find(&digits, &who.caller).await?;
    let job = manager.retry(id, &who.caller, query.hand.unwrap_or_default().into()).await?;
    Ok(Json(brief(&surface, job).await))
}

pub(super) async fn answer(
    State(surface): State<Surface>,
    Changing(who): Changing,
    Named(digits): Named,
    Asked(query): Asked<HandQuery>,
    Sent(request): Sent<AnswerRequest>,
) -> Result<Json<JobView>, Failure> {
    let manager = &surface.api.manager;
    let id = manager.find(&digits, &who.caller).await?;
    let hand = query.hand.unwrap_or_default().into();
    let job = manager.answer(id, &who.caller, request.answer, hand).await?;
    Ok(Json(brief(&surface, job).await))
}

async fn brief(surface: &Surface, job: Job) -> JobView {
    let progress = progress(surface, &job).await;
    JobView::brief(&job, progress)
}

async fn progress(surface: &Surface, job: &Job) -> Option<String> {
    surface.api.manager.progress(std::slice::from_ref(job)).await.pop().flatten()
}

pub(super) async fn files(
    State(surface): State<Surface>,
    who: Who,
    Named(digits): Named,
    Asked(query): Asked<FilesQuery>,
) -> Result<Json<FilesReply>, Failure> {
    let id = surface.api.manager.find(&digits, &who.caller).await?;
    let work = surface.api.folder.work(id);
    let most = query.limit.unwrap_or(FILES).clamp(1, FILES_MOST);
    let listed = blocking(move || {
        let listed = files::list(&work, most);
        listed.map_err(|error| Failure::io("the job's files cannot be listed", &error))
    });
    Ok(Json(FilesReply::of(&listed.await?)))
}

pub(super) async fn file(
    State(surface): State<Surface>,
    who: Who,
    uri: Uri,
) -> Result<Response, Failure> {
    let (digits, path) = names(uri.path());
    let id = surface.api.manager.find(&digits, &who.caller).await?;
    let (file, bytes) = open(&surface, id, path).await?;
    let octets = HeaderValue::from_static("application/octet-stream");
    let headers = [
        (header::CONTENT_TYPE, octets),
        (header::CONTENT_LENGTH, bytes.into()),
        // It is whatever a guest wrote.
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (HeaderName::from_static("content-disposition"), HeaderValue::from_static("attachment")),
    ];
    let pieces = try_unfold((tokio::fs::File::from_std(file), bytes), piece);
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// Returns the job and the path that an address names. Paths need not be text.
fn names(address: &str) -> (String, Vec<u8>) {
    let mut parts = address.splitn(6, '/').skip(3);
    let decoded = |part: Option<&str>| percent_decode_str(part.unwrap_or_default()).collect();
    let digits: Vec<u8> = decoded(parts.next());
    let path: Vec<u8> = decoded(parts.nth(1));
    (String::from_utf8_lossy(&digits).into_owned(), path)
}

async fn open(surface: &Surface, id: JobId, path: Vec<u8>) -> Result<(File, u64), Failure> {
    let work = surface.api.folder.work(id);
    blocking(move || {
        let file = files::open(&work, Path::new(OsStr::from_bytes(&path)))?;
        let about = file.metadata();
        let about = about.map_err(|error| Failure::io("the job's file cannot be read", &error))?;
        Ok((file, about.len()))
    })
    .await
}

/// Returns the next piece of a file that has so many bytes left to be sent: no more than
/// were announced, also where it grows.
async fn piece(
    (mut file, left): (tokio::fs::File, u64),
) -> std::io::Result<Option<(Bytes, (tokio::fs::File, u64))>> {
    if left == 0 {
        return Ok(None);
    }
    let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
    let mut bytes = BytesMut::with_capacity(most);
    match (&mut file).take(most as u64).read_buf(&mut bytes).await? {
        0 => Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the file was cut")),
        read => Ok(Some((bytes.freeze(), (file, left - read as u64)))),
    }
}

/// Runs what blocks on files.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        tracing::error!("files were not read: {error}");
        Err(Failure::new(Reason::Internal, "the host failed over it"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_job_and_any_path() {
        let read = |address| {
            let (digits, path) = names(address);
            (digits, String::from_utf8_lossy(&path).into_owned())
        };
        let named = |digits: &str, path: &str| (digits.to_owned(), path.to_owned());
        assert_eq!(read("/v1/jobs/ab/files/a/b%20c"), named("ab", "a/b c"));
        assert_eq!(read("/v1/jobs/ab/files/../../x"), named("ab", "../../x"));
        assert_eq!(read("/v1/jobs/ab/files/%2e%2e%2fx//"), named("ab", "../x//"));
        assert_eq!(read("/v1/jobs/%ff/files/%ff%00"), named("\u{fffd}", "\u{fffd}\0"));
        assert_eq!(read("/v1/jobs"), named("", ""));
    }
}
