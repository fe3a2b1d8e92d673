/*
 * phx.c: a program with checkpoints, and its wrong calls on purpose.
 *
 * phx DIR STEPS [LAST]: rank 0 of 1 of a run in DIR (DIR/tier, DIR/memory), from its newest version to step STEPS; ends without
 * phx_finalize after step LAST. Prints what it restored. phx DIR misuse: every wrong call gives its code. phx DIR endless HOW:
 * rank $RANK of $RANKS, until it is killed; HOW sets how it stages, and the properties of its object. phx DIR outside STEPS: rank
 * $RANK of $RANKS, of which every second version goes to DIR/store; ends once the last one is there. phx DIR properties: the
 * demands of objects on versions. phx DIR watch: maps versions of the endless one that $RANKS ranks have, and prints how many it
 * has seen whole, until it is killed.
 */
#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT 300000

static struct phx_options options(const char *dir, char tier[], char memory[])
{
    snprintf(tier, 512, "%s/tier", dir);
    snprintf(memory, 512, "%s/memory", dir);
    struct phx_options options = {.size = sizeof options, .ranks = 1, .run = "c", .tier = tier, .memory = memory};
    options.staging = PHX_DEFAULT;
    options.profile = "device=300MB/s";
    return options;
}

static double value(size_t i, int step)
{
    return (double)i * 0.5 + step;
}

static int simulate(const char *dir, int steps, int last)
{
    char tier[512], memory[512];
    struct phx_options o = options(dir, tier, memory);
    void *created = NULL;
    int step = 0;
    static double registered[1000];
    CHECK(phx_init(&o), PHX_OK);
    CHECK(phx_create_obj("field", COUNT * sizeof(double), sizeof(double), NULL, &created), PHX_OK);
    CHECK(phx_register_obj("other", registered, sizeof registered, sizeof(double), NULL), PHX_OK);
    CHECK(phx_register_obj("step", &step, sizeof step, sizeof step, NULL), PHX_OK);
    if (failed)
        return 1;
    double *field = created;
    struct phx_version version = {0, 0};
    int restarted = phx_restart(NULL, &version);
    if (restarted == PHX_OK) {
        for (size_t i = 0; i < COUNT; i++)
            if (field[i] != value(i, step) || registered[i % 1000] != value(i % 1000, -step)) {
                printf("element %zu of step %d is wrong\n", i, step);
                return 1;
            }
        printf("restored %llu.%llu step %d\n", (unsigned long long)version.generation,
               (unsigned long long)version.number, step);
    } else {
        CHECK(restarted, PHX_ENOTFOUND);
    }
    while (step < steps) {
        step++;
        for (size_t i = 0; i < COUNT; i++)
            field[i] = value(i, step);
        for (size_t i = 0; i < 1000; i++)
            registered[i] = value(i, -step);
        CHECK(phx_checkpoint_commit(&version), PHX_OK);
        if (step == last)
            exit(failed); /* staged versions stay in memory */
    }
    CHECK(phx_wait(&version, PHX_DURABLE, 0), PHX_OK);
    struct phx_stats stats = {.size = sizeof stats};
    CHECK(phx_stats(&stats), PHX_OK);
    if (stats.bytes < stats.commits * COUNT * sizeof(double) || (stats.commits > 0 && stats.staged_bytes == 0)) {
        printf("stats: %llu bytes, %llu staged\n", (unsigned long long)stats.bytes,
               (unsigned long long)stats.staged_bytes);
        failed = 1;
    }
    CHECK(phx_finalize(), PHX_OK);
    printf("done at step %d\n", step);
    return failed;
}

#define SMALL 60000

