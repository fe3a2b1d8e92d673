#include "store.h"
#include "header.h"
#include "names.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define PAGE ((uint64_t)4096)
#define ENTRIES 256u
/* More than this is not taken at once beyond what is needed. */
#define GROWTH ((uint64_t)1 << 30)
/* Programs' files whose last change is remembered for wait=newer. */
#define SEEN 256
/* The time between two looks for an event. */
#define PAUSE 200000
/* ns that a request may take: a medium that takes longer is lost. */
#define LOST ((uint64_t)300 * 1000000000)

/* The errno by which a program distinguishes it from other failures. */
static int number_of(int code) {
    switch (code) {
    case TARN_ENOTFOUND:
        return ENOENT;
    case TARN_EEXISTS:
        return EEXIST;
    case TARN_EDENIED:
        return EACCES;
    case TARN_ENOSPACE:
        return ENOSPC;
    case TARN_EQUOTA:
        return EDQUOT;
    case TARN_EBUSY:
        return EBUSY;
    case TARN_EIO:
    case TARN_ELOST:
        return EIO;
    case TARN_ETIMEDOUT:
        return ETIMEDOUT;
    default:
        return 0;
    }
}

static bool cannot(struct why *why, const struct store *store, const char *what, int code, const char *text) {
    int number = number_of(code);
    if (store->count == 1)
        return refuse_as(why, number, "cannot %s %s: %s", what, store->names[0], text);
    return refuse_as(why, number, "cannot %s %s or one of the %zu after it: %s", what, store->names[0],
                     store->count - 1, text);
}

static bool failed(struct why *why, const struct store *store, const char *what, int code) {
    return cannot(why, store, what, code, tarn_last_error());
}

/* Submits what was prepared and takes its ends. */
static bool finish(struct store *store, const char *what, struct why *why) {
    const struct dsa_cqe *cqe;
    int code = TARN_OK;
    uint32_t begun = store->queue->sq_tail - store->queue->sq_head;
    if (dsa_submit(store->queue) != begun || dsa_cq_ready(store->queue) < begun) {
        int waited = dsa_wait(store->queue, begun, LOST);
        if (waited != TARN_OK)
            return failed(why, store, what, waited);
    }
    while ((cqe = dsa_peek_cqe(store->queue))) {
        if (cqe->code != TARN_OK)
            code = cqe->code;
        dsa_cq_advance(store->queue, 1);
    }
    if (code == TARN_OK)
        return true;
    return cannot(why, store, what, code, tarn_code_text(code));
}

/* The next request; the prepared ones are done when the ring is full. */
static struct dsa_sqe *next(struct store *store, const char *what, struct why *why) {
    struct dsa_sqe *sqe = dsa_get_sqe(store->queue);
    if (!sqe && finish(store, what, why))
        sqe = dsa_get_sqe(store->queue);
    return sqe;
}

/* Copies to or from bytes of the partition, wherever the file begins. */
static bool raw(struct store *store, uint8_t op, uint64_t offset, void *memory, uint64_t length,
                struct why *why) {
    const char *what = op == DSA_READ ? "read" : "write to";
    struct dsa_sqe *sqe = next(store, what, why);
    if (!sqe)
        return false;
    dsa_prep_copy(sqe, op, store->region, offset, store->memory, memory, length);
    return finish(store, what, why);
}

/* Registers as much of the partition as there is. */
static bool take_room(struct store *store, struct why *why) {
    uint64_t size;
    uint32_t flags = store->writable ? 0 : DSA_REGION_READ_ONLY, region;
    int code = dsa_size(store->partition, &size);
    if (code == TARN_OK)
        code = dsa_register_partition(store->queue, store->partition, 0, size, flags, &region);
    if (code == TARN_OK && store->room)
        code = dsa_unregister(store->queue, store->region);
    if (code != TARN_OK)
        return failed(why, store, "use", code);
    store->region = region;
    store->room = size > store->start ? size - store->start : 0;
    return true;
}

