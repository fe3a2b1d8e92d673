/*
 * objects.c: a program with objects, and its wrong calls on purpose.
 *
 * objects STORE put KEY BYTES: fills a new version in place; prints its number. objects STORE sum KEY: maps the newest, verified;
 * prints number, size, its text, and the sum of its bytes. objects STORE misuse: every wrong call gives its code.
 */
#include "check.h"
#include "tarn_objects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int put(const char *store, const char *key, size_t bytes)
{
    void *memory;
    uint64_t number = 0;
    CHECK(tarn_object_create(store, key, bytes, &memory), PHX_OK);
    if (failed)
        return 1;
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)memory)[i] = (unsigned char)(i * 7);
    CHECK(tarn_object_publish(memory, "sevens", &number), PHX_OK);
    printf("%s %llu\n", key, (unsigned long long)number);
    return failed;
}

static int sum(const char *store, const char *key)
{
    const void *data;
    struct tarn_object_info info;
    unsigned long long all = 0;
    CHECK(tarn_object_map(store, key, 0, 1, &data, &info), PHX_OK);
    if (failed)
        return 1;
    for (size_t i = 0; i < info.bytes; i++)
        all += ((const unsigned char *)data)[i];
    printf("%s %llu %llu %s %llu\n", info.key, (unsigned long long)info.number, (unsigned long long)info.bytes, info.about, all);
    CHECK(tarn_object_unmap(data), PHX_OK);
    return failed;
}

