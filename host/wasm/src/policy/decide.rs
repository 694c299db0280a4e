//! The decision: manifest ∩ policy ∩ what a start asks for.
//!
//! A start can narrow what the other two give, and never widen it. What it asks for
//! and does not get is a denial that names the line that says no.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use backlot_registry::{Kind, StopBounds};

use crate::{
    limits::{Bytes, Limits},
    policy::{
        document::{List, Said},
        file::SecretSource,
        grant::{Clocks, DirGrant, Egress, EnvGrant, Grant, Lookup, Random, SecretGrant},
        hints::Hints,
        limit::{Limit, LimitsAsk},
        manifest::Manifest,
        net::{Origin, Peer, Range},
        rules::{Given, Rules},
        section::{Section, lexical},
    },
};

/// What a start asks for. `None` mentions nothing of that sort: with a policy the
/// start gets all that there is of it, without one nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Folders. With a policy their paths on the host are absolute.
    pub dirs: Option<Vec<DirGrant>>,
    /// Environment variables.
    pub env: Option<Vec<EnvGrant>>,
    /// Peers over TCP.
    pub tcp: Option<Vec<Peer>>,
    /// Peers over UDP.
    pub udp: Option<Vec<Peer>>,
    /// HTTP servers.
    pub http: Option<Vec<Origin>>,
    /// Special-purpose addresses that names may stand for.
    pub private: Option<Vec<Range>>,
    /// Which names may be looked up.
    pub lookup: Option<Lookup>,
    /// What clocks tell; the coarsest that anybody names holds.
    pub clocks: Option<Clocks>,
    /// Where random numbers come from.
    pub random: Option<Random>,
    /// How much may be sent.
    pub egress: Egress,
    /// Secrets, by their names.
    pub secrets: Option<Vec<String>>,
    /// Limits.
    pub limits: LimitsAsk,
    /// How long the task may take to wind down.
    pub grace: Option<Duration>,
}

impl Ask {
    /// Returns it without the sorts that a manifest asks nothing of, for a start of one of
    /// several kinds that share what is asked for. Limits stay.
    #[must_use]
    pub fn as_far_as(self, manifest: &Manifest) -> Self {
        manifest.narrow(self)
    }
}

/// What the host has that a decision needs. `Debug` leaves out the values.
#[derive(Clone, Default)]
pub struct Sources {
    /// The host's environment, at least what [`Policy::variables`](crate::Policy::variables) names.
    pub env: HashMap<String, String>,
    /// The secrets by their names, as far as they have values.
    pub secrets: HashMap<String, String>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("env", &self.env.len())
            .field("secrets", &self.secrets.len())
            .finish()
    }
}

/// What a task gets.
#[derive(Clone, Debug)]
pub struct Decision {
    /// What it may reach.
    pub grant: Grant,
    /// What it may use.
    pub limits: Limits,
    /// The bounds of its stop ladder, where anybody names them.
    pub bounds: Option<StopBounds>,
    /// The grant and the limits that are not the default, a line each: `dir /src:ro`,
    /// `tcp db.example.com:5432`, `memory 64 MiB`. They have no values of variables
    /// and no secrets.
    pub lines: Arc<[String]>,
    /// What would have allowed what the task is denied while it runs.
    pub hints: Hints,
}

/// Why a start does not get what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The operator's policy does not grant it.
    #[error("{asked} is not granted: {why}; {fix}")]
    Policy {
        /// What was asked for.
        asked: String,
        /// Which line says no.
        why: String,
        /// Which line would allow it.
        fix: String,
    },
    /// The plugin's manifest does not ask for it.
    #[error("{asked} is not granted: {why}; {fix}")]
    Manifest {
        /// What was asked for.
        asked: String,
        /// Which line does not ask for it.
        why: String,
        /// Which line would.
        fix: String,
    },
    /// The path of a folder cannot be held against those of a policy.
    #[error("the folder {} cannot be held against the policy; ask for it by its absolute path", .0.display())]
    Relative(PathBuf),
    /// A secret that is granted has no value.
    #[error("the secret `{name}` has no value: {}", lost(.source_of))]
    SecretLost {
        /// The secret.
        name: String,
        /// Where its value should be.
        source_of: SecretSource,
    },
    /// The policy lets only other components be of the kind.
    #[error(
        "{digest} may not be loaded as `{kind}`: {at} does not list it; add \"{digest}\" there if you trust it"
    )]
    Digest {
        /// The kind.
        kind: Kind,
        /// The digest of the component.
        digest: String,
        /// Which line lists others.
        at: String,
    },
}

fn lost(source: &SecretSource) -> String {
    match source {
        SecretSource::Env(name) => format!("the host's variable {name} is not set"),
        SecretSource::File(path) => format!("the file {} cannot be read as text", path.display()),
    }
}

/// Decides what a task gets: what its plugin asks for, as far as the policy lets it
/// and the start wants it.
///
/// # Errors
///
/// When the start asks for more than that, or a granted secret has no value.
pub fn decide(
    rules: &Rules,
    manifest: Option<&Manifest>,
    ask: &Ask,
    sources: &Sources,
) -> Result<Decision, Denial> {
    let judge = Judge { rules, manifest };
    let tcp = judge.peers("tcp", ask.tcp.as_deref(), |it| it.common.tcp.as_ref(), |it| &it.tcp)?;
    let udp = judge.peers("udp", ask.udp.as_deref(), |it| it.common.udp.as_ref(), |it| &it.udp)?;
    let grant = Grant {
        dirs: judge.dirs(ask.dirs.as_deref())?,
        env: judge.env(ask.env.as_deref(), sources)?,
        http: judge.http(ask.http.as_deref())?,
        tcp,
        udp,
        private: judge.private(ask.private.as_deref())?,
        lookup: judge.lookup(ask.lookup)?,
        clocks: judge.clocks(ask.clocks),
        random: judge.random(ask.random)?,
        egress: judge.egress(ask.egress)?,
        secrets: judge.secrets(ask.secrets.as_deref(), sources)?,
    };
    let limits = judge.limits(&ask.limits)?;
    let bounds = judge.bounds(ask.grace)?;
    let lines = lines(&grant, &limits).into();
    let hints = Hints::new(rules, manifest, ask);
    Ok(Decision { grant, limits, bounds, lines, hints })
}

/// The two who have a say beside the start.
struct Judge<'a> {
    rules: &'a Rules,
    manifest: Option<&'a Manifest>,
}

