//! How a host is set up that stays: the tables `serve`, `mcp`, `webhooks` and `telemetry`
//! of the file that also has the policy.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use backlot_registry::Kind;
use backlot_surface::mcp;
use backlot_wasm::{
    Policy, PolicyError,
    document::{Reader, Value},
    small_text,
};
use reqwest::Url;

use crate::{
    policy::PolicyFileError,
    telemetry::{TelemetryError, TelemetryOptions},
    webhooks::{Allowed, WebhookOptions},
};

/// The most that is read of the file, in bytes: as much as of a policy.
const FILE_BYTES: u64 = 2 << 20;
const DOCUMENT_BYTES: usize = 1 << 20;
/// Where a host listens when nothing was said.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7420);
/// The longest name of a host: that of a name in the DNS.
const NAME_BYTES: usize = 253;

/// How a host is set up that stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Where it listens, and how it ends.
    pub serve: Serve,
    /// How it is shown to models.
    pub mcp: mcp::Options,
    /// Who is told of endings.
    pub webhooks: WebhookOptions,
    /// Where traces go.
    pub telemetry: Telemetry,
}

/// Where a host listens, and how it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serve {
    /// The addresses beside the socket in the data folder; `None` where nothing was said.
    pub listen: Option<Vec<SocketAddr>>,
    /// Further names that requests may call the host by.
    pub hosts: Vec<String>,
    /// What it proves its name with, where it speaks TLS.
    pub tls: Option<Tls>,
    /// Whether an address that is not this machine's alone may be without TLS.
    pub allow_plain_http: bool,
    /// How long jobs that run may go on when the host ends, before they are stopped.
    pub drain: Duration,
}

/// The files of a certificate, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate, and those that vouch for it.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Where traces go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telemetry {
    /// The collector, which speaks OTLP over HTTP.
    pub otlp: Option<Url>,
    /// What the host is called there.
    pub service_name: String,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { otlp: None, service_name: "backlot".to_owned() }
    }
}

impl Settings {
    /// Reads the settings in a file. Paths in it are relative to the folder that it is in.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or with all that is wrong with these tables.
    pub fn read(path: &Path) -> Result<Self, PolicyFileError> {
        let fail = |source: io::Error| PolicyFileError::Read { path: path.to_owned(), source };
        let text = small_text(path, FILE_BYTES).map_err(fail)?;
        let whole = std::path::absolute(path).map_err(fail)?;
        let folder = whole.parent().unwrap_or(&whole);
        Ok(Self::parse(&text, &path.display().to_string(), folder)?)
    }

    /// Reads the settings in a text. `source` is what its lines are called by, and
    /// `folder`, an absolute path, what its paths are relative to. What else there is in
    /// it is left to [`Policy::parse`].
    ///
    /// # Errors
    ///
    /// All that is wrong with these tables, each with its line.
    pub fn parse(text: &str, source: &str, folder: &Path) -> Result<Self, PolicyError> {
        let (mut reader, table) = Reader::open(text, source, DOCUMENT_BYTES)?;
        let mut settings = Self::default();
        for (key, value) in &table {
            let name = key.get_ref().as_ref();
            if !Policy::OTHERS.contains(&name) {
                continue;
            }
            let of = format!("[{name}]");
            let Some(table) = reader.table(&of, value) else { continue };
            let mut tls = (None, None);
            for (key, value) in table {
                let reader = &mut reader;
                match (name, key.get_ref().as_ref()) {
                    ("serve", key @ "tls-cert") => tls.0 = reader.read(key, value, file),
                    ("serve", key @ "tls-key") => tls.1 = reader.read(key, value, file),
                    ("serve", word) if settings.serve.take(reader, word, value) => {}
                    ("mcp", word) if take_mcp(&mut settings.mcp, reader, word, value) => {}
                    ("webhooks", word)
                        if take_webhooks(&mut settings.webhooks, reader, word, value) => {}
                    ("telemetry", word) if settings.telemetry.take(reader, word, value) => {}
                    (name, word) => reader.unknown(key.span(), word, &of, keys(name)),
                }
            }
            match tls {
                (Some(cert), Some(key)) => {
                    let (cert, key) = (folder.join(cert), folder.join(key));
                    settings.serve.tls = Some(Tls { cert, key });
                }
                (None, None) => {}
                (Some(_), None) => missing(&mut reader, table, "tls-cert", "tls-key"),
                (None, Some(_)) => missing(&mut reader, table, "tls-key", "tls-cert"),
            }
        }
        match reader.is_right() {
            true => Ok(settings),
            false => Err(reader.error()),
        }
    }
}

