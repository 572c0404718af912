/* Packets to send (CONNECT, SUBSCRIBE, PUBLISH), and the answers before the measurement. */
#include "load.h"

long receive_maximum = 65535;

size_t put_varint(uint8_t *p, size_t value) {
    size_t n = 0;
    do {
        p[n] = value & 127;
        value >>= 7;
        if (value) p[n] |= 128;
        n++;
    } while (value);
    return n;
}

/* Length of the complete packet at p, 0 if bytes are missing; *body is the offset of its variable header. */
size_t packet_length(const uint8_t *p, size_t have, size_t *body) {
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

size_t encode_connect(uint8_t *p, const char *role, uint64_t number, int clean) {
    char id[32];
    size_t n = snprintf(id, sizeof id, "%08x%s%llu", run_number, role, (unsigned long long)number);
    size_t at = 2;
    memcpy(p + at, "\0\4MQTT", 6);
    p[at + 6] = arg.level;
    p[at + 7] = clean ? 2 : 0; /* clean session, clean start */
    p[at + 8] = 600 >> 8;
    p[at + 9] = 600 & 255;
    at += 10;
    if (arg.level == 5 && clean) p[at++] = 0;
    if (arg.level == 5 && !clean) memcpy(p + at, "\5\x11\0\0\x0e\x10", 6), at += 6; /* an hour */
    p[at] = 0;
    p[at + 1] = n;
    memcpy(p + at + 2, id, n);
    at += 2 + n;
    p[0] = CONNECT << 4;
    p[1] = at - 2;
    return at;
}

void check_connack(const uint8_t *packet, size_t length) {
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

size_t ask(struct connection *c, const uint8_t *out, size_t length, uint8_t *in, const char *what) {
    memcpy(reserve(&c->out, length), out, length);
    flush(c);
    if (broken || c->blocked) fail("%s while sending", broken ? broken : "blocked");
    for (;;) {
        uint8_t *data;
        size_t have, body, total;
        int got = read_packets(c, &data, &have);
        if (got < 0) fail("closed by the broker while waiting for %s", what);
        if (got == 0) fail("no %s within 20 s", what);
        total = packet_length(data, have, &body);
        if (!total || total > have) {
            keep(c, data, 0, have);
            continue;
        }
        if (total > 4096) fail("%s of %zu bytes", what, total);
        memcpy(in, data, total);
        keep(c, data, total, have);
        return total;
    }
}

/* Open a connection and wait for CONNACK. Blocking, one at a time, before the measurement. */
void establish(struct connection *c, const char *role, uint64_t number, int clean) {
    uint8_t out[64], in[4096];
    size_t length = encode_connect(out, role, number, clean);
    open_connection(c);
    check_connack(in, ask(c, out, length, in, "CONNACK"));
}

static size_t begin_subscribe(uint8_t *p) {
    memcpy(p, "\0\1\0", 3);
    return arg.level == 5 ? 3 : 2;
}

static size_t put_filter(uint8_t *p, const char *filter, int qos) {
    size_t n = strlen(filter);
    p[0] = 0;
    p[1] = n;
    memcpy(p + 2, filter, n);
    p[2 + n] = qos;
    return n + 3;
}

static void send_subscribe(struct connection *c, const uint8_t *rest, size_t n, int qos) {
    uint8_t out[32768], in[4096];
    out[0] = SUBSCRIBE << 4 | 2;
    size_t at = 1 + put_varint(out + 1, n);
    memcpy(out + at, rest, n);
    size_t total = ask(c, out, at + n, in, "SUBACK");
    if (in[0] >> 4 != SUBACK) fail("packet type %d instead of SUBACK", in[0] >> 4);
    if (in[total - 1] != qos) fail("SUBACK grants 0x%02x, asked for %d", in[total - 1], qos);
}

void subscribe(struct connection *c, const char *filter, int qos) {
    uint8_t rest[256];
    size_t n = begin_subscribe(rest);
    send_subscribe(c, rest, n + put_filter(rest + n, filter, qos), qos);
}

/* `count` filters from `first` on that match no message but share levels with the topics. */
void subscribe_many(struct connection *c, long first, long count) {
    enum { BATCH = 100 };
    static const char *shapes[] = {"bench/%08x/d/%ld/status", "bench/%08x/d/%ld/#",
                                   "bench/%08x/+/%ld/state", "+/%08x/%ld/alarm"};
    for (long at = 0; at < count; at += BATCH) {
        uint8_t rest[16384];
        size_t n = begin_subscribe(rest);
        for (long i = first + at; i < first + at + BATCH && i < first + count; i++) {
            char filter[64];
            snprintf(filter, sizeof filter, shapes[i % 4], run_number, i);
            n += put_filter(rest + n, filter, 0);
        }
        send_subscribe(c, rest, n, 0);
    }
}

void acknowledge(struct connection *c, int type, const uint8_t *id) {
    uint8_t *p = reserve(&c->out, 4);
    p[0] = type << 4 | (type == PUBREL ? 2 : 0);
    p[1] = 2;
    p[2] = id[0];
    p[3] = id[1];
    mark_dirty(c);
}

/* Content type, response topic, correlation data, a user property. */
static const char PROPERTIES[] = "\3\0\x10" "application/json" "\x08\0\x09" "reply/one"
                                 "\x09\0\x08" "12345678" "\x26\0\4" "site" "\0\5" "plant";

struct template make_template(const char *topic, uint32_t number, int flags) {
    struct template t = {0};
    size_t n = strlen(topic), at = 1, extra = arg.properties ? sizeof PROPERTIES - 1 : 0;
    size_t body = 2 + n + (arg.qos ? 2 : 0) + (arg.level == 5 ? 1 + extra : 0) + arg.payload;
    const char *digits = strstr(topic, "/00000/");
    uint8_t *b = t.data = calloc(1, body + 5);
    if (!b) fail("out of memory");
    b[0] = PUBLISH << 4 | arg.qos << 1 | flags;
    at += put_varint(b + 1, body);
    b[at + 1] = n;
    memcpy(b + at + 2, topic, n);
    if (digits) t.digits_at = at + 3 + (digits - topic);
    at += 2 + n;
    t.id_at = at;
    if (arg.qos) at += 2;
    if (arg.level == 5) {
        b[at++] = extra;
        memcpy(b + at, PROPERTIES, extra);
        at += extra;
    }
    memcpy(b + at, &run_number, 4);
    memcpy(b + at + 4, &number, 4);
    t.stamp_at = at + 8;
    for (long i = TIMED_STAMP; i < arg.payload; i++) b[at + i] = 'a' + i % 26;
    t.length = at + arg.payload;
    return t;
}

int read_stamp(const uint8_t *packet, size_t body, size_t length, struct stamp *stamp) {
    const uint8_t *p = packet + body, *end = packet + length;
    uint32_t run;
    stamp->qos = packet[0] >> 1 & 3;
    stamp->id = 0;
    if (end - p < 2) return 0;
    p += 2 + (p[0] << 8 | p[1]);
    if (stamp->qos) {
        stamp->id = p;
        p += 2;
    }
    if (p >= end) return 0;
    if (arg.level == 5) {
        size_t value = 0;
        int shift = 0;
        do value |= (size_t)(*p & 127) << shift, shift += 7;
        while (*p++ & 128 && p < end);
        p += value;
    }
    if (end - p != arg.payload) return 0;
    memcpy(&run, p, 4);
    memcpy(&stamp->number, p + 4, 4);
    memcpy(&stamp->sequence, p + 8, 8);
    if (arg.payload >= TIMED_STAMP) memcpy(&stamp->time, p + 16, 8);
    return run == run_number;
}
