/*
 * tarn.h: a program's requests to the tarnd of its node: copy, move and remove files between dataspaces, its own memory and
 * outside, while it continues to compute.
 *
 * Link with -ltarn. No threads, no signal handlers, no exit: every call does its work in the caller's thread. One
 * connection may be used by many threads at once. It belongs to the process that made it: in a child of fork() its calls
 * give TARN_EUNSUPPORTED, and tarn_close() leaves the parent's as it is. The child connects for itself. To tarnd a connection has ended when
 * all processes that have it have closed it, ended, or started another program.
 *
 * Every function that returns int gives 0 or one of the codes below; tarn_last_error() then says why, in words. Texts
 * are UTF-8. A structure whose `size` is larger than this library knows is refused, so that nothing new is silently
 * left out.
 *
 * docs/guide/tasks.md explains the words. Sizes are bytes, times nanoseconds, rates bytes a second. The man page of a call lists its errors.
 * In the examples must() ends the program unless it is given TARN_OK. They need a tarnd, so the tests compile them only.
 */
#ifndef TARN_H
#define TARN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why something did not happen. The numbers never change. */
enum tarn_code {
    TARN_OK = 0,
    TARN_EINVALID = 1,      /* the request makes no sense */
    TARN_EBUSY = 2,         /* a queue is full: try again later */
    TARN_ENOTFOUND = 3,     /* no such task, space, region, job or path */
    TARN_EDENIED = 4,       /* not allowed for this user */
    TARN_ENOSPACE = 5,      /* no space at the destination */
    TARN_EQUOTA = 6,        /* the user's or the job's quota is used up */
    TARN_EEXISTS = 7,       /* the destination is there already */
    TARN_ECHANGED = 8,      /* the source changed while it was read */
    TARN_ECORRUPT = 9,      /* the data read is not the data written */
    TARN_EIO = 10,          /* another input or output error */
    TARN_ECANCELLED = 11,   /* the task was cancelled */
    TARN_EDEPENDENCY = 12,  /* a task that it follows has failed */
    TARN_EUNSUPPORTED = 13, /* tarnd cannot do this */
    TARN_ELOST = 14,        /* the connection to tarnd, or to another node, is gone */
    TARN_ETIMEDOUT = 15,    /* the time was over before that */
    TARN_EVERSION = 16,     /* tarnd and this library speak different versions */
    TARN_EINTERNAL = 17,    /* an error inside tarn */
    TARN_EVOLATILE = 18     /* the medium is memory, which does not outlive a loss of power */
};

/* A connection to tarnd. */
struct tarn_connection;

/* The place that data comes from or goes to. */
enum tarn_place_kind {
    TARN_NOWHERE = 0,
    TARN_SPACE = 1,   /* space, path: below the dataspace's root */
    TARN_MEMORY = 2,  /* region, offset, length: memory that was registered */
    TARN_NODE = 3,    /* node, space, path: a dataspace of another node */
    TARN_EXTERNAL = 4 /* path: absolute, a file:// URL, or of an object store s3://BUCKET/KEY or s3://BUCKET/PREFIX/ */
};

struct tarn_place {
    int32_t kind; /* enum tarn_place_kind */
    uint32_t region;
    uint64_t offset;   /* bytes */
    uint64_t length;   /* bytes */
    const char *node;  /* NULL where it is not needed */
    const char *space; /* NULL where it is not needed */
    const char *path;  /* NULL where it is not needed */
};

enum tarn_task_kind {
    TARN_NOTHING = 0, /* nothing; to wait for several tasks as one */
    TARN_COPY = 1,    /* from, to */
    TARN_MOVE = 2,    /* from, to: the copy is read again before the source is removed */
    TARN_REMOVE = 3   /* from */
};

enum tarn_verify {
    TARN_VERIFY_COPY = 0,     /* the data read was hashed, and that was written */
    TARN_VERIFY_NONE = 1,     /* nothing is proven */
    TARN_VERIFY_READBACK = 2, /* the destination was read again */
};

