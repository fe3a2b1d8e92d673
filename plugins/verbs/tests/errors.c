/* Both ends in one process: refused calls, their errors, and the consequences. */
#include "ends.h"

#include <arpa/inet.h>
#include <sys/mman.h>

static struct ibv_context *context;
/* The region of the next receive requests, if it is not the peer's own. */
static struct ibv_mr *into;

static enum ibv_qp_state state(struct ibv_qp *qp) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK_IS(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    CHECK(init.cap.max_send_wr >= 64);
    return attr.qp_state;
}

struct request {
    enum ibv_wr_opcode opcode;
    size_t at, length;
    struct name to;
    uint32_t lkey;
    enum ibv_wc_status here;
    /* Of the peer's next receive request; SUCCESS: it does not end before the peer is in error. */
    enum ibv_wc_status there;
    bool peer_breaks;
};

/* It fails so, all that is behind it is flushed, at both ends if the peer has refused it; after a reset both
 * work again. */
static void fails(struct end *a, struct end *b, struct request request, int line) {
    struct ibv_sge sge = {(uintptr_t)a->memory + request.at, (uint32_t)request.length, request.lkey};
    struct ibv_send_wr second = {.wr_id = 2, .opcode = IBV_WR_SEND}, *bad,
                       first = {.wr_id = 1,
                                .sg_list = &sge,
                                .num_sge = 1,
                                .opcode = request.opcode,
                                .next = &second};
    if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        first.wr.atomic.remote_addr = request.to.address;
        first.wr.atomic.rkey = request.to.rkey;
        first.wr.atomic.compare_add = 1;
    } else {
        first.wr.rdma.remote_addr = request.to.address;
        first.wr.rdma.rkey = request.to.rkey;
    }
    struct end receives = *b;
    receives.mr = into ? into : b->mr;
    give(&receives, 3, 0, 100);
    give(&receives, 4, 0, 100);
    unsigned char before = b->memory[200];
    CHECK_IS(ibv_post_send(a->qp, &first, &bad), 0);
    struct ibv_wc wc = next(a->cq);
    if (wc.wr_id != 1 || wc.status != request.here) {
        fprintf(stderr, "line %d: %s\n", line, ibv_wc_status_str(wc.status));
        exit(1);
    }
    CHECK_IS(ends(a->cq, 2), IBV_WC_WR_FLUSH_ERR);
    CHECK_IS(state(a->qp), IBV_QPS_ERR);
    CHECK_IS(b->memory[200], before);
    /* Later requests are flushed, too. */
    message(a, 5, 0, 1);
    CHECK_IS(ends(a->cq, 5), IBV_WC_WR_FLUSH_ERR);
    if (request.peer_breaks) {
        CHECK_IS(ends(b->cq, 3), request.there ? request.there : IBV_WC_WR_FLUSH_ERR);
        CHECK_IS(ends(b->cq, 4), IBV_WC_WR_FLUSH_ERR);
        CHECK_IS(state(b->qp), IBV_QPS_ERR);
    } else {
        CHECK_IS(ibv_poll_cq(b->cq, 1, &wc), 0);
        CHECK_IS(state(b->qp), IBV_QPS_RTS);
    }
    for (int i = 0; i < 2; i++) {
        struct end *end = i ? b : a;
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
        CHECK_IS(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE), 0);
        attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = ALL};
        CHECK_IS(ibv_modify_qp(end->qp, &attr,
                               IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
                 0);
    }
    ends_join(a, b);
    give(b, 6, 0, 100);
    message(a, 7, 0, 10);
    CHECK_IS(ends(a->cq, 7), IBV_WC_SUCCESS);
    CHECK_IS(ends(b->cq, 6), IBV_WC_SUCCESS);
}

