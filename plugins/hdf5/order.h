/*
 * order.h: HDF5's writes of a file's structure between two flushes. They are kept until the next one, and
 * then written in an order that keeps flushed content reachable if a kill comes in the middle: new content,
 * which nothing leads to yet; the file's end; and changes in place, from the front on, as a tree's root comes
 * before its growth.
 */
#ifndef TARN_ORDER_H
#define TARN_ORDER_H

#include "store.h"

/* Bytes of a superblock, as far as its end of file and checksum. */
#define SUPERBLOCK 96

/* Pieces that do not overlap, by their addresses; their buffers are their own. */
struct order {
    struct piece *pieces;
    size_t count, room;
    uint64_t bytes;
};

/* Keeps a copy of a piece; false without memory. None of the others may overlap it, but for the same one. */
bool order_keep(struct order *order, const struct piece *piece);
/* Whether one that is kept has a byte of this piece, and is not the same one if `other` is true. */
bool order_meets(const struct order *order, const struct piece *piece, bool other);
/* The end of the last piece. */
uint64_t order_end(const struct order *order);
/* Forgets all pieces behind the file's end. */
void order_cut(struct order *order, uint64_t end);
/* Writes all, and keeps nothing then. The superblock is at `base`, and HDF5 has given away addresses up to
 * `eoa`. */
bool order_write(struct order *order, struct store *store, uint64_t base, uint64_t eoa, struct why *why);
void order_free(struct order *order);

#endif
