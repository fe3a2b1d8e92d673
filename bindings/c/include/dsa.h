/*
 * dsa.h: direct access to storage memory. A program opens partitions, registers regions of them and of its own memory with a queue
 * pair, prepares requests, submits many at once, and reaps their completions.
 *
 * Link with -ltarn. No exit, and no threads but one, that takes no signals, for a queue pair that writes to a medium in units (docs/guide/direct-access.md).
 * A queue pair is for one thread at a time, and its rings are that thread's: a call gives TARN_EBUSY while another thread is in one, and
 * dsa_submit() begins nothing. Partitions are everybody's. In a child of fork(), dsa_lock(), dsa_grow(), partitions of other nodes, and queue
 * pairs that have more than mapped memory or a descriptor give TARN_EUNSUPPORTED, and dsa_submit() begins nothing; giving back what is the
 * parent's succeeds and leaves the parent's as it is. The child opens its own. From the
 * first partition that is opened without DSA_NO_GUARD on there is a handler of SIGBUS (docs/guide/direct-access.md): install your own before.
 *
 * Every function that returns int gives TARN_OK or another of enum tarn_code (tarn.h), unless it says otherwise; tarn_last_error() then
 * says why. A partition is named by the path of a folder of a tier and its name in it, "/dev/shm/me/field" or "./field",
 * or as the tarnd that $TARN_SOCKET names has it: "SPACE/field", "NODE:SPACE/field". In a step of a workflow, "@step/field" is
 * the step's.
 *
 * docs/guide/direct-access.md explains the words. Sizes and offsets are bytes, times nanoseconds (`_ns`). The man page of a call lists its
 * errors. In the examples must() ends the program unless it is given TARN_OK, and "./field" is a partition of 1 MiB. The tests run them.
 */
#ifndef DSA_H
#define DSA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "tarn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An open partition. */
struct dsa_partition;

/* The operation of a request. */
enum dsa_op {
    DSA_NOTHING = 0,
    DSA_READ = 1,         /* from a partition to memory */
    DSA_WRITE = 2,        /* from memory to a partition */
    DSA_FETCH_ADD = 3,    /* adds to 8 aligned bytes of a partition */
    DSA_COMPARE_SWAP = 4, /* replaces 8 aligned bytes of a partition if they are what is expected */
    DSA_FLUSH = 5         /* earlier completed writes are persistent */
};

/* When a write is complete. */
enum dsa_level {
    DSA_POSTED = 1,    /* its memory may be used again */
    DSA_VISIBLE = 2,   /* every later read sees it */
    DSA_PERSISTENT = 3 /* it outlives a loss of power */
};

/* Flags of a request. */
enum dsa_sqe_flags {
    DSA_UNSIGNALLED = 1, /* the next signalled request that was posted after it reports success */
    DSA_LINKED = 2       /* the next request begins when this one has succeeded */
};

/* Flags of dsa_open() and dsa_open_cyclic(), of dsa_queue_create(), and of regions. */
enum dsa_open_flags {
    DSA_READ_ONLY = 1,
    DSA_POPULATE = 2, /* all of it is mapped now; else piece by piece as it is used (docs/guide/direct-access.md) */
    DSA_NO_GUARD = 4  /* no handler of SIGBUS: a partition whose file is made shorter by force kills who uses it */
};
enum dsa_queue_flags {
    DSA_VOLATILE = 1 /* persistent requests may go to memory that does not outlive a loss of power */
};
enum dsa_region_flags {
    DSA_REGION_READ_ONLY = 1 /* of a partition: not written; of memory: not filled by reads */
};

/* A request: the functions below fill it. */
struct dsa_sqe {
    uint8_t op;    /* enum dsa_op */
    uint8_t flags; /* enum dsa_sqe_flags */
    uint8_t level; /* enum dsa_level of a write; 0 for that of the queue pair */
    uint8_t reserved;
    uint32_t memory;    /* a region of the program's memory */
    uint32_t partition; /* a region of a partition */
    uint32_t reserved2;
    uint64_t address; /* in the program's memory */
    uint64_t offset;  /* bytes from the beginning of the partition's region */
    uint64_t length;  /* bytes */
    uint64_t operand;
    uint64_t expected;
    uint64_t user_data; /* yours; the completion has it */
};

/* The end of a request. */
struct dsa_cqe {
    uint64_t user_data;
    uint64_t value; /* bytes of a read or write; of atomic operations what was there before */
    int32_t code;   /* TARN_OK, or why it failed */
    uint32_t flags; /* 0 */
};

