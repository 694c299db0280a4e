//! A program whose `run` is async: WASI 0.3 without the contract.
//!
//! ```text
//! sleep MS [fail]    prints `before`, sleeps, prints `after`, and fails if asked to
//! wait NS            waits for a duration, and prints `over`
//! wait-until NS      waits for an instant, and prints `over`
//! list               prints the names in the first granted folder, sorted
//! hold COUNT         begins that many listings of it, reads none, then opens `file`
//! touch PATH         sets the times of a path, following links, and prints what came of it
//! changes            tries every call that changes something on the first folder that is
//!                    granted, and prints what came of each
//! files STEP...      does each of the steps of `files.rs`, and prints what came of it
//! fetch URL [NAME=VALUE]  fetches it, with a header in which `$VARIABLE` is filled in,
//!                    and prints the status, the body and the `x-echo` header, backwards
//! post URL BYTES     posts so many bytes, and prints the status
//! send PEER BYTES    connects to an IPv4 address and sends so many bytes
//! datagram PEER N... sends datagrams of so many bytes, and waits for an answer to each
//! connected PEER N   the same with one datagram of a socket that is connected
//! resolve NAME       looks it up, and prints what came of it
//! chance             prints what the clocks and the random numbers are
//! ```

mod changes;
mod files;

use wasip3::{
    filesystem::{
        preopens::get_directories,
        types::{Descriptor, DescriptorFlags, NewTimestamp, OpenFlags, PathFlags},
    },
    http::types::{ErrorCode, Fields, Method, Request, Response, Scheme},
    sockets::{
        ip_name_lookup::resolve_addresses,
        types::{self, IpAddressFamily, IpSocketAddress, Ipv4SocketAddress, TcpSocket, UdpSocket},
    },
};

struct Program;

wasip3::cli::command::export!(Program);

impl wasip3::exports::cli::run::Guest for Program {
    async fn run() -> Result<(), ()> {
        let args = wasip3::cli::environment::get_arguments();
        let args: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
        match args.as_slice() {
            ["sleep", ms, rest @ ..] => {
                let ms: u64 = ms.parse().map_err(drop)?;
                print("before\n").await?;
                wasip3::clocks::monotonic_clock::wait_for(ms * 1_000_000).await;
                print("after\n").await?;
                if rest.is_empty() { Ok(()) } else { Err(()) }
            }
            ["wait", ns] => {
                wasip3::clocks::monotonic_clock::wait_for(ns.parse().map_err(drop)?).await;
                print("over\n").await
            }
            ["wait-until", ns] => {
                wasip3::clocks::monotonic_clock::wait_until(ns.parse().map_err(drop)?).await;
                print("over\n").await
            }
            ["list"] => {
                let (entries, ended) = folder()?.read_directory();
                let mut names: Vec<String> =
                    entries.collect().await.into_iter().map(|entry| entry.name).collect();
                names.sort();
                ended.await.map_err(drop)?;
                print(&(names.join("\n") + "\n")).await
            }
            ["hold", count] => {
                let folder = folder()?;
                let count: usize = count.parse().map_err(drop)?;
                let held: Vec<_> = (0..count).map(|_| folder.read_directory()).collect();
                let opened = folder
                    .open_at(
                        PathFlags::empty(),
                        "file".to_owned(),
                        OpenFlags::empty(),
                        DescriptorFlags::READ,
                    )
                    .await;
                print(&format!("held {}, opened {}\n", held.len(), opened.is_ok())).await
            }
            ["touch", path] => {
                let touched = folder()?
                    .set_times_at(
                        PathFlags::SYMLINK_FOLLOW,
                        (*path).to_owned(),
                        NewTimestamp::Now,
                        NewTimestamp::Now,
                    )
                    .await;
                print(&format!("{touched:?}\n")).await
            }
            ["changes"] => {
                let said: Vec<String> = changes::all()
                    .await
                    .into_iter()
                    .map(|(call, came)| format!("{call}: {came:?}\n"))
                    .collect();
                print(&said.concat()).await
            }
            ["files", steps @ ..] => print(&files::all(steps).await.concat()).await,
            ["fetch", url, rest @ ..] => {
                let said = match fetch(url, rest.first().copied(), None).await {
                    Ok((status, body, echo)) => {
                        let backwards = |text: String| text.chars().rev().collect::<String>();
                        format!("{status} {} {}\n", backwards(body), backwards(echo))
                    }
                    Err(error) => format!("refused {url}: {error:?}\n"),
                };
                print(&said).await
            }
            ["post", url, bytes] => {
                let said = match fetch(url, None, Some(bytes.parse().map_err(drop)?)).await {
                    Ok((status, ..)) => format!("{status}\n"),
                    Err(error) => format!("refused {url}: {error:?}\n"),
                };
                print(&said).await
            }
            ["send", peer, bytes] => {
                let said = send(address(peer)?, bytes.parse().map_err(drop)?).await;
                print(&format!("{said:?}\n")).await
            }
            ["datagram", peer, sizes @ ..] => {
                let said = match UdpSocket::create(IpAddressFamily::Ipv4) {
                    Ok(socket) => datagrams(&socket, address(peer)?, sizes).await?,
                    Err(error) => format!("{error:?}\n"),
                };
                print(&said).await
            }
            ["connected", peer, size] => {
                let data = vec![b'x'; size.parse().map_err(drop)?];
                let said = match connected(address(peer)?, data).await {
                    Ok(count) => format!("{size} bytes, {count} back\n"),
                    Err(error) => format!("refused {peer}: {error:?}\n"),
                };
                print(&said).await
            }
            ["resolve", name] => {
                let found = resolve_addresses((*name).to_owned()).await;
                print(&format!("{found:?}\n")).await
            }
            ["chance"] => {
                use wasip3::{
                    clocks::{monotonic_clock, system_clock},
                    random::{insecure, insecure_seed, random},
                };
                let now = system_clock::now();
                let said = format!(
                    "wall {} {}\nmonotonic {}\nrandom {:?} {}\ninsecure {}\nseed {:?}\n",
                    now.seconds,
                    now.nanoseconds,
                    monotonic_clock::now(),
                    random::get_random_bytes(9),
                    random::get_random_u64(),
                    insecure::get_insecure_random_u64(),
                    insecure_seed::get_insecure_seed(),
                );
                print(&said).await
            }
            _ => Err(()),
        }
    }
}

