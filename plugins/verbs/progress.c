#include "device.h"

#include <signal.h>
#include <time.h>

/* ns between two looks at requests that wait for a peer or for storage: from, and up to. */
#define SOON 20000
#define LATE 1000000

/* Queue pairs with such requests. The thread is there from the first one on. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct queue_pair *list;
static bool begun;

uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Looks at each, and takes those out that wait for nothing any more. Whether any went on. */
static bool look(void) {
    bool moved = false;
    for (struct queue_pair **at = &list; *at;) {
        struct queue_pair *qp = *at;
        /* The holder of the lock continues with it. */
        if (pthread_mutex_trylock(&qp->send_lock) != 0) {
            at = &qp->next;
            continue;
        }
        uint32_t before = qp->begun + qp->ended;
        send_advance(qp);
        moved |= before != qp->begun + qp->ended;
        pthread_mutex_unlock(&qp->send_lock);
        if (qp->pending) {
            at = &qp->next;
        } else {
            *at = qp->next;
            qp->listed = false;
        }
    }
    return moved;
}

static void *run(void *unused) {
    long pause = SOON;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!list) {
            pause = SOON;
            pthread_cond_wait(&more, &lock);
        }
        pause = look() ? SOON : pause < LATE / 2 ? pause * 2 : LATE;
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        pthread_mutex_lock(&lock);
    }
    return unused;
}

static bool begin(void) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool made = pthread_create(&thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return made && pthread_detach(thread) == 0;
}

void progress_wake(struct queue_pair *qp) {
    pthread_mutex_lock(&lock);
    if (!qp->listed) {
        qp->listed = true;
        qp->next = list;
        list = qp;
    }
    /* Without it, a poll continues them. */
    begun = begun || begin();
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
}

void progress_leave(struct queue_pair *qp) {
    pthread_mutex_lock(&lock);
    for (struct queue_pair **at = &list; *at; at = &(*at)->next)
        if (*at == qp) {
            *at = qp->next;
            break;
        }
    qp->listed = false;
    pthread_mutex_unlock(&lock);
}

void progress_forked(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&more, NULL);
    list = NULL;
    begun = false;
}
