/* Partitions of storage memory as a block device: an nbdkit plug-in over dsa.h. docs/guide/block.md */
#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include <dsa.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

enum {
    ENTRIES = 16,          /* of a queue pair: as many as one doorbell of zeros has */
    ZEROS = 1 << 20,       /* bytes of one of these */
    MAX_PARTITIONS = 1024, /* as many as the library takes */
    ALIGNED = 4096         /* a page: a smaller one costs as much */
};
/* After so many nanoseconds nothing is known of a request any more. */
#define TIMEOUT (600 * UINT64_C(1000000000))

/* The options of the command line. */
static const char *names[MAX_PARTITIONS];
static size_t name_count;
static int64_t block;
static bool read_only;
static bool no_volatile;

static struct dsa_partition *partition;
/* A queue pair belongs to a thread: each thread that serves has its own, as long as it lives. */
static pthread_key_t own_worker;
static const char zeros[ZEROS];

struct worker {
    struct dsa_queue *queue;
    uint32_t memory;
    uint32_t device;
    uint64_t bytes; /* that `device` has */
};

/* A client's connection. */
struct connection {
    uint64_t bytes;
};

static int number_of(int code) {
    switch (code) {
    case TARN_OK:
        return 0;
    case TARN_EINVALID:
        return EINVAL;
    case TARN_EDENIED:
        return EROFS;
    case TARN_ENOSPACE:
    case TARN_EQUOTA:
        return ENOSPC;
    case TARN_ELOST:
        return ESHUTDOWN;
    default:
        return EIO;
    }
}

/* A call of libtarn that failed. */
static int refused(int code) {
    nbdkit_error("%s", tarn_last_error());
    nbdkit_set_error(number_of(code));
    return -1;
}

static void worker_end(void *of_thread) {
    struct worker *worker = of_thread;
    dsa_queue_destroy(worker->queue);
    free(worker);
}

static void tarn_load(void) {
    if (pthread_key_create(&own_worker, worker_end) != 0) {
        nbdkit_error("there is no memory for the state of each thread");
        exit(EXIT_FAILURE);
    }
}

static void tarn_unload(void) {
    if (partition)
        dsa_close(partition);
    pthread_key_delete(own_worker);
}

static void tarn_dump_plugin(void) { printf("tarn_library=%s\n", tarn_version()); }

static int truth(const char *key, const char *value, bool *to) {
    int parsed = nbdkit_parse_bool(value);
    if (parsed < 0) {
        nbdkit_error("%s is neither yes nor no", key);
        return -1;
    }
    *to = parsed;
    return 0;
}

static int tarn_config(const char *key, const char *value) {
    bool accepts;
    if (strcmp(key, "partition") == 0) {
        if (name_count == MAX_PARTITIONS) {
            nbdkit_error("at most %d partitions make a device", MAX_PARTITIONS);
            return -1;
        }
        names[name_count++] = value;
        return 0;
    }
    if (strcmp(key, "block") == 0) {
        block = nbdkit_parse_size(value);
        return block < 0 ? -1 : 0;
    }
    if (strcmp(key, "readonly") == 0)
        return truth(key, value, &read_only);
    if (strcmp(key, "volatile") == 0) {
        if (truth(key, value, &accepts) < 0)
            return -1;
        no_volatile = !accepts;
        return 0;
    }
    nbdkit_error("there is no `%s`: give partition=NAME, block=SIZE, readonly=yes or volatile=no", key);
    return -1;
}

static int tarn_config_complete(void) {
    if (strcmp(tarn_version(), TARN_VERSION) != 0) {
        nbdkit_error("this plug-in is of tarn %s, and the library that it has found of tarn %s: install both "
                     "of one version",
                     TARN_VERSION, tarn_version());
        return -1;
    }
    if (name_count == 0) {
        nbdkit_error("give partition=NAME, such as partition=/dev/shm/me/disk");
        return -1;
    }
    if ((name_count > 1) != (block > 0)) {
        nbdkit_error(
            "block=SIZE sets how several partitions take turns: give it with several, and not with one");
        return -1;
    }
    return 0;
}

static int open_partition(struct dsa_partition **opened) {
    const uint32_t flags = read_only ? DSA_READ_ONLY : 0;
    int code = name_count == 1 ? dsa_open(names[0], flags, opened)
                               : dsa_open_cyclic(names, name_count, block, flags, opened);
    return code == TARN_OK ? 0 : refused(code);
}