enum tarn_flags {
    TARN_DURABLE = 1, /* resumes after tarnd was started again */
    TARN_REPLACE = 2  /* a destination that exists is replaced */
};

/* A task. Begin with tarn_task_init(). */
struct tarn_task {
    uint32_t size;    /* sizeof(struct tarn_task) */
    int32_t kind;     /* enum tarn_task_kind */
    int32_t verify;   /* enum tarn_verify */
    uint32_t flags;   /* enum tarn_flags */
    int32_t priority; /* 0 to 255; 100 unless you say otherwise */
    uint32_t after_count;
    const uint64_t *after; /* tasks that must have ended well before; at most 64 */
    uint64_t deadline_ns;  /* from submission, nanoseconds; 0 for none */
    uint64_t rate;         /* bytes a second at most; 0 for no limit of its own */
    struct tarn_place from;
    struct tarn_place to;
};

/* How a task ended. */
struct tarn_outcome {
    uint64_t id;
    uint64_t bytes;       /* moved or removed */
    uint64_t nanoseconds; /* from its start to its end */
    int32_t code;         /* TARN_OK, or why it failed */
    uint8_t late;         /* 1 when it ended after its deadline */
    uint8_t has_checksum; /* 1 for a single file or memory that was hashed */
    uint8_t reserved[2];
    uint8_t checksum[16]; /* docs/reference/manifest-format.md, "The hash of a file" */
    char text[192];       /* why it failed; a text that does not fit ends in "..." */
};

enum tarn_state {
    TARN_UNKNOWN = 0, /* never given, of another user, or ended long ago */
    TARN_WAITING = 1, /* for tasks that it follows */
    TARN_QUEUED = 2,
    TARN_RUNNING = 3,
    TARN_DONE = 4,
    TARN_FAILED = 5,
    TARN_PAUSED = 6 /* not started until it is resumed */
};

/* How far a task is. */
struct tarn_status {
    uint64_t id;
    uint64_t done;   /* bytes */
    uint64_t all;    /* bytes; UINT64_MAX while not known */
    uint64_t left;   /* nanoseconds, by the rate of the last seconds; UINT64_MAX while not known */
    int32_t state;   /* enum tarn_state */
    uint32_t before; /* tasks of this user that run before it */
};

/* A dataspace. */
struct tarn_space {
    char name[65];
    uint8_t readable;
    uint8_t writable;
    uint8_t manageable;
    uint8_t reserved[4];
    uint64_t capacity; /* bytes */
    uint64_t quota;    /* bytes that one user may have; 0 for no bound but the capacity */
    uint64_t used;     /* bytes */
    uint64_t held;     /* bytes that running tasks have reserved */
    uint64_t own;      /* bytes of this user */
};

/* Counts of tarnd. */
struct tarn_stats {
    uint64_t waiting; /* tasks that wait for others, or are paused */
    uint64_t queued;
    uint64_t running;
    uint64_t done;   /* ended well since tarnd was started */
    uint64_t failed; /* failed or cancelled since then */
    uint64_t bytes;  /* moved since then */
    uint64_t left;   /* nanoseconds until all that run have ended; UINT64_MAX while not known */
};

/*
 * Connects to the tarnd at `socket`; NULL for that of $TARN_SOCKET. While none listens there, waits up to 5 s, if the socket's folder
 * exists: it may be starting. TARN_ELOST: nobody listens there; TARN_EDENIED: this user is refused.
 *
 *     struct tarn_connection *tarnd;
 *     must(tarn_connect(NULL, &tarnd));
 *     tarn_close(tarnd);
 */
int tarn_connect(const char *socket, struct tarn_connection **connection);
/* The same for a job that is registered with tarnd. */
int tarn_connect_job(const char *socket, uint64_t job, struct tarn_connection **connection);
/* Closes. Tasks continue. NULL is nothing. */
void tarn_close(struct tarn_connection *connection);

