/* Modes closed and open: publishers, subscribers, and an account of every message.
 *
 *   closed   every publisher has at most `window` messages outstanding. A message is outstanding until
 *            all its subscribers have received it and, at QoS 1 and 2, PUBACK or PUBCOMP has
 *            arrived. The window slides over sequence numbers, so a lost message stops its
 *            publisher. A publisher writes again when `refill` messages are free.
 *   open     `rate` messages a second of all publishers in turn. Each payload has the time at which its
 *            message was due, and latency counts from that time.
 *
 * Topologies
 *   pairs     subscriber i gets what publisher i sends
 *   all       every subscriber gets everything
 *   wildcard  `topics` topics, each with its own filter at one of the subscribers except the last, which
 *             has one filter for all: each message goes to two subscribers
 *   shared    the subscribers share one subscription: each message goes to one of them
 *
 * In addition: `idle` connections, and `filters` subscriptions that match no message.
 *
 * Each payload carries a run number, the publisher's number, a 64-bit sequence number and a time.
 * Loss, duplicates and order are counted for each pair of publisher and subscriber.
 */
#include "load.h"

/* The sequence number that a subscriber expects next from a publisher, and the missing ones. */
struct flow { uint64_t next, step, *missing; size_t missing_count, missing_room; };
/* awaited: type of the expected acknowledgement, 0 = none; got: a member of the group has the message. */
struct slot { uint32_t left; uint8_t awaited, got; };

struct publisher {
    struct connection c;
    uint64_t next, low; /* next sequence number to send; lowest that is not complete */
    long window;
    struct slot *ring;
    struct template packet;
    int ready;
    struct publisher *next_ready;
};

struct subscriber { struct connection c; struct flow *flows; };

enum { PER_CLIENT = 1000 }; /* of those filters, for each connection */

static struct publisher *pubs, *ready;
static struct subscriber *subs;
static int one_to_one, wildcard, shared, timed;
static uint64_t ring_mask, subscribers_each, topics_each;
static uint64_t acked, delivered, reordered, duplicates, stray, refused, wrong_qos, progress;
static uint64_t window_start, window_end; /* of the measured interval; 0 = not yet */

/* ---- output */

