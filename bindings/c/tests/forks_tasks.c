/*
 * forks_tasks.c: a connection to tarnd under forks and threads, by $TARN_SOCKET, which has a dataspace fast.
 *
 * forks_tasks FILE fork: children of a program with tasks under way. churn: children of one whose other threads are in calls. threads: many
 * at one connection, and with their own.
 */
#include "tarn.h"
#define WHY tarn_last_error()
#include "check.h"
#include "forks.h"

#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define TASKS 16
#define TIMEOUT (60 * (int64_t)1000000000)
#define BYTES 65536

static const char *file;
static struct tarn_connection *tarn;
static uint64_t ids[TASKS];
static uint32_t region;
static int fd;

/* Copies of a file into the dataspace. */
static void submit(struct tarn_connection *to, uint64_t *numbers)
{
    struct tarn_task tasks[TASKS];
    char names[TASKS][32];
    for (unsigned i = 0; i < TASKS; i++) {
        snprintf(names[i], sizeof names[i], "copy.%u", i);
        tarn_task_init(&tasks[i]);
        tasks[i].kind = TARN_COPY;
        tasks[i].flags = TARN_REPLACE;
        tasks[i].from = (struct tarn_place){.kind = TARN_EXTERNAL, .path = file};
        tasks[i].to = (struct tarn_place){.kind = TARN_SPACE, .space = "fast", .path = names[i]};
    }
    CHECK(tarn_submit(to, tasks, TASKS, numbers, NULL), TARN_OK);
}

static void ended(struct tarn_connection *by, const uint64_t *numbers)
{
    struct tarn_outcome outcomes[TASKS];
    size_t count = 0;
    CHECK(tarn_wait(by, numbers, TASKS, 0, TIMEOUT, outcomes, &count), TARN_OK);
    CHECK((int)count, TASKS);
    for (size_t i = 0; i < count; i++)
        CHECK(outcomes[i].code, TARN_OK);
}

static void connects(struct tarn_connection **connection)
{
    CHECK(tarn_connect(NULL, connection), TARN_OK);
    if (failed)
        exit(1);
}

/* All calls with a connection are refused in a child. */
static int refused(void)
{
    struct tarn_task task;
    struct tarn_outcome outcome;
    struct tarn_status status;
    struct tarn_stats stats;
    const char *spaces[] = {"fast"};
    uint64_t id = 0, quota = 1 << 20;
    uint32_t other = 0;
    int32_t code = 0;
    size_t count = 0;
    tarn_task_init(&task);
    CHECK(tarn_submit(tarn, &task, 1, &id, &code), TARN_EUNSUPPORTED);
    CHECK(id == 0 && code == TARN_EUNSUPPORTED, 1);
    CHECK(tarn_wait(tarn, ids, 1, 0, 0, &outcome, &count), TARN_EUNSUPPORTED);
    CHECK(tarn_status(tarn, ids, 1, &status), TARN_EUNSUPPORTED);
    CHECK(tarn_cancel(tarn, ids, TASKS, NULL), TARN_EUNSUPPORTED);
    CHECK(tarn_pause(tarn, ids, TASKS, NULL), TARN_EUNSUPPORTED);
    CHECK(tarn_resume(tarn, ids, TASKS, NULL), TARN_EUNSUPPORTED);
    CHECK(tarn_job_pause(tarn, 7, 1), TARN_EUNSUPPORTED);
    CHECK(tarn_pause_all(tarn, 1), TARN_EUNSUPPORTED);
    CHECK(tarn_memory_register(tarn, fd, BYTES, &other), TARN_EUNSUPPORTED);
    CHECK(tarn_memory_unregister(tarn, region), TARN_EUNSUPPORTED);
    CHECK(tarn_spaces(tarn, NULL, &count), TARN_EUNSUPPORTED);
    CHECK(tarn_space_make(tarn, "new", "/nowhere", 1 << 20, 0), TARN_EUNSUPPORTED);
    CHECK(tarn_space_change(tarn, "fast", "/nowhere", 1 << 20, 0), TARN_EUNSUPPORTED);
    CHECK(tarn_space_remove(tarn, "fast"), TARN_EUNSUPPORTED);
    CHECK(tarn_job_register(tarn, 7, 0, spaces, &quota, 1), TARN_EUNSUPPORTED);
    CHECK(tarn_job_unregister(tarn, 7), TARN_EUNSUPPORTED);
    CHECK(tarn_job_add_process(tarn, 7, getpid()), TARN_EUNSUPPORTED);
    CHECK(tarn_job_remove_process(tarn, 7, getpid()), TARN_EUNSUPPORTED);
    CHECK(tarn_stats(tarn, &stats), TARN_EUNSUPPORTED);
    CHECK(strstr(tarn_last_error(), "forked") != NULL, 1);
    return 0;
}

