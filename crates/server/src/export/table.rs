//! The export table: who may use which directory tree, and as whom.
//!
//! [`ExportTable`] is an immutable snapshot. A reload builds a second one and swaps it in whole, so
//! a request sees either the old policy or the new one, never a mixture. Every operation of every
//! program, MOUNT included, passes [`Export::admit`], because the server has no other way to an
//! object (`exports`).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use io::IoPolicy;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::limits::Limits;
use super::mount_table::MountTable;

/// All exports of one configuration, with names and ids each unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportTable {
    /// In the order of the configuration, which is also the order `showmount -e` prints.
    exports: Vec<Arc<Export>>,
    /// `(id, index into exports)`, ascending by id.
    by_id: Vec<(u32, usize)>,
}

impl ExportTable {
    /// Builds the table.
    ///
    /// # Errors
    /// [`Conflict`] if two exports share a name or an id.
    pub fn new(exports: Vec<Export>) -> Result<Self, Conflict> {
        for (second, export) in exports.iter().enumerate() {
            for (first, earlier) in exports[..second].iter().enumerate() {
                if earlier.name == export.name {
                    return Err(Conflict { first, second, shared: Shared::Name });
                }
                if earlier.id == export.id {
                    return Err(Conflict { first, second, shared: Shared::Id });
                }
            }
        }
        let mut by_id: Vec<_> = exports.iter().enumerate().map(|(i, e)| (e.id, i)).collect();
        by_id.sort_unstable();
        Ok(Self { exports: exports.into_iter().map(Arc::new).collect(), by_id })
    }

    /// The exports in the order of the configuration.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Export>> {
        self.exports.iter()
    }

    /// The export whose id a file handle carries.
    #[must_use]
    pub fn by_id(&self, id: u32) -> Option<&Arc<Export>> {
        let found = self.by_id.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(&self.exports[self.by_id[found].1])
    }

    /// The export a client calls `name`; slashes at the end do not count.
    #[must_use]
    pub fn by_name(&self, name: &[u8]) -> Option<&Arc<Export>> {
        if !name.starts_with(b"/") {
            return None;
        }
        let name = trim_end_slashes(name);
        self.exports.iter().find(|export| export.name_prefix() == name)
    }

    /// The export with the longest name that is `path` or a parent of it, and what is left of
    /// `path` below it, without slashes at either end (empty for the export's own root).
    ///
    /// The rest is the client's text: it may hold `..` or name a symbolic link, so it has to be
    /// walked component by component below the export's root.
    #[must_use]
    pub fn longest_prefix<'p>(&self, path: &'p [u8]) -> Option<(&Arc<Export>, &'p [u8])> {
        if !path.starts_with(b"/") {
            return None;
        }
        self.exports
            .iter()
            .filter_map(|export| {
                let rest = path.strip_prefix(export.name_prefix())?;
                let whole_component = rest.is_empty() || rest.starts_with(b"/");
                whole_component.then(|| (export, trim_slashes(rest)))
            })
            .max_by_key(|(export, _)| export.name.len())
    }

    /// The first export whose directory is `path` or above it, or is so in their file system, which
    /// other mounts may show at other paths. `path` is absolute and has no symbolic links.
    #[must_use]
    pub fn containing(&self, path: &Path) -> Option<&Arc<Export>> {
        let mut exports = self.exports.iter();
        exports.find(|export| path.starts_with(&export.path)).or_else(|| {
            let mounts = MountTable::read().ok()?;
            let place = mounts.place_of(path)?;
            let contains =
                |export: &Export| mounts.place_of(&export.path).map(|at| place.is_in(&at));
            self.exports.iter().find(|export| contains(export) == Some(true))
        })
    }

    /// One line for the log of a reload: `added /a, removed /b, changed /c`.
    #[must_use]
    pub fn changes_since(&self, old: &Self) -> String {
        let mut changes = Vec::new();
        for export in &self.exports {
            match old.by_name(export.name.as_bytes()) {
                None => changes.push(format!("added {}", export.name)),
                Some(before) if before != export => {
                    changes.push(format!("changed {}", export.name))
                }
                Some(_) => {}
            }
        }
        for before in &old.exports {
            if self.by_name(before.name.as_bytes()).is_none() {
                changes.push(format!("removed {}", before.name));
            }
        }
        if changes.is_empty() { "no export changed".to_owned() } else { changes.join(", ") }
    }
}

