//! The tests in Python fail where they would test nothing: with skips in CI, for a case that does
//! not exist, for a measurement that is compared with nothing, for a system that does not boot.

use std::process::Command;

use tempfile::TempDir;

use crate::root;
use crate::skip::skip;

/// A subject of system tests.
const SUBJECT: &str = "
from harness import Skip, SkipInCiToo, case, main

@case
def passes():
    pass

@case
def needs_what_ci_has():
    raise Skip('no disk')

@case
def needs_what_ci_may_lack():
    raise SkipInCiToo('no probes')

main('subject.py')
";

/// Runs a script with these words behind it; returns its exit status and what it printed. `None`
/// without Python.
fn python(script: &str, words: &[&str], ci: bool) -> Option<(Option<i32>, String)> {
    let mut command = Command::new("python3");
    command
        .args(["-c", script])
        .args(words)
        .current_dir(root())
        .env("PYTHONPATH", root().join("tests/system"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("CI", if ci { "true" } else { "" });
    match command.output() {
        Ok(done) => {
            let printed = [done.stdout, done.stderr].concat();
            Some((done.status.code(), String::from_utf8_lossy(&printed).into_owned()))
        }
        Err(error) => {
            skip(format_args!("python3: {error}"));
            None
        }
    }
}

#[test]
fn system_tests_fail_for_skips_in_ci_and_for_unknown_cases() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().to_str().unwrap();
    let (none, skipped) = ("", "0 passed, 0 failed, 1 skipped");
    for (case, ci, status, words) in [
        ("passes", true, 0, "PASS subject/passes"),
        (none, true, 1, "1 passed, 1 failed, 1 skipped"),
        (none, false, 0, "1 passed, 0 failed, 2 skipped"),
        ("needs_what_ci_has", true, 1, "FAIL subject/needs_what_ci_has: no disk, and CI=true"),
        ("needs_what_ci_has", false, 0, skipped),
        ("needs_what_ci_may_lack", true, 0, skipped),
        ("misspelt", false, 2, "no case misspelt; there are passes, needs_what_ci_has"),
    ] {
        let all = ["--dir", dir, case];
        let arguments = if case == none { &all[..2] } else { &all[..] };
        let Some((ended, printed)) = python(SUBJECT, arguments, ci) else { return };
        assert_eq!(ended, Some(status), "{case}, CI={ci}: {printed}");
        assert!(printed.contains(words), "{case}, CI={ci}: {printed}");
    }
}

#[test]
fn counts_of_instructions_need_a_baseline_and_baselines_a_count() {
    let script = "
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

loader = SourceFileLoader('instructions', 'tests/instructions/run')
run = module_from_spec(spec_from_loader('instructions', loader))
loader.exec_module(run)
same = {'GETATTR': 100, 'WRITE 4 KiB': 100}
for counts in (
    same,
    {'GETATTR': 106, 'WRITE 4 KiB': 114},
    {'GETATTR': 100},
    {**same, 'READ': 100},
):
    print(run.complaints(counts, same))
";
    let Some((status, printed)) = python(script, &[], false) else { return };
    assert_eq!(status, Some(0), "{printed}");
    let found: Vec<_> = printed.lines().collect();
    let expected = [
        "[]",
        r#"["too far above tests/instructions/baseline: ['GETATTR']"]"#,
        r#"["only in tests/instructions/baseline: ['WRITE 4 KiB']"]"#,
        r#"["not in tests/instructions/baseline: ['READ']"]"#,
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_container_that_does_not_boot_is_ended_and_is_a_failure() {
    let script = "
import os
import pathlib
import sys

sys.path.insert(0, 'tests/package')
import machine

machine.ACTION_SECS_MAX = 1
programs = pathlib.Path(sys.argv[1])
os.environ['PATH'] = f'{programs}:' + os.environ['PATH']

def replace(program, words):
    path = programs / program
    path.write_text(f'#!/bin/sh\\n{words}\\n')
    path.chmod(0o755)

replace('nsenter', 'exec sleep 9')
real, other = machine.pid_namespace, lambda process: process
for machine.BOOT_SECS_MAX, machine.pid_namespace, words in [
    (1, real, 'exec sleep 9'),
    # A child that sets up the container, and is not its leader.
    (1, real, 'sleep 9 & wait'),
    (30, other, 'sleep 9 & wait'),
]:
    replace('systemd-nspawn', words)
    container = machine.Machine(programs)
    try:
        with container:
            print('it is booted')
    except machine.Failed as failure:
        print(f'{failure}. It runs: {container.process.poll() is None}')
";
    let dir = TempDir::new().unwrap();
    let Some((status, printed)) = python(script, &[dir.path().to_str().unwrap()], false) else {
        return;
    };
    assert_eq!(status, Some(0), "{printed}");
    let expected = "systemd-nspawn does not start. It runs: False\n\
                    systemd-nspawn does not start. It runs: False\n\
                    systemctl is-system-running: no end after 1 s. It runs: False\n";
    assert_eq!(printed, expected);
}
