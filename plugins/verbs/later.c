/*
 * Functions that came with libibverbs 57 to 65: buffers, regions given by a structure, speeds; and those
 * that the device lacks, DMA handles and completion counters. All is declared here, as the headers of older
 * versions have none of it: a device that was built with one serves programs of the others.
 */
#include "device.h"

#include <stdlib.h>

struct ibv_buf;
struct ibv_dmah;
struct ibv_dmah_init_attr;
struct ibv_mr_init_attr;
struct ibv_comp_cntr;
struct ibv_comp_cntr_caps;
struct ibv_comp_cntr_init_attr;
struct ibv_qp_attach_comp_cntr_attr;

PUBLIC struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr);
PUBLIC struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);
PUBLIC int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed);
PUBLIC void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
PUBLIC void ibv_free_buf(struct ibv_buf *buf);
PUBLIC struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length,
                                     int access);
PUBLIC int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);
PUBLIC int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps,
                                     size_t size);
PUBLIC struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context,
                                                  struct ibv_comp_cntr_init_attr *attr);
PUBLIC int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter,
                                   struct ibv_qp_attach_comp_cntr_attr *attr);

/* Programs look for these by name to know whether there are any: without libibverbs' own, another device has
 * none. */
#define PASS_OR(none, version, name, ...)                                                                    \
    do {                                                                                                     \
        static __typeof__(&name) real;                                                                       \
        if (!real)                                                                                           \
            real = real_symbol(#name, version);                                                              \
        if (real)                                                                                            \
            return real(__VA_ARGS__);                                                                        \
        errno = EOPNOTSUPP;                                                                                  \
        return none;                                                                                         \
    } while (0)

/* struct ibv_mr_init_attr: its `buf` came with libibverbs 64, and is only there if the mask says so. */
struct region_attr {
    size_t length;
    int access;
    uint64_t mask;
    uint64_t iova;
    void *address;
    int fd;
    uint64_t fd_offset;
    void *dmah;
    struct ibv_buf *buf;
};
enum { MASK_IOVA = 1 << 0, MASK_ADDRESS = 1 << 1, MASK_BUF = 1 << 5 };

/* A program gives a buffer back without naming its owner: a buffer in this list is ours. */
struct buffer {
    struct buffer *next;
    struct ibv_pd *pd;
    void *address;
    size_t size;
};
static struct buffer *buffers;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void buffers_forked(void) { pthread_mutex_init(&mutex, NULL); }

/* The place of a buffer in the list, or that of its end; with the mutex. */
static struct buffer **buffer_of(const struct ibv_buf *buf) {
    struct buffer **at = &buffers;
    while (*at && (const void *)*at != (const void *)buf)
        at = &(*at)->next;
    return at;
}

PUBLIC void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf) {
    if (!ours(pd->context))
        PASS_OR(NULL, "IBVERBS_1.17", ibv_alloc_buf, pd, size, buf);
    struct buffer *buffer = forked ? NULL : calloc(1, sizeof *buffer);
    int code = forked ? EPERM : ENOMEM;
    if (buffer)
        code = posix_memalign(&buffer->address, (size_t)sysconf(_SC_PAGESIZE), size);
    if (code != 0) {
        free(buffer);
        errno = code;
        return NULL;
    }
    buffer->pd = pd;
    buffer->size = size;
    pthread_mutex_lock(&mutex);
    buffer->next = buffers;
    buffers = buffer;
    pthread_mutex_unlock(&mutex);
    *buf = (struct ibv_buf *)buffer;
    return buffer->address;
}

static void pass_free(struct ibv_buf *buf) {
    static __typeof__(&ibv_free_buf) real;
    if (!real)
        real = real_symbol("ibv_free_buf", "IBVERBS_1.17");
    if (real)
        real(buf);
}