/* The header as it is now. A partition that was never used has none. */
static bool look(struct store *store, struct why *why) {
    struct header header;
    unsigned char page[HEADER_BYTES];
    if (!raw(store, DSA_READ, 0, page, sizeof page, why))
        return false;
    switch (header_read(page, &header)) {
    case HEADER_NONE:
        return true;
    case HEADER_NEWER:
        return refuse(why, "%s was written by a newer version of tarn: use that one's plug-in",
                      store->names[0]);
    case HEADER_DAMAGED:
        return refuse(
            why, "%s holds no HDF5 file, or the header of one that is damaged; delete it, or name another",
            store->names[0]);
    case HEADER_SOUND:
        break;
    }
    if (header.count != store->count || header.index != 0 ||
        (store->count > 1 && header.block != store->config->block))
        return refuse(
            why,
            "%s is number %u of %u partitions with blocks of %llu bytes that hold a file; partitions= and "
            "block= say something else",
            store->names[0], header.index + 1, header.count, (unsigned long long)header.block);
    memcpy(store->identity, header.identity, sizeof store->identity);
    store->number = header.number;
    store->recorded_eof = header.eof;
    store->eof = store->cut && !store->begun ? 0 : header.eof;
    if (store->eof <= store->room)
        return true;
    return refuse(why, "%s has %llu bytes for a file of %llu: it was made smaller", store->names[0],
                  (unsigned long long)store->room, (unsigned long long)store->eof);
}

/* Every other partition of a file belongs to it, at its place. */
static bool look_at_others(struct store *store, struct why *why) {
    struct header header;
    unsigned char page[HEADER_BYTES];
    for (size_t i = 1; store->number && i < store->count; i++) {
        if (!raw(store, DSA_READ, i * store->config->block, page, sizeof page, why))
            return false;
        if (header_read(page, &header) != HEADER_SOUND || header.index != i ||
            memcmp(header.identity, store->identity, sizeof header.identity) != 0)
            return refuse(
                why,
                "%s is not number %zu of the partitions that hold the file of %s: give all, in the order "
                "that it was made with",
                store->names[i], i + 1, store->names[0]);
    }
    return true;
}

static bool write_header(struct store *store, size_t index, uint64_t eof, struct why *why) {
    struct header header = {
        .number = index ? 1 : store->number + 1,
        .eof = index ? 0 : eof,
        .block = store->count > 1 ? store->config->block : PAGE,
        .count = (uint32_t)store->count,
        .index = (uint32_t)index,
    };
    unsigned char copy[HEADER_COPY];
    memcpy(header.identity, store->identity, sizeof header.identity);
    header_write(&header, copy);
    uint64_t block = store->count > 1 ? store->config->block : 0;
    return raw(store, DSA_WRITE, index * block + header_place(header.number), copy, sizeof copy, why);
}

static bool persist(struct store *store, struct why *why) {
    if (!store->config->persistent)
        return true;
    struct dsa_sqe *sqe = next(store, "flush", why);
    if (!sqe)
        return false;
    dsa_prep_flush(sqe, store->region);
    return finish(store, "flush", why);
}

/* The header says that the file has so many bytes. */
static bool record_eof(struct store *store, uint64_t eof, struct why *why) {
    for (size_t i = 1; !store->number && i < store->count; i++)
        if (!write_header(store, i, 0, why))
            return false;
    if (!write_header(store, 0, eof, why))
        return false;
    store->number++;
    store->recorded_eof = eof;
    return true;
}

/* The old content of a file that is begun again is gone with the first write: nobody finds half of both. */
static bool begin_anew(struct store *store, struct why *why) {
    bool gone = !store->cut || store->begun || !store->recorded_eof;
    store->begun = true;
    return gone || record_eof(store, 0, why);
}

/* HDF5 refuses a file that has less than its superblock says. One that is killed, or loses power, between
 * that and the header would leave such a one, so the header is first; and a smaller end is for store_flush(),
 * when the superblock has said it. */
bool store_announce(struct store *store, uint64_t bytes, struct why *why) {
    if (!begin_anew(store, why) || (bytes > store->eof && !store_resize(store, bytes, why)))
        return false;
    if (store->number && store->recorded_eof >= store->eof)
        return true;
    return record_eof(store, store->eof, why) && persist(store, why);
}

bool store_flush(struct store *store, struct why *why) {
    if (!store->touched)
        return true;
    if (!persist(store, why))
        return false;
    store->touched = false;
    if (store->eof == store->recorded_eof && store->number)
        return true;
    return record_eof(store, store->eof, why) && persist(store, why);
}

bool store_notify(struct store *store, struct why *why) {
    if (!store->changed)
        return true;
    struct dsa_sqe *sqe = next(store, "write to", why);
    if (!sqe)
        return false;
    dsa_prep_fetch_add(sqe, store->region, HEADER_CHANGES, 1);
    store->changed = false;
    return finish(store, "write to", why) && persist(store, why);
}

/* The last change of a file that this program has opened. It may have several HDF5s, each with a lock
 * of its own. */
