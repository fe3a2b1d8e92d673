/* tarn's SPANK plug-in: each task of a job sees the job's data, and jobs can say that they are of a workflow.
 * docs/internals/site.md */

/* Slurm finds what is declared here, and nothing else of this. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(tarn, 1)
#pragma GCC visibility pop

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "jobmount.h"

#define PREFIX "TARN_"
#define PARTITION "PARTITION_"
#define BLOCK "BLOCK_"
#define SOCKET PREFIX "STEP_SOCKET"
#define CHECKPOINTS PREFIX "CHECKPOINTS"
#define PHX_TIER PREFIX "PHX_TIER"
#define PHX_RUN PREFIX "PHX_RUN"
/* "TARN_", "PARTITION_" perhaps, and a name. */
enum { VARIABLE = sizeof PREFIX + sizeof PARTITION + JOB_NAME };
/* Bytes of a job's number, which may be of an array: two numbers and `_`. */
enum { JOB_ID = 24 };

enum { START, PRIOR, END, SAME_NODES, OPTIONS };

static int take_option(int which, const char *argument, int remote);

static struct spank_option options[OPTIONS] = {
    {"workflow-start", NULL, "this job begins a workflow of tarn's", 0, START, take_option},
    {"workflow-prior-dependency", "JOBID", "it continues the workflow of this job, and starts after it", 1,
     PRIOR, take_option},
    {"workflow-end", NULL, "it is the workflow's last job: the workflow is whole, and may start", 0, END,
     take_option},
    {"workflow-same-nodes", NULL, "it runs on the nodes of the job before it", 0, SAME_NODES, take_option},
};
/* The variables that job_submit finds in job_desc.spank_job_env. */
static const char *const variables[OPTIONS] = {"TARN_WORKFLOW_START", "TARN_WORKFLOW_PRIOR",
                                               "TARN_WORKFLOW_END", "TARN_WORKFLOW_SAME_NODES"};
/* The options' values; empty where one was not given. */
static char values[OPTIONS][JOB_ID];

/* `17`, or `17_3` of an array. */
static bool is_job_id(const char *text) {
    static const char digits[] = "0123456789";
    size_t first = strspn(text, digits);
    if (strlen(text) >= JOB_ID || first == 0 || *text == '0')
        return false;
    if (!text[first])
        return true;
    size_t second = strspn(text + first + 1, digits);
    return text[first] == '_' && second > 0 && !text[first + 1 + second];
}

static int take_option(int which, const char *argument, int remote) {
    if (remote) /* slurmctld has heard of it when the job was submitted */
        return ESPANK_SUCCESS;
    if (which != PRIOR)
        argument = "1";
    else if (!argument || !is_job_id(argument)) {
        slurm_error("tarn: --workflow-prior-dependency: give the number of the job before this one, as "
                    "sbatch has printed it");
        return ESPANK_BAD_ARG;
    }
    snprintf(values[which], sizeof values[which], "%s", argument);
    return ESPANK_SUCCESS;
}

/* In sbatch, salloc or srun. */
static bool is_command(void) {
    spank_context_t context = spank_context();
    return context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR;
}

/* Slurm has each job inherit the options of the job that it is submitted from: that would be the same place
 * in the workflow twice. */
static void disinherit(void) {
    static const char *const prefixes[] = {"SLURM_SPANK_TARN_WORKFLOW_",
                                           "SLURM_SPANK__SLURM_SPANK_OPTION_tarn_workflow_",
                                           "_SLURM_SPANK_OPTION_tarn_workflow_"};
    for (char **all = environ; all && *all;) {
        char name[128];
        size_t length = strcspn(*all, "=");
        bool ours = false;
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
            ours = ours || strncmp(*all, prefixes[i], strlen(prefixes[i])) == 0;
        if (!ours || length >= sizeof name) {
            all++;
            continue;
        }
        memcpy(name, *all, length);
        name[length] = '\0';
        unsetenv(name);
        all = environ;
    }
}

int slurm_spank_init(spank_t spank, int count, char **words) {
    (void)count;
    (void)words;
    if (is_command())
        disinherit();
    for (int i = 0; i < OPTIONS; i++)
        if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS) {
            slurm_error("tarn: option --%s cannot be registered: another plug-in has it: see plugstack.conf",
                        options[i].name);
            return -1;
        }
    return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **words) {
    (void)count;
    (void)words;
    if (!is_command())
        return ESPANK_SUCCESS;
    for (int i = 0; i < OPTIONS; i++)
        if (*values[i] && spank_job_control_setenv(spank, variables[i], values[i], 1) != ESPANK_SUCCESS) {
            slurm_error("tarn: --%s cannot be passed on to slurmctld", options[i].name);
            return -1;
        }
    return ESPANK_SUCCESS;
}

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* Whether a variable is one of the pieces of partitions that are spread over nodes, no matter who has set
 * it. */
static bool is_of_pieces(const char *variable) {
    const char *value = strchr(variable, '=');
    if (begins(variable, PREFIX BLOCK))
        return true;
    return begins(variable, PREFIX PARTITION) && value && strstr(value, JOB_PIECE);
}

/* Takes out variables of datasets and partitions that another job has had, and which came here with the
 * environment of the submitting user. Those of pieces are a job's if the socket is: else they are of a
 * step of `tarn run`. */
