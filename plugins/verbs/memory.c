/* Protection domains and the memory registered in them. */
#include "device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

PUBLIC struct ibv_pd *ibv_alloc_pd(struct ibv_context *verbs) {
    if (!ours(verbs))
        PASS("IBVERBS_1.1", ibv_alloc_pd, verbs);
    struct context *context = context_of(verbs);
    struct domain *domain = forked ? NULL : calloc(1, sizeof *domain);
    if (!domain) {
        errno = forked ? EPERM : ENOMEM;
        return NULL;
    }
    pthread_mutex_lock(&context->mutex);
    domain->verbs = (struct ibv_pd){.context = verbs, .handle = ++context->pds};
    pthread_mutex_unlock(&context->mutex);
    return &domain->verbs;
}

PUBLIC int ibv_dealloc_pd(struct ibv_pd *verbs) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_dealloc_pd, verbs);
    struct domain *domain = container_of(verbs, struct domain, verbs);
    if (domain->users > 0)
        return EBUSY;
    free(domain);
    return 0;
}

/* Gets all pages, as a device that pins them does: memory that is not there, or may not be written, is
 * an error now. */
static int take_pages(const void *address, size_t length, unsigned access) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)address & ~(page - 1), end = (uintptr_t)address + length;
    bool writes = access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    if (madvise((void *)first, end - first, writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0 ||
        errno == EINVAL)
        return 0;
    return errno == ENOMEM ? EFAULT : errno;
}

/* Enters it in the table that peers see. */
static int enter(struct context *context, struct region *region, const struct shared_mr *mr) {
    uint32_t at = 0, random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return EIO;
    pthread_mutex_lock(&context->mutex);
    while (at < MAX_MRS && context->regions[at])
        at++;
    if (at < MAX_MRS) {
        struct shared_mr *to = &context->area->mrs[at];
        uint32_t key = (random | 1) * MAX_MRS | at; /* not 0 */
        context->regions[at] = region;
        region->verbs.handle = at;
        region->verbs.lkey = region->verbs.rkey = key ? key : MAX_MRS | at;
        to->access = mr->access;
        to->pd = mr->pd;
        to->partition = mr->partition;
        to->start = mr->start;
        to->length = mr->length;
        to->address = mr->address;
        to->sum = mr_sum(region->verbs.lkey, mr);
        atomic_store(&to->key, region->verbs.lkey);
        container_of(region->verbs.pd, struct domain, verbs)->users++;
    }
    pthread_mutex_unlock(&context->mutex);
    return at < MAX_MRS ? 0 : ENOMEM;
}

static struct region *region_make(struct ibv_pd *pd, void *address, size_t length) {
    struct region *region = forked ? NULL : calloc(1, sizeof *region);
    if (!region)
        errno = forked ? EPERM : ENOMEM;
    else
        region->verbs = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = length};
    return region;
}

/* Gives its place among the partitions back; with the mutex. */
static void forget_partition(struct context *context, const struct region *region) {
    if (region->slot)
        context->area->partitions[region->slot - 1].name[0] = 0;
}

static struct ibv_mr *enter_or_free(struct region *region, const struct shared_mr *mr, int code) {
    struct context *context = context_of(region->verbs.context);
    if (code == 0)
        code = enter(context, region, mr);
    if (code == 0)
        return &region->verbs;
    pthread_mutex_lock(&context->mutex);
    forget_partition(context, region);
    pthread_mutex_unlock(&context->mutex);
    if (region->partition)
        storage_ops()->close(region->partition);
    free(region);
    errno = code;
    return NULL;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *address, size_t length, uint64_t start, unsigned access) {
    struct region *region = region_make(pd, address, length);
    if (!region)
        return NULL;
    struct shared_mr mr = {.access = access,
                           .pd = pd->handle,
                           .start = access & IBV_ACCESS_ZERO_BASED ? 0 : start,
                           .length = length,
                           .address = (uintptr_t)address};
    bool remote = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    int code = 0;
    if ((remote && !(access & IBV_ACCESS_LOCAL_WRITE)) || (uintptr_t)address + length < length ||
        mr.start + length < length)
        code = EINVAL;
    else if (access & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_MW_BIND))
        code = EOPNOTSUPP;
    else if (length > 0)
        code = take_pages(address, length, access);
    return enter_or_free(region, &mr, code);
}

