//! Exports: from what the operator wrote to [`Export`]s that hold together.

use std::fmt::Display;
use std::fs;
use std::net::{IpAddr, ToSocketAddrs};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Component, Path, PathBuf};

use io::IoPolicy;
use ipnet::IpNet;
use siphasher::sip::SipHasher24;
use toml::Spanned;

use super::error::{ConfigError, Origin, Source};
use super::raw::{ByteSize, HostList, RawClient, RawExport, RawSquash};
use super::{DirectoryExport, NfsVersions, Overrides};
use crate::export::{Access, Export, ExportTable, HostSpec, Limits, Rate, Rule, Shared, Squash};

/// With less, a reply of the largest transfer would hold a client back for minutes.
const RATE_MIN: ByteSize = ByteSize(64 << 10);

/// Finds the addresses of a host name.
pub(super) type Resolve<'a> = &'a dyn Fn(&str) -> std::io::Result<Vec<IpAddr>>;

/// Asks the system's resolver; blocks until it answers.
pub(super) fn resolve(name: &str) -> std::io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

/// Builds the table from the file's exports or from the directory named by flag.
pub(super) fn export_table(
    raw: Vec<RawExport>,
    nfs_versions: NfsVersions,
    overrides: &Overrides,
    source: Source<'_>,
    resolve: Resolve<'_>,
) -> Result<ExportTable, ConfigError> {
    let mut exports = Vec::new();
    let mut origins = Vec::new();
    match (&overrides.directory, raw.first()) {
        (Some(_), Some(_)) => {
            let why =
                format!("{} has exports of its own; give one or the other", source.file.display());
            return Err(ConfigError::Flag { flag: "DIR", why });
        }
        (None, None) => {
            return Err(source.whole_file("there is no [[export]], so nothing to serve".to_owned()));
        }
        (Some(directory), None) => {
            exports.push(from_directory(directory, resolve)?);
            origins.push(Origins { name: Origin::Flag("--as"), id: Origin::Flag("--as") });
        }
        (None, Some(_)) => {
            for raw in raw {
                origins.push(Origins::of(&raw));
                exports.push(Draft { raw: &raw, nfs_versions, source, resolve }.export()?);
            }
        }
    }
    for export in &mut exports {
        export.policy.read = overrides.read_mode.unwrap_or(export.policy.read);
        export.policy.write = overrides.write_mode.unwrap_or(export.policy.write);
    }
    if overrides.read_only {
        let rules = exports
            .iter_mut()
            .flat_map(|export| export.metadata_servers.iter_mut().chain(&mut export.rules));
        rules.for_each(|rule| rule.access.read_only = true);
    }
    let names: Vec<_> = exports.iter().map(|export| export.name.clone()).collect();
    ExportTable::new(exports).map_err(|conflict| {
        let (first, second) = (&names[conflict.first], &names[conflict.second]);
        origins[conflict.second].clash(conflict.shared, first, second, source)
    })
}

/// Where the name and the id of an export come from.
struct Origins {
    name: Origin,
    id: Origin,
}

impl Origins {
    fn of(raw: &RawExport) -> Self {
        let name = raw.name.as_ref().map_or_else(|| raw.path.span(), Spanned::span);
        let id = raw.id.as_ref().map_or_else(|| name.clone(), Spanned::span);
        Self { name: Origin::Text(name), id: Origin::Text(id) }
    }

    /// The error of the export `second`, which is the one of these origins.
    fn clash(&self, shared: Shared, first: &str, second: &str, source: Source<'_>) -> ConfigError {
        match shared {
            Shared::Name => source.blame(
                &self.name,
                format!("another export is already named {second}; each needs its own `name`"),
            ),
            Shared::Id => source.blame(
                &self.id,
                format!("{second} has the id of {first}; give one of them another `id`"),
            ),
        }
    }
}

