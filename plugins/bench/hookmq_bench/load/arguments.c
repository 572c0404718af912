/* Arguments of the program, and errors. */
#include "load.h"

#include <stdarg.h>

struct settings arg = {
    .mode = "closed", .topology = "pairs", .transport = "tcp", .level = 4, .pubs = 1, .subs = 1,
    .window = 1, .refill = 1, .payload = 64, .inflight = 64, .clean = 1,
    .warmup = 0.5, .seconds = 2.0, .drain = 1.5,
};
uint32_t run_number;

void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    printf("{\"error\": \"");
    vprintf(format, list);
    printf("\"}\n");
    va_end(list);
    exit(1);
}

void parse_arguments(int count, char **words) {
    struct { const char *key; long *number; double *real; const char **text; } table[] = {
        {"mode", 0, 0, &arg.mode},         {"topology", 0, 0, &arg.topology},
        {"transport", 0, 0, &arg.transport},
        {"port", &arg.port, 0, 0},         {"level", &arg.level, 0, 0},
        {"pubs", &arg.pubs, 0, 0},         {"subs", &arg.subs, 0, 0},
        {"qos", &arg.qos, 0, 0},           {"window", &arg.window, 0, 0},
        {"refill", &arg.refill, 0, 0},     {"payload", &arg.payload, 0, 0},
        {"rate", &arg.rate, 0, 0},         {"clients", &arg.clients, 0, 0},
        {"inflight", &arg.inflight, 0, 0}, {"topics", &arg.topics, 0, 0},
        {"filters", &arg.filters, 0, 0},   {"idle", &arg.idle, 0, 0},
        {"clean", &arg.clean, 0, 0},       {"properties", &arg.properties, 0, 0},
        {"warmup", 0, &arg.warmup, 0},     {"seconds", 0, &arg.seconds, 0},
        {"drain", 0, &arg.drain, 0},
    };
    for (int i = 1; i < count; i++) {
        char *value = strchr(words[i], '=');
        size_t row = 0;
        if (!value) fail("not key=value: %s", words[i]);
        *value++ = 0;
        if (!strcmp(words[i], "pid")) {
            if (arg.pid_count == MAX_PIDS) fail("more than %d processes", MAX_PIDS);
            arg.pids[arg.pid_count++] = atol(value);
            continue;
        }
        while (row < sizeof table / sizeof *table && strcmp(table[row].key, words[i])) row++;
        if (row == sizeof table / sizeof *table) fail("unknown key %s", words[i]);
        if (table[row].number) *table[row].number = atol(value);
        else if (table[row].real) *table[row].real = atof(value);
        else *table[row].text = value;
    }
    int open_loop = !strcmp(arg.mode, "open");
    if (arg.payload < (open_loop ? TIMED_STAMP : STAMP) || arg.payload > 16 << 20)
        fail("payload must be %d..%d", open_loop ? TIMED_STAMP : STAMP, 16 << 20);
    if (arg.window < 1 || arg.window > 32768) fail("window must be 1..32768");
    if (arg.refill < 1 || arg.refill > arg.window) fail("refill must be 1..window");
    if (arg.qos < 0 || arg.qos > 2) fail("qos must be 0, 1 or 2");
    if (arg.level != 4 && arg.level != 5) fail("level must be 4 or 5");
    if (arg.pubs < 1 || arg.subs < 1 || arg.inflight < 1) fail("pubs, subs, inflight: at least 1");
    if (!strcmp(arg.topology, "pairs") && arg.pubs != arg.subs) fail("pairs: as many pubs as subs");
    if (arg.properties && arg.level != 5) fail("properties: level 5");
    if (arg.topics > 100000 && !strcmp(arg.topology, "wildcard")) fail("at most 100000 topics");
}
