/*
 * verbs-serve SOCKET LEVEL VOLATILE READ-ONLY COUNT PARTITION... [PROGRAM...]: the storage peer of `tarn
 * verbs` (docs/guide/verbs.md). It registers partitions with tarn's RDMA device, and sends programs that
 * connect to SOCKET the data that they need to reach them. It ends by SIGTERM or SIGINT; or with PROGRAM, if
 * there is one.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_CLIENTS 256
#define MAX_PARTITIONS 64
/* A line names a partition at most. */
#define LINE_BYTES 4352
#define PORT 1

/* Of libtarnverbs.so, which this is linked with in place of libibverbs. */
struct ibv_mr *tarn_verbs_reg_partition(struct ibv_pd *pd, const char *name, unsigned access, uint32_t level,
                                        uint32_t accepts_volatile);

struct client {
    int socket;
    size_t filled;
    char line[LINE_BYTES];
    struct ibv_qp *qp;
};

static struct {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_port_attr port;
    union ibv_gid gid;
    unsigned access;
    struct ibv_mr *regions[MAX_PARTITIONS];
    char **names;
    int count;
    struct client clients[MAX_CLIENTS];
    int client_count;
} peer;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("tarn verbs serve: ", stderr);
    vfprintf(stderr, format, args);
    fputs("\n", stderr);
    va_end(args);
    exit(1);
}

static void device_open(void) {
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(ibv_get_device_name(list[i]), "tarn0") == 0)
            peer.context = ibv_open_device(list[i]);
    if (!peer.context)
        fail("cannot open the device tarn0: %s", strerror(errno));
    ibv_free_device_list(list);
    peer.pd = ibv_alloc_pd(peer.context);
    peer.cq = ibv_create_cq(peer.context, 1, NULL, NULL, 0);
    if (!peer.pd || !peer.cq || ibv_query_port(peer.context, PORT, &peer.port) != 0 ||
        ibv_query_gid(peer.context, PORT, 0, &peer.gid) != 0)
        fail("cannot use the device tarn0: %s", strerror(errno));
}

/* By a path that means the same to every program, in any folder. */
static char *whole(const char *name) {
    char *folder = name[0] == '.' ? getcwd(NULL, 0) : NULL, *path = NULL;
    if (asprintf(&path, "%s%s%s", folder ? folder : "", folder ? "/" : "", name) < 0)
        fail("no memory");
    free(folder);
    return path;
}

static void partitions_register(uint32_t level, uint32_t accepts_volatile) {
    for (int i = 0; i < peer.count; i++) {
        char *path = whole(peer.names[i]);
        peer.regions[i] = tarn_verbs_reg_partition(peer.pd, path, peer.access, level, accepts_volatile);
        if (!peer.regions[i])
            fail("cannot serve %s: %s", peer.names[i], strerror(errno));
        free(path);
    }
}

static int listen_at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        fail("%s is too long for a socket: at most %zu bytes", path, sizeof address.sun_path - 1);
    strcpy(address.sun_path, path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
        probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct stat status;
    /* Another kind of file refuses connections as a socket does that nobody listens at. */
    if (lstat(path, &status) == 0 && !S_ISSOCK(status.st_mode))
        fail("%s is there and is no socket, so it is left as it is: name another path", path);
    /* Of one that was killed; another's that lives stays. */
    if (connect(probe, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED)
        unlink(path);
    close(probe);
    umask(0177);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 64) != 0)
        fail("cannot listen at %s: %s", path, strerror(errno));
    return listener;
}

static bool send_reply(const struct client *client, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    /* A client that does not read its answers is given up. */
    return send(client->socket, line, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT) == length;
}

static bool read_gid(const char *text, union ibv_gid *gid) {
    for (int i = 0; i < 16; i++)
        if (sscanf(text + 2 * i, "%2hhx", &gid->raw[i]) != 1)
            return false;
    return true;
}

/* A queue pair for the client's. */
static bool connect_to(struct client *client, uint16_t lid, uint32_t qpn, uint32_t psn, const char *gid) {
    struct ibv_qp_init_attr init = {
        .send_cq = peer.cq, .recv_cq = peer.cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = peer.access};
    if (client->qp)
        return send_reply(client, "error connected already\n");
    client->qp = ibv_create_qp(peer.pd, &init);
    if (!client->qp)
        return send_reply(client, "error no queue pair: %s\n", strerror(errno));
    int code = ibv_modify_qp(client->qp, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = qpn,
        .rq_psn = psn,
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .dlid = lid, .port_num = PORT, .grh = {.hop_limit = 1}},
    };
    if (!read_gid(gid, &attr.ah_attr.grh.dgid))
        return send_reply(client, "error a gid has 32 hexadecimal digits\n");
    if (code == 0)
        code = ibv_modify_qp(client->qp, &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (code != 0)
        return send_reply(client, "error no such queue pair can be: %s\n", strerror(code));
    char own[33];
    for (int i = 0; i < 16; i++)
        sprintf(own + 2 * i, "%02x", peer.gid.raw[i]);
    return send_reply(client, "ok %u %u 0 %s\n", peer.port.lid, client->qp->qp_num, own);
}

