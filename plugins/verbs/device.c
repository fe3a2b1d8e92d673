/* The device, and the queries of it. Calls for other devices go to the system's libibverbs. */
#include "device.h"

#include <endian.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Libraries of other devices look behind the end, where they have things of their own, to know theirs. */
static struct {
    struct ibv_device device;
    void *nothing[64];
} own = {.device = {.node_type = IBV_NODE_CA,
                    .transport_type = IBV_TRANSPORT_IB,
                    .name = "tarn0",
                    .dev_name = "tarn0",
                    .dev_path = "/nonexistent/tarn0",
                    .ibdev_path = "/nonexistent/tarn0"}};

/* The mark that `tarn verbs` looks for. */
__attribute__((used)) static const char version[] = "tarn-verbs-plugin-version=" TARN_VERSION;

struct ibv_device *const tarn_device = &own.device;

_Atomic bool forked;
static struct context *contexts;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The same for all processes of a user on a node since its start, and for no others. */
uint64_t node_guid(void) {
    static _Atomic uint64_t known;
    if (known)
        return known;
    char text[64] = "";
    uint32_t user = geteuid();
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, text, sizeof text - sizeof user) < 0)
            text[0] = 0;
        close(fd);
    }
    memcpy(text + sizeof text - sizeof user, &user, sizeof user);
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < sizeof text; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    known = hash | 1;
    return known;
}

/* One of those that name a port. */
uint16_t node_lid(void) { return (uint16_t)(1 + node_guid() % 0xbffe); }

void node_gid(union ibv_gid *gid) {
    gid->global.subnet_prefix = htobe64(0xfe80000000000000u);
    gid->global.interface_id = htobe64(node_guid());
}

bool is_this_node(const struct ibv_ah_attr *address) {
    union ibv_gid gid;
    node_gid(&gid);
    return address->is_global ? memcmp(&gid, &address->grh.dgid, sizeof gid) == 0
                              : address->dlid == node_lid();
}

/* The entry before the first in the list given to the program: the system's list, which is given back
 * with it. */
PUBLIC struct ibv_device **ibv_get_device_list(int *count) {
    static struct ibv_device **(*list)(int *);
    int others = 0;
    if (!list)
        list = (__typeof__(list))real_symbol("ibv_get_device_list", "IBVERBS_1.1");
    struct ibv_device **theirs = list ? list(&others) : NULL;
    struct ibv_device **all = calloc((size_t)others + 3, sizeof(struct ibv_device *));
    if (count)
        *count = all ? others + 1 : 0;
    if (!all)
        return NULL;
    all[0] = (struct ibv_device *)theirs;
    for (int i = 0; i < others; i++)
        all[i + 1] = theirs[i];
    all[others + 1] = tarn_device;
    return all + 1;
}

PUBLIC void ibv_free_device_list(struct ibv_device **list) {
    static void (*give_back)(struct ibv_device **);
    if (!give_back)
        give_back = (__typeof__(give_back))real_symbol("ibv_free_device_list", "IBVERBS_1.1");
    if (!list)
        return;
    if (list[-1])
        give_back((struct ibv_device **)list[-1]);
    free(list - 1);
}

PUBLIC const char *ibv_get_device_name(struct ibv_device *device) {
    if (device != tarn_device)
        PASS("IBVERBS_1.1", ibv_get_device_name, device);
    return device->name;
}

PUBLIC __be64 ibv_get_device_guid(struct ibv_device *device) {
    if (device != tarn_device)
        PASS("IBVERBS_1.1", ibv_get_device_guid, device);
    return htobe64(node_guid());
}

PUBLIC int ibv_get_device_index(struct ibv_device *device) {
    if (device != tarn_device)
        PASS("IBVERBS_1.9", ibv_get_device_index, device);
    return -1;
}

static void after_fork(void) {
    forked = contexts != NULL;
    contexts = NULL;
    pthread_mutex_init(&mutex, NULL);
    progress_forked();
    buffers_forked();
}