/* A queue pair. Its fields are the business of the inline functions below. */
struct dsa_queue {
    struct dsa_sqe *sqes;
    struct dsa_cqe *cqes;
    uint32_t sq_mask;
    uint32_t sq_head;
    uint32_t sq_tail;
    uint32_t cq_mask;
    uint32_t cq_head;
    uint32_t cq_tail;
};

/* A user or group that may have a partition besides its owner. */
struct dsa_grant {
    uint32_t id;   /* of a user, or of a group */
    uint8_t group; /* 1: id is that of a group */
    uint8_t write; /* 1: may write, too */
    uint16_t reserved;
};

#define DSA_MAX_GRANTS 64

/* The content that remains after a loss of power. */
enum dsa_power_fail {
    DSA_UNKNOWN = 0, /* not open */
    DSA_LOST = 1,    /* nothing: it is memory */
    DSA_SYNCED = 2,  /* bytes that the system has synced */
    DSA_FLUSHED = 3, /* bytes that were flushed from the processor's caches */
    DSA_FENCED = 4   /* bytes in the caches, too */
};

/* Kinds of dsa_lock(). */
enum dsa_lock_kind {
    DSA_UNLOCKED = 0,
    DSA_SHARED = 1, /* others may hold it so, too */
    DSA_ALONE = 2   /* nobody else holds it */
};

struct dsa_info {
    char name[256];
    uint64_t bytes;
    uint32_t owner;     /* a user */
    uint32_t damaged;   /* 1: it cannot be opened, and all but its name is 0 */
    int32_t power_fail; /* enum dsa_power_fail */
    uint32_t grant_count;
    struct dsa_grant grants[DSA_MAX_GRANTS];
    uint32_t unit; /* bytes that it is written by; 0: it is mapped */
};

/* Partitions. */

/*
 * Creates a partition of zeros; its space is reserved, up to whole pages. TARN_EEXISTS: the name is taken; TARN_ENOSPACE: no space.
 *
 *     struct dsa_grant readers = {.id = 100, .group = 1};
 *     must(dsa_create("./shared", 1 << 20, &readers, 1));
 */
int dsa_create(const char *partition, uint64_t bytes, const struct dsa_grant *grants, size_t grant_count);
/*
 * The same, written by units of at least so many bytes, 512 to 16384, on any medium; mapped if unit is 0.
 *
 *     must(dsa_create_units("./table", 1 << 20, 4096, NULL, 0));
 */
int dsa_create_units(const char *partition, uint64_t bytes, uint32_t unit, const struct dsa_grant *grants,
                     size_t grant_count);
/*
 * Deletes one that nobody has open (TARN_EBUSY). When only the last sync has failed, it is gone, but may be there again after a loss of
 * power.
 *
 *     must(dsa_delete("./field"));
 */
int dsa_delete(const char *partition);
/*
 * Makes one that nobody has open (TARN_EBUSY) larger or smaller.
 *
 *     must(dsa_resize("./field", 2 << 20));
 */
int dsa_resize(const char *partition, uint64_t bytes);
/*
 * The partitions of a folder, or of a dataspace or a folder in it ("SPACE/run", "NODE:SPACE"). *count is how many fit into `list`, and then
 * how many there are.
 *
 *     struct dsa_info list[10];
 *     size_t count = 10;
 *     must(dsa_list(".", list, &count));
 *     for (size_t i = 0; i < count && i < 10; i++)
 *         printf("%s: %llu bytes\n", list[i].name, (unsigned long long)list[i].bytes);
 */
int dsa_list(const char *folder, struct dsa_info *list, size_t *count);
/*
 * Opens a partition. TARN_ENOTFOUND, TARN_EDENIED; TARN_EBUSY while it is deleted or made smaller; TARN_ECORRUPT: its header is damaged.
 *
 *     struct dsa_partition *field;
 *     struct dsa_info info;
 *     uint64_t bytes;
 *     must(dsa_open("./field", 0, &field));
 *     must(dsa_grow(field, 2 << 20, NULL));
 *     must(dsa_size(field, &bytes));
 *     must(dsa_partition_info(field, &info));
 *     printf("%s: %llu bytes of user %u\n", info.name, (unsigned long long)bytes, info.owner);
 *     must(dsa_close(field));
 */
