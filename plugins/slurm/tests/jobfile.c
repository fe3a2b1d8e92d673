/* jobfile.c SEED ROUNDS: the parser of job files, by mutation of good ones: each accepted file is the one
 * that tarnd would have written for the same meaning, byte by byte, and keeps the format's rules. Built
 * with sanitizers, which see each byte that is read where it may not be. */
#include "../jobfile.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

/* xorshift64*: a number below `bound`. */
static size_t below(size_t bound) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (size_t)((state * UINT64_C(2685821657736338717)) >> 33) % bound;
}

static void wrong(const char *what, const char *bytes, size_t length) {
    printf("%s:\n", what);
    fwrite(bytes, 1, length, stdout);
    exit(EXIT_FAILURE);
}

/* As tarnd writes it. */
static size_t written(const struct job *job, char *to, size_t room) {
    size_t at = (size_t)snprintf(to, room, "tarn-job %d\nuser\t%" PRIu32 "\n", job->version, job->user);
    for (size_t i = 0; i < job->stores; i++)
        at += (size_t)snprintf(to + at, room - at, "root\t%s\n", job->roots[i]);
    if (job->clear)
        at += (size_t)snprintf(to + at, room - at, "clear\t%s\n", job->clear);
    for (size_t i = 0; i < job->count; i++) {
        const struct job_mount *mount = &job->mounts[i];
        char store[24] = "";
        if (mount->root)
            snprintf(store, sizeof store, "%zu-", mount->root);
        at += (size_t)snprintf(to + at, room - at, "mount\t%s%s\t%s\t%c%" PRIu32 "\t%s\n",
                               mount->clear ? "clear-" : store,
                               mount->phx           ? "phx"
                               : mount->checkpoints ? "files"
                               : mount->partition   ? "part"
                               : mount->writable    ? "rw"
                                                    : "ro",
                               mount->name, mount->project ? 'p' : 'u', mount->owner, mount->path);
        if (mount->nodes)
            at +=
                (size_t)snprintf(to + at, room - at, "spread\t%" PRIu32 "\t%s\n", mount->block, mount->nodes);
    }
    return at;
}

static void rules(const struct job *job, const char *bytes, size_t length) {
    static char again[JOB_BYTES + 1];
    if (written(job, again, sizeof again) != length || memcmp(again, bytes, length) != 0)
        wrong("taken, but this is not how it is written", bytes, length);
    for (size_t i = 0; i < job->count; i++) {
        const struct job_mount *mount = &job->mounts[i];
        char around[JOB_PATH + 3];
        snprintf(around, sizeof around, "/%s/", mount->path);
        if (strstr(around, "/../") || strstr(around, "/./") || strstr(around, "//"))
            wrong("a path that leads elsewhere", bytes, length);
        if (strchr(mount->name, '/') || strchr(mount->name, '=') || !*mount->name ||
            strlen(mount->name) > JOB_NAME)
            wrong("a name that is no variable's", bytes, length);
        if (mount->nodes && (!mount->partition || mount->block % 4096 != 0 || mount->block == 0 ||
                             strpbrk(mount->nodes, ":/=@") || strstr(mount->nodes, ",,")))
            wrong("pieces that have no names", bytes, length);
        for (size_t other = 0; other < i; other++)
            if (strcmp(job->mounts[other].name, mount->name) == 0)
                wrong("a name twice", bytes, length);
    }
}

/* In memory of its own length, so that a byte beyond it is found. */
static bool taken(struct job *job, const char *bytes, size_t length) {
    struct why why = {""};
    char *exact = malloc(length ? length : 1);
    if (!exact)
        abort();
    memcpy(exact, bytes, length);
    bool good = job_parse(job, exact, length, &why);
    free(exact);
    if (good)
        rules(job, bytes, length);
    else if (!why.text[0])
        wrong("refused without a reason", bytes, length);
    return good;
}

