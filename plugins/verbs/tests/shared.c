/* Both ends in one process: several queue pairs receive by one queue. */
#include "ends.h"

#include <arpa/inet.h>
#include <poll.h>

enum { PAIRS = 3, ROOM = 8 };

static struct ibv_context *context;

/* A shared queue at one end, and queue pairs from the other. */
static struct side {
    struct end here[PAIRS], there[PAIRS];
    struct ibv_srq *srq;
} side;

static void side_make(const struct end *a, const struct end *b, enum ibv_qp_type type) {
    side.srq = shared_make(b->pd, ROOM);
    for (int i = 0; i < PAIRS; i++) {
        side.here[i] = *a;
        side.there[i] = *b;
        side.here[i].qp = queue_of(type, a->pd, a->cq, ALL, true);
        side.there[i].qp = queue_shared(b, type, side.srq);
        ends_join(&side.here[i], &side.there[i]);
    }
}

static void drop_one(int i) {
    CHECK_IS(ibv_destroy_qp(side.here[i].qp), 0);
    CHECK_IS(ibv_destroy_qp(side.there[i].qp), 0);
}

static void side_drop(int from) {
    for (int i = from; i < PAIRS; i++) {
        CHECK_IS(ibv_destroy_srq(side.srq), EBUSY);
        drop_one(i);
    }
    CHECK_IS(ibv_destroy_srq(side.srq), 0);
}

/* Sends so many bytes by one of the queue pairs. */
static enum ibv_wc_status sends(int i, uint64_t wr_id, size_t length) {
    message(&side.here[i], wr_id, 0, length);
    return ends(side.here[i].cq, wr_id);
}

static int takes(uint64_t wr_id) {
    struct ibv_recv_wr wr = {.wr_id = wr_id}, *bad = NULL;
    int code = ibv_post_srq_recv(side.srq, &wr, &bad);
    CHECK(code == 0 || bad == &wr);
    return code;
}

/* Requests are taken in the order of their posting, by whom something comes for, and each queue pair hears of
 * its own. */
static void order(struct end *a, struct end *b) {
    static const int by[ROOM] = {2, 0, 1, 1, 0, 2, 2, 1};
    side_make(a, b, IBV_QPT_RC);
    fill(a->memory, MEMORY, 1);
    for (int round = 0; round < 20; round++) {
        memset(b->memory, 0, MEMORY);
        for (uint64_t i = 0; i < ROOM; i++)
            give(&side.there[0], i, i * 1000, 1000);
        CHECK_IS(takes(9), ENOMEM);
        for (int i = 0; i < ROOM; i++)
            CHECK_IS(sends(by[i], 1, 100 + (size_t)i), IBV_WC_SUCCESS);
        CHECK_IS(takes(9), ENOMEM);
        uint64_t seen = 0;
        for (int i = 0; i < ROOM; i++) {
            struct ibv_wc wc = next(b->cq);
            CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id < ROOM);
            CHECK_IS(wc.qp_num, side.there[by[wc.wr_id]].qp->qp_num);
            CHECK_IS(wc.src_qp, side.here[by[wc.wr_id]].qp->qp_num);
            CHECK_IS(wc.byte_len, 100 + wc.wr_id);
            CHECK(memcmp(a->memory, b->memory + wc.wr_id * 1000, wc.byte_len) == 0);
            CHECK_IS(b->memory[wc.wr_id * 1000 + wc.byte_len], 0);
            seen |= 1ull << wc.wr_id;
        }
        CHECK_IS(seen, (1 << ROOM) - 1);
    }
    side_drop(0);
}

