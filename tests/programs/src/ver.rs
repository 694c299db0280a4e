//! Prints the letter of its build, again and again: `ver MILLISECONDS TIMES`.

use std::{env, hint::black_box, thread::sleep, time::Duration};

/// The letter is the last byte. A test makes other builds by changing it.
static BUILD: &[u8] = b"the letter of this build is A";

fn main() {
    let mut args = env::args().skip(1).map(|arg| arg.parse().unwrap_or(0));
    let (pause, times) = (args.next().unwrap_or(0), args.next().unwrap_or(1));
    for time in 0..times {
        if time > 0 {
            sleep(Duration::from_millis(pause));
        }
        if let Some(letter) = black_box(BUILD).last() {
            println!("{}", char::from(*letter));
        }
    }
}