/* Nothing stays behind. Other threads may still use it all. */
__attribute__((destructor)) static void leave(void) {
    for (struct context *context = contexts; !forked && context; context = context->next)
        area_leave(context);
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                           struct ibv_device_attr_ex *attr, size_t size) {
    struct ibv_device_attr_ex all = {.device_cap_flags_ex = IBV_DEVICE_RC_RNR_NAK_GEN, .phys_port_cnt_ex = 1};
    int code = ibv_query_device(context, &all.orig_attr);
    (void)input;
    memset(attr, 0, size);
    memcpy(attr, &all, size < sizeof all ? size : sizeof all);
    return code;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size) {
    struct ibv_port_attr all = {.state = IBV_PORT_ACTIVE,
                                .max_mtu = IBV_MTU_4096,
                                .active_mtu = IBV_MTU_4096,
                                .gid_tbl_len = 1,
                                .max_msg_sz = MAX_MESSAGE,
                                .pkey_tbl_len = 1,
                                .lid = node_lid(),
                                .sm_lid = node_lid(),
                                .max_vl_num = 1,
                                .active_width = 2,  /* 4x */
                                .active_speed = 32, /* EDR: something has to be said */
                                .phys_state = 5,    /* link up */
                                .link_layer = IBV_LINK_LAYER_INFINIBAND};
    (void)context;
    if (port != 1)
        return EINVAL;
    memset(attr, 0, size);
    memcpy(attr, &all, size < sizeof all ? size : sizeof all);
    return 0;
}

PUBLIC struct ibv_context *ibv_open_device(struct ibv_device *device) {
    if (device != tarn_device)
        PASS("IBVERBS_1.1", ibv_open_device, device);
    static bool has_fork_handler;
    struct context *context = forked ? NULL : calloc(1, sizeof *context);
    if (!context) {
        errno = forked ? EPERM : ENOMEM;
        return NULL;
    }
    if (!area_open(context)) {
        free(context);
        return NULL;
    }
    struct ibv_context *verbs = &context->verbs.context;
    context->verbs.sz = sizeof context->verbs;
    context->verbs.query_port = query_port;
    context->verbs.query_device_ex = query_device_ex;
    context->verbs.create_qp_ex = qp_create_ex;
    verbs->device = device;
    verbs->ops.poll_cq = poll_cq;
    verbs->ops.req_notify_cq = req_notify_cq;
    verbs->ops.post_send = post_send;
    verbs->ops.post_recv = post_recv;
    verbs->ops.post_srq_recv = post_srq_recv;
    verbs->cmd_fd = -1;
    verbs->async_fd = eventfd(0, EFD_CLOEXEC); /* nothing ever comes */
    verbs->num_comp_vectors = 1;
    verbs->abi_compat = __VERBS_ABI_IS_EXTENDED;
    pthread_mutex_init(&verbs->mutex, NULL);
    pthread_mutex_init(&context->mutex, NULL);
    pthread_mutex_lock(&mutex);
    if (!has_fork_handler)
        pthread_atfork(NULL, NULL, after_fork);
    has_fork_handler = true;
    context->next = contexts;
    contexts = context;
    pthread_mutex_unlock(&mutex);
    return verbs;
}

/* Queue pairs that the program has not given back are, as peers see them; other objects are lost to it. */
PUBLIC int ibv_close_device(struct ibv_context *verbs) {
    if (!ours(verbs))
        PASS("IBVERBS_1.1", ibv_close_device, verbs);
    struct context *context = context_of(verbs);
    if (forked)
        return EPERM;
    for (uint32_t i = 0; i < MAX_QPS; i++)
        if (context->qps[i] && ibv_destroy_qp(&context->qps[i]->verbs) != 0)
            return EBUSY;
    pthread_mutex_lock(&mutex);
    for (struct context **at = &contexts; *at; at = &(*at)->next)
        if (*at == context) {
            *at = context->next;
            break;
        }
    pthread_mutex_unlock(&mutex);
    area_close(context);
    close(verbs->async_fd);
    free(context);
    return 0;
}

PUBLIC int ibv_query_device(struct ibv_context *verbs, struct ibv_device_attr *attr) {
    if (!ours(verbs))
        PASS("IBVERBS_1.1", ibv_query_device, verbs, attr);
    *attr = (struct ibv_device_attr){.fw_ver = TARN_VERSION,
                                     .node_guid = htobe64(node_guid()),
                                     .sys_image_guid = htobe64(node_guid()),
                                     .max_mr_size = UINT64_MAX,
                                     .page_size_cap = 4096,
                                     .max_qp = MAX_QPS,
                                     .max_qp_wr = MAX_WR,
                                     .device_cap_flags =
                                         IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_UD_AV_PORT_ENFORCE,
                                     .max_sge = MAX_SGE,
                                     .max_sge_rd = MAX_SGE,
                                     .max_cq = MAX_CQS,
                                     .max_cqe = INT32_MAX,
                                     .max_mr = MAX_MRS,
                                     .max_pd = INT32_MAX,
                                     .max_qp_rd_atom = 16,
                                     .max_res_rd_atom = 16 * MAX_QPS,
                                     .max_qp_init_rd_atom = 16,
                                     .atomic_cap = IBV_ATOMIC_HCA,
                                     .max_ah = INT32_MAX,
                                     .max_srq = MAX_SRQS,
                                     .max_srq_wr = MAX_WR,
                                     .max_srq_sge = MAX_SGE,
                                     .max_pkeys = 1,
                                     .phys_port_cnt = 1};
    return 0;
}

