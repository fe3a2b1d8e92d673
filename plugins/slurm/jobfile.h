/* jobfile.h: tarnd's description of a job on this node, in /run/tarn/jobs/<job>. docs/internals/site.md
 * has the format. */
#ifndef TARN_JOBFILE_H
#define TARN_JOBFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JOB_BYTES = 262144, /* of a file: so many mounts, with paths of 200 bytes */
    JOB_MOUNTS = 1024,  /* their names fit into one variable of 128 KiB, and binding them takes some 30 ms */
    JOB_NAME = 64,      /* bytes of a dataset's name, as in a workflow file */
    JOB_ROOTS = 8,      /* stores of a node */
    JOB_PATH = 1024,    /* bytes of a root, and of a path below it */
    JOB_NODE = 255,     /* bytes of a node's name */
    JOB_PIECES = 120000 /* bytes of the names of a partition's pieces, each with its end: one variable */
};

/* Why something failed, as a sentence. */
struct why {
    char text[2048];
};

/* Sets it; false, to be returned. */
__attribute__((format(printf, 2, 3))) bool refuse(struct why *why, const char *format, ...);

struct job_mount {
    const char *name; /* of the dataset, or of the partition */
    const char *path; /* below its root; begins with the owner's folder */
    uint32_t owner;   /* a user's number, or a group's */
    size_t root;      /* which one */
    bool project;     /* it is a group's */
    bool writable;
    bool checkpoints; /* it is the folder of the job's checkpoints, and `name` the program's for libtarn */
    bool phx;         /* they are libtarn's */
    bool partition;   /* it is the folder of a partition of this name, of the job's own */
    bool clear;       /* it is below the job's memory, not below a store */
    uint32_t block;   /* of a partition that is spread over the job's nodes: bytes of a block; else 0 */
    const char
        *nodes; /* of such a one: the nodes with its pieces, in their order, with commas between them */
};

struct job {
    const char *roots[JOB_ROOTS]; /* of the stores: one, or those that its mounts lie in */
    size_t stores;                /* how many */
    const char *clear;            /* of the job's memory; NULL when it has none */
    size_t count;
    struct job_mount mounts[JOB_MOUNTS];
    char text[JOB_BYTES + 1]; /* the text that the others point into */
    uint32_t user;            /* the user of the job */
    int version;              /* of the format */
};

/* Reads a whole file, given as bytes; nothing outside them is read, even if they are wrong. Only a text
 * that tarnd writes is taken: each file has one meaning, and each meaning one file. */
bool job_parse(struct job *job, const void *bytes, size_t length, struct why *why);

/* The middle of the name of a partition's piece: the node is before it and the name behind it. */
#define JOB_PIECE ":@step/"

/* Whether something is a dataset's name: a lower-case letter or `_`, then letters, digits, `_`. */
bool job_is_name(const char *text);

#endif
