/* Both ends in one process: messages arrive as they were sent, in their order, and are reported as they
 * should be. */
#include "ends.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

static void copies(struct end *a, struct end *b) {
    struct name there = end_name(b);
    fill(a->memory, MEMORY, 1);
    for (size_t length = 1; length <= MEMORY / 2; length = length * 3 + 1) {
        remote(a, IBV_WR_RDMA_WRITE, length, 77, length, there);
        CHECK_IS(ends(a->cq, length), IBV_WC_SUCCESS);
        CHECK(memcmp(a->memory + 77, b->memory + 77, length) == 0 && b->memory[77 + length] == 0);
    }
    fill(b->memory, MEMORY, 2);
    remote(a, IBV_WR_RDMA_READ, 1, 5, 100000, there);
    struct ibv_wc wc = next(a->cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ && wc.qp_num == a->qp->qp_num &&
          wc.byte_len == 100000);
    CHECK(memcmp(a->memory + 5, b->memory + 5, 100000) == 0 && a->memory[4] != b->memory[4]);
    remote(a, IBV_WR_RDMA_WRITE, 2, 0, 0, there);
    CHECK_IS(ends(a->cq, 2), IBV_WC_SUCCESS);
    /* The peer gets no completions of these. */
    CHECK_IS(ibv_poll_cq(b->cq, 1, &wc), 0);
}

/* In pieces on both sides, inline, with immediate data. */
static void messages(struct end *a, struct end *b) {
    fill(a->memory, 3000, 3);
    memset(b->memory, 0, 10000);
    struct ibv_sge from[] = {piece(a, 0, 1000), piece(a, 1000, 0), piece(a, 2000, 1000)};
    struct ibv_sge to[] = {piece(b, 100, 1), piece(b, 300, 1500), piece(b, 5000, 1000), piece(b, 0, 0)};
    struct ibv_recv_wr wr = {.wr_id = 7, .sg_list = to, .num_sge = 4}, *bad;
    CHECK_IS(ibv_post_recv(b->qp, &wr, &bad), 0);
    post(a, (struct ibv_send_wr){.wr_id = 8,
                                 .sg_list = from,
                                 .num_sge = 3,
                                 .opcode = IBV_WR_SEND_WITH_IMM,
                                 .imm_data = htonl(42)});
    CHECK_IS(ends(a->cq, 8), IBV_WC_SUCCESS);
    struct ibv_wc wc = next(b->cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7 && wc.opcode == IBV_WC_RECV && wc.byte_len == 2000 &&
          wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htonl(42) && wc.qp_num == b->qp->qp_num &&
          wc.src_qp == a->qp->qp_num);
    CHECK(b->memory[100] == a->memory[0] && memcmp(b->memory + 300, a->memory + 1, 999) == 0 &&
          memcmp(b->memory + 1299, a->memory + 2000, 501) == 0 &&
          memcmp(b->memory + 5000, a->memory + 2501, 499) == 0 && b->memory[5499] == 0);
    /* Inline memory may be used again at once, and need not be registered. */
    char text[] = "inline";
    struct ibv_sge sge = {(uintptr_t)text, sizeof text, 0};
    give(b, 9, 8000, 100);
    post(a, (struct ibv_send_wr){.wr_id = 10,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_INLINE});
    memset(text, 0, sizeof text);
    CHECK_IS(ends(a->cq, 10), IBV_WC_SUCCESS);
    CHECK_IS(ends(b->cq, 9), IBV_WC_SUCCESS);
    CHECK(strcmp((char *)b->memory + 8000, "inline") == 0);
    /* Writes that are reported. */
    struct name there = end_name(b);
    give(b, 11, 0, 0);
    sge = piece(a, 0, 3000);
    post(a, (struct ibv_send_wr){.wr_id = 12,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                 .imm_data = htonl(43),
                                 .wr.rdma = {there.address + 9000, there.rkey}});
    CHECK_IS(ends(a->cq, 12), IBV_WC_SUCCESS);
    wc = next(b->cq);
    CHECK(wc.wr_id == 11 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 3000 &&
          wc.imm_data == htonl(43));
    CHECK(memcmp(a->memory, b->memory + 9000, 3000) == 0);
}

