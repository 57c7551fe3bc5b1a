//! The end of courtesy for the space of removed files.

use super::*;

impl Bed {
    /// A client that has a file open.
    fn client_with_file(&mut self, owner: &[u8], file: FileId) -> ClientId {
        let client = self.client(owner);
        let call = OpenFile { file, ..open_call(client) };
        self.state.open(&call, &mut self.step).unwrap();
        client
    }

    /// The clients that are known.
    fn clients(&self) -> Vec<ClientId> {
        let reports = self.state.client_reports(self.step.now);
        reports.into_iter().map(|report| report.id).collect()
    }

    /// Whether the courtesy of the holders of the file ends for its space.
    fn ends_courtesy(&mut self) -> bool {
        let found = self.state.files_in_courtesy(self.step.now);
        let has_ended = self.state.end_courtesy(&[(FILE, 1)], 1, &mut self.step);
        assert_eq!(found.iter().any(|(file, _)| *file == FILE), has_ended);
        has_ended
    }
}

#[test]
fn courtesy_ends_for_the_space_of_a_file_that_expired_clients_alone_hold() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    for owner in [b"a", b"b"] {
        bed.client_with_open(owner);
    }
    let elsewhere = bed.client_with_file(b"c", FileId(2));
    bed.step.now = LEASE - Duration::from_secs(1);
    assert!(!bed.ends_courtesy(), "their leases are in force");
    bed.step.now = LEASE;
    assert_eq!(bed.state.files_in_courtesy(bed.step.now), [(FILE, 2), (FileId(2), 1)]);
    assert!(bed.ends_courtesy());
    assert_eq!(bed.clients(), [elsewhere]);
}

#[test]
fn courtesy_ends_for_no_more_files_than_others_lack_the_space_of() {
    let left = |lacking: u64| {
        let mut bed = Bed::new(Limits::default(), Vec::new());
        let files = [(FileId(10), 8), (FileId(11), 4), (FileId(12), 2)];
        for (owner, (file, _)) in [b"a", b"b", b"c"].into_iter().zip(files) {
            bed.client_with_file(owner, file);
        }
        bed.step.now = LEASE;
        let frees = bed.state.end_courtesy(&files, lacking, &mut bed.step);
        (frees, bed.clients().len())
    };
    assert_eq!(left(0), (true, 2), "one at least");
    assert_eq!(left(8), (true, 2));
    assert_eq!(left(9), (true, 1));
    assert_eq!(left(14), (true, 0));
    assert_eq!(left(15), (false, 3), "all together are not enough");
}

#[test]
fn a_live_client_with_the_file_keeps_the_courtesy_of_the_expired() {
    for is_delegated in [false, true] {
        let mut bed = Bed::new(Limits::default(), Vec::new());
        let late = bed.client(b"late");
        bed.open(late, ShareAccess::Read, ShareDeny::None);
        bed.step.now = LEASE;
        let live = bed.client(b"live");
        let open = bed.open(live, ShareAccess::Read, ShareDeny::None).stateid;
        if is_delegated {
            let (file, object) = (FILE, object());
            let call =
                Delegate { client: live, file, export: EXPORT, object, user: 0, is_reclaim: false };
            bed.state.delegate(&call, bed.step.now).unwrap();
            bed.state.close(live, &open, FILE, &mut bed.step).unwrap();
        }
        assert!(!bed.ends_courtesy(), "delegated: {is_delegated}");
        bed.step.now += LEASE;
        assert!(bed.ends_courtesy(), "delegated: {is_delegated}");
        assert!(bed.clients().is_empty());
    }
}
