/* Both ends in one process, of kinds of queue pairs whose messages may be lost: messages arrive as
 * they were sent, a lost one is no error at either end, and those after it arrive again. */
#include "ends.h"

#include <arpa/inet.h>

static struct ibv_context *context;

static enum ibv_qp_state state(struct ibv_qp *qp) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK_IS(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
}

static void reconnects(struct end *end, enum ibv_qp_type type) {
    CHECK_IS(ibv_destroy_qp(end->qp), 0);
    end->qp = queue_of(type, end->pd, end->cq, ALL, true);
}

/* A message arrives. */
static void works(struct end *a, struct end *b) {
    static unsigned seed;
    fill(a->memory, 5000, ++seed);
    give(b, 101, 0, 5000);
    message(a, 102, 0, 5000);
    CHECK_IS(ends(a->cq, 102), IBV_WC_SUCCESS);
    CHECK_IS(ends(b->cq, 101), IBV_WC_SUCCESS);
    CHECK(memcmp(a->memory, b->memory, 5000) == 0);
}

/* It ends well, and the other end gets nothing; then they continue. */
static void is_lost(struct end *a, struct end *b, struct ibv_send_wr wr) {
    struct ibv_wc wc;
    wr.wr_id = 1;
    post(a, wr);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    CHECK_IS(ibv_poll_cq(b->cq, 1, &wc), 0);
    CHECK_IS(state(a->qp), IBV_QPS_RTS);
}

static void uc_arrives(struct end *a, struct end *b) {
    struct name there = end_name(b);
    works(a, b);
    fill(a->memory, MEMORY, 3);
    remote(a, IBV_WR_RDMA_WRITE, 1, 10, MEMORY - 10, there);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    CHECK(memcmp(a->memory + 10, b->memory + 10, MEMORY - 10) == 0);
    struct ibv_sge sge = piece(a, 0, 3000);
    struct ibv_send_wr wr = {.wr_id = 2,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                             .imm_data = htonl(7),
                             .wr.rdma = {there.address + 5000, there.rkey}};
    give(b, 3, 0, 0);
    post(a, wr);
    CHECK_IS(ends(a->cq, 2), IBV_WC_SUCCESS);
    struct ibv_wc wc = next(b->cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 3 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
          wc.byte_len == 3000 && wc.imm_data == htonl(7));
    CHECK(memcmp(a->memory, b->memory + 5000, 3000) == 0);
    wr.opcode = IBV_WR_SEND_WITH_IMM;
    give(b, 4, 0, 3000);
    post(a, wr);
    CHECK_IS(ends(a->cq, 2), IBV_WC_SUCCESS);
    wc = next(b->cq);
    CHECK(wc.wr_id == 4 && wc.opcode == IBV_WC_RECV && wc.wc_flags & IBV_WC_WITH_IMM &&
          wc.imm_data == htonl(7) && wc.src_qp == a->qp->qp_num);
}

static void uc_loses(struct end *a, struct end *b) {
    struct name there = end_name(b);
    struct ibv_sge sge = piece(a, 0, 300);
    struct ibv_send_wr sends = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND},
                       writes = {.sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .wr.rdma = {there.address, there.rkey ^ 0x1000}};
    /* Nobody receives. */
    is_lost(a, b, sends);
    works(a, b);
    memset(b->memory, 'b', MEMORY);
    is_lost(a, b, writes);
    writes.wr.rdma.rkey = there.rkey;
    writes.wr.rdma.remote_addr += MEMORY - 299;
    is_lost(a, b, writes);
    writes.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    is_lost(a, b, writes);
    give(b, 5, 0, 299);
    is_lost(a, b, sends);
    is_lost(a, b, writes);
    for (size_t i = 0; i < MEMORY; i++)
        CHECK_IS(b->memory[i], 'b');
    /* The receive request is there yet. */
    message(a, 6, 0, 299);
    CHECK_IS(ends(a->cq, 6), IBV_WC_SUCCESS);
    CHECK_IS(ends(b->cq, 5), IBV_WC_SUCCESS);
    CHECK_IS(state(b->qp), IBV_QPS_RTS);
    works(a, b);
}

