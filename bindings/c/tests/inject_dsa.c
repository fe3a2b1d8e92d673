/*
 * inject_dsa.c: inject_dsa DIR make: a partition DIR/kept with pages of 1 and one DIR/gone. change: pages of 2, then the first is made
 * larger, the second is taken away, and a third is made. look old|new: DIR/kept has pages of 1 or 2, of 2 only if it must be new.
 */
#include <dsa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096
#define PAGES 32
#define SECONDS 1000000000ull

static char kept[512], gone[512], made[512];
static unsigned char memory[PAGES * PAGE];

static int failed(const char *what)
{
    fprintf(stderr, "dsa: %s: %s\n", what, tarn_last_error());
    return 1;
}

/* One request, from its doorbell to its end. */
static int done(struct dsa_queue *queue, int flush, uint8_t op, uint32_t region, uint32_t ram)
{
    struct dsa_sqe *sqe = dsa_get_sqe(queue);
    if (flush)
        dsa_prep_flush(sqe, region);
    else
        dsa_prep_copy(sqe, op, region, 0, ram, memory, sizeof memory);
    int code = dsa_wait(queue, 1, 60 * SECONDS);
    const struct dsa_cqe *end = dsa_peek_cqe(queue);
    if (code == TARN_OK && end)
        code = end->code;
    if (end)
        dsa_cq_advance(queue, 1);
    if (code != TARN_OK)
        fprintf(stderr, "dsa: a request: %s\n", tarn_code_text(code));
    return code;
}

static int copied(uint8_t op, int flush)
{
    struct dsa_partition *partition;
    struct dsa_queue *queue;
    uint32_t region, ram;
    if (dsa_open(kept, 0, &partition) != TARN_OK || dsa_queue_create(8, 0, DSA_VOLATILE, &queue) != TARN_OK ||
        dsa_register_memory(queue, memory, sizeof memory, 0, &ram) != TARN_OK ||
        dsa_register_partition(queue, partition, 0, sizeof memory, 0, &region) != TARN_OK)
        return failed("open");
    if (done(queue, 0, op, region, ram) != TARN_OK || (flush && done(queue, 1, 0, region, ram) != TARN_OK))
        return 1;
    if (dsa_queue_destroy(queue) != TARN_OK || dsa_close(partition) != TARN_OK)
        return failed("close");
    return 0;
}

static int make(void)
{
    memset(memory, 1, sizeof memory);
    if (dsa_create(kept, sizeof memory, NULL, 0) != TARN_OK || dsa_create(gone, sizeof memory, NULL, 0) != TARN_OK)
        return failed("create");
    return copied(DSA_WRITE, 1) || puts("made") < 0;
}

static int change(void)
{
    memset(memory, 2, sizeof memory);
    if (copied(DSA_WRITE, 1))
        return 1;
    puts("flushed");
    if (dsa_resize(kept, 2 * sizeof memory) != TARN_OK)
        return failed("resize");
    if (dsa_delete(gone) != TARN_OK)
        return failed("delete");
    if (dsa_create(made, sizeof memory, NULL, 0) != TARN_OK)
        return failed("create");
    return puts("changed") < 0;
}

/* Each page is one of both; and the present ones can be taken away. */
static int look(int is_new)
{
    if (copied(DSA_READ, 0))
        return 1;
    for (size_t at = 0; at < sizeof memory; at++)
        if (memory[at] != memory[at / PAGE * PAGE] || memory[at] < 1 + is_new || memory[at] > 2)
            return printf("byte %zu is %d\n", at, memory[at]), 1;
    int codes[] = {dsa_delete(kept), dsa_delete(gone), dsa_delete(made)};
    for (int i = 0; i < 3; i++)
        if (codes[i] != TARN_OK && (i == 0 || codes[i] != TARN_ENOTFOUND))
            return failed("delete");
    return puts("whole") < 0;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    snprintf(kept, sizeof kept, "%s/kept", arguments[1]);
    snprintf(gone, sizeof gone, "%s/gone", arguments[1]);
    snprintf(made, sizeof made, "%s/made", arguments[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(arguments[2], "make") == 0)
        return make();
    if (strcmp(arguments[2], "change") == 0)
        return change();
    return look(count > 3 && strcmp(arguments[3], "new") == 0);
}
