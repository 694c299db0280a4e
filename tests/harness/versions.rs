//! Versions of one kind, made without a compiler.

use std::fs;

use crate::files;

/// What the program `ver` has in it; its last byte is the letter that it prints.
const BUILD: &[u8] = b"the letter of this build is A";

/// Returns the program `ver` in the build that prints that letter.
///
/// # Panics
///
/// When the program was not built.
pub fn ver(letter: char) -> Vec<u8> {
    let mut bytes = fs::read(files::program("ver")).expect("the program can be read");
    let places: Vec<usize> = (0..bytes.len() - BUILD.len())
        .filter(|&at| bytes[at..].starts_with(BUILD))
        .map(|at| at + BUILD.len() - 1)
        .collect();
    assert!(!places.is_empty(), "the program has its letter in it");
    for place in places {
        bytes[place] = u8::try_from(letter).expect("the letter is one byte");
    }
    bytes
}

/// Returns a component that does the same and has another digest, for each number.
pub fn same_but_new(component: &[u8], number: u32) -> Vec<u8> {
    // A custom section, which says nothing to anybody: id 0, its size, the length of
    // its name, the name and the number.
    let mut bytes = component.to_vec();
    bytes.extend_from_slice(&[0, 9, 4]);
    bytes.extend_from_slice(b"test");
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes
}
