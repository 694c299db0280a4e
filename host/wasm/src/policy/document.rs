//! TOML files read with the line of everything, and all that is wrong with one
//! told at once.
//!
//! What is read may come from anybody: its size, its nesting and what is told of
//! it are bounded.

use std::{
    borrow::Cow, collections::HashSet, fmt, ops::Range, str::FromStr, sync::Arc, time::Duration,
};

use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};
use toml_parser::{Source, lexer::TokenKind};

/// How many problems of one file are told: what a person mends at a sitting.
const PROBLEMS: usize = 20;
/// How long one problem may be, in bytes; it quotes what the file says.
const PROBLEM_BYTES: usize = 300;
/// How deep tables and arrays may be in one another. The deepest that means
/// anything are the servers of a secret, at five.
const DEPTH: usize = 16;
/// How many entries a list has room for. Every one is looked at by every start.
const ENTRIES: usize = 256;

/// What is wrong with a file, a line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PolicyError {
    /// What was found, in the order of the lines.
    pub problems: Vec<Problem>,
    /// How many more problems there are.
    pub more: usize,
}

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The name of the file.
    pub source: Arc<str>,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it, and what would be right. One line.
    pub what: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, problem) in self.problems.iter().enumerate() {
            let between = if nth == 0 { "" } else { "\n" };
            write!(f, "{between}{problem}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.source, self.line, self.what)
    }
}

/// A value, and the line that says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said<T> {
    /// What is said.
    pub value: T,
    /// The line, counted from 1.
    pub line: usize,
}

/// A key that lists things; `None` where the key is missing.
pub type List<T> = Option<Said<Vec<Said<T>>>>;

/// A value of the file, with where it stands.
pub type Value<'a> = Spanned<DeValue<'a>>;

/// Reads one file, and collects what is wrong with it.
#[derive(Debug)]
pub struct Reader {
    source: Arc<str>,
    /// Where each line but the first begins.
    breaks: Vec<usize>,
    problems: Vec<Problem>,
    told: HashSet<(usize, String)>,
    more: usize,
}

