import os

from spack.package import Executable, conflicts, depends_on, extends, join_path, license, variant, version, which
from spack_repo.builtin.build_systems.generic import Package


class Tarn(Package):
    """tarn keeps a workflow's data on the compute nodes where it is made and used, in the fastest memory they have: the command
    tarn, the daemon tarnd, and libtarn for checkpoints, objects and direct access to storage memory."""

    # The repository that this recipe lies in.
    git = "file://" + os.path.realpath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 6))

    license("Apache-2.0")

    version("main", branch="main")

    variant("hdf5", default=True, description="The file driver for HDF5, which programs' own HDF5 loads")
    variant("nbd", default=False, description="The plug-in for nbdkit, for `tarn block`")
    variant("verbs", default=False, description="The RDMA device for programs of libibverbs, for `tarn verbs`")
    variant("libfabric", default=False, description="Data between nodes over libfabric too")
    variant("python", default=False, description="The package tarn for Python: runs, data, tasks, checkpoints and objects")
    variant("fortran", default=True, description="The source of the Fortran module phx")

    depends_on("c", type="build")
    depends_on("fortran", type="run", when="+fortran")
    depends_on("rust@1.95:", type="build")
    depends_on("hdf5@1.14:", type="run", when="+hdf5")
    depends_on("nbdkit", type=("build", "run"), when="+nbd")
    depends_on("rdma-core", type="build", when="+verbs")
    depends_on("libfabric@1.17:", type=("build", "link"), when="+libfabric")
    extends("python@3.11:", when="+python")
    depends_on("py-pip", type="build", when="+python")
    depends_on("py-maturin@1.9:1", type="build", when="+python")
    depends_on("py-numpy", type=("build", "run"), when="+python")

    conflicts("platform=darwin", msg="tarn is for Linux")
    conflicts("platform=windows", msg="tarn is for Linux")

    def install(self, spec, prefix):
        packages = ["tarn", "tarn-bench", "tarnd", "tarn-libtarn"]
        Executable("cargo")("build", "--release", "--locked", *[f"--package={package}" for package in packages])
        built = join_path("target", "release")
        Executable(join_path("scripts", "brick.sh"))(built)
        for wanted, script in (("+hdf5", "hdf5.sh"), ("+nbd", "nbdkit.sh"), ("+verbs", "verbs.sh"), ("+libfabric", "shim.sh")):
            if wanted in spec:
                Executable(join_path("scripts", script))(built)
        Executable(join_path("scripts", "install.sh"))(built, prefix)
        if "~fortran" in spec:
            os.remove(join_path(prefix.share, "tarn", "phx.f90"))
        if "+python" in spec:
            pip = which("pip", required=True)
            pip("install", "--no-deps", "--no-build-isolation", f"--prefix={prefix}", join_path("bindings", "python"))

    def setup_run_environment(self, env):
        if "+hdf5" in self.spec:
            env.prepend_path("HDF5_PLUGIN_PATH", self.prefix.lib.tarn.hdf5)
        if "+python" in self.spec:
            env.set("TARN_LIBRARY", join_path(self.prefix.lib, "libtarn.so"))
