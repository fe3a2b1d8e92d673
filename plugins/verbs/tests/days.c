/*
 * Bad days of two processes. `days WHAT`; the other process is `days WHAT other`, which prints its name at
 * its output, reads the first one's from its input, and continues until it is killed.
 */
#include "../shared.h"
#include "ends.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define DEPTH 32

static char *self;
static pid_t other;
static FILE *from, *to;

static void write_name(FILE *file, struct name name) {
    fprintf(file, "%u %u %u %llu\n", name.lid, name.qpn, name.rkey, name.address);
    fflush(file);
}

static struct name read_name(FILE *file) {
    struct name name;
    CHECK_IS(fscanf(file, "%u %u %u %llu", &name.lid, &name.qpn, &name.rkey, &name.address), 4);
    return name;
}

/* Gives it a queue pair of this kind, by a shared queue if there is one. */
static void renew(struct end *end, enum ibv_qp_type type, struct ibv_srq *srq) {
    if (type == IBV_QPT_UD) {
        end_datagrams(end, srq);
        return;
    }
    CHECK_IS(ibv_destroy_qp(end->qp), 0);
    end->qp = queue_shared(end, type, srq);
}

/* Begins the other process, as this user or another, and joins both ends. */
static struct name begin(const char *what, const struct end *end) {
    int out[2], in[2];
    posix_spawn_file_actions_t actions;
    CHECK(pipe2(out, O_CLOEXEC) == 0 && pipe2(in, O_CLOEXEC) == 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[0], 0);
    posix_spawn_file_actions_adddup2(&actions, in[1], 1);
    char *arguments[] = {self, (char *)what, "other", NULL};
    if (from) {
        fclose(from);
        fclose(to);
    }
    CHECK_IS(posix_spawn(&other, self, &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[0]);
    close(in[1]);
    to = fdopen(out[1], "w");
    from = fdopen(in[0], "r");
    struct name name = read_name(from);
    /* A message that the other one sends without a request finds this end joined. */
    if (end->qp->qp_type != IBV_QPT_UD)
        end_join(end, name);
    write_name(to, end_name(end));
    return name;
}

static void kill_other(void) {
    CHECK_IS(kill(other, SIGKILL), 0);
    CHECK_IS(waitpid(other, NULL, 0), other);
}

/* Posts writes of all its memory as long as that goes, and takes their ends: how the last one ended. */
static enum ibv_wc_status write_on(const struct end *end, struct name name, double until) {
    uint64_t posted = 0, ended = 0;
    struct ibv_wc wc = {0};
    for (;;) {
        while (posted - ended < DEPTH && seconds() < until)
            remote(end, IBV_WR_RDMA_WRITE, posted++, 0, MEMORY, name);
        if (posted == ended)
            return IBV_WC_SUCCESS;
        wc = next(end->cq);
        CHECK_IS(wc.wr_id, ended);
        ended++;
        if (wc.status != IBV_WC_SUCCESS)
            break;
    }
    for (; ended < posted; ended++)
        CHECK_IS(ends(end->cq, ended), IBV_WC_WR_FLUSH_ERR);
    return wc.status;
}

static void *killer(void *unused) {
    usleep(50000);
    kill_other();
    return unused;
}

/* A writer to a process that is killed gets an error, and can continue with another. */
static void target(struct end *end) {
    pthread_t thread;
    for (int i = 0; i < 3; i++) {
        struct name name = begin("target", end);
        CHECK_IS(pthread_create(&thread, NULL, killer, NULL), 0);
        CHECK_IS(write_on(end, name, seconds() + 20), IBV_WC_RETRY_EXC_ERR);
        CHECK_IS(pthread_join(thread, NULL), 0);
        CHECK_IS(ibv_destroy_qp(end->qp), 0);
        end->qp = queue(end->pd, end->cq, ALL, true);
    }
}

/* A process whose writer is killed gets its memory back, and its posted requests; a message that was
 * sent whole is there. */
static void written(struct end *end, const char *what, enum ibv_qp_type type) {
    for (int i = 0; i < 5; i++) {
        renew(end, type, NULL);
        /* Before the writer sends: an unreliable queue pair loses what comes earlier. */
        for (uint64_t n = 0; n < 4; n++)
            give(end, n, 0, 100);
        begin(what, end);
        CHECK_IS(ends(end->cq, 0), IBV_WC_SUCCESS);
        usleep(20000 + 7000 * (unsigned)i);
        kill_other();
        double since = seconds();
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
        CHECK_IS(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE), 0);
        for (uint64_t n = 1; n < 4; n++)
            CHECK_IS(ends(end->cq, n), IBV_WC_WR_FLUSH_ERR);
        CHECK_IS(ibv_dereg_mr(end->mr), 0);
        end->mr = ibv_reg_mr(end->pd, end->memory, MEMORY, ALL);
        CHECK(end->mr && seconds() - since < 10);
    }
}

