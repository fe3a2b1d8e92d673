/*
 * phx.h: checkpoints of a simulation at the speed of its memory.
 *
 * All ranks of a program call phx_init, name the memory that they want to keep (phx_create_obj for new memory, phx_register_obj
 * for memory that they have), call phx_restart once, and phx_checkpoint_commit whenever their state is worth keeping.
 * docs/guide/checkpoints.md explains the words; each call has a man page.
 *
 * Link with -ltarn. Every function that returns int gives PHX_OK, PHX_DEGRADED (it was done, with a warning) or an error of enum
 * phx_code; phx_last_error() then gives the reason and the remedy, in words. Nothing here ends the program, touches a signal (but
 * PHX_MPROTECT does), or waits for ever. Calls may come from any thread, one at a time: a second one gets PHX_EBUSY (but those of
 * readers, at the end). In a child of fork() these calls give PHX_EUNSUPPORTED and do nothing: the checkpoints are the parent's.
 * The child has its own copies of the objects' content, and begins its own checkpoints where the parent had none.
 *
 * Sizes are bytes, times nanoseconds (`_ns`), rates bytes a second. The man page of a call lists its errors. In the examples must() ends the
 * program unless it is given PHX_OK or PHX_DEGRADED; those after phx_init() have an object "field" of 1000 doubles. The tests run them.
 */
#ifndef PHX_H
#define PHX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The outcome of a call. The numbers never change. */
enum phx_code {
    PHX_OK = 0,
    PHX_DEGRADED = 1,      /* done, with fewer copies than were asked for, or (once) with copies that go by TCP and not by libfabric */
    PHX_EINVALID = 2,      /* an argument makes no sense */
    PHX_EBUSY = 3,         /* another thread is in a call, or another program has this name */
    PHX_ENOTFOUND = 4,     /* no such object or version */
    PHX_EEXISTS = 5,       /* the key is taken, or phx_init was called before */
    PHX_ENOSPACE = 6,      /* no space on the persistent tier */
    PHX_ENOMEM = 7,        /* not enough memory */
    PHX_ECORRUPT = 8,      /* no undamaged copy is left of the wanted data */
    PHX_EIO = 9,           /* another input or output error */
    PHX_ETIMEDOUT = 10,    /* the time was over before that */
    PHX_ELOST = 11,        /* another rank is gone */
    PHX_EUNSUPPORTED = 12, /* this cannot be done here */
    PHX_ESHAPE = 13,       /* another number of ranks, and the object does not say how it is divided */
    PHX_EINIT = 14,        /* phx_init was not called, or phx_finalize was */
    PHX_EINTERNAL = 15     /* an error inside tarn */
};

/* The losses that a version survives (docs/guide/checkpoints.md, "What a version survives"). */
enum phx_level {
    PHX_COMMITTED = 0,  /* the end of the process */
    PHX_DURABLE = 1,    /* all of it is on the persistent tier */
    PHX_REPLICATED = 2, /* all of it is on another node too */
    PHX_FLUSHED = 3     /* it, or a newer one, is on the external store, verified, and named by `latest` there */
};

/* "the default value", for a number */
#define PHX_DEFAULT UINT64_MAX

