//! Every procedure, called on a server in this process.

use bytes::Bytes;
use proto::nfs3::{CreateHow, SetAttributes, StableHow};
use spillway_client::mount3::{self, Mounted};

use crate::fixture::{Fixture, options, root};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_is_written_committed_and_read() {
    let fixture = Fixture::new().await;
    let Mounted { nfs, root } = mount3::mount(&fixture.url(), &options(), &root()).await.unwrap();
    nfs.null().await.unwrap();
    let set = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    let file = nfs.create(root, b"file", CreateHow::Guarded(set)).await.unwrap().object.unwrap();
    let data = Bytes::from(vec![7; 100_001]);
    let written = nfs.write(file, 0, data.clone(), StableHow::Unstable).await.unwrap();
    assert_eq!(written.count, 100_001);
    let committed = nfs.commit(file, 0, 0).await.unwrap();
    assert_eq!(committed.verifier, written.verifier);
    let read = nfs.read(file, 0, 200_000).await.unwrap();
    assert!(read.eof);
    assert_eq!(read.data, data);
    assert_eq!(std::fs::read(fixture.exported("file")).unwrap(), data);
}
