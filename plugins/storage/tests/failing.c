/* Preloaded: lets writes or fsyncs of the database fail from the moment on at which the file $FAILING exists. Its first
   word says which, its second how. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd, const char *call)
{
    char path[64], name[4096], what[16] = "", how[16] = "";
    const char *flag = getenv("FAILING");
    FILE *file;
    ssize_t size;

    if (flag == NULL || access(flag, F_OK) != 0)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    size = readlink(path, name, sizeof name - 1);
    if (size < 0)
        return 0;
    name[size] = '\0';
    if (strstr(name, "hookmq.db") == NULL || (file = fopen(flag, "r")) == NULL)
        return 0;
    if (fscanf(file, "%15s %15s", what, how) != 2)
        what[0] = '\0';
    fclose(file);
    if (strcmp(what, call) != 0)
        return 0;
    errno = strcmp(how, "ENOSPC") == 0 ? ENOSPC : EIO;
    return 1;
}

#define REAL(name) ((__typeof__(&name)) dlsym(RTLD_NEXT, #name))

int fsync(int fd) { return fails(fd, "fsync") ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fails(fd, "fsync") ? -1 : REAL(fdatasync)(fd); }
ssize_t write(int fd, const void *data, size_t size)
{
    return fails(fd, "write") ? -1 : REAL(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    return fails(fd, "write") ? -1 : REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    return fails(fd, "write") ? -1 : REAL(pwrite64)(fd, data, size, at);
}
