#include "jobfile.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What modes of what lies in the job's memory begin with. */
#define CLEAR "clear-"

/* Fields of a line: "mount", mode, name, owner, path. */
enum { FIELDS = 5 };

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
    if (mount->clear)
        mode += strlen(CLEAR);
    if (strcmp(mode, "ro") != 0 && strcmp(mode, "rw") != 0)
        return refuse(why, "line %zu: a mount is neither `ro` nor `rw`", line);
    if (!job_is_name(fields[2]))
        return refuse(why, "line %zu: this is no name of a dataset", line);
    for (size_t i = 0; i < job->count; i++)
        if (strcmp(job->mounts[i].name, fields[2]) == 0)
            return refuse(why, "line %zu: dataset %s a second time", line, fields[2]);
    mount->writable = mode[1] == 'w';
    mount->name = fields[2];
    mount->path = fields[4];
    if (!is_relative(mount->path))
        return refuse(why, "line %zu: this is no path below the store", line);
    if (!owned(fields[3], mount))
        return refuse(why, "line %zu: the path is not in the folder of its owner, `u` or `p` and a number",
                      line);
    if (mount->writable && !mount->project && mount->owner != job->user)
        return refuse(why, "line %zu: data of another user to be written", line);
    job->count++;
    return true;
}

static bool root_line(const char **root, const char *word, char *fields[FIELDS], size_t count, size_t line,
                      struct why *why) {
    if (count != 2 || strcmp(fields[0], word) != 0 || fields[1][0] != '/' || !is_relative(fields[1] + 1))
        return refuse(why, "line %zu: not `%s` and an absolute path", line, word);
    *root = fields[1];
    return true;
}

static bool line_of(struct job *job, char *text, size_t line, struct why *why) {
    char *fields[FIELDS];
    size_t count = divide(text, fields);
    if (line == 1) {
        if (count == 1 && strcmp(fields[0], "tarn-job 2") == 0)
            job->version = 2;
        else if (count == 1 && strcmp(fields[0], "tarn-job 1") == 0)
            job->version = 1;
        else
            return refuse(why, "line 1: not `tarn-job 1` or `tarn-job 2`, the formats that are known here");
        return true;
    }
    if (line == 2)
        return (count == 2 && strcmp(fields[0], "user") == 0 && number(fields[1], &job->user)) ||
               refuse(why, "line 2: not `user` and a number");
    if (line == 3)
        return root_line(&job->root, "root", fields, count, line, why);
    if (line == 4 && job->version == 2)
        return root_line(&job->clear, "clear", fields, count, line, why);
    if (count != FIELDS || strcmp(fields[0], "mount") != 0)
        return refuse(why, "line %zu: not `mount`, mode, dataset, owner and path", line);
    return mount_line(job, fields, line, why);
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
    size_t head = job->version == 2 ? 4 : 3;
    if (line < head)
        return refuse(why, "it ends before line %zu", head);
    bool in_clear = false;
    for (size_t i = 0; i < job->count; i++)
        in_clear = in_clear || job->mounts[i].clear;
    return in_clear == (job->version == 2) || refuse(why, "version 2 without a mount of the job's memory");
}
