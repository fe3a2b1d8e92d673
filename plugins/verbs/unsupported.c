/*
 * Functions that the device lacks: multicast, RoCE, and those that later versions of rdma-core have
 * brought. The system's libibverbs would look for things of its own behind our objects, so none of these
 * may come to it.
 */
#include "device.h"

#define NONE                                                                                                 \
    do {                                                                                                     \
        errno = EOPNOTSUPP;                                                                                  \
        return NULL;                                                                                         \
    } while (0)

PUBLIC int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
                                       uint8_t mac[ETHERNET_LL_SIZE], uint16_t *vid) {
    if (!ours(context))
        PASS("IBVERBS_1.1", ibv_resolve_eth_l2_from_gid, context, attr, mac, vid);
    return EOPNOTSUPP;
}

PUBLIC int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) {
    if (!ours(qp->context))
        PASS("IBVERBS_1.1", ibv_attach_mcast, qp, gid, lid);
    return EOPNOTSUPP;
}

PUBLIC int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) {
    if (!ours(qp->context))
        PASS("IBVERBS_1.1", ibv_detach_mcast, qp, gid, lid);
    return EOPNOTSUPP;
}

PUBLIC int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                        int access) {
    if (!ours(mr->context))
        PASS("IBVERBS_1.1", ibv_rereg_mr, mr, flags, pd, addr, length, access);
    errno = EOPNOTSUPP;
    return IBV_REREG_MR_ERR_INPUT;
}

PUBLIC struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                        int fd, int access) {
    if (!ours(pd->context))
        PASS("IBVERBS_1.12", ibv_reg_dmabuf_mr, pd, offset, length, iova, fd, access);
    NONE;
}

PUBLIC struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle) {
    if (!ours(context))
        PASS("IBVERBS_1.10", ibv_import_pd, context, handle);
    NONE;
}

PUBLIC struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle) {
    if (!ours(pd->context))
        PASS("IBVERBS_1.10", ibv_import_mr, pd, handle);
    NONE;
}

PUBLIC struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle) {
    if (!ours(context))
        PASS("IBVERBS_1.13", ibv_import_dm, context, handle);
    NONE;
}

PUBLIC int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
    if (!ours(qp->context))
        PASS("IBVERBS_1.10", ibv_set_ece, qp, ece);
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

PUBLIC int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
    if (!ours(qp->context))
        PASS("IBVERBS_1.10", ibv_query_ece, qp, ece);
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

PUBLIC int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags) {
    if (!ours(qp->context))
        PASS("IBVERBS_1.14", ibv_query_qp_data_in_order, qp, op, flags);
    return 0;
}
