/*
 * Stands in for IOR where that is not installed: its two patterns, timed as it times them.
 *
 *   ior posix|mpiio fpp|shared BLOCK BLOCKS FILE
 *
 * Each rank writes BLOCKS blocks of BLOCK bytes, into a file of its own (FILE.RANK) or into one file, block
 * after block in the order of the ranks; then each reads, and compares, what the next rank has written, so
 * that nobody reads what they have in a cache. A phase lasts from before the first open to after the last
 * close, with a sync of what is written. Rank 0 prints: write SECONDS, read SECONDS.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void must(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fail(what, text);
}

/* What block b of a rank begins with; the rest of it follows from that. */
static void fill(unsigned long *block, long bytes, int of, long b) {
    unsigned long word = ((unsigned long)of << 40) + (unsigned long)b + 1;
    for (long i = 0; i < bytes / 8; i++)
        block[i] = word + (unsigned long)i * 0x9e3779b97f4a7c15UL;
}

struct pattern {
    int mpiio, shared;
    long block, blocks;
    const char *file;
};

/* Writes this rank's blocks, or reads and compares those of `of`. */
static void phase(const struct pattern *p, int of, int writes, unsigned long *block, unsigned long *wanted) {
    char name[4096];
    snprintf(name, sizeof name, p->shared ? "%s" : "%s.%d", p->file, of);
    if (!writes) { /* Nothing of it is in this machine's cache, where that can be said. */
        int cached = open(name, O_RDONLY);
        if (cached < 0 || posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED) != 0 || close(cached) != 0)
            fail(name, strerror(errno));
    }
    int flags = writes ? O_CREAT | O_WRONLY : O_RDONLY;
    int file = -1;
    /* One rank makes a shared file, as by MPI-IO: GlusterFS may refuse one of two that make a name at the
     * same moment. */
    int together = p->shared && writes && !p->mpiio;
    MPI_File many = MPI_FILE_NULL;
    if (p->mpiio) {
        int mode = writes ? MPI_MODE_CREATE | MPI_MODE_WRONLY : MPI_MODE_RDONLY;
        must(MPI_File_open(p->shared ? MPI_COMM_WORLD : MPI_COMM_SELF, name, mode, MPI_INFO_NULL, &many),
             "open");
    } else {
        if (together && rank > 0)
            MPI_Barrier(MPI_COMM_WORLD);
        if ((file = open(name, flags, 0666)) < 0)
            fail(name, strerror(errno));
        if (together && rank == 0)
            MPI_Barrier(MPI_COMM_WORLD);
    }
    for (long b = 0; b < p->blocks; b++) {
        long at = (p->shared ? b * ranks + of : b) * p->block;
        if (writes)
            fill(block, p->block, of, b);
        if (p->mpiio) {
            must(writes ? MPI_File_write_at(many, at, block, (int)p->block, MPI_BYTE, MPI_STATUS_IGNORE)
                        : MPI_File_read_at(many, at, block, (int)p->block, MPI_BYTE, MPI_STATUS_IGNORE),
                 "transfer");
        } else {
            for (long done = 0; done < p->block;) {
                char *from = (char *)block + done;
                ssize_t n = writes ? pwrite(file, from, (size_t)(p->block - done), at + done)
                                   : pread(file, from, (size_t)(p->block - done), at + done);
                if (n <= 0)
                    fail(name, n < 0 ? strerror(errno) : "shorter than it was written");
                done += n;
            }
        }
        if (!writes) {
            fill(wanted, p->block, of, b);
            if (memcmp(block, wanted, (size_t)p->block) != 0)
                fail(name, "it reads other than it was written");
        }
    }
    if (p->mpiio) {
        if (writes)
            must(MPI_File_sync(many), "sync");
        must(MPI_File_close(&many), "close");
    } else if ((writes && fsync(file) != 0) || close(file) != 0) {
        fail(name, strerror(errno));
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 6)
        fail("usage", "ior posix|mpiio fpp|shared BLOCK BLOCKS FILE");
    struct pattern p = {
        .mpiio = strcmp(argv[1], "mpiio") == 0,
        .shared = strcmp(argv[2], "shared") == 0,
        .block = atol(argv[3]),
        .blocks = atol(argv[4]),
        .file = argv[5],
    };
    if (p.block <= 0 || p.block % 8 != 0 || p.blocks <= 0)
        fail("usage", "BLOCK is a multiple of 8, and both are at least 1");
    unsigned long *block = malloc((size_t)p.block), *wanted = malloc((size_t)p.block);
    if (block == NULL || wanted == NULL)
        fail("memory", strerror(errno));
    for (int writes = 1; writes >= 0; writes--) {
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        phase(&p, writes ? rank : (rank + 1) % ranks, writes, block, wanted);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            printf("%s %.6f\n", writes ? "write" : "read", MPI_Wtime() - began);
    }
    free(block);
    free(wanted);
    MPI_Finalize();
    return 0;
}