/* While the user who starts the server still sees errors. */
static int tarn_get_ready(void) {
    if (open_partition(&partition) < 0)
        return -1;
    struct dsa_info info;
    int code = dsa_partition_info(partition, &info);
    if (code != TARN_OK)
        return refused(code);
    if (no_volatile && info.power_fail == DSA_LOST) {
        nbdkit_error(
            "%s is in memory, which does not outlive a loss of power: take a partition on another medium, "
            "or leave out volatile=no",
            names[0]);
        return -1;
    }
    return 0;
}

/* The server may be a child of the process that got ready: it has its own, before the other one is given
 * back. */
static int tarn_after_fork(void) {
    struct dsa_partition *before = partition;
    if (open_partition(&partition) < 0)
        return -1;
    dsa_close(before);
    return 0;
}

static void *tarn_open(int readonly) {
    (void)readonly; /* nbdkit sees to that */
    struct connection *connection = malloc(sizeof *connection);
    if (!connection) {
        nbdkit_error("no memory for a connection");
        return NULL;
    }
    int code = dsa_size(partition, &connection->bytes);
    if (code != TARN_OK) {
        refused(code);
        free(connection);
        return NULL;
    }
    return connection;
}

static void tarn_close_connection(void *handle) { free(handle); }

static int64_t tarn_get_size(void *handle) {
    const struct connection *connection = handle;
    return connection->bytes;
}

static int tarn_block_size(void *handle, uint32_t *minimum, uint32_t *preferred, uint32_t *maximum) {
    (void)handle;
    *minimum = 1;
    *preferred = ALIGNED;
    *maximum = UINT32_MAX;
    return 0;
}

static int tarn_can_write(void *handle) {
    (void)handle;
    return !read_only;
}

static int yes(void *handle) {
    (void)handle;
    return 1;
}

static int tarn_can_fua(void *handle) {
    (void)handle;
    return NBDKIT_FUA_NATIVE;
}

/* A read, whose result is dropped, brings the medium's content. */
static int tarn_can_cache(void *handle) {
    (void)handle;
    return NBDKIT_CACHE_EMULATE;
}

/* The whole device, as large as this connection knows it. */
static int region(struct worker *worker, uint64_t bytes) {
    if (worker->bytes > 0)
        dsa_unregister(worker->queue, worker->device);
    worker->bytes = 0;
    int code = dsa_register_partition(worker->queue, partition, 0, bytes,
                                      read_only ? DSA_REGION_READ_ONLY : 0, &worker->device);
    if (code == TARN_OK)
        worker->bytes = bytes;
    return code;
}

static struct worker *worker_make(void) {
    struct worker *worker = calloc(1, sizeof *worker);
    if (!worker) {
        nbdkit_error("no memory for a queue pair");
        nbdkit_set_error(ENOMEM);
        return NULL;
    }
    int code = dsa_queue_create(ENTRIES, 0, DSA_VOLATILE, &worker->queue);
    if (code != TARN_OK) {
        refused(code);
        free(worker);
        return NULL;
    }
    /* All memory that there is: the addresses are nbdkit's. */
    code = dsa_register_memory(worker->queue, (void *)1, PTRDIFF_MAX - 1, 0, &worker->memory);
    if (code == TARN_OK)
        code = pthread_setspecific(own_worker, worker) == 0 ? TARN_OK : TARN_EINTERNAL;
    if (code != TARN_OK) {
        refused(code);
        worker_end(worker);
        return NULL;
    }
    return worker;
}

/* This thread's queue pair, which has all of the connection's device; NULL with an error. */
static struct worker *worker_of(const struct connection *connection) {
    struct worker *worker = pthread_getspecific(own_worker);
    if (!worker)
        worker = worker_make();
    if (worker && worker->bytes < connection->bytes) {
        int code = region(worker, connection->bytes);
        if (code != TARN_OK) {
            refused(code);
            return NULL;
        }
    }
    return worker;
}

