//! A policy may say anything; what is wrong with it is told, and the rest holds.

#![no_main]

use std::path::Path;

use backlot_fuzz::{
    policy::{Manifest, Policy},
    told_well, used_well,
};
use libfuzzer_sys::fuzz_target;

/// How many kinds of one policy are looked at.
const KINDS: usize = 4;

fuzz_target!(|text: &str| {
    match Policy::parse(text, "backlot.toml", Path::new("/etc/backlot")) {
        Ok(policy) => {
            let asks_for_little = Manifest::parse("dirs = ['*:ro']", "kind.toml").ok();
            let unnamed = "unnamed".parse().ok();
            for kind in policy.kinds().take(KINDS).chain(&unnamed) {
                used_well(&policy.rules(kind), None);
                used_well(&policy.rules(kind), asks_for_little.as_ref());
            }
        }
        Err(error) => told_well(&error, text),
    }
});
