#define _GNU_SOURCE
#include "tarnfabric.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Nanoseconds for which the loop polls after something was done: work of peers comes in bursts, and a
 * wake-up takes longer than most of it. Microseconds between looks at a provider that cannot wait. */
enum { TF_EAGER = 200000, TF_PAUSE = 50 };

struct tf {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    /* The descriptor that becomes readable when there is something to do; -1 where the provider has none. */
    int fd;
    /* The operations that peers have done here, where fd is -1, and as far as that is known. */
    struct fid_cntr *served;
    uint64_t known;
};

struct tf_window {
    struct fid_mr *mr;
    void *map;
    size_t size;
    int guard;
};

/* Mapped stretches, for tf_deal: a file may be cut by somebody else while it is used. The
 * stream of a window is ended then. */
static struct {
    atomic_uintptr_t from, to;
    atomic_int rights, stream;
} guarded[TF_WINDOWS];

/* The places of closed windows, the oldest first after `next`. A provider may still be about to move
 * bytes that a peer requested before: nothing else is there until as many others were closed, or so
 * many bytes of them. */
enum { TF_CLOSED = 1024 };
static const size_t closed_most = (size_t)1 << 44;
static struct {
    void *map;
    size_t size;
} closed[TF_CLOSED];
static size_t closed_bytes;
static int closed_next, closed_count;
static pthread_mutex_t closing = PTHREAD_MUTEX_INITIALIZER;

int tf_deal(uintptr_t at) {
    for (int i = 0; i < TF_WINDOWS; i++) {
        uintptr_t from = atomic_load(&guarded[i].from), to = atomic_load(&guarded[i].to);
        if (from && from <= at && at < to) {
            /* Zeros from here on: hashes find them, and a reader without hashes has a stream. */
            int stream = atomic_load(&guarded[i].stream);
            uintptr_t page = at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
            void *zeros = mmap((void *)page, to - page, atomic_load(&guarded[i].rights),
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
            if (stream >= 0)
                shutdown(stream, SHUT_RDWR);
            return zeros != MAP_FAILED;
        }
    }
    return 0;
}

static int guard(void *map, size_t size, int rights, int stream) {
    for (int i = 0; i < TF_WINDOWS; i++) {
        uintptr_t nobody = 0;
        if (atomic_compare_exchange_strong(&guarded[i].from, &nobody, (uintptr_t)map)) {
            atomic_store(&guarded[i].rights, rights);
            atomic_store(&guarded[i].stream, stream);
            atomic_store(&guarded[i].to, (uintptr_t)map + size);
            return i;
        }
    }
    return -ENOSPC;
}

static void unguard(int i) {
    atomic_store(&guarded[i].to, 0);
    atomic_store(&guarded[i].from, 0);
}

/* Takes a window's file away, and keeps the place free of anything else for a while. */
static void keep_free(void *map, size_t size) {
    void *kept = mmap(map, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (kept == MAP_FAILED)
        /* Then it stays what it was. */
        return;
    pthread_mutex_lock(&closing);
    while (closed_count > 0 && (closed_count == TF_CLOSED || closed_bytes + size > closed_most)) {
        int oldest = (closed_next + TF_CLOSED - closed_count) % TF_CLOSED;
        munmap(closed[oldest].map, closed[oldest].size);
        closed_bytes -= closed[oldest].size;
        closed_count--;
    }
    closed[closed_next].map = map;
    closed[closed_next].size = size;
    closed_next = (closed_next + 1) % TF_CLOSED;
    closed_bytes += size;
    closed_count++;
    pthread_mutex_unlock(&closing);
}

int tf_version(void) { return TF_VERSION; }

static int open_all(struct tf *tf, const char *provider, const char *node, const char **what) {
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return -ENOMEM;
    hints->caps = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(provider);
    *what = "find the provider";
    int rc = fi_getinfo(FI_VERSION(1, 11), node, NULL, node ? FI_SOURCE : 0, hints, &tf->info);
    fi_freeinfo(hints);
    if (rc)
        return rc;
    *what = "open the fabric";
    if ((rc = fi_fabric(tf->info->fabric_attr, &tf->fabric, NULL)))
        return rc;
    *what = "open the domain";
    if ((rc = fi_domain(tf->fabric, tf->info, &tf->domain, NULL)))
        return rc;
    *what = "open the address vector";
    struct fi_av_attr av = {.type = FI_AV_UNSPEC};
    if ((rc = fi_av_open(tf->domain, &av, &tf->av, NULL)))
        return rc;
    *what = "open the completion queue";
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_FD};
    /* shm says that it can wait, and then waits for ever. */
    int waits = strncmp(provider, "shm", 3) != 0 && !fi_cq_open(tf->domain, &cq, &tf->cq, NULL);
    if (!waits || fi_control(&tf->cq->fid, FI_GETWAIT, &tf->fd))
        tf->fd = -1;
    if (!waits) {
        cq.wait_obj = FI_WAIT_NONE;
        if ((rc = fi_cq_open(tf->domain, &cq, &tf->cq, NULL)))
            return rc;
        struct fi_cntr_attr served = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE};
        if (fi_cntr_open(tf->domain, &served, &tf->served, NULL))
            tf->served = NULL;
    }
    *what = "open the endpoint";
    if ((rc = fi_endpoint(tf->domain, tf->info, &tf->ep, NULL)) ||
        (rc = fi_ep_bind(tf->ep, &tf->av->fid, 0)) ||
        (rc = fi_ep_bind(tf->ep, &tf->cq->fid, FI_TRANSMIT | FI_RECV)) ||
        (tf->served && (rc = fi_ep_bind(tf->ep, &tf->served->fid, FI_REMOTE_READ | FI_REMOTE_WRITE))))
        return rc;
    return fi_enable(tf->ep);
}

