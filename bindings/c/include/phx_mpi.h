/*
 * phx_mpi.h: phx_init for the ranks of an MPI communicator. It is a header alone, as the ABIs of MPI differ: it is
 * compiled with the program's own MPI, and the library knows of none.
 */
#ifndef PHX_MPI_H
#define PHX_MPI_H

#include "phx.h"

#include <mpi.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* The values that rank 0 sends to the others. */
struct phx_mpi_rendezvous {
    char run[256];
    char meet[MPI_MAX_PROCESSOR_NAME + 8]; /* empty: on one node, or where the environment says */
    char key[4 + 64 + 1];
};

/* A port of this node that is free now, and a key for this start alone; 0 where that cannot be had. */
static inline int phx_mpi_meet(struct phx_mpi_rendezvous *rendezvous)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    unsigned char random[32];
    char host[MPI_MAX_PROCESSOR_NAME];
    int i, found, host_length, fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    found = fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 &&
            getsockname(fd, (struct sockaddr *)&address, &length) == 0;
    if (fd >= 0)
        close(fd);
    if (!found || getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return 0;
    MPI_Get_processor_name(host, &host_length);
    snprintf(rendezvous->meet, sizeof rendezvous->meet, "%s:%d", host, (int)ntohs(address.sin_port));
    memcpy(rendezvous->key, "hex:", 4);
    for (i = 0; i < 32; i++)
        snprintf(rendezvous->key + 4 + 2 * i, 3, "%02x", random[i]);
    return 1;
}

/*
 * phx_init by all ranks of a communicator, between MPI_Init and MPI_Finalize. Rank and number of ranks are the communicator's,
 * not those of the options; the options may be NULL. If the ranks are on several nodes, and neither `meet` nor $TARN_PHX_MEET
 * says where they meet, rank 0 chooses a free port of its node and a key. All ranks get PHX_EINVALID when one has another
 * run's name than rank 0, or options of another size.
 */
static inline int phx_init_mpi(MPI_Comm communicator, const struct phx_options *options)
{
    struct phx_options own;
    struct phx_mpi_rendezvous rendezvous;
    MPI_Comm node;
    const char *run, *meet;
    int rank, ranks, here, good[3], all[3];

    MPI_Comm_rank(communicator, &rank);
    MPI_Comm_size(communicator, &ranks);
    MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &here);
    MPI_Comm_free(&node);

    memset(&own, 0, sizeof own);
    good[0] = options == NULL || options->size == sizeof own;
    if (options != NULL && good[0])
        own = *options;
    own.size = sizeof own;
    own.rank = (uint32_t)rank;
    own.ranks = (uint32_t)ranks;
    run = own.run != NULL ? own.run : getenv("TARN_PHX_RUN");
    if (run == NULL || *run == 0)
        run = "phx";
    meet = own.meet != NULL ? own.meet : getenv("TARN_PHX_MEET");
    good[1] = here == ranks;
    good[2] = meet != NULL && *meet != 0;
    MPI_Allreduce(good, all, 2, MPI_INT, MPI_MIN, communicator);
    MPI_Allreduce(good + 2, all + 2, 1, MPI_INT, MPI_MAX, communicator);

    memset(&rendezvous, 0, sizeof rendezvous);
    good[1] = 1;
    if (rank == 0) {
        snprintf(rendezvous.run, sizeof rendezvous.run, "%s", run);
        if (!all[1] && !all[2])
            good[1] = phx_mpi_meet(&rendezvous);
    }
    MPI_Bcast(&rendezvous, (int)sizeof rendezvous, MPI_BYTE, 0, communicator);
    good[2] = strlen(run) < sizeof rendezvous.run && strcmp(run, rendezvous.run) == 0;
    MPI_Allreduce(good, all, 3, MPI_INT, MPI_MIN, communicator);
    if (!all[0])
        return phx_fail(PHX_EINVALID, "the size of a rank's phx_options is not that of phx_mpi.h: set it to sizeof");
    if (!all[1])
        return phx_fail(PHX_EIO, "rank 0 has no free port or no random numbers: set `meet` and `key`");
    if (!all[2])
        return phx_fail(PHX_EINVALID, "ranks have different names for the run, or one of more than 200 bytes: give all the same");
    if (rendezvous.meet[0] != 0) {
        own.meet = rendezvous.meet;
        own.key = rendezvous.key;
    }
    return phx_init(&own);
}

#endif