/* A write with a notification takes a request, too; a message waits for one. */
static void waits(struct end *a, struct end *b) {
    struct ibv_wc wc;
    side_make(a, b, IBV_QPT_RC);
    struct name there = end_name(b);
    struct ibv_sge sge = piece(a, 0, 10);
    fill(a->memory, 10, 2);
    post(&side.here[1], (struct ibv_send_wr){.wr_id = 1,
                                             .sg_list = &sge,
                                             .num_sge = 1,
                                             .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                             .imm_data = htonl(5),
                                             .wr.rdma = {there.address + 77, there.rkey}});
    usleep(5000);
    CHECK_IS(ibv_poll_cq(a->cq, 1, &wc) + ibv_poll_cq(b->cq, 1, &wc), 0);
    CHECK_IS(ibv_req_notify_cq(b->cq, 0), 0);
    CHECK_IS(takes(2), 0);
    struct pollfd fd = {.fd = b->channel->fd, .events = POLLIN};
    CHECK_IS(poll(&fd, 1, 30000), 1);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    struct ibv_cq *cq;
    void *unused;
    CHECK_IS(ibv_get_cq_event(b->channel, &cq, &unused), 0);
    ibv_ack_cq_events(cq, 1);
    wc = next(b->cq);
    CHECK(wc.wr_id == 2 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htonl(5) &&
          wc.byte_len == 10 && wc.qp_num == side.there[1].qp->qp_num);
    CHECK(memcmp(a->memory, b->memory + 77, 10) == 0);
    side_drop(0);
}

