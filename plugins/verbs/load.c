#include "device.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

void *real_symbol(const char *name, const char *version) {
    static void *library;
    if (!library)
        library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL);
    return library ? dlvsym(library, name, version) : NULL;
}

const struct storage_ops *storage_ops(void) {
    static const struct storage_ops *ops;
    static const char name[] = "libtarnverbs-storage.so";
    char path[PATH_MAX];
    Dl_info own;
    if (ops)
        return ops;
    /* Beside this one. */
    if (!dladdr(name, &own) || strlen(own.dli_fname) + sizeof name >= sizeof path)
        return NULL;
    strcpy(path, own.dli_fname);
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ops = library ? dlsym(library, "tarn_verbs_storage") : NULL;
    if (!ops)
        fprintf(stderr, "tarn verbs: no storage: %s\n", dlerror());
    return ops;
}
