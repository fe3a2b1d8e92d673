/* The work of a request on the memory of the peer. The peer's process does nothing for it. */
#include "device.h"

#include <endian.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bytes of one call: the system takes no more than this. */
#define CALL_BYTES ((size_t)1 << 30)
/* Looks at another's lock before it is left for later. */
#define LOCK_TRIES 100

/* The bytes before a datagram in the receiver's memory. */
#define HEAD ((uint64_t)sizeof(struct ibv_grh))

/* Some memory in pieces, and how far it was gone through. */
struct pieces {
    struct iovec list[MAX_SGE + 1]; /* the first is HEAD, perhaps */
    size_t count, at;
};

/* Passes over so many bytes. */
static void pieces_pass(struct pieces *pieces, size_t bytes) {
    while (bytes > 0 && pieces->at < pieces->count) {
        struct iovec *piece = &pieces->list[pieces->at];
        size_t part = piece->iov_len < bytes ? piece->iov_len : bytes;
        piece->iov_base = (char *)piece->iov_base + part;
        piece->iov_len -= part;
        bytes -= part;
        if (piece->iov_len == 0)
            pieces->at++;
    }
    while (pieces->at < pieces->count && pieces->list[pieces->at].iov_len == 0)
        pieces->at++;
}

/* Whether this process may touch the byte that is next. */
static bool touches(const struct pieces *pieces) {
    char byte;
    struct iovec to = {&byte, 1}, from = {pieces->list[pieces->at].iov_base, 1};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

enum side { SIDE_NONE, SIDE_HERE, SIDE_THERE, SIDE_PEER };

/* Copies so many bytes to the peer, or from it; the side at fault if that cannot be: *error says why. */
static enum side copy(const struct peer *peer, struct pieces *here, struct pieces *there, size_t bytes,
                      bool out, uint32_t *error) {
    pieces_pass(here, 0);
    pieces_pass(there, 0);
    while (bytes > 0) {
        struct iovec *first = &there->list[there->at], whole = *first;
        if (first->iov_len > bytes)
            first->iov_len = bytes;
        if (first->iov_len > CALL_BYTES)
            first->iov_len = CALL_BYTES;
        ssize_t done = (out ? process_vm_writev : process_vm_readv)(peer->pid, here->list + here->at,
                                                                    here->count - here->at, first, 1, 0);
        *first = whole;
        if (done > 0) {
            pieces_pass(here, (size_t)done);
            pieces_pass(there, (size_t)done);
            bytes -= (size_t)done;
            continue;
        }
        *error = done < 0 ? (uint32_t)errno : EFAULT;
        if (*error != EFAULT)
            return SIDE_PEER;
        return touches(here) ? SIDE_THERE : SIDE_HERE;
    }
    return SIDE_NONE;
}

static enum step end(struct work *work, enum ibv_wc_status status) {
    work->status = status;
    return STEP_ENDED;
}

/* The peer's queue pair has refused something, and is in error from now on, if it is reliable. */
static enum step fault(struct queue_pair *qp, struct work *work, enum ibv_wc_status status) {
    if (!is_reliable(qp))
        return end(work, status);
    atomic_store(&qp->peer->queue->fault, 1);
    peer_notify(qp->peer, true);
    return end(work, status);
}

/* How what comes to nothing at the peer ends: without a word where the queue pair is not reliable. */
static enum step end_undelivered(const struct queue_pair *qp, struct work *work, enum step step) {
    if (is_reliable(qp) || step == STEP_BUSY || (step == STEP_ENDED && work->status == IBV_WC_LOC_PROT_ERR))
        return step;
    work->vendor_err = 0;
    return end(work, IBV_WC_SUCCESS);
}

/* As InfiniBand has it; zeros if it would have none. */
static struct ibv_grh head_of(const struct work *work) {
    const struct ibv_global_route *route = &work->to.route;
    bool imm = work->opcode == IBV_WR_SEND_WITH_IMM;
    struct ibv_grh head = {0};
    if (!work->to.global)
        return head;
    head.version_tclass_flow =
        htobe32(6u << 28 | (uint32_t)route->traffic_class << 20 | (route->flow_label & 0xfffff));
    /* The headers behind it (base, datagram), and the checksum. */
    head.paylen = htobe16((uint16_t)(12 + 8 + (imm ? 4 : 0) + ((work->length + 3) & ~3ull) + 4));
    head.next_hdr = 0x1b;
    head.hop_limit = route->hop_limit;
    node_gid(&head.sgid);
    head.dgid = route->dgid;
    return head;
}

/* The pieces of this process's memory to copy from, or to; before them the head, if there is one. */
static bool local_pieces(const struct queue_pair *qp, struct work *work, uint32_t access,
                         struct ibv_grh *head, struct pieces *here) {
    const struct area *area = context_of(qp->verbs.context)->area;
    here->at = here->count = 0;
    if (head)
        here->list[here->count++] = (struct iovec){head, HEAD};
    if (work->flags & IBV_SEND_INLINE) {
        here->list[here->count++] = (struct iovec){work->data, work->length};
        return true;
    }
    for (uint32_t i = 0; i < work->num_sge; i++) {
        const struct ibv_sge *sge = &work->sge[i];
        struct shared_mr mr;
        if (!mr_allows(area, sge->lkey, qp->verbs.pd->handle, access, sge->addr, sge->length, &mr) ||
            mr.partition)
            return false;
        here->list[here->count++] =
            (struct iovec){(void *)(uintptr_t)(mr.address + (sge->addr - mr.start)), sge->length};
    }
    return true;
}

/* Locks one byte of the peer's area, or unlocks it. The lock goes with this process. */
static bool lock_byte(const struct peer *peer, off_t at, short kind) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (fcntl(peer->lock, F_OFD_SETLK, &lock) == 0)
            return true;
        sched_yield();
    }
    return false;
}

