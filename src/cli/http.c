/* http.c: connections and their bytes. */
#define _GNU_SOURCE /* accept4, POLLRDHUP */
#include "cli/http.h"

#include "base/arena.h"
#include "base/now.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* SLOW: bytes that a client may owe. MOMENT_MS: what one has to ask in, where others wait. */
enum { READ = 1 << 16, LINGER_MS = 1000, MOMENT_MS = 1000, SLOW = 1 << 24 };

typedef enum state { FREE, READING, ASKED, WRITING, LINGER } state;
typedef struct bytes {
    char *v;
    size_t n, room;
} bytes;
typedef struct connection {
    int fd; /* -1: the client has gone */
    state is;
    bytes in, out;
    bool last, told; /* told: to send its body */
    bool half;       /* says no more, but listens */
    bool bare;       /* asked by HEAD: the answer has no body */
    bool old;        /* knows no parts: the end of the connection is the answer's */
    double until, patience;
} connection;

struct ll_http {
    ll_arena *arena;
    int fd, port;
    bool local;
    ll_http_opts o;
    connection *c;
    struct pollfd *wait;
    int *who;
};

/* ---- opening ---- */

static bool is_local(const struct sockaddr *a)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)a;
    if (a->sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)a;
    return a->sa_family == AF_INET && ntohl(four->sin_addr.s_addr) >> 24 == 127;
}

static int listen_on(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 64) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static ll_err open_socket(ll_http *h)
{
    struct addrinfo like = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    char port[16];
    snprintf(port, sizeof port, "%d", h->o.port);
    int rc = getaddrinfo(h->o.host, port, &like, &found);
    CHECK(!rc, LL_E_ARG, "--host %s: %s", h->o.host, gai_strerror(rc));
    h->fd = listen_on(found);
    h->local = is_local(found->ai_addr);
    freeaddrinfo(found);
    CHECK(h->fd >= 0, LL_E_IO, "%s, port %d: %m", h->o.host, h->o.port);
    struct sockaddr_storage name;
    socklen_t size = sizeof name;
    CHECK(getsockname(h->fd, (struct sockaddr *)&name, &size) == 0, LL_E_IO, "%s: %m", h->o.host);
    h->port = ntohs(name.ss_family == AF_INET6
                        ? ((const struct sockaddr_in6 *)(const void *)&name)->sin6_port
                        : ((const struct sockaddr_in *)(const void *)&name)->sin_port);
    return LL_OK;
}

ll_err ll_http_open(const ll_http_opts *o, ll_http **out)
{
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_http) h = LL_NEW(a, ll_http);
    *out = NULL;
    *h = (ll_http){.arena = a,
                   .fd = -1,
                   .o = *o,
                   .c = LL_NEW_ARRAY(a, connection, o->connections),
                   .wait = LL_NEW_ARRAY(a, struct pollfd, o->connections + 1),
                   .who = LL_NEW_ARRAY(a, int, o->connections + 1)};
    TRY(open_socket(h));
    return LL_HAND(out, h);
}

int ll_http_port(const ll_http *h)
{
    return h->port;
}

bool ll_http_local(const ll_http *h)
{
    return h->local;
}

static void hang_up(connection *c)
{
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    if (c->is == ASKED) return; /* the handler's */
    free(c->in.v);
    free(c->out.v);
    *c = (connection){.fd = -1};
}

void ll_http_close(ll_http *h)
{
    if (!h) return;
    for (int i = 0; i < h->o.connections; i++) {
        if (h->c[i].is == FREE) continue;
        h->c[i].is = READING;
        hang_up(&h->c[i]);
    }
    if (h->fd >= 0) close(h->fd);
    ll_arena_free(h->arena);
}

/* ---- bytes ---- */

static bool add(bytes *b, const void *data, size_t n)
{
    if (b->n + n > b->room) {
        size_t room = 2 * (b->n + n);
        char *more = (char *)realloc(b->v, room);
        if (!more) return false;
        b->v = more;
        b->room = room;
    }
    memcpy(b->v + b->n, data, n);
    b->n += n;
    return true;
}

static void take_off(bytes *b, size_t n)
{
    memmove(b->v, b->v + n, b->n - n);
    b->n -= n;
}

