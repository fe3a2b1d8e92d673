/*
 * tarn.c: a virtual file driver of HDF5 whose files are partitions of storage memory. HDF5 loads it where
 * HDF5_DRIVER=tarn and finds it by HDF5_PLUGIN_PATH; docs/guide/hdf5.md. It needs no symbol of HDF5, and of
 * tarn only libtarn.
 */
#include "hdf5.h"
#include "order.h"
#include "store.h"
#include "vfd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* HDF5 leaves 256 to 511 to drivers that it does not know; it finds this one by its name. */
#define VALUE 413
/* As far as a partition goes. */
#define MAX_ADDRESS ((uint64_t)1 << 50)
/* Pieces that are handed over together. */
#define PIECES 256
/* Bytes that are compared at once. */
#define COMPARED 4096
/* Bytes of a file's structure that wait for a flush, and pieces of it. */
#define KEPT ((uint64_t)8 << 20)
#define KEPT_PIECES 4096
/* The places of a superblock's version and its marks. */
#define VERSION_AT 8
#define MARKS_AT 11
#define SIGNATURE "\x89HDF\r\n\x1a\n"
/* The mark of a file that is read while it is written, in version 3. */
#define SWMR_MARK 4
#define NO_SWMR                                                                                              \
    "SWMR is not supported in partitions: close the file after each step, and give its readers wait=newer "  \
    "(docs/guide/hdf5.md, \"A writing and a reading program\")"
/* The mark that `tarn h5 exec` looks for in the file of this library. */
#define MARK "tarn-hdf5-plugin-version="

static const char version[] = MARK TARN_VERSION;

/* One of another time may not have it. */
extern const char *tarn_version(void) __attribute__((weak));

struct file {
    struct vfd_file pub;
    struct hdf5 hdf5;
    struct store *store;
    struct order order;
    uint64_t eoa;
    bool writers; /* it is one of several */
    bool swmr;    /* HDF5 is about to let it be read while it is written */
};

static bool same_version(struct why *why) {
    const char *own = version + strlen(MARK), *library = tarn_version ? tarn_version() : "an older one";
    if (strcmp(own, library) == 0)
        return true;
    return refuse(
        why,
        "this plug-in is of tarn %s, and the libtarn.so that it has found is %s: set HDF5_PLUGIN_PATH and "
        "LD_LIBRARY_PATH to those of one version (`tarn h5 exec` does)",
        own, library);
}

/* HDF5's configuration, from HDF5_DRIVER_CONFIG or H5Pset_driver_by_name(). */
static struct config *configured(const struct hdf5 *hdf5, int64_t fapl, struct why *why) {
    struct config *config = calloc(1, sizeof *config);
    if (!config) {
        refuse(why, "no memory");
        return NULL;
    }
    ssize_t length = hdf5->config(fapl, config->text, sizeof config->text);
    if (length >= (ssize_t)sizeof config->text)
        refuse(why, "HDF5_DRIVER_CONFIG has more than %d bytes", CONFIG_BYTES - 1);
    else if (config_read(config, why))
        return config;
    free(config);
    return NULL;
}

/* HDF5 crashes where an error is none of its own: it goes to stderr if there is no other way. */
static bool found(struct hdf5 *hdf5, const void *caller) {
    if (hdf5_find(hdf5, caller))
        return true;
    fprintf(stderr,
            "tarn: the HDF5 of this program hides its functions from plug-ins: link it as a shared library, "
            "1.14 or later\n");
    return false;
}

static struct vfd_file *open_file(const char *name, unsigned flags, int64_t fapl, uint64_t max_address) {
    struct hdf5 hdf5;
    struct why why;
    (void)max_address;
    if (!found(&hdf5, __builtin_return_address(0)))
        return NULL;
    struct config *config = same_version(&why) ? configured(&hdf5, fapl, &why) : NULL;
    struct file *file = config ? calloc(1, sizeof *file) : NULL;
    if (!file) {
        if (config)
            refuse_as(&why, ENOMEM, "no memory");
        free(config);
        hdf5_fail(&hdf5, hdf5.cannot_open, "open", &why);
        return NULL;
    }
    file->hdf5 = hdf5;
    file->writers = config->writers && flags & VFD_RDWR;
    unsigned mode = flags & VFD_RDWR ? STORE_WRITABLE : 0;
    mode |= flags & VFD_CREAT ? STORE_MADE : 0;
    mode |= flags & VFD_EXCL ? STORE_NEW : 0;
    mode |= flags & VFD_TRUNC ? STORE_CUT : 0;
    file->store = store_open(config, name, mode, &why);
    if (file->store)
        return &file->pub;
    hdf5_fail(&hdf5, hdf5.cannot_open, "open", &why);
    free(file);
    return NULL;
}

