//! What calls are signed with, so that a receiver knows whose they are: as the
//! specification of Standard Webhooks says.

use std::{
    fmt,
    fs::{self, File},
    io::{self, ErrorKind, Write as _},
    path::Path,
};

use data_encoding::BASE64;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

/// The file of a data folder that it is in.
const FILE: &str = "webhook-secret";

/// What it is written with in front.
const PREFIX: &str = "whsec_";

/// How many bytes one has that is made here, and how many one may have.
const BYTES: usize = 32;
const POSSIBLE: std::ops::RangeInclusive<usize> = 24..=64;

/// The secret that a host signs its calls with.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    /// Returns that of a data folder, and makes it if there is none. Only this user can
    /// read its file. Blocks.
    ///
    /// # Errors
    ///
    /// When it can be neither read nor made, or what is in its file is none.
    pub fn of_folder(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE);
        match Self::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
        let mut bytes = vec![0; BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let secret = Self(bytes);
        // It is whole before it has its name, and of two at once one is kept.
        let mut file = tempfile::Builder::new().prefix(".webhook-secret-").tempfile_in(folder)?;
        writeln!(file, "{}", secret.to_text())?;
        file.as_file().sync_all()?;
        match file.persist_noclobber(&path) {
            Ok(_) => File::open(folder)?.sync_all()?,
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {
                return Self::read(&path);
            }
            Err(error) => return Err(error.error),
        }
        Ok(secret)
    }

    fn read(path: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(path)?;
        Self::parse(text.trim()).ok_or_else(|| {
            let why = format!("{} is no secret: {PREFIX} and base64", path.display());
            io::Error::new(ErrorKind::InvalidData, why)
        })
    }

    /// Returns the secret of that text, if it is one.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64.decode(text.strip_prefix(PREFIX)?.as_bytes()).ok()?;
        POSSIBLE.contains(&bytes.len()).then_some(Self(bytes))
    }

    /// Returns it as it is written, and as receivers are told it.
    pub fn to_text(&self) -> String {
        format!("{PREFIX}{}", BASE64.encode(&self.0))
    }

    /// Returns the value of `webhook-signature` for a message: that of `webhook-id`, that of
    /// `webhook-timestamp`, and the body as it is sent.
    pub fn signature(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        // Of keys, it takes any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", BASE64.encode(&mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// The vector that the libraries of Standard Webhooks are tested with.
    #[test]
    fn a_signature_is_that_of_the_specification() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", br#"{"test": 2432232314}"#);
        assert_eq!(
            secret.signature(id, 1_614_265_330, body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn a_secret_is_made_once_and_for_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let first = WebhookSecret::of_folder(folder.path()).unwrap();
        assert_eq!(WebhookSecret::of_folder(folder.path()).unwrap(), first);
        assert_eq!(WebhookSecret::parse(&first.to_text()), Some(first.clone()));
        assert_eq!(first.0.len(), 32);
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(format!("{first:?}"), "WebhookSecret(..)");
        let other = tempfile::tempdir().unwrap();
        assert_ne!(WebhookSecret::of_folder(other.path()).unwrap(), first);
    }

    #[test]
    fn hosts_that_make_one_at_once_have_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let make = || WebhookSecret::of_folder(folder.path()).unwrap();
        let made = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(made.iter().all(|secret| *secret == made[0]));
    }

    #[test]
    fn what_is_no_secret_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "whsec_", "whsec_!!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAA"] {
            fs::write(folder.path().join(FILE), text).unwrap();
            let error = WebhookSecret::of_folder(folder.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert_eq!(fs::read_to_string(folder.path().join(FILE)).unwrap(), text);
        }
    }
}