static void writer(struct end *end) { written(end, "writer", IBV_QPT_RC); }

static void writer_uc(struct end *end) { written(end, "writer-uc", IBV_QPT_UC); }

/* A region that is given back is not written any more from then on, by any writer. */
static void given_back(struct end *end) {
    begin("writer", end);
    give(end, 0, 0, 100);
    CHECK_IS(ends(end->cq, 0), IBV_WC_SUCCESS);
    usleep(20000);
    CHECK_IS(ibv_dereg_mr(end->mr), 0);
    memset(end->memory, 0, MEMORY);
    usleep(20000);
    for (size_t i = 0; i < MEMORY; i++)
        CHECK_IS(end->memory[i], 0);
    end->mr = ibv_reg_mr(end->pd, end->memory, MEMORY, ALL);
    kill_other();
}

/* Atomic operations of several processes on one word lose nothing, also where one is killed with its lock. */
static void words(struct end *end) {
    struct ibv_wc wc;
    volatile uint64_t *word = (uint64_t *)(void *)end->memory;
    begin("words", end);
    for (double until = seconds() + 30; *word < 100 && seconds() < until;)
        usleep(100);
    kill_other();
    uint64_t before = *word;
    CHECK(before >= 100);
    CHECK_IS(ibv_destroy_qp(end->qp), 0);
    end->qp = queue(end->pd, end->cq, ALL, true);
    struct end here = *end;
    here.qp = queue(end->pd, end->cq, ALL, true);
    begin("words", end);
    for (double until = seconds() + 30; *word == before && seconds() < until;)
        usleep(100);
    /* This process to itself, by a queue pair beside. */
    struct end there = *end;
    there.qp = queue(end->pd, end->cq, ALL, true);
    ends_join(&here, &there);
    struct ibv_sge sge = piece(end, 64, 8);
    enum { COUNT = 2000 };
    for (int i = 0; i < COUNT; i++) {
        post(&here, (struct ibv_send_wr){.wr_id = 1,
                                         .sg_list = &sge,
                                         .num_sge = 1,
                                         .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                         .wr.atomic = {(uintptr_t)word, 1ull << 32, 0, end->mr->rkey}});
        CHECK_IS(ends(end->cq, 1), IBV_WC_SUCCESS);
    }
    kill_other();
    /* Each of ours is there; those of the other are all in the lower half. */
    CHECK_IS((*word >> 32) - (before >> 32), COUNT);
    CHECK((uint32_t)*word > (uint32_t)before);
    CHECK_IS(ibv_poll_cq(end->cq, 1, &wc), 0);
    CHECK_IS(ibv_destroy_qp(here.qp), 0);
    CHECK_IS(ibv_destroy_qp(there.qp), 0);
}

enum { BUFFERS = 8, BUFFER = 100000 };

/* A queue pair of another process that only sends. */
struct sender {
    struct end end;
    pid_t process;
    uint32_t next_number; /* the number of its next message */
};

static void sender_begin(struct sender *sender, const struct end *end, struct ibv_srq *srq) {
    sender->end = *end;
    sender->end.qp = queue_shared(end, IBV_QPT_RC, srq);
    sender->next_number = 0;
    begin("sender", &sender->end);
    sender->process = other;
}

/* Takes so many messages of the second: each is whole and of one sender, and none of either is missing. */
static void receive(struct sender *senders, const struct end *end, int count) {
    while (count > 0) {
        struct ibv_wc wc = next(end->cq);
        struct sender *sender = &senders[wc.qp_num == senders[1].end.qp->qp_num];
        CHECK_IS(wc.status, IBV_WC_SUCCESS);
        CHECK_IS(wc.qp_num, sender->end.qp->qp_num);
        CHECK_IS(wc.imm_data, sender->next_number++);
        const unsigned char *memory = end->memory + wc.wr_id * BUFFER;
        CHECK_IS(wc.byte_len, BUFFER);
        for (size_t i = 1; i < BUFFER; i++)
            CHECK_IS(memory[i], memory[0]);
        give(&sender->end, wc.wr_id, wc.wr_id * BUFFER, BUFFER);
        count -= sender == &senders[1];
    }
}

