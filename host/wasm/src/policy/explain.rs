//! What a task of a kind could reach, and which line gives it.

use std::fmt::{self, Display};

use backlot_registry::StopBounds;

use crate::policy::{
    decide::{clocks_word, egress_words, entries, lookup_word, random_word},
    document::{List, Said},
    grant::{Access, Clocks, DirGrant, Lookup, Random},
    limit::Limit,
    manifest::{Asks, DirAsk, Manifest},
    net::{Origin, Peer},
    rules::{Given, Rules},
    section::{EnvRule, SecretRule, Section},
};

/// One thing that a task could reach or use, or could but for somebody who takes it
/// away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// What it is: `tcp db.example.com:5432`; after a `no` what it is not.
    pub what: String,
    /// Who says so.
    pub by: String,
}

/// Tells what a task of a kind could reach and use at most, who says so, and what is
/// taken away by whom.
pub fn explain(rules: &Rules, manifest: Option<&Manifest>) -> Vec<Reach> {
    let mut told = Told { rules, manifest, reaches: Vec::new() };
    told.nobody();
    told.dirs();
    told.env();
    told.peers("tcp", |it| it.common.tcp.as_ref(), |it| &it.common.tcp);
    told.peers("udp", |it| it.common.udp.as_ref(), |it| &it.common.udp);
    told.http();
    told.private();
    told.manners();
    told.secrets();
    told.limits();
    told.bounds();
    told.reaches
}

struct Told<'a> {
    rules: &'a Rules,
    manifest: Option<&'a Manifest>,
    reaches: Vec<Reach>,
}

/// An entry of a list, and the line that has it.
struct Entry<T> {
    value: T,
    at: String,
}

impl<'a> Told<'a> {
    fn tell(&mut self, what: impl Into<String>, by: impl Into<String>) {
        self.reaches.push(Reach { what: what.into(), by: by.into() });
    }

