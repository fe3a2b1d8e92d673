/*
 * forks_phx.c: checkpoints and objects of a store under forks and threads.
 *
 * forks_phx DIR fork: children of a program with checkpoints, of which each call is refused, whatever it does. churn: children of
 * one whose other threads are in calls. begin: one, while the first calls are made. threads: threads that come at once to one session, one reader and one object, and to their own. $FLAGS: of phx_init.
 */
#include "check.h"
#include "forks.h"
#include "tarn_objects.h"

#include <sched.h>
#include <stdint.h>
#include <string.h>

#define COUNT 60000
#define WORDS (sizeof(uint64_t) * COUNT)

static char tier[512], memory[512], store[512];
static struct phx_options options = {.size = sizeof options, .ranks = 1, .run = "f", .tier = tier, .memory = memory};
static struct phx_properties many = {.size = sizeof many, .versions = 3};
static uint64_t *field, step;
static struct phx_version last;
static struct phx_reader *reader;
static void *draft;
static const void *mapped;

static void fill(uint64_t *words, uint64_t of)
{
    for (uint64_t i = 0; i < COUNT; i++)
        words[i] = i * of;
}

static int holds(const uint64_t *words, uint64_t of)
{
    for (uint64_t i = 0; i < COUNT; i++)
        if (words[i] != i * of)
            return 0;
    return 1;
}

/* Begins, from nothing or from the newest version. */
static void begin(int wanted)
{
    void *created = NULL;
    CHECK(phx_init(&options), PHX_OK);
    CHECK(phx_create_obj("field", WORDS, sizeof(uint64_t), &many, &created), PHX_OK);
    CHECK(phx_register_obj("step", &step, sizeof step, sizeof step, NULL), PHX_OK);
    field = created;
    CHECK(phx_restart(NULL, NULL), wanted);
    if (failed)
        exit(1);
}

static void commit(void)
{
    step++;
    fill(field, step);
    CHECK(phx_checkpoint_commit(&last), PHX_OK);
    CHECK(phx_wait(&last, PHX_DURABLE, 0), PHX_OK);
}

/* All calls of a session are refused in a child. */
static int refused(void)
{
    void *at = NULL;
    uint64_t word = 0;
    size_t bytes = 0, count = 0;
    int due = 0;
    struct phx_version version = last;
    struct phx_stats stats = {.size = sizeof stats};
    CHECK(phx_init(&options), PHX_EUNSUPPORTED);
    CHECK(phx_create_obj("other", 8, 8, NULL, &at), PHX_EUNSUPPORTED);
    CHECK(phx_register_obj("word", &word, sizeof word, sizeof word, NULL), PHX_EUNSUPPORTED);
    CHECK(phx_get_obj("field", &at, &bytes), PHX_EUNSUPPORTED);
    CHECK(phx_resize_obj("field", 8, &at), PHX_EUNSUPPORTED);
    CHECK(phx_destroy_obj("field"), PHX_EUNSUPPORTED);
    CHECK(phx_checkpoint_commit(&version), PHX_EUNSUPPORTED);
    CHECK(phx_restart(NULL, &version), PHX_EUNSUPPORTED);
    CHECK(phx_versions(NULL, &count), PHX_EUNSUPPORTED);
    CHECK(phx_wait(&last, PHX_DURABLE, 0), PHX_EUNSUPPORTED);
    CHECK(phx_due(1, &due), PHX_EUNSUPPORTED);
    CHECK(phx_stats(&stats), PHX_EUNSUPPORTED);
    CHECK(phx_finalize(), PHX_EUNSUPPORTED);
    CHECK(strstr(phx_last_error(), "forked") != NULL, 1);
    return 0;
}

/* It has its own copies of the objects' content, and spoils them. */
static int spoils(void)
{
    CHECK(holds(field, step), 1);
    refused();
    memset(field, 0xff, WORDS);
    step = 99;
    return refused();
}

/* It ends as a program does, with its parent's objects still open. */
static int ends(void)
{
    exit(failed);
}

/* The program that it becomes has nothing of it. */
static int becomes(void)
{
    execlp("sh", "sh", "-c",
           "for f in /proc/$$/fd/*; do readlink $f; done | grep -E 'arena|phx|socket|event|userfault|obj' && exit 1; exit 0", (char *)NULL);
    return 1;
}