/* One of two who fill a shared queue is killed in the middle, again and again, and the other continues. */
static void shared(struct end *end) {
    struct ibv_srq *srq = shared_make(end->pd, BUFFERS);
    struct sender senders[2];
    sender_begin(&senders[1], end, srq);
    for (uint64_t i = 0; i < BUFFERS; i++)
        give(&senders[1].end, i, i * BUFFER, BUFFER);
    for (int i = 0; i < 8; i++) {
        sender_begin(&senders[0], end, srq);
        receive(senders, end, 20 + 7 * i);
        other = senders[0].process;
        kill_other();
        /* Messages that it has sent whole come meanwhile. */
        receive(senders, end, 4 * BUFFERS);
        CHECK_IS(ibv_destroy_qp(senders[0].end.qp), 0);
    }
    other = senders[1].process;
    kill_other();
    CHECK_IS(ibv_destroy_qp(senders[1].end.qp), 0);
    CHECK_IS(ibv_destroy_srq(srq), 0);
}

enum { HEAD = 40, DATAGRAM = 4000 };

/* Takes so many datagrams of a sender, which come in order, and those of others: each is whole. */
static void receive_datagrams(const struct end *end, unsigned sender, uint32_t *last, int count) {
    while (count > 0) {
        struct ibv_wc wc = next(end->cq);
        const unsigned char *memory = end->memory + wc.wr_id * BUFFER + HEAD;
        CHECK_IS(wc.status, IBV_WC_SUCCESS);
        CHECK_IS(wc.byte_len, HEAD + DATAGRAM);
        for (size_t i = 0; i < DATAGRAM; i++)
            CHECK_IS(memory[i], (unsigned char)(wc.src_qp >> 12));
        if (wc.src_qp == sender) {
            CHECK(wc.imm_data > *last);
            *last = wc.imm_data;
            count--;
        }
        give(end, wc.wr_id, wc.wr_id * BUFFER, HEAD + DATAGRAM);
    }
}

/* One of two who send to a queue pair of datagrams is killed in the middle, again and again, and the other's
 * come all the same. */
static void datagrams(struct end *end) {
    end_datagrams(end, NULL);
    for (uint64_t i = 0; i < BUFFERS; i++)
        give(end, i, i * BUFFER, HEAD + DATAGRAM);
    struct name steady = begin("datagrams-ud", end);
    pid_t process = other;
    uint32_t last = 0;
    for (int i = 0; i < 8; i++) {
        uint32_t of_other = 0;
        struct name name = begin("datagrams-ud", end);
        receive_datagrams(end, name.qpn, &of_other, 20 + 7 * i);
        kill_other();
        receive_datagrams(end, steady.qpn, &last, 4 * BUFFERS);
    }
    other = process;
    kill_other();
}

/* The path of a device's folder, or of a file there. */
static const char *device_path(uint32_t slot, const char *file) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/%03x/%s", getenv("TARN_VERBS_DIR"), slot, file);
    return path;
}

static void device_remove(uint32_t slot) {
    DIR *files = opendir(device_path(slot, ""));
    CHECK(files);
    for (struct dirent *file; (file = readdir(files));)
        unlink(device_path(slot, file->d_name));
    closedir(files);
    CHECK_IS(rmdir(device_path(slot, "")), 0);
}

static _Atomic bool given;

static void *gives_memory_back(void *argument) {
    struct end *end = argument;
    CHECK_IS(ibv_dereg_mr(end->mr), 0);
    given = true;
    return NULL;
}

/* A peer in the middle of a request is waited for also where it ends, and its files are gone before it. */
static void leaving(struct end *end) {
    pthread_t thread;
    char name[16];
    const uint32_t busy = 1;
    struct name peer = begin("leaving", end);
    give(end, 0, 0, 100);
    CHECK_IS(ends(end->cq, 0), IBV_WC_SUCCESS);
    /* It has done all that it does. */
    read_name(from);
    device_remove(slot_of(peer.qpn));
    snprintf(name, sizeof name, "q%03x", place_of(end->qp->qp_num));
    int fd = open(device_path(slot_of(end->qp->qp_num), name), O_RDWR | O_CLOEXEC);
    CHECK_IS(pwrite(fd, &busy, sizeof busy, offsetof(struct queue_area, busy)), sizeof busy);
    close(fd);
    CHECK_IS(pthread_create(&thread, NULL, gives_memory_back, end), 0);
    usleep(50000);
    CHECK(!given);
    kill_other();
    CHECK_IS(pthread_join(thread, NULL), 0);
    end->mr = ibv_reg_mr(end->pd, end->memory, MEMORY, ALL);
}

