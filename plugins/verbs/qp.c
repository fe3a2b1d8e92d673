#include "device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

uint32_t power_of_two(uint32_t count) {
    uint32_t power = 1;
    while (power < count)
        power *= 2;
    return power;
}

static uint64_t send_operations(enum ibv_qp_type type) {
    uint64_t all = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if (type != IBV_QPT_UD)
        all |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    if (type == IBV_QPT_RC)
        all |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
               IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    return all;
}

static int refuse(const struct ibv_qp_init_attr_ex *init) {
    const struct ibv_qp_cap *cap = &init->cap;
    if (forked)
        return EPERM;
    if ((init->qp_type != IBV_QPT_RC && init->qp_type != IBV_QPT_UC && init->qp_type != IBV_QPT_UD) ||
        init->comp_mask & ~(uint32_t)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
                                      IBV_QP_INIT_ATTR_CREATE_FLAGS))
        return EOPNOTSUPP;
    if (init->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && init->create_flags)
        return EOPNOTSUPP;
    if (init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS &&
        init->send_ops_flags & ~send_operations(init->qp_type))
        return EOPNOTSUPP;
    if (!(init->comp_mask & IBV_QP_INIT_ATTR_PD) || !init->pd || !init->send_cq || !init->recv_cq ||
        cap->max_send_wr > MAX_WR || cap->max_recv_wr > MAX_WR || cap->max_send_sge > MAX_SGE ||
        cap->max_recv_sge > MAX_SGE || cap->max_inline_data > MAX_INLINE ||
        (init->srq && init->srq->context != init->pd->context))
        return EINVAL;
    return 0;
}

/* A free place, the one that was used least, so that a number comes again late. */
static bool take_place(struct context *context, struct queue_pair *qp) {
    bool found = false;
    pthread_mutex_lock(&context->mutex);
    for (uint32_t i = 0; i < MAX_QPS; i++)
        if (!context->qps[i] && (!found || context->uses[i] < context->uses[qp->place])) {
            qp->place = i;
            found = true;
        }
    if (found) {
        context->qps[qp->place] = qp;
        qp->verbs.qp_num = context->slot << 12 | (context->uses[qp->place]++ & 3u) << 10 | qp->place;
    }
    pthread_mutex_unlock(&context->mutex);
    return found;
}

static void give_back(struct queue_pair *qp) {
    struct context *context = context_of(qp->verbs.context);
    pthread_mutex_lock(&context->mutex);
    /* Not before, as a thread that gives memory back looks at it with the lock; and not later, as the
     * next one's file in this place has the same name. */
    if (qp->area)
        queue_area_drop(context, qp->place, qp->area, qp->bytes);
    if (context->qps[qp->place] == qp)
        context->qps[qp->place] = NULL;
    pthread_mutex_unlock(&context->mutex);
    free(qp->works);
    free(qp->receives);
    free(qp);
}

static bool make_queues(struct queue_pair *qp) {
    struct context *context = context_of(qp->verbs.context);
    const struct ibv_qp_cap *cap = &qp->init.cap;
    uint32_t sends = power_of_two(cap->max_send_wr), receives = power_of_two(cap->max_recv_wr);
    qp->send_mask = sends - 1;
    qp->recv_mask = receives - 1;
    qp->send_limit = cap->max_send_wr;
    qp->recv_limit = cap->max_recv_wr;
    qp->works = calloc(sends, sizeof *qp->works);
    qp->receives = calloc(receives, sizeof *qp->receives);
    if (!qp->works || !qp->receives)
        return false;
    if (!take_place(context, qp)) {
        errno = ENOMEM;
        return false;
    }
    qp->area = queue_area_make(context, qp->place, receives, &qp->bytes);
    if (!qp->area)
        return false;
    qp->area->srq = qp->srq ? qp->srq->verbs.handle + 1 : 0;
    qp->area->qpn = qp->verbs.qp_num;
    qp->area->pd = qp->verbs.pd->handle;
    qp->area->recv_cq = qp->verbs.recv_cq->handle;
    qp->area->type = qp->verbs.qp_type;
    return true;
}

