/* Preloaded into a gateway: while the file STALL_WHILE exists, writes and syncs of files named STALL_NAME* stand
   still, as on a disk that does not answer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void stall(int fd) {
    char link[64], path[4096], *flag = getenv("STALL_WHILE"), *name = getenv("STALL_NAME");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || !flag || !name) return;
    path[length] = 0;
    char *last = strrchr(path, '/');
    if (!last || strncmp(last + 1, name, strlen(name))) return;
    while (access(flag, F_OK) == 0) usleep(10000);
}

#define STALLS(result, name, parameters, arguments) \
    result name parameters { \
        result (*real) parameters = dlsym(RTLD_NEXT, #name); \
        stall(fd); \
        return real arguments; \
    }
STALLS(int, fsync, (int fd), (fd))
STALLS(int, fdatasync, (int fd), (fd))
STALLS(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
STALLS(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
STALLS(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
