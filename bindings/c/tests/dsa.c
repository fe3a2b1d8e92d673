/*
 * dsa.c: a program with direct access, and its wrong calls on purpose.
 *
 * dsa FOLDER run: writes, reads, counts and waits. dsa FOLDER misuse: every wrong call gives its code.
 * dsa FOLDER limited: writes to a partition that is longer than files may become by this program.
 */
#include "dsa.h"
#define WHY tarn_last_error()
#include "check.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define ENTRIES 64
#define RECORDS 1000
#define MIB ((uint64_t)1 << 20)

/* The next request, when the ring is full after a doorbell. */
static struct dsa_sqe *next(struct dsa_queue *queue)
{
    struct dsa_sqe *sqe = dsa_get_sqe(queue);
    if (!sqe) {
        dsa_submit(queue);
        sqe = dsa_get_sqe(queue);
    }
    return sqe;
}

/* Reaps all completions; how many have the code. */
static unsigned reaped(struct dsa_queue *queue, int code)
{
    unsigned count = 0;
    const struct dsa_cqe *cqe;
    while ((cqe = dsa_peek_cqe(queue))) {
        count += cqe->code == code;
        dsa_cq_advance(queue, 1);
    }
    return count;
}

static int run(const char *path)
{
    struct dsa_partition *partition;
    struct dsa_queue *queue;
    struct dsa_info info;
    struct dsa_grant grant = {.id = 7, .group = 1, .write = 1};
    uint32_t memory, region, words;
    uint64_t bytes;
    static unsigned char records[RECORDS][32], found[RECORDS][32];

    CHECK(dsa_create(path, MIB, &grant, 1), TARN_OK);
    CHECK(dsa_open(path, DSA_POPULATE, &partition), TARN_OK);
    CHECK(dsa_queue_create(ENTRIES, 0, DSA_VOLATILE, &queue), TARN_OK);
    CHECK(dsa_partition_info(partition, &info), TARN_OK);
    if (failed)
        return 1;
    printf("%s has %llu bytes, %u may have it\n", info.name, (unsigned long long)info.bytes, info.grant_count);
    CHECK(dsa_register_partition(queue, partition, 0, MIB, 0, &region), TARN_OK);
    CHECK(dsa_register_memory(queue, records, sizeof records, DSA_REGION_READ_ONLY, &memory), TARN_OK);
    for (unsigned i = 0; i < RECORDS; i++) {
        memset(records[i], (int)i, sizeof records[i]);
        struct dsa_sqe *sqe = next(queue);
        dsa_prep_write(sqe, region, 33 * (uint64_t)i + 1, memory, records[i], sizeof records[i]);
        dsa_sqe_set_flags(sqe, DSA_UNSIGNALLED);
    }
    /* All earlier writes are persistent when this completes, as far as the medium can. */
    struct dsa_sqe *flush = next(queue);
    dsa_prep_flush(flush, region);
    dsa_sqe_set_data(flush, 42);
    CHECK(dsa_wait(queue, 1, UINT64_MAX), TARN_OK);
    printf("flushed: %llu\n", (unsigned long long)dsa_peek_cqe(queue)->user_data);
    dsa_cq_advance(queue, 1);

    CHECK(dsa_register_memory(queue, found, sizeof found, 0, &words), TARN_OK);
    unsigned done = 0;
    for (unsigned i = 0; i < RECORDS; i++) {
        struct dsa_sqe *sqe = dsa_get_sqe(queue);
        if (!sqe) {
            dsa_submit(queue);
            done += reaped(queue, TARN_OK);
            sqe = dsa_get_sqe(queue);
        }
        dsa_prep_read(sqe, region, 33 * (uint64_t)i + 1, words, found[i], sizeof found[i]);
    }
    dsa_submit(queue);
    done += reaped(queue, TARN_OK);
    printf("%u read, %s\n", done, memcmp(records, found, sizeof found) ? "others" : "the same");

    /* A poll loop that waits for the queue pair among other things. */
    struct pollfd event = {.fd = dsa_fd(queue), .events = POLLIN};
    printf("readable before: %d\n", poll(&event, 1, 0));
    dsa_prep_fetch_add(dsa_get_sqe(queue), region, MIB - 8, 5);
    dsa_prep_compare_swap(dsa_get_sqe(queue), region, MIB - 8, 5, 9);
    dsa_prep_fetch_add(dsa_get_sqe(queue), region, MIB - 8, 0);
    dsa_submit(queue);
    printf("readable after: %d, %u completions\n", poll(&event, 1, 0), dsa_cq_ready(queue));
    for (int i = 0; i < 3; i++) {
        printf("%llu ", (unsigned long long)dsa_peek_cqe(queue)->value);
        dsa_cq_advance(queue, 1);
    }
    printf("\n");

    /* The second of a chain begins when the first has succeeded. */
    dsa_prep_read(dsa_get_sqe(queue), region, MIB, words, found, 1);
    dsa_sqe_set_flags(&queue->sqes[(queue->sq_tail - 1) & queue->sq_mask], DSA_LINKED);
    dsa_prep_write(dsa_get_sqe(queue), region, 0, memory, records, 1);
    dsa_submit(queue);
    for (int i = 0; i < 2; i++) {
        printf("%s\n", tarn_code_text(dsa_peek_cqe(queue)->code));
        dsa_cq_advance(queue, 1);
    }

    CHECK(dsa_grow(partition, 4 * MIB, &bytes), TARN_OK);
    CHECK(dsa_register_partition(queue, partition, 3 * MIB, MIB, 0, &region), TARN_OK);
    CHECK(dsa_delete(path), TARN_EBUSY);
    CHECK(dsa_close(partition), TARN_OK);
    CHECK(dsa_queue_destroy(queue), TARN_OK);

    /* As one of two, its second block is the third of both. */
    char more[4200];
    snprintf(more, sizeof more, "%s.more", path);
    const char *both[] = {path, more};
    CHECK(dsa_create(more, 4 * MIB, NULL, 0), TARN_OK);
    CHECK(dsa_open_cyclic(both, 2, MIB, 0, &partition), TARN_OK);
    CHECK(dsa_size(partition, &bytes), TARN_OK);
    CHECK((int)(bytes >> 20), 8);
    CHECK(dsa_close(partition), TARN_OK);
    CHECK(dsa_delete(more), TARN_OK);
    CHECK(dsa_delete(path), TARN_OK);
    return failed;
}