/* A message that nobody waits for yet waits, and all that was posted behind it. */
static void waits_for_the_receiver(struct end *a, struct end *b) {
    struct ibv_wc wc;
    struct name there = end_name(b);
    strcpy((char *)a->memory, "late");
    memset(b->memory, 0, 100);
    message(a, 1, 0, 5);
    remote(a, IBV_WR_RDMA_WRITE, 2, 50, 1, there);
    usleep(20000);
    CHECK_IS(ibv_poll_cq(a->cq, 1, &wc), 0);
    give(b, 3, 0, 10);
    /* Without anybody's looking. */
    for (double until = seconds() + 30; b->memory[0] != 'l' && seconds() < until;)
        usleep(100);
    CHECK_IS(ends(b->cq, 3), IBV_WC_SUCCESS);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    CHECK_IS(ends(a->cq, 2), IBV_WC_SUCCESS);
}

static void counts(struct end *a, struct end *b) {
    struct name there = end_name(b);
    uint64_t *word = (uint64_t *)(void *)(b->memory + 64), *old = (uint64_t *)(void *)a->memory;
    struct ibv_sge sge = piece(a, 0, 8);
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                             .wr.atomic = {there.address + 64, 5, 0, there.rkey}};
    *word = 100;
    post(a, wr);
    struct ibv_wc wc = next(a->cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_FETCH_ADD && wc.byte_len == 8);
    CHECK(*old == 100 && *word == 105);
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic.compare_add = 104;
    wr.wr.atomic.swap = 7;
    post(a, wr);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    CHECK(*old == 105 && *word == 105);
    wr.wr.atomic.compare_add = 105;
    post(a, wr);
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    CHECK(*old == 105 && *word == 7);
}

/* Of several, the last is reported, and all have ended then; a queue that is full gives an error. */
static void unsignalled(struct end *a, struct end *b) {
    struct end quiet = *a, other = *b;
    struct ibv_wc wc;
    quiet.qp = queue(a->pd, a->cq, ALL, false);
    other.qp = queue(b->pd, b->cq, ALL, false);
    ends_join(&quiet, &other);
    struct name there = end_name(&other);
    struct ibv_send_wr list[9], *bad;
    struct ibv_sge sges[9];
    for (int i = 0; i < 9; i++) {
        a->memory[i] = (unsigned char)(i + 1);
        sges[i] = piece(a, (size_t)i, 1);
        list[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i,
                                       .sg_list = &sges[i],
                                       .num_sge = 1,
                                       .next = i < 8 ? &list[i + 1] : NULL,
                                       .opcode = IBV_WR_RDMA_WRITE,
                                       .send_flags = i == 7 ? IBV_SEND_SIGNALED : 0,
                                       .wr.rdma = {there.address + (uint64_t)i, there.rkey}};
    }
    CHECK_IS(ibv_post_send(quiet.qp, list, &bad), 0);
    CHECK_IS(ends(a->cq, 7), IBV_WC_SUCCESS);
    CHECK(memcmp(a->memory, b->memory, 9) == 0);
    CHECK_IS(ibv_poll_cq(a->cq, 1, &wc), 0);
    /* A full queue gives an error: nobody receives there. */
    struct ibv_send_wr wr = {.wr_id = 99, .opcode = IBV_WR_SEND};
    int posted = 0, code;
    while ((code = ibv_post_send(quiet.qp, &wr, &bad)) == 0)
        posted++;
    CHECK(code == ENOMEM && posted == 64 && bad == &wr);
    for (int i = 0; i < 64; i++)
        give(&other, (uint64_t)i, 0, 0);
    struct ibv_recv_wr again = {0}, *bad_again;
    for (int i = 0; i < 64; i++)
        CHECK_IS(ends(b->cq, (uint64_t)i), IBV_WC_SUCCESS);
    for (int i = 0; i < 64; i++)
        give(&other, 5, 0, 0);
    CHECK_IS(ibv_post_recv(other.qp, &again, &bad_again), ENOMEM);
    CHECK_IS(ibv_destroy_qp(quiet.qp), 0);
    CHECK_IS(ibv_destroy_qp(other.qp), 0);
}

