/*
 * inject.c: runs a command, and fails or kills one of the system calls by which
 * it makes or changes files.
 *
 *     inject COUNT N HOW FOLDER NAMES COMMAND...
 *
 * HOW is what becomes of call N: eio, enospc, kill (the process that makes it);
 * with N = 0 of none. Calls count when a program of one of the NAMES (with
 * commas between them) makes them on a file below FOLDER. Their number is
 * written to the file COUNT, and a line for the one that was hit. Exits as the
 * command does, by a signal as a shell does; 97 when it cannot do its work
 * here.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CANNOT = 97, LONGEST = 4096, NONE = -1 };
/* Seconds that processes may go on after the command has ended. */
enum { GRACE = 20 };

/* Calls, and which of their arguments name the file: the folder's descriptor
 * and the path in it, or a descriptor. */
static const struct call {
    const char *name;
    int number, folder, path, file;
} CALLS[] = {
    {"write", SYS_write, NONE, NONE, 0},         {"pwrite64", SYS_pwrite64, NONE, NONE, 0},
    {"writev", SYS_writev, NONE, NONE, 0},       {"pwritev", SYS_pwritev, NONE, NONE, 0},
    {"pwritev2", SYS_pwritev2, NONE, NONE, 0},   {"copy_file_range", SYS_copy_file_range, NONE, NONE, 2},
    {"sendfile", SYS_sendfile, NONE, NONE, 0},   {"ftruncate", SYS_ftruncate, NONE, NONE, 0},
    {"fallocate", SYS_fallocate, NONE, NONE, 0}, {"fsync", SYS_fsync, NONE, NONE, 0},
    {"fdatasync", SYS_fdatasync, NONE, NONE, 0}, {"sync_file_range", SYS_sync_file_range, NONE, NONE, 0},
    {"syncfs", SYS_syncfs, NONE, NONE, 0},       {"fchmod", SYS_fchmod, NONE, NONE, 0},
    {"fsetxattr", SYS_fsetxattr, NONE, NONE, 0}, {"rename", SYS_rename, NONE, 0, NONE},
    {"renameat", SYS_renameat, 0, 1, NONE},      {"renameat2", SYS_renameat2, 0, 1, NONE},
    {"link", SYS_link, NONE, 1, NONE},           {"linkat", SYS_linkat, 2, 3, NONE},
    {"symlink", SYS_symlink, NONE, 1, NONE},     {"symlinkat", SYS_symlinkat, 1, 2, NONE},
    {"unlink", SYS_unlink, NONE, 0, NONE},       {"unlinkat", SYS_unlinkat, 0, 1, NONE},
    {"rmdir", SYS_rmdir, NONE, 0, NONE},         {"mkdir", SYS_mkdir, NONE, 0, NONE},
    {"mkdirat", SYS_mkdirat, 0, 1, NONE},        {"openat2", SYS_openat2, 0, 1, NONE},
};
enum { COUNT = sizeof CALLS / sizeof *CALLS };

/* Calls that open files, and which of their arguments are the flags: with some
 * of these they make a file, or empty one. */
static const struct open {
    struct call call;
    int flags;
} OPENS[] = {
    {{"open", SYS_open, NONE, 0, NONE}, 1},
    {{"openat", SYS_openat, 0, 1, NONE}, 2},
};
enum { OPEN_COUNT = sizeof OPENS / sizeof *OPENS, CHANGING = O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY) };

/* Filters the calls of this process and of all that it starts; the descriptor
 * by which they are told. */
static int listen_to(void) {
    struct sock_filter filter[2 * COUNT + 5 * OPEN_COUNT + 2];
    unsigned short length = 0;
    filter[length++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++) {
        filter[length++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)CALLS[i].number, 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    }
    for (int i = 0; i < OPEN_COUNT; i++) {
        unsigned at = offsetof(struct seccomp_data, args) + (unsigned)OPENS[i].flags * sizeof(__u64);
        filter[length++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)OPENS[i].call.number, 0, 4);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at);
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CHANGING, 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    if (geteuid() != 0)
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
};

static bool hand_over(int to, int descriptor) {
    char byte = 0;
    struct iovec part = {&byte, 1};
    union control control = {{0}};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    return sendmsg(to, &message, 0) == 1;
}

static int take_over(int from) {
    char byte;
    struct iovec part = {&byte, 1};
    union control control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int descriptor = -1;
    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

/* The target of a link of a process in /proc; an empty text if it has none. */
static void leads(pid_t process, const char *link, char *to) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", process, link);
    ssize_t length = readlink(path, to, LONGEST - 1);
    to[length > 0 ? length : 0] = '\0';
}

static void leads_open(pid_t process, int descriptor, char *to) {
    char link[32];
    snprintf(link, sizeof link, "fd/%d", descriptor);
    leads(process, descriptor == AT_FDCWD ? "cwd" : link, to);
}