fn from_directory(
    directory: &DirectoryExport,
    resolve: Resolve<'_>,
) -> Result<Export, ConfigError> {
    let path = existing_directory(&directory.path).map_err(|why| ConfigError::System { why })?;
    let name = match &directory.name {
        Some(name) => {
            check_name(name).map_err(|why| ConfigError::Flag { flag: "--as", why })?;
            name.clone()
        }
        None => default_name(&path).map_err(|why| ConfigError::Flag {
            flag: "DIR",
            why: format!("{why}; name the export with --as"),
        })?,
    };
    let access = Access::default();
    let rule = if directory.clients.is_empty() {
        Rule::loopback(access)
    } else {
        let hosts = directory.clients.iter().map(|text| host_spec(text, resolve));
        let hosts = hosts.collect::<Result<_, _>>().map_err(|error| match error {
            HostError::Malformed(why) => ConfigError::Flag { flag: "--client", why },
            HostError::Unresolved(why) => ConfigError::System { why: format!("--client: {why}") },
        })?;
        Rule { hosts, access }
    };
    let policy = IoPolicy::default();
    let (id, rules) = (derived_id(&name), vec![rule]);
    let (limits, metadata_servers) = (Limits::default(), None);
    let (sync, file_sync_writes) = (true, false);
    Ok(Export { id, name, path, sync, file_sync_writes, policy, limits, rules, metadata_servers })
}

/// One `[[export]]` on its way to an [`Export`].
struct Draft<'a> {
    raw: &'a RawExport,
    nfs_versions: NfsVersions,
    source: Source<'a>,
    resolve: Resolve<'a>,
}

