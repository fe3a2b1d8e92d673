/* Every call of tarn.h, and the errors of wrong calls. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tarn.h"

static int line_failed(int line, const char *what)
{
    fprintf(stderr, "line %d: %s; last error: %s\n", line, what, tarn_last_error());
    exit(1);
}

#define CHECK(condition) ((void)((condition) || line_failed(__LINE__, #condition)))

static struct tarn_connection *shared;

/* Threads share a connection. */
static void *work(void *count)
{
    for (int n = 0; n < 100; n++) {
        struct tarn_task task;
        struct tarn_outcome outcome;
        uint64_t id;
        size_t ended;
        tarn_task_init(&task);
        CHECK(tarn_submit(shared, &task, 1, &id, NULL) == TARN_OK);
        CHECK(tarn_wait(shared, &id, 1, n % 2, -1, &outcome, &ended) == TARN_OK);
        CHECK(ended == 1 && outcome.id == id && outcome.code == TARN_OK);
        ++*(int *)count;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    struct tarn_connection *tarn;
    CHECK(tarn_connect("/nowhere/socket", &tarn) == TARN_ELOST && tarn == NULL);
    CHECK(strstr(tarn_last_error(), "/nowhere/socket") != NULL);
    CHECK(tarn_connect(NULL, NULL) == TARN_EINVALID);
    CHECK(tarn_connect_job(NULL, 99, &tarn) == TARN_EDENIED);
    CHECK(tarn_connect(NULL, &tarn) == TARN_OK);
    tarn_close(NULL);
    tarn_task_init(NULL);

    /* A wrong task gets an error; the others are taken. */
    struct tarn_task tasks[600];
    uint64_t ids[600];
    int32_t codes[600];
    for (int n = 0; n < 600; n++) {
        tarn_task_init(&tasks[n]);
    }
    CHECK(tarn_submit(NULL, tasks, 1, ids, codes) == TARN_EINVALID);
    CHECK(tarn_submit(tarn, NULL, 1, ids, codes) == TARN_EINVALID);
    CHECK(tarn_submit(tarn, tasks, 1, NULL, codes) == TARN_EINVALID);
    tasks[0].kind = 77;
    CHECK(tarn_submit(tarn, tasks, 2, ids, codes) == TARN_EINVALID && codes[0] == TARN_EINVALID && ids[0] == 0);
    CHECK(codes[1] == TARN_OK && ids[1] != 0);
    tasks[0].kind = TARN_COPY;
    CHECK(tarn_submit(tarn, tasks, 1, ids, codes) == TARN_EINVALID);
    tasks[0].from.kind = TARN_SPACE;
    tasks[0].to.kind = TARN_SPACE;
    CHECK(tarn_submit(tarn, tasks, 1, ids, codes) == TARN_EINVALID && strstr(tarn_last_error(), "NULL") != NULL);
    tasks[0].from.space = tasks[0].to.space = "fast";
    tasks[0].from.path = "missing";
    tasks[0].to.path = "x";
    tasks[0].priority = 256;
    CHECK(tarn_submit(tarn, tasks, 1, ids, codes) == TARN_EINVALID);
    tasks[0].priority = 1;
    tasks[0].size = 8;
    CHECK(tarn_submit(tarn, tasks, 1, ids, codes) == TARN_EINVALID);
    tasks[0].size = sizeof tasks[0];
    tasks[0].flags = 128;
    CHECK(tarn_submit(tarn, tasks, 1, ids, codes) == TARN_EINVALID);
    tasks[0].flags = TARN_DURABLE;

    /* A batch larger than one request; one of them fails. */
    struct tarn_outcome outcomes[600];
    size_t ended;
    CHECK(tarn_submit(tarn, tasks, 600, ids, codes) == TARN_OK && codes[599] == TARN_OK);
    CHECK(tarn_wait(tarn, ids, 600, 0, -1, outcomes, &ended) == TARN_OK && ended == 600);
    CHECK(outcomes[0].code == TARN_ENOTFOUND && strstr(outcomes[0].text, "missing") != NULL);
    struct tarn_status status;
    CHECK(tarn_status(tarn, ids, 1, &status) == TARN_OK && status.state == TARN_FAILED && status.id == ids[0]);
    tarn_task_init(&tasks[0]);
    tasks[0].after = ids;
    tasks[0].after_count = 1;
    CHECK(tarn_submit(tarn, tasks, 1, ids, codes) == TARN_OK);
    CHECK(tarn_wait(tarn, ids, 1, 0, -1, outcomes, &ended) == TARN_OK && outcomes[0].code == TARN_EDEPENDENCY);
    CHECK(tarn_cancel(tarn, ids, 1, codes) == TARN_OK && codes[0] == TARN_EEXISTS);
    uint64_t none = 5;
    CHECK(tarn_cancel(tarn, &none, 1, codes) == TARN_OK && codes[0] == TARN_ENOTFOUND);
    CHECK(tarn_wait(tarn, &none, 1, 0, -1, outcomes, &ended) == TARN_OK && ended == 0);
    CHECK(tarn_wait(tarn, NULL, 0, 0, -1, NULL, &ended) == TARN_OK && ended == 0);

    /* Paused tasks wait until they are resumed. */
    CHECK(tarn_pause_all(tarn, 1) == TARN_OK);
    tarn_task_init(&tasks[0]);
    CHECK(tarn_submit(tarn, tasks, 1, ids, NULL) == TARN_OK);
    CHECK(tarn_wait(tarn, ids, 1, 0, 20000000, outcomes, &ended) == TARN_ETIMEDOUT && ended == 0);
    ids[1] = 5;
    CHECK(tarn_pause(tarn, ids, 2, codes) == TARN_OK && codes[0] == TARN_OK && codes[1] == TARN_ENOTFOUND);
    CHECK(tarn_pause_all(tarn, 0) == TARN_OK);
    CHECK(tarn_status(tarn, ids, 1, &status) == TARN_OK && status.state == TARN_PAUSED);
    CHECK(tarn_resume(tarn, ids, 1, NULL) == TARN_OK);
    CHECK(tarn_wait(tarn, ids, 1, 0, -1, outcomes, &ended) == TARN_OK && outcomes[0].code == TARN_OK);
    CHECK(tarn_resume(tarn, ids, 1, codes) == TARN_OK && codes[0] == TARN_EEXISTS);
    CHECK(tarn_pause(NULL, ids, 1, codes) == TARN_EINVALID);
    CHECK(tarn_job_pause(tarn, 99, 1) == TARN_ENOTFOUND);

    /* To another node and back. */
    const char *peer = getenv("TARN_PEER");
    CHECK(peer != NULL);
    char from[4096];
    snprintf(from, sizeof from, "%s/from-c", argv[1]);
    FILE *file = fopen(from, "w");
    CHECK(file != NULL && fputs("from C", file) >= 0 && fclose(file) == 0);
    for (int n = 0; n < 2; n++) {
        tarn_task_init(&tasks[n]);
        tasks[n].kind = TARN_COPY;
    }
    tasks[0].from.kind = TARN_EXTERNAL;
    tasks[0].from.path = from;
    tasks[0].to.kind = TARN_NODE;
    tasks[0].to.node = peer;
    tasks[0].to.space = "fast";
    tasks[0].to.path = "from-c";
    CHECK(tarn_submit(tarn, tasks, 1, ids, NULL) == TARN_OK);
    tasks[1].after = ids;
    tasks[1].after_count = 1;
    tasks[1].from = tasks[0].to;
    tasks[1].to.kind = TARN_SPACE;
    tasks[1].to.space = "fast";
    tasks[1].to.path = "from-c";
    CHECK(tarn_submit(tarn, &tasks[1], 1, &ids[1], NULL) == TARN_OK);
    CHECK(tarn_wait(tarn, ids, 2, 0, -1, outcomes, &ended) == TARN_OK && ended == 2);
    for (int n = 0; n < 2; n++) {
        CHECK(outcomes[n].code == TARN_OK && outcomes[n].bytes == 6 && outcomes[n].has_checksum);
    }
    CHECK(memcmp(outcomes[0].checksum, outcomes[1].checksum, 16) == 0);
    tasks[0].to.node = "nowhere";
    CHECK(tarn_submit(tarn, tasks, 1, ids, NULL) == TARN_EUNSUPPORTED);

    uint32_t region;
    CHECK(tarn_memory_register(tarn, 0, 1, &region) == TARN_EINVALID);
    CHECK(tarn_memory_register(tarn, -1, 1, &region) == TARN_EINVALID);
    CHECK(tarn_memory_unregister(tarn, 5) == TARN_ENOTFOUND);

    struct tarn_space spaces[2];
    size_t count = 0;
    CHECK(tarn_spaces(tarn, NULL, &count) == TARN_OK && count == 1);
    CHECK(tarn_space_make(tarn, "c", argv[1], 1 << 20, 0) == TARN_OK);
    CHECK(tarn_space_make(tarn, "c", argv[1], 1 << 20, 0) == TARN_EEXISTS);
    CHECK(tarn_space_change(tarn, "c", argv[1], 2 << 20, 1 << 20) == TARN_OK);
    count = 2;
    CHECK(tarn_spaces(tarn, spaces, &count) == TARN_OK && count == 2 && strcmp(spaces[0].name, "c") == 0);
    CHECK(spaces[0].capacity == 2 << 20 && spaces[0].quota == 1 << 20 && spaces[0].manageable);
    CHECK(tarn_space_remove(tarn, "c") == TARN_OK);

    const char *const limited[] = {"fast"};
    const uint64_t quotas[] = {1 << 20};
    CHECK(tarn_job_register(tarn, 7, 0, limited, quotas, 1) == TARN_OK);
    CHECK(tarn_job_pause(tarn, 7, 1) == TARN_OK && tarn_job_pause(tarn, 7, 0) == TARN_OK);
    CHECK(tarn_job_add_process(tarn, 7, 1) == TARN_EINVALID);
    CHECK(tarn_job_add_process(tarn, 7, INT32_MAX) == TARN_ENOTFOUND);
    CHECK(tarn_job_add_process(tarn, 7, getppid()) == TARN_OK);
    CHECK(tarn_job_remove_process(tarn, 7, getppid()) == TARN_OK);
    CHECK(tarn_job_remove_process(tarn, 7, getppid()) == TARN_ENOTFOUND);
    CHECK(tarn_job_unregister(tarn, 7) == TARN_OK);

    shared = tarn;
    pthread_t threads[4];
    int counts[4] = {0};
    for (int n = 0; n < 4; n++) {
        CHECK(pthread_create(&threads[n], NULL, work, &counts[n]) == 0);
    }
    /* In the middle of that: a child gets the error that the connection is its parent's, gives it back without harm, and has
     * its own. */
    pid_t child = fork();
    if (child == 0) {
        struct tarn_stats stats;
        alarm(60);
        CHECK(tarn_stats(tarn, &stats) == TARN_EUNSUPPORTED);
        CHECK(strstr(tarn_last_error(), "forked") != NULL);
        tarn_close(tarn);
        CHECK(tarn_connect(NULL, &tarn) == TARN_OK);
        CHECK(tarn_stats(tarn, &stats) == TARN_OK);
        tarn_close(tarn);
        _exit(0);
    }
    int how;
    CHECK(child > 0 && waitpid(child, &how, 0) == child && how == 0);
    for (int n = 0; n < 4; n++) {
        CHECK(pthread_join(threads[n], NULL) == 0 && counts[n] == 100);
    }
    struct tarn_stats stats;
    CHECK(tarn_stats(tarn, &stats) == TARN_OK && stats.done >= 999 && stats.failed == 2 && stats.running == 0);
    tarn_close(tarn);
    puts("all calls");
    return 0;
}
