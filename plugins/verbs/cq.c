#include "device.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Polls in vain until the peer, which is no device but a process, gets the processor if it waits for that. */
#define IDLE 64u

/* A completion queue has no entries: completions are those requests that queue pairs have ended and
 * not reported. So none is lost, however small it is. */
int poll_cq(struct ibv_cq *verbs, int count, struct ibv_wc *wc) {
    struct completion_queue *cq = cq_of(verbs);
    int taken = 0;
    if (forked || count < 0)
        return -1;
    pthread_mutex_lock(&cq->lock);
    for (uint32_t i = 0; taken < count && i < cq->user_count; i++) {
        struct queue_pair *qp = cq->users[(cq->first + i) % cq->user_count];
        if (qp->verbs.send_cq == verbs)
            taken += send_take(qp, count - taken, wc + taken);
        if (qp->verbs.recv_cq == verbs)
            taken += recv_take(qp, count - taken, wc + taken);
    }
    cq->first++;
    cq->idle = taken > 0 ? 0 : cq->idle + 1;
    bool yields = cq->idle % IDLE == IDLE - 1;
    pthread_mutex_unlock(&cq->lock);
    if (yields)
        sched_yield();
    return taken;
}

int req_notify_cq(struct ibv_cq *verbs, int solicited_only) {
    struct completion_queue *cq = cq_of(verbs);
    struct shared_cq *shared = &context_of(verbs->context)->area->cqs[cq->index];
    if (forked)
        return EPERM;
    if (!solicited_only)
        atomic_store(&shared->armed, ARM_ANY);
    else if (atomic_load(&shared->armed) == ARM_NONE)
        atomic_store(&shared->armed, ARM_SOLICITED);
    return 0;
}

/* Whether it is this completion that is waited for; then no later one is. */
static bool fires(struct shared_cq *shared, bool solicited) {
    uint32_t armed = atomic_load(&shared->armed);
    while (armed == ARM_ANY || (armed == ARM_SOLICITED && solicited))
        if (atomic_compare_exchange_weak(&shared->armed, &armed, ARM_NONE))
            return true;
    return false;
}

/* A pipe that is full has been readable for long. */
static void write_event(int pipe, struct shared_cq *shared) {
    uint32_t id = atomic_load(&shared->id);
    if (write(pipe, &id, sizeof id) < 0)
        return;
}

void cq_notify(struct ibv_cq *verbs, bool solicited) {
    struct completion_queue *cq = cq_of(verbs);
    struct shared_cq *shared = &context_of(verbs->context)->area->cqs[cq->index];
    if (verbs->channel && fires(shared, solicited))
        write_event(container_of(verbs->channel, struct channel, verbs)->writer, shared);
}

