//! W3C's `traceparent`: which trace work belongs to, and in which span it was asked for.

use std::{fmt, str::FromStr};

/// The trace that work belongs to, and the span that it was asked for in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace. It is never 0.
    pub trace: u128,
    /// The span. It is never 0.
    pub span: u64,
    /// Whether who asked records the trace.
    pub is_sampled: bool,
}

/// A text is not a `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no traceparent: write 00-TRACE-SPAN-FLAGS with 32, 16 and 2 hexadecimal digits \
     in lower case, of which neither trace nor span are zeros"
)]
pub struct InvalidTraceParent {
    /// The text as it was given, cut if it is long.
    pub text: String,
}

/// How long it is in the version that there is, in bytes.
const LENGTH: usize = 55;
/// The version that there is; of a later one as much is read as this has.
const VERSION: u8 = 0;
/// The version that is none.
const NO_VERSION: u8 = 0xff;
/// Among the flags: who asked records the trace.
const SAMPLED: u8 = 1;

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        parse(text).ok_or_else(|| InvalidTraceParent { text: text.chars().take(64).collect() })
    }
}

fn parse(text: &str) -> Option<TraceParent> {
    let (known, more) = text.split_at_checked(LENGTH)?;
    let mut parts = known.split('-');
    let mut digits = |count: usize| {
        let part = parts.next().filter(|part| part.len() == count)?;
        let is_hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then(|| u128::from_str_radix(part, 16).ok()).flatten()
    };
    let version = u8::try_from(digits(2)?).ok()?;
    let trace = digits(32)?;
    let span = u64::try_from(digits(16)?).ok()?;
    let flags = u8::try_from(digits(2)?).ok()?;
    let is_whole = match version {
        VERSION => more.is_empty(),
        NO_VERSION => false,
        _ => more.is_empty() || more.starts_with('-'),
    };
    let is_sampled = flags & SAMPLED == SAMPLED;
    (is_whole && trace != 0 && span != 0).then_some(TraceParent { trace, span, is_sampled })
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, span, is_sampled } = self;
        write!(f, "{VERSION:02x}-{trace:032x}-{span:016x}-{:02x}", u8::from(*is_sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn what_the_standard_has_is_read_and_written() {
        for (flags, is_sampled) in [("00", false), ("01", true), ("02", false), ("ff", true)] {
            let read: TraceParent = format!("00-{TRACE}-{SPAN}-{flags}").parse().unwrap();
            let (trace, span) = (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331);
            assert_eq!(read, TraceParent { trace, span, is_sampled });
            assert_eq!(read.to_string().parse(), Ok(read));
        }
        let written = format!("00-{TRACE}-{SPAN}-01");
        assert_eq!(written.parse::<TraceParent>().unwrap().to_string(), written);
    }

    #[test]
    fn a_later_version_may_have_more() {
        for later in ["", "-", "-more", "-01-x"] {
            format!("cc-{TRACE}-{SPAN}-01{later}").parse::<TraceParent>().unwrap();
        }
        for bad in [format!("cc-{TRACE}-{SPAN}-01x"), format!("ff-{TRACE}-{SPAN}-01")] {
            bad.parse::<TraceParent>().unwrap_err();
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let zeros = |count| "0".repeat(count);
        for bad in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01 "),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", zeros(32)),
            format!("00-{TRACE}-{}-01", zeros(16)),
            format!("0x-{TRACE}-{SPAN}-01"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("00-{SPAN}-{TRACE}-01"),
            format!("00-{TRACE}+{SPAN}-01"),
            format!("00-+{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{}-{SPAN}-01", "é".repeat(16)),
            "é".repeat(40),
        ] {
            let error = bad.parse::<TraceParent>().unwrap_err();
            assert!(error.text.chars().count() <= 64, "{error}");
        }
    }
}
