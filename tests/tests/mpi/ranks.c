/* A rank records its place and its part of the step's data: it reads $TARN_case/pRANK/n, and writes beside
   it its node, its host and the number of ranks. Without $TARN_case it only prints its host. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int fail(const char *what, int rank) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    fprintf(stderr, "rank %d on %s: %s\n", rank, host, what);
    return 1;
}

static int work(int rank, int size) {
    const char *data = getenv("TARN_case"), *node = getenv("TARN_NODE");
    char path[4096], host[256] = "";
    int found = -1;
    FILE *file;
    gethostname(host, sizeof host - 1);
    if (!data)
        return fail("no $TARN_case", rank);
    /* Jobs of a site have no $TARN_NODE. */
    if (!node)
        node = host;
    snprintf(path, sizeof path, "%s/p%d/n", data, rank);
    file = fopen(path, "r");
    if (!file)
        return fail("its part of the data is not there", rank);
    if (fscanf(file, "%d", &found) != 1 || found != rank)
        return fail("its part of the data is another's", rank);
    fclose(file);
    snprintf(path, sizeof path, "%s/p%d/done", data, rank);
    file = fopen(path, "w");
    if (!file || fprintf(file, "%s %s %d\n", node, host, size) < 0 || fclose(file))
        return fail("it cannot write", rank);
    return 0;
}

int main(int argc, char **argv) {
    int rank, size, failed;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    failed = work(rank, size);
    /* mpirun of PRRTE 3 can hang when ranks live for milliseconds only. No message is sent: MPI_Finalize of
       MPICH 4.0 with UCX 1.13 over TCP can then wait for ever. */
    usleep(200000);
    MPI_Finalize();
    return failed;
}
