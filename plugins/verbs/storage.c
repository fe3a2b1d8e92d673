/* Requests to partitions of storage memory: this process's own queue pairs (dsa.h) do them, and the peer has
 * no part in it. */
#include "device.h"

#include <dsa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Requests to one partition that are under way. */
#define ENTRIES 128u

static enum step refuse(struct work *work, int code) {
    work->vendor_err = (uint32_t)code;
    work->status = code == TARN_ENOTFOUND || code == TARN_EDENIED || code == TARN_EINVALID
                       ? IBV_WC_REM_ACCESS_ERR
                   : code == TARN_ELOST ? IBV_WC_RETRY_EXC_ERR
                                        : IBV_WC_REM_OP_ERR;
    return STEP_ENDED;
}

static void drop(struct storage *storage) {
    if (storage->queue)
        dsa_queue_destroy(storage->queue);
    if (storage->partition)
        dsa_close(storage->partition);
    free(storage);
}

/* A queue to the partition that a region of the peer's names. */
static int join(struct queue_pair *qp, uint32_t rkey, const struct shared_mr *mr, struct storage **joined) {
    const struct shared_partition *shared = &qp->peer->area->partitions[mr->partition - 1];
    char name[NAME_BYTES];
    memcpy(name, shared->name, sizeof name);
    name[sizeof name - 1] = 0;
    bool reads = !(mr->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
    struct storage *storage = calloc(1, sizeof *storage);
    if (!storage)
        return TARN_EINTERNAL;
    storage->rkey = rkey;
    int code = dsa_open(name, reads ? DSA_READ_ONLY : 0, &storage->partition);
    if (code == TARN_OK)
        code = dsa_queue_create(ENTRIES, shared->level, shared->accepts_volatile ? DSA_VOLATILE : 0,
                                &storage->queue);
    /* The keys of regions of memory were looked at. */
    if (code == TARN_OK)
        code = dsa_register_memory(storage->queue, (void *)1, PTRDIFF_MAX - 1, 0, &storage->memory);
    if (code == TARN_OK)
        code = dsa_register_partition(storage->queue, storage->partition, 0, mr->length,
                                      reads ? DSA_REGION_READ_ONLY : 0, &storage->region);
    if (code != TARN_OK) {
        fprintf(stderr, "tarn verbs: %s: %s\n", name, tarn_last_error());
        drop(storage);
        return code;
    }
    storage->next = qp->storage;
    qp->storage = *joined = storage;
    return TARN_OK;
}

/* Whether the value that an atomic operation finds can be stored there, before it changes anything;
 * the content stays. */
static bool is_writable(uint64_t at) {
    uint64_t before;
    struct iovec to = {&before, sizeof before}, from = {(void *)(uintptr_t)at, sizeof before};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)sizeof before && store_old(at, before);
}

static enum step begin(struct queue_pair *qp, struct work *work, const struct shared_mr *mr,
                       const struct iovec *pieces, size_t count) {
    struct storage *storage = qp->storage;
    while (storage && storage->rkey != work->rkey)
        storage = storage->next;
    int code = storage ? TARN_OK : join(qp, work->rkey, mr, &storage);
    if (code != TARN_OK)
        return refuse(work, code);
    struct dsa_queue *queue = storage->queue;
    uint32_t index = qp->begun & qp->send_mask;
    bool flushes = work->length == 0,
         word = work->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || work->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    if (queue->sq_mask + 1 - (queue->sq_tail - queue->sq_head) < (flushes || word ? 1 : count))
        return STEP_LATER;
    if (word && !is_writable((uintptr_t)pieces[0].iov_base)) {
        work->vendor_err = EFAULT;
        work->status = IBV_WC_LOC_PROT_ERR;
        return STEP_ENDED;
    }
    uint64_t offset = work->remote - mr->start;
    for (size_t i = 0; i < (flushes || word ? 1 : count); i++) {
        if (!flushes && pieces[i].iov_len == 0)
            continue;
        struct dsa_sqe *sqe = dsa_get_sqe(queue);
        if (flushes)
            dsa_prep_flush(sqe, storage->region);
        else if (work->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            dsa_prep_fetch_add(sqe, storage->region, offset, work->operand);
        else if (word)
            dsa_prep_compare_swap(sqe, storage->region, offset, work->expected, work->operand);
        else
            dsa_prep_copy(sqe, work->opcode == IBV_WR_RDMA_READ ? DSA_READ : DSA_WRITE, storage->region,
                          offset, storage->memory, pieces[i].iov_base, pieces[i].iov_len);
        offset += pieces[i].iov_len;
        dsa_sqe_set_data(sqe, index);
        work->parts++;
    }
    work->old = word ? (uint64_t)(uintptr_t)pieces[0].iov_base : 0;
    storage->prepared = true;
    return STEP_BEGUN;
}

static bool take(struct queue_pair *qp) {
    bool any = false;
    for (struct storage *storage = qp->storage; storage; storage = storage->next) {
        const struct dsa_cqe *cqe;
        if (qp->ended == qp->begun && !storage->prepared)
            continue;
        dsa_submit(storage->queue);
        storage->prepared = storage->queue->sq_tail != storage->queue->sq_head;
        while ((cqe = dsa_peek_cqe(storage->queue))) {
            struct work *work = &qp->works[cqe->user_data & qp->send_mask];
            if (cqe->code != TARN_OK && work->status == IBV_WC_SUCCESS)
                refuse(work, cqe->code);
            else if (work->old && !store_old(work->old, cqe->value))
                work->status = IBV_WC_LOC_PROT_ERR;
            work->ended = --work->parts == 0;
            dsa_cq_advance(storage->queue, 1);
            any = true;
        }
    }
    return any;
}

static void drop_all(struct queue_pair *qp) {
    while (qp->storage) {
        struct storage *next = qp->storage->next;
        drop(qp->storage);
        qp->storage = next;
    }
}

static int open_one(const char *name, const struct shared_partition *how, bool reads,
                    struct dsa_partition **opened, uint64_t *bytes) {
    struct dsa_info info;
    if (dsa_open(name, reads ? DSA_READ_ONLY : 0, opened) != TARN_OK || dsa_size(*opened, bytes) != TARN_OK ||
        dsa_partition_info(*opened, &info) != TARN_OK) {
        fprintf(stderr, "tarn verbs: %s: %s\n", name, tarn_last_error());
        return EIO;
    }
    if (how->level != DSA_PERSISTENT || how->accepts_volatile || info.power_fail != DSA_LOST)
        return 0;
    fprintf(stderr,
            "tarn verbs: %s is memory, which does not outlive a loss of power, and --level persistent is "
            "asked for; "
            "--volatile takes it all the same\n",
            name);
    return EOPNOTSUPP;
}

static void close_one(struct dsa_partition *partition) { dsa_close(partition); }

PUBLIC extern const struct storage_ops tarn_verbs_storage;
const struct storage_ops tarn_verbs_storage = {begin, take, drop_all, open_one, close_one};