/* Fills the peer's next receive request, and reports it: with a message of these bytes, or only with the
 * immediate data. Nobody else is at that ring. */
static enum step fill_next(struct queue_pair *qp, struct work *work, struct pieces *here, bool message) {
    struct peer *peer = qp->peer;
    struct ring *ring = peer->ring;
    uint32_t pd = peer->srq ? peer->srq->pd : peer->queue->pd;
    uint32_t done = atomic_load(&ring->done), tail = atomic_load(&ring->tail);
    if (tail == done || tail - done > peer->entries)
        return STEP_NOT_READY;
    struct slot *slot = &ring->slots[done & (peer->entries - 1)];
    uint32_t count = *(volatile uint32_t *)&slot->num_sge;
    struct pieces there = {.count = count <= MAX_SGE ? count : MAX_SGE};
    enum ibv_wc_status status = IBV_WC_SUCCESS, peer_status = IBV_WC_SUCCESS;
    uint64_t room = 0, length = work->length + (is_datagram(qp) ? HEAD : 0);
    for (size_t i = 0; message && i < there.count; i++) {
        struct ibv_sge sge = *(volatile struct ibv_sge *)&slot->sge[i];
        struct shared_mr mr;
        if (!mr_allows(peer->area, sge.lkey, pd, IBV_ACCESS_LOCAL_WRITE, sge.addr, sge.length, &mr) ||
            mr.partition) {
            status = IBV_WC_REM_OP_ERR;
            peer_status = IBV_WC_LOC_PROT_ERR;
            break;
        }
        there.list[i] = (struct iovec){(void *)(uintptr_t)(mr.address + (sge.addr - mr.start)), sge.length};
        room += sge.length;
    }
    if (message && status == IBV_WC_SUCCESS && room < length) {
        status = IBV_WC_REM_INV_REQ_ERR;
        peer_status = IBV_WC_LOC_LEN_ERR;
    } else if (message && status == IBV_WC_SUCCESS) {
        switch (copy(peer, here, &there, length, true, &work->vendor_err)) {
        case SIDE_NONE:
            break;
        case SIDE_HERE:
            return end(work, IBV_WC_LOC_PROT_ERR);
        case SIDE_THERE:
            status = IBV_WC_REM_OP_ERR;
            peer_status = IBV_WC_LOC_PROT_ERR;
            break;
        case SIDE_PEER:
            return end(work, IBV_WC_RETRY_EXC_ERR);
        }
    }
    /* A lost message takes no receive request. */
    if (status != IBV_WC_SUCCESS && !is_reliable(qp))
        return end(work, status);
    bool imm = work->opcode == IBV_WR_SEND_WITH_IMM || work->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    slot->status = peer_status;
    slot->opcode = message ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    slot->byte_len = (uint32_t)length;
    slot->imm_data = work->imm_data;
    slot->wc_flags = (imm ? IBV_WC_WITH_IMM : 0) | (work->to.global ? IBV_WC_GRH : 0);
    slot->qpn = peer->qpn;
    slot->src_qp = qp->verbs.qp_num;
    slot->sl = is_datagram(qp) ? work->to.sl : qp->attr.ah_attr.sl;
    atomic_store(&ring->done, done + 1);
    peer_notify(peer, status != IBV_WC_SUCCESS || work->flags & IBV_SEND_SOLICITED);
    return status == IBV_WC_SUCCESS ? end(work, status) : fault(qp, work, status);
}

