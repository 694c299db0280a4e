//! The recorded output of jobs: read after a restart, and by other processes.
//!
//! A job's folder has segment files, which only grow: `output.0`, `output.1` and so on
//! for what its producers wrote, `log.0` and so on for what is told about them. Output
//! and log are apart, each with a bound of its own, so that a flood of one does not push
//! out the other, and who wants one does not read through both. Of each there are at
//! most two segments. When both are full the older is dropped, and readers are told how
//! many bytes are gone.
//!
//! Bytes are counted from the job's beginning, over all its runs, in each of the two
//! parts. What could not be written is counted too, so it shows as dropped.
//!
//! What was appended survives the end of the process, however that ends; a power cut
//! survives only what was appended before [`Recorder::sync`].

mod recorder;
mod recording;
mod segment;

pub use recorder::{Limits, Recorder};
pub use recording::{Piece, Portion, Recording};

/// What bytes of a record are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output, and all output of work that knows no channels.
    Stdout,
    /// Standard error.
    Stderr,
    /// A line of the producer's log.
    Log,
    /// What the host notes.
    Note,
}

impl Stream {
    const ALL: [Self; 4] = [Self::Stdout, Self::Stderr, Self::Log, Self::Note];

    /// Returns the part that has this stream.
    pub fn part(self) -> Part {
        match self {
            Self::Stdout | Self::Stderr => Part::Output,
            Self::Log | Self::Note => Part::Log,
        }
    }
}

/// One of the two parts of what is recorded. Each counts its own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// What producers wrote.
    Output,
    /// What is told about them.
    Log,
}

impl Part {
    const ALL: [Self; 2] = [Self::Output, Self::Log];

    /// Returns the name of a segment of this part.
    fn file(self, number: u64) -> String {
        format!("{}.{number}", self.name())
    }

    /// Returns the number of a segment of this part, if that is one's name.
    fn number(self, file: &str) -> Option<u64> {
        let number: u64 = file.strip_prefix(self.name())?.strip_prefix('.')?.parse().ok()?;
        (self.file(number) == file).then_some(number)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Log => "log",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env, fs,
        io::ErrorKind,
        ops::Range,
        os::unix::fs::PermissionsExt as _,
        path::{Path, PathBuf},
        process::Command,
        thread,
    };

    use proptest::prelude::*;
    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::{
        segment::{HEAD, HEADER},
        *,
    };

