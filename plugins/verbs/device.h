/*
 * The objects of tarn's RDMA device: the part of each that verbs.h shows, and the part behind it.
 * docs/internals/verbs.md has the whole.
 *
 * Locks, in this order: cq->lock, or the list of queue pairs of the progress thread (progress.c);
 * qp->send_lock; qp->recv_lock, or srq->lock.
 */
#ifndef TARN_VERBS_DEVICE_H
#define TARN_VERBS_DEVICE_H

#include "shared.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct dsa_partition;
struct dsa_queue;

#define PRIVATE __attribute__((visibility("hidden")))
#define PUBLIC __attribute__((visibility("default")))
#define container_of(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

struct context {
    struct context *next;
    int folder;            /* of all devices of this user */
    int own;               /* this one's, in that */
    uint32_t slot;         /* its name */
    struct area *area;     /* in it */
    int lock;              /* held as long as this is there: the area */
    uint32_t pds;          /* made so far */
    uint8_t uses[MAX_QPS]; /* of each place */
    struct queue_pair *qps[MAX_QPS];
    struct shared_receive *srqs[MAX_SRQS];
    struct completion_queue *cqs[MAX_CQS];
    struct region *regions[MAX_MRS];
    uint64_t channels[MAX_CHANNELS / 64]; /* in use */
    uint32_t generation;                  /* of numbers of completion queues */
    pthread_mutex_t mutex;                /* of these tables, and of objects' counts */
    struct verbs_context verbs;           /* last: so libibverbs wants it */
};

struct domain {
    struct ibv_pd verbs;
    uint32_t users;
};

struct region {
    struct ibv_mr verbs;
    struct dsa_partition *partition; /* kept open while it is registered */
    uint32_t slot;                   /* its place in the area's partitions, from 1 on; 0: it is memory */
};

struct channel {
    struct ibv_comp_channel verbs;
    uint32_t number; /* from 1 on */
    int writer;
};

struct completion_queue {
    struct ibv_cq verbs;
    uint32_t index;
    uint32_t id;
    uint32_t events; /* events that the program got */
    pthread_mutex_t lock;
    /* Each queue pair once, whether it sends, receives, or both by this queue. */
    struct queue_pair *users[MAX_QPS];
    uint32_t user_count;
    uint32_t idle;  /* polls in vain */
    uint32_t first; /* looked at first by the next poll, so that none waits for ever */
};

struct address {
    struct ibv_ah verbs;
    struct ibv_ah_attr attr;
};

/* The destination of a datagram. */
struct datagram {
    uint32_t qpn;
    uint32_t qkey;
    bool reachable; /* it is this node */
    bool global;    /* by its GID */
    uint8_t sl;
    struct ibv_global_route route;
};

/* A send request, from when it is posted until its completion was taken. */
struct work {
    uint64_t wr_id;
    uint64_t remote;
    uint64_t operand; /* added, or stored if it is equal */
    uint64_t expected;
    uint64_t length;
    uint64_t old; /* where what an atomic operation of storage has found is to be; 0: nowhere */
    uint32_t rkey;
    uint32_t imm_data;
    uint32_t opcode; /* enum ibv_wr_opcode */
    uint32_t flags;  /* enum ibv_send_flags */
    uint32_t num_sge;
    uint32_t status;     /* enum ibv_wc_status */
    uint32_t vendor_err; /* the errno or code behind it */
    uint32_t parts;      /* requests to a partition's queue that have not ended */
    bool ended;
    struct datagram to;
    struct ibv_sge sge[MAX_SGE];
    unsigned char data[MAX_INLINE];
};

/* A queue to one partition of the peer's. */
struct storage {
    struct storage *next;
    uint32_t rkey;
    struct dsa_partition *partition;
    struct dsa_queue *queue;
    uint32_t memory;
    uint32_t region;
    bool prepared; /* something that no doorbell was rung for */
};

/* The queue pair at the other end. */
struct peer {
    uint32_t qpn;
    uint32_t used; /* when, as a count of all uses */
    struct area *area;
    struct queue_area *queue;
    size_t bytes;         /* of queue */
    struct srq_area *srq; /* where it receives, if not in a ring of its own */
    size_t srq_bytes;
    uint32_t srq_place;
    struct ring *ring; /* of the one or the other */
    uint32_t entries;
    pid_t pid;
    int process; /* pidfd */
    int folder;
    int lock; /* the file of its area, for locks: of this queue pair alone */
    int pipe; /* of its completion channel, once something was told */
    uint32_t channel;
};

/* Of one queue pair at a time; only UD queue pairs have more than one. */
#define MAX_PEERS 16

struct posted {
    uint64_t wr_id;
    uint64_t length;
};

/* A message that has come for a queue pair by a shared receive queue. */
struct received {
    struct received *next;
    struct ibv_wc wc;
};