/* Does what was prepared. */
static int done(struct worker *worker, uint32_t count) {
    int failed = TARN_OK;
    dsa_submit(worker->queue);
    if (dsa_cq_ready(worker->queue) < count && dsa_wait(worker->queue, count, TIMEOUT) != TARN_OK) {
        /* The buffers are still in use, and nbdkit would give them to others. */
        nbdkit_error("a request has not ended: %s; clients lose their connections", tarn_last_error());
        abort();
    }
    for (uint32_t at = 0; at < count; at++, dsa_cq_advance(worker->queue, 1)) {
        const struct dsa_cqe *cqe = dsa_peek_cqe(worker->queue);
        if (failed == TARN_OK)
            failed = cqe->code;
    }
    if (failed == TARN_OK)
        return 0;
    nbdkit_error("%s: %s", names[0], tarn_code_text(failed));
    nbdkit_set_error(number_of(failed));
    return -1;
}

static int tarn_pread(void *handle, void *to, uint32_t count, uint64_t offset, uint32_t flags) {
    (void)flags;
    struct worker *worker = worker_of(handle);
    if (!worker)
        return -1;
    dsa_prep_read(dsa_get_sqe(worker->queue), worker->device, offset, worker->memory, to, count);
    return done(worker, 1);
}

static int tarn_pwrite(void *handle, const void *from, uint32_t count, uint64_t offset, uint32_t flags) {
    struct worker *worker = worker_of(handle);
    if (!worker)
        return -1;
    struct dsa_sqe *sqe = dsa_get_sqe(worker->queue);
    dsa_prep_write(sqe, worker->device, offset, worker->memory, from, count);
    if (flags & NBDKIT_FLAG_FUA)
        dsa_sqe_set_level(sqe, DSA_PERSISTENT);
    return done(worker, 1);
}

static int flush(struct worker *worker) {
    dsa_prep_flush(dsa_get_sqe(worker->queue), worker->device);
    return done(worker, 1);
}

static int tarn_flush(void *handle, uint32_t flags) {
    (void)flags;
    struct worker *worker = worker_of(handle);
    return worker ? flush(worker) : -1;
}

static int tarn_zero(void *handle, uint32_t count, uint64_t offset, uint32_t flags) {
    struct worker *worker = worker_of(handle);
    if (!worker)
        return -1;
    while (count > 0) {
        uint32_t posted = 0;
        for (struct dsa_sqe *sqe; count > 0 && (sqe = dsa_get_sqe(worker->queue)); posted++) {
            uint32_t bytes = count < ZEROS ? count : ZEROS;
            dsa_prep_write(sqe, worker->device, offset, worker->memory, zeros, bytes);
            offset += bytes;
            count -= bytes;
        }
        if (done(worker, posted) < 0)
            return -1;
    }
    return flags & NBDKIT_FLAG_FUA ? flush(worker) : 0;
}

/* All space of a partition stays taken: there is nothing to give back, and old content may be read. */
static int tarn_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags) {
    (void)count;
    (void)offset;
    return flags & NBDKIT_FLAG_FUA ? tarn_flush(handle, 0) : 0;
}

#define CONFIG_HELP                                                                                          \
    "partition=NAME (required) A partition, such as /dev/shm/me/disk; several take turns.\n"                 \
    "block=SIZE                Bytes of such a turn.\n"                                                      \
    "readonly=yes              It is opened to be read only.\n"                                              \
    "volatile=no               A partition in memory is refused."

static struct nbdkit_plugin plugin = {
    .name = "tarn",
    .version = TARN_VERSION,
    .longname = "partitions of storage memory (tarn)",
    .description = "A block device over tarn's direct storage access",
    .load = tarn_load,
    .unload = tarn_unload,
    .dump_plugin = tarn_dump_plugin,
    .config = tarn_config,
    .config_complete = tarn_config_complete,
    .config_help = CONFIG_HELP,
    .magic_config_key = "partition",
    .get_ready = tarn_get_ready,
    .after_fork = tarn_after_fork,
    .open = tarn_open,
    .close = tarn_close_connection,
    .get_size = tarn_get_size,
    .block_size = tarn_block_size,
    .can_write = tarn_can_write,
    .can_flush = yes,
    .can_trim = yes,
    .can_zero = yes,
    .can_fua = tarn_can_fua,
    .can_cache = tarn_can_cache,
    .can_multi_conn = yes,
    .pread = tarn_pread,
    .pwrite = tarn_pwrite,
    .flush = tarn_flush,
    .trim = tarn_trim,
    .zero = tarn_zero,
};

NBDKIT_REGISTER_PLUGIN(plugin)
