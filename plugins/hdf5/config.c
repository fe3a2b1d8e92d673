#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((uint64_t)1024)
#define SECOND ((uint64_t)1000000000)

bool refuse(struct why *why, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(why->text, sizeof why->text, format, rest);
    va_end(rest);
    why->number = 0;
    return false;
}

bool refuse_as(struct why *why, int number, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(why->text, sizeof why->text, format, rest);
    va_end(rest);
    why->number = number;
    return false;
}

/* A number and the text after it; false when there is none, or it is too large. */
static bool number(const char *text, uint64_t *value, const char **rest) {
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    *rest = end;
    return errno == 0;
}

static bool scaled(const char *text, const char *const names[], const uint64_t scales[], uint64_t *value) {
    const char *unit;
    if (!number(text, value, &unit))
        return false;
    for (size_t i = 0; names[i]; i++)
        if (strcmp(unit, names[i]) == 0)
            return !__builtin_mul_overflow(*value, scales[i], value);
    return false;
}

static bool bytes(const char *text, uint64_t *value) {
    static const char *const names[] = {"", "K", "M", "G", "T", NULL};
    static const uint64_t scales[] = {1, KIB, KIB * KIB, KIB * KIB * KIB, KIB * KIB * KIB * KIB};
    return scaled(text, names, scales, value);
}

static bool duration(const char *text, uint64_t *value) {
    static const char *const names[] = {"", "ms", "s", "m", "h", NULL};
    static const uint64_t scales[] = {SECOND, SECOND / 1000, SECOND, 60 * SECOND, 3600 * SECOND};
    return scaled(text, names, scales, value);
}

/* Which of the words it is; -1 when none. */
static int word(const char *text, const char *const words[]) {
    for (int i = 0; words[i]; i++)
        if (strcmp(text, words[i]) == 0)
            return i;
    return -1;
}

static bool chosen(const char *text, const char *const words[], bool *second) {
    int found = word(text, words);
    *second = found == 1;
    return found >= 0;
}

static bool names(struct config *config, char *list) {
    char *rest = NULL;
    for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        if (config->count == CONFIG_PARTITIONS)
            return false;
        config->partitions[config->count++] = name;
    }
    return config->count > 0;
}

static const char *const LEVELS[] = {"visible", "persistent", NULL};
static const char *const VOLATILE[] = {"refuse", "accept", NULL};
static const char *const KEEP[] = {"yes", "no", NULL};
static const char *const POPULATE[] = {"no", "yes", NULL};
static const char *const NOTIFY[] = {"close", "flush", "never", NULL};
static const char *const SHARE[] = {"no", "writers", NULL};

enum key {
    FOLDER,
    BASE,
    PARTITION,
    PARTITIONS,
    BLOCK,
    SIZE,
    LEVEL,
    VOLATILE_KEY,
    KEEP_KEY,
    SHARE_KEY,
    NOTIFY_KEY,
    WAIT,
    TIMEOUT,
    POPULATE_KEY
};

static const struct {
    const char *name, *value;
} KEYS[] = {
    [FOLDER] = {"folder", "a folder of a tier"},
    [BASE] = {"base", "the absolute path of a folder"},
    [PARTITION] = {"partition", "a partition"},
    [PARTITIONS] = {"partitions", "1 to 1024 partitions, with commas between them"},
    [BLOCK] = {"block", "a multiple of 4K up to 1G, such as 1M"},
    [SIZE] = {"size", "4K to 1T, such as 64M"},
    [LEVEL] = {"level", "visible or persistent"},
    [VOLATILE_KEY] = {"volatile", "accept or refuse"},
    [KEEP_KEY] = {"keep", "yes or no"},
    [SHARE_KEY] = {"share", "no or writers"},
    [NOTIFY_KEY] = {"notify", "close, flush or never"},
    [WAIT] = {"wait", "newer, or a number of changes"},
    [TIMEOUT] = {"timeout", "a time such as 500ms, 10s or 5m"},
    [POPULATE_KEY] = {"populate", "yes or no"},
};

static bool set(struct config *config, enum key key, char *value) {
    const char *rest;
    int found;
    switch (key) {
    case FOLDER:
        config->folder = value;
        return *value != '\0';
    case BASE:
        config->base = value;
        return *value == '/';
    case PARTITION:
        config->partitions[0] = value;
        config->count = 1;
        return *value != '\0';
    case PARTITIONS:
        config->count = 0;
        return names(config, value);
    case BLOCK:
        return bytes(value, &config->block) && config->block && config->block % (4 * KIB) == 0 &&
               config->block <= KIB * KIB * KIB;
    case SIZE:
        return bytes(value, &config->size) && config->size >= 4 * KIB &&
               config->size <= KIB * KIB * KIB * KIB;
    case LEVEL:
        return chosen(value, LEVELS, &config->persistent);
    case VOLATILE_KEY:
        return chosen(value, VOLATILE, &config->accepts_volatile);
    case KEEP_KEY:
        return chosen(value, KEEP, &config->removed);
    case SHARE_KEY:
        return chosen(value, SHARE, &config->writers);
    case NOTIFY_KEY:
        found = word(value, NOTIFY);
        config->notify = (enum notify)found;
        return found >= 0;
    case WAIT:
        config->newer = strcmp(value, "newer") == 0;
        return config->newer || (number(value, &config->changes, &rest) && !*rest && config->changes);
    case TIMEOUT:
        return duration(value, &config->timeout);
    case POPULATE_KEY:
        return chosen(value, POPULATE, &config->populated);
    }
    return false;
}

bool config_read(struct config *config, struct why *why) {
    bool given[sizeof KEYS / sizeof *KEYS] = {false};
    char *rest = NULL;
    config->block = KIB * KIB;
    config->size = KIB * KIB;
    for (char *item = strtok_r(config->text, ";", &rest); item; item = strtok_r(NULL, ";", &rest)) {
        char *value = strchr(item, '=');
        if (!value)
            return refuse(why, "HDF5_DRIVER_CONFIG: `%s` is not KEY=VALUE", item);
        *value++ = '\0';
        if (strcmp(item, "patience") == 0) /* its former name */
            item = "timeout";
        size_t key = 0;
        while (key < sizeof KEYS / sizeof *KEYS && strcmp(item, KEYS[key].name) != 0)
            key++;
        if (key == sizeof KEYS / sizeof *KEYS)
            return refuse(
                why,
                "HDF5_DRIVER_CONFIG: there is no key `%s`; there are folder, base, partition, partitions, "
                "block, size, level, volatile, keep, share, notify, wait, timeout and populate",
                item);
        if (given[key])
            return refuse(why, "HDF5_DRIVER_CONFIG: `%s` is there twice", item);
        given[key] = true;
        if (!set(config, (enum key)key, value))
            return refuse(why, "HDF5_DRIVER_CONFIG: `%s` must be %s", item, KEYS[key].value);
    }
    if (given[FOLDER] + given[PARTITION] + given[PARTITIONS] != 1)
        return refuse(why, "HDF5_DRIVER_CONFIG must have one of folder=, partition= and partitions=, such as "
                           "folder=/dev/shm/me (`tarn h5 exec` sets it)");
    if (given[BASE] && !given[FOLDER])
        return refuse(why, "HDF5_DRIVER_CONFIG: base= is for a folder=");
    if (given[BLOCK] && config->count < 2)
        return refuse(why, "HDF5_DRIVER_CONFIG: block= is for several partitions=");
    if (given[WAIT] && !given[TIMEOUT])
        config->timeout = 60 * SECOND;
    return true;
}