/* The options of phx_init. Set all to zero but `size`, `rank` and `ranks` for the defaults. */
struct phx_options {
    uint32_t size;            /* sizeof(struct phx_options) */
    uint32_t rank;            /* which rank this is */
    uint32_t ranks;           /* how many there are: at least 1 */
    uint32_t replicas;        /* copies of staged versions, each on another node: 1 to 3; 0: 1 if ranks are on several nodes */
    const char *run;          /* the program's name on this node; NULL: $TARN_PHX_RUN, or "phx" */
    const char *tier;         /* a folder on the persistent tier; NULL: $TARN_PHX_TIER. Not made on the node's root disk */
    const char *memory;       /* a folder in memory; NULL: $TARN_PHX_MEMORY, or /dev/shm */
    const char *meet;         /* HOST:PORT of rank 0, where ranks are on several nodes; NULL: $TARN_PHX_MEET, or on this node */
    const char *key;          /* a file with 64 hexadecimal digits that only this user can read, or hex: and the digits; needed with meet; NULL: $TARN_PHX_KEY */
    const char *profile;      /* a slower persistent tier is emulated: a profile's name, or device=2.5GB/s; NULL: $TARN_PHX_PROFILE, or none */
    uint64_t staging;         /* bytes that may be staged; 0: half of the checkpoint; PHX_DEFAULT: all of it */
    uint64_t timeout_ns;      /* longest wait for other ranks; 0: 60 s */
    const int32_t *helpers;   /* processors that the helper thread may use; NULL: those of the program */
    uint32_t helper_count;    /* of them */
    uint32_t flags;           /* PHX_SAME_NODE and so on */
    uint32_t copies;          /* copies of all of a version, each on another node, in the background: 1 to 3; 0: none */
    uint32_t parity;          /* instead: ranks of a set (2 to 16, each on another node), of which any one is made again from the others; 0: none */
    uint64_t replicate_every; /* of so many versions one is kept so (copies, parity); 0: each */
    const char *external;     /* a folder on a store that outlives the nodes; NULL: $TARN_PHX_EXTERNAL, or there is none */
    uint64_t flush_every;     /* of so many versions one is flushed to it; 0: $TARN_PHX_FLUSH_EVERY, or none is */
    uint64_t flush_rate;      /* bytes a second that are written to it and read back; 0: $TARN_PHX_FLUSH_RATE, or as many as it takes */
    const char *transport;    /* how bytes go between nodes: tcp, libfabric:PROVIDER, or libfabric for the best there is; NULL: $TARN_PHX_TRANSPORT, or tcp */
};
#define PHX_SAME_NODE 1u    /* a buddy on the same node will do (for tests) */
#define PHX_NO_STAGING 2u   /* copy all to the persistent tier at once */
#define PHX_NO_HELPER 4u    /* no helper thread: the caller copies, and de-stages in its next call */
#define PHX_NO_REPLICAS 16u /* staged versions are on this node alone */
#define PHX_AUDIT 8u        /* bytes copied ahead are compared at the commit: finds writes that nobody sees */
/*
 * Writes are tracked by mprotect and a handler of SIGSEGV, which stays, as kernels before Linux 6.7 have nothing else. While an
 * object is copied ahead, system calls that write into it (read, recv, MPI by CMA, io_uring) then fail with EFAULT, or come back
 * short: programs that make such calls do not ask for it, or give those objects precopy = 1. phx_init(3) has more.
 */
#define PHX_MPROTECT 32u
/*
 * The content of objects is encrypted (AES-256-GCM) wherever versions are stored: on tiers, in memory that outlives the process,
 * on other nodes, on the external store; with the user's key, which `tarn key new` makes. Names, sizes and shapes are not.
 * $TARN_PHX_ENCRYPT=1 does the same. A restart refuses versions in clear then, unless $TARN_PHX_CLEAR is 1.
 */
#define PHX_ENCRYPT 64u

/* How an object is a part of something that all ranks have together. */
enum phx_shape_kind {
    PHX_OWN = 0,        /* it goes back to the rank that it came from */
    PHX_REPLICATED_OBJ = 1, /* the same on all ranks */
    PHX_BLOCK = 2,      /* a box of an array */
    PHX_IRREGULAR = 3   /* some rows, one rank's after another's */
};

#define PHX_MAX_DIMENSIONS 8

/* One dimension of a block, in elements. */
struct phx_dimension {
    uint64_t all;   /* of the whole array */
    uint64_t first; /* where this rank's box begins, its ghosts included */
    uint64_t count; /* of this box, its ghosts included */
    uint64_t ghost; /* how many at each end are copies of a neighbour's */
};

/*
 * The properties of an object; all zero is "keep it in checkpoints". A version is whole or none: of versions, persistence and
 * replicas the most that an object asks for counts, for all that is committed as long as that object is there.
 */
