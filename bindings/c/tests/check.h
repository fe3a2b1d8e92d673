/* check.h: calls that are to give a code. One that gives another is printed, with the reason, and the program continues with
 * its next. */
#ifndef CHECK_H
#define CHECK_H

#include "phx.h"

#include <stdio.h>

/* The call that gives the reason; a program of tarn.h's codes has another. */
#ifndef WHY
#define WHY phx_last_error()
#endif

static int failed;

static void check(int is, int wanted, const char *what)
{
    if (is != wanted) {
        printf("%s: %d instead of %d: %s\n", what, is, wanted, WHY);
        failed = 1;
    }
}

#define CHECK(call, wanted) check(call, wanted, #call)

#endif
