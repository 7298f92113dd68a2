/* watch_net.c: sockets of the watch: TCP, small messages that start with their length, and no call
 * that can block a thread that must keep an eye on the time.
 *
 * A host has several addresses, and not every one can be reached from every other host (bridges of
 * containers even have the same address everywhere). So the hub names them all, a rank tries them
 * in turn, and only an answer that knows the token counts. */
#include "comm/watch_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD offsetof(ll_watch_msg, state) /* of every message */

/* ---- listening ---- */

/* This host's IPv4 addresses that are up; loopback is of use to nobody else. */
static ll_err own_addresses(ll_watch_address *at)
{
    struct ifaddrs *all;
    CHECK(getifaddrs(&all) == 0, LL_E_SYS, "this host's addresses cannot be read: %s",
          strerror(errno));
    at->n = 0;
    for (struct ifaddrs *a = all; a && at->n < LL_WATCH_ADDRS; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET) continue;
        if (!(a->ifa_flags & IFF_UP) || (a->ifa_flags & IFF_LOOPBACK)) continue;
        at->addr[at->n++] =
            ((const struct sockaddr_in *)(const void *)a->ifa_addr)->sin_addr.s_addr;
    }
    freeifaddrs(all);
    CHECK(at->n > 0, LL_E_SYS,
          "this host has no IPv4 address other than loopback, so ranks on other hosts cannot reach "
          "rank 0");
    return LL_OK;
}

static ll_err bind_and_listen(int fd, bool loopback, ll_watch_address *at)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    a.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    bool good = bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, SOMAXCONN) == 0 &&
                getsockname(fd, (struct sockaddr *)&a, &n) == 0;
    CHECK(good, LL_E_SYS, "rank 0 cannot listen for the other ranks: %s", strerror(errno));
    at->port = a.sin_port;
    return LL_OK;
}

ll_err ll_watch_listen(bool loopback, ll_watch_address *at, int *out)
{
    *at = (ll_watch_address){.n = 1, .addr = {htonl(INADDR_LOOPBACK)}};
    if (!loopback) TRY(own_addresses(at));
    CHECK(getrandom(&at->token, sizeof at->token, 0) == sizeof at->token, LL_E_SYS,
          "no random number for the ranks' sockets: %s", strerror(errno));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0, LL_E_SYS, "no socket for ranks to watch each other: %s", strerror(errno));
    ll_err rc = bind_and_listen(fd, loopback, at);
    if (rc != LL_OK)
        close(fd);
    else
        *out = fd;
    return rc;
}

/* ---- messages ---- */

void ll_watch_unlink(ll_watch_link *l)
{
    if (l->fd >= 0) close(l->fd);
    *l = (ll_watch_link){.fd = -1};
}

bool ll_watch_send(ll_watch_link *l, ll_watch_kind kind, const ll_watch_msg *given)
{
    if (l->fd < 0) return false;
    ll_watch_msg m = given ? *given : (ll_watch_msg){0};
    m.kind = kind;
    m.bytes = HEAD;
    if (kind == LL_WATCH_STATE) m.bytes += sizeof m.state;
    if (kind == LL_WATCH_FAILED) m.bytes += (uint32_t)strlen(m.report) + 1;
    ssize_t n = send(l->fd, &m, m.bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    /* A full buffer: the other side has not read for many messages; it is told the next time, or
     * is silent itself. Half a message in it would garble all that follows. */
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    return n == (ssize_t)m.bytes;
}

/* Whatever came, texts end. */
static void end_texts(ll_watch_msg *m)
{
    ll_watch_state *s = &m->state;
    if (m->kind == LL_WATCH_STATE)
        s->what[LL_WATCH_NAME - 1] = s->site[LL_WATCH_NAME - 1] = s->doing[LL_WATCH_NAME - 1] =
            '\0';
    else
        m->report[LL_WATCH_REPORT - 1] = '\0';
}

ll_watch_got ll_watch_take(ll_watch_link *l, ll_watch_msg *out)
{
    for (;;) {
        size_t want = l->have < HEAD ? HEAD : l->in.bytes;
        if (want < HEAD || want > sizeof l->in) return LL_WATCH_BROKEN;
        if (l->have >= HEAD && l->have == want) {
            *out = l->in;
            end_texts(out);
            l->have = 0;
            return LL_WATCH_MESSAGE;
        }
        ssize_t n = recv(l->fd, (char *)&l->in + l->have, want - l->have, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return LL_WATCH_NOTHING;
        if (n <= 0) return LL_WATCH_BROKEN;
        l->have += (size_t)n;
    }
}

/* ---- connecting ---- */

static bool wait_for(int fd, short what, double until)
{
    for (;;) {
        double left = until - ll_now();
        if (left <= 0) return false;
        struct pollfd p = {.fd = fd, .events = what};
        int n = poll(&p, 1, (int)(1e3 * left) + 1);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

/* One address; errno says why not. */
static bool try_address(const ll_watch_address *at, uint32_t addr, int rank, double until,
                        ll_watch_link *l)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = at->port, .sin_addr = {addr}};
    int one = 1, why = 0;
    socklen_t n = sizeof why;
    l->have = 0;
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0) return false;
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(l->fd, (struct sockaddr *)&a, sizeof a) != 0) {
        if (errno != EINPROGRESS) return false;
        bool ready = wait_for(l->fd, POLLOUT, until);
        if (!ready) why = ETIMEDOUT;
        if (ready && getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &why, &n) != 0) why = errno;
        errno = why;
        if (why) return false;
    }
    ll_watch_msg m = {.token = at->token, .rank = rank};
    if (!ll_watch_send(l, LL_WATCH_HELLO, &m)) return false;
    errno = ETIMEDOUT;
    while (wait_for(l->fd, POLLIN, until)) {
        ll_watch_got got = ll_watch_take(l, &m);
        errno = EPROTO; /* somebody else's server */
        if (got == LL_WATCH_MESSAGE) return m.kind == LL_WATCH_WELCOME && m.token == ~at->token;
        if (got == LL_WATCH_BROKEN) return false;
        errno = ETIMEDOUT;
    }
    return false;
}

ll_err ll_watch_connect(const ll_watch_address *at, int rank, double seconds, ll_watch_link *out)
{
    char tried[400] = "";
    for (uint32_t i = 0; i < at->n && i < LL_WATCH_ADDRS; i++) {
        if (try_address(at, at->addr[i], rank, ll_now() + seconds, out)) return LL_OK;
        int why = errno;
        char name[INET_ADDRSTRLEN] = "";
        inet_ntop(AF_INET, &at->addr[i], name, sizeof name);
        size_t n = strlen(tried);
        snprintf(tried + n, sizeof tried - n, "%s%s: %s", n ? ", " : "", name, strerror(why));
        ll_watch_unlink(out);
    }
    FAIL(LL_E_COMM, "rank %d cannot reach rank 0, port %d (%s)", rank, ntohs(at->port), tried);
}