struct ibv_qp *qp_create_ex(struct ibv_context *verbs, struct ibv_qp_init_attr_ex *init) {
    int code = refuse(init);
    struct queue_pair *qp = code == 0 ? calloc(1, sizeof *qp) : NULL;
    if (!qp) {
        errno = code ? code : ENOMEM;
        return NULL;
    }
    qp->verbs = (struct ibv_qp){.context = verbs,
                                .qp_context = init->qp_context,
                                .pd = init->pd,
                                .send_cq = init->send_cq,
                                .recv_cq = init->recv_cq,
                                .srq = init->srq,
                                .state = IBV_QPS_RESET,
                                .qp_type = init->qp_type};
    pthread_mutex_init(&qp->verbs.mutex, NULL);
    pthread_cond_init(&qp->verbs.cond, NULL);
    pthread_mutex_init(&qp->send_lock, NULL);
    pthread_mutex_init(&qp->recv_lock, NULL);
    init->cap.max_inline_data = MAX_INLINE;
    if (init->srq)
        init->cap.max_recv_wr = init->cap.max_recv_sge = 0;
    qp->srq = init->srq ? srq_of(init->srq) : NULL;
    qp->init = (struct ibv_qp_init_attr){.qp_context = init->qp_context,
                                         .send_cq = init->send_cq,
                                         .recv_cq = init->recv_cq,
                                         .srq = init->srq,
                                         .cap = init->cap,
                                         .qp_type = init->qp_type,
                                         .sq_sig_all = init->sq_sig_all};
    send_api(&qp->extended);
    if (!make_queues(qp)) {
        code = errno;
        give_back(qp);
        errno = code;
        return NULL;
    }
    qp->verbs.handle = qp->place;
    if (qp->srq)
        srq_join(qp);
    struct completion_queue *sends = cq_of(init->send_cq), *receives = cq_of(init->recv_cq);
    /* As many queue pairs as there may be have space. */
    cq_join(sends, qp);
    if (receives != sends)
        cq_join(receives, qp);
    struct domain *domain = container_of(init->pd, struct domain, verbs);
    pthread_mutex_lock(&context_of(verbs)->mutex);
    domain->users++;
    pthread_mutex_unlock(&context_of(verbs)->mutex);
    return &qp->verbs;
}

PUBLIC struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    if (!ours(pd->context))
        PASS("IBVERBS_1.1", ibv_create_qp, pd, init);
    struct ibv_qp_init_attr_ex more = {.qp_context = init->qp_context,
                                       .send_cq = init->send_cq,
                                       .recv_cq = init->recv_cq,
                                       .srq = init->srq,
                                       .cap = init->cap,
                                       .qp_type = init->qp_type,
                                       .sq_sig_all = init->sq_sig_all,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD,
                                       .pd = pd};
    struct ibv_qp *qp = qp_create_ex(pd->context, &more);
    if (qp)
        init->cap = more.cap;
    return qp;
}

PUBLIC struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) {
    if (!ours(qp->context))
        PASS("IBVERBS_1.6", ibv_qp_to_qp_ex, qp);
    return &qp_of(qp)->extended;
}

/* Forgets all requests and the peer. Nobody else uses it meanwhile, but peers. */
static int reset(struct queue_pair *qp) {
    atomic_store(&qp->area->state, IBV_QPS_RESET);
    if (!queue_area_quiet(qp, QUIET))
        return EBUSY;
    progress_leave(qp);
    pthread_mutex_lock(&qp->send_lock);
    if (qp->storage)
        storage_ops()->drop(qp);
    for (int i = 0; i < MAX_PEERS; i++)
        if (qp->peers[i])
            peer_drop(qp->peers[i]);
    memset(qp->peers, 0, sizeof qp->peers);
    qp->peer = NULL;
    qp->posted = qp->begun = 0;
    qp->ended = qp->reaped = 0;
    qp->pending = false;
    qp->waiting = 0;
    pthread_mutex_unlock(&qp->send_lock);
    pthread_mutex_lock(&qp->recv_lock);
    qp->taken = qp->tail = 0;
    atomic_store(&qp->area->ring.tail, 0);
    atomic_store(&qp->area->ring.done, 0);
    atomic_store(&qp->area->busy, 0);
    atomic_store(&qp->area->fault, 0);
    atomic_store(&qp->area->dest_qpn, 0);
    pthread_mutex_unlock(&qp->recv_lock);
    if (qp->srq)
        srq_forget(qp);
    qp->broken = false;
    return 0;
}

/* The attributes that queue pairs of every kind have, those that are connected, and those that are
 * reliable. */
#define OF_ALL                                                                                               \
    (IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_PKEY_INDEX | IBV_QP_PORT |        \
     IBV_QP_SQ_PSN | IBV_QP_CAP)
#define OF_CONNECTED (IBV_QP_ACCESS_FLAGS | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN | IBV_QP_DEST_QPN)
#define OF_RELIABLE                                                                                          \
    (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC | \
     IBV_QP_MAX_DEST_RD_ATOMIC)

/* The attributes that a change of state may set. */
static int allowed(enum ibv_qp_type type) {
    if (type == IBV_QPT_UD)
        return OF_ALL | IBV_QP_QKEY;
    return OF_ALL | OF_CONNECTED | (type == IBV_QPT_RC ? OF_RELIABLE : 0);
}

