//! The stage of an experiment: directories, file systems made for it, and the network to servers.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use client::mount3::{self, Mount3};
use client::{Identity, MountOptions, Nfs3, NfsUrl, Recovery};
use proto::nfs3::{FileHandle, SetAttributes};
use tokio::runtime::{self, Runtime};

use crate::load::{Service, TIMEOUT, Version};
use crate::options::TargetOptions;
use crate::record::Run;
use crate::rig::{
    DeviceLimits, MemoryGroup, NetworkLimits, NetworkLink, NetworkNamespace, Relay, ScratchDisk,
    ScratchKind, Throttle, WorkDirectory,
};
use crate::{Error, Result, successor};

/// File systems made for the run, slow devices and slow networks.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Surroundings")]
pub(crate) struct SurroundingsOptions {
    /// Make a file system of this kind and size in DIR for the run, on a loop device: xfs, ext4 or
    /// btrfs, as in xfs:8GiB; needs root [default: DIR as it is]
    #[arg(long, value_name = "KIND:SIZE")]
    scratch: Option<ScratchKind>,

    #[command(flatten)]
    device: DeviceLimits,

    #[command(flatten)]
    network: NetworkLimits,

    /// The network is there already, with servers in this name space: see [`network_link`].
    #[arg(long, hide = true)]
    server_namespace: Option<String>,
}

impl SurroundingsOptions {
    /// Options that were given and that are applied to servers that we start, and to no others.
    fn of_started_servers(&self, targets: &TargetOptions) -> impl Iterator<Item = &'static str> {
        let options = [
            ("--memory-limit", targets.memory_limit.is_some()),
            ("--scratch", self.scratch.is_some()),
            ("--device-rate", self.device.rate.is_some()),
            ("--device-iops", self.device.operations_per_sec.is_some()),
            ("--device-delay", self.device.delay.is_some()),
        ];
        options.into_iter().filter_map(|(option, is_given)| is_given.then_some(option))
    }
}

/// The surroundings of an experiment; undone when dropped.
pub(crate) struct Stage {
    options: SurroundingsOptions,
    /// Where servers are started, if not here.
    namespace: Option<NetworkNamespace>,
    places: Vec<Place>,
    /// Names of the directories that were made on given servers and not yet removed.
    made: RefCell<BTreeSet<String>>,
    runtime: Runtime,
}

/// The place of the files.
enum Place {
    /// A file system of its own.
    Disk(ScratchDisk),
    /// A directory in the one that was given.
    Directory(WorkDirectory),
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Self::Disk(disk) => disk.directory(),
            Self::Directory(directory) => directory.path(),
        }
    }
}

