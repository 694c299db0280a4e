//! A host over TLS.

use std::{path::PathBuf, sync::Arc, time::Duration};

use backlot_surface::{Door, TlsError, tls_config};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::Instant};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    harness::read_all,
    network::{Answer, Network},
};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/behaviour/tls").join(name)
}

async fn network() -> Network {
    let tls = tls_config(&file("certificate.pem"), &file("key.pem")).unwrap();
    let door = |listener, guard| Door::Tcp { listener, tls: Some(tls), guard };
    Network::start_with(|guard| guard, door).await
}

async fn connect(network: &Network) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("certificate.pem")).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(network.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn what_is_asked_over_tls_is_answered() {
    let network = network().await;
    let mut stream = connect(&network).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (port, operator) = (network.address.port(), &network.operator);
    let request = format!(
        "GET /v1/health HTTP/1.1\r\nhost: localhost:{port}\r\nconnection: close\r\n\
         origin: https://localhost:{port}\r\nauthorization: Bearer {operator}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = Answer::read(&read_all(&mut stream).await);
    assert_eq!(answer.status, 200, "{answer:?}");
    // Nor is anybody let in for that alone.
    let mut stream = connect(&network).await;
    let request =
        format!("GET /v1/jobs HTTP/1.1\r\nhost: localhost:{port}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(Answer::read(&read_all(&mut stream).await).status, 401);
}

#[tokio::test]
async fn what_is_not_encrypted_is_not_answered() {
    let network = network().await;
    let mut stream = TcpStream::connect(network.address).await.unwrap();
    let (address, operator) = (network.address, &network.operator);
    let request =
        format!("GET /v1/jobs HTTP/1.1\r\nhost: {address}\r\nauthorization: {operator}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = read_all(&mut stream).await;
    assert!(!answer.contains("HTTP"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_does_not_come_is_given_up() {
    let network = network().await;
    let mut stream = TcpStream::connect(network.address).await.unwrap();
    let since = Instant::now();
    assert_eq!(read_all(&mut stream).await, "");
    assert!(since.elapsed() <= Duration::from_secs(11), "{:?}", since.elapsed());
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let told = |certificate: &str, key: &str| {
        let refused = tls_config(&file(certificate), &file(key)).unwrap_err();
        (refused.to_string(), refused)
    };
    let (text, refused) = told("nothing.pem", "key.pem");
    assert!(matches!(refused, TlsError::File { what: "certificate", .. }), "{text}");
    assert!(text.contains("nothing.pem") && text.contains("No such file"), "{text}");
    let (text, refused) = told("certificate.pem", "nothing.pem");
    assert!(matches!(refused, TlsError::File { what: "private key", .. }), "{text}");
    let (text, refused) = told("key.pem", "key.pem");
    assert!(matches!(refused, TlsError::Missing { what: "certificate", .. }), "{text}");
    assert!(text.contains("-----BEGIN CERTIFICATE-----"), "{text}");
    let (text, refused) = told("certificate.pem", "certificate.pem");
    assert!(matches!(refused, TlsError::Missing { what: "private key", .. }), "{text}");
    let (text, refused) = told("certificate.pem", "other-key.pem");
    assert!(matches!(refused, TlsError::Unusable { .. }), "{text}");
    assert!(text.contains("other-key.pem"), "{text}");
}