/* Writes HDF5's changes of the structure to the store. */
static bool settle(struct file *file, struct why *why) {
    return order_write(&file->order, file->store, file->pub.base_address, file->eoa, why);
}

static int close_file(struct vfd_file *pub) {
    struct file *file = (struct file *)pub;
    struct why why;
    struct why other;
    bool good = settle(file, &why);
    order_free(&file->order);
    good = store_close(file->store, good ? &why : &other) && good;
    int code = good ? 0 : hdf5_fail(&file->hdf5, file->hdf5.write_failed, "close", &why);
    free(file);
    return code;
}

static int remove_file(const char *name, int64_t fapl) {
    struct hdf5 hdf5;
    struct why why;
    if (!found(&hdf5, __builtin_return_address(0)))
        return -1;
    struct config *config = same_version(&why) ? configured(&hdf5, fapl, &why) : NULL;
    if (config && store_remove(config, name, &why))
        return 0;
    return hdf5_fail(&hdf5, hdf5.cannot_open, "delete", &why);
}

static int compare(const struct vfd_file *one, const struct vfd_file *other) {
    return store_compare(((const struct file *)one)->store, ((const struct file *)other)->store);
}

/* docs/internals/hdf5.md says why these and no others. */
static int query(const struct vfd_file *file, unsigned long *features) {
    (void)file;
    *features =
        VFD_AGGREGATE_METADATA | VFD_ACCUMULATE_METADATA | VFD_AGGREGATE_SMALLDATA | VFD_DEFAULT_COMPATIBLE;
    return 0;
}

static uint64_t get_eoa(const struct vfd_file *file, enum vfd_mem kind) {
    (void)kind;
    return ((const struct file *)file)->eoa;
}

/* Space is taken before HDF5 gives its addresses away: promised data can be written when it closes the
 * file. */
static int set_eoa(struct vfd_file *pub, enum vfd_mem kind, uint64_t address) {
    struct file *file = (struct file *)pub;
    struct why why;
    (void)kind;
    bool good = true;
    if (file->writers && address > file->store->eof)
        good = refuse(&why,
                      "share=writers: all that the file is to hold must be made, and the file closed, before "
                      "several write to it");
    else if (file->store->writable)
        good = store_reserve(file->store, address, &why);
    if (!good)
        return hdf5_fail(&file->hdf5, file->hdf5.no_room, "set_eoa", &why);
    file->eoa = address;
    return 0;
}

static uint64_t get_eof(const struct vfd_file *file, enum vfd_mem kind) {
    (void)kind;
    const struct file *own = (const struct file *)file;
    uint64_t kept = order_end(&own->order);
    return kept > own->store->eof ? kept : own->store->eof;
}

static int fail_read(const struct file *file, const struct why *why) {
    return hdf5_fail(&file->hdf5, file->hdf5.read_failed, "read", why);
}

static int fail_write(const struct file *file, const struct why *why) {
    return hdf5_fail(&file->hdf5, file->hdf5.write_failed, "write", why);
}

static bool read_pieces(struct file *file, const struct piece *pieces, size_t count, struct why *why) {
    for (size_t i = 0; i < count; i++)
        if (order_meets(&file->order, &pieces[i], false) && !settle(file, why))
            return false;
    return store_read(file->store, pieces, count, why);
}

static int read_file(struct vfd_file *pub, enum vfd_mem kind, int64_t dxpl, uint64_t address, size_t size,
                     void *buffer) {
    struct file *file = (struct file *)pub;
    struct why why;
    (void)kind, (void)dxpl;
    struct piece piece = {address, size, buffer};
    return read_pieces(file, &piece, 1, &why) ? 0 : fail_read(file, &why);
}

/* Of a superblock, the marks that a file is open to be written, which several writers would take from each
 * other: four bytes in versions 0 and 1, from 2 on one, and the checksum of all. */
static bool is_mark(const struct piece *piece, size_t at) {
    const unsigned char *bytes = piece->buffer;
    if (piece->size < 48 || memcmp(bytes, SIGNATURE, strlen(SIGNATURE)) != 0)
        return false;
    return bytes[8] < 2 ? at >= 20 && at < 24 : at == 11 || (at >= 44 && at < 48);
}

