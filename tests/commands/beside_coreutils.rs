//! The commands that change files, and `du`, beside those of coreutils: the same arguments on two
//! directories that are alike have to say the same, exit with the same status, and leave the same.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use crate::fixture::{Server, coreutils, run, text};
use crate::skip::skip;

const DAY: Duration = Duration::from_secs(86_400);

/// Makes the tree that both work on. Names that begin with `no` are not in it.
fn furnish(root: &Path) {
    for dir in ["dir/sub/deep", "other/dir", "empty", "file-in/file"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for file in ["file", "file2", "dir/one", "dir/sub/two", "dir/sub/deep/three", "with space"] {
        fs::write(root.join(file), file).unwrap();
    }
    symlink("file", root.join("link")).unwrap();
    symlink("dir", root.join("dirlink")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    fs::create_dir_all(root.join("twice/sub")).unwrap();
    fs::write(root.join("twice/one"), "one").unwrap();
    fs::hard_link(root.join("twice/one"), root.join("twice/sub/again")).unwrap();
    fs::set_permissions(root.join("file2"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(root.join("set-gid")).unwrap();
    fs::set_permissions(root.join("set-gid"), fs::Permissions::from_mode(0o2755)).unwrap();
}

/// Every name below `root` with type, permissions, owners, number of names, time if that is in the
/// past, and content.
fn tree(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut ahead = vec![root.to_owned()];
    while let Some(dir) = ahead.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_dir() {
                ahead.push(path.clone());
                String::new()
            } else if metadata.is_symlink() {
                fs::read_link(&path).unwrap().to_str().unwrap().to_owned()
            } else {
                fs::read_to_string(&path).unwrap()
            };
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let (mode, nlink) = (metadata.mode(), metadata.nlink());
            let (uid, gid) = (metadata.uid(), metadata.gid());
            let is_new = metadata.modified().unwrap().elapsed().is_ok_and(|age| age < DAY);
            let time = if is_new { 0 } else { metadata.mtime() };
            found.push(format!("{name} {mode:o} {nlink} {uid}:{gid} {time} {content}"));
        }
    }
    found.sort();
    found
}

/// Runs `command`, in which `@` begins each path, here and on a server.
#[track_caller]
fn compare(command: &str) {
    let server = Server::start();
    let here = server.beside("here");
    fs::create_dir(&here).unwrap();
    furnish(&here);
    furnish(&server.path(""));
    let words: Vec<_> = command.split(' ').collect();
    let url = format!("{}/", server.url(""));
    let ours = run(words.iter().map(|word| word.replace('@', &url)));
    let mut theirs = coreutils(words[0]);
    theirs.args(words[1..].iter().map(|word| word.replace('@', ""))).current_dir(&here);
    let theirs = theirs.output().unwrap();

    let plain = |bytes: &[u8]| text(bytes).replace(&url, "").replace("spillway ", "");
    let lines = |text: &str| {
        // Which of several is said first is left to both.
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&plain(&ours.stderr)), lines(text(&theirs.stderr)), "{command}");
    assert_eq!(lines(&plain(&ours.stdout)), lines(text(&theirs.stdout)), "{command}");
    assert_eq!(ours.status.code(), theirs.status.code(), "{command}");
    assert_eq!(tree(&server.path("")), tree(&here), "{command}");
}

#[test]
fn rm() {
    for command in [
        "rm @file",
        "rm -v @file @link",
        "rm @nope",
        "rm -f @nope @file",
        "rm @nope @file @file/x",
        "rm -f @file/x",
        "rm @dir",
        "rm @dir @file",
        "rm -d @empty @dir",
        "rm -dv @empty",
        "rm -r @dir",
        "rm -rv @dir @file",
        "rm -R @other @nope",
        "rm -rf @other @nope",
        "rm @dirlink",
        "rm -r @dirlink",
        "rm @file/",
        "rm -r @dir/",
        "rm -r @dir/.",
        "rm -rf @dir/sub/..",
        "rm @dangling",
    ] {
        compare(command);
    }
}

#[test]
fn mkdir() {
    for command in [
        "mkdir @new",
        "mkdir -v @new @new/below @new2/",
        "mkdir @dir",
        "mkdir @file",
        "mkdir @nope/new",
        "mkdir @file/new",
        "mkdir @dir @new",
        "mkdir -p @dir",
        "mkdir -p @file",
        "mkdir -p @dir/a/b/c",
        "mkdir -pv @x/y/z",
        "mkdir -p @file/new",
        "mkdir -p @dirlink/new",
        "mkdir @dangling",
        "mkdir -m 700 @new",
        "mkdir -m 1777 @new",
        "mkdir -m u=rwx,go= @new",
        "mkdir -p -m 700 @x/y",
        "mkdir -m 2755 @new",
        "mkdir -pm 6700 @x/y",
        "mkdir -m u+s,g+s @new",
        "mkdir -m 755 @set-gid/new",
        "mkdir -m 00755 @set-gid/new",
        "mkdir -m g-s @set-gid/new",
        "mkdir @set-gid/new",
    ] {
        compare(command);
    }
}

#[test]
fn rmdir() {
    for command in [
        "rmdir @empty",
        "rmdir -v @empty",
        "rmdir @empty/",
        "rmdir @dir @empty",
        "rmdir @nope",
        "rmdir @file",
        "rmdir @file/x",
        "rmdir @dirlink",
        "rmdir -p @other/dir",
        "rmdir -pv @other/dir/",
        "rmdir -p @dir/sub/deep",
        "rmdir -p @file-in/file @empty",
        "rmdir --ignore-fail-on-non-empty @dir @empty @file",
        "rmdir -p --ignore-fail-on-non-empty @dir",
    ] {
        compare(command);
    }
}

#[test]
fn ln() {
    for command in [
        "ln @file @new",
        "ln -v @file @new",
        "ln @file @file2",
        "ln -f @file @file2",
        "ln -fv @file @new",
        "ln @file @dir",
        "ln @file @file2 @dir/",
        "ln @file @file2 @nope",
        "ln @file @file2 @link",
        "ln @nope @new",
        "ln @nope @file @dir",
        "ln @file @nope/new",
        "ln @file @new/",
        "ln @file @file/new",
        "ln @dir @new",
        "ln @file @dirlink",
        "ln -f @file @dir/one",
        "ln -f @file @file",
        "ln -f @file @file-in",
        "ln -fv @twice/one @twice/sub/again",
        "ln -f @twice/one @twice/one",
        "ln @twice/one @twice/sub/again",
        "ln @link @new",
        "ln -s file @new",
        "ln -sv file @new",
        "ln -s nowhere/at/all @new",
        "ln -s ../file @dir",
        "ln -s ../file ../file2 @dir/sub",
        "ln -s file @file2",
        "ln -sf file @file2",
        "ln -sf file @file",
        "ln -sf other @dirlink",
        "ln -sfn other @dirlink",
        "ln -sfn other @dir",
        "ln -s file @nope/new",
        "ln -s file @dangling",
        "ln -sf file @dangling",
        "ln -f @dir/one @twice/one @empty",
        "ln -f @dir/one @dir/one @empty",
        "ln -fv @dir/one @twice/one @file @other",
        "ln -sf dir/one twice/one @empty",
    ] {
        compare(command);
    }
}

#[test]
fn touch() {
    for command in [
        "touch @new",
        "touch @new @file @dir",
        "touch -c @new @file",
        "touch @nope/new",
        "touch @nope/",
        "touch @file/",
        "touch @file/x",
        "touch -d 2001-02-03 @file @new",
        "touch -d 2001-02-03T04:05:06.5 @dir",
        "touch -d 2001-02-03T04:05:06Z @link",
        "touch -hd 2001-02-03 @link @dangling @new",
        "touch -d 2001-02-03 -a @file",
        "touch -d 2001-02-03 -m @file",
        "touch -d 2001-02-03 -am @file",
        "touch -c @dangling",
    ] {
        compare(command);
    }
}

#[test]
fn chmod() {
    for command in [
        "chmod 600 @file",
        "chmod -v 600 @file @file2",
        "chmod u=rwx,go=rX @file @dir",
        "chmod go-r @file @nope @file2",
        "chmod -w @file",
        "chmod -v -x @file @file2",
        "chmod +x @file2",
        "chmod 7777 @dir",
        "chmod 0755 @file/x",
        "chmod 700 @link",
        "chmod 711 @dirlink",
        "chmod 700 @dangling",
        "chmod -R go= @dir",
        "chmod -Rv u=rwX,g=u-w,o= @dir @file",
        "chmod -R 700 @dirlink",
        "chmod -vR a+rX @other @link",
        "chmod -R a-w @nope @dir/",
    ] {
        compare(command);
    }
}

#[test]
fn chown() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root gives files away");
    }
    for command in [
        "chown 4711 @file",
        "chown 4711:4712 @file @dir",
        "chown :4712 @file",
        "chown daemon:daemon @file",
        "chown daemon: @file",
        "chown -v 4711 @file",
        "chown -v daemon:daemon @file @file2",
        "chown -v :4712 @file",
        "chown -v root @file",
        "chown 4711 @nope",
        "chown 4711 @file/x",
        "chown 4711 @link",
        "chown -h 4711 @link @dangling",
        "chown 4711 @dangling",
        "chown 4711 @dirlink",
        "chown -R 4711:4712 @dir",
        "chown -Rv 4711 @dir @file",
        "chown -R 4711 @dirlink @link",
        "chown -R 4711 @dirlink/",
    ] {
        compare(command);
    }
}

