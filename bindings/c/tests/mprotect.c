/*
 * mprotect.c: a program whose writes are tracked by PHX_MPROTECT, and which has a handler of SIGSEGV of its own.
 *
 * mprotect DIR: resumes from its newest version in DIR until some of a version was copied ahead; prints the version that it
 * restored. Once its object is watched again, calls that write into it fail. At the end it makes a fault that its own handler is
 * for.
 */
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define COUNT (1 << 20)
#define MOST 2000 /* cycles, and looks */

static char *own;

static void handler(int number, siginfo_t *info, void *context)
{
    const char *text = "its own fault\n";
    if (number != SIGSEGV || info->si_addr != own || context == NULL || write(1, text, 14) != 14)
        _exit(3);
    _exit(0);
}

static void nap(void)
{
    struct timespec time = {.tv_nsec = 10000000};
    nanosleep(&time, NULL);
}

/* The first quarter is written in each cycle, and some words everywhere. */
static uint64_t value(size_t i, uint64_t step)
{
    return i < COUNT / 4 || i % 50021 == 0 ? step : 0;
}

static void compute(uint64_t *field, uint64_t step)
{
    for (size_t i = 0; i < COUNT / 4; i++)
        field[i] = value(i, step);
    nap();
    for (size_t i = 0; i < COUNT; i += 50021)
        field[i] = value(i, step);
}

/* Whether a call may write a byte, which is there already, into the field's end. */
static int can_be_read_into(int from, int to, uint64_t *field)
{
    char *last = (char *)(field + COUNT) - 1, before = *last;
    CHECK(write(to, last, 1) == 1, 1);
    int can = read(from, last, 1) == 1;
    CHECK(can || errno == EFAULT, 1);
    CHECK(*last == before, 1);
    if (!can)
        CHECK(read(from, &before, 1) == 1, 1);
    return can;
}

int main(int argc, char **argv)
{
    char tier[512], memory[512];
    struct phx_options o = {.size = sizeof o, .ranks = 1, .run = "c", .tier = tier, .memory = memory, .flags = PHX_MPROTECT};
    struct phx_properties p = {.size = sizeof p, .precopy = 2};
    struct phx_stats stats = {.size = sizeof stats};
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    uint64_t step = 0, first;
    void *created = NULL;
    int ends[2], looks = 0;

    if (argc < 2)
        return 2;
    snprintf(tier, sizeof tier, "%s/tier", argv[1]);
    snprintf(memory, sizeof memory, "%s/memory", argv[1]);
    own = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED && pipe(ends) == 0 && sigaction(SIGSEGV, &action, NULL) == 0, 1);
    CHECK(phx_init(&o), PHX_OK);
    CHECK(phx_create_obj("field", COUNT * sizeof(uint64_t), sizeof(uint64_t), &p, &created), PHX_OK);
    CHECK(phx_register_obj("step", &step, sizeof step, sizeof step, NULL), PHX_OK);
    if (failed)
        return 1;
    uint64_t *field = created;
    int restarted = phx_restart(NULL, NULL);
    CHECK(restarted == PHX_OK || restarted == PHX_ENOTFOUND, 1);
    for (size_t i = 0; i < COUNT; i++)
        if (field[i] != value(i, step)) {
            printf("word %zu of step %llu is wrong\n", i, (unsigned long long)step);
            return 1;
        }
    printf("%s\n", step > 0 ? "restored" : "begun");
    first = step;
    do {
        step++;
        compute(field, step);
        CHECK(phx_checkpoint_commit(NULL), PHX_OK);
        CHECK(phx_stats(&stats), PHX_OK);
    } while (!failed && stats.ahead_bytes == 0 && step - first < MOST);
    CHECK(stats.ahead_bytes > 0, 1);
    for (looks = 0; can_be_read_into(ends[0], ends[1], field) && looks < MOST; looks++)
        nap();
    CHECK(looks < MOST, 1);
    step++;
    compute(field, step);
    CHECK(phx_checkpoint_commit(NULL), PHX_OK);
    CHECK(phx_finalize(), PHX_OK);
    if (failed)
        return 1;
    fflush(stdout);
    *(volatile char *)own = 1;
    return 1;
}
