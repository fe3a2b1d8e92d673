/*
 * inject_objects.c: inject_objects STORE make: objects a and b. change: every call of tarn_objects.h that writes (but
 * tarn_object_fetch: inject_tasks.c). look OUTPUT: checks the state that an earlier `change` that said OUTPUT must have left; then
 * all of it again.
 */
#include <tarn_objects.h>

#include "inject.h"

#define BYTES 200000

static const char *store;
static unsigned char bytes[BYTES], found[BYTES];

static unsigned char *of(unsigned seed)
{
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * seed + (i >> 8));
    return bytes;
}

static int put(const char *key, unsigned seed)
{
    return tarn_object_put(store, key, of(seed), BYTES, "put", NULL);
}

/* Filled in place; one that could not be published is begun again, as the manual page says. */
static int publish(const char *key, unsigned seed)
{
    void *memory;
    int code = tarn_object_create(store, key, BYTES, &memory);
    if (code != PHX_OK)
        return code;
    memcpy(memory, of(seed), BYTES);
    return tarn_object_publish(memory, "filled", NULL);
}

static int abandon(const char *key)
{
    void *memory;
    int code = tarn_object_create(store, key, BYTES, &memory);
    return code == PHX_OK ? tarn_object_abandon(memory) : code;
}

/* Whether a version is this one, whole; PHX_ENOTFOUND if there is none. */
static int holds(const char *key, uint64_t number, unsigned seed)
{
    size_t count = sizeof found;
    const void *mapped;
    int code = tarn_object_get(store, key, number, found, &count);
    if (code != PHX_OK)
        return code;
    if (count != BYTES || memcmp(found, of(seed), BYTES) != 0)
        return -1;
    code = tarn_object_map(store, key, number, 1, &mapped, NULL);
    return code == PHX_OK ? tarn_object_unmap(mapped) : code;
}

static int change(void)
{
    STEP("put", put("a", 4), 0);
    STEP("publish", publish("c", 5), 0);
    STEP("abandon", abandon("e"), 0);
    GONE("delete one", tarn_object_delete(store, "b", 1), PHX_ENOTFOUND);
    GONE("delete all", tarn_object_delete(store, "b", 0), PHX_ENOTFOUND);
    STEP("deep", put("d/e/f", 6), 0);
    return puts("changed") < 0;
}

/* After the step, before it, or in between. */
static int is(const char *step, int before, int after)
{
    return was_done(step) ? after : !was_begun(step) ? before : before || after;
}

static int left(void)
{
    HOLDS(holds("a", 1, 1) == PHX_OK);
    HOLDS(is("put", holds("a", 0, 1) == PHX_OK, holds("a", 0, 4) == PHX_OK));
    HOLDS(is("publish", holds("c", 0, 5) == PHX_ENOTFOUND, holds("c", 0, 5) == PHX_OK));
    HOLDS(holds("e", 0, 0) == PHX_ENOTFOUND);
    HOLDS(is("delete one", holds("b", 1, 2) == PHX_OK, holds("b", 1, 2) == PHX_ENOTFOUND));
    HOLDS(is("delete all", holds("b", 0, 3) == PHX_OK, holds("b", 0, 3) == PHX_ENOTFOUND));
    HOLDS(is("deep", holds("d/e/f", 0, 6) == PHX_ENOTFOUND, holds("d/e/f", 0, 6) == PHX_OK));
    struct tarn_object_info all[16];
    size_t count = 16, versions = 0;
    HOLDS(tarn_object_versions(store, "a", NULL, &versions) == PHX_OK && versions >= 1);
    HOLDS(tarn_object_list(store, all, &count) == PHX_OK);
    for (size_t i = 0; i < count; i++)
        HOLDS(!all[i].damaged && all[i].bytes == BYTES);
    return 0;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    store = arguments[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(arguments[2], "make") == 0)
        return put("a", 1) || put("b", 2) || put("b", 3) || puts("made") < 0;
    if (strcmp(arguments[2], "change") == 0)
        return change();
    output = count > 3 ? arguments[3] : "";
    again = 1;
    if (left() || change())
        return 1;
    output = "done put\ndone publish\ndone delete one\ndone delete all\ndone deep\n";
    return left() || puts("whole") < 0;
}