    fn given<T>(&self, of: impl Fn(&Section) -> Option<&Said<T>>) -> Option<Given<'a, T>> {
        self.rules.merged.pick(of)
    }

    /// Returns the entries of a list of the policy.
    fn granted<T>(
        &self,
        key: &str,
        of: impl Fn(&Section) -> Option<&Said<Vec<Said<T>>>>,
    ) -> Vec<Entry<&'a T>> {
        let Some(list) = self.given(of) else { return Vec::new() };
        let entry = |entry: &'a Said<T>| {
            let said = Given { said: entry, section: list.section };
            Entry { value: &entry.value, at: self.rules.at(&said, key) }
        };
        list.said.value.iter().map(entry).collect()
    }

    /// Returns the entries of a list of the manifest; `None` without one.
    fn wanted<T>(
        &self,
        key: &str,
        of: impl Fn(&'a Asks) -> &'a List<T>,
    ) -> Option<Vec<Entry<&'a T>>> {
        let asks = &*self.manifest?.0;
        let entry =
            |entry: &'a Said<T>| Entry { value: &entry.value, at: asks.at(entry.line, key) };
        Some(entries(of(asks)).iter().map(entry).collect())
    }

    /// Tells of a list: what policy and manifest have in common, and what either has
    /// alone.
    fn list<A: Display, B: Display, C: Display>(
        &mut self,
        key: &str,
        sort: &str,
        granted: &[Entry<A>],
        wanted: Option<&[Entry<B>]>,
        common: impl Fn(&A, &B) -> Option<C>,
    ) {
        for grant in granted {
            let Some(wanted) = wanted else {
                self.tell(format!("{sort} {}", grant.value), &grant.at);
                continue;
            };
            let mut none = true;
            for ask in wanted {
                if let Some(both) = common(&grant.value, &ask.value) {
                    none = false;
                    self.tell(format!("{sort} {both}"), format!("{}, {}", grant.at, ask.at));
                }
            }
            if none {
                self.taken(sort, &grant.value, &grant.at);
            }
        }
        for ask in wanted.unwrap_or_default() {
            if !granted.iter().any(|grant| common(&grant.value, &ask.value).is_some()) {
                self.withheld(key, sort, &ask.value, &ask.at);
            }
        }
    }

    /// Tells of what the policy grants and the manifest does not ask for.
    fn taken(&mut self, sort: &str, what: &impl Display, at: &str) {
        let manifest = self.manifest.map_or("no manifest", Manifest::source);
        self.tell(format!("no {sort} {what}"), format!("{at}, but {manifest} does not ask for it"));
    }

    /// Tells of what the manifest asks for and the policy does not grant.
    fn withheld(&mut self, key: &str, sort: &str, what: &impl Display, at: &str) {
        match self.rules.has_policy() {
            true => {
                let by = format!("{at}, but {} does not grant it ({key})", self.rules.source());
                self.tell(format!("no {sort} {what}"), by);
            }
            false => self.tell(format!("{sort} {what}, where a start asks for it"), at),
        }
    }

    fn nobody(&mut self) {
        match (self.rules.has_policy(), self.manifest) {
            (false, None) => {
                self.tell("what a start asks for", "there is no policy and no manifest");
            }
            (true, None) => self.tell("what the policy gives", "there is no manifest"),
            (_, Some(_)) => {}
        }
    }

    fn dirs(&mut self) {
        let granted = self.granted("dirs", |section| section.dirs.as_ref());
        let granted: Vec<_> = granted
            .into_iter()
            .map(|dir| Entry { value: Folder::of(dir.value), at: dir.at })
            .collect();
        let wanted = self.wanted("dirs", |asks| &asks.dirs);
        self.list("dirs", "dir", &granted, wanted.as_deref(), |grant, ask| {
            let is_it = ask.guest.as_deref().is_none_or(|path| path == grant.guest);
            is_it.then(|| Folder { access: grant.access.min(ask.access), ..*grant })
        });
    }

    fn env(&mut self) {
        let granted = self.granted("env", |section| section.env.as_ref());
        let wanted = self.wanted("env", |asks| &asks.env);
        self.list("env", "env", &granted, wanted.as_deref(), |grant, ask| {
            (grant.name == **ask).then_some(*grant)
        });
    }

    fn peers(
        &mut self,
        key: &str,
        granted: impl Fn(&Section) -> Option<&Said<Vec<Said<Peer>>>>,
        wanted: impl Fn(&'a Asks) -> &'a List<Peer>,
    ) {
        let (granted, wanted) = (self.granted(key, granted), self.wanted(key, wanted));
        self.list(key, key, &granted, wanted.as_deref(), |grant, ask| grant.common(ask));
    }

    /// Tells of HTTP servers. What one lists for TCP, the other may list for HTTP.
    fn http(&mut self) {
        let servers = |entries: Vec<Entry<&'a Origin>>| {
            entries.into_iter().map(|it| Entry { value: Server::Http(it.value), at: it.at })
        };
        let peers = |entries: Vec<Entry<&'a Peer>>| {
            entries.into_iter().map(|it| Entry { value: Server::Tcp(it.value), at: it.at })
        };
        let mut granted: Vec<_> =
            servers(self.granted("http", |section| section.common.http.as_ref())).collect();
        let mut wanted = self
            .wanted("http", |asks| &asks.common.http)
            .map(|wanted| servers(wanted).collect::<Vec<_>>());
        // Peers that are listed on both sides were told of as such.
        let by_tcp = self.granted("tcp", |section| section.common.tcp.as_ref());
        if let Some(wanted) = &mut wanted {
            let is_used =
                |peer: &Server<'_>| wanted.iter().any(|ask| peer.common(&ask.value).is_some());
            let by_tcp: Vec<_> = peers(by_tcp).filter(|peer| is_used(&peer.value)).collect();
            let as_tcp = self.wanted("tcp", |asks| &asks.common.tcp).unwrap_or_default();
            let is_granted =
                |peer: &Server<'_>| granted.iter().any(|grant| grant.value.common(peer).is_some());
            let as_tcp: Vec<_> = peers(as_tcp).filter(|peer| is_granted(&peer.value)).collect();
            granted.extend(by_tcp);
            wanted.extend(as_tcp);
        }
        self.list("http", "http", &granted, wanted.as_deref(), Server::common);
    }

    fn private(&mut self) {
        for range in self.granted("private", |section| section.private.as_ref()) {
            self.tell(format!("private {}", range.value), range.at);
        }
    }

    /// Tells of lookups, clocks, random numbers and how much may be sent.
    fn manners(&mut self) {
        let asks = self.manifest.map(|manifest| &*manifest.0);
        let free = !self.rules.has_policy();
        let default = |word: &str| match free {
            true => format!("the default, where a start asks for no other than {word}"),
            false => "the default".to_owned(),
        };

        let given = self.given(|section| section.common.lookup.as_ref());
        let granted = given.map_or(Lookup::default(), |given| given.said.value);
        let said = asks.and_then(|asks| Some((asks, asks.common.lookup.as_ref()?)));
        let by = given.map(|given| self.rules.at(&given, "lookup"));
        match said {
            Some((asks, said)) if said.value < granted => {
                let at = asks.at(said.line, "lookup");
                self.tell(format!("lookup {}", lookup_word(said.value)), at);
            }
            None if asks.is_some() && granted == Lookup::Any => {
                let by = by.unwrap_or_default();
                self.tell(
                    "lookup listed",
                    format!("{by} is \"any\", but the manifest does not ask for that"),
                );
            }
            _ => {
                let word = lookup_word(granted);
                self.tell(format!("lookup {word}"), by.unwrap_or_else(|| default(word)));
            }
        }

        let given = self.given(|section| section.common.clocks.as_ref());
        let granted = given.map_or(Clocks::default(), |given| given.said.value);
        match asks.and_then(|asks| Some((asks, asks.common.clocks.as_ref()?))) {
            Some((asks, said)) if said.value > granted => {
                self.tell(
                    format!("clocks {}", clocks_word(said.value)),
                    asks.at(said.line, "clocks"),
                );
            }
            _ => {
                let by = given.map(|given| self.rules.at(&given, "clocks"));
                let word = clocks_word(granted);
                self.tell(format!("clocks {word}"), by.unwrap_or_else(|| default(word)));
            }
        }

        let given = self.given(|section| section.random.as_ref());
        let by = given.map(|given| self.rules.at(&given, "random"));
        let word = random_word(given.map_or(Random::default(), |given| given.said.value));
        let by = by.unwrap_or_else(|| default(&word));
        self.tell(format!("random {word}"), by);

        let given = self.given(|section| section.common.egress.as_ref());
        let granted = given.and_then(|given| egress_words(given.said.value).zip(Some(given)));
        let wanted = asks.and_then(|asks| Some((asks, asks.common.egress.as_ref()?)));
        let wanted =
            wanted.and_then(|(asks, said)| egress_words(said.value).map(|it| (asks, said, it)));
        let mut none = true;
        if let Some((words, given)) = granted {
            none = false;
            self.tell(format!("egress {words}"), self.rules.at(&given, "egress"));
        }
        if let Some((asks, said, words)) = wanted {
            none = false;
            self.tell(format!("egress {words}"), asks.at(said.line, "egress"));
        }
        if none {
            self.tell("egress without a bound", "the default");
        }
    }

    fn secrets(&mut self) {
        let granted = self.granted("secrets", |section| section.secrets.as_ref());
        let wanted = self.wanted("secrets", |asks| &asks.secrets);
        self.list("secrets", "secret", &granted, wanted.as_deref(), |grant, ask| {
            (grant.name == **ask).then_some(*grant)
        });
    }

    fn limits(&mut self) {
        for limit in Limit::ALL {
            let key = limit.key();
            let given = self.given(|section| section.common.limits[limit.at()].as_ref());
            let wanted = self.manifest.and_then(|manifest| {
                let said = manifest.0.common.limits[limit.at()].as_ref()?;
                Some((said.value, manifest.0.at(said.line, key)))
            });
            let default = limit.most();
            let granted = given.map(|given| given.said.value).or(default);
            let by = given.map(|given| self.rules.at(&given, key));
            let show = |value| format!("{key} {}", limit.show(value));
            match (granted, wanted) {
                (Some(granted), Some((wanted, at))) if wanted < granted => {
                    let by = by.map_or_else(String::new, |by| format!(", below {by}"));
                    self.tell(show(wanted), format!("{at}{by}"));
                }
                (None, Some((wanted, at))) => self.tell(show(wanted), at),
                (Some(0), _) if limit.is_asked_for() => {
                    self.tell(format!("no {key}"), by.unwrap_or_default());
                }
                (Some(granted), None) if limit.is_asked_for() => {
                    let by = by.unwrap_or_else(|| "the default".to_owned());
                    self.tell(format!("{}, where a start asks for it", show(granted)), by);
                }
                (granted, _) => {
                    let what = granted.map_or_else(|| format!("{key} unlimited"), show);
                    let default = match self.rules.has_policy() {
                        true => "the default",
                        false => "the default, where a start asks for no other",
                    };
                    self.tell(what, by.unwrap_or_else(|| default.to_owned()));
                }
            }
        }
    }

    /// Tells of how many tasks there may be, how they are stopped, and what may be
    /// loaded.
    fn bounds(&mut self) {
        if let Some(tasks) = self.given(|section| section.tasks.as_ref()) {
            let by = self.rules.at(&tasks, "tasks");
            self.tell(format!("tasks {} of {} at a time", tasks.said.value, self.rules.kind), by);
        }
        if let Some(file) = &self.rules.file {
            let host = [
                ("tasks", &file.tasks, "of all kinds at a time"),
                ("tasks-per-owner", &file.tasks_per_owner, "of an owner at a time"),
            ];
            let source = self.rules.source();
            let host = host.map(|(key, said, of)| {
                let said = said.as_ref()?;
                let by = format!("{source}:{} ([host] {key})", said.line);
                Some(Reach { what: format!("tasks {} {of}", said.value), by })
            });
            self.reaches.extend(host.into_iter().flatten());
        }
        let default = StopBounds::default();
        let stop = self.given(|section| section.stop.as_ref());
        let said = stop.map(|given| given.said.value).unwrap_or_default();
        let by =
            stop.map_or_else(|| "the default".to_owned(), |given| self.rules.at(&given, "stop"));
        let show = humantime::format_duration;
        for (what, said, default) in
            [("ask", said.ask, default.ask), ("grace", said.grace, default.grace)]
        {
            let by = if said.is_some() { by.as_str() } else { "the default" };
            self.tell(format!("stop {what} {}", show(said.unwrap_or(default))), by);
        }
        let digests = self.granted("digest", |section| section.digest.as_ref());
        if digests.is_empty() {
            self.tell("any component of that name", "no digest is listed");
        }
        for digest in digests {
            self.tell(format!("digest {}", digest.value), digest.at);
        }
    }
}