static void protection(struct end *a, struct end *b) {
    struct name to = end_name(b);
    struct ibv_mr *reads = ibv_reg_mr(b->pd, b->memory, 4096, IBV_ACCESS_REMOTE_READ);
    struct ibv_pd *other = ibv_alloc_pd(b->context);
    struct ibv_mr *foreign = ibv_reg_mr(other, b->memory, 4096, ALL);
    struct ibv_mr *dark = ibv_reg_mr(a->pd, a->memory, 4096, 0);
    struct ibv_mr *gone = ibv_reg_mr(b->pd, b->memory, 4096, ALL);
    uint32_t old = gone->rkey;
    CHECK(reads && other && foreign && dark && gone);
    CHECK_IS(ibv_dereg_mr(gone), 0);
    memset(b->memory, 'b', MEMORY);
    memset(a->memory, 'a', MEMORY);
    struct name readable = {.rkey = reads->rkey, .address = to.address}, in_other = readable, odd = to,
                missing = to, behind = to, before = to, round = to, stale = to;
    in_other.rkey = foreign->rkey;
    odd.address += 4;
    missing.rkey = to.rkey ^ 0x1000;
    behind.address += MEMORY - 299;
    before.address -= 1;
    round.address = UINT64_MAX - 10;
    stale.rkey = old;
    const uint32_t key = a->mr->lkey;
    const enum ibv_wc_status denied = IBV_WC_REM_ACCESS_ERR, local = IBV_WC_LOC_PROT_ERR;
#define FAILS(...) fails(a, b, (struct request){__VA_ARGS__}, __LINE__)
    FAILS(IBV_WR_RDMA_WRITE, 0, 300, readable, key, denied, 0, true);
    FAILS(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, readable, key, denied, 0, true);
    FAILS(IBV_WR_RDMA_WRITE, 0, 300, in_other, key, denied, 0, true);
    FAILS(IBV_WR_RDMA_READ, 0, 300, missing, key, denied, 0, true);
    FAILS(IBV_WR_RDMA_WRITE, 0, 300, stale, key, denied, 0, true);
    FAILS(IBV_WR_RDMA_WRITE, 0, 300, behind, key, denied, 0, true);
    FAILS(IBV_WR_RDMA_WRITE, 0, 300, before, key, denied, 0, true);
    FAILS(IBV_WR_RDMA_READ, 0, 300, round, key, denied, 0, true);
    FAILS(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, odd, key, IBV_WC_REM_INV_REQ_ERR, 0, true);
    FAILS(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 16, to, key, IBV_WC_LOC_LEN_ERR, 0, false);
    FAILS(IBV_WR_RDMA_WRITE, 0, 300, to, key ^ 0x1000, local, 0, false);
    FAILS(IBV_WR_RDMA_WRITE, MEMORY - 299, 300, to, key, local, 0, false);
    FAILS(IBV_WR_RDMA_READ, 0, 300, to, dark->lkey, local, 0, false);
    FAILS(IBV_WR_SEND, 0, 101, to, key, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, true);
    /* A receive request whose memory is not registered for that. */
    into = reads;
    FAILS(IBV_WR_SEND, 0, 100, to, key, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, true);
    into = NULL;
    CHECK_IS(ibv_dealloc_pd(other), EBUSY);
    CHECK_IS(ibv_dereg_mr(foreign), 0);
    CHECK_IS(ibv_dealloc_pd(other), 0);
    CHECK_IS(ibv_dereg_mr(reads), 0);
    CHECK_IS(ibv_dereg_mr(dark), 0);
}

