/*
 * storage WHAT PARTITION: a program's use of a partition by the storage peer at $TARN_VERBS_PEER. `check`:
 * all that it can, and that it comes out as it went in; `write`: writes until that fails, which is to be
 * because the peer is gone; `hold`: writes until it is killed; `own`: serves it itself.
 */
#include "../shared.h"
#include "ends.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

static FILE *exchange;
static uint64_t bytes;

static struct name region(const char *partition, struct name name) {
    dprintf(fileno(exchange), "region %s\n", partition);
    unsigned long long size;
    CHECK_IS(fscanf(exchange, " ok %llu %u %llu", &name.address, &name.rkey, &size), 3);
    bytes = size;
    return name;
}

static struct name join(const struct end *end, const char *partition) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("TARN_VERBS_PEER");
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(path && strlen(path) < sizeof address.sun_path);
    strcpy(address.sun_path, path);
    CHECK_IS(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    exchange = fdopen(fd, "r");
    struct name name = end_name(end);
    union ibv_gid gid;
    unsigned psn;
    char text[33], line[100];
    CHECK_IS(ibv_query_gid(end->context, PORT, 0, &gid), 0);
    /* Lines that make no sense get an answer. */
    dprintf(fd, "nonsense\nconnect 1 2 3 4\nregion none\n");
    for (int i = 0; i < 3; i++)
        CHECK(fgets(line, sizeof line, exchange) && strncmp(line, "error ", 6) == 0);
    for (int i = 0; i < 16; i++)
        sprintf(text + 2 * i, "%02x", gid.raw[i]);
    dprintf(fd, "connect %u %u 0 %s\n", name.lid, name.qpn, text);
    CHECK_IS(fscanf(exchange, " ok %u %u %u %32s", &name.lid, &name.qpn, &psn, text), 4);
    end_join(end, name);
    return region(partition, name);
}

