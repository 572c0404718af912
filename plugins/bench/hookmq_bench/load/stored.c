/* Modes retained and offline: messages that the broker stores for later.
 *
 *   retained  `topics` retained messages; then, for `seconds`, one subscriber after another
 *             receives all of them. At least one subscriber runs.
 *   offline   `clients` sessions with one QoS 1 subscription each go offline, and `topics` messages
 *             are published at QoS 1, `window` at a time. All sessions return and receive them.
 */
#include "load.h"

struct reader { struct connection c; uint8_t *seen; uint64_t count, next; };

static uint64_t duplicates, reordered, stray, wrong_qos, acknowledged;
static int wanted_qos;

static void on_packet(struct reader *r, const uint8_t *p, size_t body, size_t length, int ordered) {
    struct stamp stamp;
    if (p[0] >> 4 == PUBACK) {
        acknowledged++;
        return;
    }
    if (p[0] >> 4 == SUBACK) return; /* stored messages may come first */
    if (p[0] >> 4 != PUBLISH || !read_stamp(p, body, length, &stamp)
        || stamp.sequence >= (uint64_t)arg.topics) {
        stray++;
        return;
    }
    if (stamp.qos != wanted_qos) wrong_qos++;
    if (stamp.qos == 1) acknowledge(&r->c, PUBACK, stamp.id);
    if (r->seen[stamp.sequence]) {
        duplicates++;
        return;
    }
    if (ordered && stamp.sequence < r->next) reordered++;
    r->next = stamp.sequence + 1;
    r->seen[stamp.sequence] = 1;
    r->count++;
}

/* Read once; return whether anything arrived. */
static int take(struct reader *r, int ordered) {
    uint8_t *data;
    size_t at = 0, have, body, length;
    int got = read_packets(&r->c, &data, &have);
    if (got < 0) fail("%s", broken ? broken : "the broker closed a connection");
    if (got == 0) return 0;
    while ((length = packet_length(data + at, have - at, &body)) && length <= have - at) {
        on_packet(r, data + at, body, length, ordered);
        at += length;
    }
    keep(&r->c, data, at, have);
    flush_dirty();
    return 1;
}

static void put_message(struct connection *c, const struct template *t, uint64_t sequence) {
    uint8_t *b = reserve(&c->out, t->length);
    uint64_t rest = sequence;
    memcpy(b, t->data, t->length);
    memcpy(b + t->stamp_at, &sequence, 8);
    if (t->digits_at) {
        for (int i = 4; i >= 0; i--, rest /= 10) b[t->digits_at + i] = '0' + rest % 10;
        b[t->digits_at + 6] = '0' + rest % 100 / 10; /* 00000/00: up to ten million topics */
        b[t->digits_at + 7] = '0' + rest % 10;
    }
    if (arg.qos) {
        unsigned id = (sequence & 32767) + 1;
        b[t->id_at] = id >> 8;
        b[t->id_at + 1] = id;
    }
}