static int endless(const char *dir, int how)
{
    char tier[512], memory[512];
    struct phx_options o = options(dir, tier, memory);
    struct phx_properties p = {.size = sizeof p, .versions = 1 + how / 32, .persistence = how % 3 ? PHX_COMMITTED : PHX_DURABLE};
    const uint64_t staging[] = {PHX_DEFAULT, 100000, 0, PHX_DEFAULT};
    void *created = NULL;
    int step = 0;
    o.rank = (uint32_t)atoi(getenv("RANK"));
    o.ranks = (uint32_t)atoi(getenv("RANKS"));
    o.staging = staging[how & 3];
    o.replicas = how >> 2 & 1;
    o.flags = PHX_SAME_NODE | (how & 8 ? PHX_NO_HELPER : 0);
    o.timeout_ns = 20000000000;
    if (how & 16)
        o.profile = NULL;
    CHECK(phx_init(&o), PHX_OK);
    CHECK(phx_create_obj("field", SMALL * sizeof(double), sizeof(double), &p, &created), PHX_OK);
    CHECK(phx_register_obj("step", &step, sizeof step, sizeof step, NULL), PHX_OK);
    if (failed)
        return 1;
    double *field = created;
    int restarted = phx_restart(NULL, NULL);
    if (restarted != PHX_OK)
        CHECK(restarted, PHX_ENOTFOUND);
    if (failed)
        return 1;
    for (size_t i = 0; restarted == PHX_OK && i < SMALL; i++)
        if (field[i] != value(i, step + (int)o.rank)) {
            printf("element %zu of step %d is wrong\n", i, step);
            return 1;
        }
    printf("restored %d\n", step);
    fflush(stdout);
    while (!failed) {
        step++;
        for (size_t i = 0; i < SMALL; i++)
            field[i] = value(i, step + (int)o.rank);
        int code = phx_checkpoint_commit(NULL);
        CHECK(code, PHX_OK);
        if (code == PHX_OK || code == PHX_DEGRADED)
            printf("committed %d\n", step);
        fflush(stdout);
    }
    return 1;
}

static int outside(const char *dir, int steps)
{
    char tier[512], memory[512], store[512];
    struct phx_options o = options(dir, tier, memory);
    struct phx_properties p = {.size = sizeof p, .shape = PHX_IRREGULAR, .row = sizeof(double)};
    struct phx_version version = {0, 0};
    struct phx_stats stats = {.size = sizeof stats};
    int step = 0, first = 0;
    snprintf(store, sizeof store, "%s/store", dir);
    o.rank = (uint32_t)atoi(getenv("RANK"));
    o.ranks = (uint32_t)atoi(getenv("RANKS"));
    o.external = store;
    o.flush_every = 2;
    o.flush_rate = 1 << 30;
    size_t rows = SMALL / o.ranks, begin = rows * o.rank;
    double *field = calloc(rows, sizeof *field);
    CHECK(phx_init(&o), PHX_OK);
    CHECK(phx_register_obj("field", field, rows * sizeof *field, sizeof *field, &p), PHX_OK);
    p.shape = PHX_REPLICATED_OBJ;
    CHECK(phx_register_obj("step", &step, sizeof step, sizeof step, &p), PHX_OK);
    int restarted = phx_restart(NULL, &version);
    if (restarted != PHX_OK)
        CHECK(restarted, PHX_ENOTFOUND);
    for (size_t i = 0; restarted == PHX_OK && i < rows; i++)
        CHECK(field[i] == value(begin + i, step), 1);
    first = step;
    while (!failed && step < steps) {
        step++;
        for (size_t i = 0; i < rows; i++)
            field[i] = value(begin + i, step);
        CHECK(phx_checkpoint_commit(&version), PHX_OK);
    }
    CHECK(phx_wait(&version, PHX_FLUSHED, 0), PHX_OK);
    CHECK(phx_stats(&stats), PHX_OK);
    CHECK(first == steps || (stats.flushed > 0 && stats.last_flush_ns > 0 && stats.flush_failed == 0), 1);
    CHECK(phx_finalize(), PHX_OK);
    free(field);
    printf("from step %d to %d\n", first, step);
    return failed;
}