static struct seen {
    char *name;
    uint64_t changes;
} seen[SEEN];
static size_t oldest;
static pthread_mutex_t seeing = PTHREAD_MUTEX_INITIALIZER;

static struct seen *seen_of(const char *name) {
    for (size_t i = 0; i < SEEN; i++)
        if (seen[i].name && strcmp(seen[i].name, name) == 0)
            return &seen[i];
    return NULL;
}

static uint64_t last_seen(const char *name) {
    pthread_mutex_lock(&seeing);
    const struct seen *known = seen_of(name);
    uint64_t changes = known ? known->changes : 0;
    pthread_mutex_unlock(&seeing);
    return changes;
}

static void see(const char *name, uint64_t changes) {
    pthread_mutex_lock(&seeing);
    struct seen *known = seen_of(name);
    if (!known) {
        known = &seen[oldest++ % SEEN];
        free(known->name);
        known->name = strdup(name);
    }
    known->changes = changes;
    pthread_mutex_unlock(&seeing);
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Whether there is time for another look; then after a pause. */
static bool again(uint64_t since, uint64_t timeout) {
    if (now() - since >= timeout)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = PAUSE}, NULL);
    return true;
}

static bool waits(const struct config *config) { return config->newer || config->changes; }

/* Remembers the present change: reads from here on have it. */
static bool remember(struct store *store, struct why *why) {
    uint64_t changes;
    if (!raw(store, DSA_READ, HEADER_CHANGES, &changes, sizeof changes, why))
        return false;
    see(store->names[0], changes);
    return true;
}

/* Waits for the change that the configuration names, and remembers the present one; another one may
 * follow before the file is locked. */
static bool await(struct store *store, uint64_t since, struct why *why) {
    uint64_t wanted = store->config->changes, changes;
    if (store->config->newer)
        wanted = last_seen(store->names[0]) + 1;
    do {
        if (!raw(store, DSA_READ, HEADER_CHANGES, &changes, sizeof changes, why))
            return false;
        if (changes >= wanted) {
            see(store->names[0], changes);
            return true;
        }
    } while (again(since, store->config->timeout));
    return refuse(
        why,
        "%s was changed %llu times, and change %llu was waited for: see what its writer does, or give more "
        "timeout=",
        store->names[0], (unsigned long long)changes, (unsigned long long)wanted);
}

/* Which partitions hold the file of a name. */
static bool choose(struct store *store, const char *file, struct why *why) {
    const struct config *config = store->config;
    store->count = config->count ? config->count : 1;
    for (size_t i = 0; i < store->count; i++) {
        store->names[i] = config->count ? name_of(config->partitions[i]) : name_in(config, file);
        if (!store->names[i])
            return refuse_as(why, ENOMEM, "no memory");
    }
    return true;
}

static void disconnect(struct store *store) {
    if (store->queue)
        dsa_queue_destroy(store->queue);
    if (store->partition)
        dsa_close(store->partition);
}

static void give_back(struct store *store) {
    for (size_t i = 0; i < store->count; i++)
        free(store->names[i]);
    free(store->config);
    free(store);
}

static struct store *begin(struct config *config, const char *file, struct why *why) {
    struct store *store = calloc(1, sizeof *store);
    if (!store) {
        free(config);
        refuse(why, "no memory");
        return NULL;
    }
    store->config = config;
    if (choose(store, file, why))
        return store;
    give_back(store);
    return NULL;
}

static int open_all(struct store *store) {
    uint32_t flags = (store->writable ? 0 : DSA_READ_ONLY) | (store->config->populated ? DSA_POPULATE : 0);
    if (store->count == 1)
        return dsa_open(store->names[0], flags, &store->partition);
    return dsa_open_cyclic((const char *const *)store->names, store->count, store->config->block, flags,
                           &store->partition);
}

/* Bytes of each partition of a file that has so many. */
static uint64_t each(const struct store *store, uint64_t eof) {
    if (store->count == 1)
        return PAGE + eof;
    uint64_t turn = store->count * store->config->block;
    return (1 + (eof + turn - 1) / turn) * store->config->block;
}

/* Makes all partitions, or none. */
static int make_once(const struct store *store) {
    names_enter(store->config, store->names[0]);
    for (size_t i = 0; i < store->count; i++) {
        int code = dsa_create(store->names[i], each(store, store->config->size), NULL, 0);
        if (code == TARN_OK)
            continue;
        while (i-- > 0)
            dsa_delete(store->names[i]);
        return code;
    }
    return TARN_OK;
}

