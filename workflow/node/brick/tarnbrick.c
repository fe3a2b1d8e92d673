// tarnbrick: lets a brick of GlusterFS be an ordinary user's.
// The reasons: docs/internals/shared-namespace.md#bricks-of-an-ordinary-user.
//
// GlusterFS keeps its facts of a file in attributes `trusted.*`, which only root
// of the machine may write. With this library before the others they are
// `user.tarn.*`. Files that cannot have such (symbolic links, pipes, sockets)
// have them on a file of $TARN_BRICK_LINKS. Files that the file system makes for
// itself, and would give to root, stay its user's.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define INSIDE "trusted."
#define OUTSIDE "user.tarn."

enum { INSIDE_LENGTH = sizeof INSIDE - 1, OUTSIDE_LENGTH = sizeof OUTSIDE - 1 };

// The kinds of files, by the mode.
enum { KIND = 0170000, PLAIN = 0100000, FOLDER = 0040000 };

// The longest name that the kernel takes, and the additional length of ours.
enum { NAME_LENGTH = 256 + OUTSIDE_LENGTH };

static const char *outside(const char *name, char *buffer, size_t size) {
    if (!name || strncmp(name, INSIDE, INSIDE_LENGTH) != 0)
        return name;
    snprintf(buffer, size, OUTSIDE "%s", name + INSIDE_LENGTH);
    return buffer;
}

// The file that has the attributes of one that cannot have them. The number of
// an inode comes again: with the time at which it was made it does not.
static const char *holder(const char *path, char *buffer, size_t size, int make) {
    const char *folder = getenv("TARN_BRICK_LINKS");
    struct statx of;
    // By its number: the C library has no function of that name where it is older than 2.28.
    long failed =
        folder ? syscall(SYS_statx, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &of)
               : 1;
    unsigned kind = failed ? FOLDER : of.stx_mode & KIND;
    if (kind == PLAIN || kind == FOLDER)
        return path;
    snprintf(buffer, size, "%s/%llu.%lld.%u", folder, (unsigned long long)of.stx_ino,
             (long long)of.stx_btime.tv_sec, of.stx_btime.tv_nsec);
    if (make) {
        int fd = open(buffer, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        if (fd >= 0)
            close(fd);
    }
    return buffer;
}

// If nothing was ever set, there is no file.
static long none_of(long result, const char *path, const char *held) {
    if (result < 0 && errno == ENOENT && path != held)
        errno = ENODATA;
    return result;
}

#define TRANSLATED                                                                                           \
    char name_buffer[NAME_LENGTH];                                                                           \
    name = outside(name, name_buffer, sizeof name_buffer)

#define HELD(make)                                                                                           \
    char path_buffer[PATH_MAX];                                                                              \
    const char *held = holder(path, path_buffer, sizeof path_buffer, make)

int lsetxattr(const char *path, const char *name, const void *value, size_t size, int flags) {
    HELD(1);
    TRANSLATED;
    return (int)syscall(SYS_lsetxattr, held, name, value, size, flags);
}

int setxattr(const char *path, const char *name, const void *value, size_t size, int flags) {
    TRANSLATED;
    return (int)syscall(SYS_setxattr, path, name, value, size, flags);
}

int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags) {
    TRANSLATED;
    return (int)syscall(SYS_fsetxattr, fd, name, value, size, flags);
}

ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size) {
    HELD(0);
    TRANSLATED;
    return none_of(syscall(SYS_lgetxattr, held, name, value, size), path, held);
}

ssize_t getxattr(const char *path, const char *name, void *value, size_t size) {
    TRANSLATED;
    return syscall(SYS_getxattr, path, name, value, size);
}

ssize_t fgetxattr(int fd, const char *name, void *value, size_t size) {
    TRANSLATED;
    return syscall(SYS_fgetxattr, fd, name, value, size);
}

int lremovexattr(const char *path, const char *name) {
    HELD(0);
    TRANSLATED;
    return (int)none_of(syscall(SYS_lremovexattr, held, name), path, held);
}

int removexattr(const char *path, const char *name) {
    TRANSLATED;
    return (int)syscall(SYS_removexattr, path, name);
}

int fremovexattr(int fd, const char *name) {
    TRANSLATED;
    return (int)syscall(SYS_fremovexattr, fd, name);
}

// Names as GlusterFS knows them; they become shorter, never longer.
static ssize_t inside(char *list, ssize_t length) {
    if (length <= 0)
        return length;
    char *to = list;
    const char *end = list + length;
    for (const char *from = list; from < end;) {
        size_t whole = strlen(from) + 1;
        if (strncmp(from, OUTSIDE, OUTSIDE_LENGTH) == 0) {
            size_t rest = whole - OUTSIDE_LENGTH;
            memmove(to, INSIDE, INSIDE_LENGTH);
            memmove(to + INSIDE_LENGTH, from + OUTSIDE_LENGTH, rest);
            to += INSIDE_LENGTH + rest;
        } else {
            memmove(to, from, whole);
            to += whole;
        }
        from += whole;
    }
    return to - list;
}

// A caller with an empty buffer gets the size that is enough.
static ssize_t listed(char *list, size_t size, ssize_t length) {
    return size == 0 ? length : inside(list, length);
}

ssize_t llistxattr(const char *path, char *list, size_t size) {
    HELD(0);
    ssize_t length = syscall(SYS_llistxattr, held, list, size);
    if (length < 0 && errno == ENOENT && held != path)
        return 0;
    return listed(list, size, length);
}

ssize_t listxattr(const char *path, char *list, size_t size) {
    return listed(list, size, syscall(SYS_listxattr, path, list, size));
}

ssize_t flistxattr(int fd, char *list, size_t size) {
    return listed(list, size, syscall(SYS_flistxattr, fd, list, size));
}

static int owned(int folder, const char *path, uid_t user, gid_t group, int flags) {
    user = user == 0 ? (uid_t)-1 : user;
    group = group == 0 ? (gid_t)-1 : group;
    return (int)syscall(SYS_fchownat, folder, path, user, group, flags);
}

int lchown(const char *path, uid_t user, gid_t group) {
    return owned(AT_FDCWD, path, user, group, AT_SYMLINK_NOFOLLOW);
}

int chown(const char *path, uid_t user, gid_t group) { return owned(AT_FDCWD, path, user, group, 0); }

int fchown(int fd, uid_t user, gid_t group) { return owned(fd, "", user, group, AT_EMPTY_PATH); }

int fchownat(int folder, const char *path, uid_t user, gid_t group, int flags) {
    return owned(folder, path, user, group, flags);
}
