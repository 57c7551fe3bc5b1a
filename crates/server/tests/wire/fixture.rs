//! A server in this process, on a free port, over a temporary directory.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};
use std::{panic, thread};

use proto::nfs3::FileHandle;
use rustix::fs::{XattrFlags, setxattr};
use spillway_server::Server;
use spillway_server::config::{Config, ConfigError, Overrides};
use spillway_server::counters::Counter;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::client::Client;
use crate::skip::{skip, skip_in_ci_too};

/// An export that trusts its clients, so that tests see files as they made them, and that does not
/// wait for the disk at each change of a name.
pub(crate) const TRUSTING: &str = r#"
    [[export]]
    path = "$DIR/export"
    name = "/export"
    squash = "none"
    sync = false
"#;

/// A running server and the directory it works in. `export` in there is what it serves.
pub(crate) struct Fixture {
    dir: TempDir,
    runtime: Runtime,
    server: Option<Server>,
    config: String,
}

impl Fixture {
    /// Serves `/export` to clients that are trusted.
    pub(crate) fn new() -> Self {
        Self::with(TRUSTING)
    }

    /// Serves the configuration; `$DIR` in it is the directory of the test.
    pub(crate) fn with(config: &str) -> Self {
        Self::prepared(config, |_| {})
    }

    /// As [`Self::with`], after something was done to the directory.
    pub(crate) fn prepared(config: &str, prepare: impl FnOnce(&Path)) -> Self {
        END_ON_PANIC.call_once(end_on_panic_of_server);
        let dir = TempDir::new().unwrap();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        set_mode(&export, 0o777);
        prepare(dir.path());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let mut fixture = Self { dir, runtime, server: None, config: config.to_owned() };
        fixture.start();
        fixture
    }

    /// As [`Self::prepared`], over what `prepare` mounts. `None` if that skips the test.
    pub(crate) fn over<M>(
        config: &str,
        prepare: impl FnOnce(&Path) -> Option<M>,
    ) -> Option<(Self, M)> {
        let mut mounted = None;
        let fixture = Self::prepared(config, |dir| mounted = prepare(dir));
        Some((fixture, mounted?))
    }

    /// Serves `/export` to clients that are trusted, with READs and WRITEs in these modes, after
    /// `settings`.
    pub(crate) fn in_modes(settings: &str, read: &str, write: &str) -> Self {
        Self::with(&in_modes(settings, read, write))
    }

    /// Settings in front of the exports of [`Self::new`].
    pub(crate) fn with_settings(settings: &str) -> Self {
        Self::with(&format!("{settings}\n{TRUSTING}"))
    }

    fn parse(&self, text: &str) -> Config {
        self.try_parse(text).unwrap()
    }

    fn try_parse(&self, text: &str) -> Result<Config, ConfigError> {
        let text = text.replace("$DIR", self.dir.path().to_str().unwrap());
        let overrides = Overrides {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
            state_dir: Some(self.dir.path().join("state")),
            ..Overrides::default()
        };
        Config::parse(&text, Path::new("test.toml"), &overrides)
    }