/// A folder, as the policy writes it.
struct Folder<'a> {
    host: &'a std::path::Path,
    guest: &'a str,
    access: Access,
}

impl<'a> Folder<'a> {
    fn of(dir: &'a DirGrant) -> Self {
        Self { host: &dir.host, guest: &dir.guest, access: dir.access }
    }
}

impl Display for Folder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}:{}", self.host.display(), self.guest, self.access)
    }
}

impl Display for DirAsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.guest.as_deref().unwrap_or("*"), self.access)
    }
}

impl Display for EnvRule {
    /// Writes the name. A value can be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Display for SecretRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {} in {} to", self.name, self.variable, self.header)?;
        self.to.iter().try_for_each(|to| write!(f, " {}", to.value))
    }
}

/// What may be spoken to in HTTP.
enum Server<'a> {
    Http(&'a Origin),
    Tcp(&'a Peer),
}

impl Server<'_> {
    fn common(&self, other: &Self) -> Option<Origin> {
        match (self, other) {
            (Self::Http(one), Self::Http(other)) => one.common(other),
            (Self::Http(origin), Self::Tcp(peer)) | (Self::Tcp(peer), Self::Http(origin)) => {
                peer.common_with_origin(origin)
            }
            (Self::Tcp(_), Self::Tcp(_)) => None,
        }
    }
}