struct phx_properties {
    uint32_t size;        /* sizeof(struct phx_properties) */
    uint8_t transient;    /* 1: not part of checkpoints */
    uint8_t precopy;      /* 0: where it pays; 1: never; 2: always */
    uint8_t dma;          /* 1: devices write into it: it is never copied ahead */
    uint8_t persistence;  /* enum phx_level: the level of a version when its commit returns; from PHX_DURABLE on nothing is staged */
    uint32_t versions;    /* how many are kept beside the newest, at most 13; 0: one */
    int32_t shape;        /* enum phx_shape_kind */
    uint32_t dimensions;  /* of a block */
    uint64_t row;         /* bytes of a row of an irregular object */
    struct phx_dimension dimension[PHX_MAX_DIMENSIONS]; /* the slowest first, as in C; a Fortran array's last first */
    uint32_t replicas;    /* copies of staged versions, each on another node: 1 to 3; 0: as in phx_options */
    uint32_t reserved;    /* 0 */
};

/* A version: the number of the program's start that made it, and its number among the commits of that start. */
struct phx_version {
    uint64_t generation;
    uint64_t number;
};

/* A version that can be had. */
struct phx_version_info {
    struct phx_version version;
    uint64_t bytes; /* of this rank's objects */
    uint32_t ranks; /* that wrote it */
    int32_t level;  /* enum phx_level: the least of all ranks */
};

/* The work since phx_init, by this rank. */
struct phx_stats {
    uint32_t size;              /* sizeof(struct phx_stats) */
    int32_t power_fail;         /* what the persistent tier keeps without power: 0 nothing, 1 what was synced, 2 what was flushed, 3 all */
    uint64_t commits;
    uint64_t commit_ns;         /* in phx_checkpoint_commit, all of them */
    uint64_t waited_ns;         /* of it, for the last version to be de-staged here and by other ranks, and for persistence */
    uint64_t bytes;             /* committed */
    uint64_t staged_bytes;      /* of it, to memory first */
    uint64_t ahead_bytes;       /* of it, copied before the commit and not written since */
    uint64_t copied_twice_bytes;/* copied ahead in vain */
    uint64_t destage_ns;        /* by the helper */
    uint64_t last_commit_ns;
    uint64_t last_staged_bytes;
    uint64_t last_destage_ns;
    uint64_t persistent_rate;   /* bytes a second, as measured */
    uint64_t memory_rate;       /* bytes a second, as measured */
    uint64_t degraded;          /* commits with fewer copies than asked for */
    uint64_t damaged_chunks;    /* found while de-staging, and damaged versions that a restart passed over */
    uint64_t restored_bytes;
    uint64_t restore_ns;
    uint64_t replicated;        /* versions of which this rank keeps what it is to keep for others */
    uint64_t bare;              /* those of which it could not */
    uint64_t flushed;           /* versions of which this rank's part went to the external store */
    uint64_t flushes_skipped;   /* versions that did not, as one was being flushed when their turn came */
    uint64_t flush_failed;      /* versions that could not be flushed */
    uint64_t last_flush_ns;
    uint64_t pinned;            /* slots that were passed over, as readers (phx_open_version) have them */
    uint64_t rma_put_bytes;     /* kept by ranks of other nodes, to whose memory they were written by libfabric */
    uint64_t tcp_put_bytes;     /* the same, sent by TCP */
    uint64_t rma_fetched_bytes; /* read from ranks of other nodes by libfabric */
    uint64_t tcp_fetched_bytes; /* the same, by TCP */
};

/*
 * Begins. All ranks call it. PHX_EBUSY: another program has the run's name; PHX_EINVALID: an option makes no sense, or the tier is missing.
 *
 *     struct phx_options options = {.size = sizeof options, .ranks = 1, .run = "heat"};
 *     must(phx_init(&options));
 */
int phx_init(const struct phx_options *options);

