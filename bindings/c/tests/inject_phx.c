/* inject_phx.c: inject_phx DIR STEPS: a run in DIR (DIR/tier, DIR/memory) from its newest version to step STEPS; prints the
 * committed versions. */
#include <phx.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 40000

static int failed(const char *what)
{
    fprintf(stderr, "phx: %s: %s\n", what, phx_last_error());
    return 1;
}

int main(int count, char **arguments)
{
    static char tier[512], memory[512];
    static uint64_t field[COUNT];
    uint64_t step = 0;
    int code;
    if (count < 3)
        return 2;
    snprintf(tier, sizeof tier, "%s/tier", arguments[1]);
    snprintf(memory, sizeof memory, "%s/memory", arguments[1]);
    struct phx_options options = {.size = sizeof options, .ranks = 1, .run = "i", .tier = tier, .memory = memory};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (phx_init(&options) != PHX_OK)
        return failed("init");
    if (phx_register_obj("field", field, sizeof field, sizeof *field, NULL) != PHX_OK ||
        phx_register_obj("step", &step, sizeof step, sizeof step, NULL) != PHX_OK)
        return failed("register");
    if ((code = phx_restart(NULL, NULL)) != PHX_OK && code != PHX_ENOTFOUND)
        return failed("restart");
    for (size_t i = 0; i < COUNT; i++)
        if (field[i] != (step ? i + step : 0))
            return printf("element %zu of step %d is wrong\n", i, (int)step), 3;
    printf("from %d\n", (int)step);
    while (step < strtoull(arguments[2], NULL, 10)) {
        struct phx_version version;
        step++;
        for (size_t i = 0; i < COUNT; i++)
            field[i] = i + step;
        if (phx_checkpoint_commit(&version) != PHX_OK)
            return failed("commit");
        if (phx_wait(&version, PHX_DURABLE, 0) != PHX_OK)
            return failed("wait");
        printf("committed %d\n", (int)step);
    }
    return phx_finalize() == PHX_OK ? 0 : failed("finalize");
}