/* What does not fit, or goes to who has left, is dropped, and the client with it. */
static void put(connection *c, const char *text, size_t n)
{
    if (c->fd < 0) return;
    if (!c->out.n) c->until = ll_now() + c->patience;
    if (c->out.n + n > SLOW || !add(&c->out, text, n)) hang_up(c);
}

static void head(connection *c, int status, const char *type, const char *size)
{
    static const struct {
        int status;
        const char *text;
    } texts[] = {{200, "OK"},
                 {400, "Bad Request"},
                 {401, "Unauthorized"},
                 {404, "Not Found"},
                 {405, "Method Not Allowed"},
                 {411, "Length Required"},
                 {413, "Content Too Large"},
                 {415, "Unsupported Media Type"},
                 {501, "Not Implemented"},
                 {503, "Service Unavailable"}};
    const char *text = "Error";
    char line[512];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].status == status) text = texts[i].text;
    int n = snprintf(line, sizeof line,
                     "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%sCache-Control: no-store\r\n"
                     "Connection: %s\r\n%s\r\n",
                     status, text, type, size, c->last ? "close" : "keep-alive",
                     status == 401 ? "WWW-Authenticate: Bearer\r\n" : "");
    put(c, line, (size_t)n);
}

static void done(ll_http *h, connection *c)
{
    c->is = WRITING;
    c->until = ll_now() + h->o.patience;
    if (c->fd < 0) hang_up(c);
}

void ll_http_answer(ll_http *h, int i, int status, const char *type, const char *body, size_t n)
{
    connection *c = &h->c[i];
    char size[64];
    snprintf(size, sizeof size, "Content-Length: %zu\r\n", n);
    head(c, status, type, size);
    if (!c->bare) put(c, body, n);
    done(h, c);
}

void ll_http_begin(ll_http *h, int i, const char *type)
{
    head(&h->c[i], 200, type, h->c[i].old ? "" : "Transfer-Encoding: chunked\r\n");
}