/*
 * Memory for an object of `bytes` bytes, which is a multiple of `unit`, the size of an element. It is zero. PHX_EEXISTS: the key is taken;
 * PHX_ENOSPACE, PHX_ENOMEM: there is no space for all objects.
 *
 *     struct phx_properties kept = {.size = sizeof kept, .versions = 3, .persistence = PHX_DURABLE};
 *     void *memory;
 *     must(phx_create_obj("mesh", 1000 * sizeof(double), sizeof(double), &kept, &memory));
 *     ((double *)memory)[999] = 1.0;
 */
int phx_create_obj(const char *key, size_t bytes, size_t unit, const struct phx_properties *properties, void **memory);

/*
 * Makes an object of memory that the program has, and keeps until phx_destroy_obj or phx_finalize. Errors as of phx_create_obj.
 *
 *     static int step;
 *     must(phx_register_obj("step", &step, sizeof step, sizeof step, NULL));
 */
int phx_register_obj(const char *key, void *memory, size_t bytes, size_t unit, const struct phx_properties *properties);

/*
 * Gives the address and the size of a created or registered object. Any of the results may be NULL. PHX_ENOTFOUND: there is no
 * such object.
 *
 *     void *memory;
 *     size_t bytes;
 *     must(phx_get_obj("field", &memory, &bytes));
 *     printf("%zu doubles\n", bytes / sizeof(double));
 */
int phx_get_obj(const char *key, void **memory, size_t *bytes);

/*
 * Gives a created object another size; its content stays, as far as it fits. It may move.
 *
 *     void *memory;
 *     must(phx_resize_obj("field", 2000 * sizeof(double), &memory));
 */
int phx_resize_obj(const char *key, size_t bytes, void **memory);

/*
 * Forgets an object; memory that was created for it is gone. Versions that have it keep it. PHX_ENOTFOUND: there is no such object.
 *
 *     must(phx_destroy_obj("field"));
 */
int phx_destroy_obj(const char *key);

/*
 * Keeps the state of all objects. All ranks call it; none waits for the others except for space, and for the persistence that
 * objects ask for. `version` may be NULL. One that fails is counted: all ranks continue with the next, and none tries again
 * alone.
 *
 *     struct phx_version version;
 *     int code = phx_checkpoint_commit(&version);
 *     must(code);
 *     if (code == PHX_DEGRADED)
 *         fprintf(stderr, "fewer copies: %s\n", phx_last_error());
 *     printf("version %llu.%llu\n", (unsigned long long)version.generation, (unsigned long long)version.number);
 */
int phx_checkpoint_commit(struct phx_version *version);

/*
 * Fills all objects from a version (NULL: the newest that all ranks can have). All ranks call it, with the same objects, before their first
 * commit. PHX_ENOTFOUND when there is none: a fresh start. PHX_EINVALID when the version has an object that is not there now, which it and
 * all later versions would lose: create it, and destroy it after the restart if it is not needed. `restored` may be NULL.
 *
 *     int code = phx_restart(NULL, NULL);
 *     if (code != PHX_ENOTFOUND)
 *         must(code);
 */
int phx_restart(const struct phx_version *version, struct phx_version *restored);

/*
 * The versions that phx_restart could take, newest last. `count` is how many fit into `versions`, and then how many there are. All ranks
 * call it.
 *
 *     struct phx_version_info versions[16];
 *     size_t count = 16;
 *     must(phx_versions(versions, &count));
 *     for (size_t i = 0; i < count && i < 16; i++)
 *         printf("%llu bytes of %u ranks\n", (unsigned long long)versions[i].bytes, versions[i].ranks);
 */
int phx_versions(struct phx_version_info *versions, size_t *count);

/*
 * Waits until a version has a level (enum phx_level), for all ranks; at most `timeout_ns` nanoseconds, or as long as the options
 * say if it is 0. PHX_ETIMEDOUT: it has not; PHX_EUNSUPPORTED: the options bring no versions there.
 *
 *     struct phx_version version;
 *     must(phx_checkpoint_commit(&version));
 *     must(phx_wait(&version, PHX_DURABLE, 10 * 1000000000ull));
 */
int phx_wait(const struct phx_version *version, int level, uint64_t timeout_ns);