impl Draft<'_> {
    fn export(&self) -> Result<Export, ConfigError> {
        let path = self.path()?;
        let name = self.name()?;
        let id = self.raw.id.as_ref().map_or_else(|| derived_id(&name), |id| *id.as_ref());
        let RawExport { sync, file_sync_writes, .. } = *self.raw;
        let policy = self.policy();
        let (rules, metadata_servers) = (self.rules()?, self.metadata_servers()?);
        let limits = self.limits()?;
        Ok(Export {
            id,
            name,
            path,
            sync,
            file_sync_writes,
            policy,
            limits,
            rules,
            metadata_servers,
        })
    }

    fn path(&self) -> Result<PathBuf, ConfigError> {
        let path = self.raw.path.as_ref();
        let refuse = |why| self.source.at(&self.raw.path.span(), why);
        if !path.is_absolute() {
            return Err(refuse(format!("`{}` is not an absolute path", path.display())));
        }
        existing_directory(path).map_err(refuse)
    }

    fn name(&self) -> Result<String, ConfigError> {
        match &self.raw.name {
            Some(name) => match check_name(name.as_ref()) {
                Ok(()) => Ok(name.as_ref().clone()),
                Err(why) => Err(self.source.at(&name.span(), why)),
            },
            None => default_name(self.raw.path.as_ref()).map_err(|why| {
                self.source.at(&self.raw.path.span(), format!("{why}; give the export a `name`"))
            }),
        }
    }

    fn policy(&self) -> IoPolicy {
        let builtin = IoPolicy::default();
        IoPolicy {
            read: self.raw.io_cache_read.map_or(builtin.read, |mode| mode.0),
            write: self.raw.io_cache_write.map_or(builtin.write, |mode| mode.0),
            read_ahead: self.raw.read_ahead.unwrap_or(builtin.read_ahead),
            splice: self.raw.splice.unwrap_or(builtin.splice),
        }
    }

    fn limits(&self) -> Result<Limits, ConfigError> {
        let RawExport { calls_per_sec, bytes_per_sec, .. } = self.raw;
        let RawExport { client_calls_per_sec, client_bytes_per_sec, .. } = self.raw;
        Ok(Limits {
            all: Rate {
                calls_per_sec: self.calls("calls_per_sec", calls_per_sec.as_ref())?,
                bytes_per_sec: self.bytes("bytes_per_sec", bytes_per_sec.as_ref())?,
            },
            client: Rate {
                calls_per_sec: self.calls("client_calls_per_sec", client_calls_per_sec.as_ref())?,
                bytes_per_sec: self.bytes("client_bytes_per_sec", client_bytes_per_sec.as_ref())?,
            },
        })
    }

    fn calls(
        &self,
        key: &str,
        raw: Option<&Spanned<u32>>,
    ) -> Result<Option<NonZeroU32>, ConfigError> {
        let Some(raw) = raw else { return Ok(None) };
        let why = || format!("{key} must be at least 1; without the key there is no limit");
        let calls = NonZeroU32::new(*raw.get_ref());
        calls.map(Some).ok_or_else(|| self.source.at(&raw.span(), why()))
    }

    fn bytes(
        &self,
        key: &str,
        raw: Option<&Spanned<ByteSize>>,
    ) -> Result<Option<NonZeroU64>, ConfigError> {
        let Some(raw) = raw else { return Ok(None) };
        let why =
            || format!("{key} must be at least {RATE_MIN}; without the key there is no limit");
        let bytes = NonZeroU64::new(raw.get_ref().0).filter(|bytes| bytes.get() >= RATE_MIN.0);
        bytes.map(Some).ok_or_else(|| self.source.at(&raw.span(), why()))
    }

    /// The access of rules that do not override it.
    fn access(&self) -> Result<Access, ConfigError> {
        let raw = self.raw;
        let builtin = Access::default();
        Ok(Access {
            read_only: raw.read_only.unwrap_or(builtin.read_only),
            squash: squash(raw.squash.as_ref(), builtin.squash),
            anonymous_uid: self.id(raw.anonymous_uid.as_ref(), builtin.anonymous_uid)?,
            anonymous_gid: self.id(raw.anonymous_gid.as_ref(), builtin.anonymous_gid)?,
            require_privileged_port: raw.secure_ports.unwrap_or(builtin.require_privileged_port),
            data_only: raw.profile.is_some(),
        })
    }

    fn rules(&self) -> Result<Vec<Rule>, ConfigError> {
        let (raw, access) = (self.raw, self.access()?);
        if raw.clients.is_empty() {
            return Ok(vec![Rule::loopback(access)]);
        }
        raw.clients.iter().map(|client| self.rule(client, access)).collect()
    }

    fn rule(&self, raw: &RawClient, export: Access) -> Result<Rule, ConfigError> {
        Ok(Rule {
            hosts: self.hosts("hosts", &raw.hosts)?,
            access: Access {
                read_only: raw.read_only.unwrap_or(export.read_only),
                squash: squash(raw.squash.as_ref(), export.squash),
                anonymous_uid: self.id(raw.anonymous_uid.as_ref(), export.anonymous_uid)?,
                anonymous_gid: self.id(raw.anonymous_gid.as_ref(), export.anonymous_gid)?,
                require_privileged_port: raw.secure_ports.unwrap_or(export.require_privileged_port),
                ..export
            },
        })
    }

    /// The rule of the metadata servers, if the export is one of a data server.
    fn metadata_servers(&self) -> Result<Option<Rule>, ConfigError> {
        let raw = self.raw;
        let (profile, servers) = match (&raw.profile, &raw.metadata_servers) {
            (None, None) => return Ok(None),
            (Some(profile), Some(servers)) => (profile, servers),
            (Some(profile), None) => {
                let why = "a data server needs `metadata_servers`, the hosts that make its files";
                return Err(self.source.at(&profile.span(), why.to_owned()));
            }
            (None, Some(servers)) => {
                let why = "`metadata_servers` belong to `profile = \"data-server\"`";
                return Err(self.source.at(&servers.span(), why.to_owned()));
            }
        };
        if !self.nfs_versions.v3 {
            let why = "a data server is reached by version 3: add \"3\" to `nfs_versions`";
            return Err(self.source.at(&profile.span(), why.to_owned()));
        }
        let of_clients = raw.clients.iter().filter_map(|client| client.squash.as_ref());
        let mut squashes = of_clients.chain(&raw.squash);
        if let Some(other) = squashes.find(|squash| !matches!(squash.get_ref(), RawSquash::Root)) {
            let why = "a data server squashes root and no other user, because its metadata server \
                       assigns all other ids: omit `squash`";
            return Err(self.source.at(&other.span(), why.to_owned()));
        }
        let access =
            Access { read_only: false, squash: Squash::None, data_only: false, ..self.access()? };
        Ok(Some(Rule { hosts: self.hosts("metadata_servers", servers)?, access }))
    }

    fn hosts(&self, key: &str, raw: &Spanned<HostList>) -> Result<Vec<HostSpec>, ConfigError> {
        let HostList(hosts) = raw.as_ref();
        if hosts.is_empty() {
            let why = format!("`{key}` is empty, so the rule would apply to no client");
            return Err(self.source.at(&raw.span(), why));
        }
        let hosts = hosts.iter().map(|host| {
            host_spec(host.as_ref(), self.resolve)
                .map_err(|error| self.source.at(&host.span(), error.to_string()))
        });
        hosts.collect()
    }

    fn id(&self, raw: Option<&Spanned<u32>>, default: u32) -> Result<u32, ConfigError> {
        let Some(raw) = raw else { return Ok(default) };
        if *raw.as_ref() == u32::MAX {
            let why =
                format!("{} is not an id: the kernel reads it as \"leave unchanged\"", u32::MAX);
            return Err(self.source.at(&raw.span(), why));
        }
        Ok(*raw.as_ref())
    }
}

fn squash(raw: Option<&Spanned<RawSquash>>, default: Squash) -> Squash {
    raw.map_or(default, |raw| (*raw.get_ref()).into())
}

