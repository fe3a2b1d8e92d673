/*
 * hdf5.h: the few functions of HDF5 that the driver calls, of whichever HDF5 has called it: a process may
 * have several, none of which this library may be linked with.
 */
#ifndef TARN_HDF5_H
#define TARN_HDF5_H

#include "config.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct hdf5 {
    ssize_t (*config)(int64_t fapl, char *text, size_t size);
    int (*push)(int64_t stack, const char *file, const char *function, unsigned line, int64_t errors,
                int64_t major, int64_t minor, const char *format, ...);
    const int64_t *errors, *major, *cannot_open, *cannot_lock, *no_room, *read_failed, *write_failed;
};

/* Finds them in the library that contains a return address; false when it has not all of them. */
bool hdf5_find(struct hdf5 *hdf5, const void *caller);

/* Puts an error on HDF5's stack, to be printed or raised by the caller of HDF5; -1. Its errno is
 * reported as by HDF5's own drivers: h5py makes the kind of its exception of that. */
int hdf5_fail(const struct hdf5 *hdf5, const int64_t *minor, const char *function, const struct why *why);

#endif
