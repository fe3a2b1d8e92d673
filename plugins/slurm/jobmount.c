#include "jobmount.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RUN "/run/tarn"
#define JOBS RUN "/jobs"

/* No link is followed, wherever it leads. */
#define STRAIGHT (RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
/* A mount that leaves out what its file system may do beyond files. */
#define HARMLESS (MS_NOSUID | MS_NODEV)

/* "/proc/self/fd/" and a number. */
struct magic {
    char path[32];
};

static struct magic magic(int fd) {
    struct magic made;
    snprintf(made.path, sizeof made.path, "/proc/self/fd/%d", fd);
    return made;
}

static int open_straight(int folder, const char *path, uint64_t flags, uint64_t resolve) {
    struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = STRAIGHT | resolve};
    return (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
}

static bool not_opened(struct why *why, const char *what) {
    switch (errno) {
    case ENOSYS:
        return refuse(why, "the kernel has no openat2 (Linux 5.6), without which no path is safe: run a "
                           "newer kernel on this node");
    case ELOOP:
        return refuse(why, "a symbolic link in %s, where there may be none", what);
    case EXDEV:
        return refuse(why, "%s leads out of the store, or over another mount", what);
    default:
        return refuse(why, "%s cannot be opened: %s", what, strerror(errno));
    }
}

/* A folder that only root can change. */
static int open_folder(const char *path, struct why *why) {
    struct stat status;
    int fd = open_straight(AT_FDCWD, path, O_PATH | O_DIRECTORY, 0);
    if (fd < 0) {
        not_opened(why, path);
        return -1;
    }
    if (fstat(fd, &status) == 0 && status.st_uid == 0 && !(status.st_mode & (S_IWGRP | S_IWOTH)))
        return fd;
    refuse(why, "%s is not root's alone: chown root: %s; chmod go-w %s", path, path, path);
    close(fd);
    return -1;
}

/* The bytes of a file; -1 when it cannot be read, and more than `room` never. */
static ssize_t bytes_of(int fd, char *to, size_t room) {
    size_t length = 0;
    while (length < room) {
        ssize_t more = read(fd, to + length, room - length);
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0)
            return -1;
        if (more == 0)
            break;
        length += (size_t)more;
    }
    return (ssize_t)length;
}

static bool read_file(int fd, struct job *job, struct why *why) {
    static char bytes[JOB_BYTES + 1]; /* one more than may be there, so that too many are seen */
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != 0 || (status.st_mode & 0177))
        return refuse(why, "it is no file that only root can read and write");
    ssize_t length = bytes_of(fd, bytes, sizeof bytes);
    if (length < 0)
        return refuse(why, "it cannot be read: %s", strerror(errno));
    return job_parse(job, bytes, (size_t)length, why);
}