    pub(crate) fn start(&mut self) {
        let began = Instant::now();
        let server = loop {
            let config = self.parse(&self.config);
            match self.runtime.block_on(Server::start(config)) {
                // A program that another test is starting holds the lock of the server before until
                // its `exec`.
                Err(error)
                    if format!("{error:?}").starts_with("StateDir(InUse")
                        && began.elapsed() < Duration::from_secs(20) =>
                {
                    thread::sleep(Duration::from_millis(10));
                }
                started => break started.unwrap(),
            }
        };
        self.server = Some(server);
    }

    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            // Some tests have left data behind that no disk takes.
            let _ = self.runtime.block_on(server.shutdown());
        }
    }

    /// Stops the server and starts it again over the same state and files.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start();
    }

    pub(crate) fn reload(&self, config: &str) -> String {
        let config = self.parse(config);
        self.runtime.block_on(self.server().reload(&config)).unwrap()
    }

    /// Why a reload is refused, by the configuration or by the server.
    pub(crate) fn refused_reload(&self, config: &str) -> String {
        let config = match self.try_parse(config) {
            Ok(config) => config,
            Err(error) => return error.to_string(),
        };
        self.runtime.block_on(self.server().reload(&config)).unwrap_err().to_string()
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server().local_addrs()[0]
    }

    pub(crate) fn counter(&self, counter: Counter) -> u64 {
        self.server().counters().value(counter)
    }

    /// All counters that are not 0, for messages.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let values = Counter::ALL.iter().map(|&counter| (counter.name(), self.counter(counter)));
        values.filter(|(_, value)| *value > 0).collect()
    }

    /// One of the server's figures by its name.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let figures = self.server().figures();
        figures.iter().find(|figure| figure.0 == name).expect("a figure of the server").1
    }

    /// A new connection.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// A new connection and the root of `/export`.
    pub(crate) fn mounted(&self) -> (Client, FileHandle) {
        let mut client = self.client();
        let root = client.mnt("/export");
        (client, root)
    }

    /// A path below the directory of the test.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// A path below the exported directory.
    pub(crate) fn exported(&self, path: &str) -> PathBuf {
        self.path("export").join(path)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The configuration of [`Fixture::in_modes`], to be reloaded with other modes.
pub(crate) fn in_modes(settings: &str, read: &str, write: &str) -> String {
    format!(
        "{settings}\n{TRUSTING}\n    io_cache_read = \"{read}\"\n    io_cache_write = \"{write}\""
    )
}

static END_ON_PANIC: Once = Once::new();

/// A panic on a thread of the server would end one task, and its client would only time out. Here
/// it ends all tests, after saying where it was.
fn end_on_panic_of_server() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        if name.starts_with("tokio-") || name.starts_with("spillway-") {
            std::process::abort();
        }
    }));
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Whether the server can act as other users here; prints why a test is skipped.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("only root can act as other users");
    }
    root
}

/// Runs a command of the system. The error is why it failed.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<(), String> {
    match std::process::Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            Err(format!("{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr)))
        }
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// Runs a command without which a test is skipped; returns whether it succeeded.
pub(crate) fn run_or_skip(program: &str, args: &[&str]) -> bool {
    run(program, args).map_err(skip).is_ok()
}

#[test]
fn a_file_system_that_cannot_be_made_fails_a_test_in_ci() {
    if !is_root() {
        return;
    }
    let mut test = std::process::Command::new("/proc/self/exe");
    test.args(["--exact", "stamps::replies_during_writes_on_xfs_do_not_have_their_stamp"]);
    let output = test.env("CI", "true").env("PATH", "/nonexistent").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("skipped with CI=true: mkfs.xfs"), "{text}");
}

/// A POSIX access control list in the kernel's format: that of `mode` and of more users with their
/// permissions (`rwx` as 4, 2, 1), with a mask that takes away nothing.
pub(crate) fn access_list(mode: u32, users: &[(u32, u16)]) -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let [owner, group, other] = [6, 3, 0].map(|shift| u16::try_from(mode >> shift & 7).unwrap());
    let mask = users.iter().fold(group, |mask, (_, permissions)| mask | permissions);
    let mut entries = vec![(0x01, owner, NO_ID)];
    entries.extend(users.iter().map(|&(id, permissions)| (0x02, permissions, id)));
    entries.extend([(0x04, group, NO_ID), (0x10, mask, NO_ID), (0x20, other, NO_ID)]);
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// Gives a file an access control list, as [`access_list`]. `false`, with the reason printed, on a
/// file system without.
pub(crate) fn set_access_list(path: &Path, mode: u32, users: &[(u32, u16)]) -> bool {
    let (list, flags) = (access_list(mode, users), XattrFlags::empty());
    let set = setxattr(path, "system.posix_acl_access", &list, flags);
    if let Err(error) = &set {
        eprintln!("{}: access control list: {error}", path.display());
    }
    set.is_ok()
}