int dsa_open(const char *partition, uint32_t flags, struct dsa_partition **opened);
/*
 * Opens up to 1024 as one, in blocks of a multiple of 4096 bytes: byte x of it is in partitions[x / block % count].
 *
 *     const char *both[] = {"./one", "./two"};
 *     struct dsa_partition *field;
 *     must(dsa_create("./one", 1 << 20, NULL, 0));
 *     must(dsa_create("./two", 1 << 20, NULL, 0));
 *     must(dsa_open_cyclic(both, 2, 65536, 0, &field));
 *     must(dsa_close(field));
 */
int dsa_open_cyclic(const char *const *partitions, size_t count, uint64_t block, uint32_t flags,
                    struct dsa_partition **opened);
/* Its regions stay. A call of another thread with it that has begun ends before it goes. */
int dsa_close(struct dsa_partition *partition);
/* Its details now. */
int dsa_partition_info(const struct dsa_partition *partition, struct dsa_info *info);
/* Its bytes now; bytes that others have added can be registered from now on. */
int dsa_size(const struct dsa_partition *partition, uint64_t *bytes);
/* Makes it larger while it is open; *now is its size then. now may be NULL. */
int dsa_grow(const struct dsa_partition *partition, uint64_t bytes, uint64_t *now);

/*
 * Changes what this open partition (of several, the first) holds of its lock, at once or not at all (TARN_EBUSY): for programs that agree on
 * it. Requests do not look at it; it goes when the partition is closed, or its program ends.
 *
 *     struct dsa_partition *field;
 *     must(dsa_open("./field", 0, &field));
 *     must(dsa_lock(field, DSA_ALONE));
 *     must(dsa_lock(field, DSA_UNLOCKED));
 *     must(dsa_close(field));
 */
int dsa_lock(const struct dsa_partition *partition, int kind);

/* Queue pairs. */

/*
 * A queue pair of one thread (Schürmann et al. 2014, section 4). entries: a power of two up to 65536. level: of writes that name none, 0 for
 * DSA_VISIBLE. All calls on it are in this example:
 *
 *     static double values[100];
 *     struct dsa_partition *field;
 *     struct dsa_queue *queue;
 *     uint32_t memory, region;
 *     const struct dsa_cqe *done;
 *
 *     must(dsa_open("./field", 0, &field));
 *     must(dsa_queue_create(64, DSA_VISIBLE, DSA_VOLATILE, &queue));
 *     must(dsa_register_memory(queue, values, sizeof values, 0, &memory));
 *     must(dsa_register_partition(queue, field, 0, 1 << 20, 0, &region));
 *
 *     struct dsa_sqe *write = dsa_get_sqe(queue);
 *     dsa_prep_write(write, region, 4096, memory, values, sizeof values);
 *     dsa_sqe_set_level(write, DSA_PERSISTENT);
 *     dsa_sqe_set_flags(write, DSA_UNSIGNALLED | DSA_LINKED); // a completion only if it fails
 *     struct dsa_sqe *count = dsa_get_sqe(queue);
 *     dsa_prep_fetch_add(count, region, 0, 1);
 *     dsa_sqe_set_data(count, 7);
 *     must(dsa_wait(queue, 1, 10 * 1000000000ull)); // submits, too
 *     done = dsa_peek_cqe(queue);
 *     printf("request %d: code %d, was %d\n", (int)done->user_data, done->code, (int)done->value);
 *     dsa_cq_advance(queue, 1);
 *
 *     dsa_prep_compare_swap(dsa_get_sqe(queue), region, 0, 1, 0);
 *     dsa_prep_read(dsa_get_sqe(queue), region, 4096, memory, values, sizeof values);
 *     dsa_prep_flush(dsa_get_sqe(queue), region);
 *     printf("%u begun\n", dsa_submit(queue));
 *     while ((done = dsa_peek_cqe(queue)) != NULL) {
 *         must(done->code);
 *         dsa_cq_advance(queue, 1);
 *     }
 *     must(dsa_unregister(queue, region));
 *     must(dsa_queue_destroy(queue));
 *     must(dsa_close(field));
 */
int dsa_queue_create(uint32_t entries, uint32_t level, uint32_t flags, struct dsa_queue **queue);
int dsa_queue_destroy(struct dsa_queue *queue);
/* The memory must be there until the region is given back. */
int dsa_register_memory(struct dsa_queue *queue, void *address, size_t length, uint32_t flags, uint32_t *region);
int dsa_register_partition(struct dsa_queue *queue, const struct dsa_partition *partition, uint64_t start,
                           uint64_t length, uint32_t flags, uint32_t *region);
