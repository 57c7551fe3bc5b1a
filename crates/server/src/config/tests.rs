use std::ffi::OsString;
use std::net::IpAddr;

use io::IoPolicy;
use proptest::prelude::*;
use tempfile::TempDir;

use super::state_dir::default_state_dir;
use super::*;
use crate::export::{Access, HostSpec, Squash};
use crate::trace::Event;

/// Directories `a` and `b` to export, and a place outside them for the state.
struct Machine {
    dir: TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        for name in ["a", "b"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap().join(name)
    }

    /// `$A`, `$B` and `$DIR` in `text` stand for the directories.
    fn parse_over(&self, text: &str, overrides: &Overrides) -> Result<Config, ConfigError> {
        let text = text
            .replace("$A", self.path("a").to_str().unwrap())
            .replace("$B", self.path("b").to_str().unwrap())
            .replace("$DIR", self.path("").to_str().unwrap());
        let source = Source { file: Path::new("spillway.toml"), text: &text };
        let overrides = Overrides {
            state_dir: overrides.state_dir.clone().or_else(|| Some(self.path("state"))),
            ..overrides.clone()
        };
        parse_with(source, &overrides, &known_hosts)
    }

    fn parse(&self, text: &str) -> Result<Config, ConfigError> {
        self.parse_over(text, &Overrides::default())
    }

    fn error(&self, text: &str) -> String {
        match self.parse(text) {
            Ok(_) => panic!("accepted: {text}"),
            Err(error) => error.to_string().replace(self.path("").to_str().unwrap(), "$DIR/"),
        }
    }
}

fn known_hosts(name: &str) -> std::io::Result<Vec<IpAddr>> {
    match name {
        "client.example.org" => Ok(vec!["192.0.2.7".parse().unwrap()]),
        "mapped.example.org" => Ok(vec!["::ffff:192.0.2.8".parse().unwrap()]),
        "empty.example.org" => Ok(Vec::new()),
        _ => Err(std::io::Error::other("no such host")),
    }
}

fn directory(path: PathBuf) -> Overrides {
    let directory = DirectoryExport { path, name: None, clients: Vec::new() };
    Overrides { directory: Some(directory), ..Overrides::default() }
}

#[test]
fn one_export_and_defaults_are_enough() {
    let machine = Machine::new();
    let config = machine.parse("[[export]]\npath = \"$A\"").unwrap();
    assert_eq!(config.listen(), ["127.0.0.1:2049".parse().unwrap()]);
    assert_eq!(config.state_dir(), machine.path("state"));
    assert_eq!(config.memory_bytes(), 512 << 20);
    assert_eq!(config.max_transfer_bytes(), 1 << 20);
    assert_eq!(config.connections_max(), 16384);
    assert_eq!(config.idle_timeout(), Duration::from_secs(360));
    assert!(!config.portmap());
    assert_eq!((config.data_threads(), config.metadata_threads()), (44, 22));
    assert_eq!(config.window_bytes(), 256 << 20);
    assert!(config.read_ahead() && config.splice());
    assert!(config.trace().is_empty());
    let export = config.exports().iter().next().unwrap();
    assert_eq!(export.path, machine.path("a"));
    assert_eq!(Path::new(&export.name), machine.path("a"));
    assert!(export.sync && !export.file_sync_writes);
    assert_eq!(export.policy, IoPolicy::default());
    assert_eq!(export.rules.len(), 1);
    assert_eq!(export.rules[0].access, Access::default());
    assert_eq!(export.host_specs().collect::<Vec<_>>(), ["127.0.0.0/8", "::1"]);
}

#[test]
fn every_global_key_has_effect() {
    let machine = Machine::new();
    let config = machine
        .parse(
            r#"
            listen = ["0.0.0.0:2049", "[::]:20490"]
            memory = "1GiB"
            max_transfer = "4MiB"
            max_connections = 7
            idle_timeout = "2min"
            portmap = true
            data_threads = 3
            metadata_threads = 2
            window = "8MiB"
            read_ahead = false
            splice = false
            trace = ["read_vector_dio", "read_done"]
            [[export]]
            path = "$A"
            "#,
        )
        .unwrap();
    let listen: Vec<_> = config.listen().iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["0.0.0.0:2049", "[::]:20490"]);
    assert_eq!((config.memory_bytes(), config.max_transfer_bytes()), (1 << 30, 4 << 20));
    assert_eq!(config.connections_max(), 7);
    assert_eq!(config.idle_timeout(), Duration::from_secs(120));
    assert!(config.portmap());
    assert_eq!((config.data_threads(), config.metadata_threads()), (3, 2));
    assert_eq!(config.window_bytes(), 8 << 20);
    assert!(!config.read_ahead() && !config.splice());
    assert_eq!(config.trace().to_string(), "read_vector_dio,read_done");
}

