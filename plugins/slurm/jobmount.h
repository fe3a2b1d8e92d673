/* jobmount.h: a job's file on the node, and its data in a mount namespace. docs/internals/site.md, "What a
 * job sees". */
#ifndef TARN_JOBMOUNT_H
#define TARN_JOBMOUNT_H

#include "jobfile.h"

/* The folder in which each job finds its data. */
#define JOB_DATA "/run/tarn/data"
/* In it, the folder of the job's checkpoints. No dataset has this name. */
#define JOB_CHECKPOINTS ".checkpoints"

enum job_found { JOB_NONE, JOB_READ, JOB_REFUSED };

/* Reads the file of a job, if there is one. As root. */
enum job_found job_read(uint32_t id, struct job *job, struct why *why);

/* Gives the calling process, which has one thread and is root's, a mount namespace with the job's data in it.
 * When it fails, that namespace may be half made: the process must end. */
bool job_mount(const struct job *job, struct why *why);

#endif
