//! Pipes whose reader goes away: quiet ends, whatever the command.

use backlot_tests::{Process, kind};

/// Runs `backlot` into what reads its stdout, and returns its exit code, its stderr
/// and what the reader wrote.
fn piped(args: &[&str], reader: &str) -> (i32, String, String) {
    let kinds = kind("ticker").parent().unwrap().display().to_string();
    let script = format!(r#"{{ "$@"; echo "code $?" >&2; }} | {reader}"#);
    let args = args.iter().copied().chain(["--plugins", &kinds]);
    let ended = Process::shell(&script, args).wait();
    let (errors, code) = ended.stderr.trim_end().rsplit_once("code ").unwrap();
    (code.parse().unwrap(), errors.to_owned(), ended.stdout)
}

/// C93: whether the reader takes a line, a byte or nothing at all.
#[test]
fn c93_a_closed_pipe_is_not_a_crash() {
    let noop = kind("noop").display().to_string();
    let endless = r#"{"count":100000000,"every_ms":1}"#;
    let cases: &[(&[&str], &str, &str)] = &[
        (&["run", "ticker", "--input", endless], "head -1", "line 1\n"),
        (&["run", "ticker", "--input", endless], "head -c 3", "lin"),
        (&["run", "ticker", "--input", endless], "grep -m1 'line 7'", "line 7\n"),
        (&["run", "ticker", "--json", "--input", endless], "grep -m1 -o 'line 7'", "line 7\n"),
        (&["run", "ticker", "--input", endless], "true", ""),
        (&["run", "ticker", "--json", "--input", endless], "true", ""),
        (&["run", "faulty", "--input", r#"{"mode":"flood"}"#], "head -1", "line 1\n"),
        (&["kinds"], "head -1 | cut -f1", "checksum\n"),
        (&["kinds"], "true", ""),
        (&["kinds", "--json"], "true", ""),
        (&["kinds", "--json"], "head -c 2", "{\""),
        (&["check", &noop, &noop, &noop], "true", ""),
        (&["check", "--json", &noop, &noop, &noop], "true", ""),
        (&["check", "--json", &noop], "head -c 2", "{\""),
        (&["doctor", "--json"], "true", ""),
        (&["doctor"], "true", ""),
    ];
    for (args, reader, read) in cases {
        let (code, errors, seen) = piped(args, reader);
        let what = format!("{args:?} | {reader}: {code} {errors}");
        assert!(matches!(code, 0 | 141), "{what}");
        assert_eq!(seen, *read, "{what}");
        for word in ["panicked", "RUST_BACKTRACE", "Broken pipe", "os error"] {
            assert!(!errors.contains(word), "{what}");
        }
    }
}
