/* Records what a process and its children do to the files below one folder, in the order in which they did it.

   Preloaded (LD_PRELOAD) with POWERCUT_ROOT, the folder's real path, and POWERCUT_LOG, a file that all processes map and
   append to: a record's place is taken by one atomic addition, so places are the order of all records of all processes.
   A change is recorded after the call that made it returned, and a sync with the end of the log as it was before its
   call: it covers what was recorded before that, no more. Only the recorded processes' own calls of the C library are
   seen; powercut.recording compares what was seen with the folder as it is in the end. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR, RMDIR, LINK, SYNC, SYNC_ALL, MAPPED, MARK, UNKNOWN, ZERO,
       FAILED };
enum { DURABLE = 1 };
#define MAGIC 0x54554352u

struct log {
  _Atomic uint64_t tail;
  uint64_t size;
  _Atomic uint64_t syncs;
  uint64_t failing; /* the number of the sync that is to fail; 0 for none */
};
struct record { /* 64 bytes, then the data, then the paths, padded to 8 */
  uint32_t magic;
  uint16_t kind;
  uint16_t flags;
  uint64_t length; /* of all */
  uint64_t inode;
  int64_t a; /* an offset, a size, or for SYNC the end of the log before it */
  int64_t b;
  uint64_t data;
  uint32_t first;
  uint32_t second;
  uint32_t process;
  _Atomic uint32_t ready;
};

static struct log *recorded;
static char root[PATH_MAX];
static size_t root_length;

/* --- the log ------------------------------------------------------------------------------------------------------ */

static uint64_t tail(void) { return atomic_load(&recorded->tail); }

static void append(uint16_t kind, uint16_t flags, uint64_t inode, int64_t a, int64_t b, const struct iovec *data,
                   int parts, size_t bytes, const char *first, const char *second) {
  int kept = errno;
  size_t one = first ? strlen(first) : 0, two = second ? strlen(second) : 0;
  size_t length = (sizeof(struct record) + bytes + one + two + 7) & ~(size_t)7;
  uint64_t at = atomic_fetch_add(&recorded->tail, length);
  if (at + length > recorded->size) { /* the reader sees a tail beyond the size, and says so */
    errno = kept;
    return;
  }
  struct record *record = (struct record *)((char *)recorded + at);
  record->magic = MAGIC;
  record->length = length;
  record->kind = kind;
  record->flags = flags;
  record->inode = inode;
  record->a = a;
  record->b = b;
  record->data = bytes;
  record->first = one;
  record->second = two;
  record->process = getpid();
  char *to = (char *)(record + 1);
  size_t left = bytes;
  for (int i = 0; i < parts && left; i++) {
    size_t size = data[i].iov_len < left ? data[i].iov_len : left;
    memcpy(to, data[i].iov_base, size);
    to += size;
    left -= size;
  }
  if (one) memcpy(to, first, one);
  if (two) memcpy(to + one, second, two);
  atomic_store(&record->ready, 1);
  errno = kept;
}

int powercut_attach(const char *path) {
  int file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  struct stat status;
  if (file < 0) return -1;
  if (fstat(file, &status) == 0) {
    void *map = (void *)syscall(SYS_mmap, NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) recorded = map;
  }
  syscall(SYS_close, file);
  return recorded ? 0 : -1;
}

/* A record by whoever records: a mark, or what was in the folder before. */
void powercut_note(int kind, uint64_t inode, int64_t a, const char *data, size_t size, const char *path) {
  struct iovec part = {(void *)data, size};
  append(kind, 0, inode, a, 0, &part, 1, size, path, NULL);
}

__attribute__((constructor)) static void begin(void) {
  const char *log = getenv("POWERCUT_LOG"), *folder = getenv("POWERCUT_ROOT");
  if (!log || !folder || strlen(folder) >= sizeof root) return;
  strcpy(root, folder);
  root_length = strlen(root);
  powercut_attach(log);
}

/* --- which descriptors and paths are of the folder ---------------------------------------------------------------- */