/*
 * A task without special options.
 *
 *     struct tarn_task task;
 *     tarn_task_init(&task);
 *     task.kind = TARN_REMOVE;
 *     task.flags = TARN_DURABLE;
 *     task.from = (struct tarn_place){.kind = TARN_SPACE, .space = "fast", .path = "old"};
 */
void tarn_task_init(struct tarn_task *task);

/*
 * Submits `count` tasks. `ids` gets each one's id, 0 where it was refused; `codes`, unless NULL, why. Returns TARN_OK when all
 * were taken, otherwise the first reason. Each task is taken or refused for itself, but for errors of the request: no connection,
 * a full queue (TARN_EBUSY), memory that is not registered (then nothing of that request is taken).
 *
 *     struct tarn_connection *tarnd;
 *     struct tarn_task copy;
 *     struct tarn_outcome outcome;
 *     uint64_t id;
 *     size_t ended;
 *     must(tarn_connect(NULL, &tarnd));
 *     tarn_task_init(&copy);
 *     copy.kind = TARN_COPY;
 *     copy.from = (struct tarn_place){.kind = TARN_EXTERNAL, .path = "/home/me/mesh"};
 *     copy.to = (struct tarn_place){.kind = TARN_SPACE, .space = "fast", .path = "mesh"};
 *     must(tarn_submit(tarnd, &copy, 1, &id, NULL));
 *     // the program computes meanwhile
 *     must(tarn_wait(tarnd, &id, 1, 0, 60 * 1000000000ll, &outcome, &ended));
 *     printf("%s: %llu bytes\n", tarn_code_text(outcome.code), (unsigned long long)outcome.bytes);
 *     tarn_close(tarnd);
 */
int tarn_submit(struct tarn_connection *connection, const struct tarn_task *tasks, size_t count, uint64_t *ids,
                int32_t *codes);

/* Waits until all (or, with `any`, at least one) of the tasks have ended, at most `timeout_ns` nanoseconds; 0 only
 * asks, a negative time waits for ever. `outcomes` has space for `count`, and `*ended` says how many were written:
 * tasks that are not known are left out. TARN_ETIMEDOUT when the time was over before; the outcomes of tasks that
 * have ended are there then too. With `any`, at most 1024 tasks. */
int tarn_wait(struct tarn_connection *connection, const uint64_t *ids, size_t count, int any, int64_t timeout_ns,
              struct tarn_outcome *outcomes, size_t *ended);

/*
 * How far tasks are; `status` has space for `count`. With tarnd and id as of tarn_submit:
 *
 *     struct tarn_status status;
 *     must(tarn_status(tarnd, &id, 1, &status));
 *     if (status.state == TARN_RUNNING)
 *         must(tarn_cancel(tarnd, &id, 1, NULL));
 */
int tarn_status(struct tarn_connection *connection, const uint64_t *ids, size_t count, struct tarn_status *status);

/* Asks for tasks to be cancelled; they end soon, and are waited for as others. `codes`, unless NULL: TARN_OK, or
 * TARN_ENOTFOUND, or TARN_EEXISTS for one that is over already. */
int tarn_cancel(struct tarn_connection *connection, const uint64_t *ids, size_t count, int32_t *codes);

/* Pauses tasks: they are not started, and those under way stop, give way to others and keep their progress; tarn_resume
 * continues them from there. `codes`, unless NULL: TARN_OK, TARN_ENOTFOUND, or TARN_EEXISTS for one that is over
 * already. */
int tarn_pause(struct tarn_connection *connection, const uint64_t *ids, size_t count, int32_t *codes);
int tarn_resume(struct tarn_connection *connection, const uint64_t *ids, size_t count, int32_t *codes);
/* The same for all tasks of a job, those that it submits later too (`on`: 1 pauses, 0 resumes); and for tarnd: it
 * starts nothing any more, tasks under way end, and submissions are taken. For the user that runs tarnd. */
