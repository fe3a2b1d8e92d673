/* Adds up the numbers from 1 to 60 and makes a version after every ten. Its arguments are what it does at which step of which attempt:
 * `kill 25 1` ends it there by SIGKILL, `hang 25 1` has it stop there and say so in the file `hangs`; attempt 0 is every attempt. */
#include <phx.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(int code)
{
    if (code > PHX_DEGRADED) {
        fprintf(stderr, "%s: %s\n", phx_code_text(code), phx_last_error());
        exit(1);
    }
}

static void happen(int step, int count, char **events)
{
    int attempt = atoi(getenv("TARN_ATTEMPT"));
    for (int i = 0; i + 2 < count; i += 3) {
        int when = atoi(events[i + 2]);
        if (atoi(events[i + 1]) != step || (when != 0 && when != attempt))
            continue;
        if (strcmp(events[i], "kill") == 0)
            raise(SIGKILL);
        char path[4096];
        snprintf(path, sizeof path, "%s/hangs", getenv("TARN_WORKFLOW_DIR"));
        fclose(fopen(path, "w"));
        pause();
    }
}

int main(int count, char **arguments)
{
    const char *rank = getenv("RANK"), *ranks = getenv("RANKS");
    struct phx_options options = {.size = sizeof options};
    long state[2] = {0, 0}, *step = &state[0], *sum = &state[1];
    int code;
    options.rank = rank ? (unsigned)atoi(rank) : 0;
    options.ranks = ranks ? (unsigned)atoi(ranks) : 1;
    must(phx_init(&options));
    must(phx_register_obj("state", state, sizeof state, sizeof state[0], NULL));
    if ((code = phx_restart(NULL, NULL)) != PHX_ENOTFOUND)
        must(code);
    printf("from step %ld\n", *step);
    fflush(stdout);
    while (*step < 60) {
        *sum += ++*step;
        if (*step % 10 == 0)
            must(phx_checkpoint_commit(NULL));
        if (options.rank == 0)
            happen((int)*step, count - 1, arguments + 1);
    }
    must(phx_finalize());
    if (options.rank == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/sum", getenv("TARN_result"));
        FILE *file = fopen(path, "w");
        fprintf(file, "%ld\n", *sum);
        fclose(file);
    }
    return 0;
}
