//! Encryption: a certificate and its key, as files, and what a connection needs of them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
};

/// Why nothing can be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not what it is to be.
    #[error("the {what} {}: {source}", .path.display())]
    File {
        /// What it is to be.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// A file has nothing of the kind.
    #[error("the {what} {}: there is no {what} in it; it has to be a PEM file with a block `{block}`", .path.display())]
    Missing {
        /// What it is to be.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// How the block begins that is looked for.
        block: &'static str,
    },
    /// The two do not go together, or are of a kind that there is no use for.
    #[error("the certificate {} and the key {} cannot be used: {source}", certificate.display(), key.display())]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

/// Reads a certificate, with those that vouch for it behind it, and its private key, both
/// in PEM, for a [`Door`](super::Door).
///
/// # Errors
///
/// [`TlsError`], which names the file.
pub fn tls_config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(certificate)?;
    let private = private_key(key)?;
    let unusable = |source| TlsError::Unusable {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    };
    // Named here, so that nothing depends on which one the process has by default.
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let what = "certificate";
    let file = |source| TlsError::File { what, path: path.to_owned(), source };
    let chain = CertificateDer::pem_file_iter(path).map_err(file)?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(file)?;
    match chain.is_empty() {
        true => {
            let block = "-----BEGIN CERTIFICATE-----";
            Err(TlsError::Missing { what, path: path.to_owned(), block })
        }
        false => Ok(chain),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let what = "private key";
    PrivateKeyDer::from_pem_file(path).map_err(|source| match source {
        pem::Error::NoItemsFound => {
            let block = "-----BEGIN PRIVATE KEY-----";
            TlsError::Missing { what, path: path.to_owned(), block }
        }
        source => TlsError::File { what, path: path.to_owned(), source },
    })
}