#[test]
fn every_key_of_an_export_has_effect() {
    let machine = Machine::new();
    let config = machine
        .parse(
            r#"
            [[export]]
            path = "$A"
            name = "/data"
            id = 7
            sync = false
            file_sync_writes = true
            io_cache_read = "dontcache"
            io_cache_write = "direct"
            read_ahead = false
            splice = false
            read_only = true
            squash = "all"
            anonymous_uid = 1000
            anonymous_gid = 1001
            secure_ports = true
            [[export.client]]
            hosts = ["10.0.0.0/8", "client.example.org", "mapped.example.org", "*"]
            [[export.client]]
            hosts = ["192.168.1.5"]
            read_only = false
            squash = "none"
            anonymous_uid = 1
            anonymous_gid = 2
            secure_ports = false
            "#,
        )
        .unwrap();
    let export = config.exports().by_name(b"/data").unwrap();
    assert_eq!((export.id, export.sync, export.file_sync_writes), (7, false, true));
    assert_eq!(
        export.policy,
        IoPolicy {
            read: IoMode::DontCache,
            write: IoMode::Direct,
            read_ahead: false,
            splice: false
        }
    );
    let inherited = Access {
        read_only: true,
        squash: Squash::All,
        anonymous_uid: 1000,
        anonymous_gid: 1001,
        require_privileged_port: true,
        data_only: false,
    };
    let overridden = Access {
        read_only: false,
        squash: Squash::None,
        anonymous_uid: 1,
        anonymous_gid: 2,
        require_privileged_port: false,
        data_only: false,
    };
    assert_eq!(export.rules[0].access, inherited);
    assert_eq!(export.rules[1].access, overridden);
    let resolved = |name: &str, address: &str| HostSpec::Name {
        name: name.to_owned(),
        addresses: vec![address.parse().unwrap()],
    };
    assert_eq!(export.rules[0].hosts[1], resolved("client.example.org", "192.0.2.7"));
    assert_eq!(export.rules[0].hosts[2], resolved("mapped.example.org", "192.0.2.8"));
}

/// Text after a valid export on lines 1 and 2, and the error it earns.
const EXPORT_ERRORS: &[(&str, &str)] = &[
    ("colour = 1", "3:1: unknown key `colour`, expected one of "),
    ("squash = \"some\"", "3:10: unknown value `some`, expected one of `none`, `root`, `all`"),
    ("id = -1", "3:6: invalid value: integer `-1`, expected a number from 0 to 4294967295"),
    ("name = \"data\"", "3:8: the export name `data` does not begin with a slash"),
    ("name = \"/data/\"", "3:8: the export name `/data/` has a slash too many"),
    ("name = \"/a/../b\"", "3:8: the export name `/a/../b` has a slash too many or a `.` or `..`"),
    ("name = \"/a\\nb\"", "3:8: the export name \"/a\\nb\" holds a control character"),
    (
        "io_cache_read = \"Direct\"",
        "3:17: `Direct` is not an I/O mode; the modes are buffered, dontcache, direct and auto",
    ),
    (
        "io_cache_write = \"\"",
        "3:18: `` is not an I/O mode; the modes are buffered, dontcache, direct",
    ),
    (
        "io_cache_read = 1",
        "3:17: invalid type: integer `1`, expected buffered, dontcache, direct or auto",
    ),
    ("anonymous_uid = 4294967295", "3:17: 4294967295 is not an id"),
    ("[[export.client]]", "3:1: missing key `hosts`"),
    ("[[export.client]]\nhosts = []", "4:9: `hosts` is empty"),
    ("[[export.client]]\nhost = \"*\"", "4:1: unknown key `host`"),
    ("[[export.client]]\nhosts = \"*\"", "4:9: the value is a list: write [\"*\"]"),
    ("[[export.client]]\nhosts = 1", "4:9: invalid type: integer `1`, expected a list of hosts, "),
    (
        "[export.client]\nhosts = [\"*\"]",
        "3:1: there can be several of this table: write [[export.client]]",
    ),
    ("[[export.client]]\nhosts = [\"*\", \"10.0.0.1/8\"]", "4:15: `10.0.0.1/8` has bits beyond"),
    ("[[export.client]]\nhosts = [\"10.0.0.0/33\"]", "4:10: `10.0.0.0/33` is not a network"),
    ("[[export.client]]\nhosts = [\"10.0.0.300\"]", "4:10: `10.0.0.300` is not an address"),
    ("[[export.client]]\nhosts = [\"*.example.org\"]", "4:10: `*.example.org` is not an address"),
    ("[[export.client]]\nhosts = [\"gone.org\"]", "4:10: cannot resolve gone.org: no such host"),
    (
        "[[export.client]]\nhosts = [\"empty.example.org\"]",
        "4:10: cannot resolve empty.example.org",
    ),
    ("[[export.client]]\nhosts = [\"*\"]\nanonymous_gid = 4294967295", "5:17: 4294967295"),
    ("profile = \"data\"", "3:11: unknown value `data`, expected `data-server`"),
    ("profile = \"data-server\"", "3:11: a data server needs `metadata_servers`, the hosts"),
    ("metadata_servers = [\"10.0.0.1\"]", "3:20: `metadata_servers` belong to `profile = "),
    ("profile = \"data-server\"\nmetadata_servers = []", "4:20: `metadata_servers` is empty"),
    (
        "profile = \"data-server\"\nmetadata_servers = [\"10.0.0.1\"]\nsquash = \"all\"",
        "5:10: a data server squashes root and no other user",
    ),
    (
        "profile = \"data-server\"\nmetadata_servers = [\"10.0.0.1\"]\n\
         [[export.client]]\nhosts = [\"*\"]\nsquash = \"none\"",
        "7:10: a data server squashes root and no other user",
    ),
    (
        "[[export]]\npath = \"$A\"",
        "4:8: another export is already named $DIR/a; each needs its own",
    ),
    ("calls_per_sec = 0", "3:17: calls_per_sec must be at least 1"),
    ("client_bytes_per_sec = \"1KiB\"", "3:24: client_bytes_per_sec must be at least 64KiB"),
    ("id = 5\n[[export]]\npath = \"$B\"\nid = 5", "6:6: $DIR/b has the id of $DIR/a; give one"),
    ("[[export]]\npath = \"$B\"\nname = \"$A\"", "5:8: another export is already named $DIR/a"),
];

