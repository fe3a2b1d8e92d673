/* forks.h: children and threads of programs that try what forks and threads do. After check.h. */
#ifndef FORKS_H
#define FORKS_H

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 100

/* Runs a function in a child; its result says that it failed. A child that waits for ever is ended. */
static void child(const char *what, int (*run)(void))
{
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(120);
        int rc = run();
        fflush(stdout);
        _exit(rc || failed);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        printf("%s: the child ended with %#x\n", what, (unsigned)status);
        failed = 1;
    }
}

/* Runs a function in some threads at once; a text that one gives describes its failure. */
static void all(void *(*run)(void *), void *arg)
{
    pthread_t threads[THREADS];
    void *why;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, arg);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &why);
        if (why) {
            printf("%s\n", (const char *)why);
            failed = 1;
        }
    }
}

#endif