/* TARN_EBUSY while requests under way name it. */
int dsa_unregister(struct dsa_queue *queue, uint32_t region);
/* Begins the prepared requests, and takes the ends of those under way. How many were begun: fewer than prepared when
 * completions must be reaped first. */
uint32_t dsa_submit(struct dsa_queue *queue);
/* The same, and waits until there are so many completions. */
int dsa_wait(struct dsa_queue *queue, uint32_t completions, uint64_t timeout_ns);
/* A descriptor for poll(): readable when a submission has brought completions, or something has ended since. Then submit, and reap all: there
 * is nothing to read from it. -1 when there is none. It is the queue pair's: do not close it. */
int dsa_fd(struct dsa_queue *queue);

/* The next request, of zeros; NULL when the ring is full: submit. */
static inline struct dsa_sqe *dsa_get_sqe(struct dsa_queue *queue)
{
    if (queue->sq_tail - queue->sq_head > queue->sq_mask)
        return NULL;
    struct dsa_sqe *sqe = &queue->sqes[queue->sq_tail & queue->sq_mask];
    queue->sq_tail++;
    memset(sqe, 0, sizeof *sqe);
    return sqe;
}

static inline void dsa_prep_copy(struct dsa_sqe *sqe, uint8_t op, uint32_t partition, uint64_t offset, uint32_t memory,
                                 const void *address, uint64_t length)
{
    sqe->op = op;
    sqe->partition = partition;
    sqe->offset = offset;
    sqe->memory = memory;
    sqe->address = (uint64_t)(uintptr_t)address;
    sqe->length = length;
}

/* From offset of a partition's region to an address of a memory region. */
static inline void dsa_prep_read(struct dsa_sqe *sqe, uint32_t partition, uint64_t offset, uint32_t memory,
                                 void *address, uint64_t length)
{
    dsa_prep_copy(sqe, DSA_READ, partition, offset, memory, address, length);
}

/* From an address of a memory region to offset of a partition's region. */
static inline void dsa_prep_write(struct dsa_sqe *sqe, uint32_t partition, uint64_t offset, uint32_t memory,
                                  const void *address, uint64_t length)
{
    dsa_prep_copy(sqe, DSA_WRITE, partition, offset, memory, address, length);
}

/* Adds to the 8 aligned bytes at offset; the completion has what was there before. */
static inline void dsa_prep_fetch_add(struct dsa_sqe *sqe, uint32_t partition, uint64_t offset, uint64_t add)
{
    sqe->op = DSA_FETCH_ADD;
    sqe->partition = partition;
    sqe->offset = offset;
    sqe->operand = add;
}

/* Replaces the 8 aligned bytes at offset if they are what is expected; the completion has what was there before. */
static inline void dsa_prep_compare_swap(struct dsa_sqe *sqe, uint32_t partition, uint64_t offset, uint64_t expected,
                                         uint64_t replacement)
{
    sqe->op = DSA_COMPARE_SWAP;
    sqe->partition = partition;
    sqe->offset = offset;
    sqe->expected = expected;
    sqe->operand = replacement;
}

/* All of the partition, of which this is a region. */
static inline void dsa_prep_flush(struct dsa_sqe *sqe, uint32_t partition)
{
    sqe->op = DSA_FLUSH;
    sqe->partition = partition;
}

/* Yours: the completion has it. */
static inline void dsa_sqe_set_data(struct dsa_sqe *sqe, uint64_t user_data)
{
    sqe->user_data = user_data;
}

/* enum dsa_sqe_flags. */
static inline void dsa_sqe_set_flags(struct dsa_sqe *sqe, uint8_t flags)
{
    sqe->flags = flags;
}

/* enum dsa_level of a write. */
static inline void dsa_sqe_set_level(struct dsa_sqe *sqe, uint8_t level)
{
    sqe->level = level;
}

/* Completions that can be reaped. */
static inline uint32_t dsa_cq_ready(const struct dsa_queue *queue)
{
    return queue->cq_tail - queue->cq_head;
}

/* The next completion, which stays until dsa_cq_advance(); NULL when there is none now: submit, or wait. */
static inline const struct dsa_cqe *dsa_peek_cqe(const struct dsa_queue *queue)
{
    return dsa_cq_ready(queue) ? &queue->cqes[queue->cq_head & queue->cq_mask] : NULL;
}

/* Gives so many completions back. */
static inline void dsa_cq_advance(struct dsa_queue *queue, uint32_t count)
{
    queue->cq_head += count;
}

#ifdef __cplusplus
}
#endif

#endif
