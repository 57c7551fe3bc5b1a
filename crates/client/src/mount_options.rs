//! The options of `spillway mount -o`, with the names of nfs(5) and mount.fuse(8).

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::options::{MountOptions, NCONNECT_MAX, Recovery, UseReaddirplus};

/// The options of a mount: for the client and for the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountRequest {
    /// Options of the client.
    pub nfs: MountOptions,
    /// Options of the kernel.
    pub fuse: FuseOptions,
    /// `remount`: changes the flags of a mounted file system.
    pub remount: bool,
    /// `log`: the file for messages of a mount in the background.
    pub log: Option<PathBuf>,
}

/// The options of a FUSE mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuseOptions {
    /// `allow_other`: other users may use the mount.
    pub allow_other: bool,
    /// `default_permissions`: the kernel checks the permission bits first.
    pub default_permissions: bool,
    /// `auto_unmount`: unmount also when this process is killed. Requires `allow_other`.
    pub auto_unmount: bool,
    /// `fsname`: the source that mount(8) shows.
    pub fs_name: Option<String>,
    /// `max_read`: bytes of a READ of the kernel at most.
    pub max_read: Option<u32>,
    /// `lookupcache`.
    pub lookup_cache: LookupCache,
    /// `dev`, `suid`, `exec` and their opposites; the last one of each pair counts.
    pub flags: MountFlags,
}

/// The treatment of an unknown option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// It is an error.
    Refused,
    /// It is ignored, as with `-s` of mount(8).
    Ignored,
}

/// Which results of LOOKUP the kernel caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupCache {
    /// Existing and absent names.
    #[default]
    All,
    /// Existing names.
    Positive,
    /// None.
    None,
}

/// Uses of the files of a mount that the kernel allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountFlags {
    /// Device files.
    pub dev: bool,
    /// Set-id bits.
    pub suid: bool,
    /// Running programs.
    pub exec: bool,
}

impl Default for MountFlags {
    /// As for every FUSE mount: programs, but neither set-id bits nor devices.
    fn default() -> Self {
        Self { dev: false, suid: false, exec: true }
    }
}

/// An unknown option, or one with an invalid value.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error("option {option}: {why}")]
pub struct OptionError {
    option: String,
    why: String,
}

impl FromStr for MountRequest {
    type Err = OptionError;

    /// Parses a list separated by commas. A later option overrides an earlier one.
    fn from_str(list: &str) -> Result<Self, OptionError> {
        let mut request = Self::default();
        request.apply(list, Unknown::Refused)?;
        Ok(request)
    }
}

impl MountRequest {
    /// Adds the options of `list` behind those parsed before.
    ///
    /// # Errors
    /// Names the first invalid option, or unknown one unless these are ignored.
    pub fn apply(&mut self, list: &str, unknown: Unknown) -> Result<(), OptionError> {
        let has = |prefix| list.split(',').any(|text| text.starts_with(prefix));
        if has("remount") && has("user_id=") {
            // mount(8) has read them from the mounted file system, and has left out what is not
            // set.
            self.fuse.flags = MountFlags { dev: true, suid: true, exec: true };
        }
        for text in list.split(',').filter(|text| !text.is_empty()) {
            let option = Named::split(text);
            let known = if option.value.is_some() {
                self.apply_nfs_value(option)?
                    || self.apply_fuse_value(option)?
                    || self.apply_log(option)?
                    || option.ignored()
            } else {
                self.remount |= option.name == "remount";
                self.apply_nfs_flag(option.name)
                    || self.apply_fuse_flag(option.name)
                    || option.ignored()
            };
            if !known && unknown == Unknown::Refused {
                return Err(option.refused());
            }
        }
        Ok(())
    }

    /// Parses a list for a command that reaches a server and mounts nothing.
    ///
    /// # Errors
    /// Names the first option that is invalid, or that has an effect on a mount alone.
    pub fn of_connection(list: &str) -> Result<MountOptions, OptionError> {
        for text in list.split(',').filter(|text| !text.is_empty()) {
            if !text.parse::<Self>()?.is_of_connection() {
                return Err(Named::split(text).error("only for `spillway mount`"));
            }
        }
        Ok(list.parse::<Self>()?.nfs)
    }

