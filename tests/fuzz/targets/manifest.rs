//! A manifest comes with a plugin, from anybody.

#![no_main]

use std::path::Path;

use backlot_fuzz::{
    policy::{Manifest, Policy},
    told_well, used_well,
};
use libfuzzer_sys::fuzz_target;

const POLICY: &str = "\
[kind.fetch]
dirs = ['/data:rw', '/in:ro']
env = ['LANG']
tcp = ['*.db:*', '10.0.0.0/8:*']
http = ['https://*.com:*']
lookup = 'any'
memory = '64MiB'
";

fuzz_target!(|text: &str| {
    match Manifest::parse(text, "fetch.toml") {
        Ok(manifest) => {
            let Ok(fetch) = "fetch".parse() else { return };
            let policy = Policy::parse(POLICY, "backlot.toml", Path::new("/"));
            for policy in [Policy::default()].into_iter().chain(policy) {
                used_well(&policy.rules(&fetch), Some(&manifest));
            }
        }
        Err(error) => told_well(&error, text),
    }
});