/* A text of another process, up to the end of its page at least. */
static void copied(pid_t process, uint64_t address, char *text) {
    size_t length = 4096 - (address & 4095);
    ssize_t got = 0;
    for (int pages = 0; pages < 2 && !memchr(text, 0, (size_t)got); pages++) {
        struct iovec here = {text + got, LONGEST - 1 - (size_t)got};
        if (here.iov_len > length)
            here.iov_len = length;
        struct iovec there = {(void *)(address + (uint64_t)got), here.iov_len};
        ssize_t more = process_vm_readv(process, &here, 1, &there, 1, 0);
        if (more <= 0)
            break;
        got += more;
        length = 4096;
    }
    text[got] = '\0';
}

/* The file that a call is about. */
static void file_of(const struct call *call, const struct seccomp_notif *notif, char *file) {
    const __u64 *arguments = notif->data.args;
    pid_t process = (pid_t)notif->pid;
    if (call->file != NONE) {
        leads_open(process, (int)arguments[call->file], file);
        return;
    }
    char name[LONGEST];
    copied(process, arguments[call->path], name);
    if (name[0] == '/') {
        memcpy(file, name, LONGEST);
        return;
    }
    leads_open(process, call->folder == NONE ? AT_FDCWD : (int)arguments[call->folder], file);
    size_t length = strlen(file);
    snprintf(file + length, 2 * LONGEST - length, "/%s", name);
}

static bool is_one_of(const char *name, const char *names) {
    size_t length = strlen(name);
    for (const char *at = names; (at = strstr(at, name)); at += length)
        if ((at == names || at[-1] == ',') && (at[length] == ',' || !at[length]))
            return true;
    return false;
}

static struct {
    long wanted, calls;
    int error; /* 0: the process is killed */
    const char *folder, *names;
    FILE *count;
} plan;

static const struct call *call_of(int number) {
    for (int i = 0; i < OPEN_COUNT; i++)
        if (OPENS[i].call.number == number)
            return &OPENS[i].call;
    const struct call *call = CALLS;
    while (call->number != number)
        call++;
    return call;
}

/* Whether an openat2 makes a file, or empties one: its flags are in memory. */
static bool is_changing(const struct seccomp_notif *notif) {
    uint64_t flags = 0;
    struct iovec here = {&flags, sizeof flags};
    struct iovec there = {(void *)notif->data.args[2], sizeof flags};
    process_vm_readv((pid_t)notif->pid, &here, 1, &there, 1, 0);
    return flags & CHANGING;
}

/* The error that a call gets; 0 if none. */
static int fate(const struct seccomp_notif *notif) {
    char program[LONGEST], file[2 * LONGEST];
    const struct call *call = call_of(notif->data.nr);
    if (notif->data.nr == SYS_openat2 && !is_changing(notif))
        return 0;
    leads((pid_t)notif->pid, "exe", program);
    const char *name = strrchr(program, '/');
    if (!is_one_of(name ? name + 1 : program, plan.names))
        return 0;
    file_of(call, notif, file);
    if (strncmp(file, plan.folder, strlen(plan.folder)) != 0 || ++plan.calls != plan.wanted)
        return 0;
    fprintf(plan.count, "%s %s\n", call->name, file);
    if (plan.error == 0)
        kill((pid_t)notif->pid, SIGKILL);
    return plan.error;
}

static void serve(int listener, pid_t command, int *status) {
    bool ended = false;
    time_t until = 0;
    while (!ended || time(NULL) < until) {
        struct pollfd polled = {.fd = listener, .events = POLLIN};
        int ready = poll(&polled, 1, 50);
        if (!ended && waitpid(command, status, WNOHANG) == command) {
            ended = true;
            until = time(NULL) + GRACE;
        }
        if (ready > 0 && polled.revents & POLLHUP && !(polled.revents & POLLIN)) {
            if (!ended)
                waitpid(command, status, 0);
            return;
        }
        struct seccomp_notif call = {0};
        if (ready <= 0 || ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0)
            continue;
        int error = fate(&call);
        struct seccomp_notif_resp answer = {.id = call.id, .error = -error};
        answer.flags = error ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        /* One that is dead needs none. */
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

static int cannot(const char *what) {
    fprintf(stderr, "inject: %s: %s\n", what, strerror(errno));
    return CANNOT;
}

int main(int count, char **arguments) {
    if (count < 7)
        return CANNOT;
    plan.count = fopen(arguments[1], "we");
    plan.wanted = atol(arguments[2]);
    const char *how = arguments[3];
    plan.error = strcmp(how, "eio") == 0 ? EIO : strcmp(how, "enospc") == 0 ? ENOSPC : 0;
    plan.folder = arguments[4];
    plan.names = arguments[5];
    int pair[2], status = 0;
    if (!plan.count || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return cannot("cannot begin");
    pid_t command = fork();
    if (command == 0) {
        int listener = listen_to();
        if (listener < 0 || !hand_over(pair[1], listener))
            _exit(cannot("cannot filter system calls"));
        close(listener);
        execvp(arguments[6], arguments + 6);
        _exit(cannot(arguments[6]));
    }
    close(pair[1]);
    int listener = take_over(pair[0]);
    if (listener < 0) {
        waitpid(command, &status, 0);
        return CANNOT;
    }
    serve(listener, command, &status);
    fprintf(plan.count, "%ld\n", plan.calls);
    fclose(plan.count);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
