#include "header.h"

#include <stdbool.h>
#include <string.h>

enum { VERSION = 1, SECOND = 2048, SUM = HEADER_COPY - 8 };

static const char MAGIC[8] = {'T', 'A', 'R', 'N', 'H', 'D', 'F', '5'};

/* A stored copy, in the order of the bytes of this processor, which is the little-endian one. */
struct copy {
    char magic[8];
    uint64_t version;
    struct header header;
};

_Static_assert(sizeof(struct copy) == 64 && sizeof(struct copy) <= SUM,
               "it is as in docs/reference/formats.md");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are little-endian");

/* CRC-64/NVME, reflected. */
static uint64_t sum(const unsigned char *bytes, int length) {
    uint64_t crc = ~(uint64_t)0;
    for (int i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x9a6c9329ac4bc9b5 : 0);
    }
    return ~crc;
}

uint64_t header_place(uint64_t number) { return number % 2 ? 0 : SECOND; }

void header_write(const struct header *header, unsigned char *copy) {
    struct copy content = {.version = VERSION, .header = *header};
    memcpy(content.magic, MAGIC, sizeof MAGIC);
    memset(copy, 0, HEADER_COPY);
    memcpy(copy, &content, sizeof content);
    uint64_t crc = sum(copy, SUM);
    memcpy(copy + SUM, &crc, sizeof crc);
}

static enum header_state read_copy(const unsigned char *bytes, struct header *header) {
    static const unsigned char zeros[HEADER_COPY];
    struct copy copy;
    uint64_t crc;
    if (memcmp(bytes, zeros, HEADER_COPY) == 0)
        return HEADER_NONE;
    memcpy(&copy, bytes, sizeof copy);
    memcpy(&crc, bytes + SUM, sizeof crc);
    if (memcmp(copy.magic, MAGIC, sizeof MAGIC) != 0 || crc != sum(bytes, SUM))
        return HEADER_DAMAGED;
    *header = copy.header;
    return copy.version == VERSION ? HEADER_SOUND : HEADER_NEWER;
}

enum header_state header_read(const unsigned char *page, struct header *header) {
    struct header second = {0};
    enum header_state one = read_copy(page, header), two = read_copy(page + SECOND, &second);
    if (one == HEADER_NEWER || two == HEADER_NEWER)
        return HEADER_NEWER;
    if (two == HEADER_SOUND && (one != HEADER_SOUND || second.number > header->number))
        *header = second;
    if (one == HEADER_SOUND || two == HEADER_SOUND)
        return HEADER_SOUND;
    return one == HEADER_NONE && two == HEADER_NONE ? HEADER_NONE : HEADER_DAMAGED;
}