/// Two exports that cannot stand in one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// Index of the export that came first.
    pub first: usize,
    /// Index of the export that repeats it.
    pub second: usize,
    /// The property that the two have in common.
    pub shared: Shared,
}

/// A property that two exports share although each needs its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    /// The name clients mount.
    Name,
    /// The id in file handles.
    Id,
}

/// One directory tree and the rules for using it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Carried in every file handle of this export: a changed id makes all of them stale.
    pub id: u32,
    /// The name that clients mount: absolute and normalised, so no trailing slash except for `/`
    /// itself.
    pub name: String,
    /// The directory served, absolute and without symbolic links.
    pub path: PathBuf,
    /// Whether a change of metadata reaches stable storage before its reply.
    pub sync: bool,
    /// Whether each WRITE is FILE_SYNC, whatever its client asks for.
    pub file_sync_writes: bool,
    /// How READs and WRITEs treat the page cache.
    pub policy: IoPolicy,
    /// The calls and bytes that it serves per second.
    pub limits: Limits,
    /// The first rule that names the peer decides.
    pub rules: Vec<Rule>,
    /// The metadata servers, if this is an export of a pNFS data server (RFC 8435, loosely
    /// coupled): their rule comes before all others, and there is no version 4, where a client
    /// could use what it has open after a fence.
    pub metadata_servers: Option<Rule>,
}

impl Export {
    /// The gate: what `peer` may do here with `flavor`. AUTH_NONE is admitted like AUTH_SYS but
    /// acts as the anonymous user, whatever ids come with it.
    ///
    /// # Errors
    /// [`Denied::NotAllowed`] if no rule names the peer, [`Denied::InsecurePort`] if the rule that
    /// does wants a source port below 1024, [`Denied::DataOnly`] if it permits data alone;
    /// [`Denied::Version4`].
    pub fn admit(&self, peer: &Peer, flavor: Flavor) -> Result<Access, Denied> {
        if self.metadata_servers.is_some() && peer.purpose == Purpose::Version4 {
            return Err(Denied::Version4);
        }
        // A socket bound to `::` reports IPv4 peers as `::ffff:a.b.c.d`.
        let address = peer.address.ip().to_canonical();
        let (rule, place) = self.rule_of(address).ok_or(Denied::NotAllowed)?;
        let port = peer.address.port();
        if rule.access.require_privileged_port && port >= PRIVILEGED_PORTS_END {
            return Err(Denied::InsecurePort { port, rule: place });
        }
        if rule.access.data_only && peer.purpose != Purpose::Data {
            return Err(Denied::DataOnly { rule: place });
        }
        Ok(match flavor {
            Flavor::None => Access { squash: Squash::All, ..rule.access },
            Flavor::Sys => rule.access,
        })
    }

    /// The rule that decides on an address, and its place.
    fn rule_of(&self, address: IpAddr) -> Option<(&Rule, RulePlace)> {
        let first = self.metadata_servers.iter().map(|rule| (rule, RulePlace::MetadataServers));
        let places = (0..).map(RulePlace::Listed);
        first.chain(self.rules.iter().zip(places)).find(|(rule, _)| rule.applies_to(address))
    }

    /// The hosts of all rules as `showmount -e` shows them (the `groups` of MOUNT's EXPORT,
    /// RFC 1813 §5.2.5).
    pub fn host_specs(&self) -> impl Iterator<Item = String> {
        let rules = self.metadata_servers.iter().chain(&self.rules);
        rules.flat_map(|rule| rule.hosts.iter().map(HostSpec::to_string))
    }

    /// The name without its slash at the end, so that `/` is the empty prefix of every path.
    fn name_prefix(&self) -> &[u8] {
        trim_end_slashes(self.name.as_bytes())
    }
}

/// Hosts and what they may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The rule applies to a peer that any of these names.
    pub hosts: Vec<HostSpec>,
    /// The rights of those peers.
    pub access: Access,
}

