/* The few calls of libfabric that tarn needs, as one library that tarnd loads at run time if it is
 * configured.
 *
 * Memory is named by the windows that one side opens onto a file; the other side reads from them, or writes
 * to them, without the first one's doing (RMA). Functions return 0 or a count, or a negative errno. All but
 * tf_stop and tf_close may be called by several threads at once; tf_stop and tf_close while no other call is
 * made. */
#ifndef TARNFABRIC_H
#define TARNFABRIC_H

#include <stddef.h>
#include <stdint.h>

/* The version that both sides of the loading must agree on. */
#define TF_VERSION 3
/* Bytes of an endpoint's name, at most. */
#define TF_NAME 255
/* Windows of one process at one time. */
#define TF_WINDOWS 1024

struct tf;
struct tf_window;

/* A read or write that is over. */
struct tf_done {
    void *context;
    int error;
};

int tf_version(void);

/* For a handler of SIGBUS, with the address of the fault: whether it was a window's, and all is well now.
 * Uses atomic words and system calls only. Windows onto files that others may cut are opened only while a
 * handler calls it. */
int tf_deal(uintptr_t at);

/* Opens an endpoint at an address of this host (NULL: any) with a provider, such as "tcp;ofi_rxm". The
 * error is written to `why`. */
int tf_open(const char *provider, const char *node, struct tf **out, char *why, size_t why_size);

/* The endpoint's name for its peers. `size` holds the space and then the length. */
int tf_name(struct tf *tf, void *name, size_t *size);

/* Takes note of a peer by its name; `peer` is its number from now on. */
int tf_peer(struct tf *tf, const void *name, size_t size, uint64_t *peer);

/* Lets whoever knows `from` and `key` read a stretch of a file, and write it if `writable`. `wanted` is the
 * key where the provider lets one choose. A file that is cut meanwhile reads as zeros there, and
 * `stream`, a socket that stays open as long (-1: none), is shut down. The file's descriptor may be closed
 * afterwards. */
int tf_window_open(struct tf *tf, int fd, uint64_t offset, uint64_t length, int writable, int stream,
                   uint64_t wanted, struct tf_window **out, uint64_t *from, uint64_t *key);
void tf_window_close(struct tf_window *window);

/* Begins to read from a peer's window. `to` must stay until tf_progress returns `context`, or tf_stop.
 * -EAGAIN: not now, such as while a connection is made; progress must be made meanwhile. */
int tf_read(struct tf *tf, uint64_t peer, void *to, size_t length, uint64_t from, uint64_t key,
            void *context);

/* Begins to write to a peer's window; all that looks there sees it when it is over. The rest as for tf_read.
 */
int tf_write(struct tf *tf, uint64_t peer, const void *bytes, size_t length, uint64_t from, uint64_t key,
             void *context);

/* Lets the endpoint do its work for at most so many milliseconds, or until something is over. How many are.
 */
int tf_progress(struct tf *tf, int millis, struct tf_done *done, size_t count);

/* A descriptor that becomes readable when there is something to do, for a caller that got from
 * tf_may_sleep that there is nothing (1); negative if the provider has none. */
int tf_descriptor(struct tf *tf);
int tf_may_sleep(struct tf *tf);

/* Ends the endpoint: nothing is read or written by it any more. */
void tf_stop(struct tf *tf);

/* Frees everything. Windows must have been closed. */
void tf_close(struct tf *tf);

#endif
