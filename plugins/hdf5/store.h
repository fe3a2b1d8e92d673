/*
 * store.h: the bytes of an HDF5 file in a partition, or block by block in several, by libtarn.
 * docs/reference/formats.md has the places. Functions that return bool say in *why why it is false.
 */
#ifndef TARN_STORE_H
#define TARN_STORE_H

#include "config.h"
#include <dsa.h>

/* A piece of the file and of the program's memory. */
struct piece {
    uint64_t address;
    size_t size;
    void *buffer;
};

struct store {
    struct config *config; /* its own */
    char *names[CONFIG_PARTITIONS];
    size_t count;
    struct dsa_partition *partition;
    struct dsa_queue *queue;
    uint32_t memory, region;       /* all of the program's, and all of the partition */
    uint64_t start;                /* where the file begins in the partition */
    uint64_t room;                 /* bytes that are there for it */
    uint64_t eof;                  /* bytes that it has */
    uint64_t clean;                /* behind this the partition is known to hold zeros */
    uint64_t number, recorded_eof; /* of the header's newest copy, and the bytes that it says */
    uint64_t identity[2];
    bool writable;
    bool cut;     /* it is begun again, whatever the header says */
    bool begun;   /* which was done: from then on the header holds */
    bool touched; /* since the last flush */
    bool changed; /* since the last notice */
    bool used;    /* locked or written to, not only looked at */
    bool made;    /* by this: nobody has used it before */
    bool grown;   /* by this, so that space that is not needed is given back */
};

/* How a file is opened. */
enum store_mode {
    STORE_WRITABLE = 1,
    STORE_MADE = 2, /* if it is not there */
    STORE_CUT = 4,  /* begun again */
    STORE_NEW = 8   /* it must not be there */
};

/* Opens the file of a name. The configuration, from malloc, is its own from then on; NULL when it cannot. */
struct store *store_open(struct config *config, const char *name, unsigned mode, struct why *why);
/* The store is gone, also after an error. */
bool store_close(struct store *store, struct why *why);
/* Deletes the partitions of a name. The configuration is gone then. */
bool store_remove(struct config *config, const char *name, struct why *why);
/* The same for all that open the same file, and for nobody else. */
int store_compare(const struct store *one, const struct store *other);

/* One alone may write, or many read; earlier changes of others are seen then. */
bool store_lock(struct store *store, bool write, struct why *why);
bool store_unlock(struct store *store, struct why *why);

/* All pieces by one doorbell, as far as the ring goes. Bytes behind the file's end are read as zeros. */
bool store_read(struct store *store, const struct piece *pieces, size_t count, struct why *why);
bool store_write(struct store *store, const struct piece *pieces, size_t count, struct why *why);
/* Room for so many bytes of the file. */
bool store_reserve(struct store *store, uint64_t bytes, struct why *why);
/* Before it is said in the file that it ends here: the header never says less. */
bool store_announce(struct store *store, uint64_t bytes, struct why *why);
/* The file has so many bytes. */
bool store_resize(struct store *store, uint64_t bytes, struct why *why);
/* The header is that of the present content, and it is persistent if it is to be. */
bool store_flush(struct store *store, struct why *why);
/* Counts a change, for waiting readers. */
bool store_notify(struct store *store, struct why *why);

#endif
