/* Connections: dialling, TLS, WebSocket frames and buffers. */
#include "load.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

enum { HEAD = 14, UPGRADE_SIZE = 4096 }; /* HEAD: room for a frame's header in front of `out` */

int epoll_fd;
uint64_t reads, writes;
const char *broken;
static struct connection *dirty;
static uint8_t read_buffer[READ_SIZE];

uint8_t *reserve(struct bytes *b, size_t more) {
    if (b->length + more > b->room) {
        b->room = (b->length + more) * 2;
        if (!(b->data = realloc(b->data, b->room))) fail("out of memory");
    }
    b->length += more;
    return b->data + b->length - more;
}

/* ---- TLS: the few functions of OpenSSL, from the shared library; its headers may not be installed. */

static struct {
    const void *(*method)(void);
    void *(*context)(const void *);
    long (*control)(void *, int, long, void *);
    void *(*make)(void *);
    int (*set_fd)(void *, int), (*connect)(void *), (*shutdown)(void *), (*pending)(const void *);
    int (*read)(void *, void *, int), (*write)(void *, const void *, int);
    int (*error)(const void *, int);
    void (*release)(void *);
} ssl;
static void *tls_context;

static void load_tls(void) {
    struct { const char *name; void *to; } table[] = {
        {"TLS_client_method", &ssl.method}, {"SSL_CTX_new", &ssl.context},
        {"SSL_CTX_ctrl", &ssl.control},     {"SSL_new", &ssl.make},
        {"SSL_set_fd", &ssl.set_fd},        {"SSL_connect", &ssl.connect},
        {"SSL_shutdown", &ssl.shutdown},    {"SSL_pending", &ssl.pending},
        {"SSL_read", &ssl.read},            {"SSL_write", &ssl.write},
        {"SSL_get_error", &ssl.error},      {"SSL_free", &ssl.release},
    };
    void *library = dlopen("libssl.so.3", RTLD_NOW);
    if (!library) fail("TLS: libssl.so.3 is not installed");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        void *symbol = dlsym(library, table[i].name);
        if (!symbol) fail("TLS: no %s in libssl.so.3", table[i].name);
        memcpy(table[i].to, &symbol, sizeof symbol);
    }
    if (!(tls_context = ssl.context(ssl.method()))) fail("TLS: no context");
    ssl.control(tls_context, 33, 1 | 2 | 16, 0); /* partial writes, moving buffer, release buffers */
}

static ssize_t tls_result(struct connection *c, int n) {
    if (n > 0) return n;
    int error = ssl.error(c->tls, n);
    if (error == 6) return 0; /* close_notify */
    errno = error == 2 || error == 3 ? EAGAIN : errno ? errno : ECONNRESET;
    return -1;
}

static ssize_t raw_send(struct connection *c, const uint8_t *p, size_t n) {
    if (!c->tls) return send(c->fd, p, n, MSG_NOSIGNAL);
    return tls_result(c, ssl.write(c->tls, p, n > 1 << 30 ? 1 << 30 : (int)n));
}

static ssize_t raw_receive(struct connection *c, uint8_t *p, size_t n) {
    if (!c->tls) return recv(c->fd, p, n, 0);
    /* epoll does not see data in the library's buffers: read all of it. */
    size_t have = 0;
    do {
        ssize_t got = tls_result(c, ssl.read(c->tls, p + have, (int)(n - have)));
        if (got <= 0) return have ? (ssize_t)have : got;
        have += got;
    } while (have < n && ssl.pending(c->tls) > 0);
    return have;
}

/* ---- dialling */

int dial(int flags) {
    static uint32_t source;
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, IPPROTO_TCP);
    if (fd < 0) fail("socket: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* Many source addresses: ports in TIME_WAIT must not limit the connect rate. */
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    from.sin_addr.s_addr = htonl(0x7f000002 + source++ % 250);
    if (bind(fd, (void *)&from, sizeof from)) fail("bind: %s", strerror(errno));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(arg.port);
    if (connect(fd, (void *)&to, sizeof to) && errno != EINPROGRESS)
        fail("connect: %s", strerror(errno));
    return fd;
}

static int web_socket(void) { return arg.transport[0] == 'w'; }

