//! The subjects of an experiment: servers that it starts, in their modes and builds, and servers
//! that run already.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use client::NfsUrl;
use io::IoMode;

use crate::load::{Observed, Version, Watch, remove_files};
use crate::options::{Named, Place, TargetOptions, given_name};
use crate::record::Run;
use crate::rig::{
    BlockDevice, CachedFiles, FileSystem, NetworkLink, ServerOptions, ServerProcess, Throttle,
    Watched, cached_files,
};
use crate::stage::{Relays, Stage, own_directory};
use crate::{Error, Result};

/// A subject of an experiment.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// Its name in the records.
    pub(crate) name: String,
    /// The version of NFS that loads speak.
    pub(crate) version: Version,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// A server that is started for each measurement.
    Own(Own),
    /// A server that runs already.
    Given(Given),
}

/// A server that runs already, and what is known of it.
#[derive(Clone, Debug)]
struct Given {
    url: NfsUrl,
    /// The name of the directory in which the files of this subject are made.
    directory: String,
    pid: Option<u32>,
    files: Option<PathBuf>,
}

/// How a server of ours is started.
#[derive(Clone, Debug)]
struct Own {
    program: PathBuf,
    directory: PathBuf,
    mode: Option<IoMode>,
    arguments: Vec<String>,
    memory_limit_bytes: Option<u64>,
}

impl Subject {
    /// The subjects of the options: each directory in each mode and build, and each URL; all in
    /// each of `versions`, or in version 3 if there are none. `program` is this program; `place`
    /// makes the working directory in a given one.
    ///
    /// # Errors
    /// [`Error::Misuse`]: two have one name, or an option names none of them. Those of `place`.
    pub(crate) fn all(
        options: &TargetOptions,
        versions: &[Version],
        program: &Path,
        mut place: impl FnMut(&Path) -> Result<PathBuf>,
    ) -> Result<Vec<Self>> {
        let mut subjects = Vec::new();
        let versions: Vec<_> = match versions {
            [] => vec![None],
            versions => versions.iter().copied().map(Some).collect(),
        };
        for target in &options.targets {
            match &target.value {
                Place::Url(url) => {
                    let name = given_name(target.name.as_deref(), url);
                    for version in versions.iter().copied() {
                        let number = subjects.len();
                        subjects.push(Self::given(&name, version, url, number, options));
                    }
                }
                Place::Directory(directory) => {
                    let (name, directory) = (target.name.as_deref(), place(directory)?);
                    let own = |version| own(name, version, &directory, options, program);
                    subjects.extend(versions.iter().copied().flat_map(own));
                }
            }
        }
        check_names(&subjects, options)?;
        Ok(subjects)
    }

    /// `number` is its place among the subjects.
    fn given(
        name: &str,
        version: Option<Version>,
        url: &NfsUrl,
        number: usize,
        options: &TargetOptions,
    ) -> Self {
        let pid = of(name, &options.pids).copied();
        let files = of(name, &options.files).cloned();
        let words = [Some(name.to_owned()), version.map(version_word)];
        Self {
            name: words.into_iter().flatten().collect::<Vec<_>>().join(" "),
            version: version.unwrap_or_default(),
            what: What::Given(Given {
                url: url.clone(),
                directory: own_directory(number),
                pid,
                files,
            }),
        }
    }

    /// Whether a load can be two clients to it, with addresses of their own: if it is mounted at
    /// 127.0.0.0/8, and no relay is in front of it.
    ///
    /// # Errors
    /// [`Error::Call`]: a server that runs already does not answer.
    pub(crate) fn distinguishes_clients(&self, stage: &Stage) -> Result<bool> {
        if stage.relays_calls() {
            return Ok(false);
        }
        match &self.what {
            // It listens on 127.0.0.1, or in a name space of its own.
            What::Own(_) => Ok(stage.namespace().is_none()),
            What::Given(given) => Ok(is_ipv4_loopback(stage.find(&given.url)?.nfs_address().ip())),
        }
    }

    /// Its description for the record.
    #[must_use]
    pub(crate) fn described(&self) -> String {
        let mut words = match &self.what {
            What::Own(own) => {
                let mut words = format!("{} serve", own.program.display());
                if let Some(mode) = own.mode {
                    words += &format!(" --read-mode {mode} --write-mode {mode}");
                }
                own.arguments.iter().for_each(|argument| words += &format!(" {argument}"));
                words
            }
            What::Given(given) => given.url.to_string(),
        };
        if self.version != Version::V3 {
            words += &format!("; the load speaks version {}", self.version);
        }
        words
    }

    /// The name of its directory on a server that ran already.
    #[must_use]
    pub(crate) fn directory(&self) -> Option<&str> {
        match &self.what {
            What::Own(_) => None,
            What::Given(given) => Some(&given.directory),
        }
    }