static int misuse(const char *store)
{
    char out[16] = "", long_text[300];
    const char *bad_keys[] = {"", "/a", "a//b", "../a", "a/1.obj", ".a", "\xff"};
    const void *data = NULL, *other = NULL;
    void *memory = NULL, *more = NULL;
    uint64_t number = 0;
    size_t bytes = sizeof out, count = 1;
    struct tarn_object_info info, all[4];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;

    /* $TARN_OBJECTS names none. */
    CHECK(tarn_object_put(NULL, "a", "x", 1, NULL, NULL), PHX_EINVALID);
    CHECK(tarn_object_put("/no/such/store", "a", "x", 1, NULL, NULL), PHX_ENOTFOUND);
    CHECK(tarn_object_put(store, NULL, "x", 1, NULL, NULL), PHX_EINVALID);
    for (size_t i = 0; i < sizeof bad_keys / sizeof *bad_keys; i++)
        CHECK(tarn_object_put(store, bad_keys[i], "x", 1, NULL, NULL), PHX_EINVALID);
    CHECK(tarn_object_put(store, long_text, "x", 1, NULL, NULL), PHX_EINVALID);
    CHECK(tarn_object_put(store, "a", "x", 1, long_text, NULL), PHX_EINVALID);
    CHECK(tarn_object_put(store, "a", NULL, 1, NULL, NULL), PHX_EINVALID);
    CHECK(tarn_object_put(store, "a", "x", SIZE_MAX, NULL, NULL), PHX_EINVALID);
    CHECK(tarn_object_put(store, "a", NULL, 0, NULL, &number), PHX_OK);
    CHECK(tarn_object_put(store, "a", "hello", 5, "a greeting", &number), PHX_OK);
    CHECK(number == 2, 1);

    CHECK(tarn_object_get(store, "a", 0, out, NULL), PHX_EINVALID);
    CHECK(tarn_object_get(store, "a", 0, NULL, &bytes), PHX_EINVALID);
    bytes = 4;
    CHECK(tarn_object_get(store, "a", 0, out, &bytes), PHX_EINVALID);
    CHECK(bytes == 5, 1);
    CHECK(tarn_object_get(store, "a", 0, out, &bytes), PHX_OK);
    CHECK(memcmp(out, "hello", 6), 0);
    CHECK(tarn_object_get(store, "a", 1, NULL, &bytes), PHX_OK);
    CHECK(bytes == 0, 1);
    bytes = sizeof out;
    CHECK(tarn_object_get(store, "a", 9, out, &bytes), PHX_ENOTFOUND);
    CHECK(tarn_object_get(store, "b", 0, out, &bytes), PHX_ENOTFOUND);

    CHECK(tarn_object_map(store, "a", 0, 0, NULL, NULL), PHX_EINVALID);
    CHECK(tarn_object_map(store, "a", 3, 0, &data, NULL), PHX_ENOTFOUND);
    CHECK(tarn_object_map(store, "a", 0, 0, &data, &info), PHX_OK);
    CHECK(info.number == 2 && info.bytes == 5 && !strcmp(info.about, "a greeting"), 1);
    CHECK(tarn_object_map(store, "a", 1, 1, &other, NULL), PHX_OK);
    CHECK(tarn_object_unmap(NULL), PHX_ENOTFOUND);
    CHECK(tarn_object_unmap((const char *)data + 1), PHX_ENOTFOUND);
    CHECK(tarn_object_delete(store, "a", 9), PHX_ENOTFOUND);
    CHECK(tarn_object_delete(store, "a", 0), PHX_OK);
    CHECK(tarn_object_delete(store, "a", 0), PHX_ENOTFOUND);
    CHECK(memcmp(data, "hello", 5), 0);
    CHECK(tarn_object_unmap(data), PHX_OK);
    CHECK(tarn_object_unmap(data), PHX_ENOTFOUND);
    CHECK(tarn_object_unmap(other), PHX_OK);

    CHECK(tarn_object_create(store, "c", 10, NULL), PHX_EINVALID);
    CHECK(tarn_object_create(store, "c", SIZE_MAX, &memory), PHX_EINVALID);
    CHECK(tarn_object_create(store, "c", (size_t)1 << 45, &memory), PHX_ENOMEM);
    CHECK(tarn_object_create(store, "c", 10, &memory), PHX_OK);
    CHECK(tarn_object_create(store, "c", 10, &more), PHX_OK);
    CHECK(tarn_object_publish(NULL, NULL, NULL), PHX_ENOTFOUND);
    CHECK(tarn_object_publish(memory, long_text, NULL), PHX_EINVALID);
    CHECK(tarn_object_publish(memory, "\xff", NULL), PHX_EINVALID);
    memset(memory, 1, 10);
    CHECK(tarn_object_abandon(memory), PHX_OK);
    CHECK(tarn_object_publish(memory, NULL, NULL), PHX_ENOTFOUND);
    CHECK(tarn_object_abandon(more), PHX_OK);
    CHECK(tarn_object_abandon(more), PHX_ENOTFOUND);
    CHECK(tarn_object_versions(store, "c", all, &count), PHX_ENOTFOUND);
    CHECK(tarn_object_create(store, "c", 0, &memory), PHX_OK);
    CHECK(tarn_object_publish(memory, long_text, NULL), PHX_EINVALID);
    CHECK(tarn_object_publish(memory, NULL, NULL), PHX_OK);
    CHECK(tarn_object_publish(memory, NULL, NULL), PHX_ENOTFOUND);

    CHECK(tarn_object_put(store, "c/d", "x", 1, NULL, NULL), PHX_OK);
    CHECK(tarn_object_list(store, all, NULL), PHX_EINVALID);
    CHECK(tarn_object_list(store, NULL, &count), PHX_EINVALID);
    count = 1;
    CHECK(tarn_object_list(store, all, &count), PHX_OK);
    CHECK(count == 2 && !strcmp(all[0].key, "c"), 1);
    CHECK(tarn_object_list(store, all, &count), PHX_OK);
    CHECK(count == 2 && !strcmp(all[1].key, "c/d"), 1);
    count = 0;
    CHECK(tarn_object_versions(store, "c", NULL, &count), PHX_OK);
    CHECK(count == 1, 1);
    CHECK(tarn_object_fetch(store, "c", 0, NULL, NULL), PHX_EINVALID);
    CHECK(tarn_object_fetch(store, "c", 0, "n2", NULL), PHX_ENOTFOUND);
    if (!failed)
        puts("all misuse is told");
    return failed;
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[2], "put"))
        return put(argv[1], argv[3], strtoul(argv[4], NULL, 10));
    if (argc == 4 && !strcmp(argv[2], "sum"))
        return sum(argv[1], argv[3]);
    if (argc == 3 && !strcmp(argv[2], "misuse"))
        return misuse(argv[1]);
    return 2;
}