static size_t good(char *to, size_t room) {
    static const char *const names[] = {"mesh", "fields", "_x", "a1"};
    static const char *const mounts[] = {
        "mount\tro\t%s%zu\tu1000\tu1000/d/foam/mesh/1/0/tree\n", "mount\trw\t%s%zu\tu1000\tu1000/j/17/w/f\n",
        "mount\tro\t%s%zu\tp50\tp50/d/a.b-c/%%/2/1/tree\n", "mount\tro\t%s%zu\tu7\tu7/..x/...\n"};
    size_t at = 0;
    size_t kind = below(8);
    if (kind == 7)
        at = (size_t)snprintf(to, room,
                              "tarn-job 6\nuser\t1000\nroot\t/scm/tarn\n%s%s"
                              "mount\t%s\tc0f\tu1000\tu1000/c/foam/solve\n",
                              below(2) ? "" : "clear\t/c\nmount\tclear-rw\ts\tu1000\tu1000/w/s\n",
                              below(2) ? "" : "mount\tpart\tlog\tu1000\tu1000/j/17/p/log\n",
                              below(2) ? "phx" : "files");
    else if (kind == 6)
        at = (size_t)snprintf(to, room,
                              "tarn-job 5\nuser\t1000\nroot\t/scm/tarn\n"
                              "mount\tpart\tfield\tu1000\tu1000/j/17/p/field\nspread\t65536\tn1,n2.x\n%s",
                              below(2) ? "" : "mount\tpart\tlog\tu1000\tu1000/j/17/p/log\n");
    else if (kind == 0)
        at = (size_t)snprintf(to, room,
                              "tarn-job 4\nuser\t1000\nroot\t/scm/tarn\n"
                              "mount\tpart\tfield\tu1000\tu1000/j/17/p/field\n");
    else if (kind == 1)
        at = (size_t)snprintf(
            to, room,
            "tarn-job 4\nuser\t1000\nroot\t/scm/tarn\nroot\t/nvme/tarn\n"
            "mount\trw\tout\tu1000\tu1000/j/17/w/f\nmount\t1-part\tf\tu1000\tu1000/j/17/p/f\n");
    else if (kind < 4)
        at = (size_t)snprintf(to, room, "tarn-job 3\nuser\t1000\nroot\t/scm/tarn\nroot\t/nvme/tarn\n%s",
                              below(2)
                                  ? "mount\trw\tout\tu1000\tu1000/j/17/w/f\nmount\t1-ro\tlow\tu7\tu7/d/x\n"
                                  : "clear\t/run/tarn/clear/all/17\nmount\tclear-ro\ts\tu1000\tu1000/w/s\n"
                                    "mount\tro\tup\tp5\tp5/d/x\nmount\t1-rw\tlow\tp7\tp7/d/x\n");
    else if (below(2))
        at = (size_t)snprintf(to, room, "tarn-job 1\nuser\t1000\nroot\t/scm/tarn\n");
    else
        at = (size_t)snprintf(to, room,
                              "tarn-job 2\nuser\t1000\nroot\t/scm/tarn\nclear\t/run/tarn/clear/all/17\n"
                              "mount\tclear-r%c\tsecret\tu1000\tu1000/w/s\n",
                              below(2) ? 'o' : 'w');
    for (size_t i = 0, count = below(5); i < count; i++)
        at += (size_t)snprintf(to + at, room - at, mounts[below(4)], names[below(4)], i);
    return at;
}

static size_t mutated(char *text, size_t length, size_t room) {
    static const char *const pieces[] = {"\t",
                                         "\n",
                                         "/",
                                         "..",
                                         "../",
                                         "./",
                                         "u0",
                                         "p4294967295",
                                         "u4294967294",
                                         "mount\t",
                                         "\xff",
                                         "",
                                         "rw",
                                         "=",
                                         "00",
                                         "\r",
                                         "//",
                                         "user\t1000\n",
                                         "root\t/\n",
                                         "tarn-job 1\n",
                                         "clear-",
                                         "1-",
                                         "root\t/b\n",
                                         "3",
                                         "clear\t/a\n",
                                         "2",
                                         "4",
                                         "part",
                                         "5",
                                         ",",
                                         "spread\t4096\tn1\n",
                                         "6",
                                         "phx",
                                         "files"};
    for (size_t times = below(3); times > 0; times--) {
        size_t at = below(length + 1), gone = below(3), rest;
        const char *piece = pieces[below(sizeof pieces / sizeof *pieces)];
        size_t long_ = *piece ? strlen(piece) : 1; /* the empty one is a NUL */
        if (at + gone > length)
            gone = length - at;
        rest = length - at - gone;
        if (length + long_ > room)
            break;
        memmove(text + at + long_, text + at + gone, rest);
        memcpy(text + at, piece, long_);
        length = at + long_ + rest;
    }
    return length;
}