static int misuse(const char *folder, const char *path)
{
    struct dsa_partition *partition = NULL, *reader = NULL, *none = NULL;
    struct dsa_queue *queue = NULL, *no_queue = NULL;
    struct dsa_info info, all[2];
    struct dsa_grant grants[DSA_MAX_GRANTS + 1] = {{0}};
    uint32_t region, memory;
    uint64_t bytes;
    size_t count = 1;
    char data[64] = "";

    CHECK(dsa_create(NULL, MIB, NULL, 0), TARN_EINVALID);
    CHECK(dsa_create("", MIB, NULL, 0), TARN_EINVALID);
    CHECK(dsa_create(path, 0, NULL, 0), TARN_EINVALID);
    CHECK(dsa_create(path, UINT64_MAX, NULL, 0), TARN_EINVALID);
    CHECK(dsa_create(path, MIB, NULL, 1), TARN_EINVALID);
    CHECK(dsa_create(path, MIB, grants, DSA_MAX_GRANTS + 1), TARN_EINVALID);
    CHECK(dsa_create("/no/such/folder/x", MIB, NULL, 0), TARN_ENOTFOUND);
    CHECK(dsa_open(path, 0, &partition), TARN_ENOTFOUND);
    CHECK(dsa_create(path, MIB, NULL, 0), TARN_OK);
    CHECK(dsa_create(path, MIB, NULL, 0), TARN_EEXISTS);
    CHECK(dsa_open(path, 0, NULL), TARN_EINVALID);
    CHECK(dsa_open(path, 1u << 31, &none), TARN_EINVALID);
    CHECK(dsa_open(path, 0, &partition), TARN_OK);
    CHECK(dsa_open(path, DSA_READ_ONLY, &reader), TARN_OK);
    const char *twice[] = {path, path}, *missing[] = {path, NULL};
    CHECK(dsa_open_cyclic(twice, 2, MIB, 0, &none), TARN_EINVALID);
    CHECK(dsa_open_cyclic(missing, 2, MIB, 0, &none), TARN_EINVALID);
    CHECK(dsa_open_cyclic(twice, 1, 1000, 0, &none), TARN_EINVALID);
    CHECK(dsa_open_cyclic(twice, 0, MIB, 0, &none), TARN_EINVALID);
    CHECK(dsa_open_cyclic(NULL, 1, MIB, 0, &none), TARN_EINVALID);
    CHECK(dsa_open_cyclic(twice, SIZE_MAX, MIB, 0, &none), TARN_EINVALID);
    CHECK(dsa_lock(none, DSA_SHARED), TARN_EINVALID);
    CHECK(dsa_lock(partition, 3), TARN_EINVALID);
    CHECK(dsa_lock(reader, DSA_ALONE), TARN_EDENIED);
    CHECK(dsa_lock(reader, DSA_SHARED), TARN_OK);
    CHECK(dsa_lock(partition, DSA_SHARED), TARN_OK);
    CHECK(dsa_lock(partition, DSA_ALONE), TARN_EBUSY);
    CHECK(dsa_lock(reader, DSA_UNLOCKED), TARN_OK);
    CHECK(dsa_lock(partition, DSA_ALONE), TARN_OK);
    CHECK(dsa_lock(reader, DSA_SHARED), TARN_EBUSY);
    CHECK(dsa_lock(partition, DSA_UNLOCKED), TARN_OK);
    CHECK(dsa_lock(reader, DSA_SHARED), TARN_OK);
    CHECK(dsa_resize(path, 2 * MIB), TARN_EBUSY);
    CHECK(dsa_list(folder, all, NULL), TARN_EINVALID);
    CHECK(dsa_list(folder, NULL, &count), TARN_EINVALID);
    CHECK(dsa_list(folder, all, &count), TARN_OK);
    CHECK((int)count, 1);
    CHECK(dsa_list("/no/such", all, &count), TARN_ENOTFOUND);
    CHECK(dsa_partition_info(NULL, &info), TARN_EINVALID);
    CHECK(dsa_partition_info(partition, NULL), TARN_EINVALID);
    CHECK(dsa_size(partition, NULL), TARN_EINVALID);
    CHECK(dsa_size((void *)data, &bytes), TARN_EINVALID);
    CHECK(dsa_grow(partition, (uint64_t)1 << 49, NULL), TARN_ENOSPACE);
    CHECK(dsa_grow(reader, 2 * MIB, NULL), TARN_EDENIED);

    CHECK(dsa_queue_create(0, 0, 0, &queue), TARN_EINVALID);
    CHECK(dsa_queue_create(3, 0, 0, &queue), TARN_EINVALID);
    CHECK(dsa_queue_create(1 << 17, 0, 0, &queue), TARN_EINVALID);
    CHECK(dsa_queue_create(4, 9, 0, &queue), TARN_EINVALID);
    CHECK(dsa_queue_create(4, 0, 2, &queue), TARN_EINVALID);
    CHECK(dsa_queue_create(4, 0, 0, NULL), TARN_EINVALID);
    CHECK(dsa_queue_create(4, 0, 0, &queue), TARN_OK);
    CHECK(dsa_register_memory(queue, NULL, 1, 0, &memory), TARN_EINVALID);
    CHECK(dsa_register_memory(queue, data, SIZE_MAX, 0, &memory), TARN_EINVALID);
    CHECK(dsa_register_memory(queue, data, sizeof data, 0, NULL), TARN_EINVALID);
    CHECK(dsa_register_memory(queue, data, sizeof data, 4, &memory), TARN_EINVALID);
    CHECK(dsa_register_memory(no_queue, data, sizeof data, 0, &memory), TARN_EINVALID);
    CHECK(dsa_register_memory(queue, data, sizeof data, DSA_REGION_READ_ONLY, &memory), TARN_OK);
    CHECK(dsa_register_partition(queue, NULL, 0, 1, 0, &region), TARN_EINVALID);
    CHECK(dsa_register_partition(queue, partition, 0, MIB + 1, 0, &region), TARN_EINVALID);
    CHECK(dsa_register_partition(queue, partition, UINT64_MAX, 2, 0, &region), TARN_EINVALID);
    CHECK(dsa_register_partition(queue, reader, 0, 1, 0, &region), TARN_EDENIED);
    CHECK(dsa_register_partition(queue, partition, 0, MIB, 0, &region), TARN_OK);
    CHECK(dsa_unregister(queue, 12345), TARN_EINVALID);
    CHECK((int)dsa_submit(NULL), 0);
    CHECK(dsa_wait(queue, 1, 0), TARN_EINVALID);
    CHECK(dsa_fd(NULL), -1);

    /* The ring is full, and its first is nonsense. */
    for (int i = 0; i < 4; i++)
        dsa_prep_write(dsa_get_sqe(queue), region, 0, memory, data, sizeof data);
    queue->sqes[0].op = 77;
    CHECK(dsa_get_sqe(queue) == NULL, 1);
    CHECK((int)dsa_submit(queue), 4);
    CHECK((int)reaped(queue, TARN_OK), 3);
    /* A read into memory that is not to be filled, a flush of memory that is not persistent, one byte too many, a freed
     * region. */
    dsa_prep_read(dsa_get_sqe(queue), region, 0, memory, data, 1);
    dsa_prep_flush(dsa_get_sqe(queue), region);
    dsa_prep_write(dsa_get_sqe(queue), region, 0, memory, data + 1, sizeof data);
    CHECK((int)dsa_submit(queue), 3);
    CHECK(dsa_peek_cqe(queue)->code, TARN_EINVALID);
    dsa_cq_advance(queue, 1);
    CHECK(dsa_peek_cqe(queue)->code, TARN_EVOLATILE);
    dsa_cq_advance(queue, 1);
    CHECK((int)reaped(queue, TARN_EINVALID), 1);
    CHECK(dsa_unregister(queue, memory), TARN_OK);
    CHECK(dsa_unregister(queue, memory), TARN_EINVALID);
    dsa_prep_write(dsa_get_sqe(queue), region, 0, memory, data, 1);
    CHECK((int)dsa_submit(queue), 1);
    CHECK((int)reaped(queue, TARN_EINVALID), 1);

    CHECK(dsa_close(reader), TARN_OK);
    CHECK(dsa_close(reader), TARN_EINVALID);
    CHECK(dsa_close(NULL), TARN_EINVALID);
    CHECK(dsa_close(partition), TARN_OK);
    CHECK(dsa_delete(path), TARN_EBUSY);
    CHECK(dsa_queue_destroy(queue), TARN_OK);
    CHECK(dsa_queue_destroy(queue), TARN_EINVALID);
    CHECK(dsa_resize(path, 0), TARN_EINVALID);
    CHECK(dsa_resize(path, 2 * MIB), TARN_OK);
    CHECK(dsa_delete(path), TARN_OK);
    CHECK(dsa_delete(path), TARN_ENOTFOUND);
    if (!failed)
        printf("all misuse is told\n");
    return failed;
}

