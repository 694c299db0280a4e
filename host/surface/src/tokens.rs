//! The tokens of a data folder: who may ask a host over the network, and as whom.
//!
//! Who has a token is its principal. A token is 256 random bits, so what is kept of it is
//! its plain SHA-256: nobody finds by trying what no dictionary has, and a slow hash would
//! only slow each request down. The operator's own token is kept in clear as well, in a
//! file for this user alone, for the command line and for people.
//!
//! The list is a file that is replaced as a whole, by one process at a time. Whoever has
//! it open looks with each request whether it was, so what is taken away is taken away at
//! once.

mod file;
mod list;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use backlot_jobs::DataFolder;
use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest as _, Sha256};

pub use self::list::{NewToken, TokenView};
use self::{
    file::{Kept, Lock, Stamp},
    list::{Entry, List},
};
use crate::access::Principal;

/// What every token begins with, so that people and programs that look for secrets in the
/// wrong places know one.
const PREFIX: &str = "bl_";
/// How many random bytes a token is.
const RANDOM_BYTES: usize = 32;
/// How long a token is: what it begins with, and 32 bytes in base64.
const TOKEN_CHARS: usize = PREFIX.len() + 43;
/// The name of the token that a host makes at its first start.
const OPERATOR: &str = "operator";
/// The list, the operator's token in clear, and what is locked to change them.
const LIST: &str = "tokens.json";
const CLEAR: &str = "operator-token";
const LOCK: &str = "tokens.lock";

/// The tokens of a data folder. Cheap to clone; all clones see the same.
#[derive(Clone, Debug)]
pub struct Tokens(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    known: Mutex<Known>,
}

/// The last list that could be read.
#[derive(Debug)]
struct Known {
    list: Arc<List>,
    /// What the file looked like when it was read, or could not be.
    stamp: Option<Stamp>,
}

impl Tokens {
    /// Opens the tokens of a data folder. Where there is no list, there are none.
    ///
    /// # Errors
    ///
    /// When the list cannot be read, others can read it, or it is none.
    pub fn open(folder: &DataFolder) -> Result<Self, TokenError> {
        let kept = Kept::at(folder.path().join(LIST));
        let stamp = kept.stamp()?;
        let list = Arc::new(List::read(&kept)?);
        let known = Mutex::new(Known { list, stamp });
        Ok(Self(Arc::new(Shared { folder: folder.path().to_owned(), known })))
    }

    /// Returns whose token it is; nobody's where it has expired.
    pub fn authenticate(&self, token: &str) -> Option<Principal> {
        self.authenticate_at(token, now_ms())
    }

    fn authenticate_at(&self, token: &str, now_ms: u64) -> Option<Principal> {
        self.let_in_at(token, now_ms).map(|leave| leave.principal)
    }

    /// Returns whose token it is, with what tells later whether that still holds.
    pub(crate) fn let_in(&self, token: &str) -> Option<Leave> {
        self.let_in_at(token, now_ms())
    }

    fn let_in_at(&self, token: &str, now_ms: u64) -> Option<Leave> {
        if token.len() != TOKEN_CHARS || !token.starts_with(PREFIX) {
            return None;
        }
        let digest = digest(token);
        let principal = self.of_digest(&digest, now_ms)?;
        Some(Leave { tokens: self.clone(), digest, principal })
    }

    fn of_digest(&self, digest: &[u8; 32], now_ms: u64) -> Option<Principal> {
        self.current().find(digest, now_ms).map(Entry::principal)
    }

    /// Returns the list as it is now. Where it can no longer be read the last one holds:
    /// a slip of whoever edits it shuts nobody out who has work under way.
    fn current(&self) -> Arc<List> {
        let kept = self.kept();
        let seen = kept.stamp();
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = match seen {
            Ok(stamp) if stamp == known.stamp => return known.list.clone(),
            Ok(stamp) => stamp,
            Err(error) => {
                // Once, until it can be looked at again.
                if known.stamp != Some(Stamp::UNSEEN) {
                    tracing::warn!("the tokens from before hold: {error}");
                }
                known.stamp = Some(Stamp::UNSEEN);
                return known.list.clone();
            }
        };
        // What is replaced between the look and the reading is read again next time.
        known.stamp = stamp;
        match List::read(&kept) {
            Ok(list) => known.list = Arc::new(list),
            Err(error) => tracing::warn!("the tokens from before hold: {error}"),
        }
        known.list.clone()
    }