enum { UNASKED = 0, OTHER, OURS };
struct known {
  uint8_t state;
  uint8_t durable; /* O_SYNC or O_DSYNC */
  uint8_t appends;
  uint8_t told; /* of the sync that failed */
  uint64_t inode;
};
#define KNOWN 65536
static struct known known[KNOWN];
static _Atomic uint64_t failed; /* the inode whose sync failed */

static int below(const char *path) {
  return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

static int path_of(int file, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
  if (length < 0) return -1;
  path[length] = 0;
  return 0;
}

static void ask(int file, const struct stat *status, struct known *one) {
  char path[PATH_MAX];
  memset(one, 0, sizeof *one);
  one->state = OTHER;
  if ((S_ISREG(status->st_mode) || S_ISDIR(status->st_mode)) && path_of(file, path) == 0 && below(path)) {
    int flags = syscall(SYS_fcntl, file, F_GETFL);
    one->state = OURS;
    one->inode = status->st_ino;
    one->durable = (flags & O_DSYNC) != 0; /* O_SYNC has its bits */
    one->appends = (flags & O_APPEND) != 0;
    one->told = one->inode == atomic_load(&failed);
  }
}

static int ours(int file, struct known *found) {
  struct stat status;
  int kept = errno, result = 0;
  if (!recorded || file < 0) return 0;
  if (file < KNOWN && known[file].state == OTHER) return 0;
  if (fstat(file, &status) == 0) {
    if (file < KNOWN && known[file].state == OURS && known[file].inode == status.st_ino) {
      *found = known[file];
    } else {
      ask(file, &status, found);
      if (file < KNOWN) known[file] = *found;
    }
    result = found->state == OURS;
  }
  errno = kept;
  return result;
}

static void forget(int file) {
  if (file >= 0 && file < KNOWN) known[file].state = UNASKED;
}

/* The real path of what `path` names, which need not exist, if it is below the folder. */
static int place(int folder, const char *path, char *out) {
  char whole[PATH_MAX * 2], real[PATH_MAX];
  int kept = errno, result = 0;
  if (!recorded || !path || !*path || strlen(path) >= PATH_MAX) return 0;
  if (path[0] == '/') {
    strcpy(whole, path);
  } else if (folder == AT_FDCWD) {
    if (syscall(SYS_getcwd, whole, PATH_MAX) < 0) goto done;
    strcat(strcat(whole, "/"), path);
  } else {
    if (path_of(folder, whole)) goto done;
    strcat(strcat(whole, "/"), path);
  }
  for (size_t length = strlen(whole); length > 1 && whole[length - 1] == '/'; length--) whole[length - 1] = 0;
  char *name = strrchr(whole, '/');
  *name++ = 0;
  if (!realpath(*whole ? whole : "/", real)) goto done;
  result = snprintf(out, PATH_MAX, "%s/%s", real, name) < PATH_MAX && below(out);
done:
  errno = kept;
  return result;
}

static uint64_t inode_of(const char *path) {
  struct stat status;
  int kept = errno;
  uint64_t found = fstatat(AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) == 0 ? status.st_ino : 0;
  errno = kept;
  return found;
}

#define REAL(name, ...)                                                       \
  static __typeof__(&name) real;                                              \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, __VA_ARGS__ #name);

static void event(uint16_t kind, uint64_t inode, int64_t a, int64_t b, const char *first, const char *second) {
  append(kind, 0, inode, a, b, NULL, 0, 0, first, second);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static int opened(int file, int flags, int new, int64_t before) {
  struct known one;
  char path[PATH_MAX];
  if (file < 0) return file;
  forget(file);
  if (!ours(file, &one)) return file;
  int kept = errno;
  if (path_of(file, path) == 0) {
    if ((flags & O_TMPFILE) == O_TMPFILE) event(UNKNOWN, one.inode, 0, 0, path, "O_TMPFILE");
    else if (new) event(CREATE, one.inode, 0, 0, path, NULL);
    else if ((flags & O_TRUNC) && before) event(TRUNCATE, one.inode, 0, 0, NULL, NULL);
  }
  errno = kept;
  return file;
}

#define OPEN(name, parameters, call, folder, creating)                                   \
  int name parameters {                                                                  \
    REAL(name)                                                                           \
    mode_t mode = 0;                                                                     \
    int new = 0;                                                                         \
    struct stat status = {0};                                                            \
    creating                                                                             \
    if (recorded && (flags & (O_CREAT | O_TRUNC))) {                                     \
      int kept = errno;                                                                  \
      new = fstatat(folder, path, &status, 0) != 0;                                      \
      errno = kept;                                                                      \
    }                                                                                    \
    return opened(call, flags, new, status.st_size);                                     \
  }
#define MODE                                          \
  if (flags & (O_CREAT | __O_TMPFILE)) {              \
    va_list more;                                     \
    va_start(more, flags);                            \
    mode = va_arg(more, mode_t);                      \
    va_end(more);                                     \
  }
OPEN(open, (const char *path, int flags, ...), real(path, flags, mode), AT_FDCWD, MODE)
OPEN(open64, (const char *path, int flags, ...), real(path, flags, mode), AT_FDCWD, MODE)
OPEN(openat, (int at, const char *path, int flags, ...), real(at, path, flags, mode), at, MODE)
OPEN(openat64, (int at, const char *path, int flags, ...), real(at, path, flags, mode), at, MODE)
int __open_2(const char *, int);
int __open64_2(const char *, int);
OPEN(__open_2, (const char *path, int flags), real(path, flags), AT_FDCWD, (void)mode;)
OPEN(__open64_2, (const char *path, int flags), real(path, flags), AT_FDCWD, (void)mode;)
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int file) {
  REAL(close)
  forget(file);
  return real(file);
}
int dup2(int from, int to) {
  REAL(dup2)
  forget(to);
  return real(from, to);
}
int dup3(int from, int to, int flags) {
  REAL(dup3)
  forget(to);
  return real(from, to, flags);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static ssize_t wrote(int file, const struct iovec *data, int parts, int64_t offset, int durable, ssize_t bytes) {
  struct known one;
  if (bytes <= 0 || !ours(file, &one)) return bytes;
  int kept = errno;
  if (offset < 0) {
    offset = syscall(SYS_lseek, file, 0, SEEK_CUR) - bytes;
  } else if (one.appends) {
    struct stat status;
    if (fstat(file, &status) == 0) offset = status.st_size - bytes;
  }
  append(WRITE, one.durable || durable ? DURABLE : 0, one.inode, offset, 0, data, parts, bytes, NULL, NULL);
  errno = kept;
  return bytes;
}

static ssize_t wrote_one(int file, const void *data, size_t size, int64_t offset, ssize_t bytes) {
  struct iovec part = {(void *)data, size};
  return wrote(file, &part, 1, offset, 0, bytes);
}

ssize_t write(int file, const void *data, size_t size) {
  REAL(write)
  return wrote_one(file, data, size, -1, real(file, data, size));
}
#define PWRITE(name, type)                                                    \
  ssize_t name(int file, const void *data, size_t size, type offset) {        \
    REAL(name)                                                                \
    return wrote_one(file, data, size, offset, real(file, data, size, offset)); \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
ssize_t writev(int file, const struct iovec *data, int parts) {
  REAL(writev)
  return wrote(file, data, parts, -1, 0, real(file, data, parts));
}
#define PWRITEV(name, type)                                                       \
  ssize_t name(int file, const struct iovec *data, int parts, type offset) {      \
    REAL(name)                                                                    \
    return wrote(file, data, parts, offset, 0, real(file, data, parts, offset));  \
  }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)
#define PWRITEV2(name, type)                                                               \
  ssize_t name(int file, const struct iovec *data, int parts, type offset, int flags) {    \
    REAL(name)                                                                             \
    int durable = (flags & (RWF_SYNC | RWF_DSYNC)) != 0;                                   \
    return wrote(file, data, parts, offset, durable, real(file, data, parts, offset, flags)); \
  }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

/* What was copied within the kernel is read again from where it came. */
static ssize_t copied(int to, int64_t at, int from, int64_t start, ssize_t bytes) {
  struct known one;
  if (bytes <= 0 || !ours(to, &one)) return bytes;
  int kept = errno;
  char *data = malloc(bytes);
  if (start < 0) start = syscall(SYS_lseek, from, 0, SEEK_CUR) - bytes;
  if (data && syscall(SYS_pread64, from, data, bytes, start) == bytes) wrote_one(to, data, bytes, at, bytes);
  else event(UNKNOWN, one.inode, 0, 0, "a copy within the kernel", NULL);
  free(data);
  errno = kept;
  return bytes;
}
#define SENDFILE(name, type)                                                  \
  ssize_t name(int to, int from, type *offset, size_t size) {                 \
    REAL(name)                                                                \
    int64_t start = offset ? *offset : -1;                                    \
    return copied(to, -1, from, start, real(to, from, offset, size));         \
  }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)
ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t size, unsigned flags) {
  REAL(copy_file_range)
  int64_t start = in ? *in : -1, at = out ? *out : -1;
  return copied(to, at, from, start, real(from, in, to, out, size, flags));
}

