//! What would have allowed what a task is denied while it runs.

use crate::policy::{
    decide::Ask, document::Said, grant::Egress, limit::Limit, manifest::Manifest, rules::Rules,
    section::Section,
};

/// What would have allowed what a task is denied while it runs. Cheap to clone; the
/// words are made when they are wanted.
///
/// The default is that of a task without a policy.
#[derive(Clone, Debug, Default)]
pub struct Hints(Option<(Rules, Option<Manifest>, Mentioned)>);

/// A sort of what tasks may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Folders.
    Folder,
    /// Environment variables.
    Env,
    /// Peers over TCP.
    Tcp,
    /// Peers over UDP.
    Udp,
    /// HTTP servers.
    Http,
    /// Special-purpose addresses that names stand for.
    Private,
    /// Looking up names.
    Lookup,
    /// How much may be sent.
    Egress,
    /// Secrets.
    Secret,
    /// How much may be in the work folder.
    WorkFolder,
}

impl Hints {
    pub(super) fn new(rules: &Rules, manifest: Option<&Manifest>, ask: &Ask) -> Self {
        Self(Some((rules.clone(), manifest.cloned(), Mentioned::by(ask))))
    }

    /// Returns what to do to have something of that sort granted.
    pub fn of(&self, sort: Sort) -> String {
        let mut hint = match &self.0 {
            // What the start mentions of a sort is all that it has of it.
            Some((rules, _, mentioned)) if rules.has_policy() && mentioned.has(sort) => {
                format!("{}, and {}", sort.flag(), sort.line(rules))
            }
            Some((rules, ..)) if rules.has_policy() => sort.line(rules),
            _ => sort.flag().to_owned(),
        };
        let manifest = self.0.as_ref().and_then(|(_, manifest, _)| manifest.as_ref());
        if let Some((manifest, key)) = manifest.zip(sort.asked_for_as())
            && sort.is_bounded_by(manifest)
        {
            hint.push_str(&format!(", and have {key} of {} ask for it", manifest.source()));
        }
        hint
    }
}

impl Sort {
    /// Returns the key that a policy has for it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Folder => "dirs",
            Self::Env => "env",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Http => "http",
            Self::Private => "private",
            Self::Lookup => "lookup",
            Self::Egress => "egress",
            Self::Secret => "secrets",
            Self::WorkFolder => "work-folder",
        }
    }

    /// Returns the key that manifests have for it, if they have one.
    fn asked_for_as(self) -> Option<&'static str> {
        (self != Self::Private).then(|| self.key())
    }

    /// Tells whether a manifest has a say. One that says nothing of how much there may
    /// be sets no bound.
    fn is_bounded_by(self, manifest: &Manifest) -> bool {
        let common = &manifest.0.common;
        match self {
            Self::Egress => common.egress.is_some(),
            Self::WorkFolder => common.limits[Limit::WorkFolder.at()].is_some(),
            _ => true,
        }
    }

    /// Returns the words for a start without a policy.
    fn flag(self) -> &'static str {
        match self {
            Self::Folder => "grant it with --dir HOST[::GUEST][:ro|rw]",
            Self::Env => "grant it with --env NAME=VALUE",
            Self::Tcp => "grant it with --net HOST:PORT",
            Self::Udp => "grant it with --udp HOST:PORT",
            Self::Http => "grant it with --http URL",
            Self::Private => "grant it with --private RANGE",
            Self::Lookup => "grant the name with --net HOST:PORT or --udp HOST:PORT",
            Self::Egress => "grant more, or set no bound",
            Self::Secret => "define it in a policy, which --policy FILE names",
            Self::WorkFolder => "ask for more with --work-folder SIZE",
        }
    }

    /// Returns the words for a start under that policy.
    fn line(self, rules: &Rules) -> String {
        let key = self.key();
        /// Returns where the key stands, if it does.
        fn at<T>(
            rules: &Rules,
            key: &str,
            of: impl Fn(&Section) -> Option<&Said<T>>,
        ) -> Option<String> {
            rules.merged.pick(of).map(|given| rules.at(&given, key))
        }
        let at = match self {
            Self::Folder => at(rules, key, |section| section.dirs.as_ref()),
            Self::Env => at(rules, key, |section| section.env.as_ref()),
            Self::Tcp => at(rules, key, |section| section.common.tcp.as_ref()),
            Self::Udp => at(rules, key, |section| section.common.udp.as_ref()),
            Self::Http => at(rules, key, |section| section.common.http.as_ref()),
            Self::Private => at(rules, key, |section| section.private.as_ref()),
            Self::Lookup => at(rules, key, |section| section.common.lookup.as_ref()),
            Self::Egress => at(rules, key, |section| section.common.egress.as_ref()),
            Self::Secret => at(rules, key, |section| section.secrets.as_ref()),
            Self::WorkFolder => {
                at(rules, key, |section| section.common.limits[Limit::WorkFolder.at()].as_ref())
            }
        };
        match (at, self) {
            (Some(at), Self::Egress | Self::WorkFolder) => format!("raise it at {at}"),
            (Some(at), Self::Lookup) => format!("widen it at {at}"),
            (Some(at), _) => format!("list it at {at}"),
            (None, _) => rules.add(key),
        }
    }
}

