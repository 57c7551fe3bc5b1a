//! Delegations of files that a local program has a lease of.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::*;
use crate::skip::skip;

/// Takes a lease for writing of the file that is its argument, as Samba does, and keeps it until
/// its input ends.
const HOLD_LEASE: &str = "
import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open(sys.argv[1], 'r+')
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('held', flush=True)
sys.stdin.read()
";

#[test]
fn a_lease_of_a_local_program_is_a_conflict_and_no_lack_of_means() {
    let fixture = fixture();
    let mut holder = Holder::new(&fixture, b"holder");
    let mut command = Command::new("python3");
    command.args(["-c", HOLD_LEASE]).arg(fixture.exported("a"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = match command.spawn() {
        Ok(program) => program,
        Err(error) => return skip(format_args!("python3: {error}")),
    };
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let args = open_args(ShareAccess::Read, OpenHow::NoCreate, OpenClaim::Null(b"a"));
    let args = OpenArgs { share_access: args.share_access | SHARE_WANT_READ_DELEGATION, ..args };
    let call = Operations::new().at(holder.export).op(OperationCode::Open, &args);
    let mut results = holder.session.ok(&call);
    let opened: OpenOk = results.skip(&[OperationCode::Putfh]).next(OperationCode::Open).unwrap();
    assert_eq!(opened.delegation, OpenDelegation::Why(WhyNoDelegation::Contention));
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}
