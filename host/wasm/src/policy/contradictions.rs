//! What a policy says in one place and takes back in another.

use std::sync::Arc;

use crate::policy::{
    document::{Reader, Said},
    file::File,
    grant::Lookup,
    net::Peer,
    rules::Merged,
};

const NO_NAMES: &str = "private is about the addresses that names stand for, and tcp, udp and http \
                        list no name; an address is granted by listing it there";

/// Tells of every contradiction: those of the defaults alone, and those of each
/// kind with them.
pub(super) fn tell(file: &File, reader: &mut Reader) {
    let owns = std::iter::once(None).chain(file.kinds.values().map(Some));
    let mut any_names = false;
    for own in owns {
        let view = Merged { own: own.map(Arc::clone), defaults: file.defaults.clone() };
        variables(&view, reader);
        secrets(&view, file, reader);
        lookup(&view, reader);
        let has_names = has_names(&view);
        any_names |= has_names;
        if !has_names && let Some(private) = own.and_then(|own| own.private.as_ref()) {
            reader.wrong(private.line, NO_NAMES);
        }
    }
    // The defaults are for kinds that list names of their own as well.
    let private = file.defaults.as_ref().and_then(|defaults| defaults.private.as_ref());
    if let Some(private) = private.filter(|_| !any_names) {
        reader.wrong(private.line, NO_NAMES);
    }
}

fn has_names(view: &Merged) -> bool {
    let tcp = view.list(|section| section.common.tcp.as_ref());
    let udp = view.list(|section| section.common.udp.as_ref());
    let http = view.list(|section| section.common.http.as_ref());
    first_name(tcp).or(first_name(udp)).is_some() || http.iter().any(|it| it.value.host.is_names())
}

/// Returns the first peer that is a name.
fn first_name(peers: &[Said<Peer>]) -> Option<&Said<Peer>> {
    peers.iter().find(|peer| peer.value.host.is_names())
}

fn variables(view: &Merged, reader: &mut Reader) {
    let env = view.list(|section| section.env.as_ref());
    for secret in view.list(|section| section.secrets.as_ref()) {
        let variable = &secret.value.variable;
        if let Some(same) = env.iter().find(|it| it.value.name == *variable) {
            let what = format!(
                "the variable `{variable}` stands for a secret, and is granted in line {} as well",
                same.line
            );
            reader.wrong(secret.line, what);
        }
    }
}

fn secrets(view: &Merged, file: &File, reader: &mut Reader) {
    let tcp = view.list(|section| section.common.tcp.as_ref());
    let http = view.list(|section| section.common.http.as_ref());
    for secret in view.list(|section| section.secrets.as_ref()) {
        let name = &secret.value.name;
        if !file.secrets.contains_key(name) {
            let what = format!("there is no secret `{name}`; define it in [secret.{name}]");
            reader.wrong(secret.line, what);
        }
        for to in &secret.value.to {
            let is_reached = http.iter().any(|it| it.value.covers(&to.value))
                || tcp.iter().any(|it| it.value.covers_origin(&to.value));
            if !is_reached {
                let section = view.own.as_ref().or(view.defaults.as_ref());
                let what = format!(
                    "the secret `{name}` goes to {to}, and no request of {} does; add \"{to}\" to \
                     its http",
                    section.map_or("the kind", |section| &section.name),
                    to = to.value
                );
                reader.wrong(to.line, what);
            }
        }
    }
}

fn lookup(view: &Merged, reader: &mut Reader) {
    let lookup = view.pick(|section| section.common.lookup.as_ref());
    let Some(none) = lookup.filter(|lookup| lookup.said.value == Lookup::None) else { return };
    let tcp = first_name(view.list(|section| section.common.tcp.as_ref()));
    let udp = first_name(view.list(|section| section.common.udp.as_ref()));
    for (key, peer) in [("tcp", tcp), ("udp", udp)] {
        if let Some(peer) = peer {
            let what = format!(
                "lookup is \"none\", and {key} lists {} in line {}, a name that could not be looked up",
                peer.value, peer.line
            );
            reader.wrong(none.said.line, what);
        }
    }
}
