/* Shared receive queues: a sender to one of their queue pairs fills the next request of the one ring,
 * and says for which; the owner hands that on to the queue pair. */
#include "device.h"

#include <stdlib.h>

/* Hands on the requests that peers have filled; with the lock. */
static void sort(struct shared_receive *srq) {
    uint32_t filled = atomic_load(&srq->area->ring.done) - srq->taken;
    if (filled > srq->tail - srq->taken)
        srq->broken = true;
    for (; !srq->broken && filled > 0; filled--, srq->taken++) {
        uint32_t index = srq->taken & srq->mask;
        const struct slot *slot = &srq->area->ring.slots[index];
        uint32_t qpn = *(const volatile uint32_t *)&slot->qpn;
        struct queue_pair *qp = srq->users[place_of(qpn)];
        if (!qp || qp->verbs.qp_num != qpn) { /* it is gone, or this is nonsense */
            srq->held--;
            continue;
        }
        struct received *node = srq->free;
        srq->free = node->next;
        *node = (struct received){.wc = recv_read(qp, slot, &srq->posts[index])};
        *(qp->first ? &qp->last->next : &qp->first) = node;
        qp->last = node;
        qp->received++;
    }
}

/* Takes the oldest out of a queue pair's list, which is not empty. */
static struct ibv_wc take_first(struct queue_pair *qp) {
    struct received *node = qp->first;
    qp->first = node->next;
    qp->received--;
    qp->srq->held--;
    node->next = qp->srq->free;
    qp->srq->free = node;
    return node->wc;
}

int srq_take(struct queue_pair *qp, int count, struct ibv_wc *wc) {
    struct shared_receive *srq = qp->srq;
    int taken = 0;
    if (qp->received == 0 && atomic_load(&srq->area->ring.done) == srq->taken)
        return 0;
    pthread_mutex_lock(&srq->lock);
    sort(srq);
    for (; taken < count && qp->first; taken++) {
        wc[taken] = take_first(qp);
        if (wc[taken].status != IBV_WC_SUCCESS)
            qp_break(qp);
    }
    if (srq->broken)
        qp_break(qp);
    pthread_mutex_unlock(&srq->lock);
    return taken;
}

void srq_join(struct queue_pair *qp) {
    pthread_mutex_lock(&qp->srq->lock);
    qp->srq->users[qp->place] = qp;
    qp->srq->user_count++;
    pthread_mutex_unlock(&qp->srq->lock);
}

void srq_forget(struct queue_pair *qp) {
    pthread_mutex_lock(&qp->srq->lock);
    sort(qp->srq);
    while (qp->first)
        take_first(qp);
    pthread_mutex_unlock(&qp->srq->lock);
}

void srq_leave(struct queue_pair *qp) {
    pthread_mutex_lock(&qp->srq->lock);
    qp->srq->users[qp->place] = NULL;
    qp->srq->user_count--;
    pthread_mutex_unlock(&qp->srq->lock);
}

int post_srq_recv(struct ibv_srq *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct shared_receive *srq = srq_of(verbs);
    int code = 0;
    if (forked) {
        *bad = wr;
        return EPERM;
    }
    pthread_mutex_lock(&srq->lock);
    while (code == 0 && wr) {
        uint32_t index = srq->tail & srq->mask;
        if (wr->num_sge < 0 || (uint32_t)wr->num_sge > srq->attr.max_sge) {
            code = EINVAL;
        } else if (srq->held >= srq->attr.max_wr) {
            code = ENOMEM;
        } else {
            recv_enter(wr, &srq->posts[index], &srq->area->ring.slots[index]);
            srq->tail++;
            srq->held++;
            wr = wr->next;
        }
    }
    atomic_store(&srq->area->ring.tail, srq->tail);
    pthread_mutex_unlock(&srq->lock);
    if (code != 0)
        *bad = wr;
    return code;
}

