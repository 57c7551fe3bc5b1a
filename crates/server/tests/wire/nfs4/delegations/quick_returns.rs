//! Changes that wait for a client that returns its delegation at once.

use std::fmt::Debug;

use super::*;

/// Makes a change of the file `a` while another client returns its delegation of it. The change has
/// to succeed if the return takes no longer than a change waits for it. On a busy machine it may
/// take longer, and is repeated.
fn succeeds_beside_a_quick_return<E: Debug>(change: impl Fn(&Fixture) -> Result<(), E>) {
    const PATIENCE: Duration = Duration::from_millis(155);
    let began = Instant::now();
    while began.elapsed() < SOON {
        let fixture = fixture();
        let mut holder = Holder::new(&fixture, b"holder");
        let (file, delegation) = holder.delegated(b"a");
        let called = Instant::now();
        let (changed, returned_after) = thread::scope(|scope| {
            let returning = scope.spawn(|| {
                holder.obey(file, delegation);
                called.elapsed()
            });
            (change(&fixture), returning.join().unwrap())
        });
        if returned_after < PATIENCE {
            return changed.unwrap();
        }
    }
    panic!("no delegation is returned within {PATIENCE:?}");
}

#[test]
fn a_call_of_version_3_does_not_notice_a_client_that_is_quick() {
    succeeds_beside_a_quick_return(|fixture| {
        let (mut other, root) = fixture.mounted();
        let object = other.find(root, "a");
        other.write(object, 0, b"new").map(drop)
    });
}

#[test]
fn an_open_for_writing_does_not_notice_a_client_that_is_quick() {
    succeeds_beside_a_quick_return(|fixture| {
        let mut other = Session::of(fixture, b"other", 1);
        let export = other.export();
        open(&mut other, export, b"a", ShareAccess::Write).map(drop)
    });
}
