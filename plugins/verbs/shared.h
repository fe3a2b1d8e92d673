/*
 * The state that processes with tarn's RDMA device show each other, in files of a folder of their user
 * (docs/reference/formats.md#rdma-devices). A reader copies a value once and checks the copy: any byte
 * may be wrong.
 */
#ifndef TARN_VERBS_SHARED_H
#define TARN_VERBS_SHARED_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define AREA_MAGIC 0x314352454e524154u /* "TARNERC1": an area of version 1 */
#define SRQ_MAGIC 0x325352454e524154u
#define QUEUE_MAGIC 0x345150454e524154u

/* A QP number: the device's slot (12 bits), how often the place was used (2), the place (10). No slot is 0.
 */
#define MAX_SLOTS 4096u
#define MAX_QPS 1024u
#define MAX_SRQS 256u
#define MAX_CQS 1024u
#define MAX_MRS 4096u
#define MAX_CHANNELS 256u
#define MAX_PARTITIONS 64u
/* Entries of a send or a receive queue: 5 MiB of the one, 2.5 MiB of the other. */
#define MAX_WR 8192u
#define MAX_SGE 16u
#define MAX_INLINE 256u
/* Bytes of a message: verbs' lengths have 31 bits. */
#define MAX_MESSAGE 0x80000000u
/* Bytes of a datagram: one packet at the port's MTU. */
#define MAX_DATAGRAM 4096u
/* Of a partition's name: a path. */
#define NAME_BYTES 4096u

/* Locks of open file descriptions, which go with their holder: bytes of the file of an area. First of
 * 8-byte words of its process, by address; then of shared receive queues, by place; then of UD queue
 * pairs; then of the others, for reading: the connected peer has it. */
#define WORD_LOCKS 65536
#define SRQ_LOCKS WORD_LOCKS
#define UD_LOCKS (SRQ_LOCKS + (int)MAX_SRQS)
#define LINK_LOCKS (UD_LOCKS + (int)MAX_QPS)

static inline uint32_t slot_of(uint32_t qpn) { return qpn >> 12 & (MAX_SLOTS - 1); }
static inline uint32_t place_of(uint32_t qpn) { return qpn & (MAX_QPS - 1); }

/* A registered range, which is free while its key is 0. The owner changes the rest of it only then, and while
 * no peer is busy. */
struct shared_mr {
    _Atomic uint32_t key; /* its place in the lower 12 bits */
    uint32_t access;
    uint32_t pd;
    uint32_t partition; /* 0: memory; else of which partition, from 1 on */
    uint64_t start;     /* its address for verbs */
    uint64_t length;
    uint64_t address; /* in the owner's memory; of a partition 0 */
    uint64_t sum;     /* mr_sum: a region with a wrong one is none */
};

/* FNV-1a, by words. */
static inline uint64_t mr_sum(uint32_t key, const struct shared_mr *mr) {
    const uint64_t words[] = {(uint64_t)mr->access << 32 | key, (uint64_t)mr->partition << 32 | mr->pd,
                              mr->start, mr->length, mr->address};
    uint64_t sum = 0xcbf29ce484222325u;
    for (int i = 0; i < 5; i++)
        sum = (sum ^ words[i] ^ words[i] >> 29) * 0x100000001b3u;
    return sum ^ sum >> 32;
}

/* Whether a queue's next completion is to be reported, and where. */
struct shared_cq {
    _Atomic uint32_t armed;   /* enum arm */
    _Atomic uint32_t channel; /* the number of its pipe, from 1 on; 0: none */
    _Atomic uint32_t id;      /* the number written to the pipe */
};

enum arm { ARM_NONE, ARM_SOLICITED, ARM_ANY };

struct shared_partition {
    char name[NAME_BYTES];
    uint32_t level;            /* enum dsa_level of writes */
    uint32_t accepts_volatile; /* 1: persistent writes may go to volatile memory */
};

/* SLOT/area: a device that a process has opened, locked (flock) for as long as that is there. */
struct area {
    uint64_t magic;
    uint64_t pid_namespace; /* the inode of the namespace in which pid means something */
    uint64_t started;       /* of the process, in ticks since the system's start: pids are used again */
    int64_t pid;
    struct shared_cq cqs[MAX_CQS];
    struct shared_mr mrs[MAX_MRS];
    struct shared_partition partitions[MAX_PARTITIONS];
};

/* A receive request, and its outcome. */
struct slot {
    /* By the owner, before tail passes it. */
    uint32_t num_sge;
    uint32_t reserved;
    struct ibv_sge sge[MAX_SGE];
    /* By the peer, before done passes it. */
    uint32_t status;
    uint32_t opcode;
    uint32_t byte_len;
    uint32_t imm_data;
    uint32_t wc_flags;
    uint32_t qpn; /* which queue pair has received: they may share the ring */
    uint32_t src_qp;
    uint32_t sl;
};

/* Receive requests. */
struct ring {
    uint32_t entries;      /* a power of two */
    _Atomic uint32_t tail; /* posted, by the owner */
    _Atomic uint32_t done; /* ended, by the peer */
    uint32_t reserved;
    struct slot slots[];
};

/* SLOT/qPLACE: a queue pair. */
struct queue_area {
    uint64_t magic;
    uint32_t qpn;
    uint32_t pd;
    uint32_t recv_cq;
    uint32_t type; /* enum ibv_qp_type */
    uint32_t srq;  /* the place of its shared receive queue, from 1 on; 0: it has a ring of its own */
    /* By the owner. */
    _Atomic uint32_t state; /* enum ibv_qp_state; RESET also when it is gone */
    _Atomic uint32_t dest_qpn;
    _Atomic uint32_t access;
    _Atomic uint32_t rnr_timer;
    _Atomic uint32_t qkey;
    /* By the peer that dest_qpn names; of a UD queue pair by the holder of its lock, which stands for
     * busy. */
    _Atomic uint32_t busy;  /* odd while it uses the owner's memory, or this */
    _Atomic uint32_t fault; /* 1: it was refused something, so the queue pair is in error */
    struct ring ring;
};

/* SLOT/sPLACE: a shared receive queue, whose ring peers of several queue pairs fill, each while it has the
 * lock.
 */
struct srq_area {
    uint64_t magic;
    uint32_t pd;
    uint32_t reserved;
    struct ring ring;
};

/* Whether a key of a device allows this to a range; if so *found is a copy of the registered region. */
static inline bool mr_allows(const struct area *area, uint32_t key, uint32_t pd, uint32_t access, uint64_t at,
                             uint64_t length, struct shared_mr *found) {
    /* Each field is read once: the checked value is the one that is used. */
    const volatile struct shared_mr *mr = &area->mrs[key % MAX_MRS];
    if (key == 0 || atomic_load(&mr->key) != key)
        return false;
    found->access = mr->access;
    found->pd = mr->pd;
    found->partition = mr->partition;
    found->start = mr->start;
    found->length = mr->length;
    found->address = mr->address;
    return mr->sum == mr_sum(key, found) && found->pd == pd && (found->access & access) == access &&
           at >= found->start && at - found->start <= found->length &&
           length <= found->length - (at - found->start) && found->partition <= MAX_PARTITIONS;
}

#endif