/// The sorts of which a start asked for some, and so was not given all, a bit each.
#[derive(Clone, Copy, Debug)]
struct Mentioned(u16);

impl Mentioned {
    fn by(ask: &Ask) -> Self {
        let sorts = [
            (Sort::Folder, ask.dirs.is_some()),
            (Sort::Env, ask.env.is_some()),
            (Sort::Tcp, ask.tcp.is_some()),
            (Sort::Udp, ask.udp.is_some()),
            (Sort::Http, ask.http.is_some()),
            (Sort::Private, ask.private.is_some()),
            (Sort::Lookup, ask.lookup.is_some()),
            (Sort::Egress, ask.egress != Egress::default()),
            (Sort::Secret, ask.secrets.is_some()),
            (Sort::WorkFolder, ask.limits.work_folder.is_some()),
        ];
        Self(sorts.into_iter().fold(0, |bits, (sort, is)| bits | u16::from(is) << sort as u16))
    }

    fn has(self, sort: Sort) -> bool {
        self.0 & 1 << sort as u16 != 0
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::policy::{Policy, Sources, decide};

    const POLICY: &str = "[kind.fetch]\ntcp = ['api:443']\negress = { bytes = 1 }\n[kind.bare]";

    fn hints(policy: &str, kind: &str, wanted: Option<&str>, ask: &Ask) -> Hints {
        let policy = match policy {
            "none" => Policy::default(),
            text => Policy::parse(text, "p.toml", Path::new("/p")).unwrap(),
        };
        let wanted = wanted.map(|text| Manifest::parse(text, "m.toml").unwrap());
        let rules = policy.rules(&kind.parse().unwrap());
        decide(&rules, wanted.as_ref(), ask, &Sources::default()).unwrap().hints
    }

    #[test]
    fn hints_name_the_line_or_the_flag() {
        let nothing = Ask::default();
        let fetch = hints(POLICY, "fetch", None, &nothing);
        assert_eq!(fetch.of(Sort::Tcp), "list it at p.toml:2 ([kind.fetch] tcp)");
        assert_eq!(fetch.of(Sort::Egress), "raise it at p.toml:3 ([kind.fetch] egress)");
        assert_eq!(
            hints(POLICY, "bare", Some("tcp = []"), &nothing).of(Sort::Tcp),
            "add tcp to [kind.bare], which begins at p.toml:4, and have tcp of m.toml ask for it"
        );
        let work = hints(POLICY, "bare", Some("work-folder = 1"), &nothing);
        assert_eq!(
            work.of(Sort::WorkFolder),
            "add work-folder to [kind.bare], which begins at p.toml:4, and have work-folder of \
             m.toml ask for it"
        );
        let narrow = Ask { tcp: Some(vec!["api:443".parse().unwrap()]), ..Ask::default() };
        let narrow = hints(POLICY, "fetch", None, &narrow);
        assert_eq!(
            narrow.of(Sort::Tcp),
            "grant it with --net HOST:PORT, and list it at p.toml:2 ([kind.fetch] tcp)"
        );
        assert_eq!(narrow.of(Sort::Udp), fetch.of(Sort::Udp));
        let free = hints("none", "a", None, &nothing);
        assert_eq!(free.of(Sort::Folder), Hints::default().of(Sort::Folder));
        assert_eq!(Hints::default().of(Sort::Tcp), "grant it with --net HOST:PORT");
    }
}