/* Whether all ranks have the same step, and the content that follows from it. */
static int is_whole(const struct phx_reader *reader, uint32_t ranks)
{
    int first = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const void *memory = NULL;
        size_t bytes = 0, unit = 0;
        CHECK(phx_map_obj(reader, rank, "step", &memory, NULL, NULL), PHX_OK);
        if (failed)
            return 0;
        int step = *(const int *)memory;
        first = rank == 0 ? step : first;
        CHECK(phx_map_obj(reader, rank, "field", &memory, &bytes, &unit), PHX_OK);
        CHECK(step == first && bytes == SMALL * sizeof(double) && unit == sizeof(double), 1);
        const double *field = memory;
        for (size_t i = 0; !failed && i < SMALL; i++)
            if (field[i] != value(i, step + (int)rank)) {
                printf("element %zu of step %d of rank %u is wrong\n", i, step, rank);
                failed = 1;
            }
    }
    return !failed;
}

static int watch(const char *dir)
{
    char tier[512];
    uint32_t ranks = (uint32_t)atoi(getenv("RANKS"));
    snprintf(tier, sizeof tier, "%s/tier", dir);
    for (unsigned seen = 0; !failed;) {
        struct phx_reader *reader = NULL;
        struct phx_version_info info;
        uint32_t here[8];
        size_t count = 8;
        int code = phx_open_version("c", tier, NULL, 0, &reader);
        if (code == PHX_ENOTFOUND) { /* none yet */
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            continue;
        }
        CHECK(code, PHX_OK);
        CHECK(phx_reader_version(reader, &info, here, &count), PHX_OK);
        CHECK(count == ranks && info.ranks == ranks && here[ranks - 1] == ranks - 1, 1);
        for (unsigned look = 0; look < seen % 4 + 1 && is_whole(reader, ranks); look++)
            nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        CHECK(phx_close_version(reader), PHX_OK);
        if (!failed)
            printf("seen %u\n", ++seen);
        fflush(stdout);
    }
    return 1;
}

/* DIR/tier and DIR/memory have 16 MiB each. */
static int full(const char *dir)
{
    char tier[512], memory[512];
    struct phx_options o = options(dir, tier, memory);
    void *m = NULL;
    CHECK(phx_init(&o), PHX_OK);
    CHECK(phx_create_obj("large", 32 << 20, 1, NULL, &m), PHX_ENOSPACE);
    puts(phx_last_error());
    CHECK(phx_create_obj("small", 1 << 20, 1, NULL, &m), PHX_OK);
    CHECK(phx_checkpoint_commit(NULL), PHX_OK);
    CHECK(phx_create_obj("large", 32 << 20, 1, NULL, &m), PHX_ENOSPACE);
    CHECK(phx_checkpoint_commit(NULL), PHX_OK);
    /* Readers that have all of it. */
    struct phx_reader *readers[32];
    struct phx_version version;
    int open = 0, code = PHX_OK;
    for (; open < 32 && code == PHX_OK; open++) {
        CHECK(phx_open_version("c", tier, NULL, 0, &readers[open]), PHX_OK);
        if ((code = phx_checkpoint_commit(&version)) == PHX_OK)
            CHECK(phx_wait(&version, PHX_DURABLE, 0), PHX_OK);
    }
    check(code, PHX_ENOSPACE, "a commit while all is pinned");
    puts(phx_last_error());
    while (open > 0)
        CHECK(phx_close_version(readers[--open]), PHX_OK);
    CHECK(phx_checkpoint_commit(NULL), PHX_OK);
    CHECK(phx_finalize(), PHX_OK);
    /* A tier that is large enough, and memory that is not. */
    snprintf(tier, sizeof tier, "%s/large", dir);
    o.run = "other";
    CHECK(phx_init(&o), PHX_OK);
    CHECK(phx_create_obj("large", 32 << 20, 1, NULL, &m), PHX_ENOMEM);
    puts(phx_last_error());
    CHECK(phx_create_obj("small", 1 << 20, 1, NULL, &m), PHX_OK);
    CHECK(phx_checkpoint_commit(NULL), PHX_OK);
    CHECK(phx_finalize(), PHX_OK);
    if (!failed)
        puts("what does not fit is told");
    return failed;
}

