//! One small program for each behaviour that tests need, chosen by its first
//! argument.
//!
//! ```text
//! now                      returns at once
//! tick N MS                prints `line 1` to `line N`, a blocking sleep of MS between
//! sleep SECONDS            one blocking sleep
//! both N                   prints N numbered lines on stdout, then N on stderr, flushing each
//! euro N MS                writes the text €✓🦀 N times, one byte a write, MS apart
//! trap                     prints three lines, then traps
//! exit CODE                prints `leaving`, then exits
//! code N                   ends with any exit code, by WASI's exit-with-code
//! leave CODE               exits from a nested call, with output that was not flushed
//! bytes N                  writes N bytes of numbered lines
//! once N                   writes N bytes of numbered lines in one single write
//! pour N                   writes N bytes in large blocks, as fast as it can
//! flood [stderr]           writes for ever, to stdout unless told otherwise
//! env                      prints its arguments, variables and folder
//! cat                      copies stdin to stdout
//! grow                     grows and touches memory until it is refused
//! deep [print]             recurses without end, with a line at each level if asked to
//! hold MIB                 touches so much memory, prints `held`, and sleeps
//! spin                     computes for ever
//! wait NS                  waits on a pollable for a duration, and prints `over`
//! wait-until NS            waits on a pollable for an instant, and prints `over`
//! paths PATH...            tries to read each path, and prints what came of it
//! changes                  tries every call that changes something on the first folder that
//!                          is granted, and prints what came of each
//! mark PATH WORD N MS      prints the word, and appends it to a file with `begin`, N times alone, MS
//!                          apart, and with `end`
//! files STEP...            does each of the steps of `files.rs`, and prints what came of it
//! list DIR                 prints the names in a folder, or that it could not
//! escape DIR               tries to leave DIR in many ways, and prints what came of each
//! dial HOST:PORT...        tries to connect to each, and prints what came of it
//! send HOST:PORT BYTES     connects and sends so many bytes, a kilobyte a write
//! datagram HOST:PORT N...  sends datagrams of so many bytes, and waits for an answer to each
//! connected HOST:PORT N     the same with one datagram of a socket that is connected
//! resolve NAME...          looks up each, and prints what came of it
//! say TEXT...              writes each to stdout and then to stderr, in writes of their own
//! chance                   prints what the clocks and the random numbers are
//! hoard PATH COUNT         opens a path so many times, and prints how often it could
//! sockets COUNT            makes so many TCP sockets, and prints whether it could
//! open PATH                opens a path for reading, as a blocking call
//! ```

mod changes;
mod files;

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _, UdpSocket},
    path::Path,
    process, thread,
    time::Duration,
};

use wasip2::clocks::monotonic_clock;

use wasip2::sockets::{network::IpAddressFamily, tcp_create_socket::create_tcp_socket};