static void uc_not_there(struct end *a, struct end *b) {
    struct name there = end_name(b);
    struct ibv_sge sge = piece(a, 0, 300);
    struct ibv_send_wr sends = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
    struct name none = there;
    none.qpn ^= 0x200;
    end_join(a, none);
    is_lost(a, b, sends);
    reconnects(a, IBV_QPT_UC);
    none = there;
    none.lid ^= 1;
    end_join(b, end_name(a));
    end_join(a, none);
    is_lost(a, b, sends);
    /* The peer is not ready, and then is. */
    reconnects(a, IBV_QPT_UC);
    reconnects(b, IBV_QPT_UC);
    end_join(a, end_name(b));
    is_lost(a, b, sends);
    end_join(b, end_name(a));
    works(a, b);
    reconnects(b, IBV_QPT_RC);
    is_lost(a, b, sends);
    /* Of another kind; an RC one waits for it in vain, too. */
    reconnects(a, IBV_QPT_UC);
    ends_join(a, b);
    give(b, 1, 0, 300);
    is_lost(a, b, sends);
    b->timeout = 8;
    b->retries = 1;
    reconnects(a, IBV_QPT_UC);
    reconnects(b, IBV_QPT_RC);
    ends_join(a, b);
    message(b, 2, 0, 10);
    CHECK_IS(ends(b->cq, 2), IBV_WC_RETRY_EXC_ERR);
}

static void uc_refuses(struct end *a, struct end *b) {
    struct ibv_sge sge = piece(a, 0, 8);
    struct name there = end_name(b);
    struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};
    static const enum ibv_wr_opcode none[] = {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                              IBV_WR_ATOMIC_CMP_AND_SWP};
    for (int i = 0; i < 3; i++) {
        wr.opcode = none[i];
        CHECK_IS(ibv_post_send(a->qp, &wr, &bad), EINVAL);
    }
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a->qp);
    ibv_wr_start(ex);
    ibv_wr_rdma_read(ex, there.rkey, there.address);
    ibv_wr_set_sge(ex, sge.lkey, sge.addr, 8);
    CHECK_IS(ibv_wr_complete(ex), EINVAL);
    struct ibv_qp_init_attr_ex init = {.send_cq = a->cq,
                                       .recv_cq = a->cq,
                                       .qp_type = IBV_QPT_UC,
                                       .cap = {1, 1, 1, 1, 0},
                                       .pd = a->pd,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                       .send_ops_flags = IBV_QP_EX_WITH_RDMA_READ};
    CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
    init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp);
    CHECK_IS(ibv_destroy_qp(qp), 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 14};
    CHECK_IS(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT), EINVAL);
    /* An error here is reported here. */
    sge.lkey ^= 0x1000;
    wr.opcode = IBV_WR_SEND;
    post(a, wr);
    CHECK_IS(next(a->cq).status, IBV_WC_LOC_PROT_ERR);
    CHECK_IS(state(a->qp), IBV_QPS_ERR);
    CHECK_IS(state(b->qp), IBV_QPS_RTS);
}

enum { HEAD = 40 };

static struct ibv_send_wr datagram(struct ibv_sge *sge, struct ibv_ah *ah, struct name to) {
    return (struct ibv_send_wr){.wr_id = 1,
                                .sg_list = sge,
                                .num_sge = 1,
                                .opcode = IBV_WR_SEND_WITH_IMM,
                                .imm_data = htonl(9),
                                .wr.ud = {ah, to.qpn, QKEY}};
}

/* So many bytes arrive behind a head, of which the receiver learns the sender. */
static struct ibv_wc arrives(struct end *a, struct end *b, struct ibv_send_wr wr) {
    give(b, 2, 0, HEAD + 4096);
    post(a, wr);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    struct ibv_wc wc = next(b->cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wc_flags & IBV_WC_WITH_IMM);
    CHECK_IS(wc.imm_data, htonl(9));
    CHECK_IS(wc.qp_num, b->qp->qp_num);
    CHECK_IS(wc.src_qp, a->qp->qp_num);
    CHECK_IS(wc.byte_len, HEAD + wr.sg_list->length);
    CHECK(memcmp(a->memory, b->memory + HEAD, wr.sg_list->length) == 0);
    return wc;
}