/// A file system mounted by a test, unmounted at its end. Where it cannot be mounted, `None`, and
/// the test is skipped.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    /// Mounts a tmpfs of so many KiB.
    pub(crate) fn tmpfs(at: &Path, kib: u32) -> Option<Self> {
        let size = format!("size={kib}k,mode=777");
        run_or_skip("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", at.to_str().unwrap()])
            .then(|| Self(at.to_owned()))
    }

    /// Mounts a tmpfs of so many KiB in the directory of a test as what is exported.
    pub(crate) fn tmpfs_export(dir: &Path, kib: u32) -> Option<Self> {
        Self::tmpfs(&dir.join("export"), kib)
    }

    /// Shows a directory at another place.
    pub(crate) fn bind(directory: &Path, at: &Path) -> Option<Self> {
        run_or_skip("mount", &["--bind", directory.to_str().unwrap(), at.to_str().unwrap()])
            .then(|| Self(at.to_owned()))
    }

    /// Mounts a tmpfs of so many inodes.
    pub(crate) fn tmpfs_of_inodes(at: &Path, inodes: u32) -> Option<Self> {
        let options = format!("nr_inodes={inodes},mode=777");
        run_or_skip("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", at.to_str().unwrap()])
            .then(|| Self(at.to_owned()))
    }

    /// Mounts a file that holds a file system.
    pub(crate) fn image(image: &Path, at: &Path) -> Option<Self> {
        let (image, to) = (image.to_str().unwrap(), at.to_str().unwrap());
        run_or_skip("mount", &["-o", "loop", image, to]).then(|| Self(at.to_owned()))
    }

    /// Makes an ext4 of 64 MiB in the directory of a test and mounts it as what is exported.
    pub(crate) fn ext4_export(dir: &Path) -> Option<Self> {
        let image = dir.join("image");
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let made = run_or_skip("mkfs.ext4", &["-q", "-F", image.to_str().unwrap()]);
        made.then(|| Self::image(&image, &dir.join("export"))).flatten()
    }

    /// Mounts an overlay over the empty directory `lower`, with its upper layer in `upper`.
    pub(crate) fn overlay(lower: &Path, upper: &Path, at: &Path) -> Option<Self> {
        let (data, work) = (upper.join("data"), upper.join("work"));
        [lower, &data, &work].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        set_mode(&data, 0o777);
        let [lower, data, work] = [lower, &data, &work].map(|dir| dir.to_str().unwrap());
        let layers = format!("lowerdir={lower},upperdir={data},workdir={work}");
        run_or_skip("mount", &["-t", "overlay", "-o", &layers, "overlay", at.to_str().unwrap()])
            .then(|| Self(at.to_owned()))
    }

    /// Mounts a block device with a file system that newer kernels know.
    pub(crate) fn device(device: &Path, at: &Path) -> Option<Self> {
        let (device, to) = (device.to_str().unwrap(), at.to_str().unwrap());
        run("mount", &[device, to]).map_err(skip_in_ci_too).is_ok().then(|| Self(at.to_owned()))
    }
}

/// A file system that takes no change until this is dropped.
pub(crate) struct Frozen(PathBuf);

impl Frozen {
    /// Freezes the file system at a path; `None`, and the test is skipped, where that fails.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        run_or_skip("fsfreeze", &["--freeze", path.to_str().unwrap()])
            .then(|| Self(path.to_owned()))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = run("fsfreeze", &["--unfreeze", self.0.to_str().unwrap()]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The server may still hold a descriptor there: detached now, gone when that is closed.
        let _ = run("umount", &["--lazy", self.0.to_str().unwrap()]);
    }
}