fn main() -> io::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let out = &mut io::stdout();
    match args.as_slice() {
        ["now"] => Ok(()),
        ["tick", count, ms] => {
            for line in 1..=number(count) {
                writeln!(out, "line {line}")?;
                thread::sleep(Duration::from_millis(number(ms)));
            }
            Ok(())
        }
        ["sleep", seconds] => {
            thread::sleep(Duration::from_secs(number(seconds)));
            Ok(())
        }
        ["both", count] => {
            for line in 1..=number(count) {
                writeln!(out, "out {line}")?;
                out.flush()?;
            }
            for line in 1..=number(count) {
                writeln!(io::stderr(), "err {line}")?;
            }
            Ok(())
        }
        ["euro", times, ms] => {
            for _ in 0..number(times) {
                for byte in "€✓🦀".bytes() {
                    out.write_all(&[byte])?;
                    out.flush()?;
                    thread::sleep(Duration::from_millis(number(ms)));
                }
            }
            Ok(())
        }
        ["trap"] => {
            for line in 1..=3 {
                writeln!(out, "line {line}")?;
            }
            process::abort()
        }
        ["exit", code] => {
            writeln!(out, "leaving")?;
            process::exit(i32::try_from(number(code)).unwrap_or(i32::MAX))
        }
        ["code", code] => {
            writeln!(out, "leaving")?;
            wasip2::cli::exit::exit_with_code(u8::try_from(number(code)).unwrap_or(u8::MAX));
            Ok(())
        }
        ["leave", code] => leave(out, 100, i32::try_from(number(code)).unwrap_or(i32::MAX)),
        ["bytes", count] => numbered(out, number(count)),
        ["once", count] => once(number(count)),
        ["pour", count] => {
            let block = [b'x'; 64 << 10];
            let mut left = number(count);
            while left > 0 {
                let now = usize::try_from(left).unwrap_or(block.len()).min(block.len());
                out.write_all(&block[..now])?;
                left -= now as u64;
            }
            Ok(())
        }
        ["flood"] => numbered(out, u64::MAX),
        ["flood", "stderr"] => numbered(&mut io::stderr(), u64::MAX),
        ["env", ..] => {
            writeln!(out, "args {args:?}")?;
            for (name, value) in env::vars() {
                writeln!(out, "env {name}={value}")?;
            }
            writeln!(out, "cwd {:?}", env::current_dir().map_err(|error| error.kind()))
        }
        ["cat"] => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text)?;
            out.write_all(text.as_bytes())
        }
        ["grow"] => {
            let mut held: Vec<Vec<u8>> = Vec::new();
            loop {
                held.push(vec![1; 1 << 20]);
            }
        }
        ["deep"] => deep(0, false),
        ["deep", "print"] => deep(0, true),
        ["wait", ns] => {
            monotonic_clock::subscribe_duration(number(ns)).block();
            writeln!(out, "over")
        }
        ["wait-until", ns] => {
            monotonic_clock::subscribe_instant(number(ns)).block();
            writeln!(out, "over")
        }
        ["hold", mib] => {
            let held = vec![1_u8; usize::try_from(number(mib) << 20).unwrap_or(usize::MAX)];
            writeln!(out, "held")?;
            thread::sleep(Duration::from_secs(600));
            drop(std::hint::black_box(held));
            Ok(())
        }
        ["spin"] => loop {
            std::hint::black_box(0);
        },
        ["paths", paths @ ..] => {
            for path in paths {
                match fs::read(path) {
                    Ok(bytes) => writeln!(out, "read {path}: {} bytes", bytes.len())?,
                    Err(error) => writeln!(out, "refused {path}: {}", error.kind())?,
                }
            }
            Ok(())
        }
        ["changes"] => {
            for (call, came) in changes::all() {
                writeln!(out, "{call}: {came:?}")?;
            }
            Ok(())
        }
        ["mark", path, word, count, ms] => {
            writeln!(out, "{word}")?;
            out.flush()?;
            let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{word} begin")?;
            for _ in 0..number(count) {
                thread::sleep(Duration::from_millis(number(ms)));
                writeln!(file, "{word}")?;
            }
            writeln!(file, "{word} end")
        }
        ["files", steps @ ..] => {
            for said in files::all(steps) {
                writeln!(out, "{said}")?;
            }
            Ok(())
        }
        ["list", dir] => match fs::read_dir(dir).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => {
                let mut names: Vec<_> = entries.iter().map(fs::DirEntry::file_name).collect();
                names.sort();
                writeln!(out, "{names:?}")
            }
            Err(error) => writeln!(out, "refused {dir}: {error}"),
        },
        ["escape", dir] => escape(out, Path::new(dir)),
        ["dial", peers @ ..] => {
            for peer in peers {
                let dialled = peer.to_socket_addrs().and_then(|mut addresses| {
                    let address = addresses.next().ok_or(io::ErrorKind::NotFound)?;
                    TcpStream::connect(address)
                });
                match dialled {
                    Ok(_) => writeln!(out, "connected {peer}")?,
                    Err(error) => writeln!(out, "refused {peer}: {error}")?,
                }
            }
            Ok(())
        }
        ["send", peer, bytes] => {
            let mut stream = TcpStream::connect(peer)?;
            let mut left = usize::try_from(number(bytes)).unwrap_or(usize::MAX);
            let mut sent = 0;
            while left > 0 {
                let now = left.min(1 << 10);
                if let Err(error) = stream.write_all(&vec![b'x'; now]) {
                    return writeln!(out, "refused after {sent}: {error}");
                }
                left -= now;
                sent += now;
            }
            writeln!(out, "sent {sent}")
        }
        ["datagram", peer, sizes @ ..] => datagrams(out, peer, sizes),
        ["connected", peer, size] => {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            let data = vec![b'x'; usize::try_from(number(size)).unwrap_or(usize::MAX)];
            let mut back = [0; 2 << 10];
            let sent = socket.connect(peer).and_then(|()| socket.send(&data));
            match sent.and_then(|_| socket.recv(&mut back)) {
                Ok(count) => writeln!(out, "{size} bytes, {count} back"),
                Err(error) => writeln!(out, "refused {peer}: {error}"),
            }
        }
        ["resolve", names @ ..] => {
            for name in names {
                match (*name, 0).to_socket_addrs() {
                    Ok(found) => {
                        let found: Vec<String> =
                            found.map(|address| address.ip().to_string()).collect();
                        writeln!(out, "{name}: {}", found.join(" "))?;
                    }
                    Err(error) => writeln!(out, "refused {name}: {error}")?,
                }
            }
            Ok(())
        }
        ["say", texts @ ..] => {
            for text in texts {
                write!(out, "{text}")?;
                out.flush()?;
            }
            for text in texts {
                write!(io::stderr(), "{text}")?;
            }
            Ok(())
        }
        ["chance"] => chance(out),
        ["hoard", path, count] => {
            let opened: Result<Vec<_>, _> =
                (0..number(count)).map(|_| fs::File::open(path)).collect();
            match opened {
                Ok(files) => writeln!(out, "opened {}", files.len()),
                Err(error) => writeln!(out, "refused: {error}"),
            }
        }
        ["sockets", count] => {
            let sockets: Result<Vec<_>, _> =
                (0..number(count)).map(|_| create_tcp_socket(IpAddressFamily::Ipv4)).collect();
            match sockets {
                Ok(sockets) => writeln!(out, "made {}", sockets.len()),
                Err(error) => writeln!(out, "refused: {error:?}"),
            }
        }
        ["open", path] => match fs::File::open(path) {
            Ok(_) => writeln!(out, "opened {path}"),
            Err(error) => writeln!(out, "refused {path}: {error}"),
        },
        other => {
            writeln!(io::stderr(), "unknown probe: {other:?}")?;
            process::exit(1)
        }
    }
}

