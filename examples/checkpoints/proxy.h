/*
 * proxy.h: the common part of the three proxies: their parameters, the work between updates, the clock, the output.
 *
 * From the environment: PROXIES (the file of parameters; proxies.conf), SCALE (of the bytes; 1), CYCLES (in all; 10), CHECKPOINTS (phx-ec;
 * phx-mp: the same with PHX_MPROTECT; always: small and late arrays are copied ahead too; phx: none is; nvr: all goes to the persistent
 * tier at once; none), WORK (passes of work in a cycle; 0), or RATE (of the persistent tier, in bytes a second: WORK is then measured so
 * that a naive checkpoint takes the published share of the computing time), RANK and RANKS (0 and 1), REPLICAS (0), SAME_NODE (1: a
 * buddy on this node will do), HELPER (the processor of the helper thread), and TARN_PHX_TIER and so on.
 *
 * Printed: a line "cycle=... iteration_s=... checkpoint_s=..." after each, then a line key=value for each total.
 */
#ifndef PROXY_H
#define PROXY_H

#include "phx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads all that, and calls phx_init. */
void proxy_begin(const char *name);

/* A number from the file: NAME.key. */
double proxy_parameter(const char *key);

/* Bytes of this rank, scaled. */
size_t proxy_bytes(void);

/* The properties of its objects. */
struct phx_properties proxy_properties(void);

/* Ends the program when a call did not do what it was to. */
void proxy_must(int code);

/* Whether WORK is to be measured: then a cycle is computed, proxy_calibrated called, and all begun again. */
int proxy_calibrates(void);
void proxy_calibrated(void);

/* The last cycle, and whether there are checkpoints. */
int proxy_cycles(void);
int proxy_keeps(void);

/* Works until this share of the cycle's passes is done. */
void proxy_work(double share);

/* The computing of a cycle is over; its checkpoint is. */
void proxy_computed(void);
void proxy_committed(int cycle);

/* Continues a checksum over more bytes; it begins with 0. */
uint64_t proxy_checksum(uint64_t sum, const void *bytes, size_t count);

/* Prints the totals, and calls phx_finalize. */
void proxy_end(int restored, uint64_t checksum);

#ifdef __cplusplus
}
#endif
#endif
