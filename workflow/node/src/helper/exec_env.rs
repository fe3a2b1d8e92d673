//! The variables of a step of several nodes whose paths differ between its nodes: `tarn exec` sets those of the node that it goes to.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Of a step of several nodes: for each a line with its name and its folder of sockets.
pub(crate) const EXEC_DIRS: &str = "TARN_EXEC_DIRS";

/// The host file of MPICH and Intel MPI, beside that of a step.
pub(crate) fn hydra_hosts(hostfile: &Path) -> PathBuf {
    hostfile.with_extension("hydra")
}

/// The variables whose paths that launchers read.
pub(crate) fn host_files(hostfile: &Path) -> [(&'static str, OsString); 2] {
    let hydra = hydra_hosts(hostfile);
    [
        ("HYDRA_HOST_FILE", hydra.clone().into()),
        ("I_MPI_HYDRA_HOST_FILE", hydra.into()),
    ]
}

/// Of a step of several nodes, the variables whose paths differ between nodes: host file and folder of sockets.
pub(crate) fn own_paths(hostfile: &Path, exec: &Path) -> [(&'static str, OsString); 6] {
    let [hydra, intel] = host_files(hostfile);
    [
        hydra,
        intel,
        ("TARN_HOSTFILE", hostfile.into()),
        ("TARN_EXEC_DIR", exec.into()),
        ("OMPI_MCA_orte_default_hostfile", hostfile.into()),
        ("PRTE_MCA_prte_default_hostfile", hostfile.into()),
    ]
}
