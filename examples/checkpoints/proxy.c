/* proxy.c: see proxy.h. */
#define _POSIX_C_SOURCE 200809L
#include "proxy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct {
    const char *name;
    double scale, rate;
    const char *checkpoints;
    int cycles, rank;
    uint64_t work, done; /* passes of a cycle, and of this one */
    double *field;       /* that is worked on */
    size_t count;
    double since, iteration, compute, checkpoint;
    int computed; /* cycles, by this process */
    uint64_t ahead, twice, staged; /* bytes, until the last checkpoint */
} proxy;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void wrong(const char *what, const char *which)
{
    fprintf(stderr, "%s: %s: %s\n", proxy.name, which, what);
    exit(1);
}

static double number(const char *name, double otherwise)
{
    const char *text = getenv(name);
    char *end;
    if (text == NULL)
        return otherwise;
    double value = strtod(text, &end);
    if (end == text || *end != 0 || !(value >= 0))
        wrong("not a number", name);
    return value;
}

static double parameter(const char *name, const char *key)
{
    const char *file = getenv("PROXIES");
    char line[512], wanted[64];
    size_t length = (size_t)snprintf(wanted, sizeof wanted, "%s.%s=", name, key);
    FILE *f = fopen(file ? file : "proxies.conf", "r");
    if (f == NULL)
        wrong("cannot be read: set PROXIES", "proxies.conf");
    while (fgets(line, sizeof line, f))
        if (strncmp(line, wanted, length) == 0) {
            fclose(f);
            return atof(line + length);
        }
    wrong("is not in the file of parameters", wanted);
    return 0;
}

double proxy_parameter(const char *key)
{
    return parameter(proxy.name, key);
}

size_t proxy_bytes(void)
{
    return (size_t)(proxy_parameter("bytes") * proxy.scale);
}

static int mode(const char *name)
{
    return strcmp(proxy.checkpoints, name) == 0;
}

void proxy_begin(const char *name)
{
    struct phx_options options;
    int32_t helper = (int32_t)number("HELPER", 0);
    const char *checkpoints = getenv("CHECKPOINTS");
    setvbuf(stdout, NULL, _IOLBF, 0);
    proxy.name = name;
    proxy.scale = number("SCALE", 1);
    proxy.rate = number("RATE", 0);
    proxy.work = (uint64_t)number("WORK", 0);
    proxy.cycles = (int)number("CYCLES", 10);
    proxy.rank = (int)number("RANK", 0);
    proxy.checkpoints = checkpoints ? checkpoints : "phx-ec";
    if (!mode("none") && !mode("nvr") && !mode("phx") && !mode("phx-ec") && !mode("phx-mp") && !mode("always"))
        wrong("is none, nvr, phx, phx-ec, phx-mp or always", "CHECKPOINTS");
    proxy.count = (size_t)(parameter("work", "bytes") / sizeof(double));
    proxy.field = calloc(proxy.count, sizeof(double));
    if (proxy.field == NULL)
        wrong("no memory for it", "work.bytes");

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.rank = (uint32_t)proxy.rank;
    options.ranks = (uint32_t)number("RANKS", 1);
    options.replicas = (uint32_t)number("REPLICAS", 0);
    options.run = getenv("TARN_PHX_RUN") ? NULL : name;
    options.staging = (uint64_t)(proxy_parameter("staging") * proxy.scale);
    if (getenv("HELPER"))
        options.helpers = &helper, options.helper_count = 1;
    if (number("SAME_NODE", 0) > 0)
        options.flags |= PHX_SAME_NODE;
    if (mode("nvr") || mode("none"))
        options.flags |= PHX_NO_STAGING | PHX_NO_HELPER;
    if (mode("phx-mp"))
        options.flags |= PHX_MPROTECT;
    proxy_must(phx_init(&options));
}

struct phx_properties proxy_properties(void)
{
    struct phx_properties properties;
    memset(&properties, 0, sizeof properties);
    properties.size = sizeof properties;
    properties.precopy = mode("phx-ec") || mode("phx-mp") ? 0 : mode("always") ? 2 : 1;
    return properties;
}