static void give_back(struct shared_receive *srq) {
    struct context *context = context_of(srq->verbs.context);
    if (srq->area)
        srq_area_drop(context, srq->verbs.handle, srq->area, srq->bytes);
    pthread_mutex_lock(&context->mutex);
    if (context->srqs[srq->verbs.handle] == srq)
        context->srqs[srq->verbs.handle] = NULL;
    pthread_mutex_unlock(&context->mutex);
    free(srq->posts);
    free(srq->nodes);
    free(srq);
}

static bool make_ring(struct shared_receive *srq) {
    struct context *context = context_of(srq->verbs.context);
    uint32_t entries = power_of_two(srq->attr.max_wr), place = 0;
    srq->mask = entries - 1;
    srq->posts = calloc(entries, sizeof *srq->posts);
    srq->nodes = calloc(srq->attr.max_wr, sizeof *srq->nodes);
    if (!srq->posts || !srq->nodes)
        return false;
    for (uint32_t i = 0; i < srq->attr.max_wr; i++) {
        srq->nodes[i].next = srq->free;
        srq->free = &srq->nodes[i];
    }
    pthread_mutex_lock(&context->mutex);
    while (place < MAX_SRQS && context->srqs[place])
        place++;
    if (place < MAX_SRQS) {
        context->srqs[place] = srq;
        srq->verbs.handle = place;
    }
    pthread_mutex_unlock(&context->mutex);
    if (place == MAX_SRQS) {
        errno = ENOMEM;
        return false;
    }
    srq->area = srq_area_make(context, place, entries, &srq->bytes);
    if (srq->area)
        srq->area->pd = srq->verbs.pd->handle;
    return srq->area;
}

PUBLIC struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init) {
    if (!ours(pd->context))
        PASS("IBVERBS_1.1", ibv_create_srq, pd, init);
    int code = forked ? EPERM : 0;
    if (code == 0 && (init->attr.max_wr == 0 || init->attr.max_wr > MAX_WR || init->attr.max_sge > MAX_SGE))
        code = EINVAL;
    struct shared_receive *srq = code == 0 ? calloc(1, sizeof *srq) : NULL;
    if (!srq) {
        errno = code ? code : ENOMEM;
        return NULL;
    }
    srq->verbs = (struct ibv_srq){.context = pd->context, .srq_context = init->srq_context, .pd = pd};
    srq->attr = (struct ibv_srq_attr){.max_wr = init->attr.max_wr, .max_sge = init->attr.max_sge};
    pthread_mutex_init(&srq->verbs.mutex, NULL);
    pthread_cond_init(&srq->verbs.cond, NULL);
    pthread_mutex_init(&srq->lock, NULL);
    if (!make_ring(srq)) {
        code = errno;
        give_back(srq);
        errno = code;
        return NULL;
    }
    struct context *context = context_of(pd->context);
    pthread_mutex_lock(&context->mutex);
    container_of(pd, struct domain, verbs)->users++;
    pthread_mutex_unlock(&context->mutex);
    return &srq->verbs;
}

/* Its size is that of its creation, and no event reports that few requests are left. */
PUBLIC int ibv_modify_srq(struct ibv_srq *verbs, struct ibv_srq_attr *attr, int mask) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_modify_srq, verbs, attr, mask);
    return mask & IBV_SRQ_MAX_WR || (mask & IBV_SRQ_LIMIT && attr->srq_limit > 0) ? EOPNOTSUPP : 0;
}

PUBLIC int ibv_query_srq(struct ibv_srq *verbs, struct ibv_srq_attr *attr) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_query_srq, verbs, attr);
    *attr = srq_of(verbs)->attr;
    return 0;
}

PUBLIC int ibv_destroy_srq(struct ibv_srq *verbs) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_destroy_srq, verbs);
    struct shared_receive *srq = srq_of(verbs);
    struct context *context = context_of(verbs->context);
    if (forked)
        return EPERM;
    if (srq->user_count > 0)
        return EBUSY;
    pthread_mutex_lock(&context->mutex);
    container_of(verbs->pd, struct domain, verbs)->users--;
    pthread_mutex_unlock(&context->mutex);
    give_back(srq);
    return 0;
}
