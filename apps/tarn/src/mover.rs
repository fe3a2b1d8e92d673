//! The mover of this command: for file trees, and for those of the object store that the environment names.

use tarn_mover::Trees;

/// The mover of this process.
pub(crate) fn trees() -> Trees {
    Trees::new().with_store(tarn_s3::S3Client::of_environment().shared())
}