struct shared_receive {
    struct ibv_srq verbs;
    struct srq_area *area;
    size_t bytes; /* of area */
    pthread_mutex_t lock;
    struct posted *posts;
    uint32_t mask;
    struct ibv_srq_attr attr;
    uint32_t tail;          /* requests */
    _Atomic uint32_t taken; /* of them, out of the ring */
    uint32_t held;          /* of them, whose completions were not polled: at most max_wr */
    bool broken;            /* by nonsense */
    struct received *nodes; /* as many */
    struct received *free;
    struct queue_pair *users[MAX_QPS]; /* by place */
    uint32_t user_count;
};

struct queue_pair {
    union {
        struct ibv_qp verbs;
        struct ibv_qp_ex extended;
    };
    uint32_t place;
    struct queue_area *area;
    size_t bytes; /* of area */
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    _Atomic bool broken; /* in error, which base.state is told when somebody looks */
    bool reachable;      /* that address is this node's */

    pthread_mutex_t send_lock;
    struct work *works;
    uint32_t send_mask;
    uint32_t send_limit;
    /* reaped <= ended <= begun <= posted, as counts */
    _Atomic uint32_t reaped;
    _Atomic uint32_t ended;
    uint32_t begun;
    uint32_t posted;
    _Atomic bool pending; /* something is left for a later look */
    uint64_t waiting;     /* ns since when the next request waits for the peer; 0: it does not */
    struct peer *peer;    /* of the next request, one of: */
    struct peer *peers[MAX_PEERS];
    uint32_t peer_uses;
    struct storage *storage;
    uint32_t built; /* by wr_start and the calls after it: not yet posted */
    int refused;    /* the first error of that */

    pthread_mutex_t recv_lock;
    struct posted *receives;
    uint32_t recv_mask;
    uint32_t recv_limit;
    _Atomic uint32_t taken; /* completions */
    uint32_t tail;          /* requests */

    struct shared_receive *srq; /* in place of all that; with its lock: */
    struct received *first, *last;
    _Atomic uint32_t received; /* in that list */

    struct queue_pair *next; /* of progress.c */
    bool listed;
};

/* device.c */
extern struct ibv_device *const tarn_device PRIVATE;
/* Set in a child that was forked: objects that its parent has opened are not its own. */
extern _Atomic bool forked PRIVATE;
PRIVATE uint64_t node_guid(void);
PRIVATE uint16_t node_lid(void);
PRIVATE void node_gid(union ibv_gid *gid);
PRIVATE bool is_this_node(const struct ibv_ah_attr *address);

static inline bool ours(const struct ibv_context *context) { return context->device == tarn_device; }
static inline struct context *context_of(struct ibv_context *context) {
    return container_of(context, struct context, verbs.context);
}
/* Whether a request that cannot be done now is tried again, and an error is reported to both ends: else it
 * is lost.
 */
static inline bool is_reliable(const struct queue_pair *qp) { return qp->verbs.qp_type == IBV_QPT_RC; }
static inline struct queue_pair *qp_of(struct ibv_qp *qp) { return (struct queue_pair *)qp; }
static inline bool is_datagram(const struct queue_pair *qp) { return qp->verbs.qp_type == IBV_QPT_UD; }
static inline struct shared_receive *srq_of(struct ibv_srq *srq) { return (struct shared_receive *)srq; }
static inline struct completion_queue *cq_of(struct ibv_cq *cq) { return (struct completion_queue *)cq; }

/* area.c: the folder of devices. They say false, or NULL, with errno. */
PRIVATE bool area_open(struct context *context);
PRIVATE void area_close(struct context *context);
/* Takes its files away, and nothing else. */
PRIVATE void area_leave(const struct context *context);
PRIVATE struct queue_area *queue_area_make(struct context *context, uint32_t place, uint32_t entries,
                                           size_t *bytes);
PRIVATE struct srq_area *srq_area_make(struct context *context, uint32_t place, uint32_t entries,
                                       size_t *bytes);
PRIVATE void srq_area_drop(struct context *context, uint32_t place, struct srq_area *area, size_t bytes);
PRIVATE void queue_area_drop(struct context *context, uint32_t place, struct queue_area *area, size_t bytes);
/* Whether no peer is in the middle of something with this queue pair's memory; after so many ns in any case.
 */
PRIVATE bool queue_area_quiet(const struct queue_pair *qp, uint64_t timeout);
/* ns that a peer may be so: it was stopped if it is longer. */
#define QUIET ((uint64_t)30 * 1000000000)
PRIVATE struct peer *peer_connect(const struct context *context, uint32_t qpn);
PRIVATE bool peer_lives(const struct peer *peer);
PRIVATE void peer_drop(struct peer *peer);
PRIVATE void pipe_name(char name[16], uint32_t channel);

