//! Every call of WASI 0.2 that changes a folder or a file, on the first folder that is
//! granted, which has a file `a`, a link `link` to it and an empty folder `sub`; and
//! those that take two folders also with the second, which has a file `b`.

use wasip2::filesystem::{
    preopens::get_directories,
    types::{
        Advice, Descriptor, DescriptorFlags as Flags, ErrorCode, NewTimestamp::Now, OpenFlags,
        PathFlags,
    },
};

/// Tries all of them, and returns what came of each.
pub(crate) fn all() -> Vec<(&'static str, Result<(), String>)> {
    let mut folders = get_directories().into_iter().map(|(folder, _)| folder);
    let (Some(one), Some(other)) = (folders.next(), folders.next()) else { return Vec::new() };
    let (stay, follow) = (PathFlags::empty(), PathFlags::SYMLINK_FOLLOW);
    let open = |path, how, flags| one.open_at(stay, path, how, flags).map(drop);
    let write = Flags::WRITE;
    let file = || one.open_at(stay, "a", OpenFlags::empty(), Flags::READ);
    let mutate = Flags::READ | Flags::MUTATE_DIRECTORY;
    let below = || one.open_at(stay, "sub", OpenFlags::DIRECTORY, mutate);
    let on = |change: &dyn Fn(&Descriptor) -> Result<(), ErrorCode>| change(&file()?);
    // These change nothing, and need not be refused.
    let _ = on(&|file| file.sync());
    let _ = on(&|file| file.sync_data());
    let _ = on(&|file| file.advise(0, 1, Advice::DontNeed));
    let _ = one.sync();
    let all = [
        ("open write", open("a", OpenFlags::empty(), write)),
        ("open create", open("new", OpenFlags::CREATE, write)),
        ("open create read", open("new", OpenFlags::CREATE, Flags::READ)),
        ("open truncate", open("a", OpenFlags::TRUNCATE, write)),
        ("open truncate read", open("a", OpenFlags::TRUNCATE, Flags::READ)),
        ("open exclusive", open("new", OpenFlags::CREATE | OpenFlags::EXCLUSIVE, write)),
        ("create-directory below", below().and_then(|sub| sub.create_directory_at("new"))),
        ("open through a link", one.open_at(follow, "link", OpenFlags::TRUNCATE, write).map(drop)),
        ("create-directory", one.create_directory_at("new")),
        ("remove-directory", one.remove_directory_at("sub")),
        ("unlink-file", one.unlink_file_at("a")),
        ("rename within", one.rename_at("a", &one, "new")),
        ("rename out", one.rename_at("a", &other, "new")),
        ("rename in", other.rename_at("b", &one, "new")),
        ("rename over", other.rename_at("b", &one, "a")),
        ("link within", one.link_at(stay, "a", &one, "new")),
        ("link out", one.link_at(stay, "a", &other, "new")),
        ("link in", other.link_at(stay, "b", &one, "new")),
        ("symlink", one.symlink_at("a", "new")),
        ("set-times-at", one.set_times_at(stay, "a", Now, Now)),
        ("set-times-at of a link", one.set_times_at(follow, "link", Now, Now)),
        ("set-times-at of a folder", one.set_times_at(stay, "sub", Now, Now)),
        ("set-times", on(&|file| file.set_times(Now, Now))),
        ("set-times of the folder", one.set_times(Now, Now)),
        ("set-size", on(&|file| file.set_size(0))),
        ("write", on(&|file| file.write(b"x", 0).map(drop))),
        ("write-via-stream", on(&|file| file.write_via_stream(0).map(drop))),
        ("append-via-stream", on(&|file| file.append_via_stream().map(drop))),
    ];
    all.into_iter().map(|(call, came)| (call, came.map_err(|error| format!("{error:?}")))).collect()
}
