#include "names.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Others are of a dataspace of tarnd. */
static bool is_path(const char *name) {
    return name[0] == '/' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
           strncmp(name, "./", 2) == 0 || strncmp(name, "../", 3) == 0;
}

static char *joined(const char *folder, const char *name) {
    char *whole;
    const char *between = *folder && folder[strlen(folder) - 1] == '/' ? "" : "/";
    return asprintf(&whole, "%s%s%s", folder, between, name) < 0 ? NULL : whole;
}

/* A folder's path without links; as it is where there is none, and in a dataspace. */
static char *plain(const char *folder) {
    char *real = is_path(folder) ? realpath(folder, NULL) : NULL;
    return real ? real : strdup(folder);
}

char *name_of(const char *partition) {
    const char *slash = strrchr(partition, '/');
    if (!slash || slash == partition || !is_path(partition))
        return strdup(partition);
    char *folder = strndup(partition, (size_t)(slash - partition));
    char *real = folder ? plain(folder) : NULL;
    char *whole = real ? joined(real, slash + 1) : NULL;
    free(real);
    free(folder);
    return whole;
}

/* The folder that the program was in at the first use: the value of `base` if nothing has set it. */
static char *first;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look(void) { first = getcwd(NULL, 0); }

/* Removes `.` and `..` from a path, in the part that does not exist: links in it cannot be resolved. */
static void straighten(char *path) {
    char *to = path, *rest = path, *part;
    while ((part = strsep(&rest, "/"))) {
        if (!*part || strcmp(part, ".") == 0)
            continue;
        if (strcmp(part, "..") == 0) {
            while (to > path && *--to != '/')
                ;
            continue;
        }
        size_t length = strlen(part);
        memmove(to + 1, part, length);
        *to = '/';
        to += 1 + length;
    }
    *to = '\0';
}

/* A whole path without links, as far as it is there. */
static char *real(const char *path) {
    char *there = strdup(path), *found = NULL;
    size_t length = strlen(path);
    while (there && length > 0 && !(found = realpath(there, NULL))) {
        while (length > 0 && there[--length] != '/')
            ;
        there[length] = '\0';
    }
    free(there);
    char *whole = joined(found ? found : "/", path + length);
    free(found);
    if (whole)
        straighten(whole);
    return whole;
}

/* A path relative to a folder that it is in; NULL if it is not. */
static const char *below(const char *path, const char *folder) {
    size_t length = strlen(folder);
    while (length > 0 && folder[length - 1] == '/')
        length--;
    if (strncmp(path, folder, length) != 0 || path[length] != '/')
        return NULL;
    return path + length + 1;
}

/* Two files that a program has in two folders are two partitions. */
char *name_in(const struct config *config, const char *file) {
    pthread_once(&once, look);
    char *folder = plain(config->folder);
    char *here = *file == '/' ? NULL : getcwd(NULL, 0);
    char *path = here ? joined(here, file) : strdup(file);
    /* The file itself is none that could be a link. */
    char *slash = path ? strrchr(path, '/') : NULL;
    char *name = slash ? strdup(slash + 1) : path ? strdup(path) : NULL;
    if (slash)
        *slash = '\0';
    char *above = path ? real(slash ? path : "/") : NULL;
    char *whole = above && name ? joined(above, name) : NULL;
    const char *base = config->base ? config->base : first;
    const char *within = NULL;
    if (whole && folder) {
        within = is_path(folder) ? below(whole, folder) : NULL;
        if (!within && base)
            within = below(whole, base);
        if (!within)
            within = whole + 1;
    }
    char *partition = within ? joined(folder, within) : NULL;
    free(folder);
    free(here);
    free(path);
    free(name);
    free(above);
    free(whole);
    return partition;
}

/* How much of a partition's name is the configuration's folder; 0 where folders are none of this library's.
 */
static size_t top(const struct config *config, const char *partition) {
    char *folder = config->count ? NULL : plain(config->folder);
    size_t length = 0;
    if (folder && is_path(folder) && below(partition, folder))
        length = (size_t)(below(partition, folder) - partition);
    free(folder);
    return length;
}

void names_enter(const struct config *config, const char *partition) {
    size_t begin = top(config, partition);
    char *path = begin ? strdup(partition) : NULL;
    for (char *slash = path ? strchr(path + begin, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    free(path);
}

void names_leave(const struct config *config, const char *partition) {
    size_t begin = top(config, partition);
    char *path = begin ? strdup(partition) : NULL, *slash;
    while (path && (slash = strrchr(path + begin, '/'))) {
        *slash = '\0';
        if (rmdir(path) != 0)
            break;
    }
    free(path);
}