#define FTRUNCATE(name, type)                                                      \
  int name(int file, type size) {                                                  \
    REAL(name)                                                                     \
    struct known one;                                                              \
    int result = real(file, size);                                                 \
    if (result == 0 && ours(file, &one)) event(TRUNCATE, one.inode, size, 0, NULL, NULL); \
    return result;                                                                 \
  }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)
#define PATH_TRUNCATE(name, type)                                                            \
  int name(const char *path, type size) {                                                    \
    REAL(name)                                                                               \
    char whole[PATH_MAX];                                                                    \
    int result = real(path, size);                                                           \
    if (result == 0 && place(AT_FDCWD, path, whole)) event(TRUNCATE, inode_of(whole), size, 0, NULL, NULL); \
    return result;                                                                           \
  }
PATH_TRUNCATE(truncate, off_t)
PATH_TRUNCATE(truncate64, off64_t)

static void allocated(int file, int mode, int64_t offset, int64_t size) {
  struct known one;
  struct stat status;
  if (!ours(file, &one)) return;
  int kept = errno;
  if (mode == 0) { /* the file may have become longer */
    if (fstat(file, &status) == 0 && offset + size == status.st_size)
      event(TRUNCATE, one.inode, status.st_size, 0, NULL, NULL);
  } else if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) {
    event(ZERO, one.inode, offset, size, NULL, NULL);
  } else if (mode != FALLOC_FL_KEEP_SIZE) {
    event(UNKNOWN, one.inode, 0, 0, "fallocate of another mode", NULL);
  }
  errno = kept;
}
#define FALLOCATE(name, type)                                      \
  int name(int file, int mode, type offset, type size) {           \
    REAL(name)                                                     \
    int result = real(file, mode, offset, size);                   \
    if (result == 0) allocated(file, mode, offset, size);          \
    return result;                                                 \
  }
FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)
#define POSIX_FALLOCATE(name, type)                                \
  int name(int file, type offset, type size) {                     \
    REAL(name)                                                     \
    int result = real(file, offset, size);                         \
    if (result == 0) allocated(file, 0, offset, size);             \
    return result;                                                 \
  }
POSIX_FALLOCATE(posix_fallocate, off_t)
POSIX_FALLOCATE(posix_fallocate64, off64_t)

#define MMAP(name, type)                                                                   \
  void *name(void *at, size_t size, int protection, int flags, int file, type offset) {    \
    REAL(name)                                                                             \
    struct known one;                                                                      \
    void *result = real(at, size, protection, flags, file, offset);                        \
    if (result != MAP_FAILED && file >= 0 && (protection & PROT_WRITE) && (flags & MAP_SHARED) && ours(file, &one)) \
      event(MAPPED, one.inode, 0, 0, NULL, NULL);                                          \
    return result;                                                                         \
  }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

/* --- names -------------------------------------------------------------------------------------------------------- */

#define NAMED(name, kind, parameters, call, folder, path, extra)                            \
  int name parameters {                                                                     \
    REAL(name)                                                                              \
    char whole[PATH_MAX];                                                                   \
    int there = place(folder, path, whole);                                                 \
    int result = call;                                                                      \
    if (result == 0 && there) event(kind, inode_of(whole), 0, 0, whole, extra);             \
    return result;                                                                          \
  }