/* Many queue pairs have one completion queue, of one entry: nothing is lost, and each one's order holds. */
static void many_on_one(struct end *a, struct end *b) {
    enum { PAIRS = 20, EACH = 30 };
    struct end here[PAIRS], there[PAIRS];
    uint64_t seen[PAIRS] = {0};
    for (int i = 0; i < PAIRS; i++) {
        here[i] = *a;
        there[i] = *b;
        here[i].qp = queue(a->pd, a->cq, ALL, true);
        there[i].qp = queue(b->pd, a->cq, ALL, true);
        ends_join(&here[i], &there[i]);
    }
    for (uint64_t n = 0; n < EACH; n++)
        for (int i = 0; i < PAIRS; i++)
            remote(&here[i], IBV_WR_RDMA_WRITE, n, (size_t)i * 100, 100, end_name(b));
    for (int n = 0; n < EACH * PAIRS; n++) {
        struct ibv_wc wc = next(a->cq);
        int i = 0;
        while (i < PAIRS && here[i].qp->qp_num != wc.qp_num)
            i++;
        CHECK(i < PAIRS && wc.status == IBV_WC_SUCCESS);
        CHECK_IS(wc.wr_id, seen[i]++);
    }
    CHECK_IS(ibv_destroy_cq(a->cq), EBUSY);
    for (int i = 0; i < PAIRS; i++) {
        CHECK_IS(ibv_destroy_qp(here[i].qp), 0);
        CHECK_IS(ibv_destroy_qp(there[i].qp), 0);
    }
}

static bool readable(struct ibv_comp_channel *channel, int ms) {
    struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
    return poll(&fd, 1, ms) == 1;
}

static void event(struct end *end) {
    struct ibv_cq *cq;
    void *context;
    CHECK_IS(ibv_get_cq_event(end->channel, &cq, &context), 0);
    CHECK(cq == end->cq && context == cq->cq_context);
    ibv_ack_cq_events(cq, 1);
}

/* Completions are reported once for each request of notification, at both ends, and those that are
 * solicited. */
static void events(struct end *a, struct end *b) {
    CHECK_IS(ibv_req_notify_cq(a->cq, 0), 0);
    CHECK_IS(ibv_req_notify_cq(b->cq, 1), 0);
    CHECK(!readable(a->channel, 0) && !readable(b->channel, 0));
    for (uint64_t i = 0; i < 3; i++)
        give(b, i, 0, 10);
    message(a, 1, 0, 1);
    CHECK(readable(a->channel, 30000) && !readable(b->channel, 0));
    event(a);
    struct ibv_send_wr wr = {.wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SOLICITED};
    post(a, wr);
    CHECK(!readable(a->channel, 0) && readable(b->channel, 30000));
    event(b);
    post(a, wr);
    CHECK(!readable(b->channel, 0));
    CHECK_IS(fcntl(b->channel->fd, F_SETFL, fcntl(b->channel->fd, F_GETFL) | O_NONBLOCK), 0);
    struct ibv_cq *cq;
    void *context;
    CHECK(ibv_get_cq_event(b->channel, &cq, &context) == -1 && errno == EAGAIN);
    for (int i = 0; i < 3; i++)
        CHECK_IS(next(a->cq).status + next(b->cq).status, 2 * IBV_WC_SUCCESS);
}

enum { ROUNDS = 3000 };

static void *polls(void *argument) {
    struct end *end = argument;
    for (uint64_t i = 0; i < ROUNDS; i++)
        CHECK_IS(ends(end->cq, i), IBV_WC_SUCCESS);
    return NULL;
}