/* The end of one of the queue pairs ends no other; messages for it go with it, and their space is free. */
static void one_ends(struct end *a, struct end *b) {
    struct ibv_wc wc;
    side_make(a, b, IBV_QPT_RC);
    give(&side.there[0], 1, 0, 100);
    give(&side.there[0], 2, 0, 100);
    CHECK_IS(sends(0, 10, 101), IBV_WC_REM_INV_REQ_ERR);
    CHECK_IS(ends(b->cq, 1), IBV_WC_LOC_LEN_ERR);
    CHECK_IS(sends(1, 11, 100), IBV_WC_SUCCESS);
    CHECK_IS(ends(b->cq, 2), IBV_WC_SUCCESS);
    for (uint64_t i = 0; i < ROOM; i++)
        CHECK_IS(takes(i), 0);
    for (int i = 0; i < 3; i++)
        CHECK_IS(sends(1, 12, 0), IBV_WC_SUCCESS);
    CHECK_IS(sends(2, 13, 0), IBV_WC_SUCCESS);
    drop_one(0);
    drop_one(1);
    /* Those of the third only, and the posted requests are not flushed. */
    CHECK_IS(ends(b->cq, 3), IBV_WC_SUCCESS);
    CHECK_IS(ibv_poll_cq(b->cq, 1, &wc), 0);
    for (uint64_t i = 8; i < 12; i++)
        CHECK_IS(takes(i), 0);
    CHECK_IS(takes(12), ENOMEM);
    for (uint64_t i = 4; i < 12; i++) {
        CHECK_IS(sends(2, 14, 0), IBV_WC_SUCCESS);
        CHECK_IS(ends(b->cq, i), IBV_WC_SUCCESS);
    }
    /* An error of the receiver's own takes no request, either. */
    CHECK_IS(takes(20), 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK_IS(ibv_modify_qp(side.there[2].qp, &attr, IBV_QP_STATE), 0);
    CHECK_IS(ibv_poll_cq(b->cq, 1, &wc), 0);
    side_drop(2);
}

/* A message that is lost takes no request. */
static void unreliable(struct end *a, struct end *b) {
    struct ibv_wc wc;
    side_make(a, b, IBV_QPT_UC);
    CHECK_IS(sends(0, 1, 100), IBV_WC_SUCCESS);
    give(&side.there[0], 2, 0, 99);
    CHECK_IS(sends(0, 1, 100), IBV_WC_SUCCESS);
    CHECK_IS(ibv_poll_cq(b->cq, 1, &wc), 0);
    CHECK_IS(sends(1, 1, 99), IBV_WC_SUCCESS);
    wc = next(b->cq);
    CHECK(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS && wc.qp_num == side.there[1].qp->qp_num);
    side_drop(0);
}

/* Completions come to each queue pair's own queue, no matter who polls first; memory is of the
 * shared queue's domain. */
static void queues(struct end *a, struct end *b) {
    struct end other = end_make(context, ALL), far = *a;
    struct ibv_wc wc;
    side_make(a, b, IBV_QPT_RC);
    struct end shared = other;
    far.qp = queue(a->pd, a->cq, ALL, true);
    shared.qp = queue_shared(&other, IBV_QPT_RC, side.srq);
    ends_join(&far, &shared);
    for (uint64_t i = 0; i < 4; i++)
        give(&side.there[0], i, 0, 100);
    fill(a->memory, 50, 4);
    message(&far, 1, 0, 50);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    CHECK(memcmp(a->memory, b->memory, 50) == 0);
    CHECK_IS(sends(0, 2, 50), IBV_WC_SUCCESS);
    CHECK_IS(ends(b->cq, 1), IBV_WC_SUCCESS);
    CHECK_IS(ibv_poll_cq(b->cq, 1, &wc), 0);
    CHECK_IS(ends(other.cq, 0), IBV_WC_SUCCESS);
    /* Two more wait when the queue pair begins again: the one for it is forgotten. */
    message(&far, 3, 0, 50);
    CHECK_IS(ends(a->cq, 3), IBV_WC_SUCCESS);
    CHECK_IS(sends(0, 4, 50), IBV_WC_SUCCESS);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    CHECK_IS(ibv_modify_qp(shared.qp, &attr, IBV_QP_STATE), 0);
    CHECK_IS(ibv_poll_cq(other.cq, 1, &wc), 0);
    CHECK_IS(ends(b->cq, 3), IBV_WC_SUCCESS);
    CHECK_IS(ibv_destroy_qp(far.qp), 0);
    CHECK_IS(ibv_destroy_qp(shared.qp), 0);
    side_drop(0);
    end_drop(&other);
}

static void refused(struct end *a, struct end *b) {
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 0, .max_sge = 1}};
    struct ibv_device_attr device;
    CHECK_IS(ibv_query_device(context, &device), 0);
    CHECK(!ibv_create_srq(b->pd, &init) && errno == EINVAL);
    init.attr.max_wr = (uint32_t)device.max_srq_wr + 1;
    CHECK(!ibv_create_srq(b->pd, &init) && errno == EINVAL);
    init.attr.max_wr = 1;
    init.attr.max_sge = (uint32_t)device.max_srq_sge + 1;
    CHECK(!ibv_create_srq(b->pd, &init) && errno == EINVAL);
    struct ibv_srq *all[4096];
    int count = 0;
    init.attr.max_sge = 1;
    while (count < device.max_srq && (all[count] = ibv_create_srq(b->pd, &init)))
        count++;
    CHECK_IS(count, device.max_srq);
    CHECK(!ibv_create_srq(b->pd, &init) && errno == ENOMEM);
    while (count > 0)
        CHECK_IS(ibv_destroy_srq(all[--count]), 0);
    side_make(a, b, IBV_QPT_RC);
    CHECK_IS(ibv_dealloc_pd(b->pd), EBUSY);
    struct ibv_srq_attr attr = {.max_wr = 100, .srq_limit = 1};
    CHECK_IS(ibv_modify_srq(side.srq, &attr, IBV_SRQ_MAX_WR), EOPNOTSUPP);
    CHECK_IS(ibv_modify_srq(side.srq, &attr, IBV_SRQ_LIMIT), EOPNOTSUPP);
    CHECK_IS(ibv_query_srq(side.srq, &attr), 0);
    CHECK(attr.max_wr == ROOM && attr.max_sge == 4 && attr.srq_limit == 0);
    CHECK_IS(ibv_modify_srq(side.srq, &attr, IBV_SRQ_LIMIT), 0);
    struct ibv_recv_wr wr = {.num_sge = 5}, *bad;
    CHECK_IS(ibv_post_srq_recv(side.srq, &wr, &bad), EINVAL);
    wr.num_sge = 0;
    CHECK_IS(ibv_post_recv(side.there[0].qp, &wr, &bad), EINVAL);
    side_drop(0);
}

int main(void) {
    void (*const all[])(struct end *, struct end *) = {order, waits, one_ends, unreliable, queues, refused};
    context = device();
    struct ibv_context *second = device();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct end a = end_make(second, ALL), b = end_make(context, ALL);
        all[i](&a, &b);
        end_drop(&a);
        end_drop(&b);
    }
    CHECK_IS(ibv_close_device(context), 0);
    CHECK_IS(ibv_close_device(second), 0);
    puts("ok");
    return 0;
}
