/* A checkpoint from memory to outside, and an input from outside to the node, while the program computes. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tarn.h"

#define STATE_BYTES (8u << 20)

static void check(int code, const char *doing)
{
    if (code != TARN_OK) {
        fprintf(stderr, "cannot %s: %s (%s)\n", doing, tarn_last_error(), tarn_code_text(code));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER-OUTSIDE\n", argv[0]);
        return 2;
    }
    char checkpoint[4096], input[4096];
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", argv[1]);
    snprintf(input, sizeof input, "%s/input", argv[1]);
    FILE *file = fopen(input, "w");
    if (!file || fputs("the next input\n", file) < 0 || fclose(file) != 0) {
        perror(input);
        return 1;
    }

    struct tarn_connection *tarn;
    check(tarn_connect(NULL, &tarn), "connect");

    /* The state of the simulation lives in memory that tarnd can read. */
    int memfd = memfd_create("state", MFD_CLOEXEC);
    if (memfd < 0 || ftruncate(memfd, STATE_BYTES) != 0) {
        perror("memfd");
        return 1;
    }
    double *state = mmap(NULL, STATE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    if (state == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    uint32_t region;
    check(tarn_memory_register(tarn, memfd, STATE_BYTES, &region), "register memory");
    close(memfd);
    for (size_t n = 0; n < STATE_BYTES / sizeof *state; n++) {
        state[n] = (double)n;
    }

    struct tarn_task tasks[2];
    tarn_task_init(&tasks[0]);
    tasks[0].kind = TARN_COPY;
    tasks[0].verify = TARN_VERIFY_READBACK;
    tasks[0].flags = TARN_REPLACE;
    tasks[0].from.kind = TARN_MEMORY;
    tasks[0].from.region = region;
    tasks[0].from.length = STATE_BYTES;
    tasks[0].to.kind = TARN_EXTERNAL;
    tasks[0].to.path = checkpoint;
    tarn_task_init(&tasks[1]);
    tasks[1].kind = TARN_COPY;
    tasks[1].flags = TARN_REPLACE;
    tasks[1].from.kind = TARN_EXTERNAL;
    tasks[1].from.path = input;
    tasks[1].to.kind = TARN_SPACE;
    tasks[1].to.space = "fast";
    tasks[1].to.path = "input";
    uint64_t ids[2];
    check(tarn_submit(tarn, tasks, 2, ids, NULL), "submit");

    /* The program computes here; it must not change the state before the checkpoint is out. */
    double sum = 0;
    for (size_t n = 0; n < STATE_BYTES / sizeof *state; n++) {
        sum += state[n];
    }

    struct tarn_outcome outcomes[2];
    size_t ended;
    check(tarn_wait(tarn, ids, 2, 0, -1, outcomes, &ended), "wait");
    for (size_t n = 0; n < ended; n++) {
        const char *what = outcomes[n].id == ids[0] ? "checkpoint saved" : "input is here";
        if (outcomes[n].code != TARN_OK) {
            fprintf(stderr, "%s: failed: %s\n", what, outcomes[n].text);
            return 1;
        }
        printf("%s: %" PRIu64 " bytes\n", what, outcomes[n].bytes);
    }
    check(tarn_memory_unregister(tarn, region), "unregister memory");
    tarn_close(tarn);
    munmap(state, STATE_BYTES);
    return sum > 0 ? 0 : 1;
}