/* A file with so many mounts, and so many bytes in each path. */
static bool taken_large(struct job *job, size_t mounts, size_t path) {
    static char text[2 * JOB_BYTES];
    char long_path[2 * JOB_PATH];
    size_t at = (size_t)snprintf(text, sizeof text, "tarn-job 1\nuser\t1000\nroot\t/scm\n");
    memset(long_path, 'x', path);
    memcpy(long_path, "u1000/", 6);
    long_path[path] = '\0';
    for (size_t i = 0; i < mounts; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "mount\tro\td%zu\tu1000\t%s\n", i, long_path);
    return taken(job, text, at);
}

static const char *const refused[] = {
    "",
    "tarn-job 1\n",
    "tarn-job 4\nuser\t1\nroot\t/a\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\tpart\tx\tu1\tu1/x\n",
    "tarn-job 4\nuser\t1\nroot\t/a\nmount\tpart\tx\tu1\tu1/x\nspread\t4096\tn1\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nspread\t4096\tn1\nmount\tpart\tx\tu1\tu1/x\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\trw\tx\tu1\tu1/x\nspread\t4096\tn1\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\tpart\tx\tu1\tu1/x\nspread\t4096\tn1\nspread\t4096\tn1\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\tpart\tx\tu1\tu1/x\nspread\t4097\tn1\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\tpart\tx\tu1\tu1/x\nspread\t0\tn1\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\tpart\tx\tu1\tu1/x\nspread\t2147483648\tn1\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\tpart\tx\tu1\tu1/x\nspread\t4096\t\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\tpart\tx\tu1\tu1/x\nspread\t4096\tn1,\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\tpart\tx\tu1\tu1/x\nspread\t4096\tn1:n2\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\tpart\tx\tu1\tu1/x\nspread\t4096\tn1\tn2\n",
    "tarn-job 6\nuser\t1\nroot\t/a\n",
    "tarn-job 6\nuser\t1\nroot\t/a\nmount\trw\tx\tu1\tu1/x\n",
    "tarn-job 6\nuser\t1\nroot\t/a\nmount\tphx\tx\tu1\tu1/x\nmount\tfiles\ty\tu1\tu1/y\n",
    "tarn-job 6\nuser\t1\nroot\t/a\nmount\tphx\tx\tu2\tu2/x\n",
    "tarn-job 6\nuser\t1\nroot\t/a\nmount\tphx\tx\tp1\tp1/x\n",
    "tarn-job 6\nuser\t1\nroot\t/a\nclear\t/c\nmount\tclear-phx\tx\tu1\tu1/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tfiles\tx\tu1\tu1/x\n",
    "tarn-job 5\nuser\t1\nroot\t/a\nmount\tphx\tx\tu1\tu1/x\n",
    "tarn-job 3\nuser\t1\nroot\t/a\n",
    "tarn-job 3\nuser\t1\nroot\t/a\nroot\t/b\n",
    "tarn-job 3\nuser\t1\nroot\t/a\nmount\tro\tx\tu1\tu1/x\n",
    "tarn-job 3\nuser\t1\nroot\t/a\nroot\t/b\nmount\tro\tx\tu1\tu1/x\n",
    "tarn-job 3\nuser\t1\nroot\t/a\nroot\t/b\nmount\t1-ro\tx\tu1\tu1/x\n",
    "tarn-job 3\nuser\t1\nroot\t/a\nroot\t/a\nmount\tro\tx\tu1\tu1/x\nmount\t1-ro\ty\tu1\tu1/x\n",
    "tarn-job 3\nuser\t1\nroot\t/a\nroot\t/b\nmount\t0-ro\tx\tu1\tu1/x\nmount\t1-ro\ty\tu1\tu1/x\n",
    "tarn-job 3\nuser\t1\nroot\t/a\nroot\t/b\nmount\tro\tx\tu1\tu1/x\nmount\t2-ro\ty\tu1\tu1/x\n",
    "tarn-job 3\nuser\t1\nroot\t/a\nroot\t/b\nmount\tro\tx\tu1\tu1/x\nmount\t1-rw\ty\tu2\tu2/x\n",
    "tarn-job 3\nuser\t1\nroot\t/a\nroot\t/b\nclear\t/c\nmount\tro\tx\tu1\tu1/x\nmount\t1-ro\ty\tu1\tu1/x\n",
    "tarn-job "
    "3\nuser\t1\nroot\t/a\nclear\t/c\nroot\t/b\nmount\tclear-ro\tz\tu1\tu1/x\nmount\t1-ro\ty\tu1\tu1/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nroot\t/b\nmount\tro\tx\tu1\tu1/x\nmount\t1-ro\ty\tu1\tu1/x\n",
    "tarn-job 2\nuser\t1\nroot\t/a\n",
    "tarn-job 2\nuser\t1\nroot\t/a\nclear\t/b\n",
    "tarn-job 2\nuser\t1\nroot\t/a\nclear\t/b\nmount\tro\tx\tu1\tu1/x\n",
    "tarn-job 2\nuser\t1\nroot\t/a\nclear\tb\nmount\tclear-ro\tx\tu1\tu1/x\n",
    "tarn-job 2\nuser\t1\nroot\t/a\nmount\tclear-ro\tx\tu1\tu1/x\n",
    "tarn-job 2\nuser\t1\nroot\t/a\nclear\t/b\nmount\tclear-rw\tx\tu2\tu2/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tclear-ro\tx\tu1\tu1/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a",
    "tarn-job 1\nuser\t01\nroot\t/a\n",
    "tarn-job 1\nuser\t-1\nroot\t/a\n",
    "tarn-job 1\nuser\t4294967295\nroot\t/a\n",
    "tarn-job 1\nuser\t18446744073709551617\nroot\t/a\n",
    "tarn-job 1\nuser\t1\nroot\ta\n",
    "tarn-job 1\nuser\t1\nroot\t/\n",
    "tarn-job 1\nuser\t1\nroot\t/a/../b\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tro\tx\tu1\tu1/../u2/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tro\tx\tu1\tu2/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tro\tx\tu1\tu1\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tro\tx\tu1\t/u1/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tro\tx/y\tu1\tu1/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tro\tX\tu1\tu1/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\trx\tx\tu1\tu1/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\trw\tx\tu2\tu2/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tro\tx\tg1\tg1/x\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tro\tx\tu1\tu1/x\tmore\n",
    "tarn-job 1\nuser\t1\nroot\t/a\n\n",
    "tarn-job 1\nuser\t1\nroot\t/a\nmount\tro\tx\tu1\tu1/x\nmount\tro\tx\tu1\tu1/y\n",
};

int main(int count, char **words) {
    static struct job job;
    static char text[4096];
    size_t accepted = 0;
    if (count != 3)
        return 2;
    state = strtoull(words[1], NULL, 10) * 2 + 1;
    size_t rounds = strtoull(words[2], NULL, 10);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (taken(&job, refused[i], strlen(refused[i])))
            wrong("taken", refused[i], strlen(refused[i]));
    if (!taken_large(&job, JOB_MOUNTS, 200) || taken_large(&job, JOB_MOUNTS + 1, 100) ||
        !taken_large(&job, 2, JOB_PATH) || taken_large(&job, 2, JOB_PATH + 1) ||
        taken_large(&job, 300, JOB_PATH))
        wrong("a bound is not where it is said to be", "", 0);
    for (size_t round = 0; round < rounds; round++)
        accepted += taken(&job, text, mutated(text, good(text, sizeof text), sizeof text));
    printf("%zu of %zu taken\n", accepted, rounds);
    return accepted > rounds / 10 && accepted < rounds ? EXIT_SUCCESS : EXIT_FAILURE;
}