/// Fetches a URL, and returns the status, the body and the `x-echo` header.
async fn fetch(
    url: &str,
    header: Option<&str>,
    post: Option<usize>,
) -> Result<(u16, String, String), ErrorCode> {
    let invalid = |()| ErrorCode::HttpRequestUriInvalid;
    let fields = Fields::new();
    if let Some((name, value)) = header.and_then(|header| header.split_once('=')) {
        let filled = wasip3::cli::environment::get_environment()
            .into_iter()
            .fold(value.to_owned(), |value, (name, filling)| {
                value.replace(&format!("${name}"), &filling)
            });
        fields.append(name, filled.as_bytes()).map_err(|_| ErrorCode::HttpProtocolError)?;
    }
    let (mut writer, contents) = wasip3::wit_stream::new();
    let (no_trailers, trailers) = wasip3::wit_future::new(|| Ok(None));
    drop(no_trailers);
    let (request, _sent) = Request::new(fields, post.is_some().then_some(contents), trailers, None);
    let rest = url.strip_prefix("http://").ok_or(ErrorCode::HttpRequestUriInvalid)?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let method = if post.is_some() { Method::Post } else { Method::Get };
    request.set_method(&method).map_err(invalid)?;
    request.set_scheme(Some(&Scheme::Http)).map_err(invalid)?;
    request.set_authority(Some(authority)).map_err(invalid)?;
    request.set_path_with_query(Some(if path.is_empty() { "/" } else { path })).map_err(invalid)?;
    let write = async {
        let _rest = writer.write_all(vec![b'x'; post.unwrap_or(0)]).await;
        drop(writer);
    };
    let (answer, ()) = futures::future::join(wasip3::http::client::send(request), write).await;
    let answer = answer?;
    let status = answer.get_status_code();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let echo = answer.get_headers().get("x-echo").into_iter().next().map(text).unwrap_or_default();
    let (read, is_read) = wasip3::wit_future::new(|| Ok(()));
    drop(read);
    let (body, ended) = Response::consume_body(answer, is_read);
    let body = text(body.collect().await);
    ended.await?;
    Ok((status, body, echo))
}

/// Reads an IPv4 address and a port.
fn address(peer: &str) -> Result<IpSocketAddress, ()> {
    let peer: std::net::SocketAddrV4 = peer.parse().map_err(drop)?;
    let [a, b, c, d] = peer.ip().octets();
    Ok(IpSocketAddress::Ipv4(Ipv4SocketAddress { port: peer.port(), address: (a, b, c, d) }))
}

/// Connects and sends bytes, and returns how many were taken and how it ended.
async fn send(peer: IpSocketAddress, bytes: usize) -> Result<usize, types::ErrorCode> {
    let socket = TcpSocket::create(IpAddressFamily::Ipv4)?;
    socket.connect(peer).await?;
    let (mut writer, data) = wasip3::wit_stream::new();
    let sent = socket.send(data);
    let write = async {
        let mut left = bytes;
        while left > 0 {
            let now = left.min(1 << 10);
            if !writer.write_all(vec![b'x'; now]).await.is_empty() {
                break;
            }
            left -= now;
        }
        drop(writer);
        bytes - left
    };
    let (taken, ended) = futures::future::join(write, async { sent.await }).await;
    ended.map(|()| taken)
}

/// Sends a datagram over a socket that is connected, and returns what came back.
async fn connected(peer: IpSocketAddress, data: Vec<u8>) -> Result<usize, types::ErrorCode> {
    let socket = UdpSocket::create(IpAddressFamily::Ipv4)?;
    socket.connect(peer)?;
    socket.send(data, None).await?;
    Ok(socket.receive().await?.0.len())
}

/// Sends datagrams, and says what came back of each.
async fn datagrams(
    socket: &UdpSocket,
    peer: IpSocketAddress,
    sizes: &[&str],
) -> Result<String, ()> {
    let mut said = String::new();
    for size in sizes {
        let data = vec![b'x'; size.parse().map_err(drop)?];
        let back = match socket.send(data, Some(peer)).await {
            Ok(()) => socket.receive().await.map(|(data, _)| data.len()),
            Err(error) => Err(error),
        };
        said.push_str(&match back {
            Ok(count) => format!("{size} bytes, {count} back\n"),
            Err(error) => format!("refused {size} bytes: {error:?}\n"),
        });
    }
    Ok(said)
}

fn folder() -> Result<Descriptor, ()> {
    get_directories().into_iter().next().map(|(folder, _)| folder).ok_or(())
}

async fn print(text: &str) -> Result<(), ()> {
    let (mut writer, reader) = wasip3::wit_stream::new();
    let (written, rest) = futures::future::join(
        async { wasip3::cli::stdout::write_via_stream(reader).await },
        async {
            let rest = writer.write_all(text.as_bytes().to_vec()).await;
            drop(writer);
            rest
        },
    )
    .await;
    if written.is_err() || !rest.is_empty() {
        return Err(());
    }
    Ok(())
}