#undef ibv_reg_mr
PUBLIC struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access) {
    if (!ours(pd->context))
        PASS("IBVERBS_1.1", ibv_reg_mr, pd, address, length, access);
    return reg(pd, address, length, (uintptr_t)address, (unsigned)access);
}

#undef ibv_reg_mr_iova
PUBLIC struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                      int access) {
    if (!ours(pd->context))
        PASS("IBVERBS_1.7", ibv_reg_mr_iova, pd, address, length, iova, access);
    return reg(pd, address, length, iova, (unsigned)access);
}

PUBLIC struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                       unsigned access) {
    if (!ours(pd->context))
        PASS("IBVERBS_1.8", ibv_reg_mr_iova2, pd, address, length, iova, access);
    return reg(pd, address, length, iova, access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE);
}

/* Of the storage peer (serve.c) alone: all of a partition, whose bytes peers read and write by queues of
 * their own. Its addresses begin at 0. It is open here for as long as it is registered, so that it stays. */
PUBLIC struct ibv_mr *tarn_verbs_reg_partition(struct ibv_pd *pd, const char *name, unsigned access,
                                               uint32_t level, uint32_t accepts_volatile);
PUBLIC struct ibv_mr *tarn_verbs_reg_partition(struct ibv_pd *pd, const char *name, unsigned access,
                                               uint32_t level, uint32_t accepts_volatile) {
    struct region *region = ours(pd->context) ? region_make(pd, NULL, 0) : NULL;
    if (!region)
        return NULL;
    struct context *context = context_of(pd->context);
    const struct storage_ops *ops = storage_ops();
    struct shared_mr mr = {.access = access, .pd = pd->handle};
    struct shared_partition how = {.level = level, .accepts_volatile = accepts_volatile};
    bool reads = !(access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
    int code = !ops ? ENOSYS : strlen(name) < NAME_BYTES ? 0 : ENAMETOOLONG;
    if (code == 0)
        code = ops->open(name, &how, reads, &region->partition, &mr.length);
    region->verbs.length = mr.length;
    if (code == 0) {
        uint32_t at = 0;
        strcpy(how.name, name);
        pthread_mutex_lock(&context->mutex);
        while (at < MAX_PARTITIONS && context->area->partitions[at].name[0])
            at++;
        if (at < MAX_PARTITIONS) {
            context->area->partitions[at] = how;
            region->slot = mr.partition = at + 1;
        } else {
            code = ENOSPC;
        }
        pthread_mutex_unlock(&context->mutex);
    }
    return enter_or_free(region, &mr, code);
}

PUBLIC int ibv_dereg_mr(struct ibv_mr *verbs) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_dereg_mr, verbs);
    struct region *region = container_of(verbs, struct region, verbs);
    struct context *context = context_of(verbs->context);
    struct shared_mr *mr = &context->area->mrs[verbs->handle];
    int code = 0;
    if (forked)
        return EPERM;
    atomic_store(&mr->key, 0);
    /* A peer that has seen the key is waited for. */
    pthread_mutex_lock(&context->mutex);
    for (uint32_t i = 0; i < MAX_QPS; i++)
        if (context->qps[i] && context->qps[i]->area && !queue_area_quiet(context->qps[i], QUIET))
            code = EBUSY;
    if (code == 0) {
        context->regions[verbs->handle] = NULL;
        container_of(verbs->pd, struct domain, verbs)->users--;
        forget_partition(context, region);
    }
    pthread_mutex_unlock(&context->mutex);
    if (code != 0)
        return code;
    if (region->partition)
        storage_ops()->close(region->partition);
    free(region);
    return 0;
}