impl<'a> Judge<'a> {
    fn given<T>(&self, of: impl Fn(&Section) -> Option<&Said<T>>) -> Option<Given<'a, T>> {
        self.rules.merged.pick(of)
    }

    /// Returns the entries of a list of the policy.
    fn granted<T>(&self, of: impl Fn(&Section) -> Option<&Said<Vec<Said<T>>>>) -> &'a [Said<T>] {
        self.rules.merged.list(of)
    }

    /// Denies an entry of a list that the policy does not have.
    fn unlisted<T>(
        &self,
        given: Option<Given<'_, T>>,
        key: &str,
        asked: String,
        shown: &str,
        written: &str,
    ) -> Denial {
        let (why, fix) = self.rules.lacks(given, key, shown, written);
        Denial::Policy { asked, why, fix }
    }

    fn peers(
        &self,
        key: &'static str,
        ask: Option<&[Peer]>,
        of: impl Fn(&Section) -> Option<&Said<Vec<Said<Peer>>>> + Copy,
        asks: impl Fn(&super::section::Common) -> &List<Peer>,
    ) -> Result<Vec<Peer>, Denial> {
        let granted = self.granted(of);
        let wanted = self.manifest.map(|manifest| (manifest, asks(&manifest.0.common)));
        let Some(ask) = ask else {
            return Ok(match wanted {
                None => values(granted),
                Some((_, wanted)) => common(granted, entries(wanted), Peer::common),
            });
        };
        for peer in ask {
            let covers = |entries: &[Said<Peer>]| entries.iter().any(|it| it.value.covers(peer));
            let (asked, shown) = (format!("{key} {peer}"), peer.to_string());
            let written = format!("\"{peer}\"");
            if self.rules.has_policy() && !covers(granted) {
                return Err(self.unlisted(self.given(of), key, asked, &shown, &written));
            }
            if let Some((manifest, wanted)) = wanted.filter(|(_, it)| !covers(entries(it))) {
                let (why, fix) = manifest.0.lacks(wanted, key, &shown, &written);
                return Err(Denial::Manifest { asked, why, fix });
            }
        }
        Ok(ask.to_vec())
    }

    /// Returns the servers. A peer over TCP may be spoken to in HTTP, so what one
    /// lists as that, the other may list as this.
    fn http(&self, ask: Option<&[Origin]>) -> Result<Vec<Origin>, Denial> {
        let http = self.granted(|section| section.common.http.as_ref());
        let tcp = self.granted(|section| section.common.tcp.as_ref());
        let wanted = self.manifest.map(|manifest| (manifest, &manifest.0.common));
        let Some(ask) = ask else {
            let Some((_, wanted)) = wanted else { return Ok(values(http)) };
            let mut servers = common(http, entries(&wanted.http), Origin::common);
            let by_tcp = common(tcp, entries(&wanted.http), Peer::common_with_origin);
            let as_tcp = common(entries(&wanted.tcp), http, Peer::common_with_origin);
            for server in by_tcp.into_iter().chain(as_tcp) {
                if !servers.contains(&server) {
                    servers.push(server);
                }
            }
            return Ok(servers);
        };
        for origin in ask {
            let covers = |http: &[Said<Origin>], tcp: &[Said<Peer>]| {
                http.iter().any(|it| it.value.covers(origin))
                    || tcp.iter().any(|it| it.value.covers_origin(origin))
            };
            let (asked, shown) = (format!("http {origin}"), origin.to_string());
            let written = format!("\"{origin}\"");
            if self.rules.has_policy() && !covers(http, tcp) {
                let given = self.given(|section| section.common.http.as_ref());
                return Err(self.unlisted(given, "http", asked, &shown, &written));
            }
            if let Some((manifest, wanted)) = wanted
                && !covers(entries(&wanted.http), entries(&wanted.tcp))
            {
                let (why, fix) = manifest.0.lacks(&wanted.http, "http", &shown, &written);
                return Err(Denial::Manifest { asked, why, fix });
            }
        }
        Ok(ask.to_vec())
    }

    fn dirs(&self, ask: Option<&[DirGrant]>) -> Result<Vec<DirGrant>, Denial> {
        let granted = self.granted(|section| section.dirs.as_ref());
        let Some(ask) = ask else {
            let dirs = granted.iter().filter_map(|dir| {
                let access = match self.manifest {
                    Some(manifest) => manifest.0.dir(&dir.value.guest)?.min(dir.value.access),
                    None => dir.value.access,
                };
                Some(DirGrant { access, ..dir.value.clone() })
            });
            return Ok(dirs.collect());
        };
        let dirs = ask.iter().map(|dir| {
            let within = self.within(dir, granted)?;
            self.wanted_dir(dir)?;
            Ok(within)
        });
        dirs.collect()
    }

    /// Returns the folder below the granted one that it lies in.
    fn within(&self, ask: &DirGrant, granted: &[Said<DirGrant>]) -> Result<DirGrant, Denial> {
        if !self.rules.has_policy() {
            return Ok(ask.clone());
        }
        if !ask.host.is_absolute() {
            return Err(Denial::Relative(ask.host.clone()));
        }
        let path = lexical(&ask.host.join(&ask.below));
        let mut above: Vec<_> = granted
            .iter()
            .filter_map(|dir| Some((dir, path.strip_prefix(&dir.value.host).ok()?)))
            .collect();
        // The nearest of those that may do as much.
        above.sort_by_key(|(_, rest)| rest.components().count());
        let asked = || format!("the folder {} ({})", path.display(), ask.access);
        match above.iter().find(|(dir, _)| dir.value.access >= ask.access) {
            Some((dir, rest)) => Ok(DirGrant {
                host: dir.value.host.clone(),
                below: rest.to_path_buf(),
                guest: ask.guest.clone(),
                access: ask.access,
            }),
            None => {
                let given = self.given(|section| section.dirs.as_ref());
                Err(match (above.first(), given) {
                    (Some((dir, _)), Some(given)) => {
                        let said = &Said { value: (), line: dir.line };
                        let given = Given { said, section: given.section };
                        Denial::Policy {
                            asked: asked(),
                            why: format!(
                                "{} grants {} for reading only",
                                self.rules.at(&given, "dirs"),
                                dir.value.host.display()
                            ),
                            fix: self.rules.change(&given, "dirs", "write :rw"),
                        }
                    }
                    (_, given) => {
                        let shown = path.display().to_string();
                        let written = written_dir(&path, ask);
                        self.unlisted(given, "dirs", asked(), &shown, &written)
                    }
                })
            }
        }
    }

    fn wanted_dir(&self, ask: &DirGrant) -> Result<(), Denial> {
        let Some(manifest) = self.manifest else { return Ok(()) };
        let asks = &manifest.0;
        let asked = || format!("the folder {} ({})", ask.guest, ask.access);
        let written = format!("\"{}:{}\"", ask.guest, ask.access);
        let (why, fix) = match asks.dir(&ask.guest) {
            Some(access) if access >= ask.access => return Ok(()),
            Some(_) => {
                let line = asks.dirs.as_ref().map_or(1, |dirs| dirs.line);
                let why = format!("{} asks for reading it only", asks.at(line, "dirs"));
                (why, format!("write {written} there"))
            }
            None => asks.lacks(&asks.dirs, "dirs", &ask.guest, &written),
        };
        Err(Denial::Manifest { asked: asked(), why, fix })
    }

    fn env(&self, ask: Option<&[EnvGrant]>, sources: &Sources) -> Result<Vec<EnvGrant>, Denial> {
        let granted = self.granted(|section| section.env.as_ref());
        let wanted = self.manifest.map(|manifest| (manifest, &manifest.0.env));
        let is_wanted = |name: &str| match wanted {
            Some((_, list)) => entries(list).iter().any(|it| it.value == name),
            None => true,
        };
        let Some(ask) = ask else {
            let granted = granted.iter().filter(|it| is_wanted(&it.value.name));
            let env = granted.filter_map(|it| {
                // A variable that the host does not have, the guest has not either.
                let value = it.value.value.as_ref().or_else(|| sources.env.get(&it.value.name))?;
                Some(EnvGrant { name: it.value.name.clone(), value: value.clone() })
            });
            return Ok(env.collect());
        };
        for EnvGrant { name, value } in ask {
            let asked = || format!("the variable {name}");
            let written = format!("\"{name}\"");
            let given = self.given(|section| section.env.as_ref());
            let rule = granted.iter().find(|it| it.value.name == *name);
            match rule.map(|rule| (rule, rule.value.value.as_ref())) {
                None if self.rules.has_policy() => {
                    return Err(self.unlisted(given, "env", asked(), name, &written));
                }
                // Neither value is told.
                Some((rule, Some(fixed))) if fixed != value => {
                    let (why, fix) = match given {
                        Some(given) => {
                            let said = &Said { value: (), line: rule.line };
                            let given = Given { said, section: given.section };
                            let why =
                                format!("{} grants another value", self.rules.at(&given, "env"));
                            let bare = format!("write {written} for any value");
                            (why, self.rules.change(&given, "env", &bare))
                        }
                        None => self.rules.lacks(given, "env", name, &written),
                    };
                    return Err(Denial::Policy { asked: asked(), why, fix });
                }
                _ => {}
            }
            if let Some((manifest, list)) = wanted.filter(|_| !is_wanted(name)) {
                let (why, fix) = manifest.0.lacks(list, "env", name, &written);
                return Err(Denial::Manifest { asked: asked(), why, fix });
            }
        }
        Ok(ask.to_vec())
    }

    fn private(&self, ask: Option<&[Range]>) -> Result<Vec<Range>, Denial> {
        let granted = self.granted(|section| section.private.as_ref());
        let Some(ask) = ask else { return Ok(values(granted)) };
        for range in ask.iter().filter(|_| self.rules.has_policy()) {
            if !granted.iter().any(|it| it.value.covers(*range)) {
                let given = self.given(|section| section.private.as_ref());
                let shown = range.to_string();
                let asked = format!("private {range}");
                return Err(self.unlisted(
                    given,
                    "private",
                    asked,
                    &shown,
                    &format!("\"{range}\""),
                ));
            }
        }
        Ok(ask.to_vec())
    }

    fn lookup(&self, ask: Option<Lookup>) -> Result<Lookup, Denial> {
        let given = self.given(|section| section.common.lookup.as_ref());
        let granted = match given {
            Some(given) => given.said.value,
            // Without a policy the start says what it wants.
            None if self.rules.has_policy() => Lookup::default(),
            None => ask.unwrap_or_default(),
        };
        let said = self.manifest.and_then(|manifest| manifest.0.common.lookup.as_ref());
        let wanted = match self.manifest {
            Some(_) => said.map_or(Lookup::default(), |said| said.value),
            None => granted,
        };
        let Some(ask) = ask else { return Ok(granted.min(wanted)) };
        let word = lookup_word(ask);
        let asked = || format!("lookup \"{word}\"");
        if ask > granted {
            let (why, fix) = match given {
                Some(given) => (
                    format!("{} is \"{}\"", self.rules.at(&given, "lookup"), lookup_word(granted)),
                    self.rules.change(&given, "lookup", &format!("write \"{word}\"")),
                ),
                None => (
                    format!("{} says nothing of lookup, so it is \"listed\"", self.rules.source()),
                    self.rules.add(&format!("lookup = \"{word}\"")),
                ),
            };
            return Err(Denial::Policy { asked: asked(), why, fix });
        }
        match self.manifest {
            Some(manifest) if ask > wanted => {
                let (why, fix) = match said {
                    Some(said) => (
                        format!(
                            "{} is \"{}\"",
                            manifest.0.at(said.line, "lookup"),
                            lookup_word(wanted)
                        ),
                        format!("write \"{word}\" there"),
                    ),
                    None => (
                        format!(
                            "{} says nothing of lookup, so it is \"listed\"",
                            manifest.source()
                        ),
                        format!("add lookup = \"{word}\" to it"),
                    ),
                };
                Err(Denial::Manifest { asked: asked(), why, fix })
            }
            _ => Ok(ask),
        }
    }

    fn clocks(&self, ask: Option<Clocks>) -> Clocks {
        let granted = self.given(|section| section.common.clocks.as_ref());
        let wanted = self.manifest.and_then(|manifest| manifest.0.common.clocks.as_ref());
        let said = granted.map(|given| given.said.value).into_iter();
        said.chain(wanted.map(|said| said.value)).chain(ask).max().unwrap_or_default()
    }

    fn random(&self, ask: Option<Random>) -> Result<Random, Denial> {
        let Some(given) = self.given(|section| section.random.as_ref()) else {
            return Ok(ask.unwrap_or_default());
        };
        match ask {
            Some(ask) if ask != given.said.value => Err(Denial::Policy {
                asked: format!("random {}", random_word(ask)),
                why: format!(
                    "{} is {}",
                    self.rules.at(&given, "random"),
                    random_word(given.said.value)
                ),
                fix: self.rules.change(&given, "random", "take it out"),
            }),
            _ => Ok(given.said.value),
        }
    }

    fn egress(&self, ask: Egress) -> Result<Egress, Denial> {
        let given = self.given(|section| section.common.egress.as_ref());
        let wanted = self.manifest.and_then(|manifest| manifest.0.common.egress.as_ref());
        let least = |what, of: fn(&Egress) -> Option<u64>| {
            let granted = given.and_then(|given| Some((given, of(&given.said.value)?)));
            match (of(&ask), granted) {
                (Some(ask), Some((given, granted))) if ask > granted => Err(Denial::Policy {
                    asked: format!("egress of {ask} {what}"),
                    why: format!("{} allows {granted} {what}", self.rules.at(&given, "egress")),
                    fix: self.rules.change(&given, "egress", &format!("raise {what} to {ask}")),
                }),
                (ask, granted) => {
                    let wanted = wanted.and_then(|said| of(&said.value));
                    let said = ask.into_iter().chain(granted.map(|(_, granted)| granted));
                    Ok(said.chain(wanted).min())
                }
            }
        };
        let bytes = least("bytes", |egress| egress.bytes)?;
        Ok(Egress { bytes, requests: least("requests", |egress| egress.requests)? })
    }

    fn secrets(
        &self,
        ask: Option<&[String]>,
        sources: &Sources,
    ) -> Result<Vec<SecretGrant>, Denial> {
        let granted = self.granted(|section| section.secrets.as_ref());
        let wanted = self.manifest.map(|manifest| (manifest, &manifest.0.secrets));
        let is_wanted = |name: &str| match wanted {
            Some((_, list)) => entries(list).iter().any(|it| it.value == name),
            None => true,
        };
        for name in ask.unwrap_or_default() {
            let asked = || format!("the secret {name}");
            if !granted.iter().any(|it| it.value.name == *name) {
                let given = self.given(|section| section.secrets.as_ref());
                let written = format!(
                    "{{ name = \"{name}\", variable = \"..\", header = \"..\", to = [\"..\"] }}"
                );
                return Err(match self.rules.has_policy() {
                    true => self.unlisted(given, "secrets", asked(), name, &written),
                    false => Denial::Policy {
                        asked: asked(),
                        why: "secrets are defined in a policy, and there is none".to_owned(),
                        fix: "write one".to_owned(),
                    },
                });
            }
            if let Some((manifest, list)) = wanted.filter(|_| !is_wanted(name)) {
                let written = format!("\"{name}\"");
                let (why, fix) = manifest.0.lacks(list, "secrets", name, &written);
                return Err(Denial::Manifest { asked: asked(), why, fix });
            }
        }
        let rules = granted.iter().map(|it| &it.value).filter(|rule| match ask {
            Some(ask) => ask.contains(&rule.name),
            None => is_wanted(&rule.name),
        });
        let secrets = rules.map(|rule| match sources.secrets.get(&rule.name) {
            Some(value) => Ok(SecretGrant {
                name: rule.name.clone(),
                variable: rule.variable.clone(),
                header: rule.header.clone(),
                to: values(&rule.to),
                value: value.clone(),
            }),
            None => Err(Denial::SecretLost {
                name: rule.name.clone(),
                source_of: self.rules.secret(&rule.name),
            }),
        });
        secrets.collect()
    }

    fn limits(&self, ask: &LimitsAsk) -> Result<Limits, Denial> {
        let mut limits = Limits::default();
        for limit in Limit::ALL {
            let given = self.given(|section| section.common.limits[limit.at()].as_ref());
            let asked = limit.asked(ask);
            let default = limit.most();
            let granted = match given {
                Some(given) => Some(given.said.value),
                // Without a policy the start may ask for more than the default.
                None if self.rules.has_policy() || asked.is_none() => default,
                None => asked,
            };
            if let (Some(ask), Some(granted)) = (asked, granted)
                && ask > granted
            {
                let key = limit.key();
                let (why, fix) = match given {
                    Some(given) => (
                        format!("{} is {}", self.rules.at(&given, key), limit.show(granted)),
                        self.rules.change(&given, key, &format!("write {}", limit.write(ask))),
                    ),
                    None => (
                        format!(
                            "{} says nothing of {key}, so it is {}",
                            self.rules.source(),
                            limit.show(granted)
                        ),
                        self.rules.add(&format!("{key} = {}", limit.write(ask))),
                    ),
                };
                let asked = format!("{key} {}", limit.show(ask));
                return Err(Denial::Policy { asked, why, fix });
            }
            let wanted = self
                .manifest
                .and_then(|manifest| manifest.0.common.limits[limit.at()].as_ref())
                .map(|said| said.value);
            if limit.is_asked_for() && asked.or(wanted).is_none() {
                continue;
            }
            if let Some(least) = granted.into_iter().chain(asked).chain(wanted).min() {
                limit.set(&mut limits, least);
            }
        }
        Ok(limits)
    }

    fn bounds(&self, grace: Option<Duration>) -> Result<Option<StopBounds>, Denial> {
        let given = self.given(|section| section.stop.as_ref());
        let stop = given.map(|given| given.said.value).unwrap_or_default();
        let default = StopBounds::default();
        // Without a policy the start may ask for more than the default.
        let granted = stop.grace.or(self.rules.has_policy().then_some(default.grace));
        if let (Some(ask), Some(granted)) = (grace, granted)
            && ask > granted
        {
            let show = humantime::format_duration;
            let written = format!("grace = \"{}\"", show(ask));
            let (why, fix) = match given {
                Some(given) => (
                    format!("{} gives {}", self.rules.at(&given, "stop"), show(granted)),
                    self.rules.change(&given, "stop", &format!("write {written}")),
                ),
                None => (
                    format!(
                        "{} says nothing of stop, so it is {}",
                        self.rules.source(),
                        show(granted)
                    ),
                    self.rules.add(&format!("stop = {{ {written} }}")),
                ),
            };
            return Err(Denial::Policy { asked: format!("grace {}", show(ask)), why, fix });
        }
        let said = grace.is_some() || stop.ask.is_some() || stop.grace.is_some();
        Ok(said.then(|| StopBounds {
            ask: stop.ask.unwrap_or(default.ask),
            grace: grace.or(stop.grace).unwrap_or(default.grace),
        }))
    }
}