    /// The directory of its files on this machine, if it is known.
    #[must_use]
    pub(crate) fn files(&self) -> Option<&Path> {
        match &self.what {
            What::Own(own) => Some(&own.directory),
            What::Given(given) => given.files.as_deref(),
        }
    }

    /// Starts it, if it is ours to start.
    ///
    /// # Errors
    /// Those of [`ServerProcess::start`]; [`Error::Machine`]: its directory or its memory group
    /// cannot be made, or the process that was named is not there. Those of [`Stage::relays`].
    pub(crate) fn start(&self, stage: &Stage) -> Result<Running> {
        let mut running = match &self.what {
            What::Own(own) => own.start(stage)?,
            What::Given(Given { url, pid, files, .. }) => Running {
                url: url.clone(),
                relays: None,
                server: None,
                _throttle: None,
                watched: pid.map(Watched::new).transpose()?,
                device: device_of(files.as_deref())?,
                files: files.clone(),
            },
        };
        running.relays = stage.relays(&running.url)?;
        if let Some(relays) = &running.relays {
            running.url = relays.url.clone();
        }
        Ok(running)
    }

    /// Removes the files of these names, and their directory, from a server that ran already; what
    /// is ours goes with its directory.
    ///
    /// # Errors
    /// [`Error::Call`]: the server refuses, or is gone.
    pub(crate) fn tidy(&self, stage: &Stage, names: impl Iterator<Item = String>) -> Result<()> {
        // Its process need not be the watched one any more: a supervisor may have restarted it.
        let What::Given(Given { url, directory, .. }) = &self.what else { return Ok(()) };
        if !stage.has_made(directory) {
            return Ok(());
        }
        let export = stage.mount(url, self.version, Some(directory))?;
        stage.block_on(remove_files(&export.nfs, export.directory, names))?;
        stage.remove_directory(url, directory)
    }
}

/// Writes the subjects, and the file systems of their files, to the record of the run.
///
/// # Errors
/// [`Error::Machine`]: a directory cannot be examined.
pub(crate) fn describe(subjects: &[Subject], run: &mut Run) -> Result<()> {
    let mut systems = Vec::new();
    for subject in subjects {
        run.subjects.insert(subject.name.clone(), subject.described());
        let Some(files) = subject.files() else { continue };
        // The subject's own directory may not be there yet.
        let there = files.ancestors().find(|path| path.exists());
        let system = FileSystem::described(there.unwrap_or(files))?;
        if !systems.contains(&system) {
            systems.push(system);
        }
    }
    run.file_system = systems.join("; ");
    Ok(())
}

impl Own {
    fn start(&self, stage: &Stage) -> Result<Running> {
        let made = fs::create_dir_all(&self.directory);
        made.map_err(Error::machine(format!("cannot make {}", self.directory.display())))?;
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy();
        let group = stage.group(&name, self.memory_limit_bytes)?;
        let throttle = stage.throttle(&self.directory, group.as_ref())?;
        let here = ServerOptions::new(self.program.clone(), self.directory.clone());
        let namespace = stage.namespace();
        let server = ServerProcess::start(&ServerOptions {
            read_mode: self.mode,
            write_mode: self.mode,
            flags: self.arguments.iter().map(Into::into).collect(),
            memory_group: group,
            namespace,
            address: namespace.map_or(here.address, |_| NetworkLink::SERVER_ADDRESS),
            ..here
        })?;
        Ok(Running {
            url: server.url().parse().expect("it is made of an address"),
            relays: None,
            watched: Some(server.watched().clone()),
            server: Some(server),
            device: device_of(Some(&self.directory))?,
            files: Some(self.directory.clone()),
            _throttle: Some(throttle),
        })
    }
}

fn device_of(files: Option<&Path>) -> Result<Option<BlockDevice>> {
    Ok(files.map(BlockDevice::under).transpose()?.flatten())
}

/// Our own server on `directory`, in each build and mode.
fn own(
    name: Option<&str>,
    version: Option<Version>,
    directory: &Path,
    options: &TargetOptions,
    program: &Path,
) -> Vec<Subject> {
    let this = [Named { name: None, value: program.to_owned() }];
    let programs = if options.programs.is_empty() { &this[..] } else { &options.programs };
    let modes: Vec<_> = match &options.modes[..] {
        [] => vec![None],
        modes => modes.iter().copied().map(Some).collect(),
    };
    let each = programs.iter().flat_map(|build| modes.iter().map(move |mode| (build, *mode)));
    each.map(|(build, mode)| {
        let file_name = build.value.file_name().map(|name| name.to_string_lossy().into_owned());
        let build_name = build.name.clone().or(file_name).filter(|_| !options.programs.is_empty());
        let mode_name = mode.map(|mode| mode.to_string());
        let words = [name.map(str::to_owned), build_name, mode_name, version.map(version_word)];
        let words: Vec<_> = words.into_iter().flatten().collect();
        let name = if words.is_empty() { OURS.to_owned() } else { words.join(" ") };
        let version = version.unwrap_or_default();
        let mut arguments = options.server_args.clone();
        if version != Version::V3 {
            arguments.extend(["--nfs-versions".to_owned(), format!("3,{version}")]);
        }
        let own = Own {
            program: build.value.clone(),
            directory: directory.join(name.replace(['/', ' '], "-")),
            mode,
            arguments,
            memory_limit_bytes: options.memory_limit.map(|size| size.0),
        };
        Subject { name, version, what: What::Own(own) }
    })
    .collect()
}