/* The device of a process that is dead. */
static struct {
    ino_t area;
    uint32_t slot;
} dead;

static int area_make(uint32_t slot) {
    int fd = open(device_path(slot, "area"), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    return fd;
}

/* In place of the system's: before the dead one's is locked another process has taken it away, and a third
 * one, which lives, has got its number. */
int flock(int fd, int operation) {
    struct stat status;
    if (dead.area && fstat(fd, &status) == 0 && status.st_ino == dead.area) {
        dead.area = 0;
        device_remove(dead.slot);
        CHECK_IS(mkdir(device_path(dead.slot, ""), 0700), 0);
        CHECK_IS(syscall(SYS_flock, area_make(dead.slot), LOCK_EX), 0);
    }
    return (int)syscall(SYS_flock, fd, operation);
}

/* A process that takes away the files of dead ones takes nothing of the living. */
static void swept(struct end *end) {
    struct stat status;
    /* Not the one that this process's next device gets. */
    dead.slot = slot_of(end->qp->qp_num) + MAX_SLOTS / 2;
    do
        dead.slot = dead.slot % (MAX_SLOTS - 1) + 1;
    while (mkdir(device_path(dead.slot, ""), 0700) != 0);
    int fd = area_make(dead.slot);
    CHECK_IS(fstat(fd, &status), 0);
    close(fd);
    dead.area = status.st_ino;
    struct ibv_context *context = device();
    CHECK_IS(dead.area, 0);
    CHECK_IS(access(device_path(dead.slot, "area"), F_OK), 0);
    device_remove(dead.slot);
    CHECK_IS(ibv_close_device(context), 0);
}

/* Overwrites what processes show each other by nonsense. */
static void spoil(unsigned seed) {
    const char *folder = getenv("TARN_VERBS_DIR");
    DIR *devices = opendir(folder);
    CHECK(folder && devices);
    srand(seed);
    for (struct dirent *device; (device = readdir(devices));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, device->d_name);
        DIR *files = device->d_name[0] == '.' ? NULL : opendir(path);
        for (struct dirent *file; files && (file = readdir(files));) {
            struct stat status;
            snprintf(path, sizeof path, "%s/%s/%s", folder, device->d_name, file->d_name);
            int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
            if (fd < 0 || fstat(fd, &status) != 0 || !(S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode))) {
                if (fd >= 0)
                    close(fd);
                continue;
            }
            for (int i = 0; i < 200; i++) {
                uint32_t word = rand() % 3 ? (uint32_t)rand() * 3u : (uint32_t)rand() % 8;
                size_t room = S_ISFIFO(status.st_mode) ? 0 : (size_t)status.st_size / 4 - 1;
                size_t at = room ? (rand() % 2 ? (size_t)rand() % 64 : (size_t)rand()) % room : 0;
                if (room ? pwrite(fd, &word, 4, (off_t)at * 4) < 0 : i < 3 && write(fd, &word, 4) < 0)
                    break;
            }
            close(fd);
        }
        if (files)
            closedir(files);
    }
    closedir(devices);
}

/* Makes it a datagram to that one. */
static void address(struct ibv_send_wr *wr, struct ibv_ah *ah, struct name to) {
    wr->opcode = IBV_WR_SEND;
    wr->wr.ud.ah = ah;
    wr->wr.ud.remote_qpn = to.qpn;
    wr->wr.ud.remote_qkey = QKEY;
}

/* Nonsense in shared memory may fail any request; it ends nobody, and nothing comes where nobody
 * has registered anything. */