#[test]
fn du() {
    for command in [
        "du @dir",
        "du -a @twice",
        "du -s @dir @other",
        "du -h @dir",
        "du -sh @file",
        "du -c @dir @file",
        "du -d 1 @dir",
        "du -d 0 @dir",
        "du -ad 1 @dir",
        "du @file @link @dirlink @dangling",
        "du @dirlink/",
        "du @nope @empty",
        "du @file/x",
        "du -ac @twice/one @twice/sub",
        "du -c @dir @dir",
        "du -ac @dir/sub @dir",
        "du -ac @twice/sub @twice",
    ] {
        compare(command);
    }
}

#[test]
fn mv() {
    for command in [
        "mv @file @new",
        "mv -v @file @new",
        "mv @file @file2",
        "mv -n @file @file2",
        "mv -f @file @file2",
        "mv @file @dir",
        "mv -v @file @file2 @dir",
        "mv @file @dir/",
        "mv @file @nope/new",
        "mv @file @nope/",
        "mv @nope @new",
        "mv @nope @file @dir",
        "mv @file @file2 @nope",
        "mv @file @file2 @link",
        "mv @file @file",
        "mv -v @twice/one @twice/sub/again",
        "mv @twice/one @twice/one",
        "mv -n @twice/one @twice/sub/again",
        "mv @dir @new",
        "mv @dir @other",
        "mv @dir @empty",
        "mv @dir @dir/sub/new",
        "mv @dir @file",
        "mv @file @file-in",
        "mv @link @new",
        "mv @file @dangling",
        "mv @file @dirlink",
        "mv @dir/ @new/",
        "mv @dir/one @twice/one @empty",
        "mv -fv @dir/one @twice/one @file @other",
        "mv -n @dir/one @twice/one @empty",
        "mv @dir/one @dir/one @empty",
        "mv @dir @other/dir @empty",
        "mv @other/dir @dir @empty",
        "mv @file @file-in/file @empty",
        "mv @file-in/file @file @empty",
        "mv @file2 @empty/file2 @empty",
    ] {
        compare(command);
    }
}