static int limited(const char *path)
{
    struct dsa_partition *partition;
    struct dsa_queue *queue;
    struct rlimit limit = {MIB, MIB};
    uint32_t memory, region;
    static char data[2 * MIB];

    CHECK(dsa_create(path, 4 * MIB, NULL, 0), TARN_OK);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK(dsa_open(path, 0, &partition), TARN_OK);
    CHECK(dsa_queue_create(ENTRIES, 0, 0, &queue), TARN_OK);
    if (failed)
        return 1;
    CHECK(dsa_register_partition(queue, partition, 0, 4 * MIB, 0, &region), TARN_OK);
    CHECK(dsa_register_memory(queue, data, sizeof data, 0, &memory), TARN_OK);
    memset(data, 'x', sizeof data);
    dsa_prep_write(dsa_get_sqe(queue), region, MIB, memory, data, sizeof data);
    CHECK((int)dsa_submit(queue), 1);
    CHECK((int)reaped(queue, TARN_OK), 1);
    CHECK(dsa_queue_destroy(queue), TARN_OK);
    CHECK(dsa_close(partition), TARN_OK);
    CHECK(dsa_delete(path), TARN_OK);
    if (!failed)
        printf("written all the same\n");
    return failed;
}

int main(int argc, char **argv)
{
    char path[4096];
    if (argc != 3)
        return 2;
    snprintf(path, sizeof path, "%s/field", argv[1]);
    if (strcmp(argv[2], "limited") == 0)
        return limited(path);
    return strcmp(argv[2], "run") ? misuse(argv[1], path) : run(path);
}
