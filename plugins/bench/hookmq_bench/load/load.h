/* load: the native load generator of hookmq-bench.
 *
 * One thread, one epoll set, MQTT 3.1.1 (level 4) or 5.0 (level 5) over TCP, TLS or WebSocket.
 * ../native.py compiles and runs it; it prints one JSON object on stdout and exits 0, or prints
 * {"error": ...} and exits 1. `load key=value ...`; the keys are the table in arguments.c.
 *
 * arguments.c arguments and errors
 * main.c     modes
 * accounts.c clocks, the broker's CPU time and memory, latencies
 * wire.c     connections: dialling, TLS, WebSocket frames, buffers
 * packets.c  packets: CONNECT, SUBSCRIBE, PUBLISH
 * flow.c     modes closed and open: publishers and subscribers
 * churn.c    modes connect and idle
 * stored.c   modes retained and offline
 */
#ifndef LOAD_H
#define LOAD_H
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { CONNECT = 1, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK };
enum { PINGREQ = 12, PINGRESP, DISCONNECT };
enum { MAX_PIDS = 64, MAX_EVENTS = 1024, READ_SIZE = 256 * 1024, SECOND = 1000000000 };
/* The start of a payload: run, publisher, sequence number; and the time if there is room. */
enum { STAMP = 16, TIMED_STAMP = 24 };

/* ---- arguments.c */

extern struct settings {
    const char *mode, *topology, *transport;
    long port, level, pubs, subs, qos, window, refill, payload, rate, clients, inflight;
    long topics, filters, idle, clean, properties;
    double warmup, seconds, drain;
    long pids[MAX_PIDS];
    int pid_count;
} arg;
extern uint32_t run_number;

void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* `words` from the command line into `arg`. */
void parse_arguments(int count, char **words);

/* ---- accounts.c */

struct sample {
    uint64_t time, delivered, sent, acked, broker, generator, reads, writes, busy, broker_wait, wait;
};

uint64_t read_clock(clockid_t id);
uint64_t now_ns(void);
uint64_t broker_cpu(void);
long broker_rss(void);
struct sample take_sample(uint64_t delivered, uint64_t sent, uint64_t busy);
void print_accounts(const struct sample *from, const struct sample *to, uint64_t generator);
void record_latency(uint64_t ns);
void print_latencies(void);

/* ---- wire.c */

struct bytes { uint8_t *data; size_t length, room; };
struct connection {
    int fd, publisher, number, dirty, blocked;
    void *tls;
    size_t sent;   /* of `out` */
    size_t framed; /* WebSocket: the bytes of `out` that have a frame */
    uint64_t frame_left;       /* WebSocket: missing bytes of the incoming frame */
    uint8_t header[16];        /* WebSocket: an incomplete frame header */
    size_t header_length;
    struct bytes out, rest; /* rest: an incomplete packet kept from the last read */
    struct connection *next_dirty;
};

extern int epoll_fd;
extern uint64_t reads, writes;
extern const char *broken;

uint8_t *reserve(struct bytes *b, size_t more);
int dial(int flags);
void open_connection(struct connection *c);
void watch(struct connection *c, int operation);
void mark_dirty(struct connection *c);
void flush(struct connection *c);
void flush_dirty(void);
/* Read once. 1: `*data` has `*length` bytes of packets, `rest` included; 0: no data now; -1: ended. */
int read_packets(struct connection *c, uint8_t **data, size_t *length);
/* Keep the incomplete packet at `at`. */
void keep(struct connection *c, uint8_t *data, size_t at, size_t length);
void set_nonblocking(struct connection *c);
void say_goodbye(struct connection *c);

/* ---- packets.c */

extern long receive_maximum;

size_t packet_length(const uint8_t *p, size_t have, size_t *body);
size_t put_varint(uint8_t *p, size_t value);
size_t encode_connect(uint8_t *p, const char *role, uint64_t number, int clean);
void check_connack(const uint8_t *packet, size_t length);
void establish(struct connection *c, const char *role, uint64_t number, int clean);
/* Send, and wait for one packet of at most 4096 bytes; return its length. */
size_t ask(struct connection *c, const uint8_t *out, size_t length, uint8_t *in, const char *what);
void subscribe(struct connection *c, const char *filter, int qos);
void subscribe_many(struct connection *c, long first, long count);
void acknowledge(struct connection *c, int type, const uint8_t *id);
/* A PUBLISH without its stamp, packet id and (if digits_at) five digits of its topic. */
struct template {
    uint8_t *data;
    size_t length, stamp_at, id_at, digits_at;
};
struct template make_template(const char *topic, uint32_t number, int flags);
/* Read stamp and packet id of a PUBLISH; 0 if it is malformed or of another run. */
struct stamp { uint32_t number; uint64_t sequence, time; int qos; const uint8_t *id; };
int read_stamp(const uint8_t *packet, size_t body, size_t length, struct stamp *stamp);

/* ---- modes */

void run_load(int open_loop);
void run_connect(void);
void run_idle(void);
void run_retained(void);
void run_offline(void);

#endif