/* It gives back what is its parent's, without harm, and has a connection of its own, by which it sees its parent's tasks. */
static int connects_again(void)
{
    struct tarn_connection *own;
    struct tarn_status status;
    uint64_t numbers[TASKS];
    refused();
    tarn_close(tarn);
    connects(&own);
    CHECK(tarn_status(own, ids, 1, &status), TARN_OK);
    CHECK(status.state != TARN_UNKNOWN, 1);
    submit(own, numbers);
    ended(own, numbers);
    tarn_close(own);
    return 0;
}

/* It ends as a program does, with its parent's objects still open. */
static int ends(void)
{
    exit(0);
}

/* The program that it becomes has nothing of it. */
static int becomes(void)
{
    execlp("sh", "sh", "-c", "for f in /proc/$$/fd/*; do readlink $f; done | grep -E 'socket|memfd' && exit 1; exit 0", (char *)NULL);
    return 1;
}

static void begin(void)
{
    connects(&tarn);
    fd = memfd_create("region", MFD_CLOEXEC);
    CHECK(ftruncate(fd, BYTES), 0);
    CHECK(tarn_memory_register(tarn, fd, BYTES, &region), TARN_OK);
}

static int forks(void)
{
    int (*const all[])(void) = {refused, connects_again, ends, becomes};
    begin();
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        submit(tarn, ids);
        child("a child", all[i]);
        ended(tarn, ids);
    }
    CHECK(tarn_memory_unregister(tarn, region), TARN_OK);
    tarn_close(tarn);
    return failed;
}

static int stop;

/* Calls until `stop` is set: a fork is in the middle of one. */
static void *call_until_stop(void *arg)
{
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        struct tarn_stats stats;
        struct tarn_connection *own;
        uint64_t numbers[TASKS];
        if (tarn_stats(tarn, &stats) != TARN_OK)
            return "counts";
        if (arg || tarn_connect(NULL, &own) != TARN_OK)
            continue;
        submit(own, numbers);
        ended(own, numbers);
        tarn_close(own);
    }
    return NULL;
}

static int in_between(void)
{
    struct tarn_connection *own;
    struct tarn_stats stats;
    refused();
    tarn_close(tarn);
    connects(&own);
    CHECK(tarn_stats(own, &stats), TARN_OK);
    tarn_close(own);
    return 0;
}

static int churns(void)
{
    pthread_t threads[THREADS];
    void *why;
    begin();
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, call_until_stop, i % 2 ? &stop : NULL);
    for (unsigned i = 0; i < ROUNDS && !failed; i++)
        child("in the middle of calls", in_between);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &why);
        CHECK(why != NULL, 0);
    }
    tarn_close(tarn);
    return failed;
}

/* All at one connection: each gets the answers to its own questions. */
static void *shares(void *arg)
{
    int *given_back = arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct tarn_task task;
        struct tarn_outcome outcome;
        struct tarn_status status;
        uint64_t id;
        size_t count;
        tarn_task_init(&task);
        if (tarn_submit(tarn, &task, 1, &id, NULL) != TARN_OK)
            return "a task";
        if (tarn_wait(tarn, &id, 1, i % 2, TIMEOUT, &outcome, &count) != TARN_OK || count != 1 || outcome.id != id)
            return "its end";
        if (tarn_status(tarn, &id, 1, &status) != TARN_OK || status.id != id || status.state != TARN_DONE)
            return "how far it is";
    }
    int rc = tarn_memory_unregister(tarn, region);
    if (rc == TARN_OK)
        __atomic_fetch_add(given_back, 1, __ATOMIC_RELAXED);
    return rc == TARN_OK || rc == TARN_ENOTFOUND ? NULL : "a region";
}

static void *alone(void *arg)
{
    struct tarn_connection *own;
    (void)arg;
    for (unsigned i = 0; i < ROUNDS / 10; i++) {
        struct tarn_stats stats;
        if (tarn_connect(NULL, &own) != TARN_OK || tarn_stats(own, &stats) != TARN_OK)
            return "a connection";
        tarn_close(own);
    }
    return NULL;
}

static int threads(void)
{
    int given_back = 0;
    begin();
    submit(tarn, ids);
    all(shares, &given_back);
    CHECK(given_back, 1);
    ended(tarn, ids);
    all(alone, NULL);
    tarn_close(tarn);
    return failed;
}

int main(int count, char **args)
{
    if (count < 3)
        return 2;
    file = args[1];
    int rc = args[2][0] == 'f' ? forks() : args[2][0] == 'c' ? churns() : threads();
    if (!rc)
        puts("each call was done or told, and nothing was lost");
    return rc;
}
