#define _GNU_SOURCE
#include "tarnfabric.h"

#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Looks without a completion before a provider that cannot wait is looked at less often, and microseconds
 * between looks then. */
enum { TF_SPINS = 2000, TF_PAUSE = 50 };

struct tf {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    int waits;
};

struct tf_window {
    struct fid_mr *mr;
    void *map;
    size_t size;
    int guard;
};

/* Mapped stretches, for the handler of SIGBUS: a file may be cut by somebody else while it is read. */
static struct { atomic_uintptr_t from, to; } guarded[TF_WINDOWS];
static struct sigaction before;
static atomic_int installed;

static void on_bus(int number, siginfo_t *info, void *context) {
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < TF_WINDOWS; i++) {
        uintptr_t from = atomic_load(&guarded[i].from), to = atomic_load(&guarded[i].to);
        if (from && from <= at && at < to) {
            /* Zeros from here on: the receiver's hashes find out. */
            uintptr_t page = at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
            void *zeros =
                mmap((void *)page, to - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            if (zeros != MAP_FAILED)
                return;
        }
    }
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else
        /* The access is tried again, and ends the process. */
        signal(SIGBUS, SIG_DFL);
}

static int guard(void *map, size_t size) {
    if (!atomic_exchange(&installed, 1)) {
        struct sigaction own = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
        own.sa_sigaction = on_bus;
        sigemptyset(&own.sa_mask);
        if (sigaction(SIGBUS, &own, &before))
            return -errno;
    }
    for (int i = 0; i < TF_WINDOWS; i++) {
        uintptr_t nobody = 0;
        if (atomic_compare_exchange_strong(&guarded[i].from, &nobody, (uintptr_t)map)) {
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

int tf_version(void) { return TF_VERSION; }

static int open_all(struct tf *tf, const char *provider, const char *node, const char **what) {
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return -ENOMEM;
    hints->caps = FI_RMA | FI_READ | FI_REMOTE_READ;
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
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC};
    /* shm says that it can wait, and then waits for ever. */
    int waits = strncmp(provider, "shm", 3) != 0;
    rc = waits ? fi_cq_open(tf->domain, &cq, &tf->cq, NULL) : -FI_ENOSYS;
    tf->waits = !rc;
    if (rc) {
        cq.wait_obj = FI_WAIT_NONE;
        if ((rc = fi_cq_open(tf->domain, &cq, &tf->cq, NULL)))
            return rc;
    }
    *what = "open the endpoint";
    if ((rc = fi_endpoint(tf->domain, tf->info, &tf->ep, NULL)) ||
        (rc = fi_ep_bind(tf->ep, &tf->av->fid, 0)) ||
        (rc = fi_ep_bind(tf->ep, &tf->cq->fid, FI_TRANSMIT | FI_RECV)))
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
    /* As long as the longest, whatever the provider takes from it. */
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

int tf_window_open(struct tf *tf, int fd, uint64_t offset, uint64_t length, uint64_t wanted,
                   struct tf_window **out, uint64_t *from, uint64_t *key) {
    uint64_t skip = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    struct tf_window *window = calloc(1, sizeof *window);
    if (!window)
        return -ENOMEM;
    window->size = length + skip;
    window->map = mmap(NULL, window->size, PROT_READ, MAP_SHARED, fd, (off_t)(offset - skip));
    if (window->map == MAP_FAILED) {
        int rc = -errno;
        free(window);
        return rc;
    }
    window->guard = guard(window->map, window->size);
    char *begin = (char *)window->map + skip;
    int rc = window->guard < 0
                 ? window->guard
                 : fi_mr_reg(tf->domain, begin, length, FI_REMOTE_READ, 0, wanted, 0, &window->mr, NULL);
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
    if (window->guard >= 0)
        unguard(window->guard);
    munmap(window->map, window->size);
    free(window);
}

int tf_read(struct tf *tf, uint64_t peer, void *to, size_t length, uint64_t from, uint64_t key,
            void *context) {
    return (int)fi_read(tf->ep, to, length, NULL, peer, from, key, context);
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

int tf_progress(struct tf *tf, int millis, struct tf_done *done, size_t count) {
    struct fi_cq_entry entries[16];
    count = count < 16 ? count : 16;
    ssize_t got;
    if (tf->waits) {
        got = fi_cq_sread(tf->cq, entries, count, NULL, millis);
    } else {
        struct timespec begun, now;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        for (int spins = 0;; spins++) {
            got = fi_cq_read(tf->cq, entries, count);
            clock_gettime(CLOCK_MONOTONIC, &now);
            int64_t passed = (now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000;
            if (got != -FI_EAGAIN || passed >= millis)
                break;
            if (spins > TF_SPINS)
                usleep(TF_PAUSE);
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