fn check_names(subjects: &[Subject], options: &TargetOptions) -> Result<()> {
    for (at, subject) in subjects.iter().enumerate() {
        if subjects[..at].iter().any(|other| other.name == subject.name) {
            let name = &subject.name;
            let what = format!("two of the subjects are named {name}; rename one with other=…");
            return Err(Error::Misuse(what));
        }
    }
    let pids = options.pids.iter().map(|pid| &pid.name);
    for name in pids.chain(options.files.iter().map(|files| &files.name)) {
        let is_given = options.urls().any(|(given, _)| name.as_ref() == Some(&given));
        if !is_given {
            let name = name.as_deref().unwrap_or_default();
            return Err(Error::Misuse(format!("no URL is named `{name}`")));
        }
    }
    Ok(())
}

fn version_word(version: Version) -> String {
    format!("v{version}")
}

/// The value with this name.
fn of<'a, T>(name: &str, list: &'a [Named<T>]) -> Option<&'a T> {
    list.iter().find(|named| named.name.as_deref() == Some(name)).map(|named| &named.value)
}

/// A running subject.
#[derive(Debug)]
pub(crate) struct Running {
    /// The URL to mount.
    pub(crate) url: NfsUrl,
    /// Dropped before the server, so that it sees its clients leave.
    relays: Option<Relays>,
    server: Option<ServerProcess>,
    watched: Option<Watched>,
    device: Option<BlockDevice>,
    files: Option<PathBuf>,
    _throttle: Option<Throttle>,
}

impl Running {
    /// Its process, if that is on this machine and known.
    #[must_use]
    pub(crate) fn watched(&self) -> Option<&Watched> {
        self.watched.as_ref()
    }

    /// The device under its files, if it is known.
    #[must_use]
    pub(crate) fn device(&self) -> Option<&BlockDevice> {
        self.device.as_ref()
    }

    /// The directory of its files on this machine, if it is known.
    #[must_use]
    pub(crate) fn files(&self) -> Option<&Path> {
        self.files.as_deref()
    }

    /// The page cache of its files, if their place is known.
    ///
    /// # Errors
    /// [`Error::Machine`]: they cannot be examined.
    pub(crate) fn cached(&self) -> Result<Option<CachedFiles>> {
        self.files().map(cached_files).transpose()
    }

    /// Its counters since its start; none if it is not ours.
    ///
    /// # Errors
    /// [`Error::Server`]: it died, or does not answer.
    pub(crate) fn counters(&self) -> Result<BTreeMap<String, u64>> {
        self.server.as_ref().map_or_else(|| Ok(BTreeMap::new()), ServerProcess::counters)
    }

    /// An observer during a load.
    #[must_use]
    pub(crate) fn watch(&self) -> Watch<'_> {
        // A server that is gone is found out by its load.
        let look = || self.look().unwrap_or_default();
        Watch { observe: Box::new(look), progress: Box::new(|_| {}) }
    }

    /// Its memory and page cache now: the page cache is that of its memory group, without a group
    /// that of its files.
    ///
    /// # Errors
    /// [`Error::Server`]: it is gone. [`Error::Machine`]: its group, or its files, cannot be
    /// examined.
    pub(crate) fn look(&self) -> Result<Observed> {
        let watched = self.watched();
        let server_rss_bytes = watched.map(Watched::rss_bytes).transpose()?;
        let group = watched.and_then(|watched| watched.memory_group.as_ref());
        let (page_cache_bytes, dirty_bytes) = match group {
            Some(group) => {
                let cache = group.page_cache()?;
                (Some(cache.cached_bytes), Some(cache.dirty_bytes + cache.writeback_bytes))
            }
            None => {
                let files = self.cached()?.unwrap_or_default();
                (files.cached_bytes, files.dirty_bytes)
            }
        };
        Ok(Observed { server_rss_bytes, page_cache_bytes, dirty_bytes })
    }

    /// The cause of a failed measurement: the death of the server, if it is ours and died. Calls,
    /// connections, and the files of the process in `/proc` fail then.
    #[must_use]
    pub(crate) fn cause_of(&self, error: Error) -> Error {
        let Some(server) = &self.server else { return error };
        match error {
            Error::Call { .. } | Error::Server(_) | Error::Machine { .. } | Error::Program(_) => {}
            Error::Misuse(_) | Error::Stdout(_) | Error::Interrupted | Error::Record { .. } => {
                return error;
            }
        }
        // A process that is killed closes its connections a little before its end can be seen.
        let deadline = Instant::now() + END_MAX;
        loop {
            match server.check_alive() {
                Err(death) => return death,
                Ok(()) if Instant::now() >= deadline => return error,
                Ok(()) => thread::sleep(END_MAX / 50),
            }
        }
    }

    /// Ends it, if it is ours.
    ///
    /// # Errors
    /// [`Error::Server`]: it died before, or failed at its end.
    pub(crate) fn stop(self) -> Result<()> {
        drop(self.relays);
        self.server.map_or(Ok(()), ServerProcess::stop)
    }
}

