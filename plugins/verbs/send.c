#include "device.h"

#include <string.h>

static struct work *work_at(struct queue_pair *qp, uint32_t number) {
    return &qp->works[number & qp->send_mask];
}

static bool is_reported(const struct queue_pair *qp, const struct work *work) {
    return qp->init.sq_sig_all || work->flags & IBV_SEND_SIGNALED || work->status != IBV_WC_SUCCESS;
}

void qp_break(struct queue_pair *qp) {
    if (atomic_exchange(&qp->broken, true))
        return;
    atomic_store(&qp->area->state, IBV_QPS_ERR);
    cq_notify(qp->verbs.send_cq, true);
    if (qp->verbs.recv_cq != qp->verbs.send_cq)
        cq_notify(qp->verbs.recv_cq, true);
}

/* Counts ended requests, in order: whether somebody is to be notified. */
static bool count_ended(struct queue_pair *qp) {
    bool reported = false;
    for (; qp->ended != qp->begun && work_at(qp, qp->ended)->ended; qp->ended++) {
        struct work *work = work_at(qp, qp->ended);
        /* Of what follows a failure it is not known whether it was done. */
        if (qp->broken && work->status == IBV_WC_SUCCESS)
            work->status = IBV_WC_WR_FLUSH_ERR;
        if (work->status != IBV_WC_SUCCESS)
            qp_break(qp);
        reported |= is_reported(qp, work);
    }
    return reported;
}

/* Whether a peer that is not ready has had as long as the program gives it; times are those of InfiniBand's
 * specification. */