PUBLIC void ibv_free_buf(struct ibv_buf *buf) {
    pthread_mutex_lock(&mutex);
    struct buffer **at = buffer_of(buf), *buffer = *at;
    if (buffer)
        *at = buffer->next;
    pthread_mutex_unlock(&mutex);
    if (!buffer) {
        pass_free(buf);
        return;
    }
    free(buffer->address);
    free(buffer);
}

/* Ours are plain memory. */
PUBLIC int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf) {
    pthread_mutex_lock(&mutex);
    bool found = *buffer_of(buf);
    pthread_mutex_unlock(&mutex);
    if (!found)
        PASS_OR(-1, "IBVERBS_1.18", ibv_export_buf_dmabuf_fd, buf);
    errno = ENODATA;
    return -1;
}

/* Whether all of it is in that buffer, which is of this domain. */
static bool is_within(const struct ibv_pd *pd, const struct ibv_buf *buf, const void *address,
                      size_t length) {
    pthread_mutex_lock(&mutex);
    const struct buffer *buffer = *buffer_of(buf);
    size_t from = buffer ? (uintptr_t)address - (uintptr_t)buffer->address : 0;
    bool fits = buffer && buffer->pd == pd && from <= buffer->size && length <= buffer->size - from;
    pthread_mutex_unlock(&mutex);
    return fits;
}

/* Memory alone: no dma-buf, no DMA handle. */
PUBLIC struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *init) {
    if (!ours(pd->context))
        PASS_OR(NULL, "IBVERBS_1.15", ibv_reg_mr_ex, pd, init);
    const struct region_attr *attr = (const struct region_attr *)init;
    if (attr->mask & ~(uint64_t)(MASK_IOVA | MASK_ADDRESS | MASK_BUF)) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    if (!(attr->mask & MASK_ADDRESS) ||
        ((attr->mask & MASK_BUF) && !is_within(pd, attr->buf, attr->address, attr->length))) {
        errno = EINVAL;
        return NULL;
    }
    uint64_t iova = attr->mask & MASK_IOVA ? attr->iova : (uintptr_t)attr->address;
    return ibv_reg_mr_iova2(pd, attr->address, attr->length, iova, (unsigned)attr->access);
}

PUBLIC struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *address, size_t length,
                                     int access) {
    if (!ours(pd->context))
        PASS_OR(NULL, "IBVERBS_1.17", ibv_reg_buf_mr, pd, buf, address, length, access);
    struct region_attr attr = {
        .length = length, .access = access, .mask = MASK_ADDRESS | MASK_BUF, .address = address, .buf = buf};
    return ibv_reg_mr_ex(pd, (struct ibv_mr_init_attr *)&attr);
}

PUBLIC int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed) {
    if (!ours(context))
        PASS_OR(EOPNOTSUPP, "IBVERBS_1.16", ibv_query_port_speed, context, port, speed);
    if (port != 1)
        return EINVAL;
    *speed = 1000; /* times 100 Mb/s: that of 4x EDR, as the port says */
    return 0;
}

PUBLIC struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr) {
    if (!ours(context))
        PASS_OR(NULL, "IBVERBS_1.15", ibv_alloc_dmah, context, attr);
    errno = EOPNOTSUPP;
    return NULL;
}

PUBLIC int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps,
                                     size_t size) {
    if (!ours(context))
        PASS_OR(EOPNOTSUPP, "IBVERBS_1.18", _ibv_query_comp_cntr_caps, context, caps, size);
    return EOPNOTSUPP;
}

PUBLIC struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context,
                                                  struct ibv_comp_cntr_init_attr *attr) {
    if (!ours(context))
        PASS_OR(NULL, "IBVERBS_1.18", ibv_create_comp_cntr, context, attr);
    errno = EOPNOTSUPP;
    return NULL;
}

PUBLIC int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter,
                                   struct ibv_qp_attach_comp_cntr_attr *attr) {
    if (!ours(qp->context))
        PASS_OR(EOPNOTSUPP, "IBVERBS_1.18", ibv_qp_attach_comp_cntr, qp, counter, attr);
    return EOPNOTSUPP;
}
