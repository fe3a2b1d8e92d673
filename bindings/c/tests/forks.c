/*
 * forks.c: direct access under forks and threads.
 *
 * forks FOLDER fork: children of a program with requests under way. forks FOLDER threads: one queue pair and many, at once.
 */
#include "dsa.h"
#define WHY tarn_last_error()
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define ENTRIES 64
#define THREADS 4
#define ROUNDS 200
#define KIB ((uint64_t)1024)
#define MIB (KIB * KIB)

struct fixture {
    const char *path;
    struct dsa_partition *partition;
    struct dsa_queue *queue;
    uint32_t memory, region;
    unsigned char bytes[16384];
};

static struct fixture fixture;

/* Runs a function in a child; its result says that it failed. */
static void child(const char *what, int (*run)(void))
{
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        int rc = run();
        fflush(stdout);
        _exit(rc || failed);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        printf("%s: the child ended with %#x\n", what, (unsigned)status);
        failed = 1;
    }
}

static int unit(struct fixture *of, const char *path, uint32_t size)
{
    of->path = path;
    CHECK(dsa_create_units(path, MIB, size, NULL, 0), TARN_OK);
    CHECK(dsa_open(path, 0, &of->partition), TARN_OK);
    CHECK(dsa_queue_create(ENTRIES, 0, DSA_VOLATILE, &of->queue), TARN_OK);
    CHECK(dsa_register_partition(of->queue, of->partition, 0, MIB, 0, &of->region), TARN_OK);
    CHECK(dsa_register_memory(of->queue, of->bytes, sizeof of->bytes, 0, &of->memory), TARN_OK);
    return failed;
}

static void prepare(struct fixture *of, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        dsa_prep_write(dsa_get_sqe(of->queue), of->region, i * 4096, of->memory, of->bytes, 4096);
}

static unsigned reaped(struct dsa_queue *queue)
{
    unsigned count = 0;
    const struct dsa_cqe *cqe;
    while ((cqe = dsa_peek_cqe(queue))) {
        count += cqe->code == TARN_OK;
        dsa_cq_advance(queue, 1);
    }
    return count;
}

/* A child's use of its parent's objects: it is refused, and gives them back without harm. */
static int uses(void)
{
    uint32_t region;
    uint64_t now;
    prepare(&fixture, 1);
    CHECK((int)dsa_submit(fixture.queue), 0);
    CHECK(dsa_wait(fixture.queue, 1, 1000000), TARN_EUNSUPPORTED);
    CHECK(dsa_fd(fixture.queue), -1);
    CHECK(dsa_unregister(fixture.queue, fixture.memory), TARN_EUNSUPPORTED);
    CHECK(dsa_register_memory(fixture.queue, fixture.bytes, 64, 0, &region), TARN_EUNSUPPORTED);
    CHECK(dsa_register_partition(fixture.queue, fixture.partition, 0, 4096, 0, &region), TARN_EUNSUPPORTED);
    /* The open file is its parent's too, and so are its locks. */
    CHECK(dsa_lock(fixture.partition, DSA_SHARED), TARN_EUNSUPPORTED);
    CHECK(dsa_lock(fixture.partition, DSA_UNLOCKED), TARN_OK);
    CHECK(dsa_grow(fixture.partition, 2 * MIB, &now), TARN_EUNSUPPORTED);
    CHECK(dsa_size(fixture.partition, &now), TARN_OK);
    CHECK((int)(now / MIB), 1);
    CHECK(dsa_queue_destroy(fixture.queue), TARN_OK);
    CHECK(dsa_queue_destroy(fixture.queue), TARN_EINVALID);
    CHECK(dsa_close(fixture.partition), TARN_OK);
    CHECK(dsa_close(fixture.partition), TARN_EINVALID);
    return 0;
}

/* Objects that it opens itself are its own. */
static int opens(void)
{
    static struct fixture own;
    CHECK(dsa_open(fixture.path, 0, &own.partition), TARN_OK);
    CHECK(dsa_queue_create(ENTRIES, 0, DSA_VOLATILE, &own.queue), TARN_OK);
    CHECK(dsa_register_partition(own.queue, own.partition, 0, MIB, 0, &own.region), TARN_OK);
    CHECK(dsa_register_memory(own.queue, own.bytes, sizeof own.bytes, 0, &own.memory), TARN_OK);
    CHECK(dsa_lock(own.partition, DSA_SHARED), TARN_EBUSY);
    prepare(&own, 8);
    CHECK(dsa_wait(own.queue, 8, 60000000000), TARN_OK);
    CHECK((int)reaped(own.queue), 8);
    CHECK(dsa_queue_destroy(own.queue), TARN_OK);
    CHECK(dsa_close(own.partition), TARN_OK);
    return 0;
}

/* The program that it becomes has nothing of it. */
static int becomes(void)
{
    execlp("sh", "sh", "-c", "for f in /proc/$$/fd/*; do readlink $f; done | grep -E 'field|eventfd|eventpoll|io_uring' && exit 1; exit 0",
           (char *)NULL);
    return 1;
}

/* It ends as a program does, with its parent's objects still open. */
static int ends(void)
{
    exit(0);
}

static int forks(const char *path)
{
    if (unit(&fixture, path, 4096))
        return 1;
    CHECK(dsa_lock(fixture.partition, DSA_ALONE), TARN_OK);
    CHECK(dsa_fd(fixture.queue) < 0, 0);
    int (*const all[])(void) = {uses, opens, becomes, ends};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        prepare(&fixture, 16);
        CHECK((int)dsa_submit(fixture.queue), 16);
        child("a child", all[i]);
        CHECK(dsa_wait(fixture.queue, 16, 60000000000), TARN_OK);
        CHECK((int)reaped(fixture.queue), 16);
    }
    CHECK(dsa_queue_destroy(fixture.queue), TARN_OK);
    CHECK(dsa_close(fixture.partition), TARN_OK);
    if (!failed)
        printf("children are told, and their parents' go on\n");
    return failed;
}