fn values<T: Clone>(entries: &[Said<T>]) -> Vec<T> {
    entries.iter().map(|entry| entry.value.clone()).collect()
}

pub(super) fn entries<T>(list: &List<T>) -> &[Said<T>] {
    list.as_ref().map_or(&[], |list| &list.value)
}

/// Returns what each of the one list has in common with each of the other, once.
pub(super) fn common<A, B, C: PartialEq>(
    one: &[Said<A>],
    other: &[Said<B>],
    of: impl Fn(&A, &B) -> Option<C>,
) -> Vec<C> {
    let mut common = Vec::new();
    for entry in one {
        for with in other {
            if let Some(both) = of(&entry.value, &with.value).filter(|both| !common.contains(both))
            {
                common.push(both);
            }
        }
    }
    common
}

/// Returns the entry of `dirs` that would grant the folder.
fn written_dir(path: &Path, ask: &DirGrant) -> String {
    let path = path.display();
    let guest = match path.to_string() == ask.guest {
        true => Cow::Borrowed(""),
        false => Cow::Owned(format!("::{}", ask.guest)),
    };
    format!("\"{path}{guest}:{}\"", ask.access)
}

pub(super) fn lookup_word(lookup: Lookup) -> &'static str {
    match lookup {
        Lookup::None => "none",
        Lookup::Listed => "listed",
        Lookup::Any => "any",
    }
}