static void upgrade(struct connection *c) {
    char text[UPGRADE_SIZE + 1];
    size_t have = 0;
    int n = snprintf(text, sizeof text,
                     "GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1:%ld\r\nUpgrade: websocket\r\n"
                     "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                     "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n", arg.port);
    if (raw_send(c, (uint8_t *)text, n) != n) fail("WebSocket: the request cannot be sent");
    /* The server sends nothing before a CONNECT except the answer. */
    while (have < 4 || memcmp(text + have - 4, "\r\n\r\n", 4)) {
        ssize_t got = have < UPGRADE_SIZE ? raw_receive(c, (uint8_t *)text + have, UPGRADE_SIZE - have) : 0;
        if (got <= 0) fail("WebSocket: no answer to the request");
        have += got;
    }
    if (have < 12 || memcmp(text + 8, " 101", 4)) fail("WebSocket: refused with %.12s", text);
    c->out.length = 0;
    reserve(&c->out, HEAD);
}

/* Open a connection without CONNECT; blocking, at most 20 seconds for each answer. */
void open_connection(struct connection *c) {
    struct timeval limit = {20, 0};
    int tls = !strcmp(arg.transport, "tls") || !strcmp(arg.transport, "wss");
    c->fd = dial(0);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (tls) {
        if (!tls_context) load_tls();
        if (!(c->tls = ssl.make(tls_context)) || !ssl.set_fd(c->tls, c->fd)) fail("TLS: no session");
        if (ssl.connect(c->tls) != 1) fail("TLS: the handshake failed");
    }
    if (web_socket()) upgrade(c);
}

void set_nonblocking(struct connection *c) {
    fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
}

void say_goodbye(struct connection *c) {
    set_nonblocking(c);
    memcpy(reserve(&c->out, 2), "\xe0\0", 2);
    if (!c->blocked) flush(c);
    if (c->tls) ssl.shutdown(c->tls), ssl.release(c->tls);
    close(c->fd);
    c->tls = 0;
    broken = 0; /* it is closing anyway */
}

/* ---- output */

void mark_dirty(struct connection *c) {
    if (c->dirty) return;
    c->dirty = 1;
    c->next_dirty = dirty;
    dirty = c;
}

void watch(struct connection *c, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (c->blocked ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll_fd, operation, c->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

/* Put all bytes without a frame into one. The mask is zero, so the bytes do not change. */
static void put_frame(struct connection *c) {
    size_t start = c->framed ? c->framed : HEAD, n = c->out.length - start, h = 0;
    uint8_t header[HEAD];
    if (start > HEAD) memmove(c->out.data + HEAD, c->out.data + start, n);
    c->out.length = HEAD + n;
    header[h++] = 0x82;
    if (n < 126) header[h++] = 0x80 | n;
    else {
        int wide = n > 65535 ? 8 : 2;
        header[h++] = 0x80 | (wide == 8 ? 127 : 126);
        for (int i = wide - 1; i >= 0; i--) header[h++] = (uint64_t)n >> (8 * i);
    }
    memset(header + h, 0, 4);
    h += 4;
    c->sent = HEAD - h;
    memcpy(c->out.data + c->sent, header, h);
    c->framed = c->out.length;
}

void flush(struct connection *c) {
    size_t end = c->out.length;
    if (web_socket()) {
        if (!c->framed) put_frame(c);
        end = c->framed;
    }
    while (c->sent < end) {
        ssize_t n = raw_send(c, c->out.data + c->sent, end - c->sent);
        writes++;
        if (n <= 0) {
            if (n == 0 || errno != EAGAIN) broken = n ? strerror(errno) : "the broker closed a connection";
            break;
        }
        c->sent += n;
        if (web_socket() && c->sent == end && c->out.length > end) {
            put_frame(c);
            end = c->framed;
        }
    }
    int blocked = c->sent < end;
    if (!blocked) {
        c->sent = c->framed = 0;
        c->out.length = web_socket() ? HEAD : 0;
    }
    if (blocked != c->blocked) {
        c->blocked = blocked;
        if (epoll_fd) watch(c, EPOLL_CTL_MOD);
    }
}

void flush_dirty(void) {
    while (dirty) {
        struct connection *c = dirty;
        dirty = c->next_dirty;
        c->dirty = 0;
        if (!c->blocked) flush(c);
    }
}

/* ---- input */

/* Append the payloads of the frames in `p` to `rest`; -1 if the broker closes. */
static int unframe(struct connection *c, const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    while (p < end) {
        if (c->frame_left) {
            size_t take = (uint64_t)(end - p) < c->frame_left ? (size_t)(end - p) : c->frame_left;
            memcpy(reserve(&c->rest, take), p, take);
            p += take;
            c->frame_left -= take;
            continue;
        }
        c->header[c->header_length++] = *p++;
        size_t have = c->header_length, wide = 0;
        if (have < 2) continue;
        int kind = c->header[0] & 15, size = c->header[1] & 127;
        if (c->header[1] & 128) fail("WebSocket: the broker masks");
        if (kind == 8) return -1;
        if (kind > 2 || c->header[0] & 0x70) fail("WebSocket: frame 0x%02x", c->header[0]);
        wide = size == 126 ? 2 : size == 127 ? 8 : 0;
        if (have < 2 + wide) continue;
        c->frame_left = wide ? 0 : size;
        for (size_t i = 0; i < wide; i++) c->frame_left = c->frame_left << 8 | c->header[2 + i];
        c->header_length = 0;
    }
    return 1;
}

int read_packets(struct connection *c, uint8_t **data, size_t *length) {
    /* Read into `rest` if it has part of a packet, so nothing is copied twice. */
    int append = c->rest.length && !web_socket();
    uint8_t *into = append ? reserve(&c->rest, READ_SIZE) : read_buffer;
    ssize_t n = raw_receive(c, into, READ_SIZE);
    reads++;
    if (append) c->rest.length -= READ_SIZE - (n > 0 ? n : 0);
    if (n == 0) return -1;
    if (n < 0) {
        if (errno == EAGAIN) return 0;
        broken = strerror(errno);
        return -1;
    }
    if (web_socket() && unframe(c, read_buffer, n) < 0) return -1;
    *data = append || web_socket() ? c->rest.data : read_buffer;
    *length = append || web_socket() ? c->rest.length : (size_t)n;
    return 1;
}

void keep(struct connection *c, uint8_t *data, size_t at, size_t length) {
    size_t left = length - at;
    if (data == c->rest.data && at == 0) return;
    c->rest.length = 0;
    if (left) memmove(reserve(&c->rest, left), data + at, left);
}