/*
 * Whether so many nanoseconds have gone by since the last commit, or phx_init: 1 or 0, by the clock of rank 0, so that all ranks commit or
 * none. All ranks call it, and wait for each other. `tarn ckpt model` advises on the interval.
 *
 *     int due;
 *     must(phx_due(600 * 1000000000ull, &due));
 *     if (due)
 *         must(phx_checkpoint_commit(NULL));
 */
int phx_due(uint64_t interval_ns, int *due);

/*
 * The work of this rank since phx_init.
 *
 *     struct phx_stats stats = {.size = sizeof stats};
 *     must(phx_stats(&stats));
 *     printf("%llu commits took %llu ns\n", (unsigned long long)stats.commits, (unsigned long long)stats.commit_ns);
 */
int phx_stats(struct phx_stats *stats);

/*
 * Ends: staged versions are de-staged, memory of created objects is gone. The versions stay. It does not wait for a flush under
 * way: phx_wait does that.
 *
 *     must(phx_finalize());
 */
int phx_finalize(void);

/*
 * For other programs of the node: versions of a run, mapped in place, while it runs or after it has ended. No phx_init is needed,
 * and these calls may come from any threads at once, and from forked children: each closes for itself what was open.
 */

/* A version that is pinned: it stays as it is until phx_close_version, or the end of the process. */
struct phx_reader;

/* as `flags` of phx_open_version */
#define PHX_UNVERIFIED 1u /* objects are not compared with their checksums when they are first mapped */

/*
 * Pins a version of `run` (NULL: $TARN_PHX_RUN, or "phx") on `tier` (NULL: $TARN_PHX_TIER): on all ranks that are on this node. NULL is the
 * newest that all of them have durable. PHX_ENOTFOUND: there is none.
 *
 *     struct phx_reader *reader;
 *     struct phx_version_info version;
 *     const void *field;
 *     size_t bytes;
 *     struct phx_version committed; // by another program, usually
 *     must(phx_checkpoint_commit(&committed));
 *     must(phx_wait(&committed, PHX_DURABLE, 0));
 *     must(phx_open_version("heat", NULL, NULL, 0, &reader));
 *     must(phx_reader_version(reader, &version, NULL, NULL));
 *     must(phx_map_obj(reader, 0, "field", &field, &bytes, NULL));
 *     printf("%u ranks, %zu bytes, the first is %g\n", version.ranks, bytes, *(const double *)field);
 *     must(phx_close_version(reader));
 */
int phx_open_version(const char *run, const char *tier, const struct phx_version *version, uint32_t flags,
                     struct phx_reader **reader);

/* Which version it is: in `version`, `bytes` is of all ranks that are here. `count` is how many of these fit into `ranks`, and then how
 * many there are. Any of the results may be NULL. */
int phx_reader_version(const struct phx_reader *reader, struct phx_version_info *version, uint32_t *ranks,
                       size_t *count);

/* Gives the address at which an object of a rank can be read, nothing copied, until the reader is closed; `bytes` and `unit`
 * may be NULL. To write there ends the program. */
int phx_map_obj(const struct phx_reader *reader, uint32_t rank, const char *key, const void **memory, size_t *bytes,
                size_t *unit);

/* Ends it: its mapped memory is gone. */
int phx_close_version(struct phx_reader *reader);

/*
 * Why this thread's last call did not give PHX_OK, in words.
 *
 *     int code = phx_destroy_obj("none");
 *     if (code > PHX_DEGRADED)
 *         fprintf(stderr, "%s: %s\n", phx_code_text(code), phx_last_error());
 */
const char *phx_last_error(void);

/* A code in words. */
const char *phx_code_text(int code);

/*
 * For what is built on this, as phx_mpi.h is: phx_last_error() says `why` in this thread from now on. Gives `code`.
 *
 *     int code = phx_fail(PHX_EINVALID, "the mesh has no points");
 *     printf("%d: %s\n", code, phx_last_error());
 */
int phx_fail(int code, const char *why);

#ifdef __cplusplus
}
#endif
#endif
