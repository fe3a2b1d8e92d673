/* header.h: the header before an HDF5 file in a partition; docs/reference/formats.md. */
#ifndef TARN_HEADER_H
#define TARN_HEADER_H

#include <stdint.h>

enum {
    HEADER_BYTES = 4096,  /* all of it */
    HEADER_COPY = 128,    /* of each of the two copies */
    HEADER_CHANGES = 1024 /* where the count of changes is */
};

struct header {
    uint64_t number; /* of this copy, from 1 on: the higher one holds */
    uint64_t identity[2];
    uint64_t eof;
    uint64_t block;
    uint32_t count, index;
};

enum header_state {
    HEADER_NONE, /* zeros */
    HEADER_SOUND,
    HEADER_NEWER,
    HEADER_DAMAGED
};

enum header_state header_read(const unsigned char *page, struct header *header);
void header_write(const struct header *header, unsigned char *copy);
/* The place of the copy of a number. */
uint64_t header_place(uint64_t number);

#endif