static bool is_over(struct queue_pair *qp, enum step step) {
    /* ms/100 of the 32 codes of the receiver-not-ready timer */
    static const uint32_t timer[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                       48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                       2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    uint64_t limit;
    if (qp->waiting == 0)
        qp->waiting = now();
    if (!is_reliable(qp)) {
        limit = QUIET;
    } else if (step == STEP_NOT_READY) {
        if (qp->attr.rnr_retry == 7) /* for ever */
            return false;
        limit = (uint64_t)timer[atomic_load(&qp->peer->queue->rnr_timer) & 31] * 10000 *
                (qp->attr.rnr_retry + 1u);
    } else {
        if (qp->attr.timeout == 0)
            return false;
        /* A device may wait up to four times as long as the attribute allows. */
        limit = ((uint64_t)4096 << (qp->attr.timeout & 31)) * 4 * (qp->attr.retry_cnt + 1u);
    }
    return now() - qp->waiting >= limit;
}

/* Begins the next request, if it can be now. */
static bool begin(struct queue_pair *qp) {
    struct work *work = work_at(qp, qp->begun);
    if (qp->broken) {
        work->status = IBV_WC_WR_FLUSH_ERR;
        work->ended = true;
        qp->begun++;
        return true;
    }
    /* The requests of storage that have not ended are waited for, but reads go beside each other. */
    bool alone = qp->begun == qp->ended;
    if (!alone &&
        (work->opcode != IBV_WR_RDMA_READ || work_at(qp, qp->begun - 1)->opcode != IBV_WR_RDMA_READ))
        return false;
    enum step step = wire_do(qp, work);
    if (step != STEP_ENDED && step != STEP_BEGUN) {
        if (!alone || !is_over(qp, step))
            return false;
        if (is_reliable(qp))
            work->status = step == STEP_NOT_READY ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR;
        step = STEP_ENDED;
    }
    qp->waiting = 0;
    work->ended = step == STEP_ENDED;
    qp->begun++;
    return true;
}

void send_advance(struct queue_pair *qp) {
    bool reported = false;
    do {
        reported |= count_ended(qp);
        while (qp->begun != qp->posted && begin(qp))
            reported |= count_ended(qp);
    } while (qp->storage && storage_ops()->take(qp));
    reported |= count_ended(qp);
    qp->pending = qp->ended != qp->posted;
    if (reported)
        cq_notify(qp->verbs.send_cq, qp->broken);
}

int send_take(struct queue_pair *qp, int count, struct ibv_wc *wc) {
    static const enum ibv_wc_opcode opcodes[] = {[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
                                                 [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
                                                 [IBV_WR_SEND] = IBV_WC_SEND,
                                                 [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
                                                 [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
                                                 [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
                                                 [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD};
    int taken = 0;
    if (!qp->pending && qp->reaped == qp->ended)
        return 0;
    pthread_mutex_lock(&qp->send_lock);
    if (qp->pending)
        send_advance(qp);
    for (; taken < count && qp->reaped != qp->ended; qp->reaped++) {
        const struct work *work = work_at(qp, qp->reaped);
        if (!is_reported(qp, work))
            continue;
        wc[taken++] = (struct ibv_wc){.wr_id = work->wr_id,
                                      .status = work->status,
                                      .opcode = opcodes[work->opcode],
                                      .vendor_err = work->vendor_err,
                                      .byte_len = (uint32_t)work->length,
                                      .qp_num = qp->verbs.qp_num};
    }
    pthread_mutex_unlock(&qp->send_lock);
    return taken;
}

/* A place for one more request; NULL when the queue is full. */
static struct work *reserve(struct queue_pair *qp) {
    if (qp->posted + qp->built - qp->reaped >= qp->send_limit)
        return NULL;
    struct work *work = work_at(qp, qp->posted + qp->built);
    work->num_sge = 0;
    work->length = 0;
    work->status = IBV_WC_SUCCESS;
    work->vendor_err = 0;
    work->parts = 0;
    work->ended = false;
    work->to = (struct datagram){0};
    return work;
}

static int fill_inline(struct queue_pair *qp, struct work *work, const void *from, size_t length) {
    if (length > qp->init.cap.max_inline_data - work->length)
        return EINVAL;
    if (length > 0)
        memcpy(work->data + work->length, from, length);
    work->length += length;
    work->flags |= IBV_SEND_INLINE;
    return 0;
}

static int fill_sges(struct queue_pair *qp, struct work *work, const struct ibv_sge *list, size_t count) {
    if (count > qp->init.cap.max_send_sge)
        return EINVAL;
    work->num_sge = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        work->sge[i] = list[i];
        work->length += list[i].length;
    }
    return 0;
}

/* Which kinds of requests a queue pair has. */
static bool takes(const struct queue_pair *qp, enum ibv_wr_opcode opcode) {
    switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
        return true;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return !is_datagram(qp);
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return is_reliable(qp);
    default: /* memory windows, and operations of other transports */
        return false;
    }
}

/* The handle may be destroyed before the request has ended. */
static int fill_address(const struct queue_pair *qp, struct work *work, struct ibv_ah *ah, uint32_t qpn,
                        uint32_t qkey) {
    if (!is_datagram(qp) || !ah || ah->pd != qp->verbs.pd)
        return EINVAL;
    const struct ibv_ah_attr *attr = &container_of(ah, struct address, verbs)->attr;
    work->to = (struct datagram){.qpn = qpn,
                                 /* Of a privileged one its own is sent. */
                                 .qkey = qkey >> 31 ? qp->attr.qkey : qkey,
                                 .reachable = is_this_node(attr),
                                 .global = attr->is_global,
                                 .sl = attr->sl,
                                 .route = attr->grh};
    return 0;
}

static int fill(struct queue_pair *qp, const struct ibv_send_wr *wr, struct work *work) {
    if (!takes(qp, wr->opcode) || wr->num_sge < 0)
        return EINVAL;
    work->wr_id = wr->wr_id;
    work->opcode = wr->opcode;
    work->flags = wr->send_flags;
    work->imm_data = wr->imm_data;
    switch (wr->opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
        work->remote = wr->wr.rdma.remote_addr;
        work->rkey = wr->wr.rdma.rkey;
        break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        work->remote = wr->wr.atomic.remote_addr;
        work->rkey = wr->wr.atomic.rkey;
        work->operand =
            wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? wr->wr.atomic.swap : wr->wr.atomic.compare_add;
        work->expected = wr->wr.atomic.compare_add;
        break;
    default:
        break;
    }
    int code = is_datagram(qp)
                   ? fill_address(qp, work, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey)
                   : 0;
    if (code != 0)
        return code;
    if (!(wr->send_flags & IBV_SEND_INLINE))
        return fill_sges(qp, work, wr->sg_list, (size_t)wr->num_sge);
    if (wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
        wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
        return EINVAL;
    for (int i = 0; code == 0 && i < wr->num_sge; i++)
        code = fill_inline(qp, work, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
    return code;
}

static int can_post(const struct queue_pair *qp) {
    if (forked)
        return EPERM;
    return qp->broken || qp->verbs.state == IBV_QPS_RTS || qp->verbs.state == IBV_QPS_ERR ? 0 : EINVAL;
}

int post_send(struct ibv_qp *verbs, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct queue_pair *qp = qp_of(verbs);
    int code = can_post(qp);
    if (code != 0) {
        *bad = wr;
        return code;
    }
    pthread_mutex_lock(&qp->send_lock);
    for (; wr; wr = wr->next) {
        struct work *work = reserve(qp);
        code = work ? fill(qp, wr, work) : ENOMEM;
        if (code != 0) {
            *bad = wr;
            break;
        }
        qp->posted++;
    }
    send_advance(qp);
    pthread_mutex_unlock(&qp->send_lock);
    if (qp->pending)
        progress_wake(qp);
    return code;
}

/* The same by the calls of ibv_qp_ex, from wr_start on with the lock. */

static struct queue_pair *extended(struct ibv_qp_ex *ex) {
    return container_of(ex, struct queue_pair, extended);
}

static struct work *add(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode) {
    struct queue_pair *qp = extended(ex);
    if (!qp->refused && !takes(qp, opcode))
        qp->refused = EINVAL;
    struct work *work = qp->refused ? NULL : reserve(qp);
    if (!work) {
        qp->refused = qp->refused ? qp->refused : ENOMEM;
        return NULL;
    }
    work->wr_id = ex->wr_id;
    work->flags = ex->wr_flags & ~(unsigned)IBV_SEND_INLINE;
    work->opcode = opcode;
    qp->built++;
    return work;
}

static void add_remote(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t remote) {
    struct work *work = add(ex, opcode);
    if (work) {
        work->rkey = rkey;
        work->remote = remote;
    }
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote) {
    add_remote(ex, IBV_WR_RDMA_READ, rkey, remote);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote) {
    add_remote(ex, IBV_WR_RDMA_WRITE, rkey, remote);
}

static void wr_send(struct ibv_qp_ex *ex) { add(ex, IBV_WR_SEND); }

/* The request that was added last; NULL if one was refused. */
static struct work *last(struct queue_pair *qp) {
    if (!qp->refused && qp->built == 0)
        qp->refused = EINVAL;
    return qp->refused ? NULL : work_at(qp, qp->posted + qp->built - 1);
}

static void set_imm(struct ibv_qp_ex *ex, uint32_t imm_data) {
    struct work *work = last(extended(ex));
    if (work)
        work->imm_data = imm_data;
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, __be32 imm_data) {
    add_remote(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote);
    set_imm(ex, imm_data);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm_data) {
    add(ex, IBV_WR_SEND_WITH_IMM);
    set_imm(ex, imm_data);
}

static void add_atomic(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t remote,
                       uint64_t expected, uint64_t operand) {
    add_remote(ex, opcode, rkey, remote);
    struct work *work = last(extended(ex));
    if (work) {
        work->expected = expected;
        work->operand = operand;
    }
}

static void wr_compare_swap(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, uint64_t compare,
                            uint64_t swap) {
    add_atomic(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote, compare, swap);
}

static void wr_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, uint64_t operand) {
    add_atomic(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote, 0, operand);
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey) {
    struct queue_pair *qp = extended(ex);
    struct work *work = last(qp);
    if (work)
        qp->refused = fill_address(qp, work, ah, qpn, qkey);
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *list) {
    struct queue_pair *qp = extended(ex);
    struct work *work = last(qp);
    if (work)
        qp->refused = fill_sges(qp, work, list, count);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length) {
    struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};
    wr_set_sge_list(ex, 1, &sge);
}

static void wr_set_inline(struct ibv_qp_ex *ex, void *addr, size_t length) {
    struct queue_pair *qp = extended(ex);
    struct work *work = last(qp);
    if (work)
        qp->refused = fill_inline(qp, work, addr, length);
}

static void wr_set_inline_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_data_buf *list) {
    for (size_t i = 0; i < count; i++)
        wr_set_inline(ex, list[i].addr, list[i].length);
}

static void wr_start(struct ibv_qp_ex *ex) {
    struct queue_pair *qp = extended(ex);
    pthread_mutex_lock(&qp->send_lock);
    qp->built = 0;
    qp->refused = can_post(qp);
}

static int wr_complete(struct ibv_qp_ex *ex) {
    struct queue_pair *qp = extended(ex);
    int code = qp->refused;
    if (code == 0) {
        qp->posted += qp->built;
        qp->built = 0;
        send_advance(qp);
    }
    qp->built = 0;
    pthread_mutex_unlock(&qp->send_lock);
    if (code == 0 && qp->pending)
        progress_wake(qp);
    return code;
}

static void wr_abort(struct ibv_qp_ex *ex) {
    struct queue_pair *qp = extended(ex);
    qp->built = 0;
    pthread_mutex_unlock(&qp->send_lock);
}

void send_api(struct ibv_qp_ex *ex) {
    ex->wr_rdma_read = wr_rdma_read;
    ex->wr_rdma_write = wr_rdma_write;
    ex->wr_rdma_write_imm = wr_rdma_write_imm;
    ex->wr_send = wr_send;
    ex->wr_send_imm = wr_send_imm;
    ex->wr_atomic_cmp_swp = wr_compare_swap;
    ex->wr_atomic_fetch_add = wr_fetch_add;
    ex->wr_set_ud_addr = wr_set_ud_addr;
    ex->wr_set_sge = wr_set_sge;
    ex->wr_set_sge_list = wr_set_sge_list;
    ex->wr_set_inline_data = wr_set_inline;
    ex->wr_set_inline_data_list = wr_set_inline_list;
    ex->wr_start = wr_start;
    ex->wr_complete = wr_complete;
    ex->wr_abort = wr_abort;
}
