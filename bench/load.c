/* load.c: the load generator of HookMQ's benchmarks.
 *
 * One thread, one epoll set, MQTT 3.1.1 (level 4) or 5.0 (level 5) over plain TCP. bench/generator.py
 * compiles and runs it; it prints one JSON object on stdout and exits 0, or prints {"error": ...} and
 * exits 1. `load key=value ...`; the keys are the table in parse_arguments().
 *
 * Modes
 *   closed   every publisher has at most `window` messages outstanding. A message is outstanding until
 *            every subscriber that must get it has got it and, at QoS 1 and 2, its PUBACK or PUBCOMP
 *            has come. It is a sliding window over the sequence number, so a lost message is noticed
 *            by its publisher standing still. A publisher writes again once `refill` messages are free.
 *   open     `rate` messages a second in all, round robin over the publishers, each with the time at
 *            which it was due in its payload: latency counts from there, whatever was late in between.
 *   connect  CONNECT, CONNACK, DISCONNECT, close, with `inflight` handshakes at a time.
 *   idle     `clients` connections that do nothing: what they cost the broker in resident memory.
 *
 * Each payload carries a run number, the publisher's number, a 64-bit sequence number and a time, so
 * that loss, duplication and reordering are counted for each pair of publisher and subscriber.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNECT = 1, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK };
enum { DISCONNECT = 14 };
enum { MAX_PIDS = 64, MAX_EVENTS = 1024, READ_SIZE = 256 * 1024, STAMP = 24, SECOND = 1000000000 };

/* ---- arguments ------------------------------------------------------------------------------- */

static struct {
    const char *mode, *topology;
    long port, level, pubs, subs, qos, window, refill, payload, rate, clients, inflight;
    double warmup, seconds, drain;
    long pids[MAX_PIDS];
    int pid_count;
} arg = {"closed", "pairs", 0, 4, 1, 1, 0, 1, 1, 64, 0, 0, 64, 0.5, 2.0, 1.5, {0}, 0};

static void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    printf("{\"error\": \"");
    vprintf(format, list);
    printf("\"}\n");
    va_end(list);
    exit(1);
}

