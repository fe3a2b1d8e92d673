/*
 * inject_tasks.c: requests to a tarnd that has the dataspaces fast, of DIR/fast, and those that are made here, in DIR/old and so
 * on, and the peer b with the object k in the store that is in its fast.
 *
 * inject_tasks DIR make: dataspaces, and files in them. change: each call of tarn.h that has something written. look OUTPUT: checks
 * the state that an earlier `change` that said OUTPUT must have left; then all of it again.
 */
#include <tarn.h>
#define WHY tarn_last_error()
#include "inject.h"
#include "tarn_objects.h"

#include <sys/mman.h>
#include <unistd.h>

#define BYTES ((size_t)300000)
#define TIMEOUT (60 * (int64_t)1000000000)
#define JOB 7

static const char *dir;
static struct tarn_connection *tarn;
static unsigned char bytes[BYTES], found[BYTES];

static char *path(const char *name)
{
    static char paths[8][512];
    static int next;
    char *at = paths[next++ % 8];
    snprintf(at, sizeof *paths, "%s/%s", dir, name);
    return at;
}

static unsigned char *of(unsigned seed)
{
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * seed + (i >> 8));
    return bytes;
}

static int file(const char *name, unsigned seed)
{
    FILE *to = fopen(path(name), "wb");
    return !to || fwrite(of(seed), BYTES, 1, to) != 1 || fclose(to) != 0;
}

/* 1 if a file is this one, whole; 0 if there is none; -1 if it is another. */
static int holds(const char *name, unsigned seed)
{
    FILE *from = fopen(path(name), "rb");
    if (!from)
        return 0;
    size_t count = fread(found, 1, BYTES, from);
    int more = fgetc(from);
    fclose(from);
    return count == BYTES && more == EOF && memcmp(found, of(seed), BYTES) == 0 ? 1 : -1;
}

static struct tarn_place in(const char *name)
{
    return (struct tarn_place){.kind = TARN_SPACE, .space = "fast", .path = name};
}

static struct tarn_place out(const char *name)
{
    return (struct tarn_place){.kind = TARN_EXTERNAL, .path = path(name)};
}

/* A task, from its submission to its end. */
static int carried(int kind, uint32_t flags, struct tarn_place from, struct tarn_place to)
{
    struct tarn_task task;
    struct tarn_outcome outcome;
    uint64_t id;
    size_t ended;
    tarn_task_init(&task);
    task.kind = kind;
    task.flags = flags;
    task.from = from;
    task.to = to;
    int code = tarn_submit(tarn, &task, 1, &id, NULL);
    if (code == TARN_OK)
        code = tarn_wait(tarn, &id, 1, 0, TIMEOUT, &outcome, &ended);
    if (code == TARN_OK && outcome.code != TARN_OK)
        fprintf(stderr, "a task: %s\n", outcome.text);
    return code == TARN_OK ? outcome.code : code;
}

/* Memory of this program, copied into the dataspace. */
static int from_memory(void)
{
    uint32_t region;
    int fd = memfd_create("region", MFD_CLOEXEC);
    if (fd < 0 || write(fd, of(3), BYTES) != (ssize_t)BYTES)
        return -1;
    int code = tarn_memory_register(tarn, fd, BYTES, &region);
    close(fd);
    if (code != TARN_OK)
        return code;
    struct tarn_place from = {.kind = TARN_MEMORY, .region = region, .length = BYTES};
    code = carried(TARN_COPY, TARN_REPLACE, from, in("from-memory"));
    int given_back = tarn_memory_unregister(tarn, region);
    return code ? code : given_back;
}

/* A durable task that is stopped, resumed, and cancelled. */
static int held(void)
{
    struct tarn_task task;
    struct tarn_outcome outcome;
    uint64_t id = 0;
    size_t ended;
    int32_t each = 0;
    tarn_task_init(&task);
    task.kind = TARN_COPY;
    task.flags = TARN_DURABLE;
    task.from = out("kept");
    task.to = in("cancelled");
    int code = tarn_pause_all(tarn, 1);
    if (code == TARN_OK)
        code = tarn_submit(tarn, &task, 1, &id, NULL);
    if (code == TARN_OK)
        printf("held %llu\n", (unsigned long long)id);
    if (code == TARN_OK && !(code = tarn_pause(tarn, &id, 1, &each)))
        code = each;
    if (code == TARN_OK && !(code = tarn_resume(tarn, &id, 1, &each)))
        code = each;
    if (id) {
        int cancelled = tarn_cancel(tarn, &id, 1, &each);
        code = code ? code : cancelled ? cancelled : each;
    }
    int resumed = tarn_pause_all(tarn, 0);
    code = code ? code : resumed;
    if (code == TARN_OK)
        code = tarn_wait(tarn, &id, 1, 0, TIMEOUT, &outcome, &ended);
    return code ? code : outcome.code == TARN_ECANCELLED ? TARN_OK : -1;
}

static int job(void)
{
    const char *const spaces[] = {"fast"};
    const uint64_t quotas[] = {1 << 20};
    int code = tarn_job_register(tarn, JOB, geteuid(), spaces, quotas, 1);
    if (code == TARN_OK)
        code = tarn_job_add_process(tarn, JOB, getpid());
    if (code == TARN_OK)
        code = tarn_job_remove_process(tarn, JOB, getpid());
    if (code == TARN_OK)
        code = tarn_job_pause(tarn, JOB, 1);
    if (code == TARN_OK)
        code = tarn_job_pause(tarn, JOB, 0);
    return code;
}