static void spoilt(struct end *end, const char *what, enum ibv_qp_type type, bool shares) {
    unsigned char *guard = malloc(MEMORY);
    CHECK(guard);
    memset(guard, 'g', MEMORY);
    for (unsigned seed = 0; seed < 15; seed++) {
        struct ibv_wc wc[16];
        struct ibv_srq *srq = shares ? shared_make(end->pd, 64) : NULL;
        renew(end, type, srq);
        struct name name = begin(what, end);
        struct ibv_ah *ah = way(end, name);
        for (uint64_t n = 0; n < 20; n++)
            give(end, n, 0, 100);
        CHECK_IS(ibv_req_notify_cq(end->cq, 0), 0);
        for (int i = 0; i < 20; i++) {
            struct ibv_sge sge = piece(end, 0, 100);
            struct ibv_send_wr *bad,
                wr = {.sg_list = &sge,
                      .num_sge = 1,
                      .opcode =
                          (enum ibv_wr_opcode[]){IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND}[i % 3],
                      .wr.rdma = {name.address, name.rkey}};
            if (type == IBV_QPT_UD)
                address(&wr, ah, name);
            ibv_post_send(end->qp, &wr, &bad);
            spoil(seed * 20 + (unsigned)i);
            CHECK(ibv_poll_cq(end->cq, 16, wc) >= 0);
        }
        /* It has not crashed, either. */
        CHECK_IS(waitpid(other, NULL, WNOHANG), 0);
        kill_other();
        renew(end, IBV_QPT_RC, NULL);
        CHECK(!srq || ibv_destroy_srq(srq) == 0);
        CHECK_IS(ibv_destroy_ah(ah), 0);
        for (size_t i = 0; i < MEMORY; i++)
            CHECK_IS(guard[i], 'g');
    }
    free(guard);
    /* The damaged area does not allow an orderly end. */
    puts("ok");
    fflush(stdout);
    _exit(0);
}

static void nonsense(struct end *end) { spoilt(end, "writer", IBV_QPT_RC, false); }

static void nonsense_lost(struct end *end) { spoilt(end, "careless-uc", IBV_QPT_UC, false); }

static void nonsense_datagrams(struct end *end) { spoilt(end, "careless-ud", IBV_QPT_UD, false); }

static void nonsense_shared(struct end *end) { spoilt(end, "careless", IBV_QPT_RC, true); }

/* A child has nothing of its parent's device, and its end takes nothing away. */
static void child(struct end *end) {
    struct end peer = end_make(end->context, ALL);
    ends_join(end, &peer);
    struct ibv_srq *srq = shared_make(end->pd, 1);
    pid_t pid = fork();
    if (pid == 0) {
        struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad;
        struct ibv_recv_wr receive = {0}, *bad_receive;
        struct ibv_wc wc;
        CHECK_IS(ibv_post_send(end->qp, &wr, &bad), EPERM);
        CHECK_IS(ibv_post_recv(end->qp, &receive, &bad_receive), EPERM);
        CHECK_IS(ibv_post_srq_recv(srq, &receive, &bad_receive), EPERM);
        CHECK_IS(ibv_destroy_srq(srq), EPERM);
        CHECK_IS(ibv_poll_cq(end->cq, 1, &wc), -1);
        CHECK_IS(ibv_destroy_qp(end->qp), EPERM);
        CHECK_IS(ibv_dereg_mr(end->mr), EPERM);
        CHECK(!ibv_alloc_pd(end->context) && errno == EPERM);
        exit(0);
    }
    int status;
    CHECK_IS(waitpid(pid, &status, 0), pid);
    CHECK_IS(status, 0);
    give(&peer, 1, 0, 10);
    message(end, 2, 0, 10);
    CHECK_IS(ends(end->cq, 2), IBV_WC_SUCCESS);
    CHECK_IS(ends(peer.cq, 1), IBV_WC_SUCCESS);
    CHECK_IS(ibv_destroy_srq(srq), 0);
    end_drop(&peer);
}

/* Both are told of each other, but belong to two users. */
static void stranger(struct end *end) {
    char byte;
    write_name(stdout, end_name(end));
    end_join(end, read_name(stdin));
    CHECK(read(0, &byte, 1) >= 0);
    for (size_t i = 0; i < MEMORY; i++)
        CHECK_IS(end->memory[i], 0);
}

/* Writes on, and sends, after any error: the test may spoil anything. */
static void go_on(const struct end *end, struct name name, bool sends) {
    struct ibv_wc wc;
    struct ibv_ah *ah = way(end, name);
    for (int i = 0;; i++) {
        bool message = sends && i % 4 != 0;
        struct ibv_sge sge = piece(end, 0, message ? 100 : MEMORY);
        struct ibv_send_wr wr = {.sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = message ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
                                 .wr.rdma = {name.address, name.rkey}},
                           *bad;
        if (end->qp->qp_type == IBV_QPT_UD)
            address(&wr, ah, name);
        ibv_post_send(end->qp, &wr, &bad);
        ibv_poll_cq(end->cq, 1, &wc);
    }
}

