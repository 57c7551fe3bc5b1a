//! Changes to the machine are undone, whichever way this process ends.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use super::program;
use crate::Result;

/// A shell that waits until this value is dropped, or until this process is gone, and then runs a
/// script. One script for both: what a SIGKILL leaves to it was tried at the end of every run.
#[derive(Debug)]
pub(crate) struct Undo {
    shell: Child,
}

impl Undo {
    /// `script` runs with `arguments` as `$1` and following. It must work if nothing, or only a
    /// part, of what it undoes was ever done: make this value first, then do it. What it has to
    /// know of that may be given it later, with [`Undo::tell`].
    ///
    /// # Errors
    /// The shell cannot be started.
    pub(crate) fn new<S: AsRef<OsStr>>(script: &str, arguments: &[S]) -> Result<Self> {
        // Our end of the pipe is closed by the kernel if no one else does. No other child holds
        // it: it is closed on exec.
        let waiting = format!(
            "trap '' HUP INT TERM\nword=\nwhile read -r line; do word=$line; done\n{script}"
        );
        let shell = Command::new("sh")
            .args(["-c", &waiting, "undo"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| program::not_run("sh", &error))?;
        Ok(Self { shell })
    }

    /// Gives the script a word, `$word`; the last one counts.
    ///
    /// # Errors
    /// The shell is gone.
    pub(crate) fn tell(&mut self, word: &str) -> io::Result<()> {
        let mut stdin = self.shell.stdin.as_ref().expect("it is piped, and closed at the end");
        stdin.write_all(format!("{word}\n").as_bytes())
    }

    /// Leaves all as it is.
    pub(crate) fn revoke(mut self) {
        // It is a child of ours that was not waited for, so no other process has its number.
        let _ = self.shell.kill();
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // The script reports on stderr what it could not undo.
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_runs_at_the_end_and_not_before() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a file's name");
        std::fs::write(&file, "").unwrap();
        let undo = Undo::new("rm \"$1\"", &[&file]).unwrap();
        assert!(file.exists());
        drop(undo);
        assert!(!file.exists());
    }

    #[test]
    fn the_script_has_the_last_word_it_was_given() {
        let directory = tempfile::tempdir().unwrap();
        let mut undo = Undo::new("mkdir \"$1/$word\"", &[directory.path()]).unwrap();
        undo.tell("one").unwrap();
        undo.tell("another").unwrap();
        drop(undo);
        assert!(!directory.path().join("one").exists());
        assert!(directory.path().join("another").is_dir());
    }

    #[test]
    fn a_revoked_script_does_not_run() {
        let directory = tempfile::tempdir().unwrap();
        Undo::new("rmdir \"$1\"", &[directory.path()]).unwrap().revoke();
        assert!(directory.path().exists());
    }

    #[test]
    fn the_script_runs_when_its_owner_is_killed() {
        // The shell here stands for this process, its `sleep` for our end of the pipe.
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let mut undo = Undo::new("rm \"$1\"", &[&file]).unwrap();
        let mut owner = Command::new("sleep")
            .arg("60")
            .stdout(undo.shell.stdin.take().unwrap())
            .spawn()
            .unwrap();
        assert!(file.exists());
        owner.kill().unwrap();
        owner.wait().unwrap();
        undo.shell.wait().unwrap();
        assert!(!file.exists());
    }
}
