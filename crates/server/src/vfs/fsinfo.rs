//! FSSTAT and PATHCONF: the limits of the file system. FSINFO reports those of the server.

use super::{Answer, Attributes, Object, Status, Vfs};

/// Space and inodes of a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystemSpace {
    /// Bytes in all.
    pub(crate) total_bytes: u64,
    /// Bytes free.
    pub(crate) free_bytes: u64,
    /// Bytes free for users.
    pub(crate) available_bytes: u64,
    /// Inodes in all.
    pub(crate) total_files: u64,
    /// Inodes free.
    pub(crate) free_files: u64,
    /// Inodes free for users.
    pub(crate) available_files: u64,
    /// Bytes of a block.
    pub(crate) block_bytes: u32,
}

/// Limits on names and links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathLimits {
    /// Hard links to one object.
    pub(crate) links_max: u32,
    /// Bytes in one name.
    pub(crate) name_bytes_max: u32,
}

/// Hard links that the strictest of the common file systems allows (ext4, `EXT4_LINK_MAX`).
const LINKS_MAX: u32 = 65_000;

impl Vfs {
    /// FSSTAT, RFC 1813 §3.3.18.
    pub(crate) async fn fsstat(
        &self,
        object: &Object,
    ) -> Answer<Option<Attributes>, FileSystemSpace> {
        self.about_file_system(object, |stat| FileSystemSpace {
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bfree.saturating_mul(stat.f_frsize),
            available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            total_files: stat.f_files,
            free_files: stat.f_ffree,
            available_files: stat.f_favail,
            block_bytes: u32::try_from(stat.f_frsize).unwrap_or(u32::MAX),
        })
        .await
    }

    /// PATHCONF, RFC 1813 §3.3.20.
    pub(crate) async fn pathconf(&self, object: &Object) -> Answer<Option<Attributes>, PathLimits> {
        self.about_file_system(object, |stat| PathLimits {
            links_max: LINKS_MAX,
            name_bytes_max: u32::try_from(stat.f_namemax).unwrap_or(u32::MAX),
        })
        .await
    }

    async fn about_file_system<T: Send + 'static>(
        &self,
        object: &Object,
        tell: fn(rustix::fs::StatVfs) -> T,
    ) -> Answer<Option<Attributes>, T> {
        let (file, attributes) = match self.open_with_attributes(object).await {
            Ok(opened) => opened,
            Err(status) => return Answer::refused(status),
        };
        // Not of the root: of a directory with a project quota the kernel returns that quota's.
        let job = move || Ok::<_, Status>(tell(rustix::fs::fstatvfs(file.fd())?));
        let result = self.in_metadata_lane(io::Identity::Server, job).await;
        Answer { attributes: Some(attributes), result }
    }
}