static void watch_all(struct reader *readers, long count) {
    if (!epoll_fd && (epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) fail("out of descriptors");
    for (long i = 0; i < count; i++) {
        set_nonblocking(&readers[i].c);
        watch(&readers[i].c, EPOLL_CTL_ADD);
    }
}

/* Read until `wanted` messages have arrived, or none arrives for `drain` seconds. */
static void read_all(struct reader *readers, long count, uint64_t wanted, int ordered) {
    struct epoll_event events[MAX_EVENTS];
    uint64_t last = now_ns(), quiet = arg.drain * SECOND, have = 0;
    while (have < wanted && now_ns() - last < quiet) {
        int n = epoll_wait(epoll_fd, events, MAX_EVENTS, 20);
        for (int i = 0; i < n; i++) {
            struct reader *r = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush(&r->c);
            if ((events[i].events & ~EPOLLOUT) && take(r, ordered)) last = now_ns();
        }
        have = 0;
        for (long i = 0; i < count; i++) have += readers[i].count;
    }
}

static void report(const struct sample *from, const struct sample *to, const struct sample *stored,
                   const struct sample *storing, uint64_t delivered, uint64_t lost, long rss[2]) {
    printf("{\"delivered\": %llu, \"lost\": %llu, \"duplicates\": %llu, \"reordered\": %llu, "
           "\"stray\": %llu, \"wrong_qos\": %llu, \"stored\": %ld, \"store_ns\": %llu, "
           "\"store_cpu_ns\": %llu, \"rss_before_kib\": %ld, \"rss_after_kib\": %ld, ",
           (unsigned long long)delivered, (unsigned long long)lost, (unsigned long long)duplicates,
           (unsigned long long)reordered, (unsigned long long)stray, (unsigned long long)wrong_qos,
           arg.topics, (unsigned long long)(stored->time - storing->time),
           (unsigned long long)(stored->broker - storing->broker), rss[0], rss[1]);
    print_accounts(from, to, to->generator - from->generator);
    printf("}\n");
}

void run_retained(void) {
    enum { BATCH = 200 };
    struct reader publisher = {0};
    char text[64];
    uint8_t in[4096];
    uint64_t delivered = 0, lost = 0;
    long rss[2] = {broker_rss(), 0};
    if (arg.topics < 1 || arg.topics > 10000000) fail("retained: topics=1..10000000");
    snprintf(text, sizeof text, "bench/%08x/00000/00", run_number);
    establish(&publisher.c, "p", 0, 1);
    struct template t = make_template(text, 0, 1);
    struct sample storing = take_sample(0, 0, 0);
    for (long i = 0; i < arg.topics; i += BATCH) {
        for (long j = i; j < i + BATCH && j < arg.topics; j++) put_message(&publisher.c, &t, j);
        flush(&publisher.c); /* blocking: TCP stops us if the broker is behind */
        if (broken) fail("%s", broken);
        if (!arg.qos) continue;
        while (acknowledged < (uint64_t)(i + BATCH < arg.topics ? i + BATCH : arg.topics))
            if (!take(&publisher, 0)) fail("no PUBACK within 20 s");
    }
    ask(&publisher.c, (uint8_t *)"\xc0\0", 2, in, "PINGRESP");
    struct sample stored = take_sample(0, 0, 0), from = stored, to = stored;
    rss[1] = broker_rss();
    from = take_sample(0, 0, 0);
    do {
        struct reader r = {.seen = calloc(arg.topics, 1)};
        uint8_t out[80];
        size_t n = snprintf((char *)out + 6, 64, "bench/%08x/#", run_number), v5 = arg.level == 5;
        wanted_qos = 0;
        establish(&r.c, "s", delivered + lost, 1);
        memmove(out + 6 + v5, out + 6, n);
        memcpy(out, "\x82\0\0\1\0\0", 6);
        if (v5) out[6] = 0;
        out[1] = 5 + v5 + n;
        out[5 + v5] = n;
        out[6 + v5 + n] = 0;
        memcpy(reserve(&r.c.out, 7 + v5 + n), out, 7 + v5 + n);
        flush(&r.c);
        watch_all(&r, 1);
        read_all(&r, 1, arg.topics, 0);
        delivered += r.count;
        lost += arg.topics - r.count;
        say_goodbye(&r.c);
        free(r.seen);
        free(r.c.rest.data);
        to = take_sample(0, 0, 0);
    } while (to.time - from.time < arg.seconds * SECOND && !lost);
    report(&from, &to, &stored, &storing, delivered, lost, rss);
}

void run_offline(void) {
    struct reader *readers = calloc(arg.clients ? arg.clients : 1, sizeof *readers), publisher = {0};
    char text[64];
    uint64_t delivered = 0, wanted = (uint64_t)arg.clients * arg.topics;
    if (arg.clients < 1 || arg.topics < 1) fail("offline: clients=N topics=N");
    snprintf(text, sizeof text, "bench/%08x/t", run_number);
    arg.qos = wanted_qos = 1;
    for (long i = 0; i < arg.clients; i++) {
        establish(&readers[i].c, "o", i, 0);
        subscribe(&readers[i].c, text, 1);
        say_goodbye(&readers[i].c);
        readers[i] = (struct reader){.seen = calloc(arg.topics, 1)};
    }
    long rss[2] = {broker_rss(), 0};
    establish(&publisher.c, "p", 0, 1);
    struct template t = make_template(text, 0, 0);
    struct sample storing = take_sample(0, 0, 0);
    for (long sent = 0; (long)acknowledged < arg.topics;) {
        for (; sent < arg.topics && sent - (long)acknowledged < arg.window; sent++)
            put_message(&publisher.c, &t, sent);
        flush(&publisher.c);
        if (broken || !take(&publisher, 0)) fail("%s", broken ? broken : "no PUBACK within 20 s");
    }
    struct sample stored = take_sample(0, 0, 0);
    rss[1] = broker_rss();
    struct sample from = take_sample(0, 0, 0);
    for (long i = 0; i < arg.clients; i++) establish(&readers[i].c, "o", i, 0);
    watch_all(readers, arg.clients);
    /* `rest` has what followed the CONNACK. */
    for (long i = 0; i < arg.clients; i++) {
        size_t at = 0, body, length, have = readers[i].c.rest.length;
        uint8_t *data = readers[i].c.rest.data;
        while ((length = packet_length(data + at, have - at, &body)) && length <= have - at) {
            on_packet(&readers[i], data + at, body, length, 1);
            at += length;
        }
        keep(&readers[i].c, data, at, have);
    }
    flush_dirty();
    read_all(readers, arg.clients, wanted, 1);
    struct sample to = take_sample(0, 0, 0);
    for (long i = 0; i < arg.clients; i++) {
        delivered += readers[i].count;
        say_goodbye(&readers[i].c);
    }
    report(&from, &to, &stored, &storing, delivered, wanted - delivered, rss);
}