static enum step deliver(struct queue_pair *qp, struct work *work, struct pieces *here, bool message) {
    const struct peer *peer = qp->peer;
    if (!peer->srq)
        return fill_next(qp, work, here, message);
    /* A request that a killed sender has filled is filled again. */
    if (!lock_byte(peer, SRQ_LOCKS + (off_t)peer->srq_place, F_WRLCK))
        return STEP_BUSY;
    enum step step = fill_next(qp, work, here, message);
    lock_byte(peer, SRQ_LOCKS + (off_t)peer->srq_place, F_UNLCK);
    return step;
}

/* The end of a one-sided request, by the side at fault. */
static enum step ended(struct queue_pair *qp, struct work *work, enum side wrong) {
    switch (wrong) {
    case SIDE_HERE:
        return end(work, IBV_WC_LOC_PROT_ERR);
    case SIDE_THERE:
        return fault(qp, work, IBV_WC_REM_ACCESS_ERR);
    case SIDE_PEER:
        return end(work, IBV_WC_RETRY_EXC_ERR);
    case SIDE_NONE:
        break;
    }
    return end(work, IBV_WC_SUCCESS);
}

static enum step write_or_read(struct queue_pair *qp, struct work *work, const struct shared_mr *mr,
                               struct pieces *here) {
    struct pieces there = {.count = 1};
    there.list[0] =
        (struct iovec){(void *)(uintptr_t)(mr->address + (work->remote - mr->start)), work->length};
    bool out = work->opcode != IBV_WR_RDMA_READ;
    return ended(qp, work, copy(qp->peer, here, &there, work->length, out, &work->vendor_err));
}

/* The word is locked against all atomic operations of the device: those of the processor know nothing of it.
 */
static enum step change_word(struct queue_pair *qp, struct work *work, const struct shared_mr *mr,
                             struct pieces *here) {
    uint64_t address = mr->address + (work->remote - mr->start), old, new;
    uint32_t *error = &work->vendor_err;
    off_t lock = (off_t)(address >> 3 & (WORD_LOCKS - 1));
    if (!lock_byte(qp->peer, lock, F_WRLCK))
        return STEP_BUSY;
    struct pieces mine = {.count = 1, .list = {{&old, sizeof old}}};
    struct pieces there = {.count = 1, .list = {{(void *)(uintptr_t)address, sizeof old}}};
    enum side wrong = copy(qp->peer, &mine, &there, sizeof old, false, error);
    /* First: if the value found cannot be stored, nothing is changed. */
    if (wrong == SIDE_NONE && !store_old((uintptr_t)here->list[0].iov_base, old)) {
        *error = EFAULT;
        wrong = SIDE_HERE;
    }
    bool add = work->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    new = add ? old + work->operand : work->operand;
    if (wrong == SIDE_NONE && (add || old == work->expected)) {
        mine = (struct pieces){.count = 1, .list = {{&new, sizeof new}}};
        there = (struct pieces){.count = 1, .list = {{(void *)(uintptr_t)address, sizeof new}}};
        wrong = copy(qp->peer, &mine, &there, sizeof new, true, error);
    }
    lock_byte(qp->peer, lock, F_UNLCK);
    return ended(qp, work, wrong);
}

