//! The stability of WRITEs.

use proto::nfs4::*;

use super::client::{ALL_VERSIONS, Operations, Session};
use crate::fixture::Fixture;
use crate::local_file::MODES;

#[test]
fn each_write_is_file_sync_by_file_sync_writes_and_a_reload_changes_the_next_one() {
    const STABLE: [StableHow; 3] = [StableHow::Unstable, StableHow::DataSync, StableHow::FileSync];
    for mode in MODES {
        let asked = format!("{ALL_VERSIONS}    io_cache_write = \"{mode}\"\n");
        let promoted = format!("{asked}    file_sync_writes = true\n");
        let fixture = Fixture::with(&promoted);
        let mut session = Session::new(&fixture);
        let export = session.export();
        let (file, stateid) = session.open(export, b"file");
        let data = vec![7; 1 << 20];
        let mut committed = |config: &str, len: usize| {
            fixture.reload(config);
            STABLE.map(|stable| {
                let args = WriteArgs { stateid, offset: 4096, stable, data: &data[..len] };
                let write = Operations::new().at(file).op(OperationCode::Write, &args);
                let mut results = session.ok(&write);
                let results = results.skip(&[OperationCode::Putfh]);
                results.next::<WriteOk>(OperationCode::Write).unwrap().committed
            })
        };
        for len in [0, 4, data.len()] {
            assert_eq!(committed(&promoted, len), [StableHow::FileSync; 3], "{mode}, {len}");
            assert_eq!(committed(&asked, len), STABLE, "{mode}, {len}");
        }
    }
}