int tarn_job_pause(struct tarn_connection *connection, uint64_t job, int on);
int tarn_pause_all(struct tarn_connection *connection, int on);

/*
 * Makes the first `length` bytes of a memfd (memfd_create(2)) a place of this connection's tasks. The descriptor may be closed afterwards;
 * map it MAP_SHARED to work with it.
 *
 *     int memfd = memfd_create("field", MFD_CLOEXEC);
 *     uint32_t region;
 *     if (memfd < 0 || ftruncate(memfd, 1 << 20) != 0)
 *         perror("memfd");
 *     must(tarn_memory_register(tarnd, memfd, 1 << 20, &region));
 *     struct tarn_place field = {.kind = TARN_MEMORY, .region = region, .length = 1 << 20};
 *     printf("%llu bytes can be copied\n", (unsigned long long)field.length);
 *     must(tarn_memory_unregister(tarnd, region));
 */
int tarn_memory_register(struct tarn_connection *connection, int memfd, uint64_t length, uint32_t *region);
/* Takes it back; TARN_EBUSY while tasks use it. */
int tarn_memory_unregister(struct tarn_connection *connection, uint32_t region);

/*
 * The dataspaces. `*count` is first the number for which `spaces` has space, and then the number of
 * dataspaces.
 *
 *     struct tarn_space spaces[16];
 *     size_t count = 16;
 *     must(tarn_spaces(tarnd, spaces, &count));
 *     for (size_t i = 0; i < count && i < 16; i++)
 *         printf("%s: %llu bytes used\n", spaces[i].name, (unsigned long long)spaces[i].used);
 */
int tarn_spaces(struct tarn_connection *connection, struct tarn_space *spaces, size_t *count);
/* Makes a dataspace of a folder (capacity and quota in bytes, 0 for no quota), changes its bounds, or forgets it (its
 * files stay). For those who may manage it. */
int tarn_space_make(struct tarn_connection *connection, const char *name, const char *folder, uint64_t capacity,
                    uint64_t quota);
int tarn_space_change(struct tarn_connection *connection, const char *name, const char *folder, uint64_t capacity,
                      uint64_t quota);
int tarn_space_remove(struct tarn_connection *connection, const char *name);

/* Registers a job (or changes its limits: `count` dataspaces and the bytes it may put there), and says which processes,
 * with all that they start, belong to it. For the user that runs tarnd. */
int tarn_job_register(struct tarn_connection *connection, uint64_t job, uint32_t user, const char *const *spaces,
                      const uint64_t *quotas, size_t count);
int tarn_job_unregister(struct tarn_connection *connection, uint64_t job);
/* A process of this node that runs; not process 1 (TARN_EINVALID), below which all others are. */
int tarn_job_add_process(struct tarn_connection *connection, uint64_t job, int32_t pid);
int tarn_job_remove_process(struct tarn_connection *connection, uint64_t job, int32_t pid);

/*
 * Counts of tarnd.
 *
 *     struct tarn_stats stats;
 *     must(tarn_stats(tarnd, &stats));
 *     printf("%llu tasks are done\n", (unsigned long long)stats.done);
 */
int tarn_stats(struct tarn_connection *connection, struct tarn_stats *stats);

/* The version of this library, such as "0.1.0"; never NULL. */
const char *tarn_version(void);
/* A short sentence for a code; never NULL. */
const char *tarn_code_text(int code);
/*
 * Why the last call of this thread failed; never NULL, valid until this thread's next call.
 *
 *     struct tarn_connection *other;
 *     int code = tarn_connect("/no/such/socket", &other);
 *     if (code != TARN_OK)
 *         fprintf(stderr, "%s: %s\n", tarn_code_text(code), tarn_last_error());
 */
const char *tarn_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