/* One of several writers changes nothing but data: its structure of the file must be that of all.
 */
static bool is_there(struct file *file, const struct piece *piece, struct why *why) {
    char bytes[COMPARED];
    for (size_t done = 0; done < piece->size; done += COMPARED) {
        size_t length = piece->size - done < COMPARED ? piece->size - done : COMPARED;
        struct piece there = {piece->address + done, length, bytes};
        if (!store_read(file->store, &there, 1, why))
            return false;
        for (size_t at = done; at < done + length; at++)
            if (bytes[at - done] != ((char *)piece->buffer)[at] && !is_mark(piece, at))
                return refuse(
                    why, "share=writers: only data of datasets that are there, contiguous, allocated early "
                         "and without filters, can be written; this would change the file's structure");
    }
    return true;
}

/* Whether HDF5 has marked this superblock as that of a file that is read while it is written (SWMR). */
static bool is_swmr(const struct piece *piece) {
    const unsigned char *bytes = piece->buffer;
    return piece->size > MARKS_AT && memcmp(bytes, SIGNATURE, strlen(SIGNATURE)) == 0 &&
           bytes[VERSION_AT] >= 3 && bytes[MARKS_AT] & SWMR_MARK;
}

/* Data is written at once; the structure when it is flushed, or more than a program should keep. */
static bool write_alone(struct file *file, const struct piece *pieces, const enum vfd_mem *kinds,
                        size_t count, struct why *why) {
    struct piece data[PIECES];
    size_t now = 0;
    for (size_t i = 0; i < count; i++) {
        bool is_data = kinds[i] == VFD_MEM_DRAW;
        if (pieces[i].size == 0)
            continue;
        if (pieces[i].address == file->pub.base_address && !is_data)
            file->swmr = is_swmr(&pieces[i]);
        if (order_meets(&file->order, &pieces[i], !is_data) && !settle(file, why))
            return false;
        if (is_data)
            data[now++] = pieces[i];
        else if (!order_keep(&file->order, &pieces[i]))
            return refuse_as(why, ENOMEM, "no memory");
    }
    if (now > 0 && !store_write(file->store, data, now, why))
        return false;
    return (file->order.bytes <= KEPT && file->order.count < KEPT_PIECES) || settle(file, why);
}

static bool write_pieces(struct file *file, const struct piece *pieces, const enum vfd_mem *kinds,
                         size_t count, struct why *why) {
    struct piece data[PIECES];
    size_t kept = 0;
    if (!file->writers)
        return write_alone(file, pieces, kinds, count, why);
    for (size_t i = 0; i < count; i++) {
        bool inside = pieces[i].address + pieces[i].size <= file->store->eof;
        if (kinds[i] == VFD_MEM_DRAW && inside)
            data[kept++] = pieces[i];
        else if (!is_there(file, &pieces[i], why))
            return false;
    }
    return kept == 0 || store_write(file->store, data, kept, why);
}

static int write_file(struct vfd_file *pub, enum vfd_mem kind, int64_t dxpl, uint64_t address, size_t size,
                      const void *buffer) {
    struct file *file = (struct file *)pub;
    struct why why;
    (void)dxpl;
    struct piece piece = {address, size, (void *)buffer};
    return write_pieces(file, &piece, &kind, 1, &why) ? 0 : fail_write(file, &why);
}

/* A list of pieces as HDF5 gives it: from a size of 0 on all have the one before, and so have kinds from
 * VFD_MEM_NOLIST on. */
struct list {
    const uint64_t *addresses;
    const size_t *sizes;
    const enum vfd_mem *kinds;
    void *const *buffers;
    size_t at, count, size;
    enum vfd_mem kind;
    bool same_size, same_kind;
};

/* The next pieces; how many. */
static size_t some(struct list *list, struct piece *pieces, enum vfd_mem *kinds) {
    size_t count = 0;
    for (; count < PIECES && list->at < list->count; count++, list->at++) {
        size_t i = list->at;
        list->same_size = list->same_size || (i > 0 && list->sizes[i] == 0);
        list->same_kind = list->same_kind || (i > 0 && list->kinds[i] == VFD_MEM_NOLIST);
        if (!list->same_size)
            list->size = list->sizes[i];
        if (!list->same_kind)
            list->kind = list->kinds[i];
        pieces[count] = (struct piece){list->addresses[i], list->size, list->buffers[i]};
        kinds[count] = list->kind;
    }
    return count;
}

