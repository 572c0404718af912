/* Run the mode of the arguments. */
#include "load.h"

#include <sys/resource.h>

int main(int count, char **words) {
    struct rlimit files;
    struct { const char *name; void (*run)(void); } modes[] = {
        {"connect", run_connect}, {"idle", run_idle},
        {"retained", run_retained}, {"offline", run_offline},
    };
    parse_arguments(count, words);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    run_number = (uint32_t)(now_ns() / 1000) ^ (uint32_t)getpid() << 16;
    if (!strcmp(arg.mode, "open") && arg.rate < 1) fail("open: rate must be at least 1");
    if (!strcmp(arg.mode, "open") || !strcmp(arg.mode, "closed")) {
        run_load(!strcmp(arg.mode, "open"));
        return 0;
    }
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(arg.mode, modes[i].name)) return modes[i].run(), 0;
    fail("mode must be closed, open, connect, idle, retained or offline");
}