static bool unset_stale(spank_t spank) {
    static const char value[] = "=" JOB_DATA "/";
    char **all, name[VARIABLE];
    bool spread = false, phx = false;
    if (spank_get_item(spank, S_JOB_ENV, &all) != ESPANK_SUCCESS)
        return false;
    for (size_t i = 0; all && all[i]; i++) {
        spread = spread || begins(all[i], SOCKET "=" JOB_DATA "/");
        phx = phx || begins(all[i], PHX_TIER "=" JOB_DATA "/");
    }
    for (size_t i = 0; all && all[i];) {
        size_t length = strcspn(all[i], "=");
        i++;
        if (length >= sizeof name || !begins(all[i - 1], PREFIX) ||
            !(begins(all[i - 1] + length, value) || (spread && is_of_pieces(all[i - 1])) ||
              (phx && begins(all[i - 1], PHX_RUN "="))))
            continue;
        memcpy(name, all[i - 1], length);
        name[length] = '\0';
        if (spank_unsetenv(spank, name) != ESPANK_SUCCESS ||
            spank_get_item(spank, S_JOB_ENV, &all) != ESPANK_SUCCESS)
            return false;
        i--; /* the next one is in its place */
    }
    return true;
}

/* The names of the pieces of a partition that is spread over the job's nodes, and bytes of a block. The first
 * of them has the socket by which tasks open pieces in its folder. */
static bool set_spread(spank_t spank, const struct job_mount *mount, bool first) {
    static char pieces[JOB_PIECES + 1];
    char variable[VARIABLE], value[sizeof JOB_DATA + JOB_NAME + sizeof "/tarnd"], *end = pieces;
    /* `job_parse` has seen that they fit. */
    for (const char *node = mount->nodes;; node++) {
        size_t length = strcspn(node, ",");
        end += sprintf(end, "%s%.*s" JOB_PIECE "%s", end > pieces ? "," : "", (int)length, node, mount->name);
        node += length;
        if (!*node)
            break;
    }
    snprintf(variable, sizeof variable, PREFIX PARTITION "%s", mount->name);
    if (spank_setenv(spank, variable, pieces, 1) != ESPANK_SUCCESS)
        return false;
    snprintf(variable, sizeof variable, PREFIX BLOCK "%s", mount->name);
    snprintf(value, sizeof value, "%u", (unsigned)mount->block);
    if (spank_setenv(spank, variable, value, 1) != ESPANK_SUCCESS)
        return false;
    snprintf(value, sizeof value, JOB_DATA "/%s/tarnd", mount->name);
    return !first || spank_setenv(spank, SOCKET, value, 1) == ESPANK_SUCCESS;
}

/* The folder of checkpoints, and where libtarn finds them. Its staging memory is its usual one. */
static bool set_checkpoints(spank_t spank, const struct job_mount *mount) {
    static const char folder[] = JOB_DATA "/" JOB_CHECKPOINTS;
    return spank_setenv(spank, CHECKPOINTS, folder, 1) == ESPANK_SUCCESS &&
           (!mount->phx || (spank_setenv(spank, PHX_TIER, folder, 1) == ESPANK_SUCCESS &&
                            spank_setenv(spank, PHX_RUN, mount->name, 1) == ESPANK_SUCCESS));
}

static bool set_variables(spank_t spank, const struct job *job, struct why *why) {
    static char names[JOB_MOUNTS * (JOB_NAME + 1) + 1];
    char *end = names;
    bool done = unset_stale(spank), spread = false;
    for (size_t i = 0; done && i < job->count; i++) {
        const char *name = job->mounts[i].name;
        bool partition = job->mounts[i].partition;
        if (job->mounts[i].checkpoints) {
            done = set_checkpoints(spank, &job->mounts[i]);
            continue;
        }
        if (job->mounts[i].nodes) {
            done = set_spread(spank, &job->mounts[i], !spread);
            spread = true;
            continue;
        }
        char variable[VARIABLE], value[sizeof JOB_DATA + 2 * (1 + JOB_NAME)];
        snprintf(variable, sizeof variable, PREFIX "%s%s", partition ? PARTITION : "", name);
        /* A partition is in its folder under its own name. */
        snprintf(value, sizeof value, JOB_DATA "/%s%s%s", name, partition ? "/" : "", partition ? name : "");
        if (!partition)
            end += sprintf(end, "%s%s", end > names ? " " : "", name);
        done = spank_setenv(spank, variable, value, 1) == ESPANK_SUCCESS;
    }
    done = done && spank_setenv(spank, PREFIX "DATASETS", names, 1) == ESPANK_SUCCESS;
    return done || refuse(why, "its variables cannot be set: Slurm refuses");
}

static bool prepare(spank_t spank, uint32_t id, struct why *why) {
    static struct job job;
    uid_t user;
    switch (job_read(id, &job, why)) {
    case JOB_NONE:
        return true;
    case JOB_REFUSED:
        return false;
    case JOB_READ:
        break;
    }
    if (spank_get_item(spank, S_JOB_UID, &user) != ESPANK_SUCCESS)
        return refuse(why, "Slurm does not report whose it is");
    if (user != job.user)
        return refuse(why,
                      "tarn has data here for job %u of user %u, and this is user %u's: the job's number was "
                      "used again; restart tarnd on this node",
                      id, job.user, (unsigned)user);
    return job_mount(&job, why) && set_variables(spank, &job, why);
}

/* In the task's own process, as root, in the job's container: all that follows is the task's alone. */
int slurm_spank_task_init_privileged(spank_t spank, int count, char **words) {
    struct why why = {"Slurm does not report which job it is of"};
    uint32_t id;
    (void)count;
    (void)words;
    if (spank_get_item(spank, S_JOB_ID, &id) == ESPANK_SUCCESS && prepare(spank, id, &why))
        return ESPANK_SUCCESS;
    slurm_error("tarn: the task does not start: %s", why.text);
    /* Slurm would start it all the same where plugstack.conf says `optional`. */
    _exit(EXIT_FAILURE);
}