enum job_found job_read(uint32_t id, struct job *job, struct why *why) {
    struct why because = {""};
    struct stat status;
    char path[64];
    snprintf(path, sizeof path, JOBS "/%" PRIu32, id);
    if (lstat(path, &status) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return JOB_NONE; /* most jobs: one call */
    int folder = open_folder(JOBS, why);
    if (folder < 0)
        return JOB_REFUSED;
    int fd = open_straight(folder, strrchr(path, '/') + 1, O_RDONLY | O_NONBLOCK | O_NOCTTY, RESOLVE_BENEATH);
    bool good = fd >= 0 ? read_file(fd, job, &because) : not_opened(&because, "it");
    if (fd >= 0)
        close(fd);
    close(folder);
    if (good)
        return JOB_READ;
    refuse(why, "%s: %s: only tarnd writes this file; restart it on this node, then requeue the job", path,
           because.text);
    return JOB_REFUSED;
}

/* The restrictions of a mount, as the flags that keep them. */
static unsigned long kept(int mounted) {
    struct statvfs status;
    if (fstatvfs(mounted, &status) != 0)
        return MS_NOEXEC | MS_RDONLY;
    return (status.f_flag & ST_NOEXEC ? MS_NOEXEC : 0) | (status.f_flag & ST_RDONLY ? MS_RDONLY : 0);
}

/* A new name in the folder of data, of the same kind as the object that is bound there. */
static bool make_place(int data, const char *name, bool folder) {
    if (folder)
        return mkdirat(data, name, 0755) == 0;
    int fd = openat(data, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    return fd >= 0 && close(fd) == 0;
}

static int open_place(int data, const char *name) {
    return openat(data, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

/* Under which name a task finds it. */
static const char *place_of(const struct job_mount *dataset) {
    return dataset->checkpoints ? JOB_CHECKPOINTS : dataset->name;
}

static bool bind_at(int from, int data, const struct job_mount *dataset) {
    int place = open_place(data, place_of(dataset));
    bool bound = place >= 0 && mount(magic(from).path, magic(place).path, NULL, MS_BIND, NULL) == 0;
    if (place >= 0)
        close(place);
    if (!bound || (place = open_place(data, place_of(dataset))) < 0) /* now what is mounted there */
        return false;
    unsigned long flags = MS_REMOUNT | MS_BIND | HARMLESS | kept(place) | (dataset->writable ? 0 : MS_RDONLY);
    bound = mount(NULL, magic(place).path, NULL, flags, NULL) == 0;
    close(place);
    return bound;
}

static bool is_owners(const struct stat *status, const struct job_mount *dataset) {
    return (dataset->project ? status->st_gid : status->st_uid) == dataset->owner;
}

static bool one_mount(int store, int data, const struct job_mount *dataset, struct why *why) {
    struct stat status;
    bool done = false;
    int from = open_straight(store, dataset->path, O_PATH, RESOLVE_BENEATH | RESOLVE_NO_XDEV);
    if (from < 0)
        return not_opened(why, dataset->path);
    if (fstat(from, &status) != 0 || !(S_ISDIR(status.st_mode) || S_ISREG(status.st_mode)))
        refuse(why, "%s is neither a folder nor a file", dataset->path);
    else if (!is_owners(&status, dataset))
        refuse(why, "%s is not of %s %" PRIu32, dataset->path, dataset->project ? "group" : "user",
               dataset->owner);
    else if (!make_place(data, place_of(dataset), S_ISDIR(status.st_mode)) || !bind_at(from, data, dataset))
        refuse(why, "%s cannot be bound to " JOB_DATA "/%s: %s", dataset->path, place_of(dataset),
               strerror(errno));
    else
        done = true;
    close(from);
    return done;
}

static bool all_mounts(const struct job *job, int data, struct why *why) {
    int stores[JOB_ROOTS], memory = -1;
    size_t opened = 0;
    while (opened < job->stores && (stores[opened] = open_folder(job->roots[opened], why)) >= 0)
        opened++;
    bool done = opened == job->stores && (!job->clear || (memory = open_folder(job->clear, why)) >= 0);
    for (size_t i = 0; done && i < job->count; i++) {
        const struct job_mount *dataset = &job->mounts[i];
        struct why because;
        done = one_mount(dataset->clear ? memory : stores[dataset->root], data, dataset, &because);
        if (!done)
            refuse(why, "dataset %s: %s: `tarn data ls` and tarnd's log on this node show what is there",
                   job->mounts[i].name, because.text);
    }
    if (memory >= 0)
        close(memory);
    while (opened > 0)
        close(stores[--opened]);
    return done;
}

/* A folder of the task's own over JOB_DATA, as a descriptor. */
static int own_data(struct why *why) {
    char options[64];
    int run = open_folder(RUN, why), below = -1, data = -1;
    if (run < 0)
        return -1;
    if (mkdirat(run, "data", 0755) != 0 && errno != EEXIST)
        refuse(why, JOB_DATA " cannot be made: %s", strerror(errno));
    else if ((below = open_folder(JOB_DATA, why)) >= 0) {
        snprintf(options, sizeof options, "mode=755,size=64k,nr_inodes=%d", JOB_MOUNTS + 16);
        if (mount("tarn", magic(below).path, "tmpfs", HARMLESS | MS_NOEXEC, options) != 0 ||
            (data = open_place(run, "data")) < 0)
            refuse(why, "no tmpfs can be mounted on " JOB_DATA ": %s", strerror(errno));
        close(below);
    }
    close(run);
    return data;
}

bool job_mount(const struct job *job, struct why *why) {
    /* The task sees later mounts of the node; nobody else sees the mounts made here. */
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0)
        return refuse(why, "no private mount namespace: %s: slurmd needs CAP_SYS_ADMIN", strerror(errno));
    int data = own_data(why);
    bool done = data >= 0 && all_mounts(job, data, why);
    if (done && mount(NULL, magic(data).path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOEXEC | HARMLESS,
                      NULL) != 0)
        done = refuse(why, JOB_DATA " cannot be made read-only: %s", strerror(errno));
    if (data >= 0)
        close(data);
    return done;
}