fn existing_directory(path: &Path) -> Result<PathBuf, String> {
    let canonical = fs::canonicalize(path)
        .map_err(|error| format!("cannot export {}: {error}", path.display()))?;
    if !canonical.is_dir() {
        return Err(format!("cannot export {}: it is not a directory", path.display()));
    }
    if canonical == Path::new("/") {
        let why = "the state directory, with the key of all file handles, lies below it wherever it \
                   is; export directories below it";
        return Err(format!("cannot export {}: {why}", path.display()));
    }
    Ok(canonical)
}

/// The path itself, without doubled slashes, `.` and a slash at the end.
pub(super) fn default_name(path: &Path) -> Result<String, String> {
    let name: PathBuf = path.components().collect();
    if path.components().any(|component| component == Component::ParentDir) {
        return Err("a path with `..` cannot be the export's name".to_owned());
    }
    let Some(name) = name.to_str() else {
        return Err("a path that is not UTF-8 cannot be the export's name".to_owned());
    };
    check_name(name)?;
    Ok(name.to_owned())
}

fn check_name(name: &str) -> Result<(), String> {
    let quoted = name.escape_debug();
    if name.len() > EXPORT_NAME_BYTES_MAX {
        return Err(format!("an export name has at most {EXPORT_NAME_BYTES_MAX} bytes"));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("the export name \"{quoted}\" holds a control character"));
    }
    let Some(relative) = name.strip_prefix('/') else {
        return Err(format!("the export name `{quoted}` does not begin with a slash"));
    };
    let odd = |component| matches!(component, "" | "." | "..");
    if !relative.is_empty() && relative.split('/').any(odd) {
        return Err(format!(
            "the export name `{quoted}` has a slash too many or a `.` or `..` component"
        ));
    }
    Ok(())
}

/// The same name has the same id on every machine and in every version: handles outlive restarts.
fn derived_id(name: &str) -> u32 {
    let [a, b, c, d, ..] = SipHasher24::new().hash(name.as_bytes()).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Why a text names no host.
#[derive(Debug, thiserror::Error)]
enum HostError {
    /// It is none of what can name hosts.
    #[error("{0}")]
    Malformed(String),
    /// It is a host name, and the system's resolver has no address for it.
    #[error("{0}")]
    Unresolved(String),
}

fn host_spec(text: &str, resolve: Resolve<'_>) -> Result<HostSpec, HostError> {
    if text == "*" {
        return Ok(HostSpec::Any);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(HostSpec::network(IpNet::from(address)));
    }
    if text.contains('/') {
        let network: IpNet = text.parse().map_err(|_| {
            let why = format!("`{text}` is not a network such as 10.0.0.0/8 or fd00::/8");
            HostError::Malformed(why)
        })?;
        if network.trunc() != network {
            return Err(HostError::Malformed(format!(
                "`{text}` has bits beyond its prefix; did you mean {} or {}?",
                network.trunc(),
                network.addr()
            )));
        }
        return Ok(HostSpec::network(network));
    }
    if !is_host_name(text) {
        let why = format!("`{text}` is not an address, a network, a host name or *");
        return Err(HostError::Malformed(why));
    }
    let unresolved =
        |why: &dyn Display| HostError::Unresolved(format!("cannot resolve {text}: {why}"));
    let addresses = resolve(text).map_err(|error| unresolved(&error))?;
    if addresses.is_empty() {
        return Err(unresolved(&"it has no address"));
    }
    // Resolvers rotate them: a reload would find the rule changed.
    let mut addresses: Vec<_> = addresses.iter().map(IpAddr::to_canonical).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(HostSpec::Name { name: text.to_owned(), addresses })
}

/// Letters, digits, hyphens and underscores in labels (RFC 1123 §2.1, underscores as DNS has them).
/// The last label may not be a number, so that `192.168.1.300` is an error and not a name.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let labels = text.strip_suffix('.').unwrap_or(text);
    let last = labels.rsplit('.').next().unwrap_or_default();
    text.len() <= HOST_NAME_BYTES_MAX
        && labels.split('.').all(is_label)
        && !last.bytes().all(|b| b.is_ascii_digit())
}

/// MNTPATHLEN (RFC 1813 §5.1.1).
const EXPORT_NAME_BYTES_MAX: usize = 1024;

/// RFC 1035 §2.3.4; also below MNTNAMLEN, the bound of a group in MOUNT's EXPORT reply.
const HOST_NAME_BYTES_MAX: usize = 253;