/* Opens and closes until `stop` is set: a fork is in the middle of that. */
static int stop;

static void *churn(void *path)
{
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        struct dsa_partition *partition;
        struct dsa_queue *queue;
        if (dsa_open(path, 0, &partition) == TARN_OK)
            dsa_close(partition);
        if (dsa_queue_create(4, 0, DSA_VOLATILE, &queue) == TARN_OK)
            dsa_queue_destroy(queue);
    }
    return NULL;
}

/* All calls that look for something among what was given. */
static int looks(void)
{
    struct dsa_partition *partition;
    CHECK(dsa_close(NULL), TARN_EINVALID);
    CHECK(dsa_queue_destroy(NULL), TARN_EINVALID);
    CHECK(dsa_open(fixture.path, 0, &partition), TARN_OK);
    CHECK(dsa_close(partition), TARN_OK);
    return 0;
}

static int churns(const char *path)
{
    pthread_t threads[THREADS];
    fixture.path = path;
    CHECK(dsa_create(path, MIB, NULL, 0), TARN_OK);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, churn, (void *)path);
    for (unsigned i = 0; i < ROUNDS; i++)
        child("in the middle of calls", looks);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (!failed)
        printf("no child waits for a call of its parent's\n");
    return failed;
}

/* Submits and ends; its requests are still under way. */
static void *leaves(void *arg)
{
    struct fixture *of = arg;
    prepare(of, 16);
    return (void *)(uintptr_t)dsa_submit(of->queue);
}

/* All at one queue pair, which is one thread's: each call is done, or gives a code. */
static void *crowds(void *arg)
{
    struct fixture *of = arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint32_t region;
        uint64_t size;
        int rc = dsa_register_memory(of->queue, of->bytes, 64, DSA_REGION_READ_ONLY, &region);
        if (rc == TARN_OK)
            while ((rc = dsa_unregister(of->queue, region)) == TARN_EBUSY)
                sched_yield();
        if (rc != TARN_OK && rc != TARN_EBUSY)
            return "a region";
        dsa_submit(of->queue);
        rc = dsa_wait(of->queue, 0, 1000);
        if (rc != TARN_OK && rc != TARN_EBUSY)
            return "a wait";
        if (dsa_size(of->partition, &size) != TARN_OK)
            return "a size";
    }
    return NULL;
}

/* A queue pair and an open partition each. */
static void *alone(void *arg)
{
    struct fixture *of = arg;
    for (unsigned i = 0; i < ROUNDS / 10; i++) {
        prepare(of, 8);
        if (dsa_wait(of->queue, 8, 60000000000) != TARN_OK || reaped(of->queue) != 8)
            return "eight writes";
    }
    return NULL;
}

/* Waits for an event that never comes, until it is over. */
static void *waits(void *arg)
{
    struct fixture *of = arg;
    int rc = dsa_wait(of->queue, 16, 60000000000);
    return rc == TARN_OK || rc == TARN_EBUSY || rc == TARN_EINVALID ? NULL : "a wait";
}

static void all(void *(*run)(void *), struct fixture *of, size_t each)
{
    pthread_t threads[THREADS];
    void *why;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, of + i * each);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &why);
        if (why) {
            printf("%s: %s\n", (const char *)why, WHY);
            failed = 1;
        }
    }
}

static int threads(const char *path)
{
    static struct fixture fixtures[THREADS];
    char names[THREADS][272];
    pthread_t thread;
    void *begun;
    if (unit(&fixture, path, 4096))
        return 1;
    /* A thread that ends leaves its requests to the next holder of the queue pair. */
    pthread_create(&thread, NULL, leaves, &fixture);
    pthread_join(thread, &begun);
    CHECK((int)(uintptr_t)begun, 16);
    CHECK(dsa_wait(fixture.queue, 16, 60000000000), TARN_OK);
    CHECK((int)reaped(fixture.queue), 16);

    all(crowds, &fixture, 0);
    /* It can be used as before. */
    prepare(&fixture, 16);
    CHECK(dsa_wait(fixture.queue, 16, 60000000000), TARN_OK);
    CHECK((int)reaped(fixture.queue), 16);

    /* A thread that gives it back while another waits gets an error, or does it. */
    prepare(&fixture, 16);
    pthread_create(&thread, NULL, waits, &fixture);
    int rc;
    while ((rc = dsa_queue_destroy(fixture.queue)) == TARN_EBUSY)
        sched_yield();
    CHECK(rc, TARN_OK);
    pthread_join(thread, &begun);
    CHECK(begun != NULL, 0);
    CHECK(dsa_close(fixture.partition), TARN_OK);

    for (unsigned i = 0; i < THREADS; i++) {
        snprintf(names[i], sizeof names[i], "%s%u", path, i);
        unit(&fixtures[i], names[i], i % 2 ? 4096 : 0);
    }
    all(alone, fixtures, 1);
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK(dsa_queue_destroy(fixtures[i].queue), TARN_OK);
        CHECK(dsa_close(fixtures[i].partition), TARN_OK);
    }
    if (!failed)
        printf("each call was done or told\n");
    return failed;
}

int main(int count, char **args)
{
    char path[256];
    if (count != 3)
        return 2;
    snprintf(path, sizeof path, "%s/field", args[1]);
    switch (args[2][0]) {
    case 'f':
        return forks(path);
    case 'c':
        return churns(path);
    default:
        return threads(path);
    }
}