static void parse_arguments(int count, char **words) {
    struct { const char *key; long *number; double *real; const char **text; } table[] = {
        {"mode", 0, 0, &arg.mode},         {"topology", 0, 0, &arg.topology},
        {"port", &arg.port, 0, 0},         {"level", &arg.level, 0, 0},
        {"pubs", &arg.pubs, 0, 0},         {"subs", &arg.subs, 0, 0},
        {"qos", &arg.qos, 0, 0},           {"window", &arg.window, 0, 0},
        {"refill", &arg.refill, 0, 0},     {"payload", &arg.payload, 0, 0},
        {"rate", &arg.rate, 0, 0},         {"clients", &arg.clients, 0, 0},
        {"inflight", &arg.inflight, 0, 0}, {"warmup", 0, &arg.warmup, 0},
        {"seconds", 0, &arg.seconds, 0},   {"drain", 0, &arg.drain, 0},
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
    if (arg.payload < STAMP || arg.payload > 65536) fail("payload must be %d..65536", STAMP);
    if (arg.window < 1 || arg.window > 32768) fail("window must be 1..32768");
    if (arg.refill < 1 || arg.refill > arg.window) fail("refill must be 1..window");
    if (arg.qos < 0 || arg.qos > 2) fail("qos must be 0, 1 or 2");
    if (arg.level != 4 && arg.level != 5) fail("level must be 4 or 5");
    if (arg.pubs < 1 || arg.subs < 1 || arg.inflight < 1) fail("pubs, subs, inflight: at least 1");
    if (!strcmp(arg.topology, "pairs") && arg.pubs != arg.subs) fail("pairs: as many pubs as subs");
}

/* ---- clocks and the broker's accounts -------------------------------------------------------- */

static uint64_t read_clock(clockid_t id) {
    struct timespec t;
    if (clock_gettime(id, &t)) fail("clock_gettime: %s (has the broker ended?)", strerror(errno));
    return (uint64_t)t.tv_sec * SECOND + t.tv_nsec;
}

static uint64_t now_ns(void) { return read_clock(CLOCK_MONOTONIC); }

/* User and system time of all threads, also of those that ended, in ns: not in ticks of 10 ms. */
static uint64_t broker_cpu(void) {
    uint64_t sum = 0;
    for (int i = 0; i < arg.pid_count; i++) {
        clockid_t id;
        if (clock_getcpuclockid(arg.pids[i], &id)) fail("process %ld: no such process", arg.pids[i]);
        sum += read_clock(id);
    }
    return sum;
}

/* Time for which a process (its first thread) could have run and something else had its core. */
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
static long broker_rss(void) {
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

/* ---- connections ------------------------------------------------------------------------------ */

struct bytes { uint8_t *data; size_t length, room; };

static uint8_t *reserve(struct bytes *b, size_t more) {
    if (b->length + more > b->room) {
        b->room = (b->length + more) * 2;
        if (!(b->data = realloc(b->data, b->room))) fail("out of memory");
    }
    b->length += more;
    return b->data + b->length - more;
}

struct connection {
    int fd, publisher, number, dirty, blocked;
    size_t sent;          /* of `out` */
    struct bytes out, rest; /* rest: an incomplete packet kept from the last read */
    struct connection *next_dirty;
};

struct flow { uint64_t next, *missing; size_t missing_count, missing_room; };
struct slot { uint32_t left; uint8_t awaited; }; /* awaited: type of the acknowledgement, 0 = none */

struct publisher {
    struct connection c;
    uint64_t next, low; /* next sequence number to send; lowest that is not complete */
    long window;
    struct slot *ring;
    uint8_t *packet;
    size_t packet_length, stamp_at, id_at;
    int ready;
    struct publisher *next_ready;
};

struct subscriber { struct connection c; struct flow *flows; };

static struct publisher *pubs;
static struct subscriber *subs;
static struct connection *dirty;
static struct publisher *ready;
static uint8_t *read_buffer;
static size_t read_room;
static int epoll_fd, one_to_one, open_loop;
static uint32_t run_number;
static long receive_maximum = 65535;
static uint64_t ring_mask, subscribers_each;
static uint64_t delivered, reordered, duplicates, stray, refused, wrong_qos, reads, writes, progress;
static uint64_t window_start, window_end; /* of the measurement; 0 = not yet */
static const char *broken;

enum { OCTAVE = 64, BUCKETS = OCTAVE * 40 };
static uint64_t histogram[BUCKETS], latency_count, latency_max;

static int bucket_of(uint64_t ns) {
    if (ns < OCTAVE) return (int)ns;
    int shift = 63 - __builtin_clzll(ns) - 6;
    int bucket = OCTAVE * (shift + 1) + (int)((ns >> shift) - OCTAVE);
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

static double quantile_us(double q) {
    uint64_t rank = (uint64_t)(q * (double)latency_count), seen = 0;
    for (int i = 0; i < BUCKETS; i++) {
        seen += histogram[i];
        if (seen > rank) {
            if (i < OCTAVE) return i / 1e3;
            int shift = i / OCTAVE - 1;
            return (double)((uint64_t)(OCTAVE + i % OCTAVE) << shift) * (1 + 0.5 / OCTAVE) / 1e3;
        }
    }
    return 0;
}

static int dial(int flags) {
    static uint32_t source;
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, IPPROTO_TCP);
    if (fd < 0) fail("socket: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* Many source addresses: a port in TIME_WAIT must never be what limits the connect rate. */
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    from.sin_addr.s_addr = htonl(0x7f000002 + source++ % 250);
    if (bind(fd, (void *)&from, sizeof from)) fail("bind: %s", strerror(errno));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(arg.port);
    if (connect(fd, (void *)&to, sizeof to) && errno != EINPROGRESS)
        fail("connect: %s", strerror(errno));
    return fd;
}

static size_t put_varint(uint8_t *p, size_t value) {
    size_t n = 0;
    do {
        p[n] = value & 127;
        value >>= 7;
        if (value) p[n] |= 128;
        n++;
    } while (value);
    return n;
}

/* Length of a whole packet at p, 0 if more bytes are needed; *body is where its variable header is. */
static size_t packet_length(const uint8_t *p, size_t have, size_t *body) {
    size_t value = 0;
    for (size_t i = 1; i < have && i < 5; i++) {
        value |= (size_t)(p[i] & 127) << (7 * (i - 1));
        if (!(p[i] & 128)) {
            *body = i + 1;
            return i + 1 + value;
        }
    }
    return 0;
}

static size_t encode_connect(uint8_t *p, const char *role, uint64_t number) {
    char id[32];
    size_t n = snprintf(id, sizeof id, "%08x%s%llu", run_number, role, (unsigned long long)number);
    size_t v5 = arg.level == 5, at = 2;
    p[0] = CONNECT << 4;
    p[1] = 10 + v5 + 2 + n;
    memcpy(p + at, "\0\4MQTT", 6);
    p[at + 6] = arg.level;
    p[at + 7] = 2; /* clean session, clean start */
    p[at + 8] = 600 >> 8;
    p[at + 9] = 600 & 255;
    at += 10;
    if (v5) p[at++] = 0;
    p[at] = 0;
    p[at + 1] = n;
    memcpy(p + at + 2, id, n);
    return at + 2 + n;
}

static void check_connack(const uint8_t *packet, size_t length) {
    size_t body = 0, total = packet_length(packet, length, &body);
    if (packet[0] >> 4 != CONNACK) fail("packet type %d instead of CONNACK", packet[0] >> 4);
    if (length < body + 2 || packet[body + 1]) fail("CONNACK refuses: 0x%02x", packet[body + 1]);
    if (arg.level == 4 || total <= body + 2) return;
    const uint8_t *p = packet + body + 2, *end = packet + total;
    while (p < end && *p++ & 128) {} /* the property length: the properties fill the packet */
    while (p < end) {
        int id = *p++;
        if (id == 0x21) receive_maximum = p[0] << 8 | p[1];
        if (id == 0x24 && p[0] < arg.qos) fail("the broker's Maximum QoS is %d", p[0]);
        if (id == 0x24 || id == 0x25 || id == 0x28 || id == 0x29 || id == 0x2a) p += 1;
        else if (id == 0x13 || id == 0x21 || id == 0x22) p += 2;
        else if (id == 0x11 || id == 0x27) p += 4;
        else if (id == 0x26) for (int i = 0; i < 2; i++) p += 2 + (p[0] << 8 | p[1]);
        else p += 2 + (p[0] << 8 | p[1]);
    }
}

static void read_exactly(int fd, uint8_t *p, size_t n, const char *what) {
    while (n) {
        ssize_t got = recv(fd, p, n, 0);
        if (got == 0) fail("closed by the broker while waiting for %s", what);
        if (got < 0) fail("%s while waiting for %s", strerror(errno), what);
        p += got;
        n -= got;
    }
}

static size_t ask(int fd, const uint8_t *out, size_t length, uint8_t *in, const char *what) {
    if (send(fd, out, length, MSG_NOSIGNAL) != (ssize_t)length) fail("send: %s", strerror(errno));
    size_t have = 2, body, total;
    read_exactly(fd, in, 2, what);
    while (!(total = packet_length(in, have, &body))) read_exactly(fd, in + have++, 1, what);
    if (total > 4096) fail("%s of %zu bytes", what, total);
    read_exactly(fd, in + have, total - have, what);
    return total;
}

/* A connection that has its CONNACK. Before the measurement: blocking, one after the other. */
static int establish(const char *role, uint64_t number) {
    uint8_t out[64], in[4096];
    struct timeval limit = {5, 0};
    int fd = dial(0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    check_connack(in, ask(fd, out, encode_connect(out, role, number), in, "CONNACK"));
    return fd;
}

static void say_goodbye(int fd) {
    if (send(fd, "\xe0\0", 2, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {} /* it is being closed anyway */
    close(fd);
}

static void subscribe(int fd, int number) {
    uint8_t out[128], in[4096], *p = out + 2;
    char filter[64];
    if (one_to_one) snprintf(filter, sizeof filter, "bench/%08x/%d", run_number, number);
    else snprintf(filter, sizeof filter, arg.pubs > 1 ? "bench/%08x/+" : "bench/%08x/0", run_number);
    size_t n = strlen(filter);
    *p++ = 0;
    *p++ = 1;
    if (arg.level == 5) *p++ = 0;
    *p++ = 0;
    *p++ = n;
    memcpy(p, filter, n);
    p += n;
    *p++ = arg.qos;
    out[0] = SUBSCRIBE << 4 | 2;
    out[1] = p - out - 2;
    size_t total = ask(fd, out, p - out, in, "SUBACK");
    if (in[0] >> 4 != SUBACK) fail("packet type %d instead of SUBACK", in[0] >> 4);
    if (in[total - 1] != arg.qos) fail("SUBACK grants 0x%02x, asked for %ld", in[total - 1], arg.qos);
}

static void prepare_packet(struct publisher *p) {
    char topic[64];
    size_t n = snprintf(topic, sizeof topic, "bench/%08x/%d", run_number, p->c.number), at = 1;
    size_t body = 2 + n + (arg.qos ? 2 : 0) + (arg.level == 5) + arg.payload;
    uint8_t *b = p->packet = calloc(1, body + 5);
    uint32_t number = p->c.number;
    b[0] = PUBLISH << 4 | arg.qos << 1;
    at += put_varint(b + 1, body);
    b[at + 1] = n;
    memcpy(b + at + 2, topic, n);
    at += 2 + n;
    p->id_at = at;
    if (arg.qos) at += 2;
    if (arg.level == 5) at++;
    memcpy(b + at, &run_number, 4);
    memcpy(b + at + 4, &number, 4);
    p->stamp_at = at + 8;
    for (long i = STAMP; i < arg.payload; i++) b[at + i] = 'a' + i % 26;
    p->packet_length = at + arg.payload;
}

/* ---- output ------------------------------------------------------------------------------------ */

static void mark_dirty(struct connection *c) {
    if (c->dirty) return;
    c->dirty = 1;
    c->next_dirty = dirty;
    dirty = c;
}

static void watch(struct connection *c, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (c->blocked ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll_fd, operation, c->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

static void flush(struct connection *c) {
    while (c->sent < c->out.length) {
        ssize_t n = send(c->fd, c->out.data + c->sent, c->out.length - c->sent, MSG_NOSIGNAL);
        writes++;
        if (n < 0) {
            if (errno != EAGAIN) broken = strerror(errno);
            break;
        }
        c->sent += n;
    }
    int blocked = c->sent < c->out.length;
    if (!blocked) c->sent = c->out.length = 0;
    if (blocked != c->blocked) {
        c->blocked = blocked;
        watch(c, EPOLL_CTL_MOD);
    }
}

static void flush_dirty(void) {
    while (dirty) {
        struct connection *c = dirty;
        dirty = c->next_dirty;
        c->dirty = 0;
        if (!c->blocked) flush(c);
    }
}

static void acknowledge(struct connection *c, int type, const uint8_t *id) {
    uint8_t *p = reserve(&c->out, 4);
    p[0] = type << 4 | (type == PUBREL ? 2 : 0);
    p[1] = 2;
    p[2] = id[0];
    p[3] = id[1];
    mark_dirty(c);
}

static void send_message(struct publisher *p, uint64_t stamp) {
    uint8_t *b = reserve(&p->c.out, p->packet_length);
    uint64_t sequence = p->next++;
    struct slot *slot = &p->ring[sequence & ring_mask];
    memcpy(b, p->packet, p->packet_length);
    memcpy(b + p->stamp_at, &sequence, 8);
    memcpy(b + p->stamp_at + 8, &stamp, 8);
    slot->left = subscribers_each;
    slot->awaited = 0;
    if (arg.qos) {
        unsigned id = (sequence & 32767) + 1;
        b[p->id_at] = id >> 8;
        b[p->id_at + 1] = id;
        slot->left++;
        slot->awaited = arg.qos == 1 ? PUBACK : PUBREC;
    }
    mark_dirty(&p->c);
}

static void mark_ready(struct publisher *p) {
    if (p->ready) return;
    p->ready = 1;
    p->next_ready = ready;
    ready = p;
}

static void refill_ready(uint64_t now) {
    while (ready) {
        struct publisher *p = ready;
        ready = p->next_ready;
        p->ready = 0;
        long room = p->window - (long)(p->next - p->low);
        if (room < arg.refill && room < p->window) continue;
        while (room-- > 0) send_message(p, now);
    }
}

/* ---- input ------------------------------------------------------------------------------------- */

static void complete_part(struct publisher *p, uint64_t sequence) {
    progress++;
    if (--p->ring[sequence & ring_mask].left || sequence != p->low) return;
    do p->low++;
    while (p->low < p->next && !p->ring[p->low & ring_mask].left);
    mark_ready(p);
}

/* Whether this is the first time that the sequence number comes; counts what is wrong. */
static int accept_sequence(struct flow *f, uint64_t sequence) {
    if (sequence == f->next) {
        f->next++;
        return 1;
    }
    if (sequence > f->next) {
        for (; f->next < sequence; f->next++) {
            if (f->missing_count == f->missing_room) {
                f->missing_room = f->missing_room * 2 + 16;
                f->missing = realloc(f->missing, f->missing_room * sizeof *f->missing);
                if (!f->missing) fail("out of memory");
            }
            f->missing[f->missing_count++] = f->next;
        }
        f->next++;
        return 1;
    }
    for (size_t i = 0; i < f->missing_count; i++) {
        if (f->missing[i] == sequence) {
            f->missing[i] = f->missing[--f->missing_count];
            reordered++;
            return 1;
        }
    }
    duplicates++;
    return 0;
}

static void on_publish(struct subscriber *s, const uint8_t *packet, size_t body, size_t length,
                       uint64_t now) {
    const uint8_t *p = packet + body, *end = packet + length, *id = 0;
    int qos = packet[0] >> 1 & 3;
    if (end - p < 2) goto malformed;
    p += 2 + (p[0] << 8 | p[1]);
    if (qos) {
        id = p;
        p += 2;
    }
    if (p >= end) goto malformed;
    if (arg.level == 5) {
        size_t value = 0;
        int shift = 0;
        do value |= (size_t)(*p & 127) << shift, shift += 7;
        while (*p++ & 128 && p < end);
        p += value;
    }
    if (end - p != arg.payload) goto malformed;
    uint32_t run, number;
    uint64_t sequence, stamp;
    memcpy(&run, p, 4);
    memcpy(&number, p + 4, 4);
    memcpy(&sequence, p + 8, 8);
    memcpy(&stamp, p + 16, 8);
    if (qos == 1) acknowledge(&s->c, PUBACK, id);
    if (qos == 2) acknowledge(&s->c, PUBREC, id);
    if (qos != arg.qos) wrong_qos++;
    if (run != run_number || number >= arg.pubs || sequence >= pubs[number].next
        || (one_to_one && number != (uint32_t)s->c.number)) {
        stray++;
        return;
    }
    if (!accept_sequence(&s->flows[one_to_one ? 0 : number], sequence)) return;
    delivered++;
    if (open_loop && stamp >= window_start && window_start && (!window_end || stamp < window_end)) {
        uint64_t latency = now - stamp;
        histogram[bucket_of(latency)]++;
        latency_count++;
        if (latency > latency_max) latency_max = latency;
    }
    complete_part(&pubs[number], sequence);
    return;
malformed:
    stray++;
}

static void on_acknowledgement(struct publisher *p, const uint8_t *packet, size_t body,
                               size_t length) {
    int type = packet[0] >> 4;
    if (length < body + 2) {
        stray++;
        return;
    }
    unsigned id = packet[body] << 8 | packet[body + 1];
    uint64_t sequence = p->low + ((id - 1 - p->low) & 32767);
    struct slot *slot = &p->ring[sequence & ring_mask];
    if (sequence >= p->next || slot->awaited != type) {
        stray++;
        return;
    }
    if (length > body + 2 && packet[body + 2] >= 0x80) refused++;
    if (type == PUBREC) {
        slot->awaited = PUBCOMP;
        acknowledge(&p->c, PUBREL, packet + body);
        return;
    }
    slot->awaited = 0;
    complete_part(p, sequence);
}

static void on_packet(struct connection *c, const uint8_t *packet, size_t body, size_t length,
                      uint64_t now) {
    int type = packet[0] >> 4;
    if (!c->publisher && type == PUBLISH)
        on_publish((struct subscriber *)c, packet, body, length, now);
    else if (!c->publisher && type == PUBREL && length >= body + 2)
        acknowledge(c, PUBCOMP, packet + body);
    else if (c->publisher && (type == PUBACK || type == PUBREC || type == PUBCOMP))
        on_acknowledgement((struct publisher *)c, packet, body, length);
    else if (type == DISCONNECT) broken = "the broker sent DISCONNECT";
    else stray++;
}

static void on_readable(struct connection *c) {
    size_t have = c->rest.length, at = 0, body, length;
    if (have) memcpy(read_buffer, c->rest.data, have);
    ssize_t n = recv(c->fd, read_buffer + have, read_room - have, 0);
    reads++;
    if (n <= 0) {
        if (n == 0) broken = "the broker closed a connection";
        else if (errno != EAGAIN) broken = strerror(errno);
        return;
    }
    uint64_t now = open_loop ? now_ns() : 0;
    have += n;
    while ((length = packet_length(read_buffer + at, have - at, &body)) && length <= have - at) {
        on_packet(c, read_buffer + at, body, length, now);
        at += length;
    }
    c->rest.length = 0;
    if (have - at > (size_t)arg.payload + 4096) fail("a packet longer than any that was sent");
    if (have > at) memcpy(reserve(&c->rest, have - at), read_buffer + at, have - at);
}

/* ---- closed and open loop ---------------------------------------------------------------------- */

static void set_up_load(void) {
    uint64_t slots = 1;
    one_to_one = !strcmp(arg.topology, "pairs");
    subscribers_each = one_to_one ? 1 : arg.subs;
    if (open_loop) arg.window = 32768;
    while (slots < (uint64_t)arg.window) slots *= 2;
    ring_mask = slots - 1;
    read_room = READ_SIZE + 2 * arg.payload + 8192;
    pubs = calloc(arg.pubs, sizeof *pubs);
    subs = calloc(arg.subs, sizeof *subs);
    read_buffer = malloc(read_room);
    if (!pubs || !subs || !read_buffer || (epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0)
        fail("out of memory or descriptors");
    for (int i = 0; i < arg.subs; i++) {
        struct subscriber *s = &subs[i];
        s->c.number = i;
        s->c.fd = establish("s", i);
        subscribe(s->c.fd, i);
        s->flows = calloc(one_to_one ? 1 : arg.pubs, sizeof *s->flows);
    }
    for (int i = 0; i < arg.pubs; i++) {
        struct publisher *p = &pubs[i];
        p->c.publisher = 1;
        p->c.number = i;
        p->c.fd = establish("p", i);
        p->ring = calloc(slots, sizeof *p->ring);
        p->window = arg.window;
        if (arg.qos && p->window > receive_maximum) p->window = receive_maximum;
        prepare_packet(p);
    }
    for (int i = 0; i < arg.subs + arg.pubs; i++) {
        struct connection *c = i < arg.subs ? &subs[i].c : &pubs[i - arg.subs].c;
        fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
        watch(c, EPOLL_CTL_ADD);
    }
}

static int all_complete(void) {
    for (int i = 0; i < arg.pubs; i++)
        if (pubs[i].low != pubs[i].next) return 0;
    return 1;
}

static uint64_t count_lost(void) {
    uint64_t lost = 0;
    for (int i = 0; i < arg.subs; i++)
        for (int j = 0; j < (one_to_one ? 1 : arg.pubs); j++) {
            struct flow *f = &subs[i].flows[j];
            lost += f->missing_count + pubs[one_to_one ? i : j].next - f->next;
        }
    return lost;
}

static uint64_t count_sent(void) {
    uint64_t sent = 0;
    for (int i = 0; pubs && i < arg.pubs; i++) sent += pubs[i].next;
    return sent;
}

static uint64_t count_unacknowledged(void) {
    uint64_t count = 0;
    for (int i = 0; i < arg.pubs; i++)
        for (uint64_t s = pubs[i].low; s < pubs[i].next; s++)
            count += pubs[i].ring[s & ring_mask].awaited != 0;
    return count;
}

/* One round: wait, read all that is readable, let the publishers write, one write per connection. */
static uint64_t turn(int timeout) {
    static struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(epoll_fd, events, MAX_EVENTS, timeout);
    if (n < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
    uint64_t start = open_loop && n > 0 ? now_ns() : 0;
    for (int i = 0; i < n; i++) {
        struct connection *c = events[i].data.ptr;
        if (events[i].events & EPOLLOUT) flush(c);
        if (events[i].events & ~EPOLLOUT) on_readable(c);
    }
    return start;
}

struct sample {
    uint64_t time, delivered, sent, broker, generator, reads, writes, busy, broker_wait, wait;
};

static struct sample take_sample(uint64_t busy) {
    return (struct sample){now_ns(), delivered, count_sent(), broker_cpu(),
                           read_clock(CLOCK_PROCESS_CPUTIME_ID), reads, writes, busy,
                           broker_waited(), waited(getpid())};
}

static void run_load(void) {
    uint64_t busy = 0, due = 0, first, last_progress, stalled = 0, late = 0, step = 0;
    uint64_t drain = arg.drain * SECOND;
    struct sample from = {0}, to = {0};
    if (open_loop) step = SECOND / arg.rate;
    set_up_load();
    first = last_progress = now_ns();
    uint64_t begin = first + arg.warmup * SECOND, end = 0, seen = 0, quiet = 0;
    if (!open_loop)
        for (int i = 0; i < arg.pubs; i++) mark_ready(&pubs[i]);
    while (!broken) {
        uint64_t now = now_ns();
        if (progress != seen) seen = progress, last_progress = now;
        if (!window_start && now >= begin) {
            from = take_sample(busy), window_start = from.time;
            end = window_start + arg.seconds * SECOND;
        }
        if (window_start && !window_end && now >= end) to = take_sample(busy), window_end = to.time;
        if (!window_end) {
            if (!open_loop) {
                refill_ready(now);
                if (now - last_progress > drain) {
                    stalled = 1;
                    if (!window_start) from = take_sample(busy), window_start = from.time;
                    to = take_sample(busy), window_end = to.time;
                }
            } else {
                uint64_t before = due;
                for (; first + due * step <= now; due++) {
                    struct publisher *p = &pubs[due % arg.pubs];
                    if ((long)(p->next - p->low) >= p->window) {
                        late = 1; /* the broker is tens of thousands of messages behind */
                        break;
                    }
                    send_message(p, first + due * step);
                }
                if (due != before) {
                    flush_dirty();
                    busy += now_ns() - now;
                }
            }
        } else {
            /* Drain until all is complete, then listen on for what should not come any more. */
            if (!quiet && all_complete()) quiet = now;
            if (now - last_progress > drain || (quiet && now - quiet > SECOND / 10)) break;
        }
        flush_dirty();
        uint64_t start = turn(open_loop && !window_end ? 0 : 20);
        if (open_loop && start) {
            flush_dirty();
            busy += now_ns() - start;
        }
    }
    if (broken) fail("%s", broken);
    double elapsed = (double)(to.time - from.time);
    uint64_t generator = open_loop ? to.busy - from.busy : to.generator - from.generator;
    printf("{\"elapsed_ns\": %.0f, \"sent\": %llu, \"delivered\": %llu, \"sent_total\": %llu, "
           "\"delivered_total\": %llu, \"window\": %ld, \"broker_cpu_ns\": %llu, "
           "\"generator_ns\": %llu, \"generator_share\": %.4f, \"reads\": %llu, \"writes\": %llu, "
           "\"lost\": %llu, \"duplicates\": %llu, \"reordered\": %llu, \"stray\": %llu, "
           "\"refused\": %llu, \"wrong_qos\": %llu, \"unacknowledged\": %llu, \"stalled\": %s, "
           "\"not_sustained\": %s, \"broker_wait_ns\": %llu, \"generator_wait_ns\": %llu, "
           "\"broker_rss_kib\": %ld",
           elapsed, (unsigned long long)(to.sent - from.sent),
           (unsigned long long)(to.delivered - from.delivered), (unsigned long long)count_sent(),
           (unsigned long long)delivered, pubs[0].window, (unsigned long long)(to.broker - from.broker),
           (unsigned long long)generator, elapsed > 0 ? generator / elapsed : 0,
           (unsigned long long)(to.reads - from.reads), (unsigned long long)(to.writes - from.writes),
           (unsigned long long)count_lost(), (unsigned long long)duplicates,
           (unsigned long long)reordered, (unsigned long long)stray, (unsigned long long)refused,
           (unsigned long long)wrong_qos, (unsigned long long)count_unacknowledged(),
           stalled ? "true" : "false", late ? "true" : "false",
           (unsigned long long)(to.broker_wait - from.broker_wait),
           (unsigned long long)(to.wait - from.wait), broker_rss());
    if (open_loop)
        printf(", \"latency_us\": {\"count\": %llu, \"p50\": %.2f, \"p90\": %.2f, \"p99\": %.2f, "
               "\"p99_9\": %.2f, \"max\": %.2f}",
               (unsigned long long)latency_count, quantile_us(.5), quantile_us(.9), quantile_us(.99),
               quantile_us(.999), latency_max / 1e3);
    printf("}\n");
    for (int i = 0; i < arg.subs + arg.pubs; i++)
        say_goodbye(i < arg.subs ? subs[i].c.fd : pubs[i - arg.subs].c.fd);
}

/* ---- connect and idle -------------------------------------------------------------------------- */

struct handshake { int fd, written; size_t length; uint8_t out[64]; };

static void start_handshake(struct handshake *h) {
    static uint64_t number;
    h->fd = dial(SOCK_NONBLOCK);
    h->length = encode_connect(h->out, "c", number++);
    /* On loopback the connection mostly stands already; otherwise EPOLLOUT tells. */
    h->written = send(h->fd, h->out, h->length, MSG_NOSIGNAL) == (ssize_t)h->length;
    struct epoll_event event = {.events = h->written ? EPOLLIN : EPOLLOUT, .data.ptr = h};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, h->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

static void run_connect(void) {
    struct handshake *all = calloc(arg.inflight, sizeof *all);
    struct epoll_event events[MAX_EVENTS];
    uint64_t count = 0, begin, end, last;
    struct sample from = {0}, to = {0};
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (long i = 0; i < arg.inflight; i++) start_handshake(&all[i]);
    last = now_ns();
    begin = last + arg.warmup * SECOND;
    end = begin + arg.seconds * SECOND;
    while (!to.time) {
        uint64_t now = now_ns();
        delivered = count;
        if (!from.time && now >= begin) from = take_sample(0);
        if (from.time && now >= end) to = take_sample(0);
        int n = epoll_wait(epoll_fd, events, MAX_EVENTS, 20);
        if (n > 0) last = now;
        if (now - last > 5ull * SECOND) fail("no CONNACK for 5 s");
        for (int i = 0; i < n; i++) {
            struct handshake *h = events[i].data.ptr;
            uint8_t in[4096];
            if (!h->written) {
                if (send(h->fd, h->out, h->length, MSG_NOSIGNAL) != (ssize_t)h->length)
                    fail("connect: %s", strerror(errno));
                h->written = 1;
                struct epoll_event event = {.events = EPOLLIN, .data.ptr = h};
                epoll_ctl(epoll_fd, EPOLL_CTL_MOD, h->fd, &event);
                continue;
            }
            ssize_t got = recv(h->fd, in, sizeof in, 0);
            size_t body;
            if (got <= 0) fail("closed by the broker while waiting for CONNACK");
            if (packet_length(in, got, &body) != (size_t)got) fail("CONNACK came in parts");
            check_connack(in, got);
            say_goodbye(h->fd);
            count++;
            start_handshake(h);
        }
    }
    double elapsed = (double)(to.time - from.time);
    uint64_t generator = to.generator - from.generator;
    printf("{\"elapsed_ns\": %.0f, \"connects\": %llu, \"broker_cpu_ns\": %llu, \"generator_ns\": %llu, "
           "\"generator_share\": %.4f, \"broker_wait_ns\": %llu, \"generator_wait_ns\": %llu, "
           "\"broker_rss_kib\": %ld}\n",
           elapsed, (unsigned long long)(to.delivered - from.delivered),
           (unsigned long long)(to.broker - from.broker), (unsigned long long)generator,
           generator / elapsed, (unsigned long long)(to.broker_wait - from.broker_wait),
           (unsigned long long)(to.wait - from.wait), broker_rss());
    free(all);
}

static void run_idle(void) {
    int *fds = calloc(arg.clients, sizeof *fds);
    struct timespec pause = {0, SECOND / 2};
    /* First a few that leave again: code and buffers that come with the first client are not a
       connection's price. */
    for (int i = 0; i < 20; i++) say_goodbye(establish("w", i));
    nanosleep(&pause, 0);
    long before = broker_rss();
    uint64_t start = now_ns();
    for (long i = 0; i < arg.clients; i++) fds[i] = establish("i", i);
    double connecting = (double)(now_ns() - start);
    nanosleep(&pause, 0);
    long after = broker_rss();
    uint64_t cpu = broker_cpu();
    pause.tv_sec = (time_t)arg.seconds;
    pause.tv_nsec = (arg.seconds - (double)pause.tv_sec) * SECOND;
    nanosleep(&pause, 0);
    cpu = broker_cpu() - cpu;
    uint64_t closed = 0;
    for (long i = 0; i < arg.clients; i++) {
        uint8_t byte;
        closed += recv(fds[i], &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
        say_goodbye(fds[i]);
    }
    printf("{\"elapsed_ns\": %.0f, \"clients\": %ld, \"rss_before_kib\": %ld, \"rss_after_kib\": %ld, "
           "\"broker_cpu_ns\": %llu, \"connecting_ns\": %.0f, \"lost\": %llu}\n",
           arg.seconds * SECOND, arg.clients, before, after, (unsigned long long)cpu, connecting,
           (unsigned long long)closed);
    free(fds);
}

int main(int count, char **words) {
    struct rlimit files;
    parse_arguments(count, words);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    run_number = (uint32_t)(now_ns() / 1000) ^ (uint32_t)getpid() << 16;
    open_loop = !strcmp(arg.mode, "open");
    if (open_loop && arg.rate < 1) fail("open: rate must be at least 1");
    if (open_loop || !strcmp(arg.mode, "closed")) run_load();
    else if (!strcmp(arg.mode, "connect")) run_connect();
    else if (!strcmp(arg.mode, "idle") && arg.clients > 0) run_idle();
    else fail("mode must be closed, open, connect or idle (with clients=N)");
    return 0;
}