#undef ibv_query_port
/* Only programs of before 2018 come here; theirs is shorter. */
PUBLIC int ibv_query_port(struct ibv_context *verbs, uint8_t port, struct _compat_ibv_port_attr *attr) {
    if (!ours(verbs))
        PASS("IBVERBS_1.1", ibv_query_port, verbs, port, attr);
    return query_port(verbs, port, (struct ibv_port_attr *)attr,
                      offsetof(struct ibv_port_attr, port_cap_flags2));
}

PUBLIC int ibv_query_gid(struct ibv_context *verbs, uint8_t port, int index, union ibv_gid *gid) {
    if (!ours(verbs))
        PASS("IBVERBS_1.1", ibv_query_gid, verbs, port, index, gid);
    if (port != 1 || index != 0) {
        errno = EINVAL;
        return -1;
    }
    node_gid(gid);
    return 0;
}

PUBLIC int _ibv_query_gid_ex(struct ibv_context *verbs, uint32_t port, uint32_t index,
                             struct ibv_gid_entry *entry, uint32_t flags, size_t size) {
    if (!ours(verbs))
        PASS("IBVERBS_1.11", _ibv_query_gid_ex, verbs, port, index, entry, flags, size);
    struct ibv_gid_entry all = {.port_num = 1, .gid_type = IBV_GID_TYPE_IB};
    if (port != 1 || index != 0)
        return EINVAL;
    if (flags)
        return EOPNOTSUPP;
    node_gid(&all.gid);
    memset(entry, 0, size);
    memcpy(entry, &all, size < sizeof all ? size : sizeof all);
    return 0;
}

PUBLIC ssize_t _ibv_query_gid_table(struct ibv_context *verbs, struct ibv_gid_entry *entries, size_t room,
                                    uint32_t flags, size_t size) {
    if (!ours(verbs))
        PASS("IBVERBS_1.11", _ibv_query_gid_table, verbs, entries, room, flags, size);
    if (room == 0)
        return -EINVAL;
    int code = _ibv_query_gid_ex(verbs, 1, 0, entries, flags, size);
    return code ? -code : 1;
}

/* Between libibverbs and its tools, in a version that changes with its structures; 0 is any type but RoCE
 * v2.
 */
static int query_gid_type(struct ibv_context *verbs, uint8_t port, unsigned index, int *type) {
#define VERSION(number) "IBVERBS_PRIVATE_" #number,
    static const char *const versions[] = {IBVERBS_PRIVATE(VERSION)};
    static __typeof__(&query_gid_type) real;
    for (size_t i = 0; !ours(verbs) && !real && i < sizeof versions / sizeof *versions; i++)
        real = (__typeof__(real))real_symbol("ibv_query_gid_type", versions[i]);
    if (!ours(verbs))
        return real ? real(verbs, port, index, type) : EOPNOTSUPP;
    *type = 0;
    return 0;
}
#define EXPORT(number)                                                                                       \
    PUBLIC int query_gid_type_##number(struct ibv_context *, uint8_t, unsigned, int *)                       \
        __attribute__((alias("query_gid_type")));                                                            \
    __asm__(".symver query_gid_type_" #number ", ibv_query_gid_type@IBVERBS_PRIVATE_" #number);
IBVERBS_PRIVATE(EXPORT)

PUBLIC int ibv_query_pkey(struct ibv_context *verbs, uint8_t port, int index, __be16 *pkey) {
    if (!ours(verbs))
        PASS("IBVERBS_1.1", ibv_query_pkey, verbs, port, index, pkey);
    if (port != 1 || index != 0) {
        errno = EINVAL;
        return -1;
    }
    *pkey = htobe16(0xffff);
    return 0;
}

PUBLIC int ibv_get_pkey_index(struct ibv_context *verbs, uint8_t port, __be16 pkey) {
    if (!ours(verbs))
        PASS("IBVERBS_1.5", ibv_get_pkey_index, verbs, port, pkey);
    return port == 1 && pkey == htobe16(0xffff) ? 0 : -1;
}

/* No event ever comes: an error has a completion. */
PUBLIC int ibv_get_async_event(struct ibv_context *verbs, struct ibv_async_event *event) {
    if (!ours(verbs))
        PASS("IBVERBS_1.1", ibv_get_async_event, verbs, event);
    uint64_t count;
    if (read(verbs->async_fd, &count, sizeof count) == sizeof count)
        errno = EIO;
    return -1;
}