    /// Makes a token, and returns it with what is told of it. Nobody can read it from
    /// anywhere later.
    ///
    /// # Errors
    ///
    /// When there is one of that name, it is the host's own, or it cannot be written down.
    pub fn add(&self, new: NewToken) -> Result<(TokenView, String), TokenError> {
        if new.name == OPERATOR {
            return Err(TokenError::Reserved);
        }
        self.change(|list| {
            let (token, now_ms) = (random()?, now_ms());
            let entry = new.entry(&digest(&token), now_ms)?;
            let view = entry.view(now_ms);
            list.add(entry)?;
            Ok((view, token))
        })
    }

    /// Returns what there is to tell of each token, by name.
    ///
    /// # Errors
    ///
    /// When the list cannot be read.
    pub fn list(&self) -> Result<Vec<TokenView>, TokenError> {
        Ok(List::read(&self.kept())?.views(now_ms()))
    }

    /// Takes tokens away: all, or where one of them is not there, none.
    ///
    /// Without the operator's own there is none until a host starts, which makes another.
    ///
    /// # Errors
    ///
    /// When there is none of a name, or that cannot be written down.
    pub fn remove(&self, names: &[String]) -> Result<(), TokenError> {
        self.change(|list| list.remove(names))?;
        if names.iter().any(|name| name == OPERATOR) {
            self.clear().remove()?;
        }
        Ok(())
    }

    /// Sees that there is a token for the operator, and returns the file that has it.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn ensure_operator(&self) -> Result<PathBuf, TokenError> {
        let clear = self.clear();
        if let Some(token) = self.operator_token()?
            && self.authenticate(&token).is_some_and(|it| it == Principal::operator(OPERATOR))
        {
            return Ok(clear.path().to_owned());
        }
        self.change(|list| {
            let token = random()?;
            // If the host ends between the two, the next one finds a token that is not in
            // the list, and makes another.
            clear.replace(format!("{token}\n").as_bytes())?;
            list.replace(Entry::operator(&digest(&token), now_ms()));
            Ok(())
        })?;
        Ok(clear.path().to_owned())
    }

    /// Returns the operator's token, if a host has made one.
    ///
    /// # Errors
    ///
    /// When its file cannot be read.
    pub fn operator_token(&self) -> Result<Option<String>, TokenError> {
        let Some(bytes) = self.clear().read()? else { return Ok(None) };
        Ok(String::from_utf8(bytes).ok().map(|text| text.trim().to_owned()))
    }

    /// Changes the list, alone.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut List) -> Result<T, TokenError>,
    ) -> Result<T, TokenError> {
        let _lock = Lock::take(self.0.folder.join(LOCK))?;
        let kept = self.kept();
        let mut list = List::read(&kept)?;
        let changed = change(&mut list)?;
        list.write(&kept)?;
        // From here on that is the last good one.
        self.current();
        Ok(changed)
    }

    fn kept(&self) -> Kept {
        Kept::at(self.0.folder.join(LIST))
    }

    fn clear(&self) -> Kept {
        Kept::at(self.0.folder.join(CLEAR))
    }
}

/// What somebody was let in with: good for as long as the token is there, has not expired,
/// and is the same principal's.
#[derive(Clone, Debug)]
pub(crate) struct Leave {
    tokens: Tokens,
    digest: [u8; 32],
    principal: Principal,
}

impl Leave {
    /// Returns who was let in.
    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Tells whether that would be let in now.
    pub(crate) fn is_good(&self) -> bool {
        self.tokens.of_digest(&self.digest, now_ms()).as_ref() == Some(&self.principal)
    }
}

