/* Address handles: where datagrams go. */
#include "device.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

PUBLIC struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) {
    if (!ours(pd->context))
        PASS("IBVERBS_1.1", ibv_create_ah, pd, attr);
    struct context *context = context_of(pd->context);
    int code = forked                                                                  ? EPERM
               : attr->port_num != 1 || (attr->is_global && attr->grh.sgid_index != 0) ? EINVAL
                                                                                       : 0;
    struct address *address = code == 0 ? calloc(1, sizeof *address) : NULL;
    if (!address) {
        errno = code ? code : ENOMEM;
        return NULL;
    }
    address->verbs = (struct ibv_ah){.context = pd->context, .pd = pd};
    address->attr = *attr;
    pthread_mutex_lock(&context->mutex);
    container_of(pd, struct domain, verbs)->users++;
    pthread_mutex_unlock(&context->mutex);
    return &address->verbs;
}

PUBLIC int ibv_init_ah_from_wc(struct ibv_context *verbs, uint8_t port, struct ibv_wc *wc,
                               struct ibv_grh *grh, struct ibv_ah_attr *attr) {
    if (!ours(verbs))
        PASS("IBVERBS_1.1", ibv_init_ah_from_wc, verbs, port, wc, grh, attr);
    *attr = (struct ibv_ah_attr){
        .dlid = wc->slid, .sl = wc->sl, .src_path_bits = wc->dlid_path_bits, .port_num = port};
    if (!(wc->wc_flags & IBV_WC_GRH))
        return 0;
    union ibv_gid gid;
    node_gid(&gid);
    if (memcmp(&gid, &grh->dgid, sizeof gid) != 0) {
        errno = EINVAL;
        return -1;
    }
    uint32_t tclass_flow = be32toh(grh->version_tclass_flow);
    attr->is_global = 1;
    attr->grh = (struct ibv_global_route){.dgid = grh->sgid,
                                          .flow_label = tclass_flow & 0xfffff,
                                          .hop_limit = 0xff,
                                          .traffic_class = tclass_flow >> 20 & 0xff};
    return 0;
}

PUBLIC struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                            uint8_t port) {
    if (!ours(pd->context))
        PASS("IBVERBS_1.1", ibv_create_ah_from_wc, pd, wc, grh, port);
    struct ibv_ah_attr attr;
    return ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr) == 0 ? ibv_create_ah(pd, &attr) : NULL;
}

PUBLIC int ibv_destroy_ah(struct ibv_ah *verbs) {
    if (!ours(verbs->context))
        PASS("IBVERBS_1.1", ibv_destroy_ah, verbs);
    struct context *context = context_of(verbs->context);
    if (forked)
        return EPERM;
    pthread_mutex_lock(&context->mutex);
    container_of(verbs->pd, struct domain, verbs)->users--;
    pthread_mutex_unlock(&context->mutex);
    free(container_of(verbs, struct address, verbs));
    return 0;
}