NAMED(unlink, UNLINK, (const char *path), real(path), AT_FDCWD, path, NULL)
NAMED(remove, UNLINK, (const char *path), real(path), AT_FDCWD, path, NULL)
NAMED(unlinkat, UNLINK, (int at, const char *path, int flags), real(at, path, flags), at, path, NULL)
NAMED(rmdir, RMDIR, (const char *path), real(path), AT_FDCWD, path, NULL)
NAMED(mkdir, MKDIR, (const char *path, mode_t mode), real(path, mode), AT_FDCWD, path, NULL)
NAMED(mkdirat, MKDIR, (int at, const char *path, mode_t mode), real(at, path, mode), at, path, NULL)
NAMED(symlink, UNKNOWN, (const char *to, const char *path), real(to, path), AT_FDCWD, path, "symlink")
NAMED(symlinkat, UNKNOWN, (const char *to, int at, const char *path), real(to, at, path), at, path, "symlinkat")

static int moved(int result, int kind, int one, const char *first, int two, const char *second) {
  if (result != 0) return result;
  if (one && two) event(kind, inode_of(second), 0, 0, first, second);
  else if (one && kind == RENAME) event(UNLINK, 0, 0, 0, first, NULL); /* out of the folder: gone from it */
  else if (two) event(UNKNOWN, inode_of(second), 0, 0, second, "a name from outside");
  return result;
}
#define MOVED(name, kind, parameters, call, from, old, to, new)        \
  int name parameters {                                                \
    REAL(name)                                                         \
    char first[PATH_MAX], second[PATH_MAX];                            \
    int one = place(from, old, first), two = place(to, new, second);   \
    return moved(call, kind, one, first, two, second);                 \
  }
MOVED(rename, RENAME, (const char *old, const char *new), real(old, new), AT_FDCWD, old, AT_FDCWD, new)
MOVED(renameat, RENAME, (int from, const char *old, int to, const char *new), real(from, old, to, new), from, old, to, new)
MOVED(renameat2, RENAME, (int from, const char *old, int to, const char *new, unsigned flags),
      real(from, old, to, new, flags), from, old, to, new)
MOVED(link, LINK, (const char *old, const char *new), real(old, new), AT_FDCWD, old, AT_FDCWD, new)
MOVED(linkat, LINK, (int from, const char *old, int to, const char *new, int flags), real(from, old, to, new, flags),
      from, old, to, new)

/* --- making safe: sync_file_range makes nothing safe, so it is not here -------------------------------------------- */

/* Whether a sync is the one to fail, or comes after it by another open file: Linux reports a failed write once to each
   file that was open then (fsync(2)), also to one whose own sync was under way. */
static int fails(int file, const struct known *one) {
  if (atomic_load(&failed) != one->inode || file >= KNOWN || known[file].told) return 0;
  known[file].told = 1;
  return 1;
}

static int fail(const struct known *one, int64_t before) {
  event(FAILED, one->inode, before, 0, NULL, NULL);
  errno = EIO;
  return -1;
}

#define SYNCING(name)                                                               \
  int name(int file) {                                                              \
    REAL(name)                                                                      \
    struct known one;                                                               \
    int there = ours(file, &one);                                                   \
    int64_t before = there ? (int64_t)tail() : 0;                                   \
    if (there && atomic_fetch_add(&recorded->syncs, 1) + 1 == recorded->failing) {  \
      atomic_store(&failed, one.inode);                                             \
      if (file < KNOWN) known[file].told = 1;                                       \
      return fail(&one, before);                                                    \
    }                                                                               \
    int result = real(file);                                                        \
    if (there && fails(file, &one)) return fail(&one, before);                      \
    if (result == 0 && there) event(SYNC, one.inode, before, 0, NULL, NULL);        \
    return result;                                                                  \
  }
SYNCING(fsync)
SYNCING(fdatasync)
void sync(void) {
  REAL(sync)
  int64_t before = recorded ? (int64_t)tail() : 0;
  real();
  if (recorded) event(SYNC_ALL, 0, before, 0, NULL, NULL);
}
int syncfs(int file) {
  REAL(syncfs)
  struct known one;
  int there = ours(file, &one);
  int64_t before = there ? (int64_t)tail() : 0;
  int result = real(file);
  if (result == 0 && there) event(SYNC_ALL, 0, before, 0, NULL, NULL);
  return result;
}
