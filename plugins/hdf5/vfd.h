/*
 * vfd.h: the interface between HDF5 1.14 to 2.x and a virtual file driver that it loads: version 1 of its
 * class, which HDF5 keeps as it is (H5FDdevelop.h, H5FDpublic.h, H5Fpublic.h). Declared here once more,
 * because HDF5's own headers of such versions are in no package of Debian 12, and those of 1.14 make a
 * plug-in need a symbol that h5py's library hides. docs/internals/hdf5.md says more; tests/headers.c holds
 * this against the real ones.
 */
#ifndef TARN_VFD_H
#define TARN_VFD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VFD_UNDEFINED UINT64_MAX /* an address that is none */

enum { VFD_CLASS_VERSION = 1, VFD_PLUGIN_TYPE = 2, VFD_CLOSE_WEAK = 1 };

/* Flags of open. */
enum { VFD_RDWR = 1, VFD_TRUNC = 2, VFD_EXCL = 4, VFD_CREAT = 16 };

/* The abilities that a driver declares. */
enum {
    VFD_AGGREGATE_METADATA = 0x1,
    VFD_ACCUMULATE_METADATA = 0x6,
    VFD_AGGREGATE_SMALLDATA = 0x10,
    VFD_DEFAULT_COMPATIBLE = 0x8000
};

/* Kinds of data in a file. */
enum vfd_mem {
    VFD_MEM_NOLIST = -1,
    VFD_MEM_DEFAULT,
    VFD_MEM_SUPER,
    VFD_MEM_BTREE,
    VFD_MEM_DRAW,
    VFD_MEM_KINDS = 7
};

struct vfd_class;

/* The part of an open file that is the same for any driver; the driver's own follows it. */
struct vfd_file {
    int64_t driver;
    const struct vfd_class *class;
    unsigned long number;
    unsigned access;
    unsigned long features;
    uint64_t max_address;
    uint64_t base_address;
    uint64_t threshold;
    uint64_t alignment;
    bool paged;
};

struct vfd_class {
    unsigned version;
    int value;
    const char *name;
    uint64_t max_address;
    int close_degree;
    int (*terminate)(void);
    uint64_t (*superblock_size)(struct vfd_file *);
    int (*superblock_encode)(struct vfd_file *, char *, unsigned char *);
    int (*superblock_decode)(struct vfd_file *, const char *, const unsigned char *);
    size_t fapl_size;
    void *(*fapl_get)(struct vfd_file *);
    void *(*fapl_copy)(const void *);
    int (*fapl_free)(void *);
    size_t dxpl_size;
    void *(*dxpl_copy)(const void *);
    int (*dxpl_free)(void *);
    struct vfd_file *(*open)(const char *name, unsigned flags, int64_t fapl, uint64_t max_address);
    int (*close)(struct vfd_file *);
    int (*compare)(const struct vfd_file *, const struct vfd_file *);
    int (*query)(const struct vfd_file *, unsigned long *features);
    int (*type_map)(const struct vfd_file *, enum vfd_mem *);
    uint64_t (*allocate)(struct vfd_file *, enum vfd_mem, int64_t dxpl, uint64_t);
    int (*release)(struct vfd_file *, enum vfd_mem, int64_t dxpl, uint64_t, uint64_t);
    uint64_t (*get_eoa)(const struct vfd_file *, enum vfd_mem);
    int (*set_eoa)(struct vfd_file *, enum vfd_mem, uint64_t);
    uint64_t (*get_eof)(const struct vfd_file *, enum vfd_mem);
    int (*handle)(struct vfd_file *, int64_t fapl, void **);
    int (*read)(struct vfd_file *, enum vfd_mem, int64_t dxpl, uint64_t address, size_t size, void *);
    int (*write)(struct vfd_file *, enum vfd_mem, int64_t dxpl, uint64_t address, size_t size, const void *);
    int (*read_vector)(struct vfd_file *, int64_t dxpl, uint32_t count, enum vfd_mem kinds[],
                       uint64_t addresses[], size_t sizes[], void *buffers[]);
    int (*write_vector)(struct vfd_file *, int64_t dxpl, uint32_t count, enum vfd_mem kinds[],
                        uint64_t addresses[], size_t sizes[], const void *buffers[]);
    int (*read_selection)(struct vfd_file *, enum vfd_mem, int64_t dxpl, size_t count, int64_t memory[],
                          int64_t file[], uint64_t offsets[], size_t sizes[], void *buffers[]);
    int (*write_selection)(struct vfd_file *, enum vfd_mem, int64_t dxpl, size_t count, int64_t memory[],
                           int64_t file[], uint64_t offsets[], size_t sizes[], const void *buffers[]);
    int (*flush)(struct vfd_file *, int64_t dxpl, bool closing);
    int (*truncate)(struct vfd_file *, int64_t dxpl, bool closing);
    int (*lock)(struct vfd_file *, bool write);
    int (*unlock)(struct vfd_file *);
    int (*remove)(const char *name, int64_t fapl);
    int (*control)(struct vfd_file *, uint64_t code, uint64_t flags, const void *, void **);
    enum vfd_mem free_lists[VFD_MEM_KINDS];
};

_Static_assert(sizeof(struct vfd_file) == 80, "an open file of HDF5");
_Static_assert(sizeof(struct vfd_class) == 336, "a class of HDF5");
_Static_assert(offsetof(struct vfd_class, open) == 120, "a class of HDF5");
_Static_assert(offsetof(struct vfd_class, free_lists) == 304, "a class of HDF5");

#endif
