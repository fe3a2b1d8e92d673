/*
 * example [SOCKET] PARTITION: a program of libibverbs, and of nothing else, that writes to storage memory,
 * reads it back, counts in it and makes it persistent, by RDMA to a storage peer (docs/guide/verbs.md):
 *
 *     cc -o example example.c -libverbs
 *     tarn verbs exec --partition ./field -- ./example ./field
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define PORT 1

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

/* The exchange, which every program of verbs has: here by lines of text. */
static FILE *peer_open(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    must(strlen(path) < sizeof address.sun_path, path);
    strcpy(address.sun_path, path);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, path);
    return fdopen(fd, "r");
}

static void queue_connect(struct ibv_qp *qp, FILE *peer) {
    struct ibv_port_attr port;
    union ibv_gid gid;
    char text[33];
    unsigned lid, qpn, psn;
    must(ibv_query_port(qp->context, PORT, &port) == 0 && ibv_query_gid(qp->context, PORT, 0, &gid) == 0,
         "port");
    for (int i = 0; i < 16; i++)
        sprintf(text + 2 * i, "%02x", gid.raw[i]);
    dprintf(fileno(peer), "connect %u %u 0 %s\n", port.lid, qp->qp_num, text);
    must(fscanf(peer, " ok %u %u %u %32s", &lid, &qpn, &psn, text) == 4, "connect");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
    must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
         "init");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = qpn,
        .rq_psn = psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.dlid = (uint16_t)lid, .port_num = PORT},
    };
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
         "ready to receive");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC) == 0,
         "ready to send");
}

/* Posts a request and waits for its completion. */
static void request(struct ibv_qp *qp, struct ibv_send_wr wr) {
    struct ibv_send_wr *bad;
    struct ibv_wc wc;
    int count;
    wr.send_flags |= IBV_SEND_SIGNALED;
    must(ibv_post_send(qp, &wr, &bad) == 0, "post");
    while ((count = ibv_poll_cq(qp->send_cq, 1, &wc)) == 0)
        ;
    if (count < 0 || wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "%s\n", count < 0 ? "poll" : ibv_wc_status_str(wc.status));
        exit(1);
    }
}

int main(int argc, char **argv) {
    const char *socket = argc > 2 ? argv[1] : getenv("TARN_VERBS_PEER"), *partition = argv[argc - 1];
    must(argc > 1 && socket, "usage: example [SOCKET] PARTITION");
    struct ibv_device **list = ibv_get_device_list(NULL);
    must(list && list[0], "no RDMA device");
    struct ibv_context *context = ibv_open_device(list[0]);
    must(context != NULL, "open");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {16, 1, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    static uint64_t memory[1024];
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    must(pd && cq && qp && mr, "objects");

    FILE *peer = peer_open(socket);
    uint64_t address, bytes;
    uint32_t rkey;
    queue_connect(qp, peer);
    dprintf(fileno(peer), "region %s\n", partition);
    must(fscanf(peer, " ok %" SCNu64 " %" SCNu32 " %" SCNu64, &address, &rkey, &bytes) == 3, "region");

    struct ibv_sge half = {(uintptr_t)memory, sizeof memory / 2, mr->lkey},
                   other = {(uintptr_t)(memory + 512), sizeof memory / 2, mr->lkey},
                   word = {(uintptr_t)memory, 8, mr->lkey};
    for (uint64_t i = 0; i < 512; i++)
        memory[i] = i * i;
    struct ibv_send_wr wr = {
        .sg_list = &half, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {address, rkey}};
    request(qp, wr);
    wr.opcode = IBV_WR_RDMA_READ;
    wr.sg_list = &other;
    request(qp, wr);
    must(memcmp(memory, memory + 512, sizeof memory / 2) == 0, "what was read is not what was written");
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.sg_list = &word;
    wr.wr.atomic.remote_addr = address;
    wr.wr.atomic.compare_add = 42;
    wr.wr.atomic.rkey = rkey;
    request(qp, wr);
    /* A write of no bytes: all that was written is persistent when it completes, if the partition can do
     * that. */
    struct ibv_send_wr flush = {.opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {address, rkey}};
    if (getenv("FLUSH"))
        request(qp, flush);
    printf("%" PRIu64 " bytes: written, read, counted%s\n", bytes, getenv("FLUSH") ? ", flushed" : "");
    return 0;
}
