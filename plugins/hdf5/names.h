/* names.h: which partition holds the file that a program names. */
#ifndef TARN_NAMES_H
#define TARN_NAMES_H

#include "config.h"

/* The one name, from malloc, that a partition has for this program, by any link to its folder; NULL
 * without memory. */
char *name_of(const char *partition);
/* That of the file of a name in the configuration's folder. */
char *name_in(const struct config *config, const char *file);

/* Makes the folders below the configuration's that a partition lies in; an error is reported when the
 * partition is made. */
void names_enter(const struct config *config, const char *partition);
/* Takes away those of them that are empty. */
void names_leave(const struct config *config, const char *partition);

#endif