#[test]
fn a_data_server_has_a_rule_for_its_metadata_servers() {
    let text = "[[export]]\npath = \"$A\"\nprofile = \"data-server\"\nsecure_ports = true\n\
                metadata_servers = [\"10.0.0.1\"]\n[[export.client]]\nhosts = [\"*\"]";
    let config = Machine::new().parse(text).unwrap();
    let export = config.exports().iter().next().unwrap();
    let clients = Access { require_privileged_port: true, data_only: true, ..Access::default() };
    assert_eq!(export.rules[0].access, clients);
    let metadata_servers = export.metadata_servers.as_ref().unwrap();
    let wanted = Access { squash: Squash::None, data_only: false, ..clients };
    assert_eq!(metadata_servers.access, wanted);
    assert_eq!(export.host_specs().collect::<Vec<_>>(), ["10.0.0.1", "*"]);
}

#[test]
fn errors_in_an_export_name_their_place() {
    let machine = Machine::new();
    for (text, expected) in EXPORT_ERRORS {
        let error = machine.error(&format!("[[export]]\npath = \"$A\"\n{text}\n"));
        let expected = format!("spillway.toml:{expected}");
        assert!(error.starts_with(&expected), "{text}\n  {error}\n  {expected}");
    }
}

/// Text before a valid export, and the error it earns.
const GLOBAL_ERRORS: &[(&str, &str)] = &[
    ("lisen = 1", "1:1: unknown key `lisen`, expected one of `listen`"),
    ("listen = 1", "1:10: invalid type: integer `1`, expected an address with a port"),
    ("listen = []", "1:10: the list is empty"),
    ("listen = \"localhost:2049\"", "1:10: `localhost:2049` is not an IP address with a port"),
    ("listen = [\n  \"127.0.0.1:1\",\n  \"::1\"]", "3:3: `::1` is not an IP address with a port"),
    ("listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]", "1:10: 127.0.0.1:1 is given twice"),
    (
        "listen = [\"0.0.0.0:1\", \"127.0.0.1:1\"]",
        "1:10: the server cannot listen on both 0.0.0.0:1 and 127.0.0.1:1",
    ),
    (
        "listen = [\"[::1]:1\", \"[::]:1\"]",
        "1:10: the server cannot listen on both [::1]:1 and [::]:1",
    ),
    (
        "listen = [\"127.0.0.1:1\", \"[::ffff:127.0.0.1]:1\"]",
        "1:10: the server cannot listen on both 127.0.0.1:1 and [::ffff:127.0.0.1]:1",
    ),
    ("metrics = 1", "1:11: invalid type: integer `1`, expected an address with a port"),
    (
        "metrics = \"127.0.0.1:2049\"",
        "1:11: the server cannot serve clients on 127.0.0.1:2049 and metrics on 127.0.0.1:2049",
    ),
    (
        "listen = \"0.0.0.0:1\"\nmetrics = \"127.0.0.1:1\"",
        "2:11: the server cannot serve clients on 0.0.0.0:1 and metrics on 127.0.0.1:1",
    ),
    (
        "metrics = \"127.0.0.1:1\"\nlisten = \"[::]:1\"",
        "1:11: the server cannot serve clients on [::]:1 and metrics on 127.0.0.1:1",
    ),
    (
        "listen = [\"127.0.0.2:2\", \"127.0.0.1:1\"]\nmetrics = \"[::]:1\"",
        "2:11: the server cannot serve clients on 127.0.0.1:1 and metrics on [::]:1",
    ),
    ("memory = 5", "1:10: invalid type: integer `5`, expected a size with a unit"),
    ("memory = \"5\"", "1:10: `5` is not a size with a unit"),
    ("memory = \"5\\nMiB\"", "1:10: `5\\nMiB` is not a size with a unit"),
    ("memory = \"1MB\"", "1:10: `1MB` is not a size with a unit"),
    ("memory = \"99999999999999GiB\"", "1:10: `99999999999999GiB` is not a size"),
    ("memory = \"7MiB\"", "1:10: 7MiB of memory is too little for transfers of 1MiB; the least"),
    ("memory = \"16MiB\"\nmax_transfer = \"4MiB\"", "1:10: 16MiB of memory is too little"),
    ("max_transfer = \"60KiB\"", "1:16: 60KiB is not a multiple of 4KiB between 64KiB and 4MiB"),
    ("max_transfer = \"17MiB\"", "1:16: 17MiB is not a multiple of 4KiB"),
    ("max_transfer = \"66000B\"", "1:16: 66000B is not a multiple of 4KiB"),
    ("max_transfer = \"8GiB\"", "1:16: 8GiB is not a multiple of 4KiB"),
    ("max_connections = 0", "1:19: max_connections must be between 1 and 65536"),
    ("max_clients = 3", "1:15: max_clients must be between 4 and 65536"),
    ("max_sessions = 65537", "1:16: max_sessions must be between 4 and 65536"),
    ("max_opens = 15", "1:13: max_opens must be between 16 and 1048576"),
    ("max_delegations = 1", "1:19: max_delegations must be between 16 and 1048576"),
    ("max_locks = 0", "1:13: max_locks must be between 16 and 16777216"),
    ("data_threads = 1025", "1:16: data_threads must be between 1 and 1024"),
    ("metadata_threads = 0", "1:20: metadata_threads must be between 1 and 1024"),
    ("idle_timeout = \"0s\"", "1:16: the idle timeout must be between 1s and 24h"),
    ("idle_timeout = \"25h\"", "1:16: the idle timeout must be between 1s and 24h"),
    ("idle_timeout = \"5m\"", "1:16: `5m` is not a time with a unit"),
    ("idle_timeout = 30", "1:16: invalid type: integer `30`, expected a time with a unit"),
    (
        "window = \"7MiB\"",
        "1:10: 7MiB is too little for the write-behind window; the least is 8MiB",
    ),
    ("window = \"257MiB\"", "1:10: a window of 257MiB is more than half of the memory, 512MiB"),
    ("window = 8", "1:10: invalid type: integer `8`, expected a size with a unit"),
    ("read_ahead = 1", "1:14: invalid type: integer `1`, expected true or false"),
    ("io_cache_read = \"direct\"", "1:1: unknown key `io_cache_read`"),
    ("trace = \"all\"", "1:9: the value is a list: write [\"all\"]"),
    ("trace = 1", "1:9: invalid type: integer `1`, expected a list of trace events, such as"),
    ("nfs_versions = \"3\"", "1:16: the value is a list: write [\"3\"]"),
    ("nfs_versions = \"3, 4.2\"", "1:16: the value is a list: write [\"3\", \"4.2\"]"),
    ("nfs_versions = 3", "1:16: invalid type: integer `3`, expected a list of versions, such as"),
    ("nfs_versions = [\"4\"]", "1:16: give one or more of \"3\", \"4.1\" and \"4.2\""),
    ("state_dir = 1", "1:13: invalid type: integer `1`, expected a path in quotes"),
    (
        "trace = [\n  \"read_done\",\n  \"reed\"]",
        "3:3: `reed` is not a trace event; the events are all, read_start, ",
    ),
    ("trace = [1]", "1:10: invalid type: integer `1`, expected the name of a trace event"),
    ("portmap = \"yes\"", "1:11: invalid type: string \"yes\", expected true or false"),
    ("portmap = true\nportmap = true", "2:1: duplicate key"),
    ("# naïve\nportmap = ", "2:11: "),
];

