/*
 * inject_phx_calls.c: inject_phx_calls DIR: a run in DIR (DIR/tier, DIR/memory, DIR/store), from its newest version, that creates, resizes
 * and destroys objects between commits; of each version it says when it is on the tier, and when it is outside.
 */
#include <phx.h>

#include "inject.h"

#define COUNT 20000
#define SIZE(step) (COUNT * ((step) % 3 + 1))
#define TIMEOUT (60 * (uint64_t)1000000000)

static char tier[512], memory[512], store[512];
static uint64_t *field, *more, step;
static int is_begun;

static int begin(void)
{
    struct phx_options options = {
        .size = sizeof options, .ranks = 1, .run = "i", .tier = tier, .memory = memory, .external = store, .flush_every = 1};
    if (is_begun)
        phx_finalize();
    is_begun = 0;
    int code = phx_init(&options);
    is_begun = code == PHX_OK;
    return code;
}

/* The objects of a step's version: `more` is in every second one. */
static int with_objects(uint64_t of)
{
    void *at = NULL;
    int code = phx_create_obj("field", SIZE(of) * sizeof *field, sizeof *field, NULL, &at);
    field = at;
    if (code == PHX_OK)
        code = phx_register_obj("step", &step, sizeof step, sizeof step, NULL);
    if (code == PHX_OK && of % 2) {
        code = phx_create_obj("more", COUNT * sizeof *more, sizeof *more, NULL, &at);
        more = at;
    }
    return code;
}

/* From the newest version, with the objects that it has; a version with others is refused. */
static int restarted(void)
{
    int code = PHX_EINVALID;
    for (uint64_t of = 0; of < 6 && code == PHX_EINVALID; of++) {
        if ((code = begin()) != PHX_OK || (code = with_objects(of)) != PHX_OK)
            return code;
        code = phx_restart(NULL, NULL);
        if (code == PHX_OK && step % 6 != of)
            code = PHX_EINVALID;
    }
    return code == PHX_ENOTFOUND ? PHX_OK : code;
}

static void fill(void)
{
    for (uint64_t i = 0; i < SIZE(step); i++)
        field[i] = i + step;
    for (uint64_t i = 0; step % 2 && i < COUNT; i++)
        more[i] = i * step;
}

static int is_whole(void)
{
    for (uint64_t i = 0; i < SIZE(step); i++)
        if (field[i] != (step ? i + step : 0))
            return 0;
    for (uint64_t i = 0; step % 2 && i < COUNT; i++)
        if (more[i] != i * step)
            return 0;
    return 1;
}

/* The next step's objects, of which memory that is there moves. */
static int next(void)
{
    void *at = field;
    uint64_t before = field[COUNT - 1];
    int code = phx_resize_obj("field", SIZE(step + 1) * sizeof *field, &at);
    if (code != PHX_OK)
        return code;
    field = at;
    if (field[COUNT - 1] != before)
        return -1;
    if ((step + 1) % 2) {
        code = phx_create_obj("more", COUNT * sizeof *more, sizeof *more, NULL, &at);
        more = at;
        return code == PHX_EEXISTS ? PHX_OK : code;
    }
    code = step ? phx_destroy_obj("more") : PHX_OK;
    return code == PHX_ENOTFOUND ? PHX_OK : code;
}

/* A commit, and its version; a version that could not be kept in its place is committed again. */
static int kept(int level)
{
    struct phx_version version;
    int code = phx_checkpoint_commit(&version);
    return code == PHX_OK ? phx_wait(&version, level, TIMEOUT) : code;
}

/* The version that another program sees. */
static int is_seen(void)
{
    struct phx_reader *reader;
    const void *at;
    size_t bytes, ranks = 0;
    struct phx_version_info info;
    int code = phx_open_version("i", tier, NULL, 0, &reader);
    if (code != PHX_OK)
        return code;
    code = phx_reader_version(reader, &info, NULL, &ranks);
    if (code == PHX_OK)
        code = phx_map_obj(reader, 0, "field", &at, &bytes, NULL);
    if (code == PHX_OK && (bytes != SIZE(step) * sizeof *field || memcmp(at, field, bytes) != 0))
        code = -1;
    int closed = phx_close_version(reader);
    return code ? code : closed;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    uint64_t last = strtoull(arguments[2], NULL, 10);
    snprintf(tier, sizeof tier, "%s/tier", arguments[1]);
    snprintf(memory, sizeof memory, "%s/memory", arguments[1]);
    snprintf(store, sizeof store, "%s/store", arguments[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    STEP("restart", restarted(), 0);
    HOLDS(is_whole());
    printf("from %d\n", (int)step);
    while (step < last) {
        size_t versions = 0;
        int due;
        struct phx_stats stats = {.size = sizeof stats};
        STEP("objects", next(), 0);
        step++;
        fill();
        STEP("commit", kept(PHX_DURABLE), 0);
        printf("kept %d\n", (int)step);
        STEP("reader", is_seen(), 0);
        STEP("versions", phx_versions(NULL, &versions), 0);
        STEP("due", phx_due(1, &due), 0);
        STEP("stats", phx_stats(&stats), 0);
        STEP("flush", kept(PHX_FLUSHED), 0);
    }
    if (phx_finalize() != PHX_OK) {
        /* It has ended, and its versions are there. */
        is_begun = 0;
        fprintf(stderr, "finalize: %s\n", WHY);
        uint64_t at = step;
        STEP("restart", restarted(), 0);
        HOLDS(step == at && is_whole());
        STEP("finalize", phx_finalize(), 0);
    }
    return printf("ended at %d\n", (int)step) < 0;
}
