/* Writes and reads partitions of steps: lent OPERATION PARTITION[,PARTITION...] AT [WORD]. */
#include <dsa.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 64, MOST = 8 };

static void must(int code)
{
    if (code != TARN_OK) {
        fprintf(stderr, "%s\n", tarn_last_error());
        exit(1);
    }
}

static struct dsa_partition *opened(char *names)
{
    const char *all[MOST];
    size_t count = 0;
    struct dsa_partition *partition;

    for (char *name = strtok(names, ","); name && count < MOST; name = strtok(NULL, ","))
        all[count++] = name;
    if (count == 1)
        must(dsa_open(all[0], 0, &partition));
    else
        must(dsa_open_cyclic(all, count, strtoull(getenv("LENT_BLOCK"), NULL, 10), 0, &partition));
    return partition;
}

int main(int argc, char **argv)
{
    static char text[LONGEST];
    struct dsa_partition *partition;
    struct dsa_queue *queue;
    struct dsa_info info;
    uint32_t here, there;
    uint64_t bytes;

    if (argc < 4 || (argc > 4 && strlen(argv[4]) >= sizeof text))
        return 2;
    partition = opened(argv[2]);
    must(dsa_size(partition, &bytes));
    must(dsa_partition_info(partition, &info));
    must(dsa_queue_create(8, 0, DSA_VOLATILE, &queue));
    must(dsa_register_memory(queue, text, sizeof text, 0, &here));
    must(dsa_register_partition(queue, partition, 0, bytes, 0, &there));
    if (strcmp(argv[1], "write") == 0) {
        strcpy(text, argc > 4 ? argv[4] : "");
        dsa_prep_write(dsa_get_sqe(queue), there, strtoull(argv[3], NULL, 10), here, text, sizeof text);
    } else if (strcmp(argv[1], "add") == 0) {
        dsa_prep_fetch_add(dsa_get_sqe(queue), there, strtoull(argv[3], NULL, 10), 1);
    } else {
        dsa_prep_read(dsa_get_sqe(queue), there, strtoull(argv[3], NULL, 10), here, text, sizeof text);
    }
    must(dsa_wait(queue, 1, UINT64_MAX));
    must(dsa_peek_cqe(queue)->code);
    if (strcmp(argv[1], "add") == 0)
        printf("was %" PRIu64 "\n", (uint64_t)dsa_peek_cqe(queue)->value);
    else if (strcmp(argv[1], "read") == 0)
        printf("%s of %" PRIu64 " by %" PRIu32 "\n", text, bytes, info.unit);
    dsa_cq_advance(queue, 1);
    must(dsa_queue_destroy(queue));
    must(dsa_close(partition));
    return 0;
}