/* One thread posts what another takes the completions of. */
static void two_threads(struct end *a, struct end *b) {
    pthread_t poller;
    struct ibv_send_wr *bad;
    struct name there = end_name(b);
    struct ibv_sge sge = piece(a, 0, 64);
    CHECK_IS(pthread_create(&poller, NULL, polls, a), 0);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        struct ibv_send_wr wr = {.wr_id = i,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .wr.rdma = {there.address, there.rkey}};
        int code;
        while ((code = ibv_post_send(a->qp, &wr, &bad)) == ENOMEM)
            sched_yield();
        CHECK_IS(code, 0);
    }
    CHECK_IS(pthread_join(poller, NULL), 0);
}

static _Atomic bool made_all;

static void *makes(void *argument) {
    struct end *end = argument;
    for (int i = 0; i < 1000; i++)
        CHECK_IS(ibv_destroy_qp(queue(end->pd, end->cq, ALL, true)), 0);
    made_all = true;
    return NULL;
}

/* One thread gives memory back, and looks at queue pairs for that, which another makes and destroys. */
static void queues_come_and_go(struct end *a, struct end *b) {
    pthread_t maker;
    made_all = false;
    CHECK_IS(pthread_create(&maker, NULL, makes, a), 0);
    while (!made_all) {
        struct ibv_mr *mr = ibv_reg_mr(a->pd, b->memory, 4096, ALL);
        CHECK(mr);
        CHECK_IS(ibv_dereg_mr(mr), 0);
    }
    CHECK_IS(pthread_join(maker, NULL), 0);
}

/* By the calls of ibv_qp_ex. */
static void extended(struct end *a, struct end *b) {
    struct ibv_qp_init_attr_ex init = {
        .send_cq = a->cq,
        .recv_cq = a->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {16, 16, 2, 2, 64},
        .pd = a->pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_IMM};
    struct end new = *a, other = *b;
    new.qp = ibv_create_qp_ex(a->context, &init);
    CHECK(new.qp);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = ALL};
    CHECK_IS(
        ibv_modify_qp(new.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        0);
    other.qp = queue(b->pd, b->cq, ALL, true);
    ends_join(&new, &other);
    struct name there = end_name(&other);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(new.qp);
    fill(a->memory, 1000, 9);
    give(&other, 1, 5000, 100);
    ibv_wr_start(ex);
    ex->wr_id = 1;
    ex->wr_flags = 0;
    ibv_wr_rdma_write(ex, there.rkey, there.address);
    ibv_wr_set_sge(ex, a->mr->lkey, (uintptr_t)a->memory, 1000);
    ex->wr_id = 2;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send_imm(ex, htonl(3));
    ibv_wr_set_inline_data(ex, (char[]){"four"}, 5);
    CHECK_IS(ibv_wr_complete(ex), 0);
    CHECK_IS(ends(a->cq, 2), IBV_WC_SUCCESS);
    struct ibv_wc wc = next(b->cq);
    CHECK(wc.wr_id == 1 && wc.imm_data == htonl(3) && strcmp((char *)b->memory + 5000, "four") == 0);
    CHECK(memcmp(a->memory, b->memory, 1000) == 0);
    /* One that is taken back, and one that is refused, leave nothing. */
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_abort(ex);
    ibv_wr_start(ex);
    ibv_wr_set_sge(ex, a->mr->lkey, 0, 0);
    CHECK_IS(ibv_wr_complete(ex), EINVAL);
    CHECK_IS(ibv_poll_cq(a->cq, 1, &wc), 0);
    CHECK_IS(ibv_destroy_qp(new.qp), 0);
    CHECK_IS(ibv_destroy_qp(other.qp), 0);
}

int main(void) {
    void (*const all[])(struct end *, struct end *) = {
        copies,      messages, waits_for_the_receiver, counts, unsignalled, events, many_on_one,
        two_threads, extended, queues_come_and_go};
    struct ibv_context *context = device(), *second = device();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        /* With one device opened twice, and once. */
        struct end a = end_make(context, ALL), b = end_make(i % 2 ? context : second, ALL);
        ends_join(&a, &b);
        all[i](&a, &b);
        end_drop(&a);
        end_drop(&b);
    }
    CHECK_IS(ibv_close_device(context), 0);
    CHECK_IS(ibv_close_device(second), 0);
    puts("ok");
    return 0;
}
