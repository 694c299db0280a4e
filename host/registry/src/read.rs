//! Reading a task's output as text.
//!
//! A stream is consumed: what one read returned, the next does not. Final output
//! is the same every time. Characters are never split, and bytes that are no
//! text become replacement characters.

use std::{pin::pin, sync::Arc};

use crate::{
    Caller, Form, Registry, Snapshot, TaskId, Unknown,
    contain::{Contained, contain},
    output::{Held, Spool, Totals},
    registry::Inner,
    task::Task,
};

/// The most that one read returns, in bytes, whatever its caller asks for. A
/// writer may have to wait for a read, and this much is read in a millisecond.
const READ_BYTES: usize = 1 << 20;

/// The longest character of UTF-8, in bytes.
const CHARACTER_BYTES: usize = 4;

/// What a read returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The output. It begins with a line about what was dropped, if anything was.
    pub text: String,
    /// How many bytes between the last read and this one were dropped.
    pub dropped: u64,
    /// Whether there is more output already. For a final kind: whether the text
    /// was cut at the end.
    pub more: bool,
    /// The task. If it has ended, the end counts as told.
    pub snapshot: Snapshot,
}

impl Registry {
    /// Returns output as text.
    ///
    /// For a stream kind, that is what came since the last read; two reads at
    /// once get pieces that follow each other. For a final kind it is nothing
    /// while the task lives, and then the output, the same every time.
    ///
    /// `max_bytes` bounds how much of the task's own bytes is returned; less than
    /// 4 counts as 4, so that a character fits, and more than 1 MiB as 1 MiB.
    /// The text is at most three times as long, where no byte of it is text.
    ///
    /// # Errors
    ///
    /// [`Unknown`] if there is no such task for this caller.
    pub async fn read(
        &self,
        id: &TaskId,
        caller: &Caller,
        max_bytes: usize,
    ) -> Result<Read, Unknown> {
        let task = self.inner.find(id, caller)?;
        if task.form == Form::Stream {
            self.inner.drain(&task).await;
        }
        // Nothing below waits, so a read that is dropped has consumed nothing.
        // The state is taken before the text: an end that a read tells of comes
        // with all that was written before it.
        let snapshot = self.inner.tell_end(&task);
        let text = match (task.spool(crate::Stream::Output), task.form) {
            (None, _) => Text::default(),
            (Some(spool), Form::Stream) => consume(spool, max_bytes),
            (Some(spool), Form::Final) if snapshot.status.is_terminal() => whole(spool, max_bytes),
            (Some(_), Form::Final) => Text::default(),
        };
        let Text { text, dropped, more, .. } = text;
        Ok(Read { text: with_notice(text, dropped), dropped, more, snapshot })
    }
}

impl Inner {
    /// Has the work hand over its output, within the bound.
    async fn drain(&self, task: &Task) {
        let Some(drain) = task.drain() else { return };
        let late = pin!(self.shared.sleep(self.shared.config.drain));
        tokio::select! {
            biased;
            drained = drain => {
                if drained.is_err() {
                    self.shared.count_panic();
                }
            }
            // It may have ended, and then its output is there already.
            () = task.settled.notified() => {}
            () = late => {}
        }
    }

    /// Returns the task's snapshot; an end that it shows counts as told.
    fn tell_end(&self, task: &Arc<Task>) -> Snapshot {
        let then = {
            let mut body = task.body();
            body.state.is_terminal().then(|| body.report())
        };
        if let Some(then) = then {
            self.told(task, then);
            return task.snapshot();
        }
        let mut snapshot = task.snapshot();
        if snapshot.status.is_terminal() {
            // It ended in between. What it told at the end is there as well.
            let then = task.body().report();
            self.told(task, then);
            snapshot.reported = true;
        }
        snapshot
    }
}

impl Task {
    /// Returns what has the work hand over its output, if it needs that.
    pub(crate) fn drain(&self) -> Option<Contained<'static, ()>> {
        let control = self.control()?;
        match contain(|| control.drain()) {
            Ok(drain) => drain.map(Contained::new),
            Err(_) => {
                self.shared.count_panic();
                None
            }
        }
    }
}

/// Text out of a spool.
#[derive(Default)]
struct Text {
    text: String,
    dropped: u64,
    more: bool,
    /// Where the next read goes on.
    next: u64,
}

fn consume(spool: &Spool, max_bytes: usize) -> Text {
    let complete = spool.is_closed();
    spool.with_held(|held, totals| {
        let text = text(held, totals, held.cursor, max_bytes, complete);
        held.cursor = text.next;
        text
    })
}

fn whole(spool: &Spool, max_bytes: usize) -> Text {
    spool.with_held(|held, totals| text(held, totals, 0, max_bytes, true))
}

/// Returns the text from the offset on. Unless the output is complete, a
/// character that is not all there yet is left for the next time.
fn text(held: &mut Held, totals: &Totals, from: u64, max_bytes: usize, complete: bool) -> Text {
    let most = max_bytes.clamp(CHARACTER_BYTES, READ_BYTES);
    let mut bytes = Vec::new();
    let mut at = from;
    let mut dropped = 0;
    while bytes.len() < most {
        let Some(piece) = held.piece(at, most - bytes.len(), totals) else { break };
        if piece.dropped > 0 {
            if !bytes.is_empty() {
                // The spill file broke just now. The next read tells of it.
                break;
            }
            dropped += piece.dropped;
        }
        at = piece.offset + piece.bytes.len() as u64;
        bytes.extend_from_slice(&piece.bytes);
        if piece.bytes.is_empty() {
            break;
        }
    }
    let begin = at - bytes.len() as u64;
    // Where something was dropped, the rest of a character may have been left.
    let stump = if dropped > 0 { stump(&bytes) } else { 0 };
    dropped += stump as u64;
    let seen_all = at >= held.end();
    let (text, used) = decode(&bytes[stump..], complete && seen_all);
    Text { text, dropped, more: !seen_all, next: begin + (stump + used) as u64 }
}

/// Returns how many bytes at the beginning belong to a character that began before.
fn stump(bytes: &[u8]) -> usize {
    bytes.iter().take(CHARACTER_BYTES - 1).take_while(|byte| **byte & 0xC0 == 0x80).count()
}

/// Returns the bytes as text, and how many of them it stands for.
fn decode(bytes: &[u8], complete: bool) -> (String, usize) {
    let mut text = String::with_capacity(bytes.len());
    let mut used = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        used += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let cut = used + invalid.len() == bytes.len()
            && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if cut && !complete {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        used += invalid.len();
    }
    (text, used)
}

fn with_notice(text: String, dropped: u64) -> String {
    match dropped {
        0 => text,
        1 => format!("[1 byte of output was dropped here]\n{text}"),
        _ => format!("[{dropped} bytes of output were dropped here]\n{text}"),
    }
}