/* Memory that goes away while it is registered is nobody's crash. */
static void unmapped(struct end *a, struct end *b) {
    unsigned char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *there = ibv_reg_mr(b->pd, memory, 8192, ALL), *here = ibv_reg_mr(a->pd, memory, 8192, ALL);
    CHECK(memory != MAP_FAILED && here && there);
    CHECK_IS(munmap(memory + 4096, 4096), 0);
    struct name to = {.rkey = there->rkey, .address = (uintptr_t)memory};
    FAILS(IBV_WR_RDMA_WRITE, 0, 8192, to, a->mr->lkey, IBV_WC_REM_ACCESS_ERR, 0, true);
    FAILS(IBV_WR_RDMA_WRITE, (size_t)(memory - a->memory), 8192, end_name(b), here->lkey, IBV_WC_LOC_PROT_ERR,
          0, false);
    /* Nothing is added if the value found cannot be stored. */
    struct name word = end_name(b);
    word.address += 200;
    FAILS(IBV_WR_ATOMIC_FETCH_AND_ADD, (size_t)(memory + 4096 - a->memory), 8, word, here->lkey,
          IBV_WC_LOC_PROT_ERR, 0, false);
    CHECK_IS(mprotect(memory, 4096, PROT_READ), 0);
    FAILS(IBV_WR_ATOMIC_FETCH_AND_ADD, (size_t)(memory - a->memory), 8, word, here->lkey, IBV_WC_LOC_PROT_ERR,
          0, false);
    CHECK_IS(mprotect(memory, 4096, PROT_READ | PROT_WRITE), 0);
    CHECK_IS(ibv_dereg_mr(here), 0);
    CHECK_IS(ibv_dereg_mr(there), 0);
    CHECK(!ibv_reg_mr(a->pd, memory, 8192, ALL) && errno == EFAULT);
    CHECK(!ibv_reg_mr(a->pd, memory, 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    CHECK_IS(munmap(memory, 4096), 0);
}

/* The times that a program gives its peer to be ready. */
static void rnr_timeout(struct end *a, struct end *b) {
    /* It never receives. */
    a->rnr_retries = 1;
    ends_join(a, b);
    double since = seconds();
    message(a, 1, 0, 10);
    CHECK_IS(ends(a->cq, 1), IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK(seconds() - since < 5);
    CHECK_IS(state(b->qp), IBV_QPS_RTS);
}

static void nobody_there(struct end *a, struct end *b, struct name to, bool global) {
    a->timeout = 8; /* 1 ms */
    a->retries = 1;
    if (global) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                                   .path_mtu = IBV_MTU_1024,
                                   .dest_qp_num = to.qpn,
                                   .ah_attr = {.dlid = (uint16_t)to.lid, .is_global = 1, .port_num = PORT}};
        CHECK_IS(ibv_query_gid(a->context, PORT, 0, &attr.ah_attr.grh.dgid), 0);
        attr.ah_attr.grh.dgid.raw[15] ^= 1;
        CHECK_IS(ibv_modify_qp(a->qp, &attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                 0);
        end_send(a);
    } else {
        end_join(a, to);
    }
    remote(a, IBV_WR_RDMA_WRITE, 1, 0, 10, end_name(b));
    CHECK_IS(ends(a->cq, 1), IBV_WC_RETRY_EXC_ERR);
    CHECK_IS(state(a->qp), IBV_QPS_ERR);
}

static void not_connected(struct end *a, struct end *b) { nobody_there(a, b, end_name(b), false); }

static void another_queue(struct end *a, struct end *b) {
    struct name to = end_name(b);
    to.qpn ^= 0x200;
    nobody_there(a, b, to, false);
}

static void another_port(struct end *a, struct end *b) {
    struct name to = end_name(b);
    to.lid ^= 1;
    end_join(b, end_name(a));
    nobody_there(a, b, to, false);
}

static void another_node(struct end *a, struct end *b) {
    end_join(b, end_name(a));
    nobody_there(a, b, end_name(b), true);
}

static void another_friend(struct end *a, struct end *b) {
    struct name other = end_name(a);
    other.qpn ^= 0x200;
    end_join(b, other);
    nobody_there(a, b, end_name(b), false);
}

static void gone(struct end *a, struct end *b) {
    struct name to = end_name(b);
    ends_join(a, b);
    remote(a, IBV_WR_RDMA_WRITE, 1, 0, 10, to);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    CHECK_IS(ibv_destroy_qp(b->qp), 0);
    b->qp = queue(b->pd, b->cq, ALL, true);
    remote(a, IBV_WR_RDMA_WRITE, 1, 0, 10, to);
    CHECK_IS(ends(a->cq, 1), IBV_WC_RETRY_EXC_ERR);
}

/* A program that gives up gets all its requests back, and those that wait for it learn that. */
static void given_up(struct end *a, struct end *b) {
    struct ibv_cq *cq;
    void *unused;
    ends_join(a, b);
    for (uint64_t i = 1; i < 4; i++) {
        message(a, i, 0, 10);
        give(a, 10 + i, 0, 10);
    }
    CHECK_IS(ibv_req_notify_cq(a->cq, 0), 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK_IS(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE), 0);
    CHECK_IS(ibv_get_cq_event(a->channel, &cq, &unused), 0);
    ibv_ack_cq_events(cq, 1);
    for (uint64_t i = 1; i < 4; i++)
        CHECK_IS(ends(a->cq, i), IBV_WC_WR_FLUSH_ERR);
    for (uint64_t i = 11; i < 14; i++)
        CHECK_IS(ends(a->cq, i), IBV_WC_WR_FLUSH_ERR);
}

/* Calls that make no sense, or name an absent object, get errors. */
static void refused(struct end *a, struct end *b) {
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad;
    struct ibv_recv_wr receive = {.num_sge = 17}, *bad_receive;
    CHECK_IS(ibv_post_send(a->qp, &wr, &bad), EINVAL);
    CHECK(bad == &wr);
    CHECK_IS(ibv_post_recv(a->qp, &receive, &bad_receive), EINVAL);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    CHECK_IS(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE), EINVAL);
    ends_join(a, b);
    wr.opcode = IBV_WR_LOCAL_INV;
    CHECK_IS(ibv_post_send(a->qp, &wr, &bad), EINVAL);
    wr.opcode = IBV_WR_SEND;
    wr.num_sge = 5;
    CHECK_IS(ibv_post_send(a->qp, &wr, &bad), EINVAL);
    struct ibv_sge sge = {(uintptr_t)a->memory, 1000, 0};
    wr.num_sge = 1;
    wr.sg_list = &sge;
    wr.send_flags = IBV_SEND_INLINE;
    CHECK_IS(ibv_post_send(a->qp, &wr, &bad), EINVAL);
    struct ibv_qp_init_attr init = {
        .send_cq = a->cq, .recv_cq = a->cq, .qp_type = IBV_QPT_RAW_PACKET, .cap = {1, 1, 1, 1, 0}};
    CHECK(!ibv_create_qp(a->pd, &init) && errno == EOPNOTSUPP);
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = 100000;
    CHECK(!ibv_create_qp(a->pd, &init) && errno == EINVAL);
    struct ibv_ah_attr address = {.dlid = 1, .port_num = 2};
    CHECK(!ibv_create_ah(a->pd, &address) && errno == EINVAL);
    CHECK(!ibv_alloc_mw(a->pd, IBV_MW_TYPE_1) && errno == EOPNOTSUPP);
    CHECK_IS(ibv_attach_mcast(a->qp, &(union ibv_gid){{0}}, 1), EOPNOTSUPP);
    CHECK_IS(ibv_rereg_mr(a->mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL), IBV_REREG_MR_ERR_INPUT);
    CHECK(!ibv_reg_mr(a->pd, a->memory, 10, IBV_ACCESS_ON_DEMAND) && errno == EOPNOTSUPP);
    struct ibv_port_attr port;
    CHECK_IS(ibv_query_port(context, 2, &port), EINVAL);
    union ibv_gid gid;
    CHECK_IS(ibv_query_gid(context, PORT, 1, &gid), -1);
    CHECK_IS(ibv_dealloc_pd(a->pd), EBUSY);
    CHECK_IS(ibv_destroy_comp_channel(a->channel), EBUSY);
}

int main(void) {
    static const struct {
        void (*test)(struct end *, struct end *);
        bool connected;
    } all[] = {{protection, true},     {unmapped, true},      {rnr_timeout, false},  {not_connected, false},
               {another_queue, false}, {another_port, false}, {another_node, false}, {another_friend, false},
               {gone, false},          {given_up, false},     {refused, false}};
    context = device();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct end a = end_make(context, ALL), b = end_make(context, ALL);
        if (all[i].connected)
            ends_join(&a, &b);
        all[i].test(&a, &b);
        end_drop(&a);
        end_drop(&b);
    }
    CHECK_IS(ibv_close_device(context), 0);
    puts("ok");
    return 0;
}