static void read_by(struct phx_reader *by, uint64_t of)
{
    const void *at = NULL;
    size_t bytes = 0, ranks = 0;
    struct phx_version_info info;
    CHECK(phx_reader_version(by, &info, NULL, &ranks), PHX_OK);
    CHECK(phx_map_obj(by, 0, "field", &at, &bytes, NULL), PHX_OK);
    CHECK(at && bytes == WORDS && holds(at, of), 1);
}

/* A version is read by its parent's reader, and by its own; to close either does nothing to its parent's. */
static int reads(void)
{
    struct phx_reader *own;
    read_by(reader, 1);
    CHECK(phx_close_version(reader), PHX_OK);
    CHECK(phx_close_version(reader), PHX_ENOTFOUND);
    CHECK(phx_open_version("f", tier, NULL, 0, &own), PHX_OK);
    if (!failed)
        read_by(own, step);
    CHECK(phx_close_version(own), PHX_OK);
    return 0;
}

/* A child cannot publish a version that its parent is filling, and giving it up does nothing to the parent's; it can publish
 * its own. */
static int objects(void)
{
    uint64_t number = 0;
    void *own = NULL;
    CHECK(tarn_object_publish(draft, NULL, &number), PHX_EUNSUPPORTED);
    CHECK(strstr(phx_last_error(), "forked") != NULL, 1);
    CHECK(tarn_object_abandon(draft), PHX_OK);
    CHECK(tarn_object_abandon(draft), PHX_ENOTFOUND);
    CHECK(holds(mapped, 7), 1);
    CHECK(tarn_object_unmap(mapped), PHX_OK);
    CHECK(tarn_object_unmap(mapped), PHX_ENOTFOUND);
    CHECK(tarn_object_put(store, "child", "x", 1, NULL, &number), PHX_OK);
    CHECK(tarn_object_create(store, "child", WORDS, &own), PHX_OK);
    fill(own, 3);
    CHECK(tarn_object_publish(own, NULL, &number), PHX_OK);
    CHECK(tarn_object_delete(store, "child", number), PHX_OK);
    return 0;
}

static int begins(void)
{
    begin(PHX_OK);
    commit();
    CHECK(phx_finalize(), PHX_OK);
    return 0;
}

static int forks(void)
{
    int (*const all[])(void) = {spoils, reads, objects, ends, becomes};
    uint64_t number = 0;
    static uint64_t words[COUNT];
    begin(PHX_ENOTFOUND);
    commit();
    CHECK(phx_open_version("f", tier, NULL, 0, &reader), PHX_OK);
    fill(words, 7);
    CHECK(tarn_object_put(store, "sevens", words, WORDS, NULL, NULL), PHX_OK);
    CHECK(tarn_object_map(store, "sevens", 0, 0, &mapped, NULL), PHX_OK);
    CHECK(tarn_object_create(store, "draft", WORDS, &draft), PHX_OK);
    fill(draft, 5);
    for (unsigned i = 0; i < sizeof all / sizeof *all && !failed; i++) {
        child("a child", all[i]);
        CHECK(holds(field, step), 1);
        commit();
        CHECK(holds(mapped, 7), 1);
        read_by(reader, 1);
    }
    CHECK(tarn_object_publish(draft, "fives", &number), PHX_OK);
    CHECK((int)number, 1);
    CHECK(tarn_object_unmap(mapped), PHX_OK);
    CHECK(phx_close_version(reader), PHX_OK);
    CHECK(phx_finalize(), PHX_OK);
    uint64_t at = step;
    step = 0;
    begin(PHX_OK);
    CHECK(step == at && holds(field, at), 1);
    CHECK(phx_finalize(), PHX_OK);
    /* One whose parent has no checkpoints begins its own. */
    child("a child that begins", begins);
    begin(PHX_OK);
    CHECK((int)(step - at), 1);
    CHECK(phx_finalize(), PHX_OK);
    return failed;
}

static int stop;

/* Calls until `stop` is set: a fork is in the middle of one. */
static void *commits(void *arg)
{
    (void)arg;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
        phx_checkpoint_commit(NULL);
    return NULL;
}

static void *looks(void *arg)
{
    struct phx_reader *own;
    const void *data;
    void *filled;
    (void)arg;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        if (phx_open_version("f", tier, NULL, 0, &own) == PHX_OK)
            phx_close_version(own);
        if (tarn_object_map(store, "sevens", 0, 0, &data, NULL) == PHX_OK)
            tarn_object_unmap(data);
        if (tarn_object_create(store, "draft", 4096, &filled) == PHX_OK)
            tarn_object_abandon(filled);
    }
    return NULL;
}

