// mpiio FILE: the ranks write interleaved blocks of one file together, then
// each reads what the others have written.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCK = 64 << 10, BLOCKS = 16 };

static unsigned char byte_at(long offset) { return (unsigned char)(offset * 31 + offset / BLOCK * 7); }

static void must(int code, const char *what) {
    if (code == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "%s: %s\n", what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Datatype blocks;
    MPI_Type_vector(BLOCKS, BLOCK, BLOCK * ranks, MPI_BYTE, &blocks);
    MPI_Type_commit(&blocks);
    unsigned char *own = malloc((size_t)BLOCK * BLOCKS);
    for (int b = 0; b < BLOCKS; b++)
        for (int i = 0; i < BLOCK; i++)
            own[b * BLOCK + i] = byte_at(((long)b * ranks + rank) * BLOCK + i);
    MPI_File file;
    int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
    must(MPI_File_open(MPI_COMM_WORLD, argv[1], mode, MPI_INFO_NULL, &file), "open");
    must(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, blocks, "native", MPI_INFO_NULL),
         "view");
    must(MPI_File_write_all(file, own, BLOCK * BLOCKS, MPI_BYTE, MPI_STATUS_IGNORE), "write");
    must(MPI_File_close(&file), "close");
    must(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDONLY, MPI_INFO_NULL, &file), "open again");
    long wrong = 0, all = 0, other = (rank + 1) % ranks;
    for (int b = 0; b < BLOCKS; b++) {
        long at = ((long)b * ranks + other) * BLOCK;
        must(MPI_File_read_at_all(file, at, own, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "read");
        for (int i = 0; i < BLOCK; i++)
            wrong += own[i] != byte_at(at + i);
    }
    must(MPI_File_close(&file), "close again");
    char host[256];
    gethostname(host, sizeof host);
    printf("rank %d on %s: %ld wrong\n", rank, host, wrong);
    MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return all != 0;
}