static void send_message(struct publisher *p, uint64_t stamp) {
    const struct template *t = &p->packet;
    uint8_t *b = reserve(&p->c.out, t->length);
    uint64_t sequence = p->next++;
    struct slot *slot = &p->ring[sequence & ring_mask];
    memcpy(b, t->data, t->length);
    memcpy(b + t->stamp_at, &sequence, 8);
    if (arg.payload >= TIMED_STAMP) memcpy(b + t->stamp_at + 8, &stamp, 8);
    if (wildcard) {
        uint64_t topic = p->c.number * topics_each + sequence % topics_each;
        for (int i = 4; i >= 0; i--, topic /= 10) b[t->digits_at + i] = '0' + topic % 10;
    }
    slot->left = subscribers_each;
    slot->awaited = slot->got = 0;
    if (arg.qos) {
        unsigned id = (sequence & 32767) + 1;
        b[t->id_at] = id >> 8;
        b[t->id_at + 1] = id;
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

/* ---- input */

static void complete_part(struct publisher *p, uint64_t sequence) {
    progress++;
    if (--p->ring[sequence & ring_mask].left || sequence != p->low) return;
    do p->low++;
    while (p->low < p->next && !p->ring[p->low & ring_mask].left);
    mark_ready(p);
}

/* Return whether the sequence number is new; count what is wrong. */
static int accept_sequence(struct flow *f, uint64_t sequence) {
    if (sequence == f->next) {
        f->next += f->step;
        return 1;
    }
    if (sequence > f->next && (sequence - f->next) % f->step == 0) {
        for (; f->next < sequence; f->next += f->step) {
            if (f->missing_count == f->missing_room) {
                f->missing_room = f->missing_room * 2 + 16;
                f->missing = realloc(f->missing, f->missing_room * sizeof *f->missing);
                if (!f->missing) fail("out of memory");
            }
            f->missing[f->missing_count++] = f->next;
        }
        f->next += f->step;
        return 1;
    }
    for (size_t i = 0; i < f->missing_count; i++) {
        if (f->missing[i] == sequence) {
            f->missing[i] = f->missing[--f->missing_count];
            reordered++;
            return 1;
        }
    }
    if (sequence % f->step == f->next % f->step) duplicates++;
    else stray++; /* another's */
    return 0;
}

/* The same for a group: one member gets the message, and each member gets its messages in order. */
static int accept_shared(struct publisher *p, struct flow *f, uint64_t sequence) {
    struct slot *slot = &p->ring[sequence & ring_mask];
    if (sequence < p->low || slot->got) {
        duplicates++;
        return 0;
    }
    slot->got = 1;
    if (sequence < f->next) reordered++;
    else f->next = sequence + 1;
    return 1;
}

static void on_publish(struct subscriber *s, const uint8_t *packet, size_t body, size_t length,
                       uint64_t now) {
    struct stamp stamp;
    int ours = read_stamp(packet, body, length, &stamp);
    uint64_t sequence = stamp.sequence;
    if (!ours) {
        stray++;
        return;
    }
    if (stamp.qos == 1) acknowledge(&s->c, PUBACK, stamp.id);
    if (stamp.qos == 2) acknowledge(&s->c, PUBREC, stamp.id);
    if (stamp.qos != arg.qos) wrong_qos++;
    if (stamp.number >= (uint64_t)arg.pubs || sequence >= pubs[stamp.number].next
        || (one_to_one && stamp.number != (uint32_t)s->c.number)) {
        stray++;
        return;
    }
    struct publisher *p = &pubs[stamp.number];
    struct flow *f = &s->flows[one_to_one ? 0 : stamp.number];
    if (!(shared ? accept_shared(p, f, sequence) : accept_sequence(f, sequence))) return;
    delivered++;
    if (timed && stamp.time >= window_start && window_start
        && (!window_end || stamp.time < window_end))
        record_latency(now - stamp.time);
    complete_part(p, sequence);
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
    acked++;
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
    uint8_t *data;
    size_t at = 0, body, have, length;
    int got = read_packets(c, &data, &have);
    if (got < 0 && !broken) broken = "the broker closed a connection";
    if (got <= 0) return;
    uint64_t now = timed ? now_ns() : 0;
    while ((length = packet_length(data + at, have - at, &body)) && length <= have - at) {
        on_packet(c, data + at, body, length, now);
        at += length;
    }
    if (length > (size_t)arg.payload + 4096) fail("a packet longer than any that was sent");
    keep(c, data, at, have);
}

/* ---- before */

static void subscribe_one(struct subscriber *s) {
    static const char *shapes[] = {"bench/%08x/%05ld/+/+", "bench/%08x/%05ld/#",
                                   "bench/%08x/%05ld/s/+", "+/%08x/%05ld/s/#"};
    char filter[64];
    int number = s->c.number, last = number == arg.subs - 1;
    if (wildcard && !last) {
        for (long topic = number; topic < arg.topics; topic += arg.subs - 1) {
            snprintf(filter, sizeof filter, shapes[topic / (arg.subs - 1) % 4], run_number, topic);
            subscribe(&s->c, filter, arg.qos);
        }
        return;
    }
    if (wildcard) snprintf(filter, sizeof filter, "bench/%08x/+/s/#", run_number);
    else if (shared) snprintf(filter, sizeof filter, "$share/g/bench/%08x/+", run_number);
    else if (one_to_one) snprintf(filter, sizeof filter, "bench/%08x/%d", run_number, number);
    else snprintf(filter, sizeof filter, arg.pubs > 1 ? "bench/%08x/+" : "bench/%08x/0", run_number);
    subscribe(&s->c, filter, arg.qos);
}

static void set_up_load(void) {
    uint64_t slots = 1;
    one_to_one = !strcmp(arg.topology, "pairs");
    wildcard = !strcmp(arg.topology, "wildcard");
    shared = !strcmp(arg.topology, "shared");
    subscribers_each = one_to_one || shared ? 1 : wildcard ? 2 : arg.subs;
    if (wildcard) {
        topics_each = arg.topics / arg.pubs;
        if (arg.subs < 2 || !topics_each || topics_each % (arg.subs - 1))
            fail("wildcard: topics / pubs must be a multiple of subs - 1");
    }
    if (timed) arg.window = 32768;
    while (slots < (uint64_t)arg.window) slots *= 2;
    ring_mask = slots - 1;
    pubs = calloc(arg.pubs, sizeof *pubs);
    subs = calloc(arg.subs, sizeof *subs);
    long crowd = arg.idle + (arg.filters + PER_CLIENT - 1) / PER_CLIENT;
    struct connection *idle = calloc(crowd ? crowd : 1, sizeof *idle);
    if (!pubs || !subs || !idle) fail("out of memory");
    for (long i = 0, first = 0; i < crowd; i++) {
        establish(&idle[i], "i", i, 1);
        if (i < arg.idle) continue;
        long count = arg.filters - first < PER_CLIENT ? arg.filters - first : PER_CLIENT;
        subscribe_many(&idle[i], first, count);
        first += count;
    }
    for (int i = 0; i < arg.subs; i++) {
        struct subscriber *s = &subs[i];
        long flows = one_to_one ? 1 : arg.pubs;
        s->c.number = i;
        establish(&s->c, "s", i, arg.clean);
        subscribe_one(s);
        if (!(s->flows = calloc(flows, sizeof *s->flows))) fail("out of memory");
        for (long j = 0; j < flows; j++) {
            int apart = wildcard && i < arg.subs - 1;
            s->flows[j].step = apart ? arg.subs - 1 : 1;
            s->flows[j].next = apart ? i : 0;
        }
    }
    for (int i = 0; i < arg.pubs; i++) {
        struct publisher *p = &pubs[i];
        char topic[64];
        snprintf(topic, sizeof topic, wildcard ? "bench/%08x/00000/s/t" : "bench/%08x/%d",
                 run_number, i);
        p->c.publisher = 1;
        p->c.number = i;
        establish(&p->c, "p", i, 1);
        p->ring = calloc(slots, sizeof *p->ring);
        p->window = arg.window;
        if (arg.qos && p->window > receive_maximum) p->window = receive_maximum;
        p->packet = make_template(topic, i, 0);
    }
    if ((epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) fail("out of descriptors");
    for (int i = 0; i < arg.subs + arg.pubs; i++) {
        struct connection *c = i < arg.subs ? &subs[i].c : &pubs[i - arg.subs].c;
        set_nonblocking(c);
        watch(c, EPOLL_CTL_ADD);
    }
}

/* ---- counts */

static int all_complete(void) {
    for (int i = 0; i < arg.pubs; i++)
        if (pubs[i].low != pubs[i].next) return 0;
    return 1;
}

static uint64_t count_lost(void) {
    uint64_t lost = 0;
    if (shared) {
        for (int i = 0; i < arg.pubs; i++)
            for (uint64_t s = pubs[i].low; s < pubs[i].next; s++)
                lost += !pubs[i].ring[s & ring_mask].got;
        return lost;
    }
    for (int i = 0; i < arg.subs; i++)
        for (int j = 0; j < (one_to_one ? 1 : arg.pubs); j++) {
            struct flow *f = &subs[i].flows[j];
            uint64_t sent = pubs[one_to_one ? i : j].next;
            lost += f->missing_count;
            if (sent > f->next) lost += (sent - f->next + f->step - 1) / f->step;
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

/* ---- the run */

/* One turn: wait, and read everything readable. Publishers write afterwards, once for each connection. */
static uint64_t turn(int timeout) {
    static struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(epoll_fd, events, MAX_EVENTS, timeout);
    if (n < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
    uint64_t start = timed && n > 0 ? now_ns() : 0;
    for (int i = 0; i < n; i++) {
        struct connection *c = events[i].data.ptr;
        if (events[i].events & EPOLLOUT) flush(c);
        if (events[i].events & ~EPOLLOUT) on_readable(c);
    }
    return start;
}

static struct sample sample_now(uint64_t busy) {
    struct sample sample = take_sample(delivered, count_sent(), busy);
    sample.acked = acked;
    return sample;
}

void run_load(int open_loop) {
    uint64_t busy = 0, due = 0, first, last_progress, stalled = 0, late = 0, step = 0;
    uint64_t drain = arg.drain * SECOND;
    struct sample from = {0}, to = {0};
    long rss_start = broker_rss(), rss_ready;
    timed = open_loop;
    if (open_loop) step = SECOND / arg.rate;
    set_up_load();
    rss_ready = broker_rss();
    first = last_progress = now_ns();
    uint64_t begin = first + arg.warmup * SECOND, end = 0, seen = 0, quiet = 0;
    if (!open_loop)
        for (int i = 0; i < arg.pubs; i++) mark_ready(&pubs[i]);
    while (!broken) {
        uint64_t now = now_ns();
        if (progress != seen) seen = progress, last_progress = now;
        if (!window_start && now >= begin) {
            from = sample_now(busy), window_start = from.time;
            end = window_start + arg.seconds * SECOND;
        }
        if (window_start && !window_end && now >= end) to = sample_now(busy), window_end = to.time;
        if (!window_end) {
            if (!open_loop) {
                refill_ready(now);
                if (now - last_progress > drain) {
                    stalled = 1;
                    if (!window_start) from = sample_now(busy), window_start = from.time;
                    to = sample_now(busy), window_end = to.time;
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
            /* Drain until everything is complete, then listen for duplicates. */
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
    uint64_t generator = open_loop ? to.busy - from.busy : to.generator - from.generator;
    printf("{\"acked\": %llu, \"acked_total\": %llu, ", (unsigned long long)(to.acked - from.acked),
           (unsigned long long)acked);
    printf("\"sent\": %llu, \"delivered\": %llu, \"sent_total\": %llu, \"delivered_total\": %llu, "
           "\"window\": %ld, \"lost\": %llu, \"duplicates\": %llu, \"reordered\": %llu, "
           "\"stray\": %llu, \"refused\": %llu, \"wrong_qos\": %llu, \"unacknowledged\": %llu, "
           "\"stalled\": %s, \"not_sustained\": %s, \"rss_before_kib\": %ld, \"rss_after_kib\": %ld, ",
           (unsigned long long)(to.sent - from.sent),
           (unsigned long long)(to.delivered - from.delivered), (unsigned long long)count_sent(),
           (unsigned long long)delivered, pubs[0].window, (unsigned long long)count_lost(),
           (unsigned long long)duplicates, (unsigned long long)reordered, (unsigned long long)stray,
           (unsigned long long)refused, (unsigned long long)wrong_qos,
           (unsigned long long)count_unacknowledged(), stalled ? "true" : "false",
           late ? "true" : "false", rss_start, rss_ready);
    print_accounts(&from, &to, generator);
    if (open_loop) print_latencies();
    printf("}\n");
    for (int i = 0; i < arg.subs + arg.pubs; i++)
        say_goodbye(i < arg.subs ? &subs[i].c : &pubs[i - arg.subs].c);
}