/// Returns the keys of a table.
fn keys(table: &str) -> &'static [&'static str] {
    match table {
        "serve" => &["listen", "hosts", "tls-cert", "tls-key", "allow-plain-http", "drain"],
        "mcp" => &["expose", "foreground"],
        "webhooks" => &["url", "allow"],
        _ => &["otlp", "service-name"],
    }
}

/// Tells that one of two keys is there without the other, unless that is there and wrong.
fn missing(reader: &mut Reader, table: &toml::de::DeTable<'_>, found: &str, other: &str) {
    if table.iter().any(|(key, _)| key.get_ref() == other) {
        return;
    }
    let line = table.iter().find(|(key, _)| key.get_ref() == found);
    let line = line.map_or(1, |(key, _)| reader.line_of(key));
    reader.wrong(line, format!("[serve] has `{found}` without `{other}`; it takes both"));
}

impl Serve {
    /// Takes the value of a key, and tells whether there is such a key.
    fn take(&mut self, reader: &mut Reader, key: &str, value: &Value<'_>) -> bool {
        match key {
            "listen" => {
                let one = |reader: &mut Reader, value: &Value<'_>| reader.read(key, value, address);
                let said = match value.get_ref().is_array() {
                    true => {
                        let list = reader.list(key, value, one);
                        list.map(|list| list.value.into_iter().map(|it| it.value).collect())
                    }
                    false => one(reader, value).map(|address| vec![address]),
                };
                let addresses = said.map(|said: Vec<_>| addresses(&said));
                match addresses {
                    Some(Ok(addresses)) => self.listen = Some(addresses),
                    Some(Err(why)) => reader.wrong(reader.line_of(value), format!("{key}: {why}")),
                    None => {}
                }
            }
            "hosts" => self.hosts = texts(reader, key, value, host_name),
            "allow-plain-http" => {
                self.allow_plain_http = reader.truth(key, value).unwrap_or_default();
            }
            "drain" => self.drain = reader.duration(key, value).unwrap_or_default(),
            _ => return false,
        }
        true
    }
}

fn take_mcp(options: &mut mcp::Options, reader: &mut Reader, key: &str, value: &Value<'_>) -> bool {
    match key {
        "expose" => options.expose = texts(reader, key, value, exposed),
        "foreground" => {
            let foreground = reader.duration(key, value);
            options.foreground = foreground.unwrap_or(options.foreground);
        }
        _ => return false,
    }
    true
}

fn take_webhooks(
    options: &mut WebhookOptions,
    reader: &mut Reader,
    key: &str,
    value: &Value<'_>,
) -> bool {
    match key {
        "url" => options.default = reader.read(key, value, url),
        "allow" => options.allow = texts(reader, key, value, allowed),
        _ => return false,
    }
    true
}

impl Telemetry {
    /// Returns where traces go: where the environment says, or else where the file does.
    ///
    /// # Errors
    ///
    /// When the environment names no address of a collector.
    pub fn options(&self) -> Result<Option<TelemetryOptions>, TelemetryError> {
        if let Some(said) = TelemetryOptions::from_env()? {
            return Ok(Some(said));
        }
        let Some(otlp) = &self.otlp else { return Ok(None) };
        let options = TelemetryOptions::new(otlp.as_str())?;
        Ok(Some(TelemetryOptions { service_name: self.service_name.clone(), ..options }))
    }

