//! The command line.

fn main() -> std::process::ExitCode {
    backlot::main()
}
