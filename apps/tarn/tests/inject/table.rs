//! All sweeps: each is a test, and `every_verb_has_a_sweep_or_writes_nothing` looks here for the verbs that have one.

use crate::{
    calls, cancel, ckpt, data, modes, pages, plugins, serve, slurm, storage, submit, verbs,
};

/// Makes a test of each, which fails too if the sweep is over other verbs than these.
macro_rules! sweeps {
    ($($name:ident: $module:ident of $($verb:literal),+;)+) => {
        /// The verbs that have sweeps.
        pub(crate) const SWEPT: &[&str] = &[$($($verb),+),+];

        $(#[test]
        fn $name() {
            $module::$name();
            calls::were_swept(&[$($verb),+]);
        })+
    };
}

sweeps! {
    a_run: verbs of "run";
    a_run_over_an_earlier_result: verbs of "run";
    a_run_that_is_resumed: verbs of "resume";
    a_run_that_is_cancelled: cancel of "cancel";
    run_report: pages of "run";
    sim_report: pages of "sim";
    reproduce: pages of "reproduce";
    data_put: verbs of "data put";
    data_get: verbs of "data get";
    data_rm: verbs of "data rm";
    data_drain: verbs of "data drain";
    data_copy: verbs of "data copy";
    data_pin: data of "data pin";
    data_release: data of "data release";
    keys: verbs of "key new", "key rotate";
    orphans: verbs of "data rm";
    objects: verbs of "data put", "data get", "data rm";
    ckpt_destage: ckpt of "ckpt destage";
    ckpt_drain: ckpt of "ckpt drain";
    partition_create: storage of "partition create";
    partition_resize: storage of "partition resize";
    partition_rm: storage of "partition rm";
    h5_import: storage of "h5 import";
    h5_export: storage of "h5 export";
    h5_exec: plugins of "h5 exec";
    slurm_install: slurm of "slurm install";
    slurm_install_remove: slurm of "slurm install";
    slurm_off_and_on: slurm of "slurm off", "slurm on";
    slurm_export: slurm of "slurm export";
    block_serve: serve of "block serve";
    submit: submit of "submit";
    mode_set: modes of "mode set";
}