/// Why tokens cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// A name that cannot be.
    #[error("{0:?} is no name for a token: a name has 1 to 64 of a-z, A-Z, 0-9, `.`, `_` and `-`")]
    Name(String),
    /// A session that cannot be.
    #[error("a token cannot be for the session {0:?}")]
    Session(String),
    /// The operator sees all.
    #[error("an operator's token is for no session: leave the session out, or make it a user's")]
    OperatorSession,
    /// It is the name of the token that a host makes.
    #[error(
        "`operator` is the token that a host makes for itself when it starts and has none; take \
         another name"
    )]
    Reserved,
    /// There is one already.
    #[error("there is a token {0} already; remove it, or take another name")]
    Taken(String),
    /// There are as many as there can be.
    #[error("there are {0} tokens, which are the most; remove some that nobody uses")]
    Full(usize),
    /// There is none.
    #[error("there is no token {0:?}")]
    Unknown(String),
    /// Others can read it.
    #[error("others can read {} (mode {mode:04o}), so what is in it is no secret; `chmod 600` it, and replace tokens that somebody may have seen", .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// What may be done with it.
        mode: u32,
    },
    /// It is another user's, or no file.
    #[error("{} is not a file of this user; move it away", .path.display())]
    NotOwn {
        /// What is there.
        path: PathBuf,
    },
    /// It is no list of tokens.
    #[error("{} is no list of tokens: {why}; restore it, or remove it and make the tokens anew", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// Another process is changing it.
    #[error("another process changes the tokens and does not come to an end with it ({} is locked)", .path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// It cannot be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The machine gives no random numbers.
    #[error("the machine gives no random numbers: {0}")]
    NoRandom(String),
}

