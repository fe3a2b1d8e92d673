/*
 * inject.h: calls of which one may be failed. A program prints on its output the steps that it begins and has done; on the other
 * the failed one, and tries that once more: it is hit once.
 */
#ifndef INJECT_H
#define INJECT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The call that gives the reason of an error. */
#ifndef WHY
#define WHY phx_last_error()
#endif

/* Whether all was tried before, by a program that was ended: steps that are done already have a code of their own. */
static int again;

/* A step: its name in the output, a call, and the code of a step that was done before, if there is one; GONE: for a call that
 * takes something away, which may be done when the call fails, though not durably. */
#define STEP(name, call, done) TRY(name, call, again ? (done) : 0, 0)
#define GONE(name, call, done) TRY(name, call, again ? (done) : 0, done)
#define TRY(name, call, before, failed) \
    do { \
        printf("begin %s\n", name); \
        int rc = call; \
        if (rc != 0 && rc != (before)) { \
            fprintf(stderr, "%s: %d: %s\n", name, rc, WHY); \
            if ((rc = call) != 0 && rc != (failed)) \
                return fprintf(stderr, "%s, once more: %d: %s\n", name, rc, WHY), 1; \
        } \
        printf("done %s\n", name); \
    } while (0)

/* A condition that must hold. */
#define HOLDS(what) \
    do { \
        if (!(what)) \
            return printf("not so, line %d: %s: %s\n", __LINE__, #what, WHY), 1; \
    } while (0)

static const char *output = "";

static int is_reported(const char *how, const char *step)
{
    char line[128];
    snprintf(line, sizeof line, "%s %s\n", how, step);
    return strstr(output, line) != NULL;
}

/* Whether a step was reported as done; and whether it was not even begun. Between the two, either is right. */
static inline int was_done(const char *step)
{
    return is_reported("done", step);
}

static inline int was_begun(const char *step)
{
    return is_reported("begin", step);
}

#endif
