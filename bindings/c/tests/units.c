/*
 * units.c: a program that shares units of a partition with others like it.
 *
 * units PARTITION make UNIT, or neighbour N TURNS: adds 1 to the counter at the beginning and writes its own word, N, TURNS times, and says
 * each turn that it has completed; or show COUNT: prints the counter and so many words, and the unit, which it only reads.
 */
#include "dsa.h"
#define WHY tarn_last_error()
#include "check.h"

#include <stdlib.h>
#include <string.h>

#define MINUTE 60000000000u

static struct dsa_partition *partition;
static struct dsa_queue *queue;
static uint32_t memory, region;
static uint64_t words[64];

static void open_it(const char *path, uint32_t flags)
{
    uint64_t bytes = 0;
    CHECK(dsa_open(path, flags, &partition), TARN_OK);
    CHECK(dsa_queue_create(8, 0, 0, &queue), TARN_OK);
    CHECK(dsa_size(partition, &bytes), TARN_OK);
    CHECK(dsa_register_partition(queue, partition, 0, bytes, flags ? DSA_REGION_READ_ONLY : 0, &region), TARN_OK);
    CHECK(dsa_register_memory(queue, words, sizeof words, 0, &memory), TARN_OK);
}

/* Waits for the prepared requests; their code. */
static int ended(void)
{
    int code = TARN_EINTERNAL;
    CHECK(dsa_wait(queue, 1, MINUTE), TARN_OK);
    const struct dsa_cqe *cqe = dsa_peek_cqe(queue);
    if (cqe) {
        code = cqe->code;
        dsa_cq_advance(queue, 1);
    }
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    uint64_t number = strtoull(argv[3], NULL, 10), turns = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    if (strcmp(argv[2], "make") == 0) {
        CHECK(dsa_create_units(argv[1], 1 << 20, (uint32_t)number, NULL, 0), TARN_OK);
        return failed;
    }
    int writes = strcmp(argv[2], "neighbour") == 0;
    open_it(argv[1], writes ? 0 : DSA_READ_ONLY);
    if (failed)
        return failed;
    if (writes) {
        for (uint64_t turn = 1; turn <= turns && !failed; turn++) {
            dsa_prep_fetch_add(dsa_get_sqe(queue), region, 0, 1);
            CHECK(ended(), TARN_OK);
            words[0] = turn;
            dsa_prep_write(dsa_get_sqe(queue), region, 8 * number, memory, words, 8);
            CHECK(ended(), TARN_OK);
            printf("%llu\n", (unsigned long long)turn);
            fflush(stdout);
        }
    } else {
        struct dsa_info info;
        dsa_prep_read(dsa_get_sqe(queue), region, 0, memory, words, 8 * number);
        CHECK(ended(), TARN_OK);
        CHECK(dsa_partition_info(partition, &info), TARN_OK);
        for (uint64_t word = 0; word < number; word++)
            printf("%llu ", (unsigned long long)words[word]);
        printf("of %u\n", info.unit);
    }
    CHECK(dsa_queue_destroy(queue), TARN_OK);
    CHECK(dsa_close(partition), TARN_OK);
    return failed;
}