static void ud_arrives(struct end *a, struct end *b) {
    struct name there = end_name(b);
    struct ibv_ah *ah = way(a, there);
    struct ibv_sge sge = piece(a, 0, 4096);
    fill(a->memory, 4096, 1);
    struct ibv_wc wc = arrives(a, b, datagram(&sge, ah, there));
    CHECK(!(wc.wc_flags & IBV_WC_GRH) && wc.sl == 3);
    /* By the completion alone back. */
    struct ibv_ah *back = ibv_create_ah_from_wc(b->pd, &wc, NULL, PORT);
    CHECK(back);
    struct ibv_sge other = piece(b, 0, 4000);
    arrives(b, a, datagram(&other, back, end_name(a)));
    CHECK_IS(ibv_destroy_ah(back), 0);
    /* By its GID, and by the head back. */
    struct ibv_ah_attr attr = {
        .is_global = 1, .port_num = PORT, .grh = {.hop_limit = 5, .flow_label = 0x54321, .traffic_class = 7}};
    CHECK_IS(ibv_query_gid(context, PORT, 0, &attr.grh.dgid), 0);
    struct ibv_ah *global = ibv_create_ah(a->pd, &attr);
    CHECK(global);
    wc = arrives(a, b, datagram(&sge, global, there));
    struct ibv_grh *head = (struct ibv_grh *)(void *)b->memory;
    CHECK(wc.wc_flags & IBV_WC_GRH && ntohl(head->version_tclass_flow) == 0x60754321 &&
          ntohs(head->paylen) == 4096 + 28 && head->next_hdr == 0x1b && head->hop_limit == 5);
    CHECK(memcmp(&head->dgid, &attr.grh.dgid, 16) == 0 && memcmp(&head->sgid, &attr.grh.dgid, 16) == 0);
    struct ibv_ah_attr answer;
    CHECK_IS(ibv_init_ah_from_wc(context, PORT, &wc, head, &answer), 0);
    CHECK(answer.is_global && answer.grh.flow_label == 0x54321 && answer.grh.traffic_class == 7 &&
          memcmp(&answer.grh.dgid, &head->sgid, 16) == 0);
    head->dgid.raw[15] ^= 1;
    CHECK(ibv_init_ah_from_wc(context, PORT, &wc, head, &answer) == -1);
    attr.grh.dgid.raw[15] ^= 1;
    struct ibv_ah *far = ibv_create_ah(a->pd, &attr);
    CHECK(far);
    is_lost(a, b, datagram(&sge, far, there));
    CHECK_IS(ibv_destroy_ah(far), 0);
    /* In two pieces, by ibv_qp_ex; a handle is not needed any more when something was posted. */
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a->qp);
    give(b, 2, 0, HEAD + 100);
    ibv_wr_start(ex);
    ex->wr_id = 1;
    ex->wr_flags = 0;
    ibv_wr_send(ex);
    ibv_wr_set_ud_addr(ex, global, there.qpn, QKEY);
    ibv_wr_set_inline_data(ex, "text", 5);
    CHECK_IS(ibv_wr_complete(ex), 0);
    CHECK_IS(ibv_destroy_ah(global), 0);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    CHECK_IS(ends(b->cq, 2), IBV_WC_SUCCESS);
    CHECK(strcmp((char *)b->memory + HEAD, "text") == 0);
    CHECK_IS(ibv_destroy_ah(ah), 0);
}

static void ud_loses(struct end *a, struct end *b) {
    struct name there = end_name(b);
    struct ibv_ah *ah = way(a, there), *astray;
    struct ibv_sge sge = piece(a, 0, 100);
    struct ibv_send_wr wr = datagram(&sge, ah, there);
    /* Nobody receives; the key is wrong; the request is too short by one byte. */
    is_lost(a, b, wr);
    give(b, 5, 0, HEAD + 99);
    is_lost(a, b, wr);
    wr.wr.ud.remote_qkey ^= 1;
    is_lost(a, b, wr);
    wr.wr.ud.remote_qkey = 1u << 31; /* its own */
    sge.length = 99;
    post(a, wr);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    CHECK_IS(ends(b->cq, 5), IBV_WC_SUCCESS);
    wr.wr.ud.remote_qkey = QKEY;
    wr.wr.ud.remote_qpn ^= 0x200;
    is_lost(a, b, wr);
    there.lid ^= 1;
    astray = way(a, there);
    wr = datagram(&sge, astray, there);
    is_lost(a, b, wr);
    CHECK_IS(ibv_destroy_ah(astray), 0);
    there.lid ^= 1;
    /* One of another kind, one that is gone, and the next one of the number. */
    CHECK_IS(ibv_destroy_qp(b->qp), 0);
    b->qp = queue_of(IBV_QPT_UC, b->pd, b->cq, ALL, true);
    is_lost(a, b, datagram(&sge, ah, end_name(b)));
    is_lost(a, b, datagram(&sge, ah, there));
    end_datagrams(b, NULL);
    arrives(a, b, datagram(&sge, ah, end_name(b)));
    CHECK_IS(ibv_destroy_ah(ah), 0);
}