    /// Whether all that is not about the connection to the server has its default.
    fn is_of_connection(&self) -> bool {
        let MountOptions { port, mount_port, nconnect, reserved_port, .. } = self.nfs;
        let MountOptions { rsize, wsize, timeout, retransmissions, recovery, .. } = self.nfs;
        let nfs = MountOptions {
            port,
            mount_port,
            nconnect,
            reserved_port,
            rsize,
            wsize,
            timeout,
            retransmissions,
            recovery,
            ..MountOptions::default()
        };
        *self == Self { nfs, ..Self::default() }
    }

    fn apply_nfs_flag(&mut self, name: &str) -> bool {
        let nfs = &mut self.nfs;
        match name {
            "ro" => nfs.read_only = true,
            "rw" => nfs.read_only = false,
            "hard" => nfs.recovery = Recovery::Hard,
            "soft" => nfs.recovery = Recovery::Soft,
            "sync" => nfs.sync = true,
            "async" => nfs.sync = false,
            "cto" => nfs.close_to_open = true,
            "nocto" => nfs.close_to_open = false,
            "ac" => set_attribute_times(nfs, &MountOptions::default()),
            "noac" => {
                keep_attributes_for(nfs, Duration::ZERO);
                nfs.sync = true;
            }
            "resvport" => nfs.reserved_port = true,
            "noresvport" => nfs.reserved_port = false,
            "rdirplus" => nfs.readdirplus = UseReaddirplus::Learned,
            "nordirplus" => nfs.readdirplus = UseReaddirplus::Never,
            _ => return false,
        }
        true
    }

