//! What the service manager has to do with it.

use std::{
    fs,
    os::unix::net::{UnixDatagram, UnixListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use backlot_tests::{Data, Process, backlot};

use super::document;

/// The folder with the units.
fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/backlot/systemd")
}

#[test]
fn the_service_manager_finds_nothing_wrong_with_the_units() {
    let folder = tempfile::tempdir().unwrap();
    for (name, flags) in [
        ("backlot.service", &[][..]),
        ("backlot.socket", &[]),
        ("user/backlot.service", &["--user"]),
    ] {
        let text = fs::read_to_string(units().join(name)).unwrap();
        // The program is where a build puts it.
        let text = text.replace("/usr/bin/backlot", backlot().to_str().unwrap());
        let unit = folder.path().join(name);
        fs::create_dir_all(unit.parent().unwrap()).unwrap();
        fs::write(&unit, text).unwrap();
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no", "--recursive-errors=one"]).args(flags).arg(&unit);
        // A user's has a folder for what it runs, which need not be there.
        verify.env("XDG_RUNTIME_DIR", folder.path());
        let Ok(verified) = verify.output() else {
            eprintln!("NOT TESTED: there is no systemd-analyze, so the units are not verified");
            return;
        };
        let told = String::from_utf8_lossy(&verified.stderr).into_owned();
        // What it says of other units of the machine is none of ours.
        let ours = told.lines().filter(|line| line.contains("backlot"));
        assert_eq!(ours.collect::<Vec<_>>(), [""; 0], "{name}");
        assert!(verified.status.success(), "{name}: {told}");
    }
}

#[test]
fn the_service_manager_is_told_when_it_serves_and_when_it_ends() {
    let data = Data::new();
    let socket = data.outer().join("notify");
    let told = UnixDatagram::bind(&socket).unwrap();
    let hear = || {
        let mut text = [0; 512];
        let read = told.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..read]).into_owned()
    };
    let host = data.start_with(["serve", "--listen", "none", "--drain", "30s"], |command| {
        command.env("NOTIFY_SOCKET", &socket);
    });
    let ready = hear();
    assert!(ready.starts_with("READY=1\n"), "{ready}");
    host.signal("TERM");
    let stopping = hear();
    assert!(stopping.starts_with("STOPPING=1\n"), "{stopping}");
    assert!(stopping.contains("\nEXTEND_TIMEOUT_USEC=120000000"), "{stopping}");
    assert_eq!(host.wait().code, Some(0));
}

/// Starts a host that is handed a socket which somebody else listens at.
fn handed(data: &Data, socket: impl Into<Stdio>) -> Process {
    // The first that is handed over is 3; it is in the place of stdin until then.
    let script = r#"LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&0 </dev/null"#;
    Process::shell_with(script, ["serve", "--json"], |command| {
        data.name_to(command);
        command.stdin(socket);
    })
}

#[test]
fn a_socket_that_is_handed_over_is_the_folders() {
    let data = Data::new();
    let listener = UnixListener::bind(data.folder().socket()).unwrap();
    let mine = listener.try_clone().unwrap();
    let mut host = handed(&data, std::os::fd::OwnedFd::from(listener));
    let serving = document(&host.line());
    assert_eq!(data.json(["status", "--json"])["host"]["pid"], host.id());
    // Where nothing of the network was handed over, it listens there by itself.
    assert_eq!(serving["host"]["addresses"][0], "http://127.0.0.1:7420", "{serving}");
    assert_eq!(data.run(["shutdown", "--no-wait"]).code, Some(0));
    assert_eq!(host.wait().code, Some(0));
    // Whoever made it still has it, for the next one.
    assert!(data.folder().socket().exists());
    drop(mine);
}

#[test]
fn a_port_that_is_handed_over_is_listened_at_and_no_other() {
    let data = Data::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let mut host = handed(&data, std::os::fd::OwnedFd::from(listener));
    let serving = document(&host.line());
    assert_eq!(serving["host"]["addresses"], serde_json::json!([address]), "{serving}");
    host.signal("TERM");
    assert_eq!(host.wait().code, Some(0));
}
