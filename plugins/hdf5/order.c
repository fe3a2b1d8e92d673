#include "order.h"

#include <stdlib.h>
#include <string.h>

static uint64_t end_of(const struct piece *piece) { return piece->address + piece->size; }

/* The first that ends behind an address. */
static size_t behind(const struct order *order, uint64_t address) {
    size_t low = 0, high = order->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (end_of(&order->pieces[middle]) <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool same(const struct piece *one, const struct piece *other) {
    return one->address == other->address && one->size == other->size;
}

bool order_meets(const struct order *order, const struct piece *piece, bool other) {
    size_t at = behind(order, piece->address);
    if (at == order->count || order->pieces[at].address >= end_of(piece))
        return false;
    return !other || !same(&order->pieces[at], piece);
}

bool order_keep(struct order *order, const struct piece *piece) {
    size_t at = behind(order, piece->address);
    if (at < order->count && same(&order->pieces[at], piece)) {
        memcpy(order->pieces[at].buffer, piece->buffer, piece->size);
        return true;
    }
    if (order->count == order->room) {
        size_t room = order->room ? 2 * order->room : 64;
        struct piece *more = reallocarray(order->pieces, room, sizeof *more);
        if (!more)
            return false;
        order->pieces = more;
        order->room = room;
    }
    void *copy = malloc(piece->size);
    if (!copy)
        return false;
    memcpy(copy, piece->buffer, piece->size);
    memmove(&order->pieces[at + 1], &order->pieces[at], (order->count - at) * sizeof *piece);
    order->pieces[at] = (struct piece){piece->address, piece->size, copy};
    order->count++;
    order->bytes += piece->size;
    return true;
}

uint64_t order_end(const struct order *order) {
    return order->count ? end_of(&order->pieces[order->count - 1]) : 0;
}

void order_cut(struct order *order, uint64_t end) {
    while (order->count && order_end(order) > end) {
        struct piece *last = &order->pieces[order->count - 1];
        uint64_t gone = order_end(order) - end;
        if (last->address >= end) {
            gone = last->size;
            free(last->buffer);
            order->count--;
        }
        last->size -= gone;
        order->bytes -= gone;
    }
}

/* Takes it out of the list, which becomes shorter by it. */
static bool written(struct order *order, size_t at, struct store *store, struct why *why) {
    struct piece piece = order->pieces[at];
    if (!store_write(store, &piece, 1, why))
        return false;
    free(piece.buffer);
    order->bytes -= piece.size;
    order->count--;
    memmove(&order->pieces[at], &order->pieces[at + 1], (order->count - at) * sizeof piece);
    return true;
}

/* All from one on, by as few doorbells as may be. */
static bool all_written(struct order *order, size_t from, struct store *store, struct why *why) {
    if (from == order->count)
        return true;
    if (!store_write(store, &order->pieces[from], order->count - from, why))
        return false;
    while (order->count > from) {
        struct piece *last = &order->pieces[--order->count];
        order->bytes -= last->size;
        free(last->buffer);
    }
    return true;
}

bool order_write(struct order *order, struct store *store, uint64_t base, uint64_t eoa, struct why *why) {
    const struct piece superblock = {base, SUPERBLOCK, NULL};
    /* Addresses from here on are beyond the reach of the present superblock. */
    uint64_t new = base + SUPERBLOCK;
    if (store->recorded_eof > new && (!store->cut || store->begun))
        new = store->recorded_eof;
    size_t from = behind(order, new);
    if (from < order->count && order->pieces[from].address < new)
        from++;
    if (!all_written(order, from, store, why))
        return false;
    if (order_meets(order, &superblock, false)) {
        size_t at = behind(order, base);
        if (!store_announce(store, eoa, why) || !written(order, at, store, why))
            return false;
    }
    while (order->count)
        if (!written(order, 0, store, why))
            return false;
    return true;
}

void order_free(struct order *order) {
    for (size_t i = 0; i < order->count; i++)
        free(order->pieces[i].buffer);
    free(order->pieces);
    *order = (struct order){0};
}
