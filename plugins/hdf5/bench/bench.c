/*
 * bench.c: the C part of `tarn bench hdf5`. LIBRARY DRIVER FILE MIB OPERATIONS: loads that HDF5, opens the
 * file by a driver (default is that of the environment, and then sec2, nosieve or core), and does the
 * operations of its standard input, a word a line; the seconds that it took are the answer.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((uint64_t)1 << 20)
#define SMALL 4096

typedef int64_t hid;
typedef uint64_t size;

static void *library;
static hid access_list, file = -1, data = -1, memory, space;
static size bytes, operations;
static unsigned char *buffer;
static const char *path;

/* Ends the program when HDF5 has refused something, which it says itself. */
static hid must(hid result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "HDF5: %s has failed\n", what);
        exit(1);
    }
    return result;
}

static void *found(const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return symbol;
}

/* Calls a function of HDF5, all of whose arguments are given with their types. */
#define CALL(name, types, ...) must(((int(*) types)found(#name))(__VA_ARGS__), #name)
#define GET(name, types, ...) must(((hid(*) types)found(#name))(__VA_ARGS__), #name)
#define VALUE(name) (*(hid *)found(#name))

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void open_file(int make) {
    typedef hid (*create_t)(const char *, unsigned, hid, hid);
    typedef hid (*open_t)(const char *, unsigned, hid);
    if (make) {
        file = must(((create_t)found("H5Fcreate"))(path, 2, 0, access_list), "H5Fcreate");
        data = GET(H5Dcreate2, (hid, const char *, hid, hid, hid, hid, hid), file, "data",
                   VALUE(H5T_NATIVE_UCHAR_g), space, 0, 0, 0);
    } else {
        file = must(((open_t)found("H5Fopen"))(path, 1, access_list), "H5Fopen");
        data = GET(H5Dopen2, (hid, const char *, hid), file, "data", 0);
    }
}

static void close_file(void) {
    if (file < 0)
        return;
    CALL(H5Dclose, (hid), data);
    CALL(H5Fclose, (hid), file);
    file = -1;
}

typedef int (*read_t)(hid, hid, hid, hid, hid, void *);
typedef int (*write_t)(hid, hid, hid, hid, hid, const void *);
typedef int (*select_t)(hid, int, const size *, const size *, const size *, const size *);

/* Pieces of the data, one after the other or anywhere. */
static void pieces(int write, size length, size count, int anywhere) {
    static uint64_t random = 88172645463325252u;
    read_t reads = (read_t)found("H5Dread");
    write_t writes = (write_t)found("H5Dwrite");
    select_t selects = (select_t)found("H5Sselect_hyperslab");
    hid type = VALUE(H5T_NATIVE_UCHAR_g);
    size zero = 0;
    must(selects(memory, 0, &zero, NULL, &length, NULL), "H5Sselect_hyperslab");
    for (size i = 0; i < count; i++) {
        size at = i * length;
        if (anywhere) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            at = random % (bytes / length) * length;
        }
        must(selects(space, 0, &at, NULL, &length, NULL), "H5Sselect_hyperslab");
        if (write)
            must(writes(data, type, memory, space, 0, buffer), "H5Dwrite");
        else
            must(reads(data, type, memory, space, 0, buffer), "H5Dread");
    }
}

static void flush(void) { CALL(H5Fflush, (hid, int), file, 1); }

static int done(const char *word) {
    if (strcmp(word, "seq-write") == 0) {
        pieces(1, MIB, bytes / MIB, 0);
        flush();
    } else if (strcmp(word, "seq-read") == 0) {
        pieces(0, MIB, bytes / MIB, 0);
    } else if (strcmp(word, "random-write") == 0) {
        pieces(1, SMALL, operations, 1);
        flush();
    } else if (strcmp(word, "random-read") == 0) {
        pieces(0, SMALL, operations, 1);
    } else if (strcmp(word, "create") == 0) {
        open_file(1);
        pieces(1, MIB, bytes / MIB, 0);
        flush();
    } else if (strcmp(word, "open") == 0) {
        open_file(0);
    } else if (strcmp(word, "close") == 0) {
        close_file();
    } else {
        return 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    char line[64];
    if (argc != 6)
        return 2;
    library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const char *driver = argv[2];
    path = argv[3];
    bytes = strtoull(argv[4], NULL, 10) * MIB;
    operations = strtoull(argv[5], NULL, 10);
    buffer = malloc(MIB);
    if (!buffer || !bytes || !operations)
        return 2;
    memset(buffer, 7, MIB);
    CALL(H5open, (void), );
    access_list = GET(H5Pcreate, (hid), VALUE(H5P_CLS_FILE_ACCESS_ID_g));
    if (strcmp(driver, "core") == 0)
        CALL(H5Pset_fapl_core, (hid, size_t, unsigned), access_list, 64 * MIB, 0);
    if (strcmp(driver, "nosieve") == 0)
        CALL(H5Pset_sieve_buf_size, (hid, size_t), access_list, 0);
    size one = MIB;
    memory = GET(H5Screate_simple, (int, const size *, const size *), 1, &one, NULL);
    space = GET(H5Screate_simple, (int, const size *, const size *), 1, &bytes, NULL);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        double begun = seconds();
        if (!done(line))
            return 2;
        printf("%.9f\n", seconds() - begun);
        fflush(stdout);
    }
    close_file();
    return 0;
}