/* Which right of the region, and of the queue pair, it takes. */
static uint32_t right(uint32_t opcode) {
    switch (opcode) {
    case IBV_WR_RDMA_READ:
        return IBV_ACCESS_REMOTE_READ;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_ACCESS_REMOTE_ATOMIC;
    default:
        return IBV_ACCESS_REMOTE_WRITE;
    }
}

/* One-sided: a region of the peer's is read or written. */
static enum step one_sided(struct queue_pair *qp, struct work *work, struct pieces *here) {
    const struct peer *peer = qp->peer;
    uint32_t access = right(work->opcode);
    bool word = access == IBV_ACCESS_REMOTE_ATOMIC;
    struct shared_mr mr;
    if (word && work->remote % 8 != 0)
        return fault(qp, work, IBV_WC_REM_INV_REQ_ERR);
    bool allowed = mr_allows(peer->area, work->rkey, peer->queue->pd, access, work->remote,
                             word ? 8 : work->length, &mr) &&
                   (atomic_load(&peer->queue->access) & access);
    /* A request of no bytes needs no rights, but of a partition it is a flush. */
    if (work->length == 0 && (!allowed || !mr.partition))
        return end(work, IBV_WC_SUCCESS);
    if (!allowed)
        return fault(qp, work, IBV_WC_REM_ACCESS_ERR);
    /* Storage reports its outcome: that needs a reliable queue pair. */
    if (mr.partition && (!is_reliable(qp) || !storage_ops()))
        return end(work, IBV_WC_REM_OP_ERR);
    if (mr.partition)
        return storage_ops()->begin(qp, work, &mr, here->list, here->count);
    return word ? change_word(qp, work, &mr, here) : write_or_read(qp, work, &mr, here);
}

/* Whether the peer's queue pair takes this of this one. */
static bool accepts(const struct queue_pair *qp, const struct work *work) {
    const struct queue_area *queue = qp->peer->queue;
    uint32_t state = atomic_load(&queue->state);
    return (state == IBV_QPS_RTR || state == IBV_QPS_RTS) && queue->type == qp->verbs.qp_type &&
           (is_datagram(qp) ? atomic_load(&queue->qkey) == work->to.qkey
                            : atomic_load(&queue->dest_qpn) == qp->verbs.qp_num);
}

