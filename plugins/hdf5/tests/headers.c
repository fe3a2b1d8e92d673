/* headers.c: the declarations of vfd.h are those of HDF5's own headers; it need only compile. */
#define H5_NO_DEPRECATED_SYMBOLS
#include <sys/types.h>

#include "../vfd.h"
#include <H5Epublic.h>
#include <H5FDdevelop.h>
#include <H5PLextern.h>
#include <H5Ppublic.h>

#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #ours " is " #theirs)
#define FIELD(type, ours, their_type, theirs)                                                                \
    SAME(offsetof(struct type, ours), offsetof(their_type, theirs));                                         \
    SAME(sizeof(((struct type *)0)->ours), sizeof(((their_type *)0)->theirs))
#define CLASS(ours, theirs) FIELD(vfd_class, ours, H5FD_class_t, theirs)
#define PUBLIC(ours, theirs) FIELD(vfd_file, ours, H5FD_t, theirs)

SAME(sizeof(struct vfd_class), sizeof(H5FD_class_t));
CLASS(version, version);
CLASS(value, value);
CLASS(name, name);
CLASS(max_address, maxaddr);
CLASS(close_degree, fc_degree);
CLASS(terminate, terminate);
CLASS(superblock_size, sb_size);
CLASS(superblock_encode, sb_encode);
CLASS(superblock_decode, sb_decode);
CLASS(fapl_size, fapl_size);
CLASS(fapl_get, fapl_get);
CLASS(fapl_copy, fapl_copy);
CLASS(fapl_free, fapl_free);
CLASS(dxpl_size, dxpl_size);
CLASS(dxpl_copy, dxpl_copy);
CLASS(dxpl_free, dxpl_free);
CLASS(open, open);
CLASS(close, close);
CLASS(compare, cmp);
CLASS(query, query);
CLASS(type_map, get_type_map);
CLASS(allocate, alloc);
CLASS(release, free);
CLASS(get_eoa, get_eoa);
CLASS(set_eoa, set_eoa);
CLASS(get_eof, get_eof);
CLASS(handle, get_handle);
CLASS(read, read);
CLASS(write, write);
CLASS(read_vector, read_vector);
CLASS(write_vector, write_vector);
CLASS(read_selection, read_selection);
CLASS(write_selection, write_selection);
CLASS(flush, flush);
CLASS(truncate, truncate);
CLASS(lock, lock);
CLASS(unlock, unlock);
CLASS(remove, del);
CLASS(control, ctl);
CLASS(free_lists, fl_map);

SAME(sizeof(struct vfd_file), sizeof(H5FD_t));
PUBLIC(driver, driver_id);
PUBLIC(class, cls);
PUBLIC(number, fileno);
PUBLIC(access, access_flags);
PUBLIC(features, feature_flags);
PUBLIC(max_address, maxaddr);
PUBLIC(base_address, base_addr);
PUBLIC(threshold, threshold);
PUBLIC(alignment, alignment);
PUBLIC(paged, paged_aggr);

SAME(VFD_CLASS_VERSION, H5FD_CLASS_VERSION);
SAME((int)VFD_PLUGIN_TYPE, (int)H5PL_TYPE_VFD);
SAME((int)VFD_CLOSE_WEAK, (int)H5F_CLOSE_WEAK);
SAME((int)VFD_MEM_SUPER, (int)H5FD_MEM_SUPER);
SAME(VFD_UNDEFINED, HADDR_UNDEF);
SAME(VFD_AGGREGATE_METADATA, H5FD_FEAT_AGGREGATE_METADATA);
SAME(VFD_ACCUMULATE_METADATA, H5FD_FEAT_ACCUMULATE_METADATA);
SAME(VFD_AGGREGATE_SMALLDATA, H5FD_FEAT_AGGREGATE_SMALLDATA);
SAME(VFD_DEFAULT_COMPATIBLE, H5FD_FEAT_DEFAULT_VFD_COMPATIBLE);
SAME((int)VFD_MEM_NOLIST, (int)H5FD_MEM_NOLIST);
SAME((int)VFD_MEM_DRAW, (int)H5FD_MEM_DRAW);
SAME((int)VFD_MEM_KINDS, (int)H5FD_MEM_NTYPES);
SAME(sizeof(int64_t), sizeof(hid_t));
SAME(sizeof(int), sizeof(herr_t));

/* The functions that are looked up are of the types that hdf5.h says. */
ssize_t (*config)(int64_t, char *, size_t) = H5Pget_driver_config_str;
int (*push)(int64_t, const char *, const char *, unsigned, int64_t, int64_t, int64_t, const char *,
            ...) = H5Epush2;