#[test]
fn errors_in_global_keys_name_their_place() {
    let machine = Machine::new();
    for (text, expected) in GLOBAL_ERRORS {
        let error = machine.error(&format!("{text}\n[[export]]\npath = \"$A\"\n"));
        let expected = format!("spillway.toml:{expected}");
        assert!(error.starts_with(&expected), "{text}\n  {error}\n  {expected}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn colliding_addresses_are_the_fault_of_a_flag_if_one_is_given() {
    let machine = Machine::new();
    let address = |text: &str| text.parse::<ListenAddress>().unwrap();
    let listen = |texts: &[&str]| texts.iter().map(|text| address(text).0).collect::<Vec<_>>();
    let metrics = Some(address("0.0.0.0:1"));
    for (file, listen, metrics, expected) in [
        ("", listen(&["[::]:1", "[::1]:1"]), None, "--listen: the server cannot listen on both"),
        ("", listen(&["127.0.0.1:1"]), metrics, "--metrics: the server cannot serve clients on"),
        ("listen = \"127.0.0.1:1\"\n", Vec::new(), metrics, "--metrics: the server cannot serve"),
        ("metrics = \"0.0.0.0:1\"\n", listen(&["127.0.0.1:1"]), None, "--listen: the server"),
    ] {
        let overrides = Overrides { listen, metrics, ..Overrides::default() };
        let text = format!("{file}[[export]]\npath = \"$A\"\n");
        let error = machine.parse_over(&text, &overrides).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn addresses_that_do_not_collide_are_accepted() {
    let machine = Machine::new();
    for (listen, metrics) in [
        ("[\"0.0.0.0:1\", \"[::]:1\"]", "127.0.0.1:2"),
        // Beside an IPv4 address `::` is IPv6 alone.
        ("[\"[::]:1\", \"127.0.0.1:1\"]", "127.0.0.2:1"),
        ("[\"[::]:1\", \"[::ffff:127.0.0.1]:1\"]", "127.0.0.2:1"),
        ("[\"127.0.0.1:1\", \"127.0.0.2:1\"]", "[::1]:1"),
        ("[\"[fe80::1%1]:1\", \"[fe80::1%2]:1\"]", "[fe80::1%3]:1"),
        ("[\"127.0.0.1:0\", \"127.0.0.1:0\", \"0.0.0.0:0\"]", "127.0.0.1:0"),
    ] {
        let text = format!("listen = {listen}\nmetrics = \"{metrics}\"\n");
        let parsed = machine.parse(&(text + "[[export]]\npath = \"$A\"\n"));
        assert!(parsed.is_ok(), "{listen} {metrics}: {parsed:?}");
    }
}

#[test]
fn columns_count_characters() {
    let error = Machine::new().error("\"naïve\" = 1");
    assert!(error.starts_with("spillway.toml:1:1: unknown key `naïve`"), "{error}");
    let error = Machine::new().error("export = [{ name = \"/ä\", path = \"x\" }]");
    assert_eq!(error, "spillway.toml:1:33: `x` is not an absolute path");
}

#[test]
fn an_export_is_an_existing_directory() {
    let machine = Machine::new();
    fs::write(machine.path("file"), "").unwrap();
    let error = |path: &str| machine.error(&format!("[[export]]\npath = \"{path}\""));
    assert!(error("$DIRgone").starts_with("spillway.toml:2:8: cannot export $DIR/gone: No such"));
    assert_eq!(
        error("$DIRfile"),
        "spillway.toml:2:8: cannot export $DIR/file: it is not a directory"
    );
    assert_eq!(error("srv"), "spillway.toml:2:8: `srv` is not an absolute path");
    assert!(error("$A/../b").ends_with("cannot be the export's name; give the export a `name`"));
    assert_eq!(machine.error(""), "spillway.toml: there is no [[export]], so nothing to serve");
}

#[test]
fn a_default_name_is_normalised_and_a_link_is_followed() {
    let machine = Machine::new();
    std::os::unix::fs::symlink(machine.path("a"), machine.path("link")).unwrap();
    let config = machine.parse("[[export]]\npath = \"$DIR/link/./\"").unwrap();
    let export = config.exports().iter().next().unwrap();
    assert_eq!(Path::new(&export.name), machine.path("link"));
    assert_eq!(export.path, machine.path("a"));
}

#[test]
fn a_derived_id_never_changes() {
    let config = Machine::new().parse("[[export]]\npath = \"$A\"\nname = \"/data\"").unwrap();
    // The low half of SipHash-2-4 of the five bytes under the zero key. Another value would make
    // every file handle of every such export stale.
    assert_eq!(config.exports().iter().next().unwrap().id, DERIVED_ID_OF_DATA);
}

const DERIVED_ID_OF_DATA: u32 = 1_062_594_857;

#[test]
fn the_state_directory_stays_outside_the_exports() {
    let machine = Machine::new();
    std::os::unix::fs::symlink(machine.path("a"), machine.path("link")).unwrap();
    for inside in ["a", "a/state", "a/deep/er/state", "link/state"] {
        let overrides = Overrides { state_dir: Some(machine.path(inside)), ..Overrides::default() };
        let refused = machine.parse_over("[[export]]\npath = \"$A\"", &overrides);
        let error = refused.expect_err(inside).to_string();
        assert!(error.starts_with("--state-dir: the state directory "), "{error}");
        assert!(error.contains("lies inside the export"), "{error}");
    }
    let beside = Overrides { state_dir: Some(machine.path("ab")), ..Overrides::default() };
    assert!(machine.parse_over("[[export]]\npath = \"$A\"", &beside).is_ok());
}

#[test]
fn the_root_directory_is_no_export() {
    let machine = Machine::new();
    let below = "the state directory, with the key of all file handles, lies below it";
    for path in ["/", "/."] {
        let error = machine.error(&format!("[[export]]\npath = \"{path}\"\nname = \"/data\""));
        assert!(error.contains(&format!("cannot export {path}: {below}")), "{error}");
    }
    assert!(machine.parse("[[export]]\npath = \"$A\"\nname = \"/\"").is_ok(), "the name alone");
}

#[test]
fn rules_that_another_export_bypasses_are_warned_of() {
    let machine = Machine::new();
    fs::create_dir(machine.path("a/in")).unwrap();
    let everyone = "\n[[export.client]]\nhosts = [\"*\"]\n";
    let export = |path: &str, rule: &str| format!("[[export]]\npath = \"{path}\"\n{rule}");
    let warnings = |exports: &[String]| {
        let warnings = machine.parse(&exports.concat()).unwrap().warnings();
        let text = |text: String| text.replace(machine.path("").to_str().unwrap(), "$DIR/");
        warnings.into_iter().map(text).collect::<Vec<_>>()
    };
    let nested = "the directory of the export $DIR/a/in is part of that of $DIR/a: clients of $DIR/a \
                  reach its files by the rules of $DIR/a";
    let (a, inside) = (export("$A", everyone), export("$A/in", ""));
    assert_eq!(warnings(&[a.clone(), inside.clone()]), [nested]);
    assert_eq!(warnings(&[inside.clone(), a.clone()]), [nested]);
    let again =
        format!("[[export]]\npath = \"$A\"\nname = \"/again\"\n{everyone}read_only = true\n");
    let [one] = warnings(&[a.clone(), again]).try_into().unwrap();
    assert!(
        one.starts_with("the directory of the export /again is also that of $DIR/a: clients of "),
        "{one}"
    );
    assert!(warnings(&[a.clone(), export("$A/in", everyone)]).is_empty());
    assert!(warnings(&[a, export("$B", "")]).is_empty());
}

#[test]
fn the_default_state_directory_follows_user_and_environment() {
    let some = |text: &str| Some(OsString::from(text));
    let cases = [
        (true, some("/x"), some("/home/u"), Some("/var/lib/spillway")),
        (false, some("/x"), some("/home/u"), Some("/x/spillway")),
        (false, None, some("/home/u"), Some("/home/u/.local/state/spillway")),
        (false, some("relative"), some("/home/u"), Some("/home/u/.local/state/spillway")),
        (false, some(""), None, None),
        (false, None, some("u"), None),
    ];
    for (root, xdg, home, expected) in cases {
        assert_eq!(default_state_dir(root, xdg, home).as_deref(), expected.map(Path::new));
    }
}

#[test]
fn flags_win_over_the_file() {
    let machine = Machine::new();
    let overrides = Overrides {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        memory: Some(ByteSize(512 << 20)),
        max_transfer: Some(ByteSize(2 << 20)),
        portmap: true,
        read_only: true,
        ..Overrides::default()
    };
    let text = "listen = \"127.0.0.1:1\"\nmemory = \"64MiB\"\nmax_transfer = \"64KiB\"\n\
                portmap = false\n[[export]]\npath = \"$A\"\nread_only = false";
    let config = machine.parse_over(text, &overrides).unwrap();
    assert_eq!(config.listen()[0].port(), 0);
    assert_eq!((config.memory_bytes(), config.max_transfer_bytes()), (512 << 20, 2 << 20));
    assert!(config.portmap());
    assert!(config.exports().iter().all(|export| export.rules[0].access.read_only));
}

#[test]
fn default_window_is_what_the_buffers_leave() {
    let machine = Machine::new();
    for (memory, window_mib) in [
        ("64MiB", 16),
        ("256MiB", 64),
        ("320MiB", 80),
        ("400MiB", 144),
        ("512MiB", 256),
        ("4GiB", 256),
    ] {
        let text = format!("memory = \"{memory}\"\n[[export]]\npath = \"$A\"\n");
        let config = machine.parse(&text).unwrap();
        assert_eq!(config.window_bytes(), window_mib << 20, "{memory}");
    }
}

#[test]
fn default_window_is_a_part_of_the_memory_of_the_machine() {
    let machine = Machine::new();
    let default = machine.parse("[[export]]\npath = \"$A\"\n").unwrap();
    assert_eq!(default.memory_of(16 << 30), (512 << 20, 256 << 20));
    assert_eq!(default.memory_of(128 << 20), (320 << 20, 64 << 20), "as many buffers as ever");
    assert_eq!(default.memory_of(8 << 20), (264 << 20, 8 << 20));
    let given = machine.parse("window = \"256MiB\"\n[[export]]\npath = \"$A\"\n").unwrap();
    assert_eq!(given.memory_of(128 << 20), (512 << 20, 256 << 20));
}

#[test]
fn flags_override_keys_that_a_reload_can_change() {
    let machine = Machine::new();
    let overrides = Overrides {
        read_mode: Some(IoMode::Buffered),
        window: Some(ByteSize(16 << 20)),
        no_read_ahead: true,
        no_splice: true,
        trace: Some(Events::from(Event::CommitDone)),
        ..Overrides::default()
    };
    let text = "window = \"32MiB\"\nread_ahead = true\nsplice = true\ntrace = [\"all\"]\n\
                [[export]]\npath = \"$A\"\nio_cache_read = \"direct\"\nio_cache_write = \"direct\"\n\
                [[export]]\npath = \"$B\"\n";
    let config = machine.parse_over(text, &overrides).unwrap();
    assert_eq!(config.window_bytes(), 16 << 20);
    assert!(!config.read_ahead() && !config.splice());
    assert_eq!(config.trace(), Events::from(Event::CommitDone));
    let policies: Vec<_> = config.exports().iter().map(|export| export.policy).collect();
    let (read, auto) = (IoMode::Buffered, IoMode::Auto);
    assert_eq!(
        policies,
        [IoMode::Direct, auto].map(|write| IoPolicy { read, write, ..IoPolicy::default() })
    );

    let overrides = Overrides { write_mode: Some(IoMode::Direct), ..directory(machine.path("a")) };
    let config = machine.parse_over("trace = [\"all\"]", &overrides).unwrap();
    let policy = config.exports().iter().next().unwrap().policy;
    assert_eq!(policy, IoPolicy { write: IoMode::Direct, ..IoPolicy::default() });
    assert_eq!(config.trace(), "all".parse().unwrap());
}

#[test]
fn a_flag_for_every_export_overrides_the_switches_of_each() {
    let machine = Machine::new();
    let text = "[[export]]\npath = \"$A\"\nname = \"/a\"\n";
    let overrides = Overrides { no_read_ahead: true, no_splice: true, ..Overrides::default() };
    let settings = ["read_ahead=true", "splice=true", "sync=true"].map(|s| s.parse().unwrap());
    let overridden = |overrides: &Overrides, settings: &[Setting]| {
        let config = machine.parse_over(text, overrides).unwrap();
        let kept = config.with_settings(Some("/a"), settings).unwrap();
        kept.overridden_settings(Some("/a"), settings)
    };
    assert_eq!(overridden(&overrides, &settings), ["read_ahead", "splice"]);
    assert!(overridden(&Overrides::default(), &settings).is_empty());
    let off = ["read_ahead=false", "splice=false"].map(|s| s.parse().unwrap());
    assert!(overridden(&overrides, &off).is_empty(), "they are off in any case");
}

#[test]
fn the_order_of_a_resolver_changes_no_rule() {
    let machine = Machine::new();
    let text = "[[export]]\npath = \"$A\"\n[[export.client]]\nhosts = [\"host.example.org\"]";
    let text = text.replace("$A", machine.path("a").to_str().unwrap());
    let overrides = Overrides { state_dir: Some(machine.path("state")), ..Overrides::default() };
    let exports = |addresses: &[&str]| {
        let resolve = |_: &str| Ok(addresses.iter().map(|ip| ip.parse().unwrap()).collect());
        let source = Source { file: Path::new("spillway.toml"), text: &text };
        parse_with(source, &overrides, &resolve).unwrap().exports
    };
    let addresses = ["192.0.2.7", "192.0.2.9", "2001:db8::1"];
    let rotated = ["2001:db8::1", "192.0.2.7", "192.0.2.9", "192.0.2.7"];
    assert_eq!(exports(&addresses), exports(&rotated));
}

#[test]
fn a_data_server_without_version_3_is_refused() {
    let machine = Machine::new();
    let text = |versions| {
        format!(
            "nfs_versions = [{versions}]\n[[export]]\npath = \"$A\"\nprofile = \"data-server\"\n\
             metadata_servers = [\"10.0.0.1\"]"
        )
    };
    let error = machine.error(&text("\"4.2\""));
    assert!(error.contains("4:11: a data server is reached by version 3"), "{error}");
    assert!(machine.parse(&text("\"3\", \"4.2\"")).is_ok());
}

#[test]
fn a_window_by_flag_that_is_too_small_is_the_flags_fault() {
    let machine = Machine::new();
    let overrides = Overrides { window: Some(ByteSize(1 << 20)), ..directory(machine.path("a")) };
    let error = machine.parse_over("", &overrides).unwrap_err().to_string();
    assert!(error.starts_with("--window: 1MiB is too little"), "{error}");
}

#[test]
fn the_setting_that_was_raised_is_blamed_for_too_little_memory() {
    let machine = Machine::new();
    let text = "max_transfer = \"4MiB\"\n[[export]]\npath = \"$A\"";
    let memory = Overrides { memory: Some(ByteSize(16 << 20)), ..Overrides::default() };
    let error = machine.parse_over(text, &memory).unwrap_err().to_string();
    assert!(error.starts_with("--memory: 16MiB of memory is too little"), "{error}");
}

#[test]
fn a_directory_by_flag_is_the_only_export() {
    let machine = Machine::new();
    let config = machine.parse_over("memory = \"64MiB\"", &directory(machine.path("a"))).unwrap();
    assert_eq!(config.exports().iter().len(), 1);
    assert_eq!(config.memory_bytes(), 64 << 20);
    let refused = machine.parse_over("[[export]]\npath = \"$B\"", &directory(machine.path("a")));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "DIR: spillway.toml has exports of its own; give one or the other"
    );
    let refused = Config::from_flags(&Overrides::default());
    assert!(matches!(refused, Err(ConfigError::Flag { flag: "DIR", .. })));
}

#[test]
fn a_directory_by_flag_takes_a_name_and_clients() {
    let machine = Machine::new();
    let mut overrides = directory(machine.path("a"));
    let directory = overrides.directory.as_mut().unwrap();
    directory.name = Some("/data".to_owned());
    directory.clients = vec!["10.0.0.0/8".to_owned(), "client.example.org".to_owned()];
    let config = machine.parse_over("", &overrides).unwrap();
    let export = config.exports().by_name(b"/data").unwrap();
    assert_eq!(export.host_specs().collect::<Vec<_>>(), ["10.0.0.0/8", "client.example.org"]);
}

#[test]
fn exports_and_switches_change_without_a_restart() {
    let machine = Machine::new();
    let a = machine.parse("[[export]]\npath = \"$A\"").unwrap();
    let b = machine.parse("[[export]]\npath = \"$B\"").unwrap();
    assert!(a.restart_only_changes(&b).is_empty());
    let switched = "read_ahead = false\nsplice = false\ntrace = [\"all\"]\n[[export]]\n\
                    path = \"$A\"\nio_cache_read = \"direct\"";
    assert!(a.restart_only_changes(&machine.parse(switched).unwrap()).is_empty());
    let c = "memory = \"1GiB\"\ndata_threads = 1\nwindow = \"8MiB\"\n[[export]]\npath = \"$A\"";
    let c = machine.parse(c).unwrap();
    assert_eq!(a.restart_only_changes(&c), ["memory", "data_threads", "window"]);
}

#[test]
fn sizes_are_shown_in_their_largest_whole_unit() {
    for text in ["0B", "1B", "1023B", "64KiB", "1025KiB", "3MiB", "2GiB"] {
        assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
    }
    assert_eq!("1024 KiB".parse::<ByteSize>().unwrap().to_string(), "1MiB");
    for text in ["", "KiB", "1", "1kib", "1.5MiB", "-1MiB", "+1MiB", "1 MiB x"] {
        assert!(text.parse::<ByteSize>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_configuration_or_an_error_with_a_place(
        keep in 0..200_usize,
        noise in "[\\PC\n=\\[\\]\"]{0,12}",
    ) {
        let text = "listen = [\"127.0.0.1:0\"] # ü\nmemory = \"64MiB\"\n[[export]]\n\
                    path = \"$A\"\nid = 4\n[[export.client]]\nhosts = [\"*\", \"10.0.0.1\"]\n";
        let text: String = text.chars().take(keep).chain(noise.chars()).collect();
        if let Err(error) = Machine::new().parse(&text) {
            prop_assert!(error.to_string().starts_with("spillway.toml:"), "{error}");
            prop_assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

#[test]
fn versions_of_nfs_are_chosen_by_key_or_flag() {
    let machine = Machine::new();
    let export = "[[export]]\npath = \"$A\"\n";
    let versions = |text: &str, overrides: &Overrides| {
        let text = format!("{text}\n{export}");
        machine.parse_over(&text, overrides).map(|config| config.nfs_versions().to_string())
    };
    let none = Overrides::default();
    assert_eq!(versions("", &none).unwrap(), "3,4.1,4.2");
    let two = "nfs_versions = [\"3\", \"4.1\"]";
    assert_eq!(versions(two, &none).unwrap(), "3,4.1");
    let flag = Overrides { nfs_versions: "4.2".parse().ok(), ..Overrides::default() };
    assert_eq!(versions(two, &flag).unwrap(), "4.2");
    for text in ["nfs_versions = []", "nfs_versions = [\"4\"]"] {
        assert!(versions(text, &none).is_err(), "{text}");
    }
}

#[test]
fn the_portmapper_is_there_for_version_3() {
    let machine = Machine::new();
    for (versions, portmap) in [("\"3\", \"4.1\"", true), ("\"4.1\"", false)] {
        let text =
            format!("portmap = true\nnfs_versions = [{versions}]\n[[export]]\npath = \"$A\"");
        let config = machine.parse(&text).unwrap();
        assert_eq!(config.portmap(), portmap, "{versions}");
        let warnings = config.warnings();
        let is_warned_of = warnings.iter().any(|text| text.starts_with("the portmapper stays off"));
        assert_eq!(is_warned_of, !portmap, "{warnings:?}");
    }
}

#[test]
fn the_state_of_version_4_is_bounded_by_keys() {
    let machine = Machine::new();
    let usual = machine.parse("[[export]]\npath = \"$A\"").unwrap();
    let numbers = |config: &Config| {
        let StateLimits { clients_max, sessions_max, opens_max, locks_max, delegations_max } =
            config.state_limits();
        [clients_max, sessions_max, opens_max, locks_max, delegations_max]
    };
    assert_eq!(numbers(&usual), [4096, 8192, 65_536, 1 << 20, 16_384]);
    assert!(usual.delegations());
    let text = "max_clients = 4\nmax_sessions = 5\nmax_opens = 16\nmax_locks = 17\n\
                max_delegations = 18\ndelegations = false\n[[export]]\npath = \"$A\"";
    let set = machine.parse(text).unwrap();
    assert_eq!(numbers(&set), [4, 5, 16, 17, 18]);
    assert!(!set.delegations());
    let keys =
        ["max_clients", "max_sessions", "max_opens", "max_locks", "max_delegations", "delegations"];
    assert_eq!(usual.restart_only_changes(&set), keys);
}
