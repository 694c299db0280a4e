//! Every call of WASI 0.3 that changes a folder or a file, on the first folder that is
//! granted, which has a file `a`, a link `link` to it and an empty folder `sub`; and
//! those that take two folders also with the second, which has a file `b`.

use wasip3::filesystem::{
    preopens::get_directories,
    types::{
        Advice, Descriptor, DescriptorFlags as Flags, ErrorCode, NewTimestamp::Now, OpenFlags,
        PathFlags,
    },
};

/// Tries all of them, and returns what came of each.
pub(crate) async fn all() -> Vec<(&'static str, Result<(), ErrorCode>)> {
    let mut folders = get_directories().into_iter().map(|(folder, _)| folder);
    let (Some(one), Some(other)) = (folders.next(), folders.next()) else { return Vec::new() };
    let (stay, follow) = (PathFlags::empty(), PathFlags::SYMLINK_FOLLOW);
    let text = str::to_owned;
    let open = async |path, how, flags| one.open_at(stay, text(path), how, flags).await.map(drop);
    let (write, mutate) = (Flags::WRITE, Flags::READ | Flags::MUTATE_DIRECTORY);
    let Ok(file) = one.open_at(stay, text("a"), OpenFlags::empty(), Flags::READ).await else {
        return Vec::new();
    };
    // These change nothing, and need not be refused.
    let _ = file.sync().await;
    let _ = file.sync_data().await;
    let _ = file.advise(0, 1, Advice::DontNeed).await;
    let _ = one.sync().await;
    vec![
        ("open write", open("a", OpenFlags::empty(), write).await),
        ("open create", open("new", OpenFlags::CREATE, write).await),
        ("open create read", open("new", OpenFlags::CREATE, Flags::READ).await),
        ("open truncate", open("a", OpenFlags::TRUNCATE, write).await),
        ("open truncate read", open("a", OpenFlags::TRUNCATE, Flags::READ).await),
        ("open exclusive", open("new", OpenFlags::CREATE | OpenFlags::EXCLUSIVE, write).await),
        (
            "create-directory below",
            match one.open_at(stay, text("sub"), OpenFlags::DIRECTORY, mutate).await {
                Ok(sub) => sub.create_directory_at(text("new")).await,
                Err(error) => Err(error),
            },
        ),
        (
            "open through a link",
            one.open_at(follow, text("link"), OpenFlags::TRUNCATE, write).await.map(drop),
        ),
        ("create-directory", one.create_directory_at(text("new")).await),
        ("remove-directory", one.remove_directory_at(text("sub")).await),
        ("unlink-file", one.unlink_file_at(text("a")).await),
        ("rename within", one.rename_at(text("a"), &one, text("new")).await),
        ("rename out", one.rename_at(text("a"), &other, text("new")).await),
        ("rename in", other.rename_at(text("b"), &one, text("new")).await),
        ("rename over", other.rename_at(text("b"), &one, text("a")).await),
        ("link within", one.link_at(stay, text("a"), &one, text("new")).await),
        ("link out", one.link_at(stay, text("a"), &other, text("new")).await),
        ("link in", other.link_at(stay, text("b"), &one, text("new")).await),
        ("symlink", one.symlink_at(text("a"), text("new")).await),
        ("set-times-at", one.set_times_at(stay, text("a"), Now, Now).await),
        ("set-times-at of a link", one.set_times_at(follow, text("link"), Now, Now).await),
        ("set-times-at of a folder", one.set_times_at(stay, text("sub"), Now, Now).await),
        ("set-times", file.set_times(Now, Now).await),
        ("set-times of the folder", one.set_times(Now, Now).await),
        ("set-size", file.set_size(0).await),
        ("write-via-stream", written(&file, false).await),
        ("append-via-stream", written(&file, true).await),
    ]
}

/// Writes one byte to a file.
async fn written(file: &Descriptor, at_the_end: bool) -> Result<(), ErrorCode> {
    let (mut writer, data) = wasip3::wit_stream::new();
    let ended = match at_the_end {
        true => file.append_via_stream(data),
        false => file.write_via_stream(data, 0),
    };
    let write = async {
        let _rest = writer.write_all(vec![b'x']).await;
        drop(writer);
    };
    futures::future::join(async { ended.await }, write).await.0
}