int tf_open(const char *provider, const char *node, struct tf **out, char *why, size_t why_size) {
    struct tf *tf = calloc(1, sizeof *tf);
    const char *what = "get memory";
    int rc = tf ? open_all(tf, provider, node, &what) : -ENOMEM;
    if (rc) {
        snprintf(why, why_size, "libfabric cannot %s of `%s`: %s", what, provider, fi_strerror(-rc));
        tf_close(tf);
        return rc;
    }
    *out = tf;
    return 0;
}

int tf_name(struct tf *tf, void *name, size_t *size) { return fi_getname(&tf->ep->fid, name, size); }

int tf_peer(struct tf *tf, const void *name, size_t size, uint64_t *peer) {
    /* As long as the longest: the provider may read that much. */
    char padded[TF_NAME + 1] = {0};
    if (size > TF_NAME)
        return -EINVAL;
    memcpy(padded, name, size);
    fi_addr_t number;
    if (fi_av_insert(tf->av, padded, 1, &number, 0, NULL) != 1)
        return -EINVAL;
    *peer = number;
    return 0;
}

int tf_window_open(struct tf *tf, int fd, uint64_t offset, uint64_t length, int writable, int stream,
                   uint64_t wanted, struct tf_window **out, uint64_t *from, uint64_t *key) {
    uint64_t skip = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    struct tf_window *window = calloc(1, sizeof *window);
    if (!window)
        return -ENOMEM;
    window->size = length + skip;
    int rights = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    window->map = mmap(NULL, window->size, rights, MAP_SHARED, fd, (off_t)(offset - skip));
    if (window->map == MAP_FAILED) {
        int rc = -errno;
        free(window);
        return rc;
    }
    window->guard = guard(window->map, window->size, rights, stream);
    char *begin = (char *)window->map + skip;
    uint64_t access = writable ? FI_REMOTE_READ | FI_REMOTE_WRITE : FI_REMOTE_READ;
    int rc = window->guard < 0
                 ? window->guard
                 : fi_mr_reg(tf->domain, begin, length, access, 0, wanted, 0, &window->mr, NULL);
    if (rc) {
        tf_window_close(window);
        return rc;
    }
    *from = tf->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)begin : 0;
    *key = fi_mr_key(window->mr);
    *out = window;
    return 0;
}

