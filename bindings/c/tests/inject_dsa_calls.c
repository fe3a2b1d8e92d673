/*
 * inject_dsa_calls.c: inject_dsa_calls DIR make: a mapped partition DIR/mapped and one in units, DIR/units, with pages of 1.
 * change: both are made larger while they are open, and written behind; others are made. look OUTPUT: checks the state that an
 * earlier `change` that said OUTPUT must have left; then all of it again.
 */
#include <dsa.h>
#define WHY tarn_last_error()
#include "inject.h"

#define BYTES ((uint64_t)65536)
#define SECONDS 1000000000ull

static char mapped[512], units[512], made[512], unit_made[512];
static unsigned char memory[65536];
/* A user who is not there. */
static const struct dsa_grant grant = {.id = 4000000000u};

/* All of the memory, to or from some bytes of a partition; persistent. */
static int copied(const char *path, uint8_t op, uint64_t from)
{
    struct dsa_partition *partition = NULL;
    struct dsa_queue *queue = NULL;
    uint32_t region, ram;
    int code = dsa_open(path, 0, &partition);
    if (code == TARN_OK)
        code = dsa_queue_create(8, 0, DSA_VOLATILE, &queue);
    if (code == TARN_OK)
        code = dsa_register_memory(queue, memory, sizeof memory, 0, &ram);
    if (code == TARN_OK)
        code = dsa_register_partition(queue, partition, from, BYTES, 0, &region);
    for (int flush = 0; code == TARN_OK && flush < 2; flush++) {
        struct dsa_sqe *sqe = dsa_get_sqe(queue);
        if (flush)
            dsa_prep_flush(sqe, region);
        else
            dsa_prep_copy(sqe, op, region, 0, ram, memory, BYTES);
        dsa_submit(queue);
        code = dsa_wait(queue, 1, 60 * SECONDS);
        const struct dsa_cqe *end = dsa_peek_cqe(queue);
        if (code == TARN_OK && end)
            code = end->code;
        if (end)
            dsa_cq_advance(queue, 1);
    }
    if (queue)
        dsa_queue_destroy(queue);
    if (partition)
        dsa_close(partition);
    return code;
}

static int written(const char *path, uint64_t from, int with)
{
    memset(memory, with, sizeof memory);
    return copied(path, DSA_WRITE, from);
}

/* Whether all of it is one byte. */
static int holds(const char *path, uint64_t from, int what)
{
    memset(memory, 0xee, sizeof memory);
    int code = copied(path, DSA_READ, from);
    for (size_t i = 0; code == TARN_OK && i < sizeof memory; i++)
        if (memory[i] != what)
            return -1;
    return code;
}

static uint64_t size(const char *path)
{
    struct dsa_partition *partition;
    uint64_t bytes = 0;
    if (dsa_open(path, DSA_READ_ONLY, &partition) == TARN_OK) {
        dsa_size(partition, &bytes);
        dsa_close(partition);
    }
    return bytes;
}

static int change(void)
{
    struct dsa_partition *one, *other;
    uint64_t now = 0;
    STEP("open", dsa_open(mapped, 0, &one), 0);
    STEP("open units", dsa_open(units, 0, &other), 0);
    STEP("lock", dsa_lock(one, DSA_ALONE), 0);
    STEP("grow", dsa_grow(one, 2 * BYTES, &now), 0);
    HOLDS(now == 2 * BYTES);
    STEP("grow units", dsa_grow(other, 2 * BYTES, &now), 0);
    HOLDS(now == 2 * BYTES);
    STEP("unlock", dsa_lock(one, DSA_UNLOCKED), 0);
    STEP("close", dsa_close(one), 0);
    STEP("close units", dsa_close(other), 0);
    STEP("write", written(mapped, BYTES, 2), 0);
    STEP("write units", written(units, BYTES, 2), 0);
    STEP("create", dsa_create(made, BYTES, &grant, 1), TARN_EEXISTS);
    STEP("create units", dsa_create_units(unit_made, BYTES, 4096, &grant, 1), TARN_EEXISTS);
    STEP("resize", dsa_resize(made, 2 * BYTES), 0);
    STEP("resize units", dsa_resize(unit_made, 2 * BYTES), 0);
    return puts("changed") < 0;
}

static int left(void)
{
    HOLDS(holds(mapped, 0, 1) == TARN_OK);
    HOLDS(holds(units, 0, 1) == TARN_OK);
    HOLDS(size(mapped) == 2 * BYTES || (!was_done("grow") && size(mapped) == BYTES));
    HOLDS(size(units) == 2 * BYTES || (!was_done("grow units") && size(units) == BYTES));
    HOLDS(!was_done("write") || holds(mapped, BYTES, 2) == TARN_OK);
    HOLDS(!was_done("write units") || holds(units, BYTES, 2) == TARN_OK);
    /* A new partition is zeros, with its access list, or is not there. */
    const char *const names[] = {"create", "create units"}, *const paths[] = {made, unit_made};
    for (int i = 0; i < 2; i++) {
        struct dsa_partition *partition;
        struct dsa_info info;
        int code = dsa_open(paths[i], DSA_READ_ONLY, &partition);
        HOLDS(code == TARN_OK || (code == TARN_ENOTFOUND && !was_done(names[i])));
        if (code == TARN_ENOTFOUND)
            continue;
        HOLDS(dsa_partition_info(partition, &info) == TARN_OK && dsa_close(partition) == TARN_OK);
        HOLDS((!i || info.unit == 4096) && info.grant_count == 1 && info.grants[0].id == grant.id);
        HOLDS(info.bytes == 2 * BYTES || (info.bytes == BYTES && !was_done(i ? "resize units" : "resize")));
        HOLDS(holds(paths[i], 0, 0) == TARN_OK);
    }
    return 0;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    snprintf(mapped, sizeof mapped, "%s/mapped", arguments[1]);
    snprintf(units, sizeof units, "%s/units", arguments[1]);
    snprintf(made, sizeof made, "%s/made", arguments[1]);
    snprintf(unit_made, sizeof unit_made, "%s/unit_made", arguments[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(arguments[2], "make") == 0)
        return dsa_create(mapped, BYTES, NULL, 0) || dsa_create_units(units, BYTES, 8192, NULL, 0) || written(mapped, 0, 1) ||
               written(units, 0, 1) || puts("made") < 0;
    if (strcmp(arguments[2], "change") == 0)
        return change();
    output = count > 3 ? arguments[3] : "";
    again = 1;
    if (left() || change())
        return 1;
    output = "done grow\ndone grow units\ndone write\ndone write units\ndone create\ndone create units\ndone resize\ndone resize units\n";
    if (left() || dsa_delete(made) || dsa_delete(unit_made) || dsa_delete(mapped) || dsa_delete(units))
        return 1;
    return puts("whole") < 0;
}