void proxy_must(int code)
{
    if (code == PHX_DEGRADED)
        fprintf(stderr, "%s: warning: %s\n", proxy.name, phx_last_error());
    else if (code != PHX_OK)
        wrong(phx_last_error(), phx_code_text(code));
}

int proxy_cycles(void)
{
    return proxy.cycles;
}

int proxy_keeps(void)
{
    return !mode("none");
}

/* One pass: heat flows along a rod. */
static void pass(void)
{
    double *f = proxy.field, before = f[0];
    for (size_t i = 1; i + 1 < proxy.count; i++) {
        double own = f[i];
        f[i] = 0.5 * own + 0.25 * (before + f[i + 1]) + 1e-9;
        before = own;
    }
}

void proxy_work(double share)
{
    uint64_t until = (uint64_t)(share * (double)proxy.work);
    if (proxy.since == 0)
        proxy.since = now();
    for (; proxy.done < until; proxy.done++)
        pass();
}

int proxy_calibrates(void)
{
    if (proxy.rate == 0)
        return 0;
    proxy.work = 0;
    proxy.since = now();
    return 1;
}

void proxy_calibrated(void)
{
    double updates = now() - proxy.since, one, begun = now();
    int passes = 0;
    do {
        pass();
        passes++;
        one = (now() - begun) / passes;
    } while (now() - begun < 0.2);
    double cycle = (double)proxy_bytes() / proxy.rate / proxy_parameter("naive_share");
    if (cycle > updates)
        proxy.work = (uint64_t)((cycle - updates) / one);
    proxy.since = 0;
}

void proxy_computed(void)
{
    double end = now();
    proxy.iteration = end - proxy.since;
    proxy.compute += proxy.iteration;
    proxy.since = end;
    proxy.computed++;
}

void proxy_committed(int cycle)
{
    struct phx_stats stats = {.size = sizeof stats};
    double end = now();
    proxy_must(phx_stats(&stats));
    printf("cycle=%d iteration_s=%.6f checkpoint_s=%.6f ahead_bytes=%" PRIu64 " twice_bytes=%" PRIu64 " staged_bytes=%" PRIu64 "\n",
           cycle, proxy.iteration, end - proxy.since, stats.ahead_bytes - proxy.ahead, stats.copied_twice_bytes - proxy.twice,
           stats.staged_bytes - proxy.staged);
    proxy.ahead = stats.ahead_bytes;
    proxy.twice = stats.copied_twice_bytes;
    proxy.staged = stats.staged_bytes;
    proxy.checkpoint += end - proxy.since;
    proxy.since = now();
    proxy.done = 0;
}

/* FNV-1a, of words. */
uint64_t proxy_checksum(uint64_t sum, const void *bytes, size_t count)
{
    uint64_t word;
    const char *from = bytes;
    for (size_t i = 0; i + sizeof word <= count; i += sizeof word) {
        memcpy(&word, from + i, sizeof word);
        sum = (sum ^ word) * UINT64_C(0x100000001b3);
    }
    return sum;
}

void proxy_end(int restored, uint64_t checksum)
{
    struct phx_stats stats = {.size = sizeof stats};
    proxy_must(phx_stats(&stats));
    proxy_must(phx_finalize());
    free(proxy.field);
    printf("proxy=%s\ncheckpoints=%s\nrank=%d\nwork=%" PRIu64 "\nrestored=%d\ncycles=%d\ncompute_s=%.6f\ncheckpoint_s=%.6f\n", proxy.name,
           proxy.checkpoints, proxy.rank, proxy.work, restored, proxy.computed, proxy.compute, proxy.checkpoint);
    printf("commits=%" PRIu64 "\nbytes=%" PRIu64 "\nstaged_bytes=%" PRIu64 "\nahead_bytes=%" PRIu64 "\ntwice_bytes=%" PRIu64 "\n",
           stats.commits, stats.bytes, stats.staged_bytes, stats.ahead_bytes, stats.copied_twice_bytes);
    printf("waited_s=%.6f\ndestage_s=%.6f\nrestore_s=%.6f\nchecksum=%016" PRIx64 "\n", 1e-9 * (double)stats.waited_ns,
           1e-9 * (double)stats.destage_ns, 1e-9 * (double)stats.restore_ns, checksum);
}