    fn job() -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let job = outer.path().join("jobs/j1");
        (outer, job)
    }

    fn recorder(job: &Path) -> Recorder {
        Recorder::new(job, Limits::default())
    }

    /// Appends output of the first run.
    fn say(recorder: &mut Recorder, text: &[u8]) {
        recorder.append(1, Stream::Stdout, 1_000, text);
    }

    /// Returns the output from an offset on: what was dropped before each piece, and the
    /// piece.
    fn output(job: &Path, after: u64) -> Vec<(u64, String)> {
        pieces(&mut Recording::new(job), after)
    }

    fn pieces(recording: &mut Recording, after: u64) -> Vec<(u64, String)> {
        let portion = recording.read(Part::Output, after, usize::MAX).unwrap();
        let text =
            |piece: Piece| (piece.dropped, String::from_utf8_lossy(&piece.bytes).into_owned());
        portion.pieces.into_iter().map(text).collect()
    }

    fn told<const N: usize>(pieces: [(u64, &str); N]) -> Vec<(u64, String)> {
        pieces.map(|(dropped, text)| (dropped, text.to_owned())).into()
    }

    #[test]
    fn who_says_nothing_leaves_nothing() {
        let (outer, job) = job();
        let mut recorder = recorder(&job);
        recorder.append(1, Stream::Stdout, 1, b"");
        assert_eq!(recorder.end(Part::Output).unwrap(), 0);
        recorder.sync().unwrap();
        drop(recorder);
        assert!(!outer.path().join("jobs").exists());
        let mut recording = Recording::new(&job);
        assert_eq!(recording.read(Part::Output, 7, 10).unwrap().next, 7);
        assert_eq!(recording.end(Part::Log).unwrap(), 0);
        assert_eq!(recording.size().unwrap(), 0);
    }

    #[test]
    fn what_was_said_is_read_with_its_origin_over_all_runs() {
        let (_outer, job) = job();
        let mut first = recorder(&job);
        first.append(1, Stream::Stdout, 1_000, b"one");
        first.append(1, Stream::Stderr, 1_001, b"two");
        first.append(1, Stream::Log, 1_002, b"line");
        first.sync().unwrap();
        drop(first);
        let mut second = recorder(&job);
        assert_eq!(second.end(Part::Output).unwrap(), 6);
        second.append(2, Stream::Note, 2_000, b"again");
        second.rest();
        second.append(2, Stream::Stdout, 2_001, b"three");
        let piece = |offset, run, stream, time_ms, bytes: &str| Piece {
            offset,
            dropped: 0,
            run,
            stream,
            time_ms,
            bytes: bytes.into(),
        };
        let mut recording = Recording::new(&job);
        assert_eq!(
            recording.read(Part::Output, 0, 100).unwrap(),
            Portion {
                pieces: vec![
                    piece(0, 1, Stream::Stdout, 1_000, "one"),
                    piece(3, 1, Stream::Stderr, 1_001, "two"),
                    piece(6, 2, Stream::Stdout, 2_001, "three"),
                ],
                next: 11,
            }
        );
        assert_eq!(
            recording.read(Part::Log, 0, 100).unwrap(),
            Portion {
                pieces: vec![
                    piece(0, 1, Stream::Log, 1_002, "line"),
                    piece(4, 2, Stream::Note, 2_000, "again"),
                ],
                next: 9,
            }
        );
        assert_eq!(recording.end(Part::Output).unwrap(), 11);
        assert_eq!(recording.end(Part::Log).unwrap(), 9);
        let (heads, headers) = (2 * HEAD as u64, 5 * HEADER as u64);
        assert_eq!(recording.size().unwrap(), heads + headers + 20);
    }

    #[test]
    fn only_its_user_reads_what_a_job_wrote() {
        let (_outer, job) = job();
        say(&mut recorder(&job), b"text");
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(job.join("output.0")), 0o600);
        assert_eq!(mode(job), 0o700);
    }

    #[test]
    fn a_portion_is_bounded_and_cuts_only_what_comes_first() {
        let (_outer, job) = job();
        let mut recorder = recorder(&job);
        for text in ["four", "fiver", "six"] {
            say(&mut recorder, text.as_bytes());
        }
        let mut recording = Recording::new(&job);
        let mut read = |after, most| {
            let portion = recording.read(Part::Output, after, most).unwrap();
            let text = |piece: &Piece| String::from_utf8(piece.bytes.clone()).unwrap();
            (portion.pieces.iter().map(text).collect::<Vec<_>>().join("|"), portion.next)
        };
        assert_eq!(read(0, 8), ("four".into(), 4));
        assert_eq!(read(0, 9), ("four|fiver".into(), 9));
        assert_eq!(read(4, 2), ("fi".into(), 6));
        assert_eq!(read(6, 100), ("ver|six".into(), 12));
        assert_eq!(read(12, 100), (String::new(), 12));
        assert_eq!(read(5, 0), (String::new(), 5));
        // Back again, and to where nothing is yet.
        assert_eq!(read(1, 100), ("our|fiver|six".into(), 12));
        assert_eq!(read(99, 100), (String::new(), 99));
    }

    #[test]
    fn a_large_record_is_several() {
        let (_outer, job) = job();
        let text: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        say(&mut recorder(&job), &text);
        let portion = Recording::new(&job).read(Part::Output, 0, usize::MAX).unwrap();
        assert_eq!(portion.pieces.len(), 4);
        let all: Vec<u8> = portion.pieces.into_iter().flat_map(|piece| piece.bytes).collect();
        assert_eq!(all, text);
    }

    #[test]
    fn a_torn_tail_is_nothing_and_what_comes_after_it_is_whole() {
        let (_outer, job) = job();
        let mut first = recorder(&job);
        say(&mut first, b"one");
        say(&mut first, b"two");
        let whole = fs::read(job.join("output.0")).unwrap();
        say(&mut first, b"torn off");
        let torn = fs::read(job.join("output.0")).unwrap();
        drop(first);
        for len in whole.len()..torn.len() {
            fs::write(job.join("output.0"), &torn[..len]).unwrap();
            let mut follower = Recording::new(&job);
            assert_eq!(pieces(&mut follower, 0), told([(0, "one"), (0, "two")]), "{len}");
            say(&mut recorder(&job), b"three");
            // Whose header is there is missed.
            let dropped = if len < whole.len() + HEADER { 0 } else { 8 };
            assert_eq!(pieces(&mut follower, 6), told([(dropped, "three")]), "{len}");
            let all = told([(0, "one"), (0, "two"), (dropped, "three")]);
            assert_eq!(output(&job, 0), all, "{len}");
        }
    }

    #[test]
    fn a_segment_that_was_just_begun_is_begun_again() {
        let (_outer, job) = job();
        say(&mut recorder(&job), b"one");
        let all = fs::read(job.join("output.0")).unwrap();
        for len in 0..HEAD + HEADER {
            fs::write(job.join("output.0"), &all[..len]).unwrap();
            let mut follower = Recording::new(&job);
            assert_eq!(pieces(&mut follower, 0), told([]), "{len}");
            say(&mut recorder(&job), b"two");
            assert_eq!(pieces(&mut follower, 0), told([(0, "two")]), "{len}");
        }
    }

    #[test]
    fn what_is_damaged_is_dropped_and_the_rest_is_not() {
        let (_outer, job) = job();
        let mut first = recorder(&job);
        say(&mut first, b"one");
        let before = fs::read(job.join("output.0")).unwrap().len();
        say(&mut first, b"damaged");
        let after = fs::read(job.join("output.0")).unwrap().len();
        say(&mut first, b"two");
        let all = fs::read(job.join("output.0")).unwrap();
        drop(first);
        for at in before..after {
            let mut damaged = all.clone();
            damaged[at] ^= 0x10;
            fs::write(job.join("output.0"), &damaged).unwrap();
            assert_eq!(output(&job, 0), told([(0, "one"), (7, "two")]), "{at}");
            assert_eq!(output(&job, 5), told([(5, "two")]), "{at}");
            say(&mut recorder(&job), b"three");
            let (one, two, three) = ((0, "one"), (7, "two"), (0, "three"));
            assert_eq!(output(&job, 0), told([one, two, three]), "{at}");
        }
    }

    #[test]
    fn damage_that_is_large_is_passed() {
        let (_outer, job) = job();
        let mut recorder = recorder(&job);
        say(&mut recorder, b"one");
        let from = fs::read(job.join("output.0")).unwrap().len();
        say(&mut recorder, &[b'x'; 1_000_000]);
        let to = fs::read(job.join("output.0")).unwrap().len();
        say(&mut recorder, b"two");
        let mut bytes = fs::read(job.join("output.0")).unwrap();
        bytes[from..to].fill(0);
        fs::write(job.join("output.0"), &bytes).unwrap();
        assert_eq!(output(&job, 0), told([(0, "one"), (1_000_000, "two")]));
    }

    #[test]
    fn what_a_producer_writes_passes_for_no_frame() {
        let (_outer, job) = job();
        let mut recorder = recorder(&job);
        say(&mut recorder, b"true");
        let frames = fs::read(job.join("output.0")).unwrap();
        // It has got hold of the very file, and writes it out.
        say(&mut recorder, &frames[HEAD..]);
        say(&mut recorder, b"end");
        let mut bytes = fs::read(job.join("output.0")).unwrap();
        bytes[frames.len()] ^= 1;
        fs::write(job.join("output.0"), &bytes).unwrap();
        let dropped = (frames.len() - HEAD) as u64;
        assert_eq!(output(&job, 0), told([(0, "true"), (dropped, "end")]));
    }

    #[test]
    fn what_is_no_segment_is_left_alone() {
        let (_outer, job) = job();
        fs::create_dir_all(&job).unwrap();
        let foreign = b"a later version, or something else".to_vec();
        fs::write(job.join("output.3"), &foreign).unwrap();
        fs::write(job.join("output.x"), "").unwrap();
        fs::write(job.join("output.03"), "").unwrap();
        say(&mut recorder(&job), b"one");
        say(&mut recorder(&job), b"two");
        assert_eq!(output(&job, 0), told([(0, "one"), (0, "two")]));
        assert_eq!(fs::read(job.join("output.3")).unwrap(), foreign);
    }

    #[test]
    fn a_flood_of_the_log_leaves_the_output() {
        let (_outer, job) = job();
        let limits = Limits::total(64 << 10);
        assert_eq!((limits.output, limits.log), (56 << 10, 8 << 10));
        let mut recorder = Recorder::new(&job, limits);
        say(&mut recorder, b"kept");
        for _ in 0..10_000 {
            recorder.append(1, Stream::Log, 1, b"again and again");
        }
        assert_eq!(output(&job, 0), told([(0, "kept")]));
        let mut recording = Recording::new(&job);
        assert!(recording.size().unwrap() <= 64 << 10);
        let log = recording.read(Part::Log, 0, usize::MAX).unwrap();
        assert_eq!(log.next, 150_000);
        let kept: u64 = log.pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        assert_eq!(log.pieces[0].dropped, 150_000 - kept);
        assert!(kept > 1_000, "{kept}");
    }

    #[test]
    fn a_reader_that_was_left_behind_is_told_what_it_missed() {
        let (_outer, job) = job();
        let mut recorder = Recorder::new(&job, Limits { output: 2 << 10, log: 0 });
        let mut follower = Recording::new(&job);
        say(&mut recorder, &[b'a'; 100]);
        assert_eq!(follower.read(Part::Output, 0, 50).unwrap().next, 50);
        for _ in 0..100 {
            say(&mut recorder, &[b'b'; 100]);
        }
        let mut at = 50;
        let (mut read, mut dropped) = (0, 0);
        while at < 10_100 {
            let portion = follower.read(Part::Output, at, 70).unwrap();
            assert!(portion.next > at);
            at = portion.next;
            read += portion.pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>();
            dropped += portion.pieces.iter().map(|piece| piece.dropped).sum::<u64>();
        }
        assert_eq!(read as u64 + dropped, 10_050);
        assert!(dropped > 5_000 && read > 500, "{read} of 10050");
    }

    #[test]
    fn a_reader_beside_the_writer_sees_whole_records_only() {
        const TOTAL: u64 = 4 << 20;
        let byte = |offset: u64| (offset % 251) as u8;
        let (_outer, job) = job();
        let folder = job.clone();
        let writer = thread::spawn(move || {
            let mut recorder = Recorder::new(&folder, Limits { output: 64 << 10, log: 0 });
            let mut at = 0;
            while at < TOTAL {
                let until = TOTAL.min(at + 1 + at % 3_001);
                let text: Vec<u8> = (at..until).map(byte).collect();
                say(&mut recorder, &text);
                at = until;
            }
            assert!(recorder.trouble().is_none());
        });
        let mut recording = Recording::new(&job);
        let mut at = 0;
        while at < TOTAL {
            let portion = recording.read(Part::Output, at, 10_000).unwrap();
            for piece in portion.pieces {
                assert_eq!(piece.offset, at + piece.dropped);
                let end = piece.offset + piece.bytes.len() as u64;
                assert!((piece.offset..end).map(byte).eq(piece.bytes));
                at = end;
            }
            assert_eq!(portion.next, at);
            // It may have failed, and then would be waited for in vain.
            assert!(
                at == TOTAL
                    || !writer.is_finished()
                    || recording.end(Part::Output).unwrap() == TOTAL
            );
        }
        writer.join().unwrap();
    }

    #[test]
    fn where_the_folder_is_gone_there_is_nothing() {
        let (_outer, job) = job();
        let mut recorder = recorder(&job);
        say(&mut recorder, b"one");
        let mut follower = Recording::new(&job);
        assert_eq!(pieces(&mut follower, 0), told([(0, "one")]));
        crate::files::remove(&job).unwrap();
        assert_eq!(pieces(&mut follower, 3), told([]));
        assert_eq!(output(&job, 0), told([]));
        recorder.rest();
        say(&mut recorder, b"into nothing");
        assert_eq!(recorder.trouble().unwrap().kind(), ErrorKind::NotFound);
        // Who goes on regardless begins anew, behind what was.
        say(&mut recorder, b"two");
        assert!(recorder.trouble().is_none());
        assert_eq!(output(&job, 0), told([(15, "two")]));
    }

    #[test]
    fn a_folder_that_cannot_be_made_loses_output_and_says_how_much() {
        let (outer, job) = job();
        let blocker = outer.path().join("jobs");
        fs::write(&blocker, "").unwrap();
        let mut recorder = recorder(&job);
        say(&mut recorder, b"lost");
        say(&mut recorder, b"too");
        assert!(recorder.trouble().is_some());
        assert_eq!(recorder.lost(), 7);
        assert!(recorder.end(Part::Output).is_err());
        assert!(recorder.sync().is_err());
        fs::remove_file(&blocker).unwrap();
        recorder.sync().unwrap();
        assert_eq!(recorder.lost(), 0);
        assert_eq!(output(&job, 0), told([(7, "")]));
        say(&mut recorder, b"kept");
        assert!(recorder.trouble().is_none());
        assert_eq!(output(&job, 0), told([(7, ""), (0, "kept")]));
        assert_eq!(output(&job, 3), told([(4, ""), (0, "kept")]));
    }

    /// In a process of its own, whose files may not grow past some size: what is said
    /// then is like what is said of a full disk, and part of a record is written.
    #[test]
    fn a_full_disk_loses_what_it_must() {
        let (_outer, job) = job();
        let test = "output::tests::records_on_a_full_disk";
        // The signal would end it, and is ignored beyond this shell.
        let ended = Command::new("sh")
            .args(["-c", "trap '' XFSZ && exec \"$0\" \"$@\""])
            .arg(env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env("FULL_FOLDER", &job)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        let about = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && said.contains("1 passed"), "{said}{about}");
        let all = told([(0, "before"), (21, "small"), (10, "after"), (4, "")]);
        assert_eq!(output(&job, 0), all);
    }

    #[test]
    #[ignore = "another test runs it, in a process of its own"]
    fn records_on_a_full_disk() {
        let job = PathBuf::from(env::var_os("FULL_FOLDER").unwrap());
        let room = |bytes| {
            setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
        };
        let mut recorder = recorder(&job);
        say(&mut recorder, b"before");
        let len = || fs::metadata(job.join("output.0")).unwrap().len();
        let full = len();
        room(Some(full + HEADER as u64 + 5));
        say(&mut recorder, b"too large to go there");
        assert!(recorder.trouble().is_some());
        assert_eq!(len(), full);
        say(&mut recorder, b"small");
        assert!(recorder.trouble().is_none());
        say(&mut recorder, b"nothing");
        say(&mut recorder, b"now");
        assert_eq!(recorder.lost(), 10);
        room(None);
        say(&mut recorder, b"after");
        assert_eq!(recorder.lost(), 0);
        room(Some(len()));
        say(&mut recorder, b"last");
        assert_eq!(recorder.lost(), 4);
        room(None);
        // What nothing follows is told at the end.
        drop(recorder);
    }

    #[derive(Clone, Debug)]
    enum Act {
        Append {
            stream: Stream,
            len: usize,
        },
        Again,
        /// The process is killed, and so much of the newest output is gone.
        Kill {
            cut: u64,
        },
        Read {
            after: u64,
            most: usize,
        },
    }

    fn act() -> impl Strategy<Value = Act> {
        let stream = prop::sample::select(Stream::ALL.to_vec());
        prop_oneof![
            12 => (stream, 0..600_usize).prop_map(|(stream, len)| Act::Append { stream, len }),
            1 => Just(Act::Again),
            1 => (0..400_u64).prop_map(|cut| Act::Kill { cut }),
            4 => (0..20_000_u64, 1..3_000_usize).prop_map(|(after, most)| Act::Read { after, most }),
        ]
    }

    /// What a part must have been told, byte by byte; `None` for what was lost.
    #[derive(Default)]
    struct Model {
        bytes: Vec<Option<u8>>,
        /// How many bytes of files it took.
        files: u64,
    }

    impl Model {
        fn check(&self, portion: &Portion, after: u64, may_be_dropped: bool) {
            let mut at = after;
            for piece in &portion.pieces {
                assert_eq!(piece.offset, at + piece.dropped);
                if !may_be_dropped {
                    assert!(self.range(at..piece.offset).iter().all(Option::is_none));
                }
                at = piece.offset + piece.bytes.len() as u64;
                let bytes: Vec<_> = piece.bytes.iter().copied().map(Some).collect();
                assert_eq!(self.range(piece.offset..at), bytes);
            }
            assert_eq!(portion.next, at);
        }

        fn range(&self, range: Range<u64>) -> &[Option<u8>] {
            &self.bytes[range.start as usize..range.end as usize]
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn what_is_read_is_what_was_said_and_what_is_not_is_counted(
            acts in prop::collection::vec(act(), 1..120),
        ) {
            let (_outer, job) = job();
            let limits = Limits { output: 8 << 10, log: 4 << 10 };
            let mut models = [Model::default(), Model::default()];
            let mut recorder = Recorder::new(&job, limits);
            let mut follower = Recording::new(&job);
            let mut followed = 0;
            let mut seed = 0_u8;
            for act in acts {
                match act {
                    Act::Append { stream, len } => {
                        let text: Vec<u8> = (0..len).map(|at| seed ^ (at % 249) as u8).collect();
                        seed = seed.wrapping_add(7);
                        recorder.append(1, stream, 1, &text);
                        prop_assert!(recorder.trouble().is_none());
                        let model = &mut models[stream.part() as usize];
                        model.bytes.extend(text.into_iter().map(Some));
                        model.files += (len + HEADER + HEAD) as u64;
                    }
                    Act::Again => {
                        drop(recorder);
                        recorder = Recorder::new(&job, limits);
                    }
                    Act::Kill { cut } => {
                        drop(recorder);
                        if let Some(last) = segment::numbers(&job, Part::Output).unwrap().last() {
                            let file = fs::OpenOptions::new()
                                .write(true)
                                .open(job.join(Part::Output.file(*last)))
                                .unwrap();
                            let len = file.metadata().unwrap().len();
                            file.set_len(len.saturating_sub(cut)).unwrap();
                        }
                        let whole = Recording::new(&job).end(Part::Output).unwrap();
                        recorder = Recorder::new(&job, limits);
                        let end = recorder.end(Part::Output).unwrap();
                        let model = &mut models[0];
                        prop_assert!(whole <= end && end <= model.bytes.len() as u64);
                        model.bytes.truncate(end as usize);
                        model.bytes[whole as usize..].fill(None);
                        // No host kills what was written long ago. Readers begin again.
                        follower = Recording::new(&job);
                        followed = followed.min(end);
                    }
                    Act::Read { after, most } => {
                        for part in Part::ALL {
                            let model = &models[part as usize];
                            let after = after.min(model.bytes.len() as u64);
                            let portion = Recording::new(&job).read(part, after, most).unwrap();
                            let bytes: usize =
                                portion.pieces.iter().map(|piece| piece.bytes.len()).sum();
                            prop_assert!(bytes <= most);
                            let limit = if part == Part::Output { limits.output } else { limits.log };
                            model.check(&portion, after, model.files > limit / 2);
                        }
                        let portion = follower.read(Part::Output, followed, most).unwrap();
                        models[0].check(&portion, followed, models[0].files > limits.output / 2);
                        followed = portion.next;
                    }
                }
                let size = Recording::new(&job).size().unwrap();
                prop_assert!(size <= limits.output + limits.log, "{size}");
            }
            drop(recorder);
            for part in Part::ALL {
                let model = &models[part as usize];
                let portion = Recording::new(&job).read(part, 0, usize::MAX).unwrap();
                let limit = if part == Part::Output { limits.output } else { limits.log };
                model.check(&portion, 0, model.files > limit / 2);
                prop_assert_eq!(portion.next, model.bytes.len() as u64);
            }
        }
    }
}