static void other_end(const char *what, struct end *end) {
    /* If the first one finds an error, nobody else ends it. */
    CHECK_IS(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
    const char *kind = strrchr(what, '-');
    if (kind)
        renew(end, strcmp(kind, "-uc") == 0 ? IBV_QPT_UC : IBV_QPT_UD, NULL);
    write_name(stdout, end_name(end));
    struct name name = read_name(stdin);
    if (end->qp->qp_type != IBV_QPT_UD)
        end_join(end, name);
    if (strcmp(what, "datagrams-ud") == 0) {
        struct ibv_ah *ah = way(end, name);
        struct ibv_sge sge = piece(end, 0, DATAGRAM);
        memset(end->memory, (int)(end->qp->qp_num >> 12), DATAGRAM);
        for (uint32_t n = 1;; n++) {
            struct ibv_send_wr wr = {.wr_id = n, .sg_list = &sge, .num_sge = 1, .imm_data = n};
            address(&wr, ah, name);
            wr.opcode = IBV_WR_SEND_WITH_IMM;
            post(end, wr);
            CHECK_IS(ends(end->cq, n), IBV_WC_SUCCESS);
        }
    }
    if (strcmp(what, "sender") == 0) {
        struct ibv_sge sge = piece(end, 0, BUFFER);
        memset(end->memory, (int)(end->qp->qp_num >> 12), BUFFER);
        for (uint32_t n = 0;; n++) {
            post(end, (struct ibv_send_wr){.wr_id = n,
                                           .sg_list = &sge,
                                           .num_sge = 1,
                                           .opcode = IBV_WR_SEND_WITH_IMM,
                                           .imm_data = n});
            CHECK_IS(ends(end->cq, n), IBV_WC_SUCCESS);
        }
    }
    if (strncmp(what, "careless", 8) == 0)
        go_on(end, name, true);
    if (strcmp(what, "stranger") == 0) {
        fill(end->memory, 100, 1);
        remote(end, IBV_WR_RDMA_WRITE, 1, 0, 100, name);
        CHECK_IS(ends(end->cq, 1), IBV_WC_RETRY_EXC_ERR);
        puts("ok");
        exit(0);
    }
    if (strcmp(what, "leaving") == 0) {
        message(end, 0, 0, 1);
        CHECK_IS(ends(end->cq, 0), IBV_WC_SUCCESS);
        write_name(stdout, name);
    }
    bool writes = strncmp(what, "writer", 6) == 0;
    if (strcmp(what, "words") == 0) {
        for (;;) {
            struct ibv_sge sge = piece(end, 0, 8);
            post(end, (struct ibv_send_wr){.sg_list = &sge,
                                           .num_sge = 1,
                                           .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                           .wr.atomic = {name.address, 1, 0, name.rkey}});
            CHECK_IS(next(end->cq).status, IBV_WC_SUCCESS);
        }
    }
    if (writes) {
        fill(end->memory, MEMORY, 5);
        message(end, 0, 0, 100);
        struct ibv_wc wc;
        while (ibv_poll_cq(end->cq, 1, &wc) == 0)
            ;
        go_on(end, name, false);
    }
    pause();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*test)(struct end *);
    } all[] = {{"target", target},
               {"writer", writer},
               {"given-back", given_back},
               {"words", words},
               {"stranger", stranger},
               {"nonsense", nonsense},
               {"shared", shared},
               {"writer-lost", writer_uc},
               {"datagrams", datagrams},
               {"leaving", leaving},
               {"swept", swept},
               {"nonsense-lost", nonsense_lost},
               {"nonsense-datagrams", nonsense_datagrams},
               {"nonsense-shared", nonsense_shared},
               {"child", child}};
    self = argv[0];
    signal(SIGPIPE, SIG_IGN);
    struct ibv_context *context = device();
    struct end end = end_make(context, ALL);
    if (argc > 2) {
        other_end(argv[1], &end);
        return 1;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (argc > 1 && strcmp(argv[1], all[i].name) == 0) {
            all[i].test(&end);
            end_drop(&end);
            CHECK_IS(ibv_close_device(context), 0);
            puts("ok");
            return 0;
        }
    return 2;
}