static void check(struct end *end, struct name name) {
    unsigned char *whole = malloc(MEMORY);
    CHECK(whole && bytes >= MEMORY);
    memset(whole, 0, MEMORY);
    /* Of any size at any byte; later requests are done later. */
    srand(1);
    remote(end, IBV_WR_RDMA_READ, 1, 0, MEMORY, name);
    CHECK_IS(ends(end->cq, 1), IBV_WC_SUCCESS);
    memcpy(whole, end->memory, MEMORY);
    for (unsigned i = 0; i < 200; i++) {
        size_t length = (size_t)rand() % (i % 10 ? 300 : 20000) + 1, at = (size_t)rand() % (MEMORY - length);
        fill(end->memory + at, length, i);
        memcpy(whole + at, end->memory + at, length);
        remote(end, IBV_WR_RDMA_WRITE, i, at, length, name);
        if (i % 20 == 19)
            for (unsigned n = i - 19; n <= i; n++)
                CHECK_IS(ends(end->cq, n), IBV_WC_SUCCESS);
    }
    memset(end->memory, 0, MEMORY);
    /* Many reads at once. */
    for (size_t i = 0; i < 16; i++)
        remote(end, IBV_WR_RDMA_READ, i, i * (MEMORY / 16), MEMORY / 16, name);
    for (size_t i = 0; i < 16; i++)
        CHECK_IS(ends(end->cq, i), IBV_WC_SUCCESS);
    CHECK(memcmp(end->memory, whole, MEMORY) == 0);
    /* A read sees the write before it, and the other way round, without anybody's waiting. */
    for (size_t i = 0; i < 20; i++) {
        struct ibv_sge one = piece(end, 4096 * i, 100), other = piece(end, 200000 + 4096 * i, 100);
        struct ibv_send_wr *bad,
            reads = {.wr_id = 2,
                     .sg_list = &other,
                     .num_sge = 1,
                     .opcode = IBV_WR_RDMA_READ,
                     .wr.rdma = {name.address + 50, name.rkey}},
            writes = {.wr_id = 1,
                      .sg_list = &one,
                      .num_sge = 1,
                      .opcode = IBV_WR_RDMA_WRITE,
                      .wr.rdma = {name.address + 50, name.rkey},
                      .next = &reads};
        fill(end->memory + 4096 * i, 100, (unsigned)i + 77);
        CHECK_IS(ibv_post_send(end->qp, &writes, &bad), 0);
    }
    for (size_t i = 0; i < 40; i++)
        CHECK_IS(ends(end->cq, 1 + i % 2), IBV_WC_SUCCESS);
    for (size_t i = 0; i < 20; i++)
        CHECK(memcmp(end->memory + 4096 * i, end->memory + 200000 + 4096 * i, 100) == 0);
    /* In pieces, and words. */
    struct ibv_sge pieces[] = {piece(end, 1, 3), piece(end, 9000, 5000), piece(end, 0, 0), piece(end, 77, 1)};
    post(end, (struct ibv_send_wr){.wr_id = 3,
                                   .sg_list = pieces,
                                   .num_sge = 4,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .wr.rdma = {name.address + 300001, name.rkey}});
    CHECK_IS(ends(end->cq, 3), IBV_WC_SUCCESS);
    unsigned char kept[5004];
    memcpy(kept, end->memory + 1, 3);
    memcpy(kept + 3, end->memory + 9000, 5000);
    memcpy(kept + 5003, end->memory + 77, 1);
    remote(end, IBV_WR_RDMA_READ, 4, 300001, 5004, name);
    CHECK_IS(ends(end->cq, 4), IBV_WC_SUCCESS);
    CHECK(memcmp(end->memory + 300001, kept, sizeof kept) == 0);
    uint64_t *old = (uint64_t *)(void *)end->memory, zero = 0;
    struct ibv_sge word = piece(end, 0, 8), none = {(uintptr_t)&zero, 8, 0};
    struct ibv_send_wr wr = {.wr_id = 5,
                             .sg_list = &none,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_INLINE,
                             .wr.rdma = {name.address + 512, name.rkey}};
    post(end, wr);
    CHECK_IS(ends(end->cq, 5), IBV_WC_SUCCESS);
    wr.send_flags = 0;
    wr.sg_list = &word;
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.wr.atomic.remote_addr = name.address + 512;
    wr.wr.atomic.rkey = name.rkey;
    for (uint64_t i = 0; i < 10; i++) {
        wr.wr.atomic.compare_add = 3;
        post(end, wr);
        struct ibv_wc wc = next(end->cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_FETCH_ADD);
        CHECK_IS(*old, 3 * i);
    }
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic.compare_add = 30;
    wr.wr.atomic.swap = 99;
    post(end, wr);
    CHECK_IS(ends(end->cq, 5), IBV_WC_SUCCESS);
    remote(end, IBV_WR_RDMA_READ, 6, 512, 8, name);
    CHECK_IS(ends(end->cq, 6), IBV_WC_SUCCESS);
    CHECK(*old == 30 && *(uint64_t *)(void *)(end->memory + 512) == 99);
    /* Beyond its end is nothing. */
    struct name behind = name;
    behind.address = bytes - MEMORY / 2;
    remote(end, IBV_WR_RDMA_WRITE, 7, 0, MEMORY / 2 + 1, behind);
    message(end, 8, 0, 1);
    CHECK_IS(ends(end->cq, 7), IBV_WC_REM_ACCESS_ERR);
    CHECK_IS(ends(end->cq, 8), IBV_WC_WR_FLUSH_ERR);
    free(whole);
}

/* By another queue pair. */
static struct name join_again(struct end *end, const char *partition) {
    fclose(exchange);
    CHECK_IS(ibv_destroy_qp(end->qp), 0);
    end->qp = queue(end->pd, end->cq, ALL, true);
    return join(end, partition);
}

