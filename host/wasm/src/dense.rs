//! Linear memories that take one mapping each.
//!
//! wasmtime's own would take two, so that a memory has room to grow without being
//! copied. These are moved by the kernel instead, which moves entries of page
//! tables, copies nothing and touches nothing.
#![allow(unsafe_code, reason = "memories of guests are mapped by hand")]

use std::{ffi::c_void, io, ptr, ptr::NonNull};

use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
};
use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

/// Makes such memories.
pub(crate) struct Memories;

// SAFETY: every memory is a mapping of its own, zeroed by the kernel, of at least
// the size that it tells, and nobody else knows its address.
unsafe impl MemoryCreator for Memories {
    fn new_memory(
        &self,
        _: MemoryType,
        minimum: usize,
        _: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        // Compiled code relies on these, and the settings ask for neither.
        if reserved.is_some_and(|bytes| bytes > 0) || guard > 0 {
            return Err("memories of this profile have neither reserve nor guard".to_owned());
        }
        let mut memory = Memory { start: NonNull::dangling(), size: 0 };
        memory.resize(minimum).map_err(|error| error.to_string())?;
        Ok(Box::new(memory))
    }
}

/// A mapping of `size` bytes, or none at all while that is 0. Pages of guests are
/// larger than those of the machine, so every size is one that can be mapped.
struct Memory {
    start: NonNull<c_void>,
    size: usize,
}

// SAFETY: the mapping belongs to this value alone, and mappings are of the process
// and not of a thread.
unsafe impl Send for Memory {}
// SAFETY: as above; what is shared of it only reads the two numbers.
unsafe impl Sync for Memory {}

impl Memory {
    fn resize(&mut self, size: usize) -> io::Result<()> {
        let start = match (self.size, size) {
            (from, to) if from == to => return Ok(()),
            (0, _) => map(size)?,
            // SAFETY: the old range is this value's own mapping, which nothing
            // points into by the contract of `LinearMemory::grow_to`.
            _ => unsafe { mremap(self.start.as_ptr(), self.size, size, MremapFlags::MAYMOVE)? },
        };
        self.start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at null"))?;
        self.size = size;
        Ok(())
    }
}

fn map(size: usize) -> io::Result<*mut c_void> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice concerns nobody.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), size, access, flags)? };
    // A guest that touches a byte must not hold a huge page. Kernels without such
    // pages refuse the advice, and need none.
    // SAFETY: the advice is about the mapping that was just made.
    let _ = unsafe { madvise(start, size, Advice::LinuxNoHugepage) };
    Ok(start)
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.size > 0 {
            // It fails only for ranges that no mapping can be.
            // SAFETY: the range is this value's own mapping, and this its end.
            let _ = unsafe { munmap(self.start.as_ptr(), self.size) };
        }
    }
}

// SAFETY: `size` bytes from `as_ptr` are mapped for reading and writing until the
// next `grow_to`, and those that it adds are zero.
unsafe impl LinearMemory for Memory {
    fn byte_size(&self) -> usize {
        self.size
    }

    fn byte_capacity(&self) -> usize {
        self.size
    }

    fn grow_to(&mut self, size: usize) -> wasmtime::Result<()> {
        Ok(self.resize(size)?)
    }

    fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 64 << 10;

    fn memory(size: usize) -> Box<dyn LinearMemory> {
        let ty = MemoryType::new(0, None);
        Memories.new_memory(ty, size, None, Some(0), 0).unwrap()
    }

    #[test]
    fn a_memory_keeps_its_bytes_while_it_grows_and_new_ones_are_zero() {
        let mut memory = memory(PAGE);
        // Neighbours, so that it cannot grow where it is.
        let _others: Vec<_> = (0..4).map(|_| self::memory(PAGE)).collect();
        // SAFETY: both offsets are below the size.
        unsafe { memory.as_ptr().add(PAGE - 1).write(7) };
        for pages in [2, 3, 64, 1024] {
            memory.grow_to(pages * PAGE).unwrap();
            assert_eq!(memory.byte_size(), pages * PAGE);
            // SAFETY: both offsets are below the size.
            let (kept, new) = unsafe {
                (memory.as_ptr().add(PAGE - 1).read(), memory.as_ptr().add(pages * PAGE - 1).read())
            };
            assert_eq!((kept, new), (7, 0));
        }
    }

    #[test]
    fn an_empty_memory_takes_nothing_and_can_grow() {
        let mut memory = memory(0);
        assert_eq!(memory.byte_size(), 0);
        memory.grow_to(PAGE).unwrap();
        // SAFETY: the offset is below the size.
        unsafe { memory.as_ptr().write(1) };
    }

    #[test]
    fn what_cannot_be_had_is_an_error_and_leaves_the_memory_as_it_was() {
        let mut memory = memory(PAGE);
        assert!(memory.grow_to(1 << 60).is_err());
        assert_eq!(memory.byte_size(), PAGE);
        // SAFETY: the offset is below the size.
        unsafe { memory.as_ptr().write(1) };
    }

    #[test]
    fn a_reserve_or_a_guard_that_would_not_be_there_is_refused() {
        let ty = || MemoryType::new(0, None);
        assert!(Memories.new_memory(ty(), PAGE, None, Some(1 << 30), 0).is_err());
        assert!(Memories.new_memory(ty(), PAGE, None, Some(0), PAGE).is_err());
    }
}
