/* Ends of connections for the tests, which are programs of libibverbs alone. */
#ifndef TARN_VERBS_TESTS_ENDS_H
#define TARN_VERBS_TESTS_ENDS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PORT 1
#define MEMORY (1 << 20)
#define ALL                                                                                                  \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

#define CHECK(holds)                                                                                         \
    do {                                                                                                     \
        if (!(holds)) {                                                                                      \
            fprintf(stderr, "%s:%d: %s does not hold: %s\n", __FILE__, __LINE__, #holds, strerror(errno));   \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
#define CHECK_IS(value, wanted)                                                                              \
    do {                                                                                                     \
        long long has = (long long)(value), wants = (long long)(wanted);                                     \
        if (has != wants) {                                                                                  \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #value, has, wants);        \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* The values that the other side of a connection needs. */
struct name {
    unsigned lid, qpn, rkey;
    unsigned long long address;
};

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *memory;
    uint8_t timeout, retries, rnr_retries;
};

static inline double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static inline struct ibv_context *device(void) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count == 1 && strcmp(ibv_get_device_name(list[0]), "tarn0") == 0);
    struct ibv_context *context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    CHECK(context);
    return context;
}

/* A connected queue pair of this kind, in state INIT. */
static inline struct ibv_qp *queue_by(struct ibv_pd *pd, struct ibv_qp_init_attr init, int access) {
    init.cap = (struct ibv_qp_cap){64, 64, 4, 4, 64};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp && init.cap.max_send_wr >= 64 && init.cap.max_inline_data >= 64);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = (unsigned)access};
    CHECK_IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
             0);
    return qp;
}

static inline struct ibv_qp *queue_of(enum ibv_qp_type type, struct ibv_pd *pd, struct ibv_cq *cq, int access,
                                      bool all_signalled) {
    return queue_by(
        pd,
        (struct ibv_qp_init_attr){.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = all_signalled},
        access);
}

/* One that receives by a shared queue. */
static inline struct ibv_qp *queue_shared(const struct end *end, enum ibv_qp_type type, struct ibv_srq *srq) {
    return queue_by(
        end->pd,
        (struct ibv_qp_init_attr){
            .send_cq = end->cq, .recv_cq = end->cq, .srq = srq, .qp_type = type, .sq_sig_all = true},
        ALL);
}

static inline struct ibv_srq *shared_make(struct ibv_pd *pd, unsigned max_wr) {
    struct ibv_srq_init_attr init = {.attr = {.max_wr = max_wr, .max_sge = 4}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    CHECK(srq && init.attr.max_wr >= max_wr && init.attr.max_sge >= 4);
    return srq;
}

static inline struct ibv_qp *queue(struct ibv_pd *pd, struct ibv_cq *cq, int access, bool all_signalled) {
    return queue_of(IBV_QPT_RC, pd, cq, access, all_signalled);
}

static inline struct end end_make(struct ibv_context *context, int access) {
    struct end end = {.context = context, .timeout = 14, .retries = 7, .rnr_retries = 7};
    end.pd = ibv_alloc_pd(context);
    end.channel = ibv_create_comp_channel(context);
    end.cq = ibv_create_cq(context, 1, &end, end.channel, 0);
    end.memory = aligned_alloc(4096, MEMORY);
    CHECK(end.pd && end.channel && end.cq && end.memory);
    memset(end.memory, 0, MEMORY);
    end.mr = ibv_reg_mr(end.pd, end.memory, MEMORY, access);
    CHECK(end.mr);
    end.qp = queue(end.pd, end.cq, access, true);
    return end;
}

static inline struct name end_name(const struct end *end) {
    struct ibv_port_attr port;
    CHECK_IS(ibv_query_port(end->context, PORT, &port), 0);
    return (struct name){port.lid, end->qp->qp_num, end->mr->rkey, (uintptr_t)end->memory};
}

/* The attributes of a change of state, the second part only if the queue pair is reliable. */
static inline int attribute_mask(const struct end *end, int all, int reliable) {
    return IBV_QP_STATE | all | (end->qp->qp_type == IBV_QPT_RC ? reliable : 0);
}

static inline void end_receive(const struct end *end, struct name to) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = to.qpn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.dlid = (uint16_t)to.lid, .port_num = PORT},
    };
    CHECK_IS(ibv_modify_qp(end->qp, &attr,
                           attribute_mask(end, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
                                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)),
             0);
}