pub(super) fn clocks_word(clocks: Clocks) -> &'static str {
    match clocks {
        Clocks::Precise => "precise",
        Clocks::Coarse => "coarse",
        Clocks::Hidden => "hidden",
    }
}

pub(super) fn random_word(random: Random) -> Cow<'static, str> {
    match random {
        Random::System => "system".into(),
        Random::Seeded(seed) => format!("seeded with {seed}").into(),
    }
}

/// Returns how much may be sent, if there is a bound.
pub(super) fn egress_words(egress: Egress) -> Option<String> {
    let bytes = egress.bytes.map(|bytes| Bytes(bytes).to_string());
    let requests = egress.requests.map(|requests| format!("{requests} requests"));
    match (bytes, requests) {
        (Some(bytes), Some(requests)) => Some(format!("{bytes}, {requests}")),
        (bytes, requests) => bytes.or(requests),
    }
}

/// Returns the grant in short, a line each. It names variables and secrets, and has
/// no value of either.
fn lines(grant: &Grant, limits: &Limits) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(grant.dirs.iter().map(|dir| format!("dir {}:{}", dir.guest, dir.access)));
    lines.extend(grant.env.iter().map(|env| format!("env {}", env.name)));
    lines.extend(grant.tcp.iter().map(|peer| format!("tcp {peer}")));
    lines.extend(grant.udp.iter().map(|peer| format!("udp {peer}")));
    lines.extend(grant.http.iter().map(|origin| format!("http {origin}")));
    lines.extend(grant.private.iter().map(|range| format!("private {range}")));
    if grant.lookup != Lookup::default() {
        lines.push(format!("lookup {}", lookup_word(grant.lookup)));
    }
    if grant.clocks != Clocks::default() {
        lines.push(format!("clocks {}", clocks_word(grant.clocks)));
    }
    if grant.random != Random::default() {
        lines.push(format!("random {}", random_word(grant.random)));
    }
    lines.extend(egress_words(grant.egress).map(|words| format!("egress {words}")));
    lines.extend(grant.secrets.iter().map(|secret| {
        let to: Vec<String> = secret.to.iter().map(ToString::to_string).collect();
        format!("secret {} as {} to {}", secret.name, secret.variable, to.join(" "))
    }));
    for limit in Limit::ALL {
        let value = limit.of(limits);
        if let Some(value) = value.filter(|_| value != limit.of(&Limits::default())) {
            lines.push(format!("{} {}", limit.key(), limit.show(value)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*, sample::select};

    use super::*;
    use crate::policy::Policy;

    const POLICY: &str = "\
[defaults]
memory = '64MiB'
env = ['TZ']

[kind.fetch]
dirs = ['/data:ro', '/data/out::/out:rw', '/var/out::/var/out:rw']
env = ['LANG', 'MODE=fast']
tcp = ['*.db:5432', '10.0.0.0/8:*', 'api:443']
udp = ['1.1.1.1:53']
http = ['https://a']
private = ['127.0.0.0/8']
lookup = 'listed'
clocks = 'coarse'
egress = { bytes = '1MiB' }
secrets = [{ name = 's', variable = 'V', header = 'h', to = ['https://a'] }]
cpu = '10s'
stop = { grace = '5s' }

[kind.bare]

[secret.s]
env = 'S'
";

    fn rules(policy: &str, kind: &str) -> Rules {
        let policy = match policy {
            "none" => Policy::default(),
            text => Policy::parse(text, "p.toml", Path::new("/p")).unwrap(),
        };
        policy.rules(&kind.parse().unwrap())
    }

    fn manifest(text: &str) -> Manifest {
        Manifest::parse(text, "m.toml").unwrap()
    }

    fn sources() -> Sources {
        let map = |name: &str, value: &str| HashMap::from([(name.to_owned(), value.to_owned())]);
        Sources { env: map("LANG", "C"), secrets: map("s", "hunter2") }
    }

    fn ask(change: impl FnOnce(&mut Ask)) -> Ask {
        let mut ask = Ask::default();
        change(&mut ask);
        ask
    }

    fn parsed<T: std::str::FromStr<Err: fmt::Debug>>(texts: &[&str]) -> Option<Vec<T>> {
        Some(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn lines(rules: &Rules, wanted: Option<&str>, ask: &Ask) -> Vec<String> {
        let wanted = wanted.map(manifest);
        decide(rules, wanted.as_ref(), ask, &sources()).unwrap().lines.to_vec()
    }

    fn denied(policy: &str, kind: &str, wanted: Option<&str>, ask: &Ask) -> String {
        let wanted = wanted.map(manifest);
        decide(&rules(policy, kind), wanted.as_ref(), ask, &sources()).unwrap_err().to_string()
    }

    #[test]
    fn a_start_that_asks_for_nothing_gets_all_that_the_policy_gives() {
        let fetch = rules(POLICY, "fetch");
        assert_eq!(
            lines(&fetch, None, &Ask::default()),
            [
                "dir /data:ro",
                "dir /out:rw",
                "dir /var/out:rw",
                "env LANG",
                "env MODE",
                "tcp *.db:5432",
                "tcp 10.0.0.0/8:*",
                "tcp api:443",
                "udp 1.1.1.1:53",
                "http https://a",
                "private 127.0.0.0/8",
                "clocks coarse",
                "egress 1 MiB",
                "secret s as V to https://a",
                "memory 64 MiB",
                "cpu 10s",
            ]
        );
        let decision = decide(&fetch, None, &Ask::default(), &sources()).unwrap();
        assert_eq!(decision.grant.env[0].value, "C", "the host's own");
        assert_eq!(decision.grant.secrets[0].value, "hunter2");
        assert_eq!(decision.bounds.unwrap().grace, Duration::from_secs(5));
        assert!(!format!("{decision:?}").contains("hunter2"));
        // The host has no TZ, and so the guest has none.
        assert_eq!(lines(&rules(POLICY, "bare"), None, &Ask::default()), ["memory 64 MiB"]);
    }

    #[test]
    fn a_manifest_narrows_to_what_it_asks_for() {
        let wanted = "dirs = ['/data:rw', '/out:ro']\nenv = ['LANG', 'HOME']\n\
                      tcp = ['a.db:1-9999', '10.1.0.0/16:80']\nhttp = ['https://api', 'https://a']\n\
                      clocks = 'hidden'\negress = { requests = 3 }\nmemory = '1GiB'\ncpu = '1s'";
        assert_eq!(
            lines(&rules(POLICY, "fetch"), Some(wanted), &Ask::default()),
            [
                "dir /data:ro",
                "dir /out:ro",
                "env LANG",
                "tcp a.db:5432",
                "tcp 10.1.0.0/16:80",
                "http https://a",
                "http https://api",
                "private 127.0.0.0/8",
                "clocks hidden",
                "egress 1 MiB, 3 requests",
                "memory 64 MiB",
                "cpu 1s",
            ]
        );
        assert_eq!(
            lines(&rules(POLICY, "fetch"), Some(""), &Ask::default()),
            ["private 127.0.0.0/8", "clocks coarse", "egress 1 MiB", "memory 64 MiB", "cpu 10s"]
        );
    }

    #[test]
    fn without_a_policy_the_ask_is_what_there_is() {
        let none = rules("none", "fetch");
        assert_eq!(lines(&none, None, &Ask::default()), [""; 0]);
        let asked = ask(|ask| {
            ask.dirs = parsed(&[".::/src"]);
            ask.env = parsed(&["A=1"]);
            ask.tcp = parsed(&["a:1"]);
            ask.udp = parsed(&["b:1"]);
            ask.http = parsed(&["https://c"]);
            ask.private = parsed(&["10.0.0.0/8"]);
            ask.lookup = Some(Lookup::Any);
            ask.random = Some(Random::Seeded(7));
            ask.limits.memory = Some(1 << 30);
            ask.grace = Some(Duration::ZERO);
        });
        let decision = decide(&none, None, &asked, &sources()).unwrap();
        assert_eq!(decision.grant.dirs, asked.dirs.clone().unwrap(), "as asked");
        assert_eq!(decision.bounds.unwrap().grace, Duration::ZERO);
        assert_eq!(
            decision.lines.to_vec(),
            [
                "dir /src:ro",
                "env A",
                "tcp a:1",
                "udp b:1",
                "http https://c",
                "private 10.0.0.0/8",
                "lookup any",
                "random seeded with 7",
                "memory 1 GiB"
            ]
        );
        let wanted = "dirs = ['*:ro']\nmemory = '64MiB'";
        let narrow = ask(|ask| ask.dirs = parsed(&["/a"]));
        assert_eq!(lines(&none, Some(wanted), &narrow), ["dir /a:ro", "memory 64 MiB"]);
    }

    #[test]
    fn a_folder_lies_at_or_below_a_granted_one() {
        let fetch = rules(POLICY, "fetch");
        let dir = |text: &str| {
            let asked = ask(|ask| ask.dirs = parsed(&[text]));
            let decision = decide(&fetch, None, &asked, &sources()).ok()?;
            let dir = &decision.grant.dirs[0];
            let (host, below) = (dir.host.display(), dir.below.display());
            Some(format!("{host} {below} {} {}", dir.guest, dir.access))
        };
        assert_eq!(dir("/data::/d").unwrap(), "/data  /d ro");
        assert_eq!(dir("/data/a/b::/d").unwrap(), "/data a/b /d ro");
        assert_eq!(dir("/data/./a//../b::/d").unwrap(), "/data b /d ro");
        assert_eq!(dir("/data/out/x::/d:rw").unwrap(), "/data/out x /d rw");
        assert_eq!(dir("/data/out::/d:ro").unwrap(), "/data/out  /d ro");
        for outside in ["/", "/database", "/data/../etc", "/data/a:rw", "/data/out/..:rw", "data"] {
            assert_eq!(dir(outside), None, "{outside}");
        }
    }

    #[test]
    fn a_denial_names_the_line_that_says_no_and_the_one_that_would_allow_it() {
        let at = "p.toml:6 ([kind.fetch] dirs)";
        let fetch: &[(Ask, String)] = &[
            (
                ask(|ask| ask.dirs = parsed(&["/etc:ro"])),
                format!("the folder /etc (ro) is not granted: {at} does not list /etc; add \"/etc:ro\" there"),
            ),
            (
                ask(|ask| ask.dirs = parsed(&["/data/x::/d:rw"])),
                format!("the folder /data/x (rw) is not granted: {at} grants /data for reading only; write :rw there"),
            ),
            (
                ask(|ask| ask.dirs = parsed(&["x"])),
                "the folder x cannot be held against the policy; ask for it by its absolute path".into(),
            ),
            (
                ask(|ask| ask.env = parsed(&["HOME=/"])),
                "the variable HOME is not granted: p.toml:7 ([kind.fetch] env) does not list HOME; add \"HOME\" there".into(),
            ),
            (
                ask(|ask| ask.env = parsed(&["MODE=slow"])),
                "the variable MODE is not granted: p.toml:7 ([kind.fetch] env) grants another value; write \"MODE\" for any value there".into(),
            ),
            (
                ask(|ask| ask.tcp = parsed(&["db:5432"])),
                "tcp db:5432 is not granted: p.toml:8 ([kind.fetch] tcp) does not list db:5432; add \"db:5432\" there".into(),
            ),
            (
                ask(|ask| ask.http = parsed(&["http://a"])),
                "http http://a is not granted: p.toml:10 ([kind.fetch] http) does not list http://a; add \"http://a\" there".into(),
            ),
            (
                ask(|ask| ask.private = parsed(&["0.0.0.0/0"])),
                "private 0.0.0.0/0 is not granted: p.toml:11 ([kind.fetch] private) does not list 0.0.0.0/0; add \"0.0.0.0/0\" there".into(),
            ),
            (
                ask(|ask| ask.lookup = Some(Lookup::Any)),
                "lookup \"any\" is not granted: p.toml:12 ([kind.fetch] lookup) is \"listed\"; write \"any\" there".into(),
            ),
            (
                ask(|ask| ask.egress.bytes = Some(2 << 20)),
                "egress of 2097152 bytes is not granted: p.toml:14 ([kind.fetch] egress) allows 1048576 bytes; raise bytes to 2097152 there".into(),
            ),
            (
                ask(|ask| ask.secrets = Some(vec!["t".into()])),
                "the secret t is not granted: p.toml:15 ([kind.fetch] secrets) does not list t; \
                 add { name = \"t\", variable = \"..\", header = \"..\", to = [\"..\"] } there".into(),
            ),
            (
                ask(|ask| ask.limits.memory = Some(1 << 30)),
                "memory 1 GiB is not granted: p.toml:2 ([defaults] memory) is 64 MiB; write \"1GiB\" there, or give [kind.fetch] its own memory".into(),
            ),
            (
                ask(|ask| ask.limits.open_files = Some(1000)),
                "open-files 1000 is not granted: p.toml says nothing of open-files, so it is 256; add open-files = 1000 to [kind.fetch], which begins at p.toml:5".into(),
            ),
            (
                ask(|ask| ask.grace = Some(Duration::from_secs(60))),
                "grace 1m is not granted: p.toml:17 ([kind.fetch] stop) gives 5s; write grace = \"1m\" there".into(),
            ),
        ];
        for (ask, wanted) in fetch {
            assert_eq!(&denied(POLICY, "fetch", None, ask), wanted);
        }
        let grace = ask(|ask| ask.grace = Some(Duration::from_secs(60)));
        assert_eq!(
            denied(POLICY, "bare", None, &grace),
            "grace 1m is not granted: p.toml says nothing of stop, so it is 5s; add stop = \
             { grace = \"1m\" } to [kind.bare], which begins at p.toml:19"
        );
        let tcp = ask(|ask| ask.tcp = parsed(&["db:5432"]));
        assert_eq!(
            denied(POLICY, "bare", None, &tcp),
            "tcp db:5432 is not granted: p.toml grants bare no tcp; add tcp = [\"db:5432\"] to \
             [kind.bare], which begins at p.toml:19"
        );
        assert_eq!(
            denied(POLICY, "other", None, &tcp),
            "tcp db:5432 is not granted: p.toml grants other no tcp; add [kind.other] with tcp = \
             [\"db:5432\"] to p.toml"
        );
    }

    #[test]
    fn what_a_manifest_does_not_ask_for_is_denied_by_its_line() {
        let env = ask(|ask| ask.env = parsed(&["LANG=C"]));
        let dir = ask(|ask| ask.dirs = parsed(&["/data::/d:rw"]));
        for (wanted, ask, says) in [
            (
                "",
                &env,
                "the variable LANG is not granted: m.toml asks for no env; add env = [\"LANG\"] to it",
            ),
            (
                "\nenv = ['A']",
                &env,
                "the variable LANG is not granted: m.toml:2 (env) does not list LANG; add \"LANG\" there",
            ),
            (
                "dirs = ['/e']",
                &dir,
                "the folder /d (rw) is not granted: m.toml:1 (dirs) does not list /d; add \"/d:rw\" there",
            ),
            (
                "dirs = ['*']",
                &dir,
                "the folder /d (rw) is not granted: m.toml:1 (dirs) asks for reading it only; write \"/d:rw\" there",
            ),
        ] {
            assert_eq!(denied("none", "fetch", Some(wanted), ask), says);
        }
        let any = ask(|ask| ask.lookup = Some(Lookup::Any));
        assert_eq!(
            denied("none", "fetch", Some(""), &any),
            "lookup \"any\" is not granted: m.toml says nothing of lookup, so it is \"listed\"; add \
             lookup = \"any\" to it"
        );
        let secret = ask(|ask| ask.secrets = Some(vec!["s".into()]));
        assert!(denied("none", "fetch", None, &secret).contains("there is none"));
        assert!(denied(POLICY, "fetch", Some(""), &secret).contains("m.toml asks for no secrets"));
    }

    #[test]
    fn a_work_folder_is_there_for_whoever_asks_and_as_large_as_all_of_them_say() {
        const MIB: u64 = 1 << 20;
        let asking = |bytes: Option<u64>| ask(|ask| ask.limits.work_folder = bytes);
        for (policy, wanted, asked, gets) in [
            ("none", None, None, None),
            ("none", Some(""), None, None),
            ("none", Some("work-folder = '256MiB'"), None, Some(256 * MIB)),
            ("none", Some("work-folder = '2GiB'"), None, Some(1024 * MIB)),
            ("none", Some("work-folder = '256MiB'"), Some(64 * MIB), Some(64 * MIB)),
            ("none", Some("work-folder = '256MiB'"), Some(512 * MIB), Some(256 * MIB)),
            ("none", Some("work-folder = '256MiB'"), Some(0), None),
            ("none", Some("work-folder = 0"), Some(MIB), None),
            ("none", Some(""), Some(MIB), Some(MIB)),
            ("none", None, Some(4096 * MIB), Some(4096 * MIB)),
            ("", None, None, None),
            ("", None, Some(MIB), Some(MIB)),
            ("", Some("work-folder = '2GiB'"), None, Some(1024 * MIB)),
            (
                "[defaults]\nwork-folder = '4GiB'",
                Some("work-folder = '2GiB'"),
                None,
                Some(2048 * MIB),
            ),
            (
                "[kind.fetch]\nwork-folder = '8MiB'",
                Some("work-folder = '2GiB'"),
                None,
                Some(8 * MIB),
            ),
            ("[kind.fetch]\nwork-folder = '8MiB'", None, None, None),
            ("[kind.fetch]\nwork-folder = 0", Some("work-folder = '2GiB'"), None, None),
            ("[kind.fetch]\nwork-folder = 0", None, Some(0), None),
        ] {
            let manifest = wanted.map(manifest);
            let rules = rules(policy, "fetch");
            let decision = decide(&rules, manifest.as_ref(), &asking(asked), &sources()).unwrap();
            let said = (policy, wanted, asked);
            assert_eq!(decision.limits.work_folder, gets, "{said:?}");
            let line = gets.map(|bytes| format!("work-folder {}", Bytes(bytes)));
            let lines = decision.lines.iter().find(|line| line.starts_with("work-folder"));
            assert_eq!(lines, line.as_ref(), "{said:?}");
        }
        for (policy, says) in [
            (
                "",
                "work-folder 2 GiB is not granted: p.toml says nothing of work-folder, so it is \
                 1 GiB; add [kind.fetch] with work-folder = \"2GiB\" to p.toml",
            ),
            (
                "[kind.fetch]\nwork-folder = 0",
                "work-folder 2 GiB is not granted: p.toml:2 ([kind.fetch] work-folder) is 0 bytes; \
                 write \"2GiB\" there",
            ),
        ] {
            assert_eq!(denied(policy, "fetch", None, &asking(Some(2048 * MIB))), says);
        }
    }

    #[test]
    fn a_secret_without_a_value_is_told_by_its_source() {
        let error = decide(&rules(POLICY, "fetch"), None, &Ask::default(), &Sources::default());
        let says = "the secret `s` has no value: the host's variable S is not set";
        assert_eq!(error.unwrap_err().to_string(), says);
    }

    const PEERS: [&str; 9] = [
        "a:1",
        "a:*",
        "*.a:1-9",
        "b.a:1-5",
        "*.b.a:3",
        "10.0.0.0/8:1",
        "10.1.0.0/16:*",
        "[::1]:1",
        "a:2-4",
    ];
    const SERVERS: [&str; 7] = [
        "http://a",
        "https://a",
        "https://*.a:*",
        "https://b.a:3",
        "http://10.0.0.0/8:1",
        "http://10.1.0.0/16:*",
        "https://a:1",
    ];
    const DIRS: [&str; 6] = ["/a:ro", "/a/b:rw", "/a::/c:rw", "/a/b/c::/c:ro", "/d:rw", "/:ro"];
    const ENV: [&str; 4] = ["A=1", "A=2", "B=1", "LANG=x"];

    fn some<T: Clone + fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = Vec<T>> {
        vec(select(all), 0..4)
    }

    /// Returns the text of a section, or of a manifest, with these lists.
    fn written(lists: &[(&str, Option<Vec<String>>)], memory: Option<u64>) -> String {
        let mut text = String::new();
        for (key, list) in lists {
            if let Some(list) = list {
                text += &format!("{key} = {list:?}\n");
            }
        }
        memory.map_or(text.clone(), |memory| format!("{text}memory = {memory}\n"))
    }

    prop_compose! {
        fn side()(
            tcp in option::of(some(&PEERS)),
            udp in option::of(some(&PEERS)),
            http in option::of(some(&SERVERS)),
            dirs in option::of(some(&DIRS)),
            env in option::of(some(&ENV)),
            memory in option::of(1_u64..100),
        ) -> Side {
            Side { tcp, udp, http, dirs, env, memory }
        }
    }

    #[derive(Clone, Debug)]
    struct Side {
        tcp: Option<Vec<&'static str>>,
        udp: Option<Vec<&'static str>>,
        http: Option<Vec<&'static str>>,
        dirs: Option<Vec<&'static str>>,
        env: Option<Vec<&'static str>>,
        memory: Option<u64>,
    }

    impl Side {
        /// Returns what it lists, each under its name once.
        fn text(&self, of: impl Fn(&str, &str) -> String) -> String {
            let list = |key: &'static str, list: &Option<Vec<&'static str>>| {
                let mut names = std::collections::HashSet::new();
                let entries = list.as_ref()?.iter().map(|entry| of(key, entry));
                Some((
                    key,
                    entries
                        .filter(|entry| {
                            let name = match key {
                                "dirs" => entry.parse::<DirGrant>().unwrap().guest,
                                "env" => entry.split('=').next().unwrap_or_default().to_owned(),
                                _ => return true,
                            };
                            names.insert(name)
                        })
                        .collect::<Vec<_>>(),
                ))
            };
            let lists = [
                list("tcp", &self.tcp),
                list("udp", &self.udp),
                list("http", &self.http),
                list("dirs", &self.dirs),
                list("env", &self.env),
            ];
            let lists: Vec<_> =
                lists.into_iter().flatten().map(|(key, list)| (key, Some(list))).collect();
            written(&lists, self.memory)
        }

        fn policy(&self) -> Policy {
            let text = format!("[kind.k]\n{}", self.text(|_, entry| entry.to_owned()));
            Policy::parse(&text, "p.toml", Path::new("/")).unwrap()
        }

        fn manifest(&self) -> Manifest {
            let text = self.text(|key, entry| match key {
                "dirs" => {
                    let dir: DirGrant = entry.parse().unwrap();
                    format!("{}:{}", dir.guest, dir.access)
                }
                "env" => entry.split('=').next().unwrap().to_owned(),
                _ => entry.to_owned(),
            });
            manifest(&text)
        }

        fn ask(&self) -> Ask {
            let mut ask = Ask {
                dirs: self.dirs.as_deref().and_then(parsed),
                env: self.env.as_deref().and_then(parsed),
                tcp: self.tcp.as_deref().and_then(parsed),
                udp: self.udp.as_deref().and_then(parsed),
                http: self.http.as_deref().and_then(parsed),
                ..Ask::default()
            };
            ask.limits.memory = self.memory;
            ask
        }
    }

    /// Tells whether all of one grant is in the other.
    fn is_within(inner: &Grant, outer: &Grant) -> bool {
        let peers = |inner: &[Peer], outer: &[Peer]| {
            inner.iter().all(|peer| outer.iter().any(|it| it.covers(peer)))
        };
        peers(&inner.tcp, &outer.tcp)
            && peers(&inner.udp, &outer.udp)
            && inner.http.iter().all(|origin| {
                outer.http.iter().any(|it| it.covers(origin))
                    || outer.tcp.iter().any(|it| it.covers_origin(origin))
            })
            && inner.dirs.iter().all(|dir| {
                let path = dir.host.join(&dir.below);
                outer.dirs.iter().any(|it| path.starts_with(&it.host) && it.access >= dir.access)
            })
    }

    proptest! {
        #[test]
        fn what_is_granted_is_in_policy_and_ask_and_never_more_than_without_asking(
            policy in side(), asked in side(), memory in option::of(1_u64..100),
        ) {
            let rules = policy.policy().rules(&"k".parse().unwrap());
            let all = decide(&rules, None, &Ask::default(), &sources()).unwrap();
            let mut ask = asked.ask();
            ask.limits.memory = memory;
            let Ok(decision) = decide(&rules, None, &ask, &sources()) else { return Ok(()) };
            prop_assert!(is_within(&decision.grant, &all.grant), "{decision:?}");
            prop_assert!(decision.limits.memory <= all.limits.memory);
            prop_assert!(decision.limits.memory <= memory.unwrap_or(u64::MAX));
            if let Some(tcp) = &ask.tcp { prop_assert_eq!(tcp, &decision.grant.tcp) }
            if let Some(env) = &ask.env {
                let names = |env: &[EnvGrant]| env.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
                prop_assert_eq!(names(env), names(&decision.grant.env));
            }
        }

        #[test]
        fn a_manifest_only_takes_away(policy in side(), wanted in side()) {
            let rules = policy.policy().rules(&"k".parse().unwrap());
            let all = decide(&rules, None, &Ask::default(), &sources()).unwrap();
            let less = decide(&rules, Some(&wanted.manifest()), &Ask::default(), &sources()).unwrap();
            prop_assert!(is_within(&less.grant, &all.grant), "{less:?}");
            prop_assert!(less.limits.memory <= all.limits.memory);
            // What is left, the plugin asks for: a start may ask for all of it again.
            let again = Ask {
                tcp: Some(less.grant.tcp.clone()),
                udp: Some(less.grant.udp.clone()),
                http: Some(less.grant.http.clone()),
                dirs: Some(less.grant.dirs.clone()),
                env: Some(less.grant.env.clone()),
                ..Ask::default()
            };
            let again = decide(&rules, Some(&wanted.manifest()), &again, &sources()).unwrap();
            prop_assert_eq!(again.grant.tcp, less.grant.tcp);
        }

        #[test]
        fn without_a_policy_nothing_is_there_that_was_not_asked_for(
            wanted in option::of(side()), asked in side(),
        ) {
            let none = rules("none", "k");
            let wanted = wanted.as_ref().map(Side::manifest);
            let nothing = decide(&none, wanted.as_ref(), &Ask::default(), &sources()).unwrap();
            prop_assert_eq!(nothing.grant, Grant::default());
            if let Ok(decision) = decide(&none, wanted.as_ref(), &asked.ask(), &sources()) {
                prop_assert_eq!(decision.grant.tcp, asked.ask().tcp.unwrap_or_default());
                prop_assert_eq!(decision.grant.dirs, asked.ask().dirs.unwrap_or_default());
            }
        }
    }
}
