/* Clocks, CPU time and memory of the broker's processes, and the histogram of latencies. */
#include "load.h"

uint64_t read_clock(clockid_t id) {
    struct timespec t;
    if (clock_gettime(id, &t)) fail("clock_gettime: %s (has the broker ended?)", strerror(errno));
    return (uint64_t)t.tv_sec * SECOND + t.tv_nsec;
}

uint64_t now_ns(void) { return read_clock(CLOCK_MONOTONIC); }

/* User and system time of all threads, including ended ones, in ns instead of ticks of 10 ms. */
uint64_t broker_cpu(void) {
    uint64_t sum = 0;
    for (int i = 0; i < arg.pid_count; i++) {
        clockid_t id;
        if (clock_getcpuclockid(arg.pids[i], &id)) fail("process %ld: no such process", arg.pids[i]);
        sum += read_clock(id);
    }
    return sum;
}

/* Time in which a process (its first thread) was ready to run while other work had its core. */
static uint64_t waited(long pid) {
    char path[64];
    unsigned long long ran, delay = 0;
    snprintf(path, sizeof path, "/proc/%ld/schedstat", pid);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%llu %llu", &ran, &delay) != 2) delay = 0;
    if (file) fclose(file);
    return delay;
}

static uint64_t broker_waited(void) {
    uint64_t sum = 0;
    for (int i = 0; i < arg.pid_count; i++) sum += waited(arg.pids[i]);
    return sum;
}

/* Resident memory in KiB. smaps_rollup walks the page tables; statm's sum may lag behind. */
long broker_rss(void) {
    long sum = 0;
    for (int i = 0; i < arg.pid_count; i++) {
        char path[64], line[256];
        long kib = -1;
        snprintf(path, sizeof path, "/proc/%ld/smaps_rollup", arg.pids[i]);
        FILE *file = fopen(path, "r");
        while (file && kib < 0 && fgets(line, sizeof line, file)) sscanf(line, "Rss: %ld", &kib);
        if (file) fclose(file);
        if (kib < 0) {
            long size, pages;
            snprintf(path, sizeof path, "/proc/%ld/statm", arg.pids[i]);
            if (!(file = fopen(path, "r")) || fscanf(file, "%ld %ld", &size, &pages) != 2)
                fail("%s: cannot be read", path);
            fclose(file);
            kib = pages * (sysconf(_SC_PAGESIZE) / 1024);
        }
        sum += kib;
    }
    return sum;
}

struct sample take_sample(uint64_t delivered, uint64_t sent, uint64_t busy) {
    return (struct sample){now_ns(), delivered, sent, 0, broker_cpu(),
                           read_clock(CLOCK_PROCESS_CPUTIME_ID), reads, writes, busy,
                           broker_waited(), waited(getpid())};
}

/* The part of the result that every mode has. */
void print_accounts(const struct sample *from, const struct sample *to, uint64_t generator) {
    double elapsed = (double)(to->time - from->time);
    printf("\"elapsed_ns\": %.0f, \"broker_cpu_ns\": %llu, \"generator_ns\": %llu, "
           "\"generator_share\": %.4f, \"broker_wait_ns\": %llu, \"generator_wait_ns\": %llu, "
           "\"reads\": %llu, \"writes\": %llu, \"broker_rss_kib\": %ld",
           elapsed, (unsigned long long)(to->broker - from->broker), (unsigned long long)generator,
           elapsed > 0 ? (double)generator / elapsed : 0,
           (unsigned long long)(to->broker_wait - from->broker_wait),
           (unsigned long long)(to->wait - from->wait), (unsigned long long)(to->reads - from->reads),
           (unsigned long long)(to->writes - from->writes), broker_rss());
}

/* ---- latencies: the buckets of histogram.py, 128 to each doubling */

enum { OCTAVE = 128, BITS = 7, BUCKETS = OCTAVE * 38 };
static uint64_t histogram[BUCKETS], latency_count, latency_sum, latency_max;

static int bucket_of(uint64_t ns) {
    if (ns < OCTAVE) return (int)ns;
    int shift = 63 - __builtin_clzll(ns) - BITS;
    int bucket = OCTAVE * (shift + 1) + (int)((ns >> shift) - OCTAVE);
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

void record_latency(uint64_t ns) {
    histogram[bucket_of(ns)]++;
    latency_count++;
    latency_sum += ns;
    if (ns > latency_max) latency_max = ns;
}

void print_latencies(void) {
    const char *comma = "";
    printf(", \"latency\": {\"count\": %llu, \"total\": %llu, \"largest\": %llu, \"buckets\": [",
           (unsigned long long)latency_count, (unsigned long long)latency_sum,
           (unsigned long long)latency_max);
    for (int i = 0; i < BUCKETS; i++)
        if (histogram[i]) {
            printf("%s[%d, %llu]", comma, i, (unsigned long long)histogram[i]);
            comma = ", ";
        }
    printf("]}");
}
