//! The servers that unit tests start: of the directory `export` in a temporary one.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use crate::config::{Config, Overrides};
use crate::export::ExportRoot;
use crate::server::Server;

/// A temporary directory with the directory `export` in it.
pub(crate) fn directory() -> TempDir {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("export")).unwrap();
    dir
}

/// The configuration of a server in `dir`, with more lines for the server and for the export.
pub(crate) fn config(dir: &Path, server: &str, export: &str) -> Config {
    let text = format!(
        "listen = \"127.0.0.1:0\"\nstate_dir = {:?}\n{server}\n[[export]]\npath = {:?}\n{export}",
        dir.join("state"),
        dir.join("export"),
    );
    Config::parse(&text, Path::new("test.toml"), &Overrides::default()).unwrap()
}

/// The root of the only export.
pub(crate) fn root(server: &Server) -> Arc<ExportRoot> {
    let exports = server.service().exports.load_full();
    Arc::clone(exports.root(exports.table.iter().next().unwrap()))
}
