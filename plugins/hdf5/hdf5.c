#include "hdf5.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

bool hdf5_find(struct hdf5 *hdf5, const void *caller) {
    Dl_info where;
    if (!dladdr(caller, &where) || !where.dli_fname)
        return false;
    void *library = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) /* a program that has HDF5 linked into itself */
        library = dlopen(NULL, RTLD_LAZY);
    if (!library)
        return false;
    const struct {
        const char *name;
        void *at;
    } wanted[] = {
        {"H5Pget_driver_config_str", &hdf5->config},
        {"H5Epush2", &hdf5->push},
        {"H5E_ERR_CLS_g", &hdf5->errors},
        {"H5E_VFL_g", &hdf5->major},
        {"H5E_CANTOPENFILE_g", &hdf5->cannot_open},
        {"H5E_CANTLOCKFILE_g", &hdf5->cannot_lock},
        {"H5E_CANTALLOC_g", &hdf5->no_room},
        {"H5E_READERROR_g", &hdf5->read_failed},
        {"H5E_WRITEERROR_g", &hdf5->write_failed},
    };
    bool all = true;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(library, wanted[i].name);
        all = all && found;
        memcpy(wanted[i].at, &found, sizeof found);
    }
    /* It is loaded for as long as it calls. */
    dlclose(library);
    return all;
}

int hdf5_fail(const struct hdf5 *hdf5, const int64_t *minor, const char *function, const struct why *why) {
    char number[32] = "";
    const char *system = strstr(why->text, " (os error ");
    size_t length = why->number && system ? (size_t)(system - why->text) : strlen(why->text);
    if (why->number)
        snprintf(number, sizeof number, " (errno = %d)", why->number);
    hdf5->push(0, "tarn", function, 0, *hdf5->errors, *hdf5->major, *minor, "tarn: %.*s%s", (int)length,
               why->text, number);
    return -1;
}