void ll_http_part(ll_http *h, int i, const char *bytes, size_t n)
{
    char size[32];
    bool old = h->c[i].old;
    if (!n) return; /* which would be the end */
    if (!old) put(&h->c[i], size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
    put(&h->c[i], bytes, n);
    if (!old) put(&h->c[i], "\r\n", 2);
}

void ll_http_end(ll_http *h, int i)
{
    if (!h->c[i].old) put(&h->c[i], "0\r\n\r\n", 5);
    done(h, &h->c[i]);
}

bool ll_http_gone(const ll_http *h, int i)
{
    return h->c[i].fd < 0;
}

/* ---- what happens ---- */

/* Whose place a new client may have: who asks nothing, or has not done so wholly, for longest. */
static connection *slowest(ll_http *h)
{
    connection *found = NULL;
    double since = ll_now() + h->o.patience - MOMENT_MS / 1e3;
    LL_EACH (connection, c, h->c, h->o.connections) {
        if (c->is == FREE) return NULL;
        if (c->is != READING || c->out.n || c->until > since) continue;
        found = c;
        since = c->until;
    }
    return found;
}

static void greet(ll_http *h)
{
    connection *slow = slowest(h);
    if (slow) hang_up(slow);
    for (int i = 0; i < h->o.connections; i++) {
        if (h->c[i].is != FREE) continue;
        int yes = 1, fd = accept4(h->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        double now = ll_now(), patience = h->o.patience;
        h->c[i] =
            (connection){.fd = fd, .is = READING, .until = now + patience, .patience = patience};
    }
}

static void refuse(ll_http *h, int i, int status, const char *why)
{
    char text[256];
    int n = snprintf(text, sizeof text,
                     "{\"error\": {\"message\": \"%s\", \"type\": \"invalid_request_error\", "
                     "\"param\": null, \"code\": null}}\n",
                     why);
    h->c[i].last = true;
    ll_http_answer(h, i, status, "application/json", text, (size_t)n);
}

/* Hands on what is whole. */
static void look(ll_http *h, int i, ll_http_handler *f, void *user)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    connection *c = &h->c[i];
    ll_http_request r;
    if (c->is != READING || !c->in.n) return;
    int status = ll_http_parse(c->in.v, c->in.n, h->o.body, &r);
    if (!status) {
        if (r.expects && !c->told) put(c, go_on, sizeof go_on - 1);
        c->told |= r.expects;
        return;
    }
    c->told = false;
    c->is = ASKED;
    if (status != 200) {
        refuse(h, i, status, r.why);
        return;
    }
    c->last = r.last || c->half || h->fd < 0;
    c->bare = ll_http_is(r.method, "HEAD");
    c->old = r.old;
    f(user, i, &r);
    if (c->is != FREE) take_off(&c->in, r.bytes);
}

static void hear(ll_http *h, int i, ll_http_handler *f, void *user)
{
    connection *c = &h->c[i];
    char some[READ];
    ssize_t n = recv(c->fd, some, sizeof some, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0 || (c->is == READING && !add(&c->in, some, (size_t)n))) {
        hang_up(c);
        return;
    }
    if (c->is != READING) return; /* of one that is to close: passed over */
    if (c->in.n == (size_t)n) c->until = ll_now() + h->o.patience;
    look(h, i, f, user);
}

/* All of it is written: the next request, or the end. */
static void written(ll_http *h, int i, ll_http_handler *f, void *user)
{
    connection *c = &h->c[i];
    if (c->is != WRITING || c->out.n) return;
    c->is = c->last ? LINGER : READING;
    c->until = ll_now() + (c->last ? LINGER_MS / 1e3 : h->o.patience);
    if (c->last)
        shutdown(c->fd, SHUT_WR);
    else
        look(h, i, f, user);
}

static void send_some(ll_http *h, int i, ll_http_handler *f, void *user)
{
    connection *c = &h->c[i];
    ssize_t n = c->out.n ? send(c->fd, c->out.v, c->out.n, MSG_NOSIGNAL) : 0;
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        hang_up(c);
    else if (n > 0) {
        take_off(&c->out, (size_t)n);
        c->until = ll_now() + h->o.patience;
    }
    if (c->fd >= 0) written(h, i, f, user);
}

static int interests(ll_http *h)
{
    int n = 0, room = 0;
    for (int i = 0; i < h->o.connections; i++) {
        const connection *c = &h->c[i];
        room += c->is == FREE;
        if (c->is == FREE || c->fd < 0) continue;
        short events = c->half ? 0 : POLLRDHUP;
        if (c->is == READING || c->is == LINGER) events |= POLLIN;
        if (c->out.n) events |= POLLOUT;
        h->wait[n] = (struct pollfd){.fd = c->fd, .events = events};
        h->who[n++] = i;
    }
    if (h->fd >= 0 && (room || slowest(h))) {
        h->wait[n] = (struct pollfd){.fd = h->fd, .events = POLLIN};
        h->who[n++] = -1;
    }
    return n;
}

ll_err ll_http_poll(ll_http *h, int ms, ll_http_handler *f, void *user)
{
    int n = interests(h), rc = poll(h->wait, (nfds_t)n, ms);
    CHECK(rc >= 0 || errno == EINTR, LL_E_IO, "waiting for requests: %m");
    for (int k = 0; rc > 0 && k < n; k++) {
        int i = h->who[k];
        short seen = h->wait[k].revents;
        if (i < 0) {
            if (seen) greet(h);
            continue;
        }
        connection *c = &h->c[i];
        if (seen & POLLOUT) send_some(h, i, f, user);
        if (c->fd >= 0 && (seen & POLLIN)) hear(h, i, f, user);
        /* A client that has asked may close its side and wait for the answer. */
        bool over = seen & POLLRDHUP && !(seen & POLLIN),
             waits = c->is == ASKED || c->is == WRITING;
        if (over && waits) c->half = c->last = true;
        bool left = seen & (POLLERR | POLLHUP) || (over && !waits);
        if (c->fd >= 0 && left && c->is != FREE) hang_up(c);
    }
    double now = ll_now();
    for (int i = 0; i < h->o.connections; i++) {
        connection *c = &h->c[i];
        if (c->is == FREE || c->fd < 0) continue;
        if (c->out.n) send_some(h, i, f, user);
        if (c->fd >= 0 && (c->is != ASKED || c->out.n) && now > c->until) hang_up(c);
    }
    return LL_OK;
}

bool ll_http_closing(ll_http *h)
{
    bool more = false;
    if (h->fd >= 0) close(h->fd);
    h->fd = -1;
    LL_EACH (connection, c, h->c, h->o.connections) {
        if (c->is == READING && !c->out.n) hang_up(c);
        more |= c->is != FREE && c->fd >= 0;
    }
    return more;
}