/// Carries a command with a slow network out in name spaces of its own, if this kernel has them and
/// all servers are ours to start there: by `program`, which is this one, with the same `arguments`
/// and one option more. `None` if the command is to run here, through a relay or on the network as
/// it is.
///
/// # Errors
/// [`Error::Program`]: `ip` or `tc` refused.
pub(crate) fn in_network_link(
    options: &SurroundingsOptions,
    targets: &TargetOptions,
    program: &Path,
    arguments: &[OsString],
) -> Result<Option<ExitStatus>> {
    if options.server_namespace.is_some() {
        successor::follow()?;
    }
    let is_here = options.network.is_none() || options.server_namespace.is_some();
    if is_here || !targets.are_directories() || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let link = match NetworkLink::create(&options.network) {
        Ok(link) => link,
        // This kernel has no netem.
        Err(Error::Machine { source, .. }) if source.kind() == ErrorKind::Unsupported => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let prefix = link.client_namespace().prefix();
    let mut command = Command::new(&prefix[0]);
    let option = ["--server-namespace", link.server_namespace().name()];
    let arguments = successor::arguments_with(arguments, &option);
    command.args(&prefix[1..]).arg(program).args(arguments);
    successor::carry_out(command).map(Some)
}

/// A slow way to a server.
#[derive(Debug)]
pub(crate) struct Relays {
    /// The server at its end.
    pub(crate) url: NfsUrl,
    _nfs: Relay,
    _mount: Relay,
}

/// A directory of a server, and a connection for calls to it.
pub(crate) struct MountedDirectory {
    /// Calls to its server.
    pub(crate) nfs: Nfs3,
    /// Where files are made.
    pub(crate) directory: FileHandle,
    /// Its path.
    path: Vec<u8>,
    /// The version that loads speak.
    version: Version,
}

impl Stage {
    /// Prepares the stage for these targets, and records it. An option that does nothing for the
    /// servers that run already is left out for them. The experiment has up to `connections` to a
    /// server at once, those of mounts included.
    ///
    /// # Errors
    /// [`Error::Misuse`]: an option would do nothing for any target; a relay does not carry so many
    /// connections. [`Error::Machine`]: the runtime cannot be started.
    pub(crate) fn set(
        options: &SurroundingsOptions,
        targets: &TargetOptions,
        connections: usize,
        run: &mut Run,
    ) -> Result<Self> {
        let starts_none = targets.urls().count() == targets.targets.len();
        let mut for_started = options.of_started_servers(targets).chain(targets.of_directories());
        if let Some(option) = for_started.next().filter(|_| starts_none) {
            let what = format!("{option} is for servers that are started: name a directory");
            return Err(Error::Misuse(what));
        }
        for option in options.of_started_servers(targets) {
            for (name, _) in targets.urls() {
                run.left_out.push(format!("{option} was not applied to {name}, which ran before."));
            }
        }
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::machine("cannot wait for the network"))?;
        let (network, namespace) = (options.network, options.server_namespace.as_ref());
        run.network = match namespace {
            Some(_) => format!("a link between two name spaces, netem: {network}"),
            None if network.is_none() => "loopback, or the servers' own".to_owned(),
            None => format!("a relay in the load's process: {network}"),
        };
        run.storage = options.device.to_string();
        let namespace = namespace.map(NetworkNamespace::named);
        let (places, made) = (Vec::new(), RefCell::default());
        let stage = Self { options: options.clone(), namespace, places, made, runtime };
        // The relay would carry the rest one after the other.
        if stage.relays_calls() && connections > Relay::CONNECTIONS_MAX {
            let most = Relay::CONNECTIONS_MAX;
            return Err(Error::Misuse(format!(
                "the network is slowed down by a relay, which carries up to {most} connections at \
                 once, and the experiment has {connections}"
            )));
        }
        Ok(stage)
    }

    /// A new directory in the one that was given, or a new file system, which ends with the
    /// experiment.
    ///
    /// # Errors
    /// [`Error::Machine`]: it cannot be made. Those of [`ScratchDisk::create`].
    pub(crate) fn place(&mut self, directory: &Path) -> Result<PathBuf> {
        let place = if let Some(kind) = &self.options.scratch {
            Place::Disk(ScratchDisk::create(kind, directory, &self.options.device)?)
        } else {
            if self.options.device.delay.is_some() {
                let why = "--device-delay needs a file system of its own: --scratch";
                return Err(Error::Misuse(why.to_owned()));
            }
            Place::Directory(WorkDirectory::create(directory)?)
        };
        let path = place.path().to_owned();
        self.places.push(place);
        Ok(path)
    }

    /// Bounds the device under a directory, for a server in `group`, until this is dropped.
    ///
    /// # Errors
    /// Those of [`Throttle::apply`].
    pub(crate) fn throttle(
        &self,
        directory: &Path,
        group: Option<&MemoryGroup>,
    ) -> Result<Throttle> {
        let disk = self.places.iter().find_map(|place| match place {
            Place::Disk(disk) => directory.starts_with(disk.directory()).then_some(disk),
            Place::Directory(_) => None,
        });
        Throttle::apply(&self.options.device, directory, disk, group)
    }

    /// The memory group of a server, named after it: with a bound, or only to bound what its device
    /// does.
    ///
    /// # Errors
    /// Those of [`MemoryGroup::create`].
    pub(crate) fn group(
        &self,
        name: &str,
        limit_bytes: Option<u64>,
    ) -> Result<Option<MemoryGroup>> {
        if limit_bytes.is_none() && !self.options.device.bounds_throughput() {
            return Ok(None);
        }
        MemoryGroup::create(name, limit_bytes).map(Some)
    }

    /// The name space for servers, and the address to listen on there.
    pub(crate) fn namespace(&self) -> Option<&NetworkNamespace> {
        self.namespace.as_ref()
    }

    /// Whether calls go through a relay, which servers take for the client.
    pub(crate) fn relays_calls(&self) -> bool {
        !self.options.network.is_none() && self.namespace.is_none()
    }

    /// The services of a server, at the address of its host that answers.
    ///
    /// # Errors
    /// [`Error::Call`]: the server does not answer.
    pub(crate) fn find(&self, url: &NfsUrl) -> Result<Mount3> {
        let me = Arc::new(Identity::of_process());
        let found = self.block_on(Mount3::find(url, &unmeasured_options(), &me));
        found.map_err(Error::call(format!("cannot mount {url}")))
    }

    /// Starts relays to a server if the network is to be slow and is not: the URL to mount then.
    ///
    /// # Errors
    /// [`Error::Call`]: the server does not answer. [`Error::Machine`]: no port is available.
    pub(crate) fn relays(&self, url: &NfsUrl) -> Result<Option<Relays>> {
        if !self.relays_calls() {
            return Ok(None);
        }
        let found = self.find(url)?;
        let nfs = Relay::start(found.nfs_address(), &self.options.network)?;
        // Mounting is not measured.
        let mount = Relay::start(found.address(), &NetworkLimits::default())?;
        let url = NfsUrl {
            host: nfs.address().ip().to_string(),
            port: Some(nfs.address().port()),
            mount_port: Some(mount.address().port()),
            ..url.clone()
        };
        Ok(Some(Relays { url, _nfs: nfs, _mount: mount }))
    }

    /// Waits for calls.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Mounts a server for an experiment whose loads speak `version`: the root of the export if we
    /// started the server, else the `directory` of this run in it, which the first call makes.
    ///
    /// # Errors
    /// [`Error::Call`]: the server refuses; also if another run has made the directory.
    pub(crate) fn mount(
        &self,
        url: &NfsUrl,
        version: Version,
        directory: Option<&str>,
    ) -> Result<MountedDirectory> {
        let mut mounted = MountedDirectory { version, ..self.mount_url(url)? };
        let Some(name) = directory else { return Ok(mounted) };
        let (nfs, root) = (&mounted.nfs, mounted.directory);
        let what = || Error::call(format!("cannot make the directory {name} on the server"));
        if !self.made.borrow().contains(name) {
            let attributes = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
            self.block_on(nfs.mkdir(root, name.as_bytes(), attributes)).map_err(what())?;
            self.made.borrow_mut().insert(name.to_owned());
        }
        let found = self.block_on(nfs.lookup(root, name.as_bytes()));
        mounted.directory = found.map_err(what())?.object;
        mounted.path.push(b'/');
        mounted.path.extend_from_slice(name.as_bytes());
        Ok(mounted)
    }

    /// The service of a directory.
    ///
    /// # Errors
    /// [`Error::Call`]: FSINFO failed.
    pub(crate) fn service(&self, mounted: &MountedDirectory) -> Result<Service> {
        let service = self.block_on(Service::of(&mounted.nfs, mounted.directory))?;
        Ok(Service { version: mounted.version, path: mounted.path.clone(), ..service })
    }

    /// Mounts the export of a URL.
    ///
    /// # Errors
    /// [`Error::Call`]: the server does not answer, or refuses.
    pub(crate) fn mount_url(&self, url: &NfsUrl) -> Result<MountedDirectory> {
        let me = Arc::new(Identity::of_process());
        let mounted = self.block_on(mount3::mount(url, &unmeasured_options(), &me));
        let mounted = mounted.map_err(Error::call(format!("cannot mount {url}")))?;
        Ok(MountedDirectory {
            nfs: mounted.nfs,
            directory: mounted.root,
            path: url.path.clone(),
            version: Version::V3,
        })
    }

    /// Whether [`Stage::mount`] made this directory on a given server, and it is still there.
    pub(crate) fn has_made(&self, directory: &str) -> bool {
        self.made.borrow().contains(directory)
    }

    /// Removes the directory that [`Stage::mount`] made on a given server.
    ///
    /// # Errors
    /// [`Error::Call`]: it is not empty, or the server is gone.
    pub(crate) fn remove_directory(&self, url: &NfsUrl, directory: &str) -> Result<()> {
        let MountedDirectory { nfs, directory: root, .. } = self.mount_url(url)?;
        let removed = self.block_on(nfs.rmdir(root, directory.as_bytes()));
        removed.map_err(Error::call("cannot remove the directory of the experiment"))?;
        self.made.borrow_mut().remove(directory);
        Ok(())
    }
}

/// The client's defaults, but a call fails after the timeout of a load: a dead server ends the
/// experiment.
pub(crate) fn mount_options() -> MountOptions {
    MountOptions {
        timeout: TIMEOUT,
        retransmissions: 0,
        recovery: Recovery::Soft,
        ..MountOptions::default()
    }
}

/// The options of calls before and after loads.
fn unmeasured_options() -> MountOptions {
    // Ctrl-C is not noticed meanwhile.
    MountOptions { timeout: CALL_TIMEOUT, ..mount_options() }
}

/// The time limit of the calls on names before and after loads.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// The name of a directory of this run on a server. `what` distinguishes the directories of the
/// run.
pub(crate) fn own_directory(what: impl Display) -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().replace('/', "-");
    directory_name(&host, std::process::id(), *BEGAN, what)
}

/// The name has the time in µs: processes in containers can have one host name and one id.
fn directory_name(host: &str, pid: u32, began: SystemTime, what: impl Display) -> String {
    let began_us = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    format!("spillway-bench-{host}-{pid}-{began_us}-{what}")
}

/// When this run named its first directory.
static BEGAN: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);

#[cfg(test)]
mod tests;
