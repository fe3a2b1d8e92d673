// ring STEPS: two ranks or more of MPI, which know nothing of images, and count as count.py does: beyond STEPS
// until the file `go` is there. Each step sends an array through all of them, long enough not to go through a
// buffer at once, and every number of it must be right.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { NUMBERS = 60000, PAUSE = 50000 };

static long numbers[NUMBERS];

static FILE *append(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("TARN_result"), name);
    FILE *file = fopen(path, "a");
    if (!file)
        MPI_Abort(MPI_COMM_WORLD, 2);
    return file;
}

static int may_end(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/go", getenv("TARN_WORKFLOW_DIR"));
    return access(path, F_OK) == 0;
}

// Rank 0 begins with the step, rank 1 takes it times itself, the others hand it on.
static long through_all(int rank, int ranks, long step) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    if (rank == 0) {
        for (int i = 0; i < NUMBERS; i++)
            numbers[i] = step;
        MPI_Send(numbers, NUMBERS, MPI_LONG, next, 0, MPI_COMM_WORLD);
    }
    MPI_Recv(numbers, NUMBERS, MPI_LONG, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank > 0) {
        for (int i = 0; i < NUMBERS && rank == 1; i++)
            numbers[i] *= step;
        MPI_Send(numbers, NUMBERS, MPI_LONG, next, 0, MPI_COMM_WORLD);
    }
    for (int i = 0; i < NUMBERS && rank == 0; i++)
        if (numbers[i] != step * step)
            MPI_Abort(MPI_COMM_WORLD, 3);
    return numbers[0];
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long steps = argc > 1 ? atol(argv[1]) : 0, total = 0;
    FILE *lines = NULL;
    if (rank == 0) {
        FILE *begun = append("begun");
        fputs("begun\n", begun);
        fclose(begun);
        lines = append("numbers");
    }
    for (long step = 0;; step++) {
        int ends = step >= steps && may_end();
        MPI_Bcast(&ends, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (ends)
            break;
        usleep(PAUSE);
        long square = through_all(rank, ranks, step), least;
        MPI_Allreduce(&square, &least, 1, MPI_LONG, MPI_MIN, MPI_COMM_WORLD);
        total += least;
        if (rank == 0) {
            fprintf(lines, "%ld %ld\n", step, least);
            fflush(lines);
            printf("%ld\n", step);
            fflush(stdout);
        }
    }
    if (rank == 0) {
        FILE *all = append("total");
        fprintf(all, "%ld\n", total);
        fclose(all);
        fclose(lines);
    }
#ifdef MPICH_VERSION
    /* With UCX 1.13, MPICH 4.0 can wait in MPI_Finalize for ever for what went by TCP (docs/internals/stacks.md). */
    MPI_Barrier(MPI_COMM_WORLD);
    usleep(200000);
    _exit(0);
#endif
    MPI_Finalize();
    return 0;
}