#[test]
fn cp() {
    for command in [
        "cp @file @new",
        "cp -v @file @new",
        "cp @file @file2",
        "cp -n @file2 @file",
        "cp @file2 @file",
        "cp @file @file2 @dir",
        "cp @file @dir/",
        "cp @file @new/",
        "cp @file @nope/new",
        "cp @file @file/new",
        "cp @nope @new",
        "cp @nope @file @dir",
        "cp @file @file2 @nope",
        "cp @file @file2 @link",
        "cp @file @file",
        "cp @link @file",
        "cp @link @new",
        "cp -r @link @new",
        "cp -r @link @file2",
        "cp @file @dangling",
        "cp @file2 @link",
        "cp @dir @new",
        "cp @dir @file @other",
        "cp -r @dir @new",
        "cp -rv @dir @new",
        "cp -r @dir @other",
        "cp -r @dir/ @new/",
        "cp -r @dir/. @other",
        "cp -r @dir @file",
        "cp @file @file-in",
        "cp -r @dirlink @new",
        "cp -r @dirlink/ @new",
        "cp -a @dir @new",
        "cp -p @file2 @new",
        "cp -r @dir @nope/new",
        "cp -r @other @dirlink",
        "cp -r @twice/. @dirlink/sub @other",
        "cp -r @dangling @dir @other",
        "cp -p @file2 @link",
        "cp -r @dir @dangling",
        "cp -f @file @file2",
    ] {
        compare(command);
    }
}
