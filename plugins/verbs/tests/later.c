/* Functions that came with libibverbs 57 to 65, which the device has with any of them; found by name, as
 * headers of older versions have none of it. */
#include "ends.h"

#include <dlfcn.h>

struct attr {
    size_t length;
    int access;
    uint64_t mask;
    uint64_t iova;
    void *address;
    int fd;
    uint64_t fd_offset;
    void *dmah;
    void *buf;
};
enum { IOVA = 1, ADDRESS = 2, FD = 4, BUF = 32 };

static void *symbol(const char *name, const char *version) {
    void *found = dlvsym(RTLD_DEFAULT, name, version);
    CHECK(found);
    return found;
}

static void regions(struct end *a, struct end *b) {
    void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = symbol("ibv_alloc_buf", "IBVERBS_1.17");
    void (*free_buf)(void *) = symbol("ibv_free_buf", "IBVERBS_1.17");
    struct ibv_mr *(*reg_buf)(struct ibv_pd *, void *, void *, size_t, int) =
        symbol("ibv_reg_buf_mr", "IBVERBS_1.17");
    struct ibv_mr *(*reg_ex)(struct ibv_pd *, struct attr *) = symbol("ibv_reg_mr_ex", "IBVERBS_1.15");
    int (*export_fd)(void *) = symbol("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
    void *buf, *other;
    unsigned char *memory = alloc_buf(b->pd, 3 * 4096, &buf), *second = alloc_buf(b->pd, 4096, &other);
    CHECK(memory && second && ((uintptr_t)memory & 4095) == 0 && buf != other);

    CHECK(!reg_buf(b->pd, buf, memory + 4096, 2 * 4096 + 1, ALL) && errno == EINVAL);
    CHECK(!reg_buf(b->pd, buf, memory - 1, 1, ALL) && errno == EINVAL);
    CHECK(!reg_buf(a->pd, buf, memory, 4096, ALL) && errno == EINVAL);
    CHECK(!reg_buf(b->pd, buf, second, 4096, ALL) && errno == EINVAL);
    struct attr attr = {.length = 4096, .access = ALL, .mask = ADDRESS | FD, .address = memory};
    CHECK(!reg_ex(b->pd, &attr) && errno == EOPNOTSUPP);
    attr.mask = IOVA;
    CHECK(!reg_ex(b->pd, &attr) && errno == EINVAL);
    CHECK(export_fd(buf) == -1 && errno == ENODATA);

    /* A write to the buffer, by its address; and to a part of it, by one that was chosen. */
    struct ibv_mr *whole = reg_buf(b->pd, buf, memory, 3 * 4096, ALL);
    attr = (struct attr){4096, ALL, ADDRESS | IOVA | BUF, 1 << 20, memory + 4096, -1, 0, NULL, buf};
    struct ibv_mr *part = reg_ex(b->pd, &attr);
    CHECK(whole && whole->addr == memory && whole->length == 3 * 4096 && part);
    fill(a->memory, 4096, 1);
    remote(a, IBV_WR_RDMA_WRITE, 1, 0, 100, (struct name){0, 0, whole->rkey, (uintptr_t)memory});
    remote(a, IBV_WR_RDMA_WRITE, 2, 100, 100, (struct name){0, 0, part->rkey, (1 << 20) - 100});
    CHECK_IS(ends(a->cq, 1), IBV_WC_SUCCESS);
    CHECK_IS(ends(a->cq, 2), IBV_WC_SUCCESS);
    CHECK(memcmp(memory, a->memory, 100) == 0 && memcmp(memory + 4096, a->memory + 100, 100) == 0);
    CHECK_IS(ibv_dereg_mr(whole), 0);
    CHECK_IS(ibv_dereg_mr(part), 0);
    free_buf(buf);
    CHECK(!reg_buf(b->pd, buf, memory, 1, ALL) && errno == EINVAL);
    free_buf(other);
}

/* Calls of functions that the device lacks. */
static void refused(struct end *a) {
    void *(*alloc_dmah)(struct ibv_context *, void *) = symbol("ibv_alloc_dmah", "IBVERBS_1.15");
    int (*speed_of)(struct ibv_context *, uint32_t, uint64_t *) =
        symbol("ibv_query_port_speed", "IBVERBS_1.16");
    int (*caps)(struct ibv_context *, void *, size_t) = symbol("_ibv_query_comp_cntr_caps", "IBVERBS_1.18");
    void *(*create)(struct ibv_context *, void *) = symbol("ibv_create_comp_cntr", "IBVERBS_1.18");
    int (*attach)(struct ibv_qp *, void *, void *) = symbol("ibv_qp_attach_comp_cntr", "IBVERBS_1.18");
    uint64_t nothing[16] = {0}, speed;
    CHECK(!alloc_dmah(a->context, nothing) && errno == EOPNOTSUPP);
    CHECK_IS(caps(a->context, nothing, sizeof nothing), EOPNOTSUPP);
    CHECK(!create(a->context, nothing) && errno == EOPNOTSUPP);
    CHECK_IS(attach(a->qp, nothing, nothing), EOPNOTSUPP);
    CHECK_IS(speed_of(a->context, 2, &speed), EINVAL);
    CHECK_IS(speed_of(a->context, PORT, &speed), 0);
    CHECK_IS(speed, 1000);
}

int main(void) {
    struct ibv_context *context = device();
    struct end a = end_make(context, ALL), b = end_make(context, ALL);
    ends_join(&a, &b);
    regions(&a, &b);
    refused(&a);
    end_drop(&a);
    end_drop(&b);
    CHECK_IS(ibv_close_device(context), 0);
    puts("ok");
    return 0;
}