    fn take(&mut self, reader: &mut Reader, key: &str, value: &Value<'_>) -> bool {
        match key {
            "otlp" => self.otlp = reader.read(key, value, url),
            "service-name" => {
                if let Some(name) = reader.read(key, value, service_name) {
                    self.service_name = name;
                }
            }
            _ => return false,
        }
        true
    }
}

/// Returns what `read` makes of the texts of a list.
fn texts<T>(
    reader: &mut Reader,
    key: &str,
    value: &Value<'_>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Vec<T> {
    let list = reader.list(key, value, |reader, value| reader.read(key, value, &read));
    list.map(|list| list.value.into_iter().map(|it| it.value).collect()).unwrap_or_default()
}

/// Reads where to listen: an address with its port, or nowhere beside the socket.
pub(crate) fn address(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "none" {
        return Ok(None);
    }
    let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    let address = local.as_deref().unwrap_or(text).parse();
    address.map(Some).map_err(|_| {
        format!(
            "`{text}` is no address with a port; write one such as 127.0.0.1:7420 or \
             [::1]:7420, or `none` for the socket alone"
        )
    })
}

/// Returns the addresses that several values come to.
pub(crate) fn addresses(said: &[Option<SocketAddr>]) -> Result<Vec<SocketAddr>, String> {
    let addresses: Vec<SocketAddr> = said.iter().flatten().copied().collect();
    match addresses.is_empty() || addresses.len() == said.len() {
        true => Ok(addresses),
        false => Err("`none` and an address are one too many; keep one of them".to_owned()),
    }
}

/// Reads a name that a host is called by.
pub(crate) fn host_name(text: &str) -> Result<String, String> {
    let is_name = |text: &str| {
        let of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !text.is_empty() && text.len() <= NAME_BYTES && text.bytes().all(of_name)
    };
    match is_name(text) || text.parse::<IpAddr>().is_ok() {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(format!("`{text}` is no name of a host; write one such as box.example")),
    }
}

/// Reads which kinds are tools of their own: a kind, or what they begin with and a `*`.
pub(crate) fn exposed(text: &str) -> Result<String, String> {
    let begins = text.strip_suffix('*');
    let is_kind = match begins {
        Some("") => true,
        // What a kind begins with may end where a kind may not.
        Some(begins) => Kind::new(&format!("{begins}a")).is_ok(),
        None => Kind::new(text).is_ok(),
    };
    match is_kind {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is neither a kind nor the beginning of some, such as `a*`")),
    }
}

fn file(text: &str) -> Result<PathBuf, String> {
    match text.is_empty() || text.contains('\0') {
        true => Err("this is no path of a file".to_owned()),
        false => Ok(text.into()),
    }
}

fn url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| {
        format!("`{text}` is no URL of a server; write one such as https://a.example")
    })
}

fn allowed(text: &str) -> Result<Allowed, String> {
    text.parse().map_err(|_| {
        format!(
            "`{text}` is neither a range of addresses nor a host with its port; write \
             127.0.0.0/8 or hooks.internal:8443"
        )
    })
}

