//! One call: where it goes, what it says, and what came of it.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use backlot_jobs::{DeliveryId, Job, Webhook};
use backlot_wasm::{Resolver, chain, tls_config};
use reqwest::{
    Client, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header, redirect, retry,
};
use tokio::{sync::OnceCell, time::timeout};

use super::{
    WebhookOptions,
    gate::{Gate, url_of},
    message,
    plan::Trouble,
    secret::WebhookSecret,
};

/// How long a connection may take, and a whole call with the lookup before it. A receiver
/// is to take note, and do its work later.
const CONNECT: Duration = Duration::from_secs(5);
const CALL: Duration = Duration::from_secs(15);

/// Makes calls.
pub(super) struct Caller {
    folder: PathBuf,
    /// Read, or made, when there is something to sign.
    secret: OnceCell<WebhookSecret>,
    gate: Gate,
    default: Option<Url>,
    patience: Duration,
}

impl Caller {
    pub(super) fn new(folder: PathBuf, options: WebhookOptions, resolver: Resolver) -> Self {
        let WebhookOptions { allow, default } = options;
        let gate = Gate::new(allow, resolver);
        Self { folder, secret: OnceCell::new(), gate, default, patience: CALL }
    }

    /// Returns one that waits so long for an answer.
    #[cfg(test)]
    pub(super) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Tells a job's webhook of its ending, at that time in milliseconds since the Unix
    /// epoch.
    pub(super) async fn call(
        &self,
        job: &Job,
        delivery: &DeliveryId,
        now_ms: u64,
    ) -> Result<(), Trouble> {
        let called = timeout(self.patience, self.send(job, delivery, now_ms / 1_000)).await;
        let status = called.unwrap_or_else(|_| {
            Err(Trouble::Again(format!("it did not answer within {:?}", self.patience)))
        })?;
        Trouble::of_status(status).map_or(Ok(()), Err)
    }

    async fn send(&self, job: &Job, delivery: &DeliveryId, now: u64) -> Result<u16, Trouble> {
        let again = |what: &str, why: String| Trouble::Again(format!("{what}: {why}"));
        let url = match &job.spec.webhook {
            Some(Webhook::Url(url)) => url_of(url)?,
            Some(Webhook::Host) => self.default.clone().ok_or_else(|| {
                Trouble::Again("this host has no webhook of its own any more".to_owned())
            })?,
            None => return Err(Trouble::Never("the job has no webhook".to_owned())),
        };
        let body = message::body(job).map_err(Trouble::Never)?;
        let secret = self.secret().await.map_err(|why| again("it cannot be signed", why))?;
        let addresses = self.gate.addresses(&url).await?;
        let client = client(&url, addresses).map_err(|why| again("it cannot be made", why))?;
        let id = delivery.to_string();
        let signature = secret.signature(&id, now, &body);
        let request = client
            .post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", now)
            .header("webhook-signature", signature)
            .body(body);
        // What it says besides is nobody's business, and may be without end.
        match request.send().await {
            Ok(response) => Ok(response.status().as_u16()),
            // A URL may have a secret in it.
            Err(error) => Err(Trouble::Again(chain(&error.without_url()))),
        }
    }

    async fn secret(&self) -> Result<&WebhookSecret, String> {
        let read = || async {
            let folder = self.folder.clone();
            let read = tokio::task::spawn_blocking(move || WebhookSecret::of_folder(&folder));
            let read = read.await.map_err(|error| error.to_string())?;
            read.map_err(|error| error.to_string())
        };
        self.secret.get_or_try_init(read).await
    }
}

/// Returns a client for one call to one server. It knows no addresses but those that were
/// looked at, and keeps no connection that another call would go over.
fn client(url: &Url, addresses: Vec<SocketAddr>) -> Result<Client, String> {
    let tls = match url.scheme() {
        "https" => (*tls_config().map_err(|error| error.to_string())?).clone(),
        _ => without_tls()?,
    };
    let client = Client::builder()
        .tls_backend_preconfigured(tls)
        .dns_resolver(Arc::new(Checked(addresses)))
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .no_proxy()
        .http1_only()
        .referer(false)
        .pool_max_idle_per_host(0)
        .connect_timeout(CONNECT)
        .user_agent(concat!("backlot/", env!("CARGO_PKG_VERSION")))
        .build();
    client.map_err(|error| chain(&error))
}

/// Returns TLS settings that trust nobody, for where there is none.
fn without_tls() -> Result<rustls::ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

/// The addresses of one server, which were looked at.
struct Checked(Vec<SocketAddr>);

impl Resolve for Checked {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses: Addrs = Box::new(self.0.clone().into_iter());
        Box::pin(async { Ok(addresses) })
    }
}
