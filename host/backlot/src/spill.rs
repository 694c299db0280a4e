//! Spill files: where output goes that does not fit into memory.
//!
//! A spill file has no name, so that nothing is left behind however the
//! process ends.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::PathBuf};

use backlot_registry::{SpillFile, SpillStore};

/// Unnamed files in one folder.
#[derive(Debug)]
pub(crate) struct TempSpill {
    pub(crate) dir: PathBuf,
}

impl SpillStore for TempSpill {
    fn create(&self) -> io::Result<Box<dyn SpillFile>> {
        Ok(Box::new(Unnamed(tempfile::tempfile_in(&self.dir)?)))
    }
}

struct Unnamed(File);

impl SpillFile for Unnamed {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }
}
