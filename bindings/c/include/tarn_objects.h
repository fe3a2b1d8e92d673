/*
 * tarn_objects.h: the object store of a node. A store is a folder; each version of an object is one file in it, which never
 * changes, and which all programs of the node that may read it map in place. docs/guide/objects.md explains it; each call has a
 * man page.
 *
 * Link with -ltarn. Every call gives PHX_OK or an error of enum phx_code (phx.h); phx_last_error() then gives the reason and the
 * remedy, in words. Calls may come from any number of threads at once, and from forked children: each gives up for itself the
 * memory that was mapped or created before.
 *
 * `store` is the store's folder; NULL is the one that $TARN_OBJECTS names. `key` is the object's name: 1 to 255 bytes of UTF-8, parts
 * between slashes, of which none begins with '.' or ends with ".obj". `number` is which version: 1 is the first, 0 means the newest.
 * `about` is a text of at most 255 bytes that readers are given; NULL is none.
 *
 * With TARN_OBJECTS_ENCRYPT=1 in the environment new versions are encrypted, with the user's key (`tarn key new`); they are read as others,
 * in memory of the program's own.
 *
 * Sizes are bytes. The man page of a call lists its errors. In the examples must() ends the program unless it is given PHX_OK, and
 * $TARN_OBJECTS names a store. The tests run them.
 */
#ifndef TARN_OBJECTS_H
#define TARN_OBJECTS_H

#include "phx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The details of a version. */
struct tarn_object_info {
    uint64_t number; /* 0: the folder of the key may not be read */
    uint64_t bytes;
    uint32_t damaged; /* 1: the file is not whole, or may not be read; bytes and about are not known */
    uint32_t encrypted; /* 1: its data are ciphertext in the store */
    char key[256];
    char about[256];
};

/*
 * Copies memory into a new version, durably. `number` may be NULL. PHX_ENOSPACE: the store is full.
 *
 *     double points[100] = {0};
 *     uint64_t number;
 *     must(tarn_object_put(NULL, "mesh/points", points, sizeof points, "f64 100", &number));
 *     printf("version %llu\n", (unsigned long long)number);
 */
int tarn_object_put(const char *store, const char *key, const void *data, size_t bytes, const char *about, uint64_t *number);

/*
 * Copies a version out, and verifies what it copies. `bytes` is the size of `data`, and then the object's: PHX_EINVALID where it does not
 * fit. PHX_ENOTFOUND: there is no such version; PHX_ECORRUPT: it is damaged.
 *
 *     char text[16];
 *     size_t bytes = sizeof text;
 *     must(tarn_object_put(NULL, "text", "hello", 5, NULL, NULL));
 *     must(tarn_object_get(NULL, "text", 0, text, &bytes));
 *     printf("%.*s\n", (int)bytes, text);
 */
int tarn_object_get(const char *store, const char *key, uint64_t number, void *data, size_t *bytes);

/*
 * Maps a version, to be read, without a copy; with `verify`, all of it is read and compared. `info` may be NULL. Errors as of
 * tarn_object_get.
 *
 *     const void *data;
 *     struct tarn_object_info info;
 *     must(tarn_object_put(NULL, "text", "hello", 5, NULL, NULL));
 *     must(tarn_object_map(NULL, "text", 0, 1, &data, &info));
 *     printf("%.*s\n", (int)info.bytes, (const char *)data);
 *     must(tarn_object_unmap(data));
 */
int tarn_object_map(const char *store, const char *key, uint64_t number, int verify, const void **data, struct tarn_object_info *info);

/* Gives up what tarn_object_map gave. A mapped version that is deleted stays until then. */
int tarn_object_unmap(const void *data);

/*
 * Memory of the store for a new version of so many bytes, all zero, to be filled in place. A child that is forked between this and
 * tarn_object_publish shares it, and could still write to the published object: it must not. It cannot publish it (PHX_EUNSUPPORTED).
 *
 *     void *memory;
 *     must(tarn_object_create(NULL, "field", 1000 * sizeof(double), &memory));
 *     ((double *)memory)[999] = 1.0;
 *     must(tarn_object_publish(memory, "f64 1000", NULL)); // nothing is copied
 *     must(tarn_object_create(NULL, "field", 8, &memory));
 *     must(tarn_object_abandon(memory)); // no second version
 */
int tarn_object_create(const char *store, const char *key, size_t bytes, void **memory);

/* Makes what tarn_object_create gave a version, durably and without a copy. The memory is gone, unless this fails with PHX_EINVALID
 * (`about`) or PHX_EBUSY (another program has the key's lock): then it can be tried again. With PHX_EIO, where only the last sync has
 * failed, all see the version, but it may not survive a loss of power. `number` may be NULL. */
int tarn_object_publish(void *memory, const char *about, uint64_t *number);

/* Gives up what tarn_object_create gave: nothing is left of it. */
int tarn_object_abandon(void *memory);

/*
 * The newest version of every object, by key. `count` is how many fit into `objects`, and then how many there are.
 *
 *     struct tarn_object_info objects[100];
 *     size_t count = 100;
 *     must(tarn_object_list(NULL, objects, &count));
 *     for (size_t i = 0; i < count && i < 100; i++)
 *         printf("%s: %llu bytes\n", objects[i].key, (unsigned long long)objects[i].bytes);
 */
int tarn_object_list(const char *store, struct tarn_object_info *objects, size_t *count);

/*
 * All versions of an object, newest last; the rest as for tarn_object_list. PHX_ENOTFOUND: there is none.
 *
 *     struct tarn_object_info versions[10];
 *     size_t count = 10;
 *     must(tarn_object_put(NULL, "text", "hello", 5, NULL, NULL));
 *     must(tarn_object_versions(NULL, "text", versions, &count));
 *     printf("%zu versions\n", count);
 */
int tarn_object_versions(const char *store, const char *key, struct tarn_object_info *versions, size_t *count);

/*
 * Deletes a version; number 0: all of them. A program that has it mapped keeps it, and its number is not used again. When only the last sync
 * has failed, all see it gone, but it may be there again after a loss of power. PHX_ENOTFOUND: there is none.
 *
 *     must(tarn_object_put(NULL, "text", "hello", 5, NULL, NULL));
 *     must(tarn_object_delete(NULL, "text", 0));
 */
int tarn_object_delete(const char *store, const char *key, uint64_t number);

/* Has the node's tarnd ($TARN_SOCKET) bring a version from the same store of another node: the same path in the dataspace of the same
 * name. It keeps its number. `fetched` may be NULL. */
int tarn_object_fetch(const char *store, const char *key, uint64_t number, const char *node, uint64_t *fetched);

#ifdef __cplusplus
}
#endif
#endif