impl Reader {
    /// Reads the tables of a file of at most that many bytes, as far as it is TOML.
    ///
    /// # Errors
    ///
    /// When the file is too large, too deep, or no TOML.
    pub fn open<'a>(
        text: &'a str,
        source: &str,
        most: usize,
    ) -> Result<(Self, DeTable<'a>), PolicyError> {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let mut reader = Self {
            source: source.into(),
            breaks: match text.len() > most {
                true => Vec::new(),
                false => breaks.map(|(at, _)| at + 1).collect(),
            },
            problems: Vec::new(),
            told: HashSet::new(),
            more: 0,
        };
        if text.len() > most {
            let what = format!("the file has {} bytes, and the most is {most}", text.len());
            reader.wrong(1, what);
            return Err(reader.error());
        }
        if let Some(at) = too_deep(text) {
            let what = format!("tables and arrays may be {DEPTH} deep in one another at most");
            reader.wrong(reader.line(at), what);
            return Err(reader.error());
        }
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut readable = true;
        for error in errors {
            let at = error.span().map_or(text.len(), |span| span.start);
            // The table has the first of them, and all else that there is.
            readable &= error.message() == "duplicate key";
            reader.wrong(reader.line(at), error.message());
        }
        match readable {
            true => Ok((reader, table.into_inner())),
            false => Err(reader.error()),
        }
    }

    /// Returns the name of the file.
    pub fn source(&self) -> Arc<str> {
        Arc::clone(&self.source)
    }

    /// Returns the line at that offset.
    pub fn line(&self, at: usize) -> usize {
        self.breaks.partition_point(|start| *start <= at) + 1
    }

    /// Returns the line at which something begins.
    pub fn line_of<T>(&self, spanned: &Spanned<T>) -> usize {
        self.line(spanned.span().start)
    }

    /// Notes that something is wrong, once.
    pub fn wrong(&mut self, line: usize, what: impl Into<String>) {
        if self.problems.len() == PROBLEMS {
            self.more += 1;
            return;
        }
        let what = line_of(&what.into());
        if self.told.insert((line, what.clone())) {
            self.problems.push(Problem { source: self.source(), line, what });
        }
    }

    /// Tells whether nothing is wrong so far.
    pub fn is_right(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns all that is wrong.
    pub fn error(mut self) -> PolicyError {
        self.problems.sort_by_key(|problem| problem.line);
        PolicyError { problems: self.problems, more: self.more }
    }

    /// Notes that there is no such key, and which may be meant.
    pub fn unknown(&mut self, span: Range<usize>, key: &str, of: &str, known: &[&str]) {
        let line = self.line(span.start);
        if self.problems.len() == PROBLEMS {
            // Nobody reads what might be meant by thousands of keys.
            return self.wrong(line, "");
        }
        let meant = (key.len() <= 32)
            .then(|| {
                let distance = |known: &&&str| strsim::osa_distance(known, key);
                known.iter().min_by_key(distance).filter(|known| {
                    distance(known) <= 2.min(known.len() / 2) || known.replace('-', "_") == key
                })
            })
            .flatten();
        self.wrong(
            line,
            match meant {
                Some(meant) => format!("{of} has no key `{key}`; did you mean `{meant}`?"),
                None => format!("{of} has no key `{key}`; it has {}", known.join(", ")),
            },
        );
    }

    /// Returns the table, unless the value is none.
    pub fn table<'v, 'a>(&mut self, key: &str, value: &'v Value<'a>) -> Option<&'v DeTable<'a>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.not_a("a table", key, value);
        }
        table
    }

    /// Returns the text, unless the value is none.
    pub fn text<'v>(&mut self, key: &str, value: &'v Value<'_>) -> Option<&'v str> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.not_a("a text", key, value);
        }
        text
    }

    /// Returns what `read` makes of the text. What it cannot read is told.
    pub fn read<T>(
        &mut self,
        key: &str,
        value: &Value<'_>,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.text(key, value)?;
        read(text).map_err(|why| self.wrong(self.line_of(value), format!("{key}: {why}"))).ok()
    }

    /// Returns what [`FromStr`] makes of the text. What it cannot read is told.
    pub fn parse<T: FromStr<Err: fmt::Display>>(
        &mut self,
        key: &str,
        value: &Value<'_>,
    ) -> Option<T> {
        self.read(key, value, |text| text.parse().map_err(|error: T::Err| error.to_string()))
    }

    /// Returns the entries that can be read, each with its line.
    pub fn list<T>(
        &mut self,
        key: &str,
        value: &Value<'_>,
        mut entry: impl FnMut(&mut Self, &Value<'_>) -> Option<T>,
    ) -> List<T> {
        let line = self.line_of(value);
        let Some(array) = value.get_ref().as_array() else {
            self.not_a("a list", key, value);
            return None;
        };
        if array.len() > ENTRIES {
            self.wrong(
                line,
                format!("{key} has {} entries, and the most is {ENTRIES}", array.len()),
            );
            return None;
        }
        Some(Said { value: self.entries(array, &mut entry), line })
    }

    fn entries<T>(
        &mut self,
        array: &DeArray<'_>,
        entry: &mut impl FnMut(&mut Self, &Value<'_>) -> Option<T>,
    ) -> Vec<Said<T>> {
        let mut entries = Vec::with_capacity(array.len());
        for value in array {
            let line = self.line_of(value);
            entries.extend(entry(self, value).map(|value| Said { value, line }));
        }
        entries
    }

    /// Returns the list of what [`FromStr`] makes of its texts.
    pub fn parsed<T: FromStr<Err: fmt::Display>>(
        &mut self,
        key: &str,
        value: &Value<'_>,
    ) -> List<T> {
        self.list(key, value, |reader, value| reader.parse(key, value))
    }

    /// Returns the number, unless the value is none that is not negative.
    pub fn number(&mut self, key: &str, value: &Value<'_>) -> Option<u64> {
        let number = value
            .get_ref()
            .as_integer()
            .and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok());
        if number.is_none() {
            self.not_a("a whole number that is not negative", key, value);
        }
        number
    }

    /// Returns the size in bytes: a number, or a text as the command line has it.
    pub fn size(&mut self, key: &str, value: &Value<'_>) -> Option<u64> {
        if value.get_ref().is_integer() {
            return self.number(key, value);
        }
        let read = |text: &str| match text.parse::<bytesize::ByteSize>() {
            // What is past all numbers is read as the largest one.
            Ok(size) if size.0 == u64::MAX => Err("the size is too large".to_owned()),
            Ok(size) => Ok(size.0),
            Err(_) => Err(format!("`{text}` is no size; write one such as \"64MiB\" or 65536")),
        };
        match value.get_ref().as_str() {
            Some(_) => self.read(key, value, read),
            None => {
                self.not_a("a size such as \"64MiB\" or 65536", key, value);
                None
            }
        }
    }

    /// Returns the duration: a text as the command line has it.
    pub fn duration(&mut self, key: &str, value: &Value<'_>) -> Option<Duration> {
        let read = |text: &str| {
            humantime::parse_duration(text).map_err(|_| {
                format!("`{text}` is no duration; write one such as \"500ms\" or \"60s\"")
            })
        };
        match value.get_ref().as_str() {
            Some(_) => self.read(key, value, read),
            None => {
                self.not_a("a duration such as \"500ms\" or \"60s\"", key, value);
                None
            }
        }
    }

    /// Returns whether it is true, unless the value says neither.
    pub fn truth(&mut self, key: &str, value: &Value<'_>) -> Option<bool> {
        let truth = value.get_ref().as_bool();
        if truth.is_none() {
            self.not_a("true or false", key, value);
        }
        truth
    }

    fn not_a(&mut self, wanted: &str, key: &str, value: &Value<'_>) {
        let found = match value.get_ref() {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a number",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        let found = match value.get_ref().as_integer() {
            Some(number) if wanted.contains("number") => Cow::Owned(format!("{number}")),
            _ => Cow::Borrowed(found),
        };
        self.wrong(self.line_of(value), format!("{key} is {found}, wanted {wanted}"));
    }
}

