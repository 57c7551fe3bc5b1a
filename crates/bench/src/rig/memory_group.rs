//! Memory cgroups: a bound on a server's memory and the page cache it causes, together.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::undo::Undo;
use crate::{Error, Result};

/// Removes the group; the process in it may still be about to end.
const REMOVE: &str = r#"
tries=0
while [ -d "$1" ] && ! rmdir "$1" 2>/dev/null; do
    tries=$((tries + 1))
    if [ "$tries" -gt 100 ]; then echo "the cgroup $1 is left behind" >&2; exit 1; fi
    sleep 0.05
done
"#;

/// Enters the group that is its first argument and becomes the program behind it.
const ENTER: &str = r#"echo $$ > "$1/cgroup.procs" && shift && exec "$@""#;

/// The two interfaces of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A memory cgroup. One that was made here is removed with its last clone, which the processes in
/// it must not outlive.
#[derive(Clone, Debug)]
pub struct MemoryGroup {
    path: PathBuf,
    version: Version,
    /// `None` for a group that was there.
    _undo: Option<Arc<Undo>>,
}

/// Page cache that is charged to a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCache {
    /// All of it, the following included.
    pub cached_bytes: u64,
    /// Waiting to be written.
    pub dirty_bytes: u64,
    /// On its way to the disk.
    pub writeback_bytes: u64,
}

impl MemoryGroup {
    /// Makes a group below our own; with version 2 of cgroups, below the root. `name` distinguishes
    /// those of this process apart.
    ///
    /// # Errors
    /// [`Error::Machine`]: no memory controller, or no right to make groups.
    pub fn create(name: &str, limit_bytes: Option<u64>) -> Result<Self> {
        let own = Location::of("self")?.ok_or_else(|| {
            no_group("there is no memory controller", std::io::ErrorKind::NotFound.into())
        })?;
        let parent = match own.version {
            Version::V1 => own.path,
            Version::V2 => {
                let why = "the memory controller must be enabled in the root group's \
                           cgroup.subtree_control, by root and outside of a container";
                give(&own.root, "memory").map_err(|error| no_group(why, error))?;
                own.root
            }
        };
        let path = parent.join(format!("spillway-bench-{}-{name}", std::process::id()));
        let undo = Undo::new(REMOVE, &[&path])?;
        let group = Self { path, version: own.version, _undo: Some(Arc::new(undo)) };
        let refused = |what: &str| {
            let what = format!("{what} {} (root may)", group.path.display());
            move |error| no_group(&what, error)
        };
        fs::create_dir(&group.path).map_err(refused("cannot make"))?;
        if let Some(bytes) = limit_bytes {
            let file = group.path.join(group.limit_file());
            fs::write(file, bytes.to_string()).map_err(refused("cannot bound"))?;
        }
        Ok(group)
    }

    /// The group of process `pid`; `None` if it is in the root group, or in ours, which tell more
    /// of others than of it.
    ///
    /// # Errors
    /// [`Error::Machine`]: there is no such process.
    pub fn of(pid: u32) -> Result<Option<Self>> {
        let own = Location::of("self")?;
        let location = Location::of(&pid.to_string())?
            .filter(|location| !location.is_root() && Some(location) != own.as_ref());
        Ok(location.map(|Location { path, version, .. }| Self { path, version, _undo: None }))
    }

    /// The group that this process is in, also if it is the root; `None` without a controller. What
    /// it holds is also others': only its changes have a meaning.
    ///
    /// # Errors
    /// [`Error::Machine`]: `/proc` is not readable.
    pub fn own() -> Result<Option<Self>> {
        let location = Location::of("self")?;
        Ok(location.map(|Location { path, version, .. }| Self { path, version, _undo: None }))
    }

    /// A command that runs `program` in the group. The process keeps its number throughout.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", ENTER, "sh"]).arg(&self.path).arg(program);
        command
    }

    /// The page cache of the group and those below it.
    ///
    /// # Errors
    /// [`Error::Machine`]: the group is gone, or its controller is off.
    pub fn page_cache(&self) -> Result<PageCache> {
        let file = self.path.join("memory.stat");
        let text = fs::read_to_string(&file).map_err(Error::machine(file.display().to_string()))?;
        let [cached, dirty, writeback] = match self.version {
            Version::V1 => ["total_cache", "total_dirty", "total_writeback"],
            Version::V2 => ["file", "file_dirty", "file_writeback"],
        };
        let value = |name| {
            stat_value(&text, name).ok_or_else(|| {
                let what = format!("{} has no `{name}`", file.display());
                Error::machine(what)(std::io::ErrorKind::InvalidData.into())
            })
        };
        Ok(PageCache {
            cached_bytes: value(cached)?,
            dirty_bytes: value(dirty)?,
            writeback_bytes: value(writeback)?,
        })
    }

    /// The file of the I/O controller with the limits of the group.
    ///
    /// # Errors
    /// [`Error::Machine`]: version 1, which charges write-back to no group, or no such controller.
    pub(super) fn io_limits(&self) -> Result<PathBuf> {
        let why = "I/O can be limited only by cgroups of version 2 with the controller `io`";
        let refused = || Error::machine(why);
        let root = match (self.version, self.path.parent()) {
            (Version::V2, Some(root)) => root,
            (Version::V1, _) | (Version::V2, None) => {
                return Err(refused()(std::io::ErrorKind::Unsupported.into()));
            }
        };
        give(root, "io").map_err(refused())?;
        Ok(self.path.join("io.max"))
    }

    fn limit_file(&self) -> &'static str {
        match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        }
    }
}

