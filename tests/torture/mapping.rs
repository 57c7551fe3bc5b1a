//! A process of this machine that reads and writes a file through a mapping.
//!
//! It is a process of its own, in a language of its own, because a mapping cannot be had without
//! unsafe code, which this repository keeps out of its tests.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::skip::skip;

pub(crate) struct Mapping {
    child: Child,
    orders: ChildStdin,
    answers: ChildStdout,
}

impl Mapping {
    /// Maps the first `bytes` of a file, which must not become shorter; `None`, with the reason
    /// printed, where there is no Python.
    pub(crate) fn of(file: &Path, bytes: u64) -> Option<Self> {
        let child = Command::new("python3")
            .args(["-c", include_str!("mapping.py")])
            .arg(file)
            .arg(bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        match child {
            Ok(mut child) => {
                let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
                Some(Self { child, orders, answers })
            }
            Err(error) => {
                skip(format_args!("mapped access: python3: {error}"));
                None
            }
        }
    }

    pub(crate) fn read(&mut self, offset: u64, count: usize) -> Vec<u8> {
        self.orders.write_all(format!("r {offset} {count}\n").as_bytes()).unwrap();
        let mut data = vec![0; count];
        self.answers.read_exact(&mut data).unwrap();
        data
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        self.orders.write_all(format!("w {offset} {}\n", data.len()).as_bytes()).unwrap();
        self.orders.write_all(data).unwrap();
        self.answers.read_exact(&mut [0]).unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