/* One queue pair sends to more than it keeps connections to, and one receives of all; by a shared queue. */
static void ud_many(struct end *a, struct end *b) {
    enum { MANY = 40 };
    struct ibv_srq *srq = shared_make(b->pd, MANY);
    struct ibv_ah *ah = way(a, end_name(b)), *back = way(b, end_name(a));
    struct end all[MANY];
    struct ibv_sge sge = piece(a, 0, 8), from = piece(b, 0, 8);
    for (int i = 0; i < MANY; i++) {
        all[i] = *b;
        all[i].qp = queue_of(IBV_QPT_UC, b->pd, b->cq, ALL, true);
        end_datagrams(&all[i], srq);
    }
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < MANY; i++) {
            struct ibv_wc wc = arrives(a, &all[i], datagram(&sge, ah, end_name(&all[i])));
            CHECK_IS(wc.src_qp, a->qp->qp_num);
            wc = arrives(&all[i], a, datagram(&from, back, end_name(a)));
            CHECK_IS(wc.src_qp, all[i].qp->qp_num);
        }
    for (int i = 0; i < MANY; i++)
        CHECK_IS(ibv_destroy_qp(all[i].qp), 0);
    CHECK_IS(ibv_destroy_srq(srq), 0);
    CHECK_IS(ibv_destroy_ah(ah), 0);
    CHECK_IS(ibv_destroy_ah(back), 0);
}

static void ud_refuses(struct end *a, struct end *b) {
    struct name there = end_name(b);
    struct ibv_ah *ah = way(a, there), *foreign = way(b, there);
    struct ibv_sge sge = piece(a, 0, 4097);
    struct ibv_send_wr *bad, wr = datagram(&sge, ah, there);
    CHECK_IS(ibv_dealloc_pd(a->pd), EBUSY);
    static const enum ibv_wr_opcode none[] = {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                              IBV_WR_ATOMIC_FETCH_AND_ADD};
    for (int i = 0; i < 4; i++) {
        wr.opcode = none[i];
        CHECK_IS(ibv_post_send(a->qp, &wr, &bad), EINVAL);
    }
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud.ah = NULL;
    CHECK_IS(ibv_post_send(a->qp, &wr, &bad), EINVAL);
    wr.wr.ud.ah = foreign;
    CHECK_IS(ibv_post_send(a->qp, &wr, &bad), EINVAL);
    CHECK_IS(ibv_destroy_ah(foreign), 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    CHECK_IS(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE | IBV_QP_AV), EINVAL);
    /* More than a packet. */
    wr.wr.ud.ah = ah;
    post(a, wr);
    CHECK_IS(ends(a->cq, 1), IBV_WC_LOC_LEN_ERR);
    CHECK_IS(state(b->qp), IBV_QPS_RTS);
    CHECK_IS(ibv_destroy_ah(ah), 0);
}

int main(void) {
    static const struct {
        void (*test)(struct end *, struct end *);
        bool connected, datagrams;
    } all[] = {{uc_arrives, true, false}, {uc_loses, true, false},   {uc_not_there, false, false},
               {uc_refuses, true, false}, {ud_arrives, false, true}, {ud_loses, false, true},
               {ud_many, false, true},    {ud_refuses, false, true}};
    context = device();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct end a = end_make(context, ALL), b = end_make(context, ALL);
        reconnects(&a, IBV_QPT_UC);
        reconnects(&b, IBV_QPT_UC);
        if (all[i].datagrams) {
            end_datagrams(&a, NULL);
            end_datagrams(&b, NULL);
        }
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