    fn apply_nfs_value(&mut self, option: Named<'_>) -> Result<bool, OptionError> {
        let nfs = &mut self.nfs;
        match option.name {
            "port" => nfs.port = option.port()?,
            "mountport" => nfs.mount_port = option.port()?,
            "nconnect" => nfs.nconnect = option.within(1, NCONNECT_MAX)?,
            "rsize" => nfs.rsize = option.transfer_bytes()?,
            "wsize" => nfs.wsize = option.transfer_bytes()?,
            "timeo" => {
                nfs.timeout = Duration::from_millis(100 * option.within(1, TIMEO_MAX)?);
            }
            "retrans" => nfs.retransmissions = option.within(0, RETRANS_MAX)?,
            "acregmin" => nfs.file_attributes_min = option.seconds()?,
            "acregmax" => nfs.file_attributes_max = option.seconds()?,
            "acdirmin" => nfs.dir_attributes_min = option.seconds()?,
            "acdirmax" => nfs.dir_attributes_max = option.seconds()?,
            "actimeo" => keep_attributes_for(nfs, option.seconds()?),
            "rdirplus" => {
                nfs.readdirplus = option.one_of(&[
                    ("force", UseReaddirplus::Always),
                    ("none", UseReaddirplus::Never),
                ])?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn apply_log(&mut self, option: Named<'_>) -> Result<bool, OptionError> {
        let Named { name: "log", value: Some(file) } = option else { return Ok(false) };
        if file.is_empty() {
            return Err(option.error("must be the name of a file"));
        }
        self.log = Some(file.into());
        Ok(true)
    }

    fn apply_fuse_flag(&mut self, name: &str) -> bool {
        let fuse = &mut self.fuse;
        match name {
            "allow_other" => fuse.allow_other = true,
            "default_permissions" => fuse.default_permissions = true,
            "auto_unmount" => fuse.auto_unmount = true,
            "dev" => fuse.flags.dev = true,
            "nodev" => fuse.flags.dev = false,
            "suid" => fuse.flags.suid = true,
            "nosuid" => fuse.flags.suid = false,
            "exec" => fuse.flags.exec = true,
            "noexec" => fuse.flags.exec = false,
            _ => return false,
        }
        true
    }

    fn apply_fuse_value(&mut self, option: Named<'_>) -> Result<bool, OptionError> {
        let fuse = &mut self.fuse;
        match option.name {
            "fsname" => fuse.fs_name = option.value.map(str::to_owned),
            "max_read" => fuse.max_read = Some(option.within(PAGE_BYTES, u32::MAX)?),
            "lookupcache" => {
                fuse.lookup_cache = option.one_of(&[
                    ("all", LookupCache::All),
                    ("pos", LookupCache::Positive),
                    ("positive", LookupCache::Positive),
                    ("none", LookupCache::None),
                ])?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn keep_attributes_for(nfs: &mut MountOptions, time: Duration) {
    nfs.file_attributes_min = time;
    nfs.file_attributes_max = time;
    nfs.dir_attributes_min = time;
    nfs.dir_attributes_max = time;
}

fn set_attribute_times(nfs: &mut MountOptions, from: &MountOptions) {
    nfs.file_attributes_min = from.file_attributes_min;
    nfs.file_attributes_max = from.file_attributes_max;
    nfs.dir_attributes_min = from.dir_attributes_min;
    nfs.dir_attributes_max = from.dir_attributes_max;
}

/// One option of the list.
#[derive(Clone, Copy)]
struct Named<'a> {
    name: &'a str,
    value: Option<&'a str>,
}

impl<'a> Named<'a> {
    fn split(text: &'a str) -> Self {
        match text.split_once('=') {
            Some((name, value)) => Self { name, value: Some(value) },
            None => Self { name: text, value: None },
        }
    }

    fn error(self, why: impl Into<String>) -> OptionError {
        let option = match self.value {
            Some(value) => format!("{}={value}", self.name),
            None => self.name.to_owned(),
        };
        OptionError { option, why: why.into() }
    }

    fn within<N>(self, min: N, max: N) -> Result<N, OptionError>
    where
        N: FromStr + PartialOrd + std::fmt::Display,
    {
        let value = self.value.and_then(|value| value.parse().ok());
        value
            .filter(|value| (&min..=&max).contains(&value))
            .ok_or_else(|| self.error(format!("must be a number from {min} to {max}")))
    }

    fn seconds(self) -> Result<Duration, OptionError> {
        self.within(0, ATTRIBUTE_SECONDS_MAX).map(Duration::from_secs)
    }

    /// Port 0 means the same as no option, as in nfs(5).
    fn port(self) -> Result<Option<u16>, OptionError> {
        self.within(0, u16::MAX).map(|port| (port != 0).then_some(port))
    }

    /// Rounded down to a multiple of 1024 as in nfs(5).
    fn transfer_bytes(self) -> Result<Option<u32>, OptionError> {
        self.within(TRANSFER_BYTES_MIN, u32::MAX).map(|bytes| Some(bytes / 1024 * 1024))
    }

    fn one_of<T: Copy>(self, values: &[(&str, T)]) -> Result<T, OptionError> {
        let found = values.iter().find(|(name, _)| Some(*name) == self.value);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<_> = values.iter().map(|(name, _)| *name).collect();
            self.error(format!("must be one of {}", names.join(", ")))
        })
    }

    /// Whether the option has no effect here: it is the default, for mount(8) and fstab, or what
    /// mount(8) passes of a mounted file system to change it.
    fn ignored(self) -> bool {
        match (self.name, self.value) {
            ("vers" | "nfsvers" | "mountvers", Some("3"))
            | ("proto" | "mountproto", Some("tcp" | "tcp6"))
            | ("sec", Some("sys"))
            | ("local_lock", Some("all"))
            | ("subtype" | "user" | "user_id" | "group_id", Some(_)) => true,
            (name, None) => IGNORED.contains(&name) || name.starts_with("x-"),
            (name, Some(_)) => name == "comment" || name.starts_with("x-"),
        }
    }

    fn refused(self) -> OptionError {
        match self.name {
            "vers" | "nfsvers" | "mountvers" => self.error("only version 3 is supported"),
            "proto" | "mountproto" => self.error("only tcp is supported"),
            "udp" => self.error("only tcp is supported"),
            "sec" => self.error("only sec=sys is supported"),
            "lock" | "local_lock" => {
                self.error("locks are local to this machine: use nolock or local_lock=all")
            }
            _ => self.error("not understood"),
        }
    }
}

/// Accepted without effect. The server maintains access times.
const IGNORED: &[&str] = &[
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "nolock",
    "noacl",
    "intr",
    "nointr",
    "fg",
    "tcp",
    "v3",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "remount",
    "dirsync",
    "silent",
    "loud",
];

/// In tenths of a second: an hour.
const TIMEO_MAX: u64 = 36_000;

const RETRANS_MAX: u32 = 1000;

/// A day.
const ATTRIBUTE_SECONDS_MAX: u64 = 86_400;

/// The smallest `rsize` and `wsize` of nfs(5).
const TRANSFER_BYTES_MIN: u32 = 1024;

/// The minimum of the kernel.
const PAGE_BYTES: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> MountRequest {
        list.parse().unwrap()
    }

    fn sentence(list: &str) -> String {
        list.parse::<MountRequest>().unwrap_err().to_string()
    }

    #[test]
    fn an_empty_list_gives_the_defaults() {
        assert_eq!(parsed(""), MountRequest::default());
        assert_eq!(parsed(",,defaults,"), MountRequest::default());
    }

    #[test]
    fn every_client_option_reaches_its_field() {
        let nfs = parsed(
            "ro,port=2050,mountport=2051,nconnect=4,noresvport,rsize=65536,wsize=32768,timeo=7,\
             retrans=5,soft,acregmin=1,acregmax=2,acdirmin=3,acdirmax=4,nocto,sync,rdirplus=force",
        )
        .nfs;
        let expected = MountOptions {
            port: Some(2050),
            mount_port: Some(2051),
            nconnect: 4,
            reserved_port: false,
            rsize: Some(65536),
            wsize: Some(32768),
            timeout: Duration::from_millis(700),
            retransmissions: 5,
            recovery: Recovery::Soft,
            file_attributes_min: Duration::from_secs(1),
            file_attributes_max: Duration::from_secs(2),
            dir_attributes_min: Duration::from_secs(3),
            dir_attributes_max: Duration::from_secs(4),
            close_to_open: false,
            read_only: true,
            sync: true,
            readdirplus: UseReaddirplus::Always,
            ..MountOptions::default()
        };
        assert_eq!(nfs, expected);
    }

    #[test]
    fn every_fuse_option_reaches_its_field() {
        let fuse = parsed(
            "allow_other,default_permissions,auto_unmount,fsname=a=b,max_read=65536,\
             lookupcache=pos,dev,suid,noexec",
        )
        .fuse;
        let expected = FuseOptions {
            allow_other: true,
            default_permissions: true,
            auto_unmount: true,
            fs_name: Some("a=b".to_owned()),
            max_read: Some(65536),
            lookup_cache: LookupCache::Positive,
            flags: MountFlags { dev: true, suid: true, exec: false },
        };
        assert_eq!(fuse, expected);
    }

    #[test]
    fn the_log_is_a_file() {
        assert_eq!(parsed("log=/var/log/a=b,ro").log, Some(PathBuf::from("/var/log/a=b")));
        assert_eq!(sentence("log="), "option log=: must be the name of a file");
        assert_eq!(sentence("log"), "option log: not understood");
    }

    #[test]
    fn a_later_option_overrides_an_earlier_one() {
        let opposites = "ro,rw,soft,hard,sync,async,nocto,cto,noresvport,resvport,nordirplus,\
             rdirplus,dev,nodev,suid,nosuid,noexec,exec,port=1,port=0";
        assert_eq!(parsed(opposites), MountRequest::default());
        assert_eq!(parsed("actimeo=9,ac"), MountRequest::default());
    }

    #[test]
    fn noac_disables_attribute_cache_and_delayed_writes() {
        let nfs = parsed("noac").nfs;
        assert!(nfs.sync);
        assert_eq!(nfs.file_attributes_max, Duration::ZERO);
        assert_eq!(nfs.dir_attributes_max, Duration::ZERO);
    }

    #[test]
    fn a_remount_has_the_flags_of_the_mounted_file_system() {
        // As mount(8) passes them for `remount,ro,dev,exec`.
        let request = parsed("ro,nosuid,relatime,remount,user_id=0,group_id=0,allow_other");
        assert!(request.remount && request.nfs.read_only && request.fuse.allow_other);
        assert_eq!(request.fuse.flags, MountFlags { dev: true, suid: false, exec: true });
        // And with those of fstab.
        assert_eq!(parsed("_netdev,remount,ro").fuse.flags, MountFlags::default());
        assert_eq!(parsed("user_id=0").fuse.flags, MountFlags::default());
    }

    #[test]
    fn unknown_options_are_ignored_on_request() {
        let mut request = MountRequest::default();
        request.apply("wszie=1,sloppy,ro", Unknown::Ignored).unwrap();
        assert!(request.nfs.read_only);
        assert!(request.apply("timeo=-1", Unknown::Ignored).is_err());
    }

    #[test]
    fn actimeo_sets_all_four_times() {
        let nfs = parsed("actimeo=7").nfs;
        let seven = Duration::from_secs(7);
        let times = [
            nfs.file_attributes_min,
            nfs.file_attributes_max,
            nfs.dir_attributes_min,
            nfs.dir_attributes_max,
        ];
        assert_eq!(times, [seven; 4]);
    }

    #[test]
    fn options_of_fstab_for_others_are_accepted() {
        let list = "vers=3,nfsvers=3,proto=tcp,mountproto=tcp,nolock,noatime,relatime,_netdev,\
             nofail,x-systemd.automount,x-a.b=c,comment=mine,sec=sys,noauto,user,user=me";
        assert_eq!(parsed(list), MountRequest::default());
    }

    #[test]
    fn the_error_names_the_option() {
        for (list, expected) in [
            ("rw,wszie=1", "option wszie=1: not understood"),
            ("sloppy", "option sloppy: not understood"),
            ("port", "option port: not understood"),
            ("ro=1", "option ro=1: not understood"),
            ("vers=4.2", "option vers=4.2: only version 3 is supported"),
            ("proto=udp", "option proto=udp: only tcp is supported"),
            ("sec=krb5", "option sec=krb5: only sec=sys is supported"),
            ("nconnect=0", "option nconnect=0: must be a number from 1 to 16"),
            ("nconnect=17", "option nconnect=17: must be a number from 1 to 16"),
            ("port=65536", "option port=65536: must be a number from 0 to 65535"),
            ("timeo=-1", "option timeo=-1: must be a number from 1 to 36000"),
            ("rsize=1023", "option rsize=1023: must be a number from 1024 to 4294967295"),
            ("rdirplus=all", "option rdirplus=all: must be one of force, none"),
            ("lookupcache=", "option lookupcache=: must be one of all, pos, positive, none"),
            ("lock", "option lock: locks are local to this machine: use nolock or local_lock=all"),
        ] {
            assert_eq!(sentence(list), expected, "{list}");
        }
    }

    #[test]
    fn options_without_effect_on_a_connection_are_for_mounts_alone() {
        for option in [
            "ro",
            "sync",
            "nocto",
            "noac",
            "acregmin=9",
            "rdirplus=force",
            "nordirplus",
            "lookupcache=none",
            "allow_other",
            "noexec",
            "log=/tmp/log",
            "remount",
        ] {
            let error = MountRequest::of_connection(&format!("soft,{option}")).unwrap_err();
            assert_eq!(error.to_string(), format!("option {option}: only for `spillway mount`"));
        }
        let connection = "port=1,mountport=2,nconnect=3,noresvport,rsize=4096,wsize=8192,timeo=7,\
             retrans=5,soft";
        // Options that hold in any case, and those that fstab has beside them.
        let list = format!("{connection},rw,vers=3,tcp,nolock,_netdev");
        assert_eq!(MountRequest::of_connection(&list), Ok(parsed(connection).nfs));
        assert!(MountRequest::of_connection("wszie=1").is_err());
    }

    #[test]
    fn transfer_sizes_are_rounded_as_in_nfs_5() {
        assert_eq!(parsed("wsize=70000").nfs.wsize, Some(69632));
    }
}