/* No call waits for one of its parent's, and each gets the same answer as in quiet. */
static int in_between(void)
{
    uint64_t number;
    const void *data;
    refused();
    CHECK(tarn_object_unmap(NULL), PHX_ENOTFOUND);
    CHECK(tarn_object_abandon(NULL), PHX_ENOTFOUND);
    CHECK(phx_close_version(NULL), PHX_ENOTFOUND);
    CHECK(tarn_object_map(store, "sevens", 0, 1, &data, NULL), PHX_OK);
    CHECK(tarn_object_unmap(data), PHX_OK);
    CHECK(tarn_object_put(store, "child", "x", 1, NULL, &number), PHX_OK);
    return 0;
}

static int churns(void)
{
    pthread_t threads[THREADS];
    static uint64_t words[COUNT];
    begin(PHX_ENOTFOUND);
    commit();
    fill(words, 7);
    CHECK(tarn_object_put(store, "sevens", words, WORDS, NULL, NULL), PHX_OK);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, i % 2 ? looks : commits, NULL);
    for (unsigned i = 0; i < ROUNDS && !failed; i++)
        child("in the middle of calls", in_between);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    commit();
    CHECK(phx_finalize(), PHX_OK);
    uint64_t at = step;
    begin(PHX_OK);
    CHECK(step == at && holds(field, at), 1);
    CHECK(phx_finalize(), PHX_OK);
    return failed;
}

static pthread_barrier_t ready;

static int maps(void)
{
    const void *data;
    CHECK(tarn_object_map(store, "x", 0, 0, &data, NULL), PHX_OK);
    CHECK(tarn_object_unmap(data), PHX_OK);
    return failed;
}

static void *maps_first(void *arg)
{
    (void)arg;
    pthread_barrier_wait(&ready);
    maps();
    return NULL;
}

/* Forks, one right after the other, in the middle of the program's very first calls. */
static int first(void)
{
    pthread_t threads[THREADS];
    pid_t forked[8];
    int status;
    CHECK(tarn_object_put(store, "x", "x", 1, NULL, NULL), PHX_OK);
    pthread_barrier_init(&ready, NULL, THREADS + 1);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, maps_first, NULL);
    pthread_barrier_wait(&ready);
    for (unsigned i = 0; i < sizeof forked / sizeof *forked; i++) {
        forked[i] = fork();
        if (forked[i] == 0) {
            alarm(20);
            _exit(maps());
        }
    }
    for (unsigned i = 0; i < sizeof forked / sizeof *forked; i++)
        CHECK(waitpid(forked[i], &status, 0) == forked[i] && status == 0, 1);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return failed;
}

#define DONE_OR(code) (rc == PHX_OK || rc == (code))

/* All at one session: each call is done, or gets the error that it is busy. */
static void *crowds(void *arg)
{
    char key[32];
    (void)arg;
    snprintf(key, sizeof key, "%lx", (unsigned long)pthread_self());
    for (unsigned i = 0; i < ROUNDS; i++) {
        void *at;
        int rc, due;
        size_t bytes;
        struct phx_stats stats = {.size = sizeof stats};
        rc = phx_create_obj(key, 8192, 8, NULL, &at);
        if (!DONE_OR(PHX_EBUSY))
            return "an object is made";
        if (rc == PHX_OK) {
            memset(at, 1, 8192);
            while ((rc = phx_resize_obj(key, 16384, &at)) == PHX_EBUSY)
                sched_yield();
            if (rc != PHX_OK || *(char *)at != 1)
                return "an object is made larger";
            while ((rc = phx_destroy_obj(key)) == PHX_EBUSY)
                sched_yield();
            if (rc != PHX_OK)
                return "an object is forgotten";
        }
        rc = phx_checkpoint_commit(NULL);
        if (!DONE_OR(PHX_EBUSY))
            return "a commit";
        rc = phx_get_obj("field", &at, &bytes);
        if (!DONE_OR(PHX_EBUSY) || (rc == PHX_OK && at != field))
            return "where an object is";
        rc = phx_stats(&stats);
        if (!DONE_OR(PHX_EBUSY))
            return "what was done";
        rc = phx_due(1, &due);
        if (!DONE_OR(PHX_EBUSY))
            return "whether it is time";
    }
    return NULL;
}

/* A thread that ends it while others are in calls gets an error, or does it; the others learn that it has ended. */
static void *finishes(void *arg)
{
    int *ended = arg, rc;
    while ((rc = phx_finalize()) == PHX_EBUSY)
        sched_yield();
    if (rc == PHX_OK)
        __atomic_fetch_add(ended, 1, __ATOMIC_RELAXED);
    return rc == PHX_OK || rc == PHX_EINIT ? NULL : "an end";
}

