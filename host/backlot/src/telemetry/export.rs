//! The way to the collector.

use std::{sync::Arc, time::Duration};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter as _},
};
use reqwest::{Client, redirect};
use rustls::{ClientConfig, RootCertStore, crypto::CryptoProvider};
use tokio::time::timeout;

use super::{TelemetryError, TelemetryOptions};

/// How long a request may take. What is told meanwhile waits in the queue.
const REQUEST: Duration = Duration::from_secs(5);
/// How long spans are tried to be told, with the tries that follow one that failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A collector of traces.
pub(super) struct Collector {
    exporter: SpanExporter,
    address: String,
    is_down: bool,
}

impl Collector {
    /// Returns the collector that the options name. It is not connected to.
    pub(super) fn new(options: &TelemetryOptions) -> Result<Self, TelemetryError> {
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client(options)?)
            .with_endpoint(options.otlp.as_str())
            .with_timeout(PATIENCE)
            .build()?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder()
            .with_service_name(options.service_name.clone())
            .with_attribute(version)
            .build();
        exporter.set_resource(&resource);
        // Whoever reads the log need not have what is in it for those who are let in.
        let mut shown = options.otlp.clone();
        shown.set_query(None);
        let _ = shown.set_password(None);
        Ok(Self { exporter, address: shown.to_string(), is_down: false })
    }

    /// Tells spans. Where they cannot be told they are lost, which is said once until it
    /// works again.
    pub(super) async fn export(&mut self, spans: Vec<SpanData>) {
        let count = spans.len();
        let told = timeout(PATIENCE, self.exporter.export(spans)).await;
        let failed = match told {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("it does not answer".to_owned()),
        };
        match failed {
            Some(why) if !self.is_down => {
                let address = &self.address;
                tracing::warn!("traces are lost: the collector {address} takes none: {why}");
                self.is_down = true;
            }
            Some(why) => tracing::debug!(count, "spans were lost: {why}"),
            None if self.is_down => {
                tracing::info!("the collector {} takes traces again", self.address);
                self.is_down = false;
            }
            None => {}
        }
    }
}

fn client(options: &TelemetryOptions) -> Result<Client, TelemetryError> {
    // A collector is where it is said to be: its answer must not lead spans elsewhere.
    let client = Client::builder().timeout(REQUEST).redirect(redirect::Policy::none());
    if options.otlp.scheme() == "https" {
        if CryptoProvider::get_default().is_none() {
            // Somebody else may have been faster, with one as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        return Ok(client.build()?);
    }
    // Whom to trust is not asked, so that it also works where nobody is known.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    Ok(client.tls_backend_preconfigured(tls).build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_made_for_either_scheme_and_its_secrets_are_not_shown() {
        for scheme in ["http", "https"] {
            let base = format!("{scheme}://ann:secret@localhost:1/");
            let options = TelemetryOptions::new(&base).unwrap();
            let collector = Collector::new(&options).unwrap();
            assert_eq!(collector.address, format!("{scheme}://ann@localhost:1/v1/traces"));
        }
    }
}