void peer_notify(struct peer *peer, bool solicited) {
    struct shared_cq *shared = &peer->area->cqs[peer->queue->recv_cq % MAX_CQS];
    uint32_t channel = atomic_load(&shared->channel);
    if (channel == 0 || channel > MAX_CHANNELS || !fires(shared, solicited))
        return;
    if (channel != peer->channel) {
        char name[16];
        pipe_name(name, channel);
        if (peer->pipe >= 0)
            close(peer->pipe);
        peer->pipe = openat(peer->folder, name, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
        peer->channel = channel;
    }
    if (peer->pipe >= 0)
        write_event(peer->pipe, shared);
}

bool cq_join(struct completion_queue *cq, struct queue_pair *qp) {
    pthread_mutex_lock(&cq->lock);
    bool room = cq->user_count < MAX_QPS;
    if (room)
        cq->users[cq->user_count++] = qp;
    pthread_mutex_unlock(&cq->lock);
    return room;
}

void cq_leave(struct completion_queue *cq, struct queue_pair *qp) {
    pthread_mutex_lock(&cq->lock);
    for (uint32_t i = 0; i < cq->user_count; i++)
        if (cq->users[i] == qp)
            cq->users[i--] = cq->users[--cq->user_count];
    pthread_mutex_unlock(&cq->lock);
}

PUBLIC struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *verbs) {
    if (!ours(verbs))
        PASS("IBVERBS_1.0", ibv_create_comp_channel, verbs);
    struct context *context = context_of(verbs);
    struct channel *channel = calloc(1, sizeof *channel);
    char name[16];
    if (!channel)
        return NULL;
    pthread_mutex_lock(&context->mutex);
    while (channel->number < MAX_CHANNELS &&
           context->channels[channel->number / 64] >> channel->number % 64 & 1)
        channel->number++;
    if (channel->number < MAX_CHANNELS)
        context->channels[channel->number / 64] |= (uint64_t)1 << channel->number % 64;
    pthread_mutex_unlock(&context->mutex);
    if (channel->number == MAX_CHANNELS) {
        free(channel);
        errno = ENOMEM;
        return NULL;
    }
    channel->number++;
    pipe_name(name, channel->number);
    channel->verbs = (struct ibv_comp_channel){.context = verbs, .fd = -1};
    channel->writer = -1;
    unlinkat(context->own, name, 0);
    if (mkfifoat(context->own, name, 0600) == 0) {
        /* Open for both, so that it has no end when a peer has none any more. */
        channel->verbs.fd = openat(context->own, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        channel->writer = openat(context->own, name, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    }
    if (channel->writer >= 0)
        return &channel->verbs;
    int code = errno;
    ibv_destroy_comp_channel(&channel->verbs);
    errno = code;
    return NULL;
}

PUBLIC int ibv_destroy_comp_channel(struct ibv_comp_channel *verbs) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.0", ibv_destroy_comp_channel, verbs);
    struct context *context = context_of(verbs->context);
    struct channel *channel = container_of(verbs, struct channel, verbs);
    char name[16];
    if (verbs->refcnt > 0)
        return EBUSY;
    pipe_name(name, channel->number);
    if (!forked)
        unlinkat(context->own, name, 0);
    if (verbs->fd >= 0)
        close(verbs->fd);
    if (channel->writer >= 0)
        close(channel->writer);
    pthread_mutex_lock(&context->mutex);
    context->channels[(channel->number - 1) / 64] &= ~((uint64_t)1 << (channel->number - 1) % 64);
    pthread_mutex_unlock(&context->mutex);
    free(channel);
    return 0;
}

PUBLIC struct ibv_cq *ibv_create_cq(struct ibv_context *verbs, int cqe, void *cq_context,
                                    struct ibv_comp_channel *channel, int comp_vector) {
    if (!ours(verbs))
        PASS("IBVERBS_1.1", ibv_create_cq, verbs, cqe, cq_context, channel, comp_vector);
    struct context *context = context_of(verbs);
    if (forked || cqe < 1 || comp_vector != 0) {
        errno = forked ? EPERM : EINVAL;
        return NULL;
    }
    struct completion_queue *cq = calloc(1, sizeof *cq);
    if (!cq)
        return NULL;
    pthread_mutex_lock(&context->mutex);
    while (cq->index < MAX_CQS && context->cqs[cq->index])
        cq->index++;
    if (cq->index < MAX_CQS)
        context->cqs[cq->index] = cq;
    cq->id = ++context->generation * MAX_CQS + cq->index;
    pthread_mutex_unlock(&context->mutex);
    if (cq->index == MAX_CQS) {
        free(cq);
        errno = ENOMEM;
        return NULL;
    }
    cq->verbs = (struct ibv_cq){
        .context = verbs, .channel = channel, .cq_context = cq_context, .handle = cq->index, .cqe = cqe};
    pthread_mutex_init(&cq->verbs.mutex, NULL);
    pthread_cond_init(&cq->verbs.cond, NULL);
    pthread_mutex_init(&cq->lock, NULL);
    struct shared_cq *shared = &context->area->cqs[cq->index];
    atomic_store(&shared->armed, ARM_NONE);
    atomic_store(&shared->id, cq->id);
    if (channel) {
        pthread_mutex_lock(&context->mutex);
        channel->refcnt++;
        pthread_mutex_unlock(&context->mutex);
        atomic_store(&shared->channel, container_of(channel, struct channel, verbs)->number);
    }
    return &cq->verbs;
}

PUBLIC int ibv_resize_cq(struct ibv_cq *verbs, int cqe) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_resize_cq, verbs, cqe);
    if (cqe < 1)
        return EINVAL;
    verbs->cqe = cqe;
    return 0;
}

PUBLIC int ibv_destroy_cq(struct ibv_cq *verbs) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_destroy_cq, verbs);
    struct context *context = context_of(verbs->context);
    struct completion_queue *cq = cq_of(verbs);
    if (forked)
        return EPERM;
    if (cq->user_count > 0)
        return EBUSY;
    atomic_store(&context->area->cqs[cq->index].channel, 0);
    pthread_mutex_lock(&context->mutex);
    context->cqs[cq->index] = NULL;
    if (verbs->channel)
        verbs->channel->refcnt--;
    pthread_mutex_unlock(&context->mutex);
    pthread_mutex_lock(&verbs->mutex);
    while (verbs->comp_events_completed != cq->events)
        pthread_cond_wait(&verbs->cond, &verbs->mutex);
    pthread_mutex_unlock(&verbs->mutex);
    free(cq);
    return 0;
}

/* The queue of an event, if it is still there. */
static struct completion_queue *queue_of_event(struct ibv_comp_channel *channel, uint32_t id) {
    struct context *context = context_of(channel->context);
    pthread_mutex_lock(&context->mutex);
    struct completion_queue *cq = context->cqs[id % MAX_CQS];
    if (cq && (cq->id != id || cq->verbs.channel != channel))
        cq = NULL;
    if (cq)
        cq->events++;
    pthread_mutex_unlock(&context->mutex);
    return cq;
}

PUBLIC int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **verbs, void **cq_context) {
    if (!ours(channel->context))
        PASS("IBVERBS_1.1", ibv_get_cq_event, channel, verbs, cq_context);
    struct completion_queue *cq;
    uint32_t id;
    do {
        if (read(channel->fd, &id, sizeof id) != sizeof id)
            return -1;
    } while (!(cq = queue_of_event(channel, id)));
    *verbs = &cq->verbs;
    *cq_context = cq->verbs.cq_context;
    return 0;
}

PUBLIC void ibv_ack_cq_events(struct ibv_cq *verbs, unsigned int count) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_ack_cq_events, verbs, count);
    pthread_mutex_lock(&verbs->mutex);
    verbs->comp_events_completed += count;
    pthread_cond_signal(&verbs->cond);
    pthread_mutex_unlock(&verbs->mutex);
}