static void *shared_reader(void *arg)
{
    int *closed = arg, rc;
    const void *at;
    size_t bytes;
    for (unsigned i = 0; i < ROUNDS; i++)
        if (phx_map_obj(reader, 0, "field", &at, &bytes, NULL) != PHX_OK || !holds(at, step))
            return "what a version holds";
    struct phx_reader *own;
    if (phx_open_version("f", tier, NULL, 0, &own) != PHX_OK || phx_close_version(own) != PHX_OK)
        return "a reader of its own";
    static pthread_mutex_t meet = PTHREAD_MUTEX_INITIALIZER;
    static unsigned come;
    pthread_mutex_lock(&meet);
    come++;
    pthread_mutex_unlock(&meet);
    for (unsigned now = 0; now < THREADS; sched_yield()) {
        pthread_mutex_lock(&meet);
        now = come;
        pthread_mutex_unlock(&meet);
    }
    rc = phx_close_version(reader);
    if (rc == PHX_OK)
        __atomic_fetch_add(closed, 1, __ATOMIC_RELAXED);
    return DONE_OR(PHX_ENOTFOUND) ? NULL : "a reader that is closed";
}

/* One object that all publish: one does, once. */
static void *shared_draft(void *arg)
{
    int *published = arg, rc = tarn_object_publish(draft, NULL, NULL);
    if (rc == PHX_OK)
        __atomic_fetch_add(published, 1, __ATOMIC_RELAXED);
    return DONE_OR(PHX_ENOTFOUND) ? NULL : "an object that is published";
}

/* All at one key, each with its own memory. */
static void *same_key(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < ROUNDS / 4; i++) {
        void *own;
        const void *data;
        uint64_t number = 0;
        char out[8];
        size_t bytes = sizeof out;
        if (tarn_object_create(store, "k", sizeof out, &own) != PHX_OK)
            return "an object is begun";
        memset(own, 'k', sizeof out);
        if (tarn_object_publish(own, NULL, &number) != PHX_OK || number == 0)
            return "an object is published";
        if (tarn_object_get(store, "k", 0, out, &bytes) != PHX_OK || memcmp(out, "kkkkkkkk", 8) != 0)
            return "an object is got";
        if (tarn_object_map(store, "k", number, 1, &data, NULL) != PHX_OK || memcmp(data, out, 8) != 0)
            return "an object is mapped";
        if (tarn_object_unmap(data) != PHX_OK)
            return "an object is given up";
    }
    return NULL;
}

static int threads(void)
{
    int count = 0;
    size_t versions = 0;
    begin(PHX_ENOTFOUND);
    commit();
    all(crowds, NULL);
    commit();
    CHECK(phx_open_version("f", tier, NULL, 0, &reader), PHX_OK);
    all(shared_reader, &count);
    CHECK(count, 1);
    count = 0;
    all(finishes, &count);
    CHECK(count, 1);
    uint64_t at = step;
    begin(PHX_OK);
    CHECK(step == at && holds(field, at), 1);
    CHECK(phx_finalize(), PHX_OK);

    count = 0;
    CHECK(tarn_object_create(store, "draft", WORDS, &draft), PHX_OK);
    fill(draft, 5);
    all(shared_draft, &count);
    CHECK(count, 1);
    all(same_key, NULL);
    CHECK(tarn_object_versions(store, "k", NULL, &versions), PHX_OK);
    CHECK((int)versions, THREADS * (ROUNDS / 4));
    return failed;
}

int main(int count, char **args)
{
    if (count < 3)
        return 2;
    snprintf(tier, sizeof tier, "%s/tier", args[1]);
    snprintf(memory, sizeof memory, "%s/memory", args[1]);
    snprintf(store, sizeof store, "%s/store", args[1]);
    options.staging = PHX_DEFAULT;
    const char *flags = getenv("FLAGS");
    options.flags = flags ? (uint32_t)atoi(flags) : 0;
    int (*const modes[])(void) = {['b'] = first, ['f'] = forks, ['c'] = churns, ['t'] = threads};
    unsigned char mode = (unsigned char)args[2][0];
    if (mode > 't' || !modes[mode])
        return 2;
    int rc = modes[mode]();
    if (!rc)
        puts("each call was done or told, and nothing was lost");
    return rc;
}