/* Those that it must set, at least; -1: there is no such change. */
static int needed(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to) {
    int least = 0;
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
        return 0;
    if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
        least = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS | IBV_QP_QKEY;
    else if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
        least = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                IBV_QP_MIN_RNR_TIMER;
    else if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
        least =
            IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    else if (from != to || (to != IBV_QPS_INIT && to != IBV_QPS_RTS))
        return -1;
    return least & allowed(type);
}

/* Keeps the attributes that were set, for itself and for peers. */
static void keep(struct queue_pair *qp, const struct ibv_qp_attr *attr, int mask) {
    struct ibv_qp_attr *own = &qp->attr;
#define KEEP(flag, field)                                                                                    \
    if (mask & (flag))                                                                                       \
    own->field = attr->field
    KEEP(IBV_QP_ACCESS_FLAGS, qp_access_flags);
    KEEP(IBV_QP_PKEY_INDEX, pkey_index);
    KEEP(IBV_QP_PORT, port_num);
    KEEP(IBV_QP_AV, ah_attr);
    KEEP(IBV_QP_PATH_MTU, path_mtu);
    KEEP(IBV_QP_TIMEOUT, timeout);
    KEEP(IBV_QP_RETRY_CNT, retry_cnt);
    KEEP(IBV_QP_RNR_RETRY, rnr_retry);
    KEEP(IBV_QP_RQ_PSN, rq_psn);
    KEEP(IBV_QP_SQ_PSN, sq_psn);
    KEEP(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
    KEEP(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
    KEEP(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
    KEEP(IBV_QP_DEST_QPN, dest_qp_num);
    KEEP(IBV_QP_QKEY, qkey);
#undef KEEP
    atomic_store(&qp->area->access, (uint32_t)own->qp_access_flags);
    atomic_store(&qp->area->rnr_timer, own->min_rnr_timer);
    atomic_store(&qp->area->dest_qpn, own->dest_qp_num);
    atomic_store(&qp->area->qkey, own->qkey);
    qp->reachable = is_this_node(&own->ah_attr);
}

PUBLIC int ibv_modify_qp(struct ibv_qp *verbs, struct ibv_qp_attr *attr, int mask) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_modify_qp, verbs, attr, mask);
    struct queue_pair *qp = qp_of(verbs);
    if (forked)
        return EPERM;
    enum ibv_qp_state from = qp->broken ? IBV_QPS_ERR : verbs->state;
    enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : from;
    int least = needed(verbs->qp_type, from, to);
    if (least < 0 || mask & ~allowed(verbs->qp_type) || (mask & least) != least ||
        (mask & IBV_QP_CUR_STATE && attr->cur_qp_state != from) ||
        (mask & IBV_QP_PORT && attr->port_num != 1) || (mask & IBV_QP_PKEY_INDEX && attr->pkey_index != 0))
        return EINVAL;
    if (to == IBV_QPS_RESET) {
        int code = reset(qp);
        if (code != 0)
            return code;
    }
    keep(qp, attr, mask);
    if (to == IBV_QPS_ERR) {
        qp_break(qp);
        pthread_mutex_lock(&qp->send_lock);
        send_advance(qp);
        pthread_mutex_unlock(&qp->send_lock);
        if (qp->pending)
            progress_wake(qp);
    } else {
        atomic_store(&qp->area->state, to);
    }
    verbs->state = to;
    return 0;
}

PUBLIC int ibv_query_qp(struct ibv_qp *verbs, struct ibv_qp_attr *attr, int mask,
                        struct ibv_qp_init_attr *init) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_query_qp, verbs, attr, mask, init);
    struct queue_pair *qp = qp_of(verbs);
    if (qp->broken || atomic_load(&qp->area->fault))
        verbs->state = IBV_QPS_ERR;
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = verbs->state;
    attr->cap = qp->init.cap;
    *init = qp->init;
    return 0;
}

PUBLIC int ibv_destroy_qp(struct ibv_qp *verbs) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_destroy_qp, verbs);
    struct queue_pair *qp = qp_of(verbs);
    struct context *context = context_of(verbs->context);
    if (forked)
        return EPERM;
    int code = reset(qp);
    if (code != 0)
        return code;
    if (qp->srq)
        srq_leave(qp);
    cq_leave(cq_of(verbs->send_cq), qp);
    cq_leave(cq_of(verbs->recv_cq), qp);
    pthread_mutex_lock(&context->mutex);
    container_of(verbs->pd, struct domain, verbs)->users--;
    pthread_mutex_unlock(&context->mutex);
    give_back(qp);
    return 0;
}
