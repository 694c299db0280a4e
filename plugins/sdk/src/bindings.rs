//! The only place that knows generated code: the contract in `wit/` as Rust.
//!
//! A world is generated for each export rather than those that `wit/` declares,
//! because each generated world brings the export macros of its interfaces with
//! it, and macros of one name can exist once in a crate. Exported together,
//! `lifecycle` and `output` make a component of the world `stream-producer`;
//! `lifecycle` alone makes one of the world `producer`; and with `steps` either is
//! stepped.

#![allow(missing_docs, reason = "what is generated has the documentation that `wit/` has")]

/// The world `producer`: the imported `host` and the exported `lifecycle`.
pub mod lifecycle {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "backlot:producer/producer",
        pub_export_macro: true,
        export_macro_name: "export_lifecycle",
    });
}

/// The export that only stream kinds have.
pub mod output {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package backlot:sdk;

            world streaming {
                export backlot:producer/output@0.1.0;
            }
        ",
        world: "backlot:sdk/streaming",
        pub_export_macro: true,
        export_macro_name: "export_output",
    });
}

/// The export that only stepped kinds have.
pub mod steps {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package backlot:sdk;

            world stepped {
                export backlot:producer/steps@0.1.0;
            }
        ",
        world: "backlot:sdk/stepped",
        with: {
            "backlot:producer/types@0.1.0": crate::bindings::lifecycle::backlot::producer::types,
        },
        pub_export_macro: true,
        export_macro_name: "export_steps",
    });
}

pub(crate) use lifecycle::backlot::producer::{host, types};
pub(crate) use lifecycle::exports::backlot::producer::lifecycle as exported_lifecycle;
pub(crate) use output::exports::backlot::producer::output as exported_output;
pub(crate) use steps::exports::backlot::producer::steps as exported_steps;
