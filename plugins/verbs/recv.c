#include "device.h"

void recv_enter(const struct ibv_recv_wr *wr, struct posted *posted, struct slot *slot) {
    posted->wr_id = wr->wr_id;
    posted->length = 0;
    slot->num_sge = (uint32_t)wr->num_sge;
    for (int i = 0; i < wr->num_sge; i++) {
        slot->sge[i] = wr->sg_list[i];
        posted->length += wr->sg_list[i].length;
    }
}

static int post_one(struct queue_pair *qp, const struct ibv_recv_wr *wr) {
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->init.cap.max_recv_sge)
        return EINVAL;
    if (qp->tail - qp->taken >= qp->recv_limit)
        return ENOMEM;
    uint32_t index = qp->tail++ & qp->recv_mask;
    recv_enter(wr, &qp->receives[index], &qp->area->ring.slots[index]);
    return 0;
}

int post_recv(struct ibv_qp *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct queue_pair *qp = qp_of(verbs);
    int code = forked ? EPERM : verbs->state == IBV_QPS_RESET || qp->srq ? EINVAL : 0;
    pthread_mutex_lock(&qp->recv_lock);
    for (; code == 0 && wr; wr = code == 0 ? wr->next : wr)
        code = post_one(qp, wr);
    atomic_store(&qp->area->ring.tail, qp->tail);
    pthread_mutex_unlock(&qp->recv_lock);
    if (code != 0)
        *bad = wr;
    if (qp->broken)
        cq_notify(verbs->recv_cq, true);
    return code;
}

struct ibv_wc recv_read(const struct queue_pair *qp, const struct slot *slot, const struct posted *posted) {
    struct ibv_wc wc = {.wr_id = posted->wr_id,
                        .status = slot->status,
                        .opcode = slot->opcode,
                        .byte_len = slot->byte_len,
                        .imm_data = slot->imm_data,
                        .wc_flags = slot->wc_flags & (IBV_WC_WITH_IMM | (is_datagram(qp) ? IBV_WC_GRH : 0)),
                        .qp_num = qp->verbs.qp_num,
                        .src_qp = is_datagram(qp) ? slot->src_qp : qp->attr.dest_qp_num,
                        .slid = node_lid(),
                        .sl = slot->sl & 15};
    bool message = wc.opcode == IBV_WC_RECV;
    if (!message)
        wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    if ((wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_LOC_LEN_ERR &&
         wc.status != IBV_WC_LOC_PROT_ERR) ||
        (message && wc.status == IBV_WC_SUCCESS && wc.byte_len > posted->length))
        wc.status = IBV_WC_GENERAL_ERR;
    return wc;
}

int recv_take(struct queue_pair *qp, int count, struct ibv_wc *wc) {
    struct ring *ring = &qp->area->ring;
    int taken = 0;
    if (atomic_load(&qp->area->fault))
        qp_break(qp);
    if (qp->srq)
        return srq_take(qp, count, wc);
    if (atomic_load(&ring->done) == qp->taken && !qp->broken)
        return 0;
    pthread_mutex_lock(&qp->recv_lock);
    /* In this order: a peer that is not busy now, and sees the error, fills no more. */
    bool over = qp->broken && queue_area_quiet(qp, 0);
    uint32_t filled = atomic_load(&ring->done) - qp->taken;
    if (filled > qp->tail - qp->taken) { /* nonsense */
        filled = 0;
        over = true;
        qp_break(qp);
    }
    for (; taken < count && qp->taken != qp->tail; taken++) {
        const struct posted *posted = &qp->receives[qp->taken & qp->recv_mask];
        if (filled > 0) {
            filled--;
            wc[taken] = recv_read(qp, &ring->slots[qp->taken & qp->recv_mask], posted);
        } else if (over) {
            wc[taken] = (struct ibv_wc){.wr_id = posted->wr_id,
                                        .status = IBV_WC_WR_FLUSH_ERR,
                                        .opcode = IBV_WC_RECV,
                                        .qp_num = qp->verbs.qp_num};
        } else {
            break;
        }
        if (wc[taken].status != IBV_WC_SUCCESS)
            qp_break(qp);
        qp->taken++;
    }
    pthread_mutex_unlock(&qp->recv_lock);
    return taken;
}
