/* The folder in which a user's processes with the device find each other. */
#include "device.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Others may take away what is being made, believing that its maker is dead. */
#define TRIES 100
/* ns that a peer is looked at without a pause: a copy takes as long. */
#define SPIN 1000000

#define OPEN_FLAGS (O_RDWR | O_CLOEXEC | O_NOFOLLOW)

/* A process has its number for itself only as long as it lives: with this, for ever. Ticks since the system's
 * start; 0 if it is not there. */
static uint64_t started(pid_t pid) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return 0;
    line[length] = 0;
    /* The name, in parentheses, may have any character; the time is the 20th field behind it. */
    char *at = strrchr(line, ')');
    for (int field = 0; at && field < 20; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static uint64_t pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

/* The folder, which is this user's alone. */
static int folder_open(void) {
    char path[4096];
    const char *named = secure_getenv("TARN_VERBS_DIR");
    int length = named ? snprintf(path, sizeof path, "%s", named)
                       : snprintf(path, sizeof path, "/dev/shm/tarn-verbs-%u", (unsigned)geteuid());
    if (length < 0 || (size_t)length >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return -1;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat status;
    if (folder < 0)
        return -1;
    if (fstat(folder, &status) != 0 || status.st_uid != geteuid() || status.st_mode & 077) {
        fprintf(stderr, "tarn verbs: %s is not a folder of this user alone (mode 0700): no RDMA device\n",
                path);
        close(folder);
        errno = EPERM;
        return -1;
    }
    return folder;
}

/* Takes a device's files away, and its folder. */
static void folder_remove(int folder, const char *name) {
    int own = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *files = own < 0 ? NULL : fdopendir(own);
    for (struct dirent *file; files && (file = readdir(files));)
        if (strcmp(file->d_name, ".") != 0 && strcmp(file->d_name, "..") != 0)
            unlinkat(own, file->d_name, 0);
    if (files)
        closedir(files);
    else if (own >= 0)
        close(own);
    unlinkat(folder, name, AT_REMOVEDIR);
}

/* Takes away what dead processes have left. */
static void sweep(int folder) {
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        char path[300];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/area", entry->d_name);
        struct stat status;
        int lock = openat(folder, path, OPEN_FLAGS);
        if (lock < 0)
            unlinkat(folder, entry->d_name, AT_REMOVEDIR);
        /* If another has taken it away meanwhile, the name may be that of a living one. */
        else if (flock(lock, LOCK_EX | LOCK_NB) == 0 && fstat(lock, &status) == 0 && status.st_nlink > 0)
            folder_remove(folder, entry->d_name);
        if (lock >= 0)
            close(lock);
    }
    if (entries)
        closedir(entries);
}

static void *map(int fd, size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* A file of zeros of so many bytes, mapped; -1 and NULL if it cannot be. */
static int file_make(int folder, const char *name, size_t bytes, void **memory) {
    int fd = openat(folder, name, OPEN_FLAGS | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return -1;
    *memory = ftruncate(fd, (off_t)bytes) == 0 ? map(fd, bytes) : NULL;
    if (*memory)
        return fd;
    int code = errno;
    unlinkat(folder, name, 0);
    close(fd);
    errno = code;
    return -1;
}

/* Gives a device's folder, which is whole, a free number. */
static bool name(struct context *context, const char *made) {
    uint32_t first = (uint32_t)getpid() * 7919u;
    for (uint32_t i = 0; i < MAX_SLOTS - 1; i++) {
        char to[8];
        uint32_t slot = 1 + (first + i) % (MAX_SLOTS - 1);
        snprintf(to, sizeof to, "%03x", slot);
        if (renameat(context->folder, made, context->folder, to) == 0) {
            context->slot = slot;
            return true;
        }
        if (errno != EEXIST && errno != ENOTEMPTY)
            return false;
    }
    errno = EMFILE;
    return false;
}

/* Makes this process's folder. */
static bool own_make(struct context *context) {
    static _Atomic uint32_t count;
    char made[64];
    snprintf(made, sizeof made, ".new-%d-%u", (int)getpid(), count++);
    if (mkdirat(context->folder, made, 0700) != 0)
        return false;
    context->own = openat(context->folder, made, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    void *area = NULL;
    context->lock = context->own < 0 ? -1 : file_make(context->own, "area", sizeof(struct area), &area);
    context->area = area;
    if (context->lock >= 0 && flock(context->lock, LOCK_EX | LOCK_NB) == 0) {
        context->area->pid = getpid();
        context->area->pid_namespace = pid_namespace();
        context->area->started = started(getpid());
        context->area->magic = AREA_MAGIC;
        if (name(context, made))
            return true;
    }
    int code = errno;
    if (context->own >= 0)
        folder_remove(context->folder, made);
    if (context->area)
        munmap(context->area, sizeof *context->area);
    if (context->lock >= 0)
        close(context->lock);
    if (context->own >= 0)
        close(context->own);
    errno = code;
    return false;
}

/* Lets peers reach this process's memory where only a debugger that it has named may (Yama). */
static void allow_peers(void) {
    char scope = '0';
    int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read(fd, &scope, 1) == 1 && scope == '1')
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    close(fd);
}

bool area_open(struct context *context) {
    context->folder = folder_open();
    if (context->folder < 0)
        return false;
    sweep(context->folder);
    for (int i = 0; i < TRIES; i++) {
        if (own_make(context)) {
            allow_peers();
            return true;
        }
        if (errno != ENOENT && errno != EWOULDBLOCK && errno != EEXIST)
            break;
    }
    int code = errno;
    close(context->folder);
    errno = code;
    return false;
}

void area_leave(const struct context *context) {
    char name[8];
    snprintf(name, sizeof name, "%03x", context->slot);
    folder_remove(context->folder, name);
}

void area_close(struct context *context) {
    area_leave(context);
    munmap(context->area, sizeof *context->area);
    close(context->lock);
    close(context->own);
    close(context->folder);
}

static void queue_name(char name[16], uint32_t place) { snprintf(name, 16, "q%03x", place); }

static void srq_name(char name[16], uint32_t place) { snprintf(name, 16, "s%03x", place); }

void pipe_name(char name[16], uint32_t channel) { snprintf(name, 16, "c%03x", channel); }

/* A file that begins with its magic number. */
static void *own_file(const struct context *context, const char *name, size_t bytes, uint64_t magic) {
    char new[32];
    void *memory = NULL;
    snprintf(new, sizeof new, ".%s", name);
    int fd = file_make(context->own, new, bytes, &memory);
    if (fd < 0)
        return NULL;
    close(fd);
    *(uint64_t *)memory = magic;
    if (renameat(context->own, new, context->own, name) == 0)
        return memory;
    munmap(memory, bytes);
    return NULL;
}

struct queue_area *queue_area_make(struct context *context, uint32_t place, uint32_t entries, size_t *bytes) {
    char name[16];
    queue_name(name, place);
    *bytes = sizeof(struct queue_area) + (size_t)entries * sizeof(struct slot);
    struct queue_area *area = own_file(context, name, *bytes, QUEUE_MAGIC);
    if (area)
        area->ring.entries = entries;
    return area;
}

struct srq_area *srq_area_make(struct context *context, uint32_t place, uint32_t entries, size_t *bytes) {
    char name[16];
    srq_name(name, place);
    *bytes = sizeof(struct srq_area) + (size_t)entries * sizeof(struct slot);
    struct srq_area *area = own_file(context, name, *bytes, SRQ_MAGIC);
    if (area)
        area->ring.entries = entries;
    return area;
}

void srq_area_drop(struct context *context, uint32_t place, struct srq_area *area, size_t bytes) {
    char name[16];
    srq_name(name, place);
    unlinkat(context->own, name, 0);
    munmap(area, bytes);
}

void queue_area_drop(struct context *context, uint32_t place, struct queue_area *area, size_t bytes) {
    char name[16];
    queue_name(name, place);
    atomic_store(&area->state, IBV_QPS_RESET);
    if (!forked)
        unlinkat(context->own, name, 0);
    munmap(area, bytes);
}

/* Whether its lock could be had: nobody had it at that time. */
static bool datagrams_quiet(const struct queue_pair *qp, uint64_t timeout) {
    struct flock lock = {.l_type = F_WRLCK, .l_start = UD_LOCKS + (off_t)qp->place, .l_len = 1};
    int fd = context_of(qp->verbs.context)->lock;
    uint64_t since = now();
    while (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        uint64_t waited = now() - since;
        if (waited >= timeout)
            return false;
        if (waited > SPIN)
            nanosleep(&(struct timespec){.tv_nsec = SPIN}, NULL);
    }
    lock.l_type = F_UNLCK;
    fcntl(fd, F_OFD_SETLK, &lock);
    return true;
}

/* Whether anybody is connected to it. A process that ends may have taken its files away, but its locks go
 * when it has ended. */
static bool is_linked(const struct queue_pair *qp) {
    struct flock lock = {.l_type = F_WRLCK, .l_start = LINK_LOCKS + (off_t)qp->place, .l_len = 1};
    return fcntl(context_of(qp->verbs.context)->lock, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool queue_area_quiet(const struct queue_pair *qp, uint64_t timeout) {
    if (is_datagram(qp))
        return datagrams_quiet(qp, timeout);
    uint32_t seen = atomic_load(&qp->area->busy);
    uint64_t since = now();
    struct peer *peer = NULL;
    bool quiet = !(seen & 1), looked = false;
    while (!quiet) {
        uint64_t waited = now() - since;
        bool late = waited >= timeout;
        if (!looked && (late || waited > SPIN)) {
            peer = peer_connect(context_of(qp->verbs.context), qp->area->dest_qpn);
            looked = true;
        }
        /* Another value: that request has ended, and those after it see the caller's changes. One that was
         * killed is never done, and no longer at it. */
        quiet =
            atomic_load(&qp->area->busy) != seen || (looked && (peer ? !peer_lives(peer) : !is_linked(qp)));
        if (late)
            break;
        if (looked)
            nanosleep(&(struct timespec){.tv_nsec = SPIN}, NULL);
    }
    if (peer)
        peer_drop(peer);
    return quiet;
}

bool peer_lives(const struct peer *peer) {
    struct pollfd end = {.fd = peer->process, .events = POLLIN};
    return poll(&end, 1, 0) == 0;
}

void peer_drop(struct peer *peer) {
    if (peer->queue)
        munmap(peer->queue, peer->bytes);
    if (peer->srq)
        munmap(peer->srq, peer->srq_bytes);
    if (peer->area)
        munmap(peer->area, sizeof *peer->area);
    for (int i = 0; i < 4; i++) {
        int fd = (int[]){peer->process, peer->folder, peer->lock, peer->pipe}[i];
        if (fd >= 0)
            close(fd);
    }
    free(peer);
}

/* Maps a file of a peer's that has at least so many bytes; *bytes is its size. */
static void *peer_map(int folder, const char *name, size_t least, size_t *bytes, int *kept) {
    struct stat status;
    void *memory = NULL;
    int fd = openat(folder, name, OPEN_FLAGS);
    if (fd >= 0 && fstat(fd, &status) == 0 && status.st_uid == geteuid() &&
        (uint64_t)status.st_size >= least) {
        *bytes = (size_t)status.st_size;
        memory = map(fd, *bytes);
    }
    if (memory && kept)
        *kept = fd;
    else if (fd >= 0)
        close(fd);
    return memory;
}

/* Finds where the peer receives: its own ring, or a shared one. */
static bool peer_ring(struct peer *peer) {
    uint32_t srq = peer->queue->srq;
    size_t room = peer->bytes - sizeof *peer->queue;
    peer->ring = &peer->queue->ring;
    if (srq != 0) {
        char name[16];
        if (srq > MAX_SRQS)
            return false;
        peer->srq_place = srq - 1;
        srq_name(name, peer->srq_place);
        peer->srq = peer_map(peer->folder, name, sizeof *peer->srq, &peer->srq_bytes, NULL);
        if (!peer->srq || peer->srq->magic != SRQ_MAGIC)
            return false;
        room = peer->srq_bytes - sizeof *peer->srq;
        peer->ring = &peer->srq->ring;
    }
    peer->entries = *(volatile uint32_t *)&peer->ring->entries;
    return peer->entries != 0 && peer->entries <= MAX_WR && (peer->entries & (peer->entries - 1)) == 0 &&
           room >= (size_t)peer->entries * sizeof(struct slot);
}

static bool peer_find(const struct context *context, uint32_t qpn, struct peer *peer) {
    char name[16];
    size_t bytes;
    snprintf(name, sizeof name, "%03x", slot_of(qpn));
    peer->folder = openat(context->folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (peer->folder < 0)
        return false;
    peer->area = peer_map(peer->folder, "area", sizeof *peer->area, &bytes, &peer->lock);
    queue_name(name, place_of(qpn));
    peer->queue = peer_map(peer->folder, name, sizeof *peer->queue, &peer->bytes, NULL);
    if (!peer->area || bytes != sizeof *peer->area || !peer->queue || peer->area->magic != AREA_MAGIC ||
        peer->queue->magic != QUEUE_MAGIC || peer->queue->qpn != qpn)
        return false;
    if (!peer_ring(peer))
        return false;
    int64_t pid = peer->area->pid;
    if (pid <= 0 || pid > INT32_MAX || peer->area->pid_namespace != pid_namespace())
        return false;
    peer->pid = (pid_t)pid;
    peer->process = (int)syscall(SYS_pidfd_open, peer->pid, 0);
    /* Looked at while it is held, so that it is the one. */
    return peer->process >= 0 && started(peer->pid) == peer->area->started;
}

struct peer *peer_connect(const struct context *context, uint32_t qpn) {
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    peer->qpn = qpn;
    peer->process = peer->folder = peer->lock = peer->pipe = -1;
    if (peer_find(context, qpn, peer))
        return peer;
    peer_drop(peer);
    return NULL;
}
