//! A file system that takes all data, and reports at close(2) that it has no room for it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use fuser::{
    BackgroundSession, Config, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyWrite, Request,
    WriteFlags, spawn_mount,
};

use crate::fixture::{Server, assert_exit, run, spillway};
use crate::fuse::attributes;
use crate::skip::skip;

const FILE: INodeNo = INodeNo(2);

/// Each name can be created, again and again.
struct Full;

/// Mounts it; `None` where that is not allowed.
fn mount(at: &Path) -> Option<BackgroundSession> {
    fs::create_dir(at).unwrap();
    let mounted = spawn_mount(Full, at, &Config::default());
    mounted.map_err(|error| skip(format_args!("FUSE cannot be mounted here: {error}"))).ok()
}

impl Filesystem for Full {
    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &attributes(inode));
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let (handle, flags) = (FileHandle(0), FopenFlags::empty());
        reply.created(&Duration::ZERO, &attributes(FILE), Generation(0), handle, flags);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(u32::try_from(data.len()).unwrap());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSPC);
    }
}

#[test]
fn cp_reports_data_that_is_refused_at_close() {
    let server = Server::start();
    server.put("file", "data");
    let Some(_mounted) = mount(&server.beside("full")) else { return };
    let to = server.beside("full/file").display().to_string();
    for option in ["--", "-p"] {
        let line = format!("spillway cp: error writing '{to}': No space left on device");
        assert_exit(&run(["cp", option, &server.url("file"), &to]), 1, &line);
    }
}

#[test]
fn cat_reports_output_that_is_refused_at_close() {
    let server = Server::start();
    server.put("file", "data");
    let Some(_mounted) = mount(&server.beside("full")) else { return };
    let stdout = File::create(server.beside("full/output")).unwrap();
    let mut command = spillway();
    command.args(["cat", &server.url("file")]).stdout(stdout);
    let output = command.output().unwrap();
    assert_exit(&output, 1, "spillway cat: write error: No space left on device");
}