/// Sends datagrams, and prints what came back of each.
fn datagrams(out: &mut impl io::Write, peer: &str, sizes: &[&str]) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    for size in sizes {
        let data = vec![b'x'; usize::try_from(number(size)).unwrap_or(usize::MAX)];
        let mut back = [0; 2 << 10];
        match socket.send_to(&data, peer).and_then(|_| socket.recv_from(&mut back)) {
            Ok((count, _)) => writeln!(out, "{size} bytes, {count} back")?,
            Err(error) => writeln!(out, "refused {size} bytes: {error}")?,
        }
    }
    Ok(())
}

/// Prints the time of day, a duration and numbers of each generator.
fn chance(out: &mut impl io::Write) -> io::Result<()> {
    use wasip2::{
        clocks::wall_clock,
        random::{insecure, insecure_seed, random},
    };
    let now = wall_clock::now();
    writeln!(out, "wall {} {}", now.seconds, now.nanoseconds)?;
    writeln!(out, "monotonic {}", monotonic_clock::now())?;
    writeln!(out, "random {:?} {}", random::get_random_bytes(9), random::get_random_u64())?;
    writeln!(out, "insecure {}", insecure::get_insecure_random_u64())?;
    writeln!(out, "seed {:?}", insecure_seed::insecure_seed())
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| {
        let _ = writeln!(io::stderr(), "not a number: {text}");
        process::exit(1)
    })
}

/// Writes `bytes` bytes of numbered lines.
fn numbered(out: &mut impl io::Write, bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    let mut line = 0_u64;
    let mut block = String::new();
    while left > 0 {
        block.clear();
        while block.len() < 32 << 10 {
            line += 1;
            block.push_str(&format!("line {line}\n"));
        }
        let take = left.min(block.len() as u64);
        out.write_all(&block.as_bytes()[..usize::try_from(take).unwrap_or(usize::MAX)])?;
        left -= take;
    }
    out.flush()
}

/// Writes that many bytes of numbered lines with one call into the host, which
/// std and the C library would split.
fn once(bytes: u64) -> io::Result<()> {
    let mut all = Vec::new();
    numbered(&mut all, bytes)?;
    let stdout = wasip2::cli::stdout::get_stdout();
    stdout.write(&all).map_err(io::Error::other)
}

/// Exits that many calls further down.
fn leave(out: &mut impl io::Write, levels: u32, code: i32) -> io::Result<()> {
    if levels > 0 {
        leave(out, levels - 1, code)?;
        // Comes to nothing; without it the calls would be one.
        return out.flush();
    }
    // No line, so that it waits in a buffer.
    write!(out, "leaving")?;
    process::exit(code)
}

