//! The smallest program: it knows nothing of Backlot.

fn main() {
    println!("hello");
}
