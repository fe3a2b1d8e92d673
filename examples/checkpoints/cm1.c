/*
 * cm1.c: a proxy of CM1, a model of the atmosphere: three winds, pressure, temperature and three kinds of water on a grid, all
 * rewritten in each time step until the checkpoint. proxy.h describes its variables and its output.
 */
#include "proxy.h"

#include <stdlib.h>
#include <string.h>

enum { NX = 64, NY = 64, FIELDS = 8 };

static const char *const names[FIELDS] = {"u", "v", "w", "pressure", "theta", "vapour", "cloud", "rain"};
static double *fields[FIELDS], *next; /* [nz][NY][NX]; around each other at the sides */
static size_t nz, count;

static void begin(void)
{
    for (int f = 0; f < FIELDS; f++)
        for (size_t i = 0; i < count; i++)
            fields[f][i] = (double)((i * (size_t)(f + 3)) % 101) * 0.01;
}

/* The flow out of a cell goes into its neighbours; the wind before it drives a field. */
static void step(int f)
{
    const double *a = fields[f], *wind = fields[(f + 1) % FIELDS];
    for (size_t z = 0; z < nz; z++) {
        const double *below = a + (z > 0 ? z - 1 : 0) * NY * NX, *above = a + (z + 1 < nz ? z + 1 : z) * NY * NX;
        for (size_t y = 0; y < NY; y++) {
            size_t row = (z * NY + y) * NX, south = (z * NY + (y + NY - 1) % NY) * NX, north = (z * NY + (y + 1) % NY) * NX;
            for (size_t x = 0; x < NX; x++) {
                size_t west = (x + NX - 1) % NX, east = (x + 1) % NX, level = y * NX + x;
                double around = a[row + west] + a[row + east] + a[south + x] + a[north + x] + below[level] + above[level];
                next[row + x] = 0.39 * a[row + x] + 0.1 * around + 0.01 * wind[row + x];
            }
        }
    }
    memcpy(fields[f], next, count * sizeof *next);
}

static void cycle(int steps)
{
    for (int s = 1; s <= steps; s++) {
        proxy_work((double)s / steps);
        for (int f = 0; f < FIELDS; f++)
            step(f);
    }
}

int main(void)
{
    int done = 0, restored;
    uint64_t sum = 0;
    proxy_begin("cm1");
    int steps = (int)proxy_parameter("steps");
    struct phx_properties properties = proxy_properties();
    nz = proxy_bytes() / (FIELDS * NY * NX * sizeof(double)) + 1;
    count = nz * NY * NX;
    for (int f = 0; f < FIELDS; f++) {
        void *memory;
        proxy_must(phx_create_obj(names[f], count * sizeof(double), sizeof(double), &properties, &memory));
        fields[f] = memory;
    }
    proxy_must(phx_register_obj("cycle", &done, sizeof done, sizeof done, NULL));
    next = malloc(count * sizeof *next);
    if (next == NULL)
        return 1;

    begin();
    if (proxy_calibrates()) {
        cycle(steps);
        proxy_calibrated();
        begin();
    }
    int code = phx_restart(NULL, NULL);
    if (code != PHX_ENOTFOUND)
        proxy_must(code);
    restored = done;
    while (done < proxy_cycles()) {
        cycle(steps);
        done++;
        proxy_computed();
        if (proxy_keeps())
            proxy_must(phx_checkpoint_commit(NULL));
        proxy_committed(done);
    }
    for (int f = 0; f < FIELDS; f++)
        sum = proxy_checksum(sum, fields[f], count * sizeof(double));
    free(next);
    proxy_end(restored, sum);
    return 0;
}