/// Recurses until the stack is used up.
#[allow(unconditional_recursion, reason = "that is what it is for")]
fn deep(level: u64, prints: bool) -> io::Result<()> {
    let frame = std::hint::black_box([level; 8]);
    if prints {
        writeln!(io::stdout(), "level {level}")?;
    }
    deep(level + 1, prints)?;
    // Used after the call, so that the frame cannot be given up before it.
    std::hint::black_box(frame);
    Ok(())
}

/// Tries to get out of the folder, and prints what came of each way.
fn escape(out: &mut impl io::Write, dir: &Path) -> io::Result<()> {
    let mut tell = |way: &str, result: io::Result<()>| match result {
        Ok(()) => writeln!(out, "ESCAPED by {way}"),
        Err(_) => writeln!(out, "refused {way}"),
    };
    let read = |path: &Path| fs::read(path).map(drop);
    tell("dot-dot", read(&dir.join("../outside.txt")))?;
    let link = |target: &str, name: &str| {
        // Links to absolute paths are mostly refused already; either is right.
        let _ = symlink(target, &dir.join(name));
        dir.join(name)
    };
    tell("absolute link", read(&link("/etc/hostname", "a")))?;
    tell("relative link", read(&link("../outside.txt", "r")))?;
    tell("folder link", fs::write(link("/tmp", "d").join("new"), "x"))?;
    tell("dot-dot folder link", fs::write(link("..", "u").join("new"), "x"))?;
    tell("absolute path", read(Path::new("/etc/hostname")))?;
    tell("process root", read(Path::new("/proc/self/root/etc/hostname")))?;
    tell("link to a process root", read(&link("/proc/self/root", "p").join("etc/hostname")))?;
    tell("link to a descriptor", read(&link("/proc/self/fd/0", "f")))?;
    tell("link to a link", read(&link("r", "l")))?;
    tell("link to itself", read(&link("i", "i")))?;
    tell("a long name", fs::write(dir.join("n".repeat(256)), "x"))?;
    tell("a long path", read(&dir.join("sub/../".repeat(700)).join("inside.txt")))?;
    tell("a longer path", read(&dir.join("./".repeat(100_000)).join("inside.txt")))?;
    tell("dot-dot and back", read(&dir.join("../granted/../outside.txt")))?;
    tell("a folder outside", fs::create_dir(dir.join("../made")))?;
    tell("a folder behind a link", fs::create_dir(dir.join("u/made")))?;
    tell("removing outside", fs::remove_file(dir.join("../outside.txt")))?;
    tell("removing behind a link", fs::remove_file(dir.join("u/outside.txt")))?;
    tell("removing a folder outside", fs::remove_dir(dir.join("../empty")))?;
    tell("listing outside", fs::read_dir(dir.join("..")).map(drop))?;
    tell("listing behind a link", fs::read_dir(dir.join("u")).map(drop))?;
    tell("renaming from outside", fs::rename(dir.join("../outside.txt"), dir.join("got")))?;
    tell("renaming behind a link", fs::rename(dir.join("inside.txt"), dir.join("u/moved")))?;
    tell("hard link to an absolute path", fs::hard_link("/etc/hostname", dir.join("h")))?;
    tell("hard link outside", fs::hard_link(dir.join("inside.txt"), dir.join("../linked")))?;
    tell("link outside", symlink("inside.txt", &dir.join("../linked")))?;
    tell("link behind a link", symlink("inside.txt", &dir.join("u/linked")))?;
    tell("slash after a file", read(&dir.join("inside.txt/")))?;
    tell("dot-dot after a folder", read(&dir.join("sub/../../outside.txt")))?;
    tell("writing outside", fs::write(dir.join("../new"), "x"))?;
    tell("renaming outside", fs::rename(dir.join("inside.txt"), dir.join("../moved")))?;
    tell("hard link to the outside", fs::hard_link(dir.join("../outside.txt"), dir.join("h")))
}

/// Makes a symbolic link. The standard library's way is not stable for WASI.
#[allow(unsafe_code, reason = "one call into the C library that std links anyway")]
fn symlink(target: &str, link: &Path) -> io::Result<()> {
    unsafe extern "C" {
        fn symlink(target: *const std::ffi::c_char, link: *const std::ffi::c_char) -> i32;
    }
    let target = std::ffi::CString::new(target)?;
    let link = std::ffi::CString::new(link.to_string_lossy().as_bytes())?;
    // SAFETY: both are strings that end with NUL and outlive the call.
    match unsafe { symlink(target.as_ptr(), link.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