impl Display for Server<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(origin) => origin.fmt(f),
            Self::Tcp(peer) => peer.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::policy::Policy;

    fn told(policy: Option<&str>, manifest: Option<&str>) -> Vec<String> {
        let policy = policy.map_or_else(Policy::default, |text| {
            Policy::parse(text, "p.toml", Path::new("/p")).unwrap()
        });
        let manifest = manifest.map(|text| Manifest::parse(text, "m.toml").unwrap());
        let rules = policy.rules(&"fetch".parse().unwrap());
        let reaches = explain(&rules, manifest.as_ref());
        reaches.iter().map(|reach| format!("{}  <- {}", reach.what, reach.by)).collect()
    }

    #[test]
    fn what_is_given_and_what_is_taken_away_have_their_lines() {
        let policy = "[host]\ntasks = 9\n[defaults]\nmemory = '1GiB'\nlookup = 'any'\n\
                      [kind.fetch]\n\
                      dirs = ['data::/in:rw', '/out:rw']\n\
                      env = ['LANG', 'MODE=fast']\n\
                      tcp = ['*.db:5432', 'api:443']\n\
                      http = ['https://a']\n\
                      secrets = [{ name = 's', variable = 'V', header = 'h', to = ['https://a'] }]\n\
                      tasks = 2\nstop = { grace = '9s' }\n\
                      [secret.s]\nenv = 'S'";
        let manifest = "dirs = ['/in:ro', '/tmp:rw']\nenv = ['LANG', 'HOME']\n\
                        tcp = ['a.db:*', 'b:1']\nhttp = ['https://api']\nmemory = '64MiB'";
        let told = told(Some(policy), Some(manifest));
        for line in [
            "dir /p/data::/in:ro  <- p.toml:7 ([kind.fetch] dirs), m.toml:1 (dirs)",
            "no dir /out::/out:rw  <- p.toml:7 ([kind.fetch] dirs), but m.toml does not ask for it",
            "no dir /tmp:rw  <- m.toml:1 (dirs), but p.toml does not grant it (dirs)",
            "env LANG  <- p.toml:8 ([kind.fetch] env), m.toml:2 (env)",
            "no env MODE  <- p.toml:8 ([kind.fetch] env), but m.toml does not ask for it",
            "no env HOME  <- m.toml:2 (env), but p.toml does not grant it (env)",
            "tcp a.db:5432  <- p.toml:9 ([kind.fetch] tcp), m.toml:3 (tcp)",
            "no tcp b:1  <- m.toml:3 (tcp), but p.toml does not grant it (tcp)",
            "no http https://a  <- p.toml:10 ([kind.fetch] http), but m.toml does not ask for it",
            "http https://api  <- p.toml:9 ([kind.fetch] tcp), m.toml:4 (http)",
            "lookup listed  <- p.toml:5 ([defaults] lookup) is \"any\", but the manifest does not ask for that",
            "clocks precise  <- the default",
            "egress without a bound  <- the default",
            "no secret s as V in h to https://a  <- p.toml:11 ([kind.fetch] secrets), but m.toml does not ask for it",
            "memory 64 MiB  <- m.toml:5 (memory), below p.toml:4 ([defaults] memory)",
            "deadline unlimited  <- the default",
            "work-folder 1 GiB, where a start asks for it  <- the default",
            "tasks 2 of fetch at a time  <- p.toml:12 ([kind.fetch] tasks)",
            "tasks 9 of all kinds at a time  <- p.toml:2 ([host] tasks)",
            "stop ask 1s  <- the default",
            "stop grace 9s  <- p.toml:13 ([kind.fetch] stop)",
            "any component of that name  <- no digest is listed",
        ] {
            assert!(told.iter().any(|said| said == line), "{line}\n{told:#?}");
        }
    }

    #[test]
    fn a_work_folder_is_told_by_who_asks_for_it_and_who_gives_it() {
        for (policy, manifest, line) in [
            (None, "work-folder = '1MiB'", "work-folder 1 MiB  <- m.toml:1 (work-folder)"),
            (
                Some("[defaults]\nwork-folder = '1MiB'"),
                "work-folder = '2MiB'",
                "work-folder 1 MiB  <- p.toml:2 ([defaults] work-folder)",
            ),
            (
                Some("[defaults]\nwork-folder = 0"),
                "work-folder = '2MiB'",
                "no work-folder  <- p.toml:2 ([defaults] work-folder)",
            ),
        ] {
            let told = told(policy, Some(manifest));
            assert!(told.iter().any(|said| said == line), "{line}\n{told:#?}");
        }
    }

    #[test]
    fn without_a_policy_the_start_has_its_say() {
        let free = told(None, None);
        assert_eq!(free[0], "what a start asks for  <- there is no policy and no manifest");
        let asked = told(None, Some("dirs = ['*:ro']"));
        assert_eq!(asked[0], "dir *:ro, where a start asks for it  <- m.toml:1 (dirs)");
        let memory = "memory 256 MiB  <- the default, where a start asks for no other";
        assert!(asked.iter().any(|line| line == memory), "{asked:#?}");
        let bare = told(Some(""), None);
        assert_eq!(bare[0], "what the policy gives  <- there is no manifest");
        assert!(bare.iter().any(|line| line == "memory 256 MiB  <- the default"), "{bare:#?}");
    }
}
