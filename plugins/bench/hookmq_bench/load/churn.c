/* Modes connect and idle: the cost of opening and closing a connection, and of holding one. */
#include "load.h"

#include <sys/socket.h>

struct handshake { int fd, written; size_t length; uint8_t out[64]; };

static void start_handshake(struct handshake *h) {
    static uint64_t number;
    h->fd = dial(SOCK_NONBLOCK);
    h->length = encode_connect(h->out, "c", number++, 1);
    /* On loopback the connection is usually open already; otherwise wait for EPOLLOUT. */
    h->written = send(h->fd, h->out, h->length, MSG_NOSIGNAL) == (ssize_t)h->length;
    struct epoll_event event = {.events = h->written ? EPOLLIN : EPOLLOUT, .data.ptr = h};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, h->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

/* CONNECT, CONNACK, DISCONNECT, close, with `inflight` handshakes at a time; TCP only. */
void run_connect(void) {
    struct handshake *all = calloc(arg.inflight, sizeof *all);
    struct epoll_event events[MAX_EVENTS];
    uint64_t count = 0, begin, end, last;
    struct sample from = {0}, to = {0};
    if (strcmp(arg.transport, "tcp")) fail("connect: TCP only");
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (long i = 0; i < arg.inflight; i++) start_handshake(&all[i]);
    last = now_ns();
    begin = last + arg.warmup * SECOND;
    end = begin + arg.seconds * SECOND;
    while (!to.time) {
        uint64_t now = now_ns();
        if (!from.time && now >= begin) from = take_sample(count, 0, 0);
        if (from.time && now >= end) to = take_sample(count, 0, 0);
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
            if (send(h->fd, "\xe0\0", 2, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {} /* it is closing anyway */
            close(h->fd);
            count++;
            start_handshake(h);
        }
    }
    printf("{\"connects\": %llu, ", (unsigned long long)(to.delivered - from.delivered));
    print_accounts(&from, &to, to.generator - from.generator);
    printf("}\n");
    free(all);
}

/* `clients` idle connections: their cost in resident memory of the broker. */
void run_idle(void) {
    struct connection *all = calloc(arg.clients + 1, sizeof *all);
    struct timespec pause = {0, SECOND / 2};
    if (!all || arg.clients < 1) fail("idle: clients=N");
    /* First open and close a few: code and buffers of the first client are not part of a
       connection's cost. */
    for (int i = 0; i < 20; i++) {
        struct connection first = {0};
        establish(&first, "w", i, 1);
        say_goodbye(&first);
        free(first.out.data);
    }
    nanosleep(&pause, 0);
    long before = broker_rss();
    uint64_t start = now_ns();
    for (long i = 0; i < arg.clients; i++) establish(&all[i], "i", i, 1);
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
        closed += recv(all[i].fd, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
        say_goodbye(&all[i]);
    }
    printf("{\"elapsed_ns\": %.0f, \"clients\": %ld, \"rss_before_kib\": %ld, \"rss_after_kib\": %ld, "
           "\"broker_cpu_ns\": %llu, \"connecting_ns\": %.0f, \"lost\": %llu}\n",
           arg.seconds * SECOND, arg.clients, before, after, (unsigned long long)cpu, connecting,
           (unsigned long long)closed);
}