impl Rule {
    /// Gives `access` to this machine only: 127.0.0.0/8 and ::1.
    #[must_use]
    pub fn loopback(access: Access) -> Self {
        let hosts = vec![HostSpec::Network(LOOPBACK_V4), HostSpec::Network(LOOPBACK_V6)];
        Self { hosts, access }
    }

    fn applies_to(&self, address: IpAddr) -> bool {
        self.hosts.iter().any(|host| host.names(address))
    }
}

/// One way to name peers. Displayed as an operator would write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostSpec {
    /// `*`: every address.
    Any,
    /// One address or a network. Built by [`HostSpec::network`], never in IPv4-mapped form.
    Network(IpNet),
    /// A host name with the addresses it had when the configuration was loaded.
    Name {
        /// As the operator wrote it.
        name: String,
        /// Canonical: IPv4 where IPv4 is meant.
        addresses: Vec<IpAddr>,
    },
}

impl HostSpec {
    /// A network, with `::ffff:a.b.c.d/96+n` turned into `a.b.c.d/n`: peers are compared in that
    /// form, and a rule that silently never applies would leave its peers to a later, wider one.
    #[must_use]
    pub fn network(network: IpNet) -> Self {
        if let (IpAddr::V6(address), Some(len)) =
            (network.addr(), network.prefix_len().checked_sub(MAPPED_PREFIX_LEN))
            && let Some(mapped) = address.to_ipv4_mapped()
            && let Ok(v4) = Ipv4Net::new(mapped, len)
        {
            return Self::Network(IpNet::V4(v4));
        }
        Self::Network(network)
    }

    fn names(&self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Network(network) => network.contains(&address),
            Self::Name { addresses, .. } => addresses.contains(&address),
        }
    }
}

impl fmt::Display for HostSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().fmt(f)
            }
            Self::Network(network) => network.fmt(f),
            Self::Name { name, .. } => f.write_str(name),
        }
    }
}

/// The origin of a request, and its purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The other end of the connection.
    pub address: SocketAddr,
    /// Its purpose.
    pub purpose: Purpose,
}

/// The purpose of a request, as far as policy depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Data of a file, its attributes, and those of the file system, over version 3: all that a
    /// pNFS client asks a data server for (RFC 8435 §2.2).
    Data,
    /// Names and changes of attributes over version 3, and MOUNT.
    Names,
    /// Version 4.
    Version4,
}

/// The authentication of a request (RFC 5531 §8.2), as far as policy depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// AUTH_NONE: no identity.
    None,
    /// AUTH_SYS: ids as the client claims them.
    Sys,
}

/// Why the gate refuses a peer or a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No rule of the export names the peer.
    #[error("no rule of the export names this client")]
    NotAllowed,
    /// The rule asks for a source port that only a privileged process can bind.
    #[error(
        "{rule} of the export requires a source port below 1024 (secure_ports), and the client's \
         is {port}"
    )]
    InsecurePort {
        /// The port the peer used.
        port: u16,
        /// The rule that names the peer.
        rule: RulePlace,
    },
    /// The rule permits data alone.
    #[error("{rule} of the export permits only READ and WRITE of files (profile data-server)")]
    DataOnly {
        /// The rule that names the peer.
        rule: RulePlace,
    },
    /// The export of a data server is one of version 3.
    #[error("the export is not served over version 4 (profile data-server)")]
    Version4,
    /// The server cannot act as the caller.
    #[error("the user namespace of the server has no user {uid} or no group {gid}")]
    NoUser {
        /// The user after squashing.
        uid: u32,
        /// The primary group after squashing.
        gid: u32,
    },
}

/// A rule of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulePlace {
    /// That of the metadata servers.
    MetadataServers,
    /// By its place among those that are listed, from 0.
    Listed(usize),
}

impl fmt::Display for RulePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MetadataServers => f.write_str("the rule of the metadata servers"),
            Self::Listed(place) => write!(f, "rule {}", place + 1),
        }
    }
}

