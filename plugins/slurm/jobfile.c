#include "jobfile.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The prefix of modes for mounts in the job's memory. */
#define CLEAR "clear-"

/* Fields of a line: "mount", mode, name, owner, path. */
enum { FIELDS = 5 };
/* The versions of the format that have partitions, some that are spread over nodes, and checkpoints. */
enum { PARTITIONS = 4, SPREAD = 5, CHECKPOINTS = 6 };
/* Bytes of a page and of the largest block. */
enum { PAGE = 4096, BLOCK = 1 << 30 };

bool refuse(struct why *why, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(why->text, sizeof why->text, format, rest);
    va_end(rest);
    return false;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
static bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

bool job_is_name(const char *text) {
    size_t length = strlen(text);
    if (length == 0 || length > JOB_NAME || !(is_lower(*text) || *text == '_'))
        return false;
    for (const char *c = text; *c; c++)
        if (!(is_lower(*c) || is_upper(*c) || is_digit(*c) || *c == '_'))
            return false;
    return true;
}

/* A user's or a group's number. The largest one is "none" to the kernel. */
static bool number(const char *text, uint32_t *value) {
    uint64_t sum = 0;
    if (!*text || (*text == '0' && text[1]))
        return false;
    for (; *text; text++) {
        if (!is_digit(*text))
            return false;
        sum = sum * 10 + (uint64_t)(*text - '0');
        if (sum >= UINT32_MAX)
            return false;
    }
    *value = (uint32_t)sum;
    return true;
}

/* Names between single slashes, none of them `.` or `..`. */
static bool is_relative(const char *path) {
    size_t length = strlen(path);
    if (length == 0 || length > JOB_PATH)
        return false;
    for (;;) {
        size_t name = strcspn(path, "/");
        if (name == 0 || (name == 1 && path[0] == '.') || (name == 2 && path[0] == '.' && path[1] == '.'))
            return false;
        if (!path[name])
            return true;
        path += name + 1;
    }
}

/* Divides a line at its tabs; how many fields it has, of which at most FIELDS are kept. */
static size_t divide(char *line, char *fields[FIELDS]) {
    size_t count = 0;
    for (;;) {
        char *tab = strchr(line, '\t');
        if (count < FIELDS)
            fields[count] = line;
        count++;
        if (!tab)
            return count;
        *tab = '\0';
        line = tab + 1;
    }
}

/* `u1000` or `p50`, and whether the path is in that folder. */
static bool owned(const char *owner, struct job_mount *mount) {
    size_t length = strlen(owner);
    if ((owner[0] != 'u' && owner[0] != 'p') || !number(owner + 1, &mount->owner))
        return false;
    mount->project = owner[0] == 'p';
    return strncmp(mount->path, owner, length) == 0 && mount->path[length] == '/';
}

static bool mount_line(struct job *job, char *fields[FIELDS], size_t line, struct why *why) {
    struct job_mount *mount = &job->mounts[job->count];
    const char *mode = fields[1];
    if (job->count == JOB_MOUNTS)
        return refuse(why, "line %zu: more than %d mounts", line, JOB_MOUNTS);
    mount->clear = job->clear && strncmp(mode, CLEAR, strlen(CLEAR)) == 0;
    mount->root = 0;
    if (mount->clear)
        mode += strlen(CLEAR);
    else if (is_digit(mode[0]) && mode[0] != '0' && mode[1] == '-') {
        mount->root = (size_t)(mode[0] - '0');
        if (mount->root >= job->stores)
            return refuse(why, "line %zu: a mount below a root that is not given", line);
        mode += 2;
    }
    mount->partition = job->version >= PARTITIONS && !mount->clear && strcmp(mode, "part") == 0;
    mount->phx = job->version == CHECKPOINTS && !mount->clear && strcmp(mode, "phx") == 0;
    mount->checkpoints =
        mount->phx || (job->version == CHECKPOINTS && !mount->clear && strcmp(mode, "files") == 0);
    if (strcmp(mode, "ro") != 0 && strcmp(mode, "rw") != 0 && !mount->partition && !mount->checkpoints)
        return refuse(why, "line %zu: a mount is neither `ro` nor `rw`", line);
    if (!job_is_name(fields[2]))
        return refuse(why, "line %zu: this is no name of a dataset", line);
    for (size_t i = 0; i < job->count; i++)
        if (strcmp(job->mounts[i].name, fields[2]) == 0)
            return refuse(why, "line %zu: dataset %s a second time", line, fields[2]);
    mount->writable = mode[1] == 'w' || mount->partition || mount->checkpoints;
    mount->name = fields[2];
    mount->path = fields[4];
    if (!is_relative(mount->path))
        return refuse(why, "line %zu: this is no path below the store", line);
    if (!owned(fields[3], mount))
        return refuse(why, "line %zu: the path is not in the folder of its owner, `u` or `p` and a number",
                      line);
    if (mount->writable && !mount->project && mount->owner != job->user)
        return refuse(why, "line %zu: data of another user to be written", line);
    if ((mount->partition || mount->checkpoints) && mount->project)
        return refuse(why, "line %zu: a partition or checkpoints of a group", line);
    job->count++;
    return true;
}

/* Names of hosts with single commas between them, which fit into one variable together with the
 * rest of the pieces' names. */
static bool are_nodes(const char *nodes, size_t name) {
    size_t pieces = 0;
    for (;;) {
        size_t length = strcspn(nodes, ",");
        if (length == 0 || length > JOB_NODE)
            return false;
        for (size_t i = 0; i < length; i++)
            if (!(is_lower(nodes[i]) || is_upper(nodes[i]) || is_digit(nodes[i]) || nodes[i] == '-' ||
                  nodes[i] == '_' || nodes[i] == '.'))
                return false;
        pieces += length + strlen(JOB_PIECE) + name + 1;
        if (!nodes[length])
            return pieces <= JOB_PIECES;
        nodes += length + 1;
    }
}

/* The distribution of the partition of the line before over the job's nodes. */
static bool spread_line(struct job *job, char *fields[FIELDS], size_t count, size_t line, struct why *why) {
    struct job_mount *mount = job->count ? &job->mounts[job->count - 1] : NULL;
    if (!mount || !mount->partition || mount->nodes)
        return refuse(why, "line %zu: `spread` behind no partition", line);
    if (count != 3 || !number(fields[1], &mount->block) || mount->block == 0 || mount->block > BLOCK ||
        mount->block % PAGE != 0 || !are_nodes(fields[2], strlen(mount->name)))
        return refuse(why, "line %zu: not `spread`, bytes of a block, and names of nodes", line);
    mount->nodes = fields[2];
    return true;
}

static bool root_line(const char **root, const char *word, char *fields[FIELDS], size_t count, size_t line,
                      struct why *why) {
    if (count != 2 || strcmp(fields[0], word) != 0 || fields[1][0] != '/' || !is_relative(fields[1] + 1))
        return refuse(why, "line %zu: not `%s` and an absolute path", line, word);
    *root = fields[1];
    return true;
}

/* One more root, which is none of those before. */
static bool store_line(struct job *job, char *fields[FIELDS], size_t count, size_t line, struct why *why) {
    if (job->stores == JOB_ROOTS)
        return refuse(why, "line %zu: more than %d roots", line, JOB_ROOTS);
    if (!root_line(&job->roots[job->stores], "root", fields, count, line, why))
        return false;
    for (size_t i = 0; i < job->stores; i++)
        if (strcmp(job->roots[i], job->roots[job->stores]) == 0)
            return refuse(why, "line %zu: a root a second time", line);
    job->stores++;
    return true;
}

static bool line_of(struct job *job, char *text, size_t line, struct why *why) {
    char *fields[FIELDS];
    size_t count = divide(text, fields);
    if (line == 1) {
        if (count == 1 && strcmp(fields[0], "tarn-job 6") == 0)
            job->version = CHECKPOINTS;
        else if (count == 1 && strcmp(fields[0], "tarn-job 5") == 0)
            job->version = SPREAD;
        else if (count == 1 && strcmp(fields[0], "tarn-job 4") == 0)
            job->version = PARTITIONS;
        else if (count == 1 && strcmp(fields[0], "tarn-job 3") == 0)
            job->version = 3;
        else if (count == 1 && strcmp(fields[0], "tarn-job 2") == 0)
            job->version = 2;
        else if (count == 1 && strcmp(fields[0], "tarn-job 1") == 0)
            job->version = 1;
        else
            return refuse(why, "line 1: not `tarn-job 1`, 2, 3, 4, 5 or 6, the formats that are known here");
        return true;
    }
    if (line == 2)
        return (count == 2 && strcmp(fields[0], "user") == 0 && number(fields[1], &job->user)) ||
               refuse(why, "line 2: not `user` and a number");
    bool open = job->version >= 3 && job->count == 0 && !job->clear;
    if (line == 3 || (line == 4 && job->version == 3) || (open && strcmp(fields[0], "root") == 0))
        return store_line(job, fields, count, line, why);
    if ((line == 4 && job->version == 2) || (open && strcmp(fields[0], "clear") == 0))
        return root_line(&job->clear, "clear", fields, count, line, why);
    if (job->version >= SPREAD && strcmp(fields[0], "spread") == 0)
        return spread_line(job, fields, count, line, why);
    if (count != FIELDS || strcmp(fields[0], "mount") != 0)
        return refuse(why, "line %zu: not `mount`, mode, dataset, owner and path", line);
    return mount_line(job, fields, line, why);
}

/* Every declared root has a mount; the only store may have none. */
static bool all_used(const struct job *job, struct why *why) {
    bool in_clear = false, lent = false, spread = false, used[JOB_ROOTS] = {job->stores == 1};
    size_t checkpoints = 0;
    for (size_t i = 0; i < job->count; i++) {
        checkpoints += job->mounts[i].checkpoints;
        lent = lent || job->mounts[i].partition;
        spread = spread || job->mounts[i].nodes;
        if (job->mounts[i].clear)
            in_clear = true;
        else
            used[job->mounts[i].root] = true;
    }
    for (size_t i = 0; i < job->stores; i++)
        if (!used[i])
            return refuse(why, "no mount is below root %zu", i);
    if (checkpoints != (job->version == CHECKPOINTS))
        return refuse(why, "version %d with %zu folders of checkpoints", job->version, checkpoints);
    bool rest = job->version == CHECKPOINTS;
    if (!rest && (lent != (job->version >= PARTITIONS) || spread != (job->version == SPREAD)))
        return refuse(why, "version %d without a partition%s", job->version,
                      job->version == SPREAD ? " that is spread" : "");
    return in_clear == (job->clear != NULL) || refuse(why, "no mount is in the job's memory");
}

bool job_parse(struct job *job, const void *bytes, size_t length, struct why *why) {
    size_t line = 0;
    memset(job, 0, sizeof *job);
    if (length > JOB_BYTES)
        return refuse(why, "more than %d bytes", JOB_BYTES);
    memcpy(job->text, bytes, length);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)job->text[i];
        if ((c < ' ' && c != '\t' && c != '\n') || c == 0x7f)
            return refuse(why, "byte %zu is no text", i);
    }
    for (char *at = job->text, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        if (!end)
            return refuse(why, "the last line has no end");
        *end = '\0';
        if (!line_of(job, at, ++line, why))
            return false;
    }
    size_t head = job->version == 2 || job->version == 3 ? 4 : 3;
    if (line < head)
        return refuse(why, "it ends before line %zu", head);
    return all_used(job, why);
}