impl TokenError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// Returns a new token.
fn random() -> Result<String, TokenError> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| TokenError::NoRandom(error.to_string()))?;
    Ok(format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&bytes)))
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, thread};

    use tempfile::TempDir;

    use super::*;
    use crate::access::Role;

    fn folder() -> (TempDir, DataFolder) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = DataFolder::open(&scratch.path().join("data")).unwrap();
        (scratch, folder)
    }

    fn user(name: &str) -> NewToken {
        NewToken { name: name.to_owned(), role: Role::User, session: None, expires_ms: None }
    }

    #[track_caller]
    fn check_mode(folder: &DataFolder, name: &str) {
        let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{name}");
    }

    #[test]
    fn a_token_is_its_principals_until_it_is_removed() {
        let (_scratch, folder) = folder();
        let tokens = Tokens::open(&folder).unwrap();
        let (_, token) = tokens.add(user("ann")).unwrap();
        assert_eq!(token.len(), TOKEN_CHARS);
        assert!(token.starts_with("bl_"));
        let ann = Principal::user("ann", "ann".into());
        assert_eq!(tokens.authenticate(&token), Some(ann.clone()));
        check_mode(&folder, LIST);
        let kept = fs::read_to_string(folder.path().join(LIST)).unwrap();
        assert!(!kept.contains(&token[3..]), "{kept}");
        // What another process does holds at once.
        let other = Tokens::open(&folder).unwrap();
        assert_eq!(other.authenticate(&token), Some(ann));
        other.remove(&["ann".to_owned()]).unwrap();
        assert_eq!(tokens.authenticate(&token), None);
    }

    #[test]
    fn what_is_no_token_is_nobodys() {
        let (_scratch, folder) = folder();
        let tokens = Tokens::open(&folder).unwrap();
        let (_, token) = tokens.add(user("ann")).unwrap();
        let wrong = format!("{}{}", &token[..45], if token.ends_with('A') { 'E' } else { 'A' });
        for bad in ["", "bl_", &token[3..], &token[..45], &wrong, &format!("{token} ")] {
            assert_eq!(tokens.authenticate(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_that_has_expired_is_as_if_there_was_none() {
        let (_scratch, folder) = folder();
        let tokens = Tokens::open(&folder).unwrap();
        let soon = now_ms() + 60_000;
        let (_, token) = tokens.add(NewToken { expires_ms: Some(soon), ..user("ann") }).unwrap();
        assert!(tokens.authenticate_at(&token, soon - 1).is_some());
        assert_eq!(tokens.authenticate_at(&token, soon), None);
    }

    #[test]
    fn the_operators_token_is_made_once() {
        let (_scratch, folder) = folder();
        let tokens = Tokens::open(&folder).unwrap();
        assert_eq!(tokens.operator_token().unwrap(), None);
        let file = tokens.ensure_operator().unwrap();
        check_mode(&folder, CLEAR);
        let first = fs::read_to_string(&file).unwrap();
        let operator = Some(Principal::operator(OPERATOR));
        assert_eq!(tokens.authenticate(first.trim()), operator);
        // One that somebody made under that name would be lost at the next start.
        tokens.remove(&[OPERATOR.to_owned()]).unwrap();
        let refused = tokens.add(user(OPERATOR)).unwrap_err();
        assert!(matches!(refused, TokenError::Reserved), "{refused}");
        tokens.ensure_operator().unwrap();
        let first = fs::read_to_string(&file).unwrap();
        tokens.ensure_operator().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), first);
        // A file that is lost, or is not of the list, is made anew, and its token with it.
        fs::remove_file(&file).unwrap();
        tokens.ensure_operator().unwrap();
        let second = tokens.operator_token().unwrap().unwrap();
        assert_eq!(tokens.authenticate(&second), operator);
        assert_eq!(tokens.authenticate(first.trim()), None);
        tokens.remove(&[OPERATOR.to_owned()]).unwrap();
        assert_eq!(tokens.authenticate(&second), None);
        assert!(!file.exists());
    }

    #[test]
    fn none_is_lost_when_several_are_added_at_once() {
        let (_scratch, folder) = folder();
        let names: Vec<String> = (0..8).map(|number| format!("t{number}")).collect();
        let add = |name: &String| {
            // As another process does it.
            let tokens = Tokens::open(&folder).unwrap();
            tokens.add(user(name)).unwrap().1
        };
        let made: Vec<String> = thread::scope(|scope| {
            let adding: Vec<_> = names.iter().map(|name| scope.spawn(move || add(name))).collect();
            adding.into_iter().map(|it| it.join().unwrap()).collect()
        });
        let tokens = Tokens::open(&folder).unwrap();
        for (token, name) in made.iter().zip(&names) {
            assert_eq!(tokens.authenticate(token).unwrap().name(), name);
        }
    }

    #[test]
    fn what_others_can_read_is_refused() {
        let (_scratch, folder) = folder();
        let tokens = Tokens::open(&folder).unwrap();
        let (_, token) = tokens.add(user("ann")).unwrap();
        let path = folder.path().join(LIST);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = Tokens::open(&folder).unwrap_err();
        assert!(matches!(refused, TokenError::Exposed { mode: 0o640, .. }), "{refused}");
        tokens.add(user("bob")).unwrap_err();
        // Who has the list open goes on with what it knows.
        assert!(tokens.authenticate(&token).is_some());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        tokens.remove(&["ann".to_owned()]).unwrap();
        assert_eq!(tokens.authenticate(&token), None);
    }

    #[test]
    fn the_last_good_list_holds() {
        let (_scratch, folder) = folder();
        let tokens = Tokens::open(&folder).unwrap();
        let (_, token) = tokens.add(user("ann")).unwrap();
        let path = folder.path().join(LIST);
        let good = fs::read(&path).unwrap();
        let bad = br#"{"tokens":[{"name":"ann","sha256":"00","role":"user"}]}"#;
        for bad in [&b"{"[..], b"", b"[]", bad] {
            fs::write(&path, bad).unwrap();
            assert!(tokens.authenticate(&token).is_some(), "{bad:?}");
            let refused = Tokens::open(&folder).unwrap_err();
            assert!(matches!(refused, TokenError::Damaged { .. }), "{refused}");
        }
        fs::write(&path, &good).unwrap();
        assert!(tokens.authenticate(&token).is_some());
        // A folder is no list, and without a list there are no tokens.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(tokens.authenticate(&token).is_some());
        assert!(matches!(Tokens::open(&folder).unwrap_err(), TokenError::NotOwn { .. }));
        fs::remove_dir(&path).unwrap();
        assert_eq!(tokens.authenticate(&token), None);
    }
}
