//! How values of other crates are written down.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A value behind a pointer that is shared, written as the value.
pub(crate) mod shared {
    use super::*;

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &Arc<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        (**value).serialize(to)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(from).map(Arc::new)
    }
}

/// A kind, written as its name.
pub(crate) mod kind {
    use backlot_registry::Kind;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(kind.as_str())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
        Kind::new(&String::deserialize(from)?).map_err(de::Error::custom)
    }
}

/// The name of a kind, where there may be none.
pub(crate) mod some_kind {
    use backlot_registry::Kind;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(kind: &Option<Kind>, to: S) -> Result<S::Ok, S::Error> {
        kind.as_ref().map(Kind::as_str).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Kind>, D::Error> {
        let name = Option::<String>::deserialize(from)?;
        name.map(|name| Kind::new(&name)).transpose().map_err(de::Error::custom)
    }
}

/// A session, written as its name.
pub(crate) mod session {
    use backlot_registry::SessionId;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(id: &SessionId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(id.as_str())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SessionId, D::Error> {
        String::deserialize(from).map(Into::into)
    }
}

/// Why a run was started, written as a word.
pub(crate) mod cause {
    use backlot_registry::Cause;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(cause: &Cause, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match cause {
            Cause::Spawn => "spawn",
            Cause::Retry => "retry",
            Cause::Step => "step",
            Cause::Answer => "answer",
        })
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Cause, D::Error> {
        match String::deserialize(from)?.as_str() {
            "spawn" => Ok(Cause::Spawn),
            "retry" => Ok(Cause::Retry),
            "step" => Ok(Cause::Step),
            "answer" => Ok(Cause::Answer),
            other => Err(de::Error::unknown_variant(other, &["spawn", "retry", "step", "answer"])),
        }
    }
}
