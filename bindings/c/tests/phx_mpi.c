/*
 * phx_mpi.c: ranks of MPI with checkpoints, in a folder DIR.
 *
 * phx_mpi DIR STEPS [KILLED]: from the newest version to step STEPS; the last rank kills itself after step KILLED. Instead of KILLED,
 * `apart`: each rank has a memory of its own, as on a node of its own; `far`: a tier too, and it says how its copies went.
 * phx_mpi DIR names: every rank has another name for the run. phx_mpi DIR size: the last rank's options are of another size.
 */
#include "phx_mpi.h"

#include <signal.h>

#define COUNT 50000

static int value(int i, int rank, int step)
{
    return i + 1000 * rank + step;
}

int main(int argc, char **argv)
{
    char tier[512], memory[512], name[16] = "mpi";
    static int field[COUNT];
    /* The tier's helper takes objects from the first on, the commit itself stages them from the last on. */
    static char ballast[2 << 20];
    int rank, ranks, i, code, step = 0, steps, killed, far, failed = 0;
    if (argc < 3)
        return 2;
    steps = atoi(argv[2]), killed = argc > 3 ? atoi(argv[3]) : 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    snprintf(tier, sizeof tier, "%s/tier", argv[1]);
    snprintf(memory, sizeof memory, "%s/memory", argv[1]);
    if (argc > 3 && strcmp(argv[3], "apart") == 0)
        snprintf(memory, sizeof memory, "%s/memory%d", argv[1], rank);
    far = argc > 3 && strcmp(argv[3], "far") == 0;
    if (far) {
        snprintf(memory, sizeof memory, "%s/memory%d", argv[1], rank);
        snprintf(tier, sizeof tier, "%s/tier%d", argv[1], rank);
    }
    if (strcmp(argv[2], "names") == 0)
        snprintf(name, sizeof name, "mpi%d", rank);

    struct phx_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options - (strcmp(argv[2], "size") == 0 && rank == ranks - 1);
    options.run = name;
    options.tier = tier;
    options.memory = memory;
    options.staging = PHX_DEFAULT;
    if (far)
        options.profile = "device=4MB/s";
    code = phx_init_mpi(MPI_COMM_WORLD, &options);
    if (code != PHX_OK) {
        printf("rank %d: %d: %s\n", rank, code, phx_last_error());
        MPI_Finalize();
        return 0;
    }
    if (far)
        failed |= phx_register_obj("ballast", ballast, sizeof ballast, 1, NULL);
    failed |= phx_register_obj("field", field, sizeof field, sizeof *field, NULL);
    failed |= phx_register_obj("step", &step, sizeof step, sizeof step, NULL);
    code = phx_restart(NULL, NULL);
    if (code == PHX_OK) {
        for (i = 0; i < COUNT; i++)
            failed |= field[i] != value(i, rank, step);
        printf("rank %d restored step %d\n", rank, step);
    } else if (code != PHX_ENOTFOUND) {
        failed = 1;
    }
    while (step < steps && !failed) {
        step++;
        for (i = 0; i < COUNT; i++)
            field[i] = value(i, rank, step);
        failed |= phx_checkpoint_commit(NULL);
        if (step == killed && rank == ranks - 1) {
            fflush(stdout);
            kill(getpid(), SIGKILL);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (far && !failed) {
        struct phx_stats stats;
        memset(&stats, 0, sizeof stats);
        stats.size = sizeof stats;
        failed |= phx_stats(&stats);
        printf("rank %d: %s\n", rank,
               stats.tcp_put_bytes == 0 && stats.rma_put_bytes >= sizeof field ? "copies by RMA" : "copies by TCP");
    }
    if (failed)
        printf("rank %d failed: %s\n", rank, phx_last_error());
    else
        printf("rank %d of %d done at step %d\n", rank, ranks, step);
    if (!failed)
        failed |= phx_finalize();
    MPI_Finalize();
    return failed;
}