static inline void end_send(const struct end *end) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
                               .timeout = end->timeout,
                               .retry_cnt = end->retries,
                               .rnr_retry = end->rnr_retries,
                               .max_rd_atomic = 1};
    CHECK_IS(ibv_modify_qp(end->qp, &attr,
                           attribute_mask(end, IBV_QP_SQ_PSN,
                                          IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                              IBV_QP_MAX_QP_RD_ATOMIC)),
             0);
}

static inline void end_join(const struct end *end, struct name to) {
    end_receive(end, to);
    end_send(end);
}

static inline void ends_join(const struct end *a, const struct end *b) {
    end_join(a, end_name(b));
    end_join(b, end_name(a));
}

#define QKEY 0x1234567u

/* Makes its queue pair one of datagrams, which receives and sends; by a shared queue if there is one. */
static inline void end_datagrams(struct end *end, struct ibv_srq *srq) {
    struct ibv_qp_init_attr init = {.send_cq = end->cq,
                                    .recv_cq = end->cq,
                                    .srq = srq,
                                    .qp_type = IBV_QPT_UD,
                                    .sq_sig_all = true,
                                    .cap = {64, 64, 4, 4, 64}};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = QKEY};
    CHECK_IS(ibv_destroy_qp(end->qp), 0);
    end->qp = ibv_create_qp(end->pd, &init);
    CHECK(end->qp);
    CHECK_IS(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK_IS(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK_IS(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

static inline struct ibv_ah *way(const struct end *end, struct name to) {
    struct ibv_ah_attr attr = {.dlid = (uint16_t)to.lid, .sl = 3, .port_num = PORT};
    struct ibv_ah *ah = ibv_create_ah(end->pd, &attr);
    CHECK(ah);
    return ah;
}

static inline void end_drop(struct end *end) {
    CHECK_IS(ibv_destroy_qp(end->qp), 0);
    CHECK_IS(ibv_dereg_mr(end->mr), 0);
    CHECK_IS(ibv_destroy_cq(end->cq), 0);
    CHECK_IS(ibv_destroy_comp_channel(end->channel), 0);
    CHECK_IS(ibv_dealloc_pd(end->pd), 0);
    free(end->memory);
}

/* The next completion, within half a minute. */
static inline struct ibv_wc next(struct ibv_cq *cq) {
    struct ibv_wc wc;
    double until = seconds() + 30;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0 && seconds() < until)
        ;
    CHECK_IS(count, 1);
    return wc;
}

/* How the request of this number ends, which is the next to end. */
static inline enum ibv_wc_status ends(struct ibv_cq *cq, uint64_t wr_id) {
    struct ibv_wc wc = next(cq);
    CHECK_IS(wc.wr_id, wr_id);
    return wc.status;
}

static inline struct ibv_sge piece(const struct end *end, size_t at, size_t length) {
    return (struct ibv_sge){(uintptr_t)end->memory + at, (uint32_t)length, end->mr->lkey};
}

static inline void give(const struct end *end, uint64_t wr_id, size_t at, size_t length) {
    struct ibv_sge sge = piece(end, at, length);
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK_IS(end->qp->srq ? ibv_post_srq_recv(end->qp->srq, &wr, &bad) : ibv_post_recv(end->qp, &wr, &bad),
             0);
}

static inline void post(const struct end *end, struct ibv_send_wr wr) {
    struct ibv_send_wr *bad;
    CHECK_IS(ibv_post_send(end->qp, &wr, &bad), 0);
}

/* A one-sided request of this kind, between the same place of both memories. */
static inline void remote(const struct end *end, enum ibv_wr_opcode opcode, uint64_t wr_id, size_t at,
                          size_t length, struct name to) {
    struct ibv_sge sge = piece(end, at, length);
    post(end, (struct ibv_send_wr){.wr_id = wr_id,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = opcode,
                                   .wr.rdma = {to.address + at, to.rkey}});
}

static inline void message(const struct end *end, uint64_t wr_id, size_t at, size_t length) {
    struct ibv_sge sge = piece(end, at, length);
    post(end, (struct ibv_send_wr){.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND});
}

static inline void fill(unsigned char *memory, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++)
        memory[i] = (unsigned char)((i + seed) * 2654435761u >> 13);
}

#endif