/* Nothing is added where the memory cannot be written any more to which what was found is to come. */
static void written_no_more(struct end *end, const char *partition) {
    struct name name = join_again(end, partition);
    uint64_t *word = (uint64_t *)(void *)end->memory, before;
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, 4096, ALL);
    CHECK(memory != MAP_FAILED && mr);
    CHECK_IS(mprotect(memory, 4096, PROT_READ), 0);
    remote(end, IBV_WR_RDMA_READ, 1, 0, 8, name);
    CHECK_IS(ends(end->cq, 1), IBV_WC_SUCCESS);
    before = *word;
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    post(end, (struct ibv_send_wr){.wr_id = 2,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                   .wr.atomic = {name.address, 1, 0, name.rkey}});
    CHECK_IS(ends(end->cq, 2), IBV_WC_LOC_PROT_ERR);
    name = join_again(end, partition);
    remote(end, IBV_WR_RDMA_READ, 3, 0, 8, name);
    CHECK_IS(ends(end->cq, 3), IBV_WC_SUCCESS);
    CHECK_IS(*word, before);
    CHECK_IS(ibv_dereg_mr(mr), 0);
    CHECK_IS(munmap(memory, 4096), 0);
}

/* Writes nonsense in the place where peers read which partition a region is. */
static void spoil(const struct end *end, const struct ibv_mr *mr) {
    char path[4200];
    const uint32_t nonsense = UINT32_MAX;
    size_t at = offsetof(struct area, mrs[0].partition) + mr->handle * sizeof(struct shared_mr);
    snprintf(path, sizeof path, "%s/%03x/area", getenv("TARN_VERBS_DIR"), slot_of(end->qp->qp_num));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK_IS(pwrite(fd, &nonsense, sizeof nonsense, (off_t)at), sizeof nonsense);
    close(fd);
}

/* As the storage peer does. A partition gives its place back, after any writes of others there, and
 * takes none where there is no space for its region: so more come and go than there are places. */
static void own(const struct end *end, const char *partition) {
    static struct ibv_mr *all[MAX_MRS];
    struct ibv_mr *(*reg)(struct ibv_pd *, const char *, unsigned, uint32_t, uint32_t) =
        (__typeof__(reg))dlsym(RTLD_DEFAULT, "tarn_verbs_reg_partition");
    const uint32_t visible = 2;
    uint32_t count = 0;
    CHECK(reg);
    for (uint32_t i = 0; i <= MAX_PARTITIONS; i++) {
        struct ibv_mr *mr = reg(end->pd, partition, ALL, visible, 0);
        CHECK(mr);
        spoil(end, mr);
        CHECK_IS(ibv_dereg_mr(mr), 0);
    }
    while ((all[count] = ibv_reg_mr(end->pd, end->memory, 1, ALL)))
        count++;
    for (uint32_t i = 0; i <= MAX_PARTITIONS; i++)
        CHECK(!reg(end->pd, partition, ALL, visible, 0) && errno == ENOMEM);
    CHECK_IS(ibv_dereg_mr(all[--count]), 0);
    all[count] = reg(end->pd, partition, ALL, visible, 0);
    CHECK(all[count++]);
    while (count > 0)
        CHECK_IS(ibv_dereg_mr(all[--count]), 0);
}

int main(int argc, char **argv) {
    CHECK_IS(argc, 3);
    struct ibv_context *context = device();
    struct end end = end_make(context, ALL);
    if (strcmp(argv[1], "own") == 0) {
        own(&end, argv[2]);
        end_drop(&end);
        CHECK_IS(ibv_close_device(context), 0);
        puts("ok");
        return 0;
    }
    struct name name = join(&end, argv[2]);
    if (strcmp(argv[1], "check") == 0) {
        check(&end, name);
        written_no_more(&end, argv[2]);
    } else {
        struct ibv_wc wc;
        uint64_t posted = 0, ended = 0;
        fill(end.memory, MEMORY, 1);
        do {
            while (posted - ended < 16)
                remote(&end, IBV_WR_RDMA_WRITE, posted++, 0, MEMORY, name);
            wc = next(end.cq);
            CHECK_IS(wc.wr_id, ended++);
            if (ended == 1) {
                puts("writes");
                fflush(stdout);
            }
        } while (wc.status == IBV_WC_SUCCESS);
        CHECK_IS(wc.status, IBV_WC_RETRY_EXC_ERR);
        for (; ended < posted; ended++)
            CHECK_IS(ends(end.cq, ended), IBV_WC_WR_FLUSH_ERR);
    }
    fclose(exchange);
    end_drop(&end);
    CHECK_IS(ibv_close_device(context), 0);
    puts("ok");
    return 0;
}
