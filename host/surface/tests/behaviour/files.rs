//! The files that jobs leave.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

use backlot_surface::wire::{FileName, FilesQuery};

use crate::harness::{Host, code, raw};

#[tokio::test]
async fn files_are_listed_and_read() {
    let host = Host::start().await;
    let client = host.client().await;
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    assert!(client.files(&id, &FilesQuery::default()).await.unwrap().files.is_empty());
    let work = host.folder.work(job.id);
    fs::create_dir_all(work.join("a")).unwrap();
    let large: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
    let contents: [(&[u8], &[u8]); 4] =
        [(b"a/50% of #1?", b"x"), (b"empty", b""), (b"large", &large), (b"\xff", b"\0")];
    for (name, content) in contents {
        fs::write(work.join(OsStr::from_bytes(name)), content).unwrap();
    }
    let listed = client.files(&id, &FilesQuery::default()).await.unwrap();
    assert!(!listed.has_more);
    assert_eq!(listed.files.len(), contents.len());
    for (file, (name, content)) in listed.files.iter().zip(contents) {
        assert_eq!(file.name.to_path().as_os_str().as_bytes(), name);
        assert_eq!(file.bytes, content.len() as u64);
        let mut download = client.file(&id, &file.name).await.unwrap();
        assert_eq!(download.length(), content.len() as u64);
        let mut read = Vec::new();
        while let Some(bytes) = download.next().await.unwrap() {
            read.extend_from_slice(&bytes);
        }
        assert_eq!(read, content);
    }
    let one = client.files(&id, &FilesQuery { limit: Some(1) }).await.unwrap();
    assert_eq!((one.files.len(), one.has_more), (1, true));
    let missing = client.file(&id, &FileName::Path("missing".into())).await;
    assert_eq!(code(missing), "unknown_file");
    assert_eq!(code(client.file(&id, &FileName::Path("a".into())).await), "unknown_file");
}

#[tokio::test]
async fn no_path_leads_out_of_the_work_folder() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let work = host.folder.work(job.id);
    fs::create_dir_all(&work).unwrap();
    let secret = host.folder.path().join("secret");
    fs::write(&secret, "the secret").unwrap();
    std::os::unix::fs::symlink(&secret, work.join("link")).unwrap();
    std::os::unix::fs::symlink(host.folder.path(), work.join("up")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, work.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
    let whole = secret.display().to_string();
    let long = "a/".repeat(3_000);
    let tried = [
        "../../../secret",
        "%2e%2e/%2e%2e/%2e%2e/secret",
        "..%2f..%2f..%2fsecret",
        "./../../../secret",
        "a/../../../../secret",
        "link",
        "up/secret",
        "pipe",
        "a%00b",
        "%00",
        &whole,
        &whole.replace('/', "%2f"),
        &long,
    ];
    for path in tried {
        let request = format!(
            "GET /v1/jobs/{}/files/{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
            job.id
        );
        let answer = raw(&host, request.as_bytes()).await;
        let is_refused = answer.starts_with("HTTP/1.1 404 ") || answer.starts_with("HTTP/1.1 422 ");
        assert!(is_refused && answer.contains("\"code\":"), "{path}: {answer}");
        assert!(!answer.contains("the secret"), "{path}: {answer}");
    }
}