/* The folder may go meanwhile with the last of another program's files that are not kept. */
static int make_all(const struct store *store) {
    int code = TARN_ENOTFOUND;
    for (int again = 0; code == TARN_ENOTFOUND && again < 10; again++)
        code = make_once(store);
    return code;
}

/* Opens the partitions, and makes them before that if need be. */
static bool get(struct store *store, unsigned mode, uint64_t since, struct why *why) {
    int code = open_all(store);
    while (code == TARN_ENOTFOUND && !(mode & STORE_MADE) && waits(store->config) &&
           again(since, store->config->timeout))
        code = open_all(store);
    if (code == TARN_ENOTFOUND && mode & STORE_MADE) {
        code = make_all(store);
        store->made = code == TARN_OK;
        if (store->made || code == TARN_EEXISTS) /* by another program meanwhile */
            code = open_all(store);
    }
    return code == TARN_OK || refuse_as(why, number_of(code), "%s", tarn_last_error());
}

/* A queue pair, its memory, and the partition's space. */
static bool connect(struct store *store, struct why *why) {
    struct dsa_info info;
    if (dsa_partition_info(store->partition, &info) != TARN_OK)
        return failed(why, store, "open", 0);
    if (store->config->persistent && !store->config->accepts_volatile && info.power_fail == DSA_LOST)
        return refuse(
            why,
            "%s is memory, which does not outlive a loss of power, and level=persistent is asked for; "
            "volatile=accept takes it all the same",
            store->names[0]);
    int code = dsa_queue_create(ENTRIES, 0, DSA_VOLATILE, &store->queue);
    if (code == TARN_OK)
        code = dsa_register_memory(store->queue, (void *)1, PTRDIFF_MAX - 1, 0, &store->memory);
    if (code != TARN_OK)
        return failed(why, store, "open", code);
    store->start = store->count > 1 ? store->count * store->config->block : PAGE;
    if (!take_room(store, why))
        return false;
    /* A partition that somebody has made with less than a header's space. */
    return store->room || !store->writable || store_reserve(store, store->config->size, why);
}

static bool open_store(struct store *store, unsigned mode, struct why *why) {
    uint64_t since = now();
    store->writable = mode & STORE_WRITABLE;
    store->cut = mode & STORE_CUT;
    if (!get(store, mode, since, why) || !connect(store, why))
        return false;
    if (waits(store->config) && !store->writable && !await(store, since, why))
        return false;
    if (!look(store, why) || !look_at_others(store, why))
        return false;
    if (mode & STORE_NEW && store->number)
        return refuse_as(why, EEXIST, "%s holds a file already", store->names[0]);
    store->clean = store->made ? 0 : store->room;
    store->grown = store->made;
    if (!store->number && getrandom(store->identity, sizeof store->identity, 0) < 0)
        return refuse(why, "no random number");
    return true;
}

struct store *store_open(struct config *config, const char *name, unsigned mode, struct why *why) {
    struct store *store = begin(config, name, why);
    if (!store || open_store(store, mode, why))
        return store;
    disconnect(store);
    for (size_t i = 0; store->made && i < store->count; i++)
        dsa_delete(store->names[i]);
    give_back(store);
    return NULL;
}

/* Takes the partitions away, or their unneeded parts; while others have them open they stay. */
static void tidy(const struct store *store) {
    for (size_t i = 0; i < store->count; i++)
        if (store->config->removed && store->used)
            dsa_delete(store->names[i]);
        else if (store->grown)
            dsa_resize(store->names[i], each(store, store->recorded_eof));
    if (store->config->removed && store->used)
        names_leave(store->config, store->names[0]);
}

bool store_close(struct store *store, struct why *why) {
    bool good = store_flush(store, why);
    if (good && store->config->notify != NOTIFY_NEVER)
        good = store_notify(store, why);
    disconnect(store);
    tidy(store);
    give_back(store);
    return good;
}

bool store_remove(struct config *config, const char *name, struct why *why) {
    struct store *store = begin(config, name, why);
    bool good = store != NULL;
    for (size_t i = 0; good && i < store->count; i++) {
        int code = dsa_delete(store->names[i]);
        if (code != TARN_OK)
            good =
                refuse_as(why, number_of(code), "cannot delete %s: %s", store->names[i], tarn_last_error());
    }
    if (good)
        names_leave(store->config, store->names[0]);
    if (store)
        give_back(store);
    return good;
}

int store_compare(const struct store *one, const struct store *other) {
    int order = strcmp(one->names[0], other->names[0]);
    return order < 0 ? -1 : order > 0;
}

