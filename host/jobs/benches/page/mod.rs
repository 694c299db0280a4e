//! What a sync costs on the device that a benchmark works on.

use std::{
    fs,
    io::{Seek as _, SeekFrom, Write as _},
    path::Path,
    time::Instant,
};

/// A file of which one page at a time is written and synced, and which does not grow.
pub(crate) struct Page(fs::File);

impl Page {
    pub(crate) fn new(folder: &Path) -> Self {
        let mut file = fs::File::create(folder.join("synced")).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        Self(file)
    }

    /// Returns how long a sync takes, in microseconds.
    pub(crate) fn sync_us(&mut self, turn: u64) -> f64 {
        self.0.seek(SeekFrom::Start(turn % 256 * 4096)).unwrap();
        self.0.write_all(&[2; 4096]).unwrap();
        let begun = Instant::now();
        self.0.sync_data().unwrap();
        begun.elapsed().as_secs_f64() * 1e6
    }
}
