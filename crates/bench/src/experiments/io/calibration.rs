//! A null server, in a process of its own: what a load costs beside it is the load's.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use client::NfsUrl;

use crate::{Error, Result};

/// The process; killed when dropped.
pub(super) struct NullServer {
    process: Child,
    url: NfsUrl,
}

impl NullServer {
    /// Starts `program bench null-server`, which prints its address.
    pub(super) fn start(program: &Path) -> Result<Self> {
        let failed = |what: &str| Error::Program(format!("the null server {what}"));
        let mut process = Command::new(program)
            .args(["bench", "null-server"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for this process, which ends the server after the load.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(&format!("cannot be started: {error}")))?;
        let stdout = process.stdout.take().expect("it is a pipe");
        let mut address = String::new();
        let read = BufReader::new(stdout).read_line(&mut address);
        let url = format!("nfs://{}/null", address.trim_end()).parse();
        match (read, url) {
            (Ok(1..), Ok(url)) => Ok(Self { process, url }),
            (Ok(_) | Err(_), _) => {
                let _ = process.kill();
                let _ = process.wait();
                Err(failed("did not say where it listens"))
            }
        }
    }

    pub(super) fn url(&self) -> &NfsUrl {
        &self.url
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        // It has nothing to lose, and may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