bool store_lock(struct store *store, bool write, struct why *why) {
    enum dsa_lock_kind kind = write && !store->config->writers ? DSA_ALONE : DSA_SHARED;
    uint64_t since = now();
    int code;
    while ((code = dsa_lock(store->partition, kind)) == TARN_EBUSY && again(since, store->config->timeout))
        ;
    if (code == TARN_EBUSY)
        return refuse_as(
            why, EAGAIN,
            "%s is open elsewhere%s: close it there, or give timeout= to wait for that, or several writers "
            "share=writers",
            store->names[0], kind == DSA_ALONE ? "" : " to be written");
    if (code != TARN_OK)
        return failed(why, store, "lock", code);
    store->used = true;
    /* Its last holder may have changed it since it was opened here. */
    if (!take_room(store, why) || !look(store, why))
        return false;
    if (store->number)
        store->clean = store->room;
    return store->writable || !waits(store->config) || remember(store, why);
}

bool store_unlock(struct store *store, struct why *why) {
    int code = dsa_lock(store->partition, DSA_UNLOCKED);
    return code == TARN_OK || failed(why, store, "unlock", code);
}

bool store_read(struct store *store, const struct piece *pieces, size_t count, struct why *why) {
    for (size_t i = 0; i < count; i++) {
        const struct piece *piece = &pieces[i];
        uint64_t there = piece->address < store->eof ? store->eof - piece->address : 0;
        size_t length = piece->size < there ? piece->size : (size_t)there;
        if (length) {
            struct dsa_sqe *sqe = next(store, "read", why);
            if (!sqe)
                return false;
            dsa_prep_read(sqe, store->region, store->start + piece->address, store->memory, piece->buffer,
                          length);
        }
        memset((char *)piece->buffer + length, 0, piece->size - length);
    }
    return finish(store, "read", why);
}

/* Fills with zeros what the partition may hold of an earlier file. */
static bool clear(struct store *store, uint64_t from, uint64_t to, struct why *why) {
    static const char zeros[1 << 16];
    if (to > store->clean)
        to = store->clean;
    while (from < to) {
        uint64_t length = to - from < sizeof zeros ? to - from : sizeof zeros;
        struct dsa_sqe *sqe = next(store, "write to", why);
        if (!sqe)
            return false;
        dsa_prep_write(sqe, store->region, store->start + from, store->memory, zeros, length);
        from += length;
    }
    return finish(store, "write to", why);
}

/* As every file, it has zeros where nothing was written. */
static bool reach(struct store *store, uint64_t bytes, struct why *why) {
    if (bytes <= store->eof)
        return true;
    if (!store_reserve(store, bytes, why) || !clear(store, store->eof, bytes, why))
        return false;
    store->eof = bytes;
    return true;
}

bool store_write(struct store *store, const struct piece *pieces, size_t count, struct why *why) {
    store->changed = store->touched = store->used = true;
    if (!begin_anew(store, why))
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct piece *piece = &pieces[i];
        uint64_t end = piece->address + piece->size;
        if (!reach(store, piece->address, why) || !store_reserve(store, end, why))
            return false;
        struct dsa_sqe *sqe = next(store, "write to", why);
        if (!sqe)
            return false;
        dsa_prep_write(sqe, store->region, store->start + piece->address, store->memory, piece->buffer,
                       piece->size);
        if (end > store->eof)
            store->eof = end;
    }
    return finish(store, "write to", why);
}

bool store_reserve(struct store *store, uint64_t bytes, struct why *why) {
    if (bytes <= store->room)
        return true;
    /* Requests begun with the old region are done. */
    if (!finish(store, "write to", why))
        return false;
    uint64_t more = store->room < GROWTH ? store->room : GROWTH;
    uint64_t wanted = bytes - store->room > more ? bytes : store->room + more;
    int code = dsa_grow(store->partition, store->start + wanted, NULL);
    if (code == TARN_ENOSPACE && wanted > bytes)
        code = dsa_grow(store->partition, store->start + bytes, NULL);
    if (code != TARN_OK)
        return failed(why, store, "make space in", code);
    store->grown = true;
    return take_room(store, why);
}

bool store_resize(struct store *store, uint64_t bytes, struct why *why) {
    if (bytes == store->eof)
        return true;
    store->changed = store->touched = true;
    if (bytes > store->eof)
        return reach(store, bytes, why);
    if (store->eof > store->clean)
        store->clean = store->eof;
    store->eof = bytes;
    return true;
}