/* The bytes that the last commit staged. */
static uint64_t staged(void)
{
    struct phx_stats stats = {.size = sizeof stats};
    CHECK(phx_checkpoint_commit(NULL), PHX_OK);
    CHECK(phx_stats(&stats), PHX_OK);
    return stats.last_staged_bytes;
}

static int properties(const char *dir)
{
    char tier[512], memory[512], store[512];
    struct phx_options o = options(dir, tier, memory);
    struct phx_properties p = {.size = sizeof p};
    struct phx_version version = {0, 0};
    void *m = NULL;
    snprintf(store, sizeof store, "%s/store", dir);
    o.external = store;
    o.flush_every = 1;
    /* So slow that the helper cannot have copied all before this thread comes to it. */
    o.profile = "device=20MB/s";
    CHECK(phx_init(&o), PHX_OK);
    CHECK(phx_create_obj("plain", 3 << 20, 8, NULL, &m), PHX_OK);
    CHECK(staged() > 0, 1);
    /* It holds for all of a version, and as long as the object is there. */
    p.persistence = PHX_DURABLE;
    CHECK(phx_create_obj("durable", 8, 8, &p, &m), PHX_OK);
    CHECK(staged() == 0, 1);
    p.persistence = PHX_FLUSHED;
    p.transient = 1;
    CHECK(phx_create_obj("transient", 8, 8, &p, &m), PHX_OK);
    p.transient = 0;
    CHECK(phx_destroy_obj("durable"), PHX_OK);
    CHECK(staged() > 0, 1);
    CHECK(phx_create_obj("flushed", 8, 8, &p, &m), PHX_OK);
    CHECK(phx_checkpoint_commit(&version), PHX_OK);
    /* It is there already. */
    CHECK(phx_wait(&version, PHX_FLUSHED, 1), PHX_OK);
    /* A refused object demands nothing. */
    CHECK(phx_destroy_obj("flushed"), PHX_OK);
    p.versions = 99;
    CHECK(phx_create_obj("many", 8, 8, &p, &m), PHX_EINVALID);
    CHECK(staged() > 0, 1);
    CHECK(phx_finalize(), PHX_OK);
    if (!failed)
        puts("versions are what objects ask for");
    return failed;
}

static void *commits(void *argument)
{
    int *busy = argument;
    for (int i = 0; i < 200; i++) {
        int code = phx_checkpoint_commit(NULL);
        if (code == PHX_EBUSY)
            (*busy)++;
        else
            CHECK(code, PHX_OK);
    }
    return NULL;
}