static int read_vector(struct vfd_file *pub, int64_t dxpl, uint32_t count, enum vfd_mem kinds[],
                       uint64_t addresses[], size_t sizes[], void *buffers[]) {
    struct file *file = (struct file *)pub;
    struct list list = {
        .addresses = addresses, .sizes = sizes, .kinds = kinds, .buffers = buffers, .count = count};
    struct piece pieces[PIECES];
    enum vfd_mem each[PIECES];
    struct why why;
    (void)dxpl;
    for (size_t n; (n = some(&list, pieces, each)) > 0;)
        if (!read_pieces(file, pieces, n, &why))
            return fail_read(file, &why);
    return 0;
}

static int write_vector(struct vfd_file *pub, int64_t dxpl, uint32_t count, enum vfd_mem kinds[],
                        uint64_t addresses[], size_t sizes[], const void *buffers[]) {
    struct file *file = (struct file *)pub;
    struct list list = {
        .addresses = addresses, .sizes = sizes, .kinds = kinds, .buffers = (void **)buffers, .count = count};
    struct piece pieces[PIECES];
    enum vfd_mem each[PIECES];
    struct why why;
    (void)dxpl;
    for (size_t n; (n = some(&list, pieces, each)) > 0;)
        if (!write_pieces(file, pieces, each, n, &why))
            return fail_write(file, &why);
    return 0;
}

static int flush(struct vfd_file *pub, int64_t dxpl, bool closing) {
    struct file *file = (struct file *)pub;
    struct why why;
    (void)dxpl;
    bool good = settle(file, &why) && store_flush(file->store, &why);
    if (good && !closing && file->store->config->notify == NOTIFY_FLUSH)
        good = store_notify(file->store, &why);
    return good ? 0 : fail_write(file, &why);
}

static int truncate_file(struct vfd_file *pub, int64_t dxpl, bool closing) {
    struct file *file = (struct file *)pub;
    struct why why;
    (void)dxpl, (void)closing;
    order_cut(&file->order, file->eoa);
    return file->writers || store_resize(file->store, file->eoa, &why) ? 0 : fail_write(file, &why);
}

static int lock(struct vfd_file *pub, bool write) {
    struct file *file = (struct file *)pub;
    struct why why;
    return store_lock(file->store, write, &why)
               ? 0
               : hdf5_fail(&file->hdf5, file->hdf5.cannot_lock, "lock", &why);
}

/* HDF5 gives the lock back to let others read a file that is still being written; when it cannot, it takes
 * that back.
 */
static int unlock(struct vfd_file *pub) {
    struct file *file = (struct file *)pub;
    struct why why;
    bool good = file->swmr ? refuse_as(&why, ENOTSUP, "%s: " NO_SWMR, file->store->names[0])
                           : settle(file, &why) && store_unlock(file->store, &why);
    return good ? 0 : hdf5_fail(&file->hdf5, file->hdf5.cannot_lock, "unlock", &why);
}

static const struct vfd_class driver = {
    .version = VFD_CLASS_VERSION,
    .value = VALUE,
    .name = "tarn",
    .max_address = MAX_ADDRESS,
    .close_degree = VFD_CLOSE_WEAK,
    .open = open_file,
    .close = close_file,
    .compare = compare,
    .query = query,
    .get_eoa = get_eoa,
    .set_eoa = set_eoa,
    .get_eof = get_eof,
    .read = read_file,
    .write = write_file,
    .read_vector = read_vector,
    .write_vector = write_vector,
    .flush = flush,
    .truncate = truncate_file,
    .lock = lock,
    .unlock = unlock,
    .remove = remove_file,
    /* Data and structure stay apart, as in sec2. */
    .free_lists = {VFD_MEM_SUPER, VFD_MEM_SUPER, VFD_MEM_SUPER, VFD_MEM_DRAW, VFD_MEM_DRAW, VFD_MEM_SUPER,
                   VFD_MEM_SUPER},
};

/* The functions that HDF5 calls in a plug-in. */
__attribute__((visibility("default"))) int H5PLget_plugin_type(void);
__attribute__((visibility("default"))) const void *H5PLget_plugin_info(void);

int H5PLget_plugin_type(void) { return VFD_PLUGIN_TYPE; }

const void *H5PLget_plugin_info(void) { return &driver; }