/* Whether the client is to stay. */
static bool answer(struct client *client, const char *line) {
    char gid[33];
    unsigned lid, qpn, psn;
    if (sscanf(line, "connect %u %u %u %32s", &lid, &qpn, &psn, gid) == 4 && strlen(gid) == 32)
        return connect_to(client, (uint16_t)lid, qpn, psn, gid);
    if (strncmp(line, "region ", 7) != 0)
        return send_reply(client, "error say: connect LID QPN PSN GID, or: region PARTITION\n");
    for (int i = 0; i < peer.count; i++)
        if (strcmp(peer.names[i], line + 7) == 0)
            return send_reply(client, "ok 0 %u %zu\n", peer.regions[i]->rkey, peer.regions[i]->length);
    return send_reply(client, "error no such partition is served\n");
}

static void accept_one(int listener) {
    struct ucred who;
    socklen_t size = sizeof who;
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0)
        return;
    /* Another user could not reach this process's device anyway. */
    if (peer.client_count == MAX_CLIENTS || getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 ||
        who.uid != geteuid()) {
        close(socket);
        return;
    }
    struct client *client = &peer.clients[peer.client_count++];
    client->socket = socket;
    client->filled = 0;
    client->qp = NULL;
}

/* Answers what there is of lines; false at the end. */
static bool serve(struct client *client) {
    ssize_t got =
        recv(client->socket, client->line + client->filled, LINE_BYTES - client->filled, MSG_DONTWAIT);
    if (got <= 0)
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    client->filled += (size_t)got;
    for (char *end; (end = memchr(client->line, '\n', client->filled));) {
        *end = 0;
        if (!answer(client, client->line))
            return false;
        client->filled -= (size_t)(end + 1 - client->line);
        memmove(client->line, end + 1, client->filled);
    }
    return client->filled < LINE_BYTES;
}

static void drop(int index) {
    struct client *client = &peer.clients[index];
    if (client->qp && ibv_destroy_qp(client->qp) != 0)
        fprintf(stderr,
                "tarn verbs serve: a client was stopped in the middle of a request; its queue pair stays\n");
    close(client->socket);
    memmove(client, client + 1, (size_t)(--peer.client_count - index) * sizeof *client);
}

static pid_t begin(char **program) {
    posix_spawnattr_t attr;
    sigset_t none;
    pid_t pid = 0;
    sigemptyset(&none);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    int code = posix_spawnp(&pid, program[0], NULL, &attr, program, environ);
    if (code != 0) {
        fprintf(stderr, "tarn verbs exec: cannot run %s: %s\n", program[0], strerror(code));
        exit(127);
    }
    return pid;
}

/* Runs until a signal, or the end of the program; the exit code. */
static int run(int listener, int signals, pid_t program) {
    for (;;) {
        struct pollfd fds[2 + MAX_CLIENTS] = {{signals, POLLIN, 0}, {listener, POLLIN, 0}};
        int count = peer.client_count;
        for (int i = 0; i < count; i++)
            fds[2 + i] = (struct pollfd){peer.clients[i].socket, POLLIN, 0};
        if (poll(fds, (nfds_t)(2 + count), -1) < 0)
            continue;
        struct signalfd_siginfo info;
        if (fds[0].revents && read(signals, &info, sizeof info) == sizeof info) {
            int status;
            if (info.ssi_signo != SIGCHLD && program == 0)
                return 0;
            if (info.ssi_signo != SIGCHLD)
                kill(program, (int)info.ssi_signo);
            else if (waitpid(program, &status, WNOHANG) == program)
                return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        for (int i = count; i-- > 0;)
            if (fds[2 + i].revents && !serve(&peer.clients[i]))
                drop(i);
        if (fds[1].revents)
            accept_one(listener);
    }
}

int main(int argc, char **argv) {
    if (argc < 7 || (peer.count = atoi(argv[5])) < 1 || peer.count > MAX_PARTITIONS || argc < 6 + peer.count)
        fail("is run by `tarn verbs serve`, of at most %d partitions", MAX_PARTITIONS);
    char **program = argv + 6 + peer.count;
    bool reads = strcmp(argv[4], "1") == 0;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_CLOEXEC);
    peer.names = argv + 6;
    peer.access = IBV_ACCESS_REMOTE_READ;
    if (!reads)
        peer.access |= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    device_open();
    partitions_register((uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]));
    int listener = listen_at(argv[1]);
    setenv("TARN_VERBS_PEER", argv[1], 1);
    pid_t child = *program ? begin(program) : 0;
    if (!child) {
        printf("serving %d partition%s at %s\n", peer.count, peer.count == 1 ? "" : "s", argv[1]);
        fflush(stdout);
    }
    int code = run(listener, signals, child);
    unlink(argv[1]);
    return code;
}
