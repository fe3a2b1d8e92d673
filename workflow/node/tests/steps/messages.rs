//! Ranks that send each other messages between nodes of one machine.

/// A sum over all ranks, by the installed MPI library, without a compiler.
pub(crate) const SUM: &str = r#"
import ctypes, os
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
symbol = lambda name: ctypes.byref(ctypes.c_char.in_dll(mpi, name))
world, rank = symbol("ompi_mpi_comm_world"), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
one, total = ctypes.c_int(10 ** rank.value), ctypes.c_int()
mpi.MPI_Allreduce(ctypes.byref(one), ctypes.byref(total), 1, symbol("ompi_mpi_int"), symbol("ompi_mpi_op_sum"), world)
mpi.MPI_Finalize()
open(os.environ["TARN_made"] + "/" + str(rank.value), "w").write(str(total.value))
"#;

/// The begin of a step's command that lets its ranks reach each other. Empty, but where Open MPI reaches no process that has
/// another host name and the same addresses, without tarn too, as 6.0.0rc2 (docs/internals/stacks.md): then its ranks use UCX.
pub(crate) fn messages() -> &'static str {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("sum.py"), SUM).unwrap();
    let agent = "#!/bin/sh\nhost=$1; shift\nexec unshare --uts sh -c 'hostname \"$0\"; exec sh -c \"$*\"' \"$host\" \"$*\"\n";
    std::fs::write(path("agent"), agent).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path("agent"), executable).unwrap();
    let run = "exec 2>&1; hostname first; exec timeout 60 mpirun --host first:1,second:1 -n 2 /usr/bin/python3 $TARN_made/sum.py";
    let mut plain = std::process::Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        plain.arg("--map-root-user");
    }
    plain.args(["--uts", "sh", "-c", run]);
    for (name, value) in [
        ("OMPI_MCA_plm", "rsh"),
        ("PRTE_MCA_plm", "ssh"),
        ("OMPI_MCA_btl_tcp_if_include", "lo"),
        ("OMPI_MCA_oob_tcp_if_include", "lo"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ] {
        plain.env(name, value);
    }
    for name in ["OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"] {
        plain.env(name, path("agent"));
    }
    let output = plain.env("TARN_made", folder.path()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !stdout.contains("unable to reach each other") {
        return "";
    }
    eprintln!("mpirun reaches no other host name on this machine, without tarn too: by UCX");
    "export OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any; "
}