static enum step with_peer(struct queue_pair *qp, struct work *work, struct pieces *here) {
    struct queue_area *queue = qp->peer->queue;
    if (!accepts(qp, work))
        return STEP_LATER;
    if (work->opcode == IBV_WR_SEND || work->opcode == IBV_WR_SEND_WITH_IMM)
        return deliver(qp, work, here, true);
    if (work->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
        return one_sided(qp, work, here);
    /* Both or nothing: storage has no such thing, as its peer would be notified too soon. */
    struct shared_mr mr;
    if (atomic_load(&qp->peer->ring->tail) == atomic_load(&qp->peer->ring->done))
        return STEP_NOT_READY;
    if (mr_allows(qp->peer->area, work->rkey, queue->pd, IBV_ACCESS_REMOTE_WRITE, work->remote, work->length,
                  &mr) &&
        mr.partition)
        return fault(qp, work, IBV_WC_REM_INV_REQ_ERR);
    enum step step = one_sided(qp, work, here);
    return step == STEP_ENDED && work->status == IBV_WC_SUCCESS ? deliver(qp, work, here, false) : step;
}

/* A connection to the peer, from the last time or new; NULL: nobody is there. */
static struct peer *connected(struct queue_pair *qp, uint32_t qpn) {
    struct peer **place = &qp->peers[0];
    for (int i = 0; i < MAX_PEERS; i++) {
        struct peer **at = &qp->peers[i];
        if (*at && (*at)->qpn == qpn) {
            (*at)->used = ++qp->peer_uses;
            return *at;
        }
        /* In turns: a free one, or the one that was used longest ago. */
        if (*place && (!*at || qp->peer_uses - (*at)->used > qp->peer_uses - (*place)->used))
            place = at;
    }
    struct peer *peer = peer_connect(context_of(qp->verbs.context), qpn);
    if (!peer)
        return NULL;
    /* For the peer, as long as this process is there, which may be longer than its files. */
    if (!is_datagram(qp) && !lock_byte(peer, LINK_LOCKS + (off_t)place_of(qpn), F_RDLCK)) {
        peer_drop(peer);
        return NULL;
    }
    if (*place)
        peer_drop(*place);
    peer->used = ++qp->peer_uses;
    return *place = peer;
}

static void disconnect(struct queue_pair *qp) {
    for (int i = 0; i < MAX_PEERS; i++)
        if (qp->peers[i] == qp->peer)
            qp->peers[i] = NULL;
    peer_drop(qp->peer);
    qp->peer = NULL;
}

/* From the beginning of this on the peer waits until it is over before it gives memory back. */
static enum step at_peer(struct queue_pair *qp, struct work *work, struct pieces *here) {
    enum step step;
    if (is_datagram(qp)) {
        off_t lock = UD_LOCKS + (off_t)place_of(qp->peer->qpn);
        if (!lock_byte(qp->peer, lock, F_WRLCK))
            return STEP_BUSY;
        step = with_peer(qp, work, here);
        lock_byte(qp->peer, lock, F_UNLCK);
        return step;
    }
    _Atomic uint32_t *busy = &qp->peer->queue->busy;
    uint32_t idle = atomic_load(busy);
    /* Another may be here who has not noticed yet that he is no longer its friend. */
    if (idle & 1 || !atomic_compare_exchange_strong(busy, &idle, idle + 1))
        return STEP_BUSY;
    step = with_peer(qp, work, here);
    atomic_store(busy, idle + 2);
    return step;
}

enum step wire_do(struct queue_pair *qp, struct work *work) {
    struct pieces here;
    struct ibv_grh head;
    bool fills = right(work->opcode) != IBV_ACCESS_REMOTE_WRITE;
    bool word = right(work->opcode) == IBV_ACCESS_REMOTE_ATOMIC, datagram = is_datagram(qp);
    if (work->length > (datagram ? MAX_DATAGRAM : MAX_MESSAGE) ||
        (word && (work->num_sge != 1 || work->length != 8)))
        return end(work, IBV_WC_LOC_LEN_ERR);
    if (datagram)
        head = head_of(work);
    if (!local_pieces(qp, work, fills ? IBV_ACCESS_LOCAL_WRITE : 0, datagram ? &head : NULL, &here))
        return end(work, IBV_WC_LOC_PROT_ERR);
    if (datagram)
        qp->peer = work->to.reachable ? connected(qp, work->to.qpn) : NULL;
    else if (!qp->peer && qp->reachable)
        qp->peer = connected(qp, qp->attr.dest_qp_num);
    if (!qp->peer)
        return end_undelivered(qp, work, STEP_LATER);
    bool lives = peer_lives(qp->peer);
    if (!is_reliable(qp) && (!lives || !accepts(qp, work))) {
        /* Another may have the number next time. */
        disconnect(qp);
        lives = false;
    }
    if (!lives)
        return end_undelivered(qp, work, end(work, IBV_WC_RETRY_EXC_ERR));
    return end_undelivered(qp, work, at_peer(qp, work, &here));
}
