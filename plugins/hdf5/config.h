/* config.h: the content of HDF5_DRIVER_CONFIG: KEY=VALUE;KEY=VALUE. docs/guide/hdf5.md names the keys. */
#ifndef TARN_CONFIG_H
#define TARN_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a whole configuration. */
#define CONFIG_BYTES 65536
/* Partitions that hold one file: as many as are opened as one. */
#define CONFIG_PARTITIONS 1024

/* Why something failed, as a sentence; and as the errno by which programs distinguish it, or 0. */
struct why {
    char text[1024];
    int number;
};

/* Sets it; false, to be returned. */
__attribute__((format(printf, 2, 3))) bool refuse(struct why *why, const char *format, ...);
/* The same, with an errno. */
__attribute__((format(printf, 3, 4))) bool refuse_as(struct why *why, int number, const char *format, ...);

enum notify { NOTIFY_CLOSE, NOTIFY_FLUSH, NOTIFY_NEVER };

struct config {
    char text[CONFIG_BYTES]; /* the text that the others point into */
    const char *folder;
    const char *base; /* the program's folder that it stands for */
    const char *partitions[CONFIG_PARTITIONS];
    size_t count;     /* 0: the folder and the file's name say which */
    uint64_t block;   /* bytes in one of several before it is the next one's turn */
    uint64_t size;    /* bytes of a partition that is made */
    uint64_t timeout; /* ns that an open waits */
    uint64_t changes; /* an open waits until there were so many */
    bool newer;       /* or more than at this program's last open */
    bool persistent, accepts_volatile, removed, writers, populated;
    enum notify notify;
};

/* Reads the text in config->text; it changes that. */
bool config_read(struct config *config, struct why *why);

#endif