fn no_group(what: &str, source: std::io::Error) -> Error {
    Error::Machine { what: format!("no memory cgroup: {what}"), source }
}

/// The value of a line `name value`.
fn stat_value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name)?.1.parse().ok()
}

/// Where the memory group of a process is.
#[derive(Debug, PartialEq, Eq)]
struct Location {
    version: Version,
    /// Where its hierarchy is mounted.
    root: PathBuf,
    path: PathBuf,
}

impl Location {
    fn is_root(&self) -> bool {
        self.path == self.root
    }

    /// `None` if there is no memory controller.
    fn of(pid: &str) -> Result<Option<Self>> {
        let read = |file: String| fs::read_to_string(&file).map_err(Error::machine(file));
        Ok(Self::parse(
            &read(format!("/proc/{pid}/cgroup"))?,
            &read("/proc/self/mountinfo".into())?,
        ))
    }

    /// From the texts of `/proc/PID/cgroup` and `/proc/self/mountinfo`.
    fn parse(groups: &str, mounts: &str) -> Option<Self> {
        let mut lines = groups.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        });
        // Without a version 1 hierarchy of its own, memory belongs to the unified one: `0::/path`.
        let v1 = lines.clone().find(|(kinds, _)| kinds.split(',').any(|kind| kind == "memory"));
        let version = if v1.is_some() { Version::V1 } else { Version::V2 };
        let (_, group) = v1.or_else(|| lines.find(|(kinds, _)| kinds.is_empty()))?;
        let (mounted, root) = mounts.lines().find_map(|line| cgroup_mount(line, version))?;
        // In a container the mount may show only a part of the hierarchy.
        let below = Path::new(group).strip_prefix(mounted).ok()?;
        Some(Self { version, root: root.into(), path: Path::new(root).join(below) })
    }
}

/// Root and mount point in a line of mountinfo, if it mounts the hierarchy of the memory
/// controller.
fn cgroup_mount(line: &str, version: Version) -> Option<(&str, &str)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let (kind, options) = (system.next()?, system.nth(1)?);
    let wanted = match version {
        Version::V1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
        Version::V2 => kind == "cgroup2",
    };
    let mut fields = mount.split(' ').skip(3);
    wanted.then(|| Some((fields.next()?, fields.next()?)))?
}

/// Lets the groups below `root` have `controller`. In version 2 a group gives controllers to its
/// groups or holds processes, unless it is the root: that is why ours cannot be the parent.
fn give(root: &Path, controller: &str) -> std::io::Result<()> {
    let file = root.join("cgroup.subtree_control");
    let given = fs::read_to_string(&file)?;
    if given.split_whitespace().any(|word| word == controller) {
        return Ok(());
    }
    fs::write(file, format!("+{controller}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::Stdio;

    use super::*;
    use crate::skip::skip_in_ci_too;

    const MOUNTS_V1: &str = "30 24 0:25 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        31 30 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        35 30 0:30 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        36 30 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const MOUNTS_V2: &str =
        "29 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn groups_are_found_by_version() {
        let found = Location::parse("4:memory:/a/b\n1:cpu:/\n0::/\n", MOUNTS_V1).unwrap();
        assert_eq!(found.version, Version::V1);
        assert_eq!(found.path, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert!(!found.is_root());

        let found = Location::parse("0::/user.slice/session-1.scope\n", MOUNTS_V2).unwrap();
        assert_eq!(found.version, Version::V2);
        assert_eq!(found.path, Path::new("/sys/fs/cgroup/user.slice/session-1.scope"));
        assert!(Location::parse("0::/\n", MOUNTS_V2).unwrap().is_root());
        assert_eq!(Location::parse("0::/\n", ""), None);
    }

    #[test]
    fn a_mount_of_a_part_is_taken_into_account() {
        let mounts = "35 30 0:30 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let found = Location::parse("4:memory:/docker/x\n", mounts).unwrap();
        assert!(found.is_root(), "{found:?}");
        assert_eq!(Location::parse("4:memory:/elsewhere\n", mounts), None);
    }

    #[test]
    fn a_bound_holds_for_the_page_cache_of_a_child() {
        const MIB: u64 = 1 << 20;
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let group = match MemoryGroup::create("test", Some(32 * MIB)) {
            Ok(group) => group,
            Err(error) => return skip_in_ci_too(error),
        };
        // It continues only after it was measured, or when its stdin is closed.
        let script = "dd if=/dev/zero of=\"$0/file\" bs=1M count=64 2>/dev/null; read -r word";
        let mut child = group
            .command("sh")
            .args(["-c", script])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let file = directory.path().join("file");
        let written = || fs::metadata(&file).map_or(0, |metadata| metadata.len());
        while written() < 64 * MIB {
            assert!(child.try_wait().unwrap().is_none(), "the child did not come that far");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let found = MemoryGroup::of(child.id()).unwrap().expect("it is in a group");
        assert_eq!(found.path, group.path);
        let cache = found.page_cache().unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
        assert!(cache.cached_bytes >= 8 * MIB, "what it wrote is its own: {cache:?}");
        assert!(cache.cached_bytes <= 32 * MIB, "{cache:?}");
        let path = group.path.clone();
        drop(group);
        assert!(!path.exists());
    }
}