/* Versions of the program "c" below DIR, which has committed. */
static void misread(const char *tier)
{
    struct phx_reader *reader = NULL, *other = NULL;
    struct phx_version version = {9, 9};
    struct phx_version_info info;
    const void *memory = NULL;
    uint32_t ranks[2] = {7, 7};
    size_t count = 0, bytes = 0;
    pid_t child;
    int status = -1;

    CHECK(phx_open_version("c", tier, NULL, 0, NULL), PHX_EINVALID);
    CHECK(phx_open_version("c", tier, NULL, 2, &reader), PHX_EINVALID);
    CHECK(phx_open_version("c", NULL, NULL, 0, &reader), PHX_EINVALID);
    CHECK(phx_open_version("c/d", tier, NULL, 0, &reader), PHX_EINVALID);
    CHECK(phx_open_version("d", tier, NULL, 0, &reader), PHX_ENOTFOUND);
    CHECK(phx_open_version("c", "/nowhere", NULL, 0, &reader), PHX_ENOTFOUND);
    CHECK(phx_open_version("c", tier, &version, 0, &reader), PHX_ENOTFOUND);
    CHECK(reader == NULL, 1);
    CHECK(phx_map_obj(NULL, 0, "a", &memory, NULL, NULL), PHX_ENOTFOUND);
    CHECK(phx_close_version(NULL), PHX_ENOTFOUND);
    CHECK(phx_open_version("c", tier, NULL, PHX_UNVERIFIED, &reader), PHX_OK);
    CHECK(phx_open_version("c", tier, NULL, 0, &other), PHX_OK);
    CHECK(reader != other, 1);
    CHECK(phx_reader_version(reader, NULL, NULL, NULL), PHX_OK);
    CHECK(phx_reader_version(reader, &info, NULL, &count), PHX_OK);
    CHECK(count == 1 && info.ranks == 1 && info.bytes == (1 << 20) + 296, 1);
    CHECK(info.level, PHX_DURABLE);
    CHECK(phx_reader_version(reader, NULL, NULL, &count), PHX_EINVALID);
    count = 2;
    CHECK(phx_reader_version(reader, NULL, ranks, &count), PHX_OK);
    CHECK(count == 1 && ranks[0] == 0 && ranks[1] == 7, 1);
    CHECK(phx_map_obj(reader, 0, "a", NULL, &bytes, NULL), PHX_EINVALID);
    CHECK(phx_map_obj(reader, 0, NULL, &memory, &bytes, NULL), PHX_EINVALID);
    CHECK(phx_map_obj(reader, 1, "a", &memory, &bytes, NULL), PHX_ENOTFOUND);
    CHECK(phx_map_obj(reader, 0, "b", &memory, &bytes, NULL), PHX_ENOTFOUND);
    CHECK(phx_map_obj(reader, 0, "empty", &memory, &bytes, NULL), PHX_OK);
    CHECK(memory == NULL && bytes == 0, 1);
    CHECK(phx_map_obj(reader, 0, "a", &memory, NULL, NULL), PHX_OK);
    CHECK(phx_map_obj(other, 0, "a", &memory, &bytes, &count), PHX_OK);
    CHECK(memory != NULL && bytes == 1 << 20 && count == 8, 1);
    CHECK(phx_close_version(reader), PHX_OK);
    CHECK(phx_close_version(reader), PHX_ENOTFOUND);
    CHECK(phx_map_obj(reader, 0, "a", &memory, NULL, NULL), PHX_ENOTFOUND);
    /* A user who may not read it. */
    CHECK(chmod(tier, 0), 0);
    child = fork();
    if (child == 0)
        _exit((geteuid() == 0 && setuid(65534) != 0) || phx_open_version("c", tier, NULL, 0, &reader) != PHX_EIO);
    CHECK(waitpid(child, &status, 0) == child && status == 0, 1);
    CHECK(chmod(tier, 0700), 0);
    CHECK(phx_close_version(other), PHX_OK);
}