void tf_window_close(struct tf_window *window) {
    if (window->mr)
        fi_close(&window->mr->fid);
    keep_free(window->map, window->size);
    if (window->guard >= 0)
        unguard(window->guard);
    free(window);
}

int tf_read(struct tf *tf, uint64_t peer, void *to, size_t length, uint64_t from, uint64_t key,
            void *context) {
    return (int)fi_read(tf->ep, to, length, NULL, peer, from, key, context);
}

int tf_write(struct tf *tf, uint64_t peer, const void *bytes, size_t length, uint64_t from, uint64_t key,
             void *context) {
    struct iovec local = {.iov_base = (void *)bytes, .iov_len = length};
    struct fi_rma_iov there = {.addr = from, .len = length, .key = key};
    struct fi_msg_rma write = {
        .msg_iov = &local,
        .iov_count = 1,
        .addr = peer,
        .rma_iov = &there,
        .rma_iov_count = 1,
        .context = context,
    };
    return (int)fi_writemsg(tf->ep, &write, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

/* One that failed. */
static int failed(struct tf *tf, struct tf_done *done) {
    struct fi_cq_err_entry entry = {0};
    ssize_t got = fi_cq_readerr(tf->cq, &entry, 0);
    if (got < 0)
        return got == -FI_EAGAIN ? 0 : (int)got;
    done->context = entry.op_context;
    done->error = entry.err ? entry.err : EIO;
    return 1;
}

/* Nanoseconds of a clock that only goes forward. */
static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int tf_descriptor(struct tf *tf) { return tf->fd; }

int tf_may_sleep(struct tf *tf) {
    struct fid *cq = &tf->cq->fid;
    return fi_trywait(tf->fabric, &cq, 1) == 0;
}

/* Sleeps until the provider has something to do, at most until then; whether peers may have done something.
 */
static int doze(struct tf *tf, int64_t until) {
    if (tf->fd < 0) {
        uint64_t served = tf->served ? fi_cntr_read(tf->served) : 0;
        int more = served != tf->known;
        tf->known = served;
        if (!more)
            usleep(TF_PAUSE);
        return more;
    }
    if (!tf_may_sleep(tf))
        return 1;
    struct pollfd ready = {.fd = tf->fd, .events = POLLIN};
    int64_t left = (until - now()) / 1000000;
    return poll(&ready, 1, left > 0 ? (int)left : 0) > 0;
}

int tf_progress(struct tf *tf, int millis, struct tf_done *done, size_t count) {
    struct fi_cq_entry entries[16];
    count = count < 16 ? count : 16;
    ssize_t got = fi_cq_read(tf->cq, entries, count);
    if (millis > 0) {
        int64_t busy = now(), until = busy + (int64_t)millis * 1000000;
        for (int64_t time = busy; got == -FI_EAGAIN && time < until; time = now()) {
            if (time - busy > TF_EAGER && doze(tf, until))
                busy = now();
            got = fi_cq_read(tf->cq, entries, count);
        }
    }
    if (got == -FI_EAVAIL)
        return failed(tf, done);
    if (got == -FI_EAGAIN || got == -FI_EINTR)
        return 0;
    for (ssize_t i = 0; i < got; i++) {
        done[i].context = entries[i].op_context;
        done[i].error = 0;
    }
    return (int)got;
}

void tf_stop(struct tf *tf) {
    if (tf->ep)
        fi_close(&tf->ep->fid);
    tf->ep = NULL;
}

void tf_close(struct tf *tf) {
    if (!tf)
        return;
    tf_stop(tf);
    if (tf->served)
        fi_close(&tf->served->fid);
    if (tf->cq)
        fi_close(&tf->cq->fid);
    if (tf->av)
        fi_close(&tf->av->fid);
    if (tf->domain)
        fi_close(&tf->domain->fid);
    if (tf->fabric)
        fi_close(&tf->fabric->fid);
    if (tf->info)
        fi_freeinfo(tf->info);
    free(tf);
}