fn service_name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.len() > NAME_BYTES || text.contains(char::is_control) {
        true => Err("this is no name of a service".to_owned()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, PolicyError> {
        Settings::parse(text, "b.toml", Path::new("/etc/b"))
    }

    #[test]
    fn every_key_is_read() {
        let whole = r#"
[serve]
listen = ["127.0.0.1:7420", "[::]:7421", "localhost:1"]
hosts = ["Box.example", "10.0.0.1"]
tls-cert = "cert.pem"
tls-key = "/keys/key.pem"
allow-plain-http = true
drain = "30s"
[mcp]
expose = ["grep", "check*", "*"]
foreground = "5s"
[webhooks]
url = "https://example.com/hook"
allow = ["127.0.0.0/8", "hooks.internal:8443"]
[telemetry]
otlp = "http://127.0.0.1:4318"
service-name = "box"
[kind.grep]
dirs = ["left to the policy"]
"#;
        let listen = ["127.0.0.1:7420", "[::]:7421", "127.0.0.1:1"].map(|it| it.parse().unwrap());
        let strings = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect();
        let settings = Settings {
            serve: Serve {
                listen: Some(listen.into()),
                hosts: strings(&["box.example", "10.0.0.1"]),
                tls: Some(Tls { cert: "/etc/b/cert.pem".into(), key: "/keys/key.pem".into() }),
                allow_plain_http: true,
                drain: Duration::from_secs(30),
            },
            mcp: mcp::Options {
                expose: strings(&["grep", "check*", "*"]),
                foreground: Duration::from_secs(5),
            },
            webhooks: WebhookOptions {
                default: Some("https://example.com/hook".parse().unwrap()),
                allow: ["127.0.0.0/8", "hooks.internal:8443"].map(|it| it.parse().unwrap()).into(),
            },
            telemetry: Telemetry {
                otlp: Some("http://127.0.0.1:4318".parse().unwrap()),
                service_name: "box".to_owned(),
            },
        };
        assert_eq!(read(whole), Ok(settings));
        assert_eq!(read(""), Ok(Settings::default()));
        let listens = |text: &str| read(text).unwrap().serve.listen;
        assert_eq!(listens("serve.listen = 'none'"), Some(vec![]));
        assert_eq!(listens("serve.listen = []"), Some(vec![]));
        assert_eq!(listens("[serve]"), None);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, wanted) in [
            ("[serve]\nlisen = 1", "2: [serve] has no key `lisen`; did you mean `listen`?"),
            ("[mcp]\nx = 1", "2: [mcp] has no key `x`; it has expose, foreground"),
            ("[webhooks]\nlisten = 1", "2: [webhooks] has no key `listen`; it has url, allow"),
            ("serve = 1", "1: [serve] is a number, wanted a table"),
            ("[serve]\nlisten = 7420", "2: listen is a number, wanted a text"),
            ("[serve]\nlisten = '7420'", "2: listen: `7420` is no address with a port"),
            ("[serve]\nlisten = [\n'none',\n'127.0.0.1:1']", "2: listen: `none` and an address"),
            ("[serve]\nlisten = [\n'127.0.0.1']", "3: listen: `127.0.0.1` is no address"),
            ("[serve]\nhosts = ['a/b']", "2: hosts: `a/b` is no name of a host"),
            ("[serve]\ntls-cert = 'a'", "2: [serve] has `tls-cert` without `tls-key`"),
            ("[serve]\n\ntls-key = 'a'", "3: [serve] has `tls-key` without `tls-cert`"),
            ("[serve]\ntls-cert = 'a'\ntls-key = 1", "3: tls-key is a number, wanted a text"),
            ("[serve]\nallow-plain-http = 'yes'", "2: allow-plain-http is a text, wanted true"),
            ("[serve]\ndrain = 30", "2: drain is a number, wanted a duration such as"),
            ("[mcp]\nexpose = ['Grep']", "2: expose: `Grep` is neither a kind nor"),
            ("[mcp]\nexpose = ['a**']", "2: expose: `a**` is neither a kind nor"),
            ("[webhooks]\nurl = 'ftp://a'", "2: url: `ftp://a` is no URL of a server"),
            ("[webhooks]\nallow = ['a']", "2: allow: `a` is neither a range of addresses nor"),
            ("[telemetry]\notlp = 'x'", "2: otlp: `x` is no URL of a server"),
        ] {
            let told = read(text).map_err(|error| error.to_string());
            let told = told.expect_err(text);
            assert!(told.starts_with(&format!("b.toml:{wanted}")), "{text}: {told}");
            assert_eq!(told.lines().count(), 1, "{text}: {told}");
        }
    }
}