/// The rights of an admitted peer, and the user that it acts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Refuse every change.
    pub read_only: bool,
    /// Which ids are replaced by the anonymous ones.
    pub squash: Squash,
    /// Stands in for a squashed user; never `u32::MAX`.
    pub anonymous_uid: u32,
    /// Stands in for a squashed group; never `u32::MAX`.
    pub anonymous_gid: u32,
    /// Admit only source ports below 1024 (`secure` of exports(5)).
    pub require_privileged_port: bool,
    /// Refuse all but [`Purpose::Data`].
    pub data_only: bool,
}

impl Access {
    /// The ids a request acts with; `None` is a request without ids (AUTH_NONE).
    ///
    /// The id `u32::MAX` means "leave unchanged" to the kernel's set*id and chown calls, so it
    /// never passes, whatever the squash. At most [`GROUPS_MAX`] different groups are kept.
    #[must_use]
    pub fn identity(&self, credential: Option<Credential<'_>>) -> CallerIds {
        let anonymous = CallerIds {
            uid: self.anonymous_uid,
            gid: self.anonymous_gid,
            groups: Groups::default(),
        };
        let Some(credential) = credential else { return anonymous };
        let root_squashed = match self.squash {
            Squash::All => return anonymous,
            Squash::Root => true,
            Squash::None => false,
        };
        let squashed = |id: u32| id == u32::MAX || (root_squashed && id == 0);
        let map_gid = |gid| if squashed(gid) { self.anonymous_gid } else { gid };
        CallerIds {
            uid: if squashed(credential.uid) { self.anonymous_uid } else { credential.uid },
            gid: map_gid(credential.gid),
            groups: credential.groups.iter().copied().map(map_gid).collect(),
        }
    }
}

impl Default for Access {
    /// Read-write, root squashed to 65534, any source port.
    fn default() -> Self {
        Self {
            read_only: false,
            squash: Squash::Root,
            anonymous_uid: ANONYMOUS_ID,
            anonymous_gid: ANONYMOUS_ID,
            require_privileged_port: false,
            data_only: false,
        }
    }
}

/// Which of a client's ids are replaced by the anonymous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squash {
    /// None: the client's root is root here.
    None,
    /// User 0 and group 0.
    Root,
    /// All.
    All,
}

/// The ids of an AUTH_SYS credential as received (RFC 5531, Appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Credential<'a> {
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: &'a [u32],
}

/// The ids a request acts with, after squashing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerIds {
    /// The user; never `u32::MAX`.
    pub uid: u32,
    /// The group; never `u32::MAX`.
    pub gid: u32,
    /// The supplementary groups, each once.
    pub groups: Groups,
}

/// Up to [`GROUPS_MAX`] different supplementary groups, kept inline because each request makes a
/// list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Groups {
    /// Zero beyond `len`, so that equal lists are equal arrays.
    ids: [u32; GROUPS_MAX],
    len: usize,
}

impl Deref for Groups {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.ids[..self.len]
    }
}

impl FromIterator<u32> for Groups {
    /// Keeps the first [`GROUPS_MAX`] different ids in their order and drops the rest.
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        let mut groups = Self::default();
        for id in ids {
            if groups.len == GROUPS_MAX {
                break;
            }
            if !groups.contains(&id) {
                groups.ids[groups.len] = id;
                groups.len += 1;
            }
        }
        groups
    }
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The most supplementary groups an AUTH_SYS credential carries (RFC 5531, Appendix A).
pub const GROUPS_MAX: usize = 16;

/// The user and group called `nobody` or `nogroup` on Linux.
pub const ANONYMOUS_ID: u32 = 65534;

/// The first port an unprivileged process may bind.
const PRIVILEGED_PORTS_END: u16 = 1024;

/// `::ffff:0:0/96` holds the IPv4-mapped addresses (RFC 4291 §2.5.5.2).
const MAPPED_PREFIX_LEN: u8 = 96;

const LOOPBACK_V4: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));
const LOOPBACK_V6: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128));

fn trim_end_slashes(mut path: &[u8]) -> &[u8] {
    while let [head @ .., b'/'] = path {
        path = head;
    }
    path
}

fn trim_slashes(mut path: &[u8]) -> &[u8] {
    while let [b'/', tail @ ..] = path {
        path = tail;
    }
    trim_end_slashes(path)
}

#[cfg(test)]
mod tests;