static int misuse(const char *dir)
{
    char tier[512], memory[512];
    struct phx_options o = options(dir, tier, memory), bad;
    struct phx_properties p = {.size = sizeof p};
    struct phx_version version = {9, 9};
    struct phx_version_info info;
    size_t count = 0, bytes = 0;
    void *m = NULL, *again = NULL;
    char key[300];
    pid_t child;
    int status = -1;

    /* Before phx_init. */
    CHECK(phx_create_obj("a", 8, 8, NULL, &m), PHX_EINIT);
    CHECK(phx_checkpoint_commit(NULL), PHX_EINIT);
    CHECK(phx_restart(NULL, NULL), PHX_EINIT);
    CHECK(phx_destroy_obj("a"), PHX_EINIT);
    CHECK(phx_finalize(), PHX_EINIT);

    /* Options. */
    CHECK(phx_init(NULL), PHX_EINVALID);
    bad = o, bad.size = 3;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.size = sizeof bad + 8;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.ranks = 0;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.rank = 1;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.run = "../x";
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.flags = 1u << 31;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.profile = "floppy";
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.tier = NULL;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.helper_count = 3;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.replicas = 4;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.copies = 4;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.parity = 1;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.copies = 1, bad.parity = 4;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.key = "hex:12";
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.transport = "pigeon";
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.flush_every = 3;
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.external = "/nowhere";
    CHECK(phx_init(&bad), PHX_EINVALID);
    bad = o, bad.tier = "/proc/nowhere";
    CHECK(phx_init(&bad) != PHX_OK, 1);

    CHECK(phx_init(&o), PHX_OK);
    CHECK(phx_init(&o), PHX_EEXISTS);

    /* A child has no part in it. */
    child = fork();
    if (child == 0)
        _exit(phx_checkpoint_commit(NULL) != PHX_EUNSUPPORTED || phx_finalize() != PHX_EUNSUPPORTED);
    CHECK(waitpid(child, &status, 0) == child && status == 0, 1);

    /* Objects. */
    CHECK(phx_create_obj(NULL, 8, 8, NULL, &m), PHX_EINVALID);
    CHECK(phx_create_obj("", 8, 8, NULL, &m), PHX_EINVALID);
    CHECK(phx_create_obj("a", 8, 8, NULL, NULL), PHX_EINVALID);
    CHECK(phx_create_obj("a", 9, 8, NULL, &m), PHX_EINVALID);
    CHECK(phx_create_obj("a", 8, 0, NULL, &m), PHX_EINVALID);
    CHECK(phx_create_obj("a", SIZE_MAX, 1, NULL, &m) != PHX_OK, 1);
    CHECK(phx_create_obj("a", SIZE_MAX / 2, 1, NULL, &m) != PHX_OK, 1);
    CHECK(phx_create_obj("a", (size_t)1 << 46, 1, NULL, &m) != PHX_OK, 1);
    CHECK(phx_register_obj("a", NULL, 8, 8, NULL), PHX_EINVALID);
    CHECK(phx_register_obj("a", &bytes, SIZE_MAX, 1, NULL), PHX_EINVALID);
    memset(key, 'k', 299), key[299] = 0;
    CHECK(phx_create_obj(key, 8, 8, NULL, &m), PHX_EINVALID);
    p.shape = 7;
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p.shape = PHX_IRREGULAR;
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p.row = 3;
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p.shape = PHX_BLOCK;
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p.dimensions = 9;
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p.dimensions = 1;
    p.dimension[0] = (struct phx_dimension){.all = 4, .first = 3, .count = 2};
    CHECK(phx_create_obj("a", 16, 8, &p, &m), PHX_EINVALID);
    p.dimension[0] = (struct phx_dimension){.all = UINT64_MAX, .first = UINT64_MAX, .count = 2};
    CHECK(phx_create_obj("a", 16, 8, &p, &m), PHX_EINVALID);
    p.size = 1 << 20;
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p = (struct phx_properties){.size = sizeof p, .versions = 99};
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p = (struct phx_properties){.size = sizeof p, .persistence = 4};
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p.persistence = PHX_REPLICATED;
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p.persistence = PHX_FLUSHED;
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p = (struct phx_properties){.size = sizeof p, .replicas = 4};
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EINVALID);
    p.replicas = 1;
    CHECK(phx_create_obj("a", 8, 8, &p, &m), PHX_EUNSUPPORTED);
    CHECK(strstr(phx_last_error(), "start ranks on more nodes") != NULL, 1);
    CHECK(phx_create_obj("a", 1 << 20, 8, NULL, &m), PHX_OK);
    memset(m, 1, 1 << 20);
    CHECK(phx_create_obj("a", 8, 8, NULL, &again), PHX_EEXISTS);
    CHECK(phx_get_obj("a", &again, &bytes), PHX_OK);
    CHECK(again == m && bytes == 1 << 20, 1);
    CHECK(phx_get_obj("b", &again, &bytes), PHX_ENOTFOUND);
    CHECK(phx_resize_obj("a", 9, &m), PHX_EINVALID);
    CHECK(phx_resize_obj("a", 3 << 20, &m), PHX_OK);
    CHECK(((char *)m)[(1 << 20) - 1] == 1 && ((char *)m)[(3 << 20) - 1] == 0, 1);
    CHECK(phx_resize_obj("a", 5000 * 8, &m), PHX_OK);
    CHECK(phx_resize_obj("a", 1 << 20, &m), PHX_OK);
    CHECK(((char *)m)[5000 * 8 - 1] == 1 && ((char *)m)[5000 * 8] == 0, 1);
    CHECK(phx_resize_obj("a", 0, &m), PHX_OK);
    CHECK(phx_resize_obj("a", 1 << 20, &m), PHX_OK);
    CHECK(phx_register_obj("mine", key, 296, 8, NULL), PHX_OK);
    CHECK(phx_resize_obj("mine", 8, &m), PHX_EINVALID);
    CHECK(phx_create_obj("empty", 0, 8, NULL, &m), PHX_OK);

    /* Versions. */
    CHECK(phx_restart(&version, NULL), PHX_ENOTFOUND);
    CHECK(phx_restart(NULL, NULL), PHX_ENOTFOUND);
    CHECK(phx_checkpoint_commit(&version), PHX_OK);
    CHECK(version.number == 1, 1);
    CHECK(phx_due(0, NULL), PHX_EINVALID);
    CHECK(phx_due(0, &status), PHX_OK);
    CHECK(status, 1);
    CHECK(phx_due(UINT64_MAX, &status), PHX_OK);
    CHECK(status, 0);
    CHECK(phx_wait(NULL, PHX_DURABLE, 0), PHX_EINVALID);
    CHECK(phx_wait(&version, 17, 0), PHX_EINVALID);
    CHECK(phx_wait(&version, PHX_FLUSHED, 0), PHX_EUNSUPPORTED);
    CHECK(phx_wait(&version, PHX_DURABLE, 0), PHX_OK);
    misread(tier);
    version.number = 99;
    CHECK(phx_wait(&version, PHX_COMMITTED, 1), PHX_ENOTFOUND);
    CHECK(phx_versions(NULL, NULL), PHX_EINVALID);
    count = 1;
    CHECK(phx_versions(NULL, &count), PHX_EINVALID);
    count = 1;
    CHECK(phx_versions(&info, &count), PHX_OK);
    CHECK(phx_stats(NULL), PHX_EINVALID);

    /* Two threads: each call is whole, or refused. */
    pthread_t other;
    int busy[2] = {0, 0};
    pthread_create(&other, NULL, commits, &busy[0]);
    commits(&busy[1]);
    pthread_join(other, NULL);

    CHECK(phx_destroy_obj("a"), PHX_OK);
    CHECK(phx_destroy_obj("a"), PHX_ENOTFOUND);
    CHECK(phx_destroy_obj(NULL), PHX_EINVALID);
    CHECK(phx_checkpoint_commit(NULL), PHX_OK);
    CHECK(phx_finalize(), PHX_OK);
    CHECK(phx_finalize(), PHX_EINIT);
    CHECK(strcmp(phx_code_text(PHX_EBUSY), "") != 0, 1);
    CHECK(phx_fail(PHX_EIO, "why"), PHX_EIO);
    CHECK(strcmp(phx_last_error(), "why"), 0);
    if (!failed)
        puts("all misuse is told");
    return failed;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[2], "misuse") == 0)
        return misuse(argv[1]);
    if (argc == 3 && strcmp(argv[2], "watch") == 0)
        return watch(argv[1]);
    if (argc == 3 && strcmp(argv[2], "properties") == 0)
        return properties(argv[1]);
    if (argc == 3 && strcmp(argv[2], "full") == 0)
        return full(argv[1]);
    if (argc == 4 && strcmp(argv[2], "endless") == 0)
        return endless(argv[1], atoi(argv[3]));
    if (argc == 4 && strcmp(argv[2], "outside") == 0)
        return outside(argv[1], atoi(argv[3]));
    if (argc < 3)
        return 2;
    return simulate(argv[1], atoi(argv[2]), argc > 3 ? atoi(argv[3]) : -1);
}