/// How long a process may take to end once it has closed its connections.
const END_MAX: Duration = Duration::from_millis(100);
/// The name of our server if it is the only subject.
const OURS: &str = "spillway";

/// Whether an address is at 127.0.0.0/8.
fn is_ipv4_loopback(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_ipv4() && ip.is_loopback()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::VersionOptions;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: TargetOptions,
        #[command(flatten)]
        versions: VersionOptions,
    }

    fn subjects(arguments: &[&str]) -> Result<Vec<Subject>> {
        let Cli { options, versions } = Cli::parse_from(["bench"].iter().chain(arguments));
        let versions = &versions.nfs_versions;
        Subject::all(&options, versions, Path::new("/bin/spillway"), |dir| Ok(dir.join("bench")))
    }

    fn names(arguments: &[&str]) -> Vec<String> {
        let subjects = subjects(arguments).expect("the arguments are right");
        subjects.into_iter().map(|subject| subject.name).collect()
    }

    #[test]
    fn clients_have_addresses_of_their_own_at_127_alone() {
        let found = ["127.0.0.1", "127.3.2.1", "::ffff:127.0.0.1", "::1", "192.0.2.1"]
            .map(|ip| is_ipv4_loopback(ip.parse().unwrap()));
        assert_eq!(found, [true, true, true, false, false]);
    }

    #[test]
    fn names_contain_the_differing_options() {
        assert_eq!(names(&["/d"]), ["spillway"]);
        assert_eq!(names(&["/d", "--modes", "direct,auto"]), ["direct", "auto"]);
        let builds = ["/d", "--program", "old=/a/spillway", "--program", "/b/new"];
        assert_eq!(names(&builds), ["old", "new"]);
        let all = ["xfs=/d", "g=nfs://h/x", "nfs://h:99/x", "--modes", "auto,direct"];
        assert_eq!(names(&all), ["xfs auto", "xfs direct", "g", "h:99"]);
    }

    #[test]
    fn each_version_is_a_subject() {
        let both = ["/d", "g=nfs://h/x", "--nfs-versions", "3,4.2", "--pid", "g=1"];
        assert_eq!(names(&both), ["v3", "v4.2", "g v3", "g v4.2"]);
        let described: Vec<_> =
            subjects(&both).expect("right").iter().map(Subject::described).collect();
        assert_eq!(described[0], "/bin/spillway serve");
        let spoken = "; the load speaks version 4.2";
        assert_eq!(described[1], format!("/bin/spillway serve --nfs-versions 3,4.2{spoken}"));
        assert_eq!(described[3], format!("nfs://h/x{spoken}"));
        assert_eq!(names(&["/d", "--nfs-versions", "4.1", "--modes", "auto"]), ["auto v4.1"]);
    }

    #[test]
    fn directories_are_their_own() {
        let subjects = subjects(&["xfs=/d", "nfs://h/x", "--modes", "auto"]).expect("right");
        assert_eq!(subjects[0].files(), Some(Path::new("/d/bench/xfs-auto")));
        assert_eq!(subjects[1].files(), None);
        assert_eq!(
            subjects[0].described(),
            "/bin/spillway serve --read-mode auto --write-mode auto"
        );
        assert_eq!(subjects[1].described(), "nfs://h/x");
    }

    #[test]
    fn names_that_mean_two_or_none_are_refused() {
        for (arguments, said) in [
            (&["/a", "/b"][..], "two of the subjects are named spillway; rename one with other=…"),
            (&["/a", "--pid", "x=7"], "no URL is named `x`"),
            (&["x=/a", "--files", "x=/b"], "no URL is named `x`"),
            (&["/a", "--pid", "7"], "no URL is named ``"),
        ] {
            let error = subjects(arguments).expect_err(said);
            assert_eq!(error.to_string(), said);
        }
    }
}