/* send.c */
PRIVATE int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
PRIVATE void send_api(struct ibv_qp_ex *qp);
/* At most so many ends of send requests. */
PRIVATE int send_take(struct queue_pair *qp, int count, struct ibv_wc *wc);
/* Continues the posted requests, as far as they go now; with the send lock. */
PRIVATE void send_advance(struct queue_pair *qp);
/* Puts it in error, once. */
PRIVATE void qp_break(struct queue_pair *qp);

/* wire.c: the work of a request at the peer. */
enum step { STEP_ENDED, STEP_BEGUN, STEP_LATER, STEP_BUSY, STEP_NOT_READY };
/* STEP_ENDED: work->status says how; STEP_BEGUN: storage has it; STEP_LATER: it is tried again;
 * STEP_BUSY: so it is, as another is at the peer; STEP_NOT_READY: as no receive request is posted. */
PRIVATE enum step wire_do(struct queue_pair *qp, struct work *work);

/* Stores the value that an atomic operation has found: false if the program has no such memory any more,
 * or may not write it, which only the kernel knows. */
static inline bool store_old(uint64_t at, uint64_t old) {
    struct iovec from = {&old, sizeof old}, to = {(void *)(uintptr_t)at, sizeof old};
    return process_vm_writev(getpid(), &from, 1, &to, 1, 0) == (ssize_t)sizeof old;
}

/* storage.c, a library of its own, so that only programs that use storage load libtarn. */
struct storage_ops {
    /* A request to a partition of the peer's, from or to these pieces. */
    enum step (*begin)(struct queue_pair *qp, struct work *work, const struct shared_mr *mr,
                       const struct iovec *pieces, size_t count);
    /* Rings doorbells, and takes what has ended: whether anything has. */
    bool (*take)(struct queue_pair *qp);
    void (*drop)(struct queue_pair *qp);
    /* Opens a partition that is to be served, and says its bytes: 0, or an errno after a line at stderr. */
    int (*open)(const char *name, const struct shared_partition *how, bool reads,
                struct dsa_partition **opened, uint64_t *bytes);
    void (*close)(struct dsa_partition *partition);
};
/* NULL, and a line at stderr, where it cannot be loaded. */
PRIVATE const struct storage_ops *storage_ops(void);

/* recv.c */
PRIVATE int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* At most so many ends of receive requests. */
PRIVATE int recv_take(struct queue_pair *qp, int count, struct ibv_wc *wc);

/* The peer's report on a receive request of this queue pair that it has filled, as far as it can be true. */
PRIVATE struct ibv_wc recv_read(const struct queue_pair *qp, const struct slot *slot,
                                const struct posted *posted);
/* Enters a request in a ring, at an index that is free. */
PRIVATE void recv_enter(const struct ibv_recv_wr *wr, struct posted *posted, struct slot *slot);

/* srq.c: shared receive queues. */
PRIVATE int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
PRIVATE int srq_take(struct queue_pair *qp, int count, struct ibv_wc *wc);
PRIVATE void srq_join(struct queue_pair *qp);
/* Forgets what has come for a queue pair, of which no peer is in the middle of something. */
PRIVATE void srq_forget(struct queue_pair *qp);
PRIVATE void srq_leave(struct queue_pair *qp);

/* cq.c */
PRIVATE int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
PRIVATE int req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* Tells whoever waits for completions of this queue of this process. */
PRIVATE void cq_notify(struct ibv_cq *cq, bool solicited);
/* The same for the queue that receives at the other end. */
PRIVATE void peer_notify(struct peer *peer, bool solicited);
PRIVATE bool cq_join(struct completion_queue *cq, struct queue_pair *qp);
PRIVATE void cq_leave(struct completion_queue *cq, struct queue_pair *qp);

/* qp.c */
PRIVATE uint32_t power_of_two(uint32_t count);
PRIVATE struct ibv_qp *qp_create_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *init);

/* progress.c: a thread that continues requests that could not be done at once. */
PRIVATE void progress_wake(struct queue_pair *qp);
PRIVATE void progress_leave(struct queue_pair *qp);
PRIVATE void progress_forked(void);
PRIVATE uint64_t now(void);

/* later.c */
PRIVATE void buffers_forked(void);

/* load.c: a function of the system's libibverbs; NULL where there is none. */
PRIVATE void *real_symbol(const char *name, const char *version);

/* Gives the call to the system's libibverbs, which the object is of. */
#define PASS(version, name, ...)                                                                             \
    do {                                                                                                     \
        static __typeof__(&name) real;                                                                       \
        if (!real)                                                                                           \
            real = real_symbol(#name, version);                                                              \
        return real(__VA_ARGS__);                                                                            \
    } while (0)

#endif