static int change(void)
{
    struct tarn_place nowhere = {0};
    STEP("make", tarn_space_make(tarn, "new", path("new"), 1 << 20, 0), TARN_EEXISTS);
    STEP("change", tarn_space_change(tarn, "old", path("old"), 3 << 20, 0), 0);
    STEP("remove", tarn_space_remove(tarn, "gone"), TARN_ENOTFOUND);
    STEP("job", job(), 0);
    STEP("no job", tarn_job_unregister(tarn, JOB), TARN_ENOTFOUND);
    STEP("memory", from_memory(), 0);
    STEP("in", carried(TARN_COPY, TARN_DURABLE | TARN_REPLACE, out("kept"), in("copied")), 0);
    STEP("out", carried(TARN_COPY, TARN_REPLACE, in("kept"), out("copied")), 0);
    STEP("move", carried(TARN_MOVE, TARN_DURABLE | TARN_REPLACE, in("moves"), out("moved")), TARN_ENOTFOUND);
    STEP("take", carried(TARN_REMOVE, TARN_DURABLE, in("taken"), nowhere), TARN_ENOTFOUND);
    STEP("hold", held(), 0);
    STEP("fetch", tarn_object_fetch(path("fast/store"), "k", 0, "b", NULL), 0);
    return puts("changed") < 0;
}

static struct tarn_space *space(const char *name)
{
    static struct tarn_space all[8];
    size_t count = 8;
    if (tarn_spaces(tarn, all, &count) == TARN_OK)
        for (size_t i = 0; i < count; i++)
            if (strcmp(all[i].name, name) == 0)
                return &all[i];
    return NULL;
}

static int either(const char *step, int before, int after)
{
    return was_done(step) ? after : !was_begun(step) ? before : before || after;
}

static int left(void)
{
    struct tarn_space *old = space("old");
    size_t count = BYTES;
    HOLDS(either("make", !space("new"), !!space("new")));
    HOLDS(either("remove", !!space("gone"), !space("gone")));
    HOLDS(old && either("change", old->capacity == 2 << 20, old->capacity == 3 << 20));
    HOLDS(holds("kept", 1) == 1 && holds("fast/kept", 1) == 1);
    HOLDS(either("memory", holds("fast/from-memory", 3) == 0, holds("fast/from-memory", 3) == 1));
    HOLDS(either("in", holds("fast/copied", 1) == 0, holds("fast/copied", 1) == 1));
    HOLDS(either("out", holds("copied", 1) == 0, holds("copied", 1) == 1));
    HOLDS(holds("moved", 2) >= 0 && holds("fast/moves", 2) >= 0);
    HOLDS(either("move", holds("fast/moves", 2) == 1, holds("moved", 2) == 1));
    HOLDS(!was_done("move") || holds("fast/moves", 2) == 0);
    HOLDS(either("take", holds("fast/taken", 4) == 1, holds("fast/taken", 4) == 0));
    HOLDS(holds("fast/cancelled", 1) == 0 || (!was_done("hold") && holds("fast/cancelled", 1) == 1));
    int code = tarn_object_get(path("fast/store"), "k", 0, found, &count);
    HOLDS(code == PHX_OK || (code == PHX_ENOTFOUND && !was_done("fetch")));
    HOLDS(code != PHX_OK || (count == 5 && memcmp(found, "there", 5) == 0));
    return 0;
}

/* Durable tasks that an earlier tarnd has left end; it may have had the order to start none, and one was paused. */
static int ended(void)
{
    struct tarn_stats stats;
    for (const char *at = output; (at = strstr(at, "held ")); at++) {
        uint64_t id = strtoull(at + 5, NULL, 10);
        HOLDS(tarn_cancel(tarn, &id, 1, NULL) == TARN_OK);
    }
    STEP("go on", tarn_pause_all(tarn, 0), 0);
    do {
        usleep(1000);
        HOLDS(tarn_stats(tarn, &stats) == TARN_OK);
    } while (stats.waiting + stats.queued + stats.running > 0);
    return 0;
}

static int make(void)
{
    STEP("old", tarn_space_make(tarn, "old", path("old"), 2 << 20, 0), 0);
    STEP("gone", tarn_space_make(tarn, "gone", path("gone"), 2 << 20, 0), 0);
    return file("kept", 1) || file("fast/kept", 1) || file("fast/moves", 2) || file("fast/taken", 4) || puts("made") < 0;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    dir = arguments[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    STEP("connect", tarn_connect(NULL, &tarn), 0);
    int code;
    if (strcmp(arguments[2], "make") == 0) {
        code = make();
    } else if (strcmp(arguments[2], "change") == 0) {
        code = change();
    } else {
        output = count > 3 ? arguments[3] : "";
        again = 1;
        code = ended() || left() || change();
        output = "done make\ndone change\ndone remove\ndone memory\ndone in\ndone out\ndone move\ndone take\ndone fetch\n";
        code = code || left() || puts("whole") < 0;
    }
    tarn_close(tarn);
    return code;
}