/// Returns where tables and arrays are too deep in one another, if they are
/// anywhere. A key with dots is as deep as it has parts.
fn too_deep(text: &str) -> Option<usize> {
    let (mut open, mut dots) = (0_usize, 0_usize);
    for token in Source::new(text).lex() {
        match token.kind() {
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => {
                (open, dots) = (open + 1, 0);
            }
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => {
                (open, dots) = (open.saturating_sub(1), 0);
            }
            TokenKind::Dot => dots += 1,
            TokenKind::Equals | TokenKind::Comma | TokenKind::Newline | TokenKind::Comment => {
                dots = 0;
            }
            _ => {}
        }
        if open + dots > DEPTH {
            return Some(token.span().start());
        }
    }
    None
}

/// Returns the text as one line of bounded length without control characters.
pub(super) fn line_of(text: &str) -> String {
    let end = text.floor_char_boundary(PROBLEM_BYTES.min(text.len()));
    let mut line = text[..end].replace(char::is_control, " ");
    if end < text.len() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let error = match Reader::open(text, "f.toml", 1 << 20) {
            Ok((reader, _)) => reader.error(),
            Err(error) => error,
        };
        error.problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        let told = problems("a = 1\n\nb = \n[c\n");
        assert!(told[0].starts_with("f.toml:3: "), "{told:?}");
        assert!(told.iter().any(|line| line.starts_with("f.toml:4: ")), "{told:?}");
        assert_eq!(problems("a = 1\nb = 2\na = 3"), ["f.toml:3: duplicate key"]);
    }

    #[test]
    fn nesting_is_bounded_before_it_is_followed() {
        let deep = "tables and arrays may be 16 deep in one another at most";
        for text in [
            format!("\na = {}", "[".repeat(100_000)),
            format!("\na = {}", "{a=".repeat(100_000)),
            format!("\n[{}]", vec!["a"; 100_000].join(".")),
            format!("\n{} = 1", vec!["a"; 100_000].join(" . ")),
            format!("\n{} = 1", vec!["\"a\""; 100_000].join(".")),
        ] {
            assert_eq!(problems(&text), [format!("f.toml:2: {deep}")]);
        }
        assert_eq!(
            problems("a = [\"1.2.3.4.5.6.7.8.9.0.1.2.3.4.5.6.7.8.9\"] # ..................."),
            [""; 0]
        );
    }

    #[test]
    fn a_large_file_is_not_read_and_many_problems_are_counted() {
        let error = Reader::open(&"#".repeat(65), "f.toml", 64).err().unwrap();
        assert_eq!(error.to_string(), "f.toml:1: the file has 65 bytes, and the most is 64");
        let error = Reader::open(&"!\n".repeat(1000), "f.toml", 1 << 20).err().unwrap();
        assert_eq!(error.problems.len(), 20);
        assert!(
            error.more >= 900 && error.to_string().ends_with(&format!("\nand {} more", error.more))
        );
    }

    #[test]
    fn what_a_file_says_cannot_pass_for_another_line() {
        assert_eq!(line_of("a\nb\x1b[2J"), "a b [2J");
        let long = line_of(&"é".repeat(1000));
        assert!(long.len() <= PROBLEM_BYTES + '…'.len_utf8(), "{}", long.len());
    }
}
