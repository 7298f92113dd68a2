/* watch_hub.c: the end of the watch's sockets where all ranks are known: rank 0's.
 *
 * Whoever connects is a guest until its first message has the token and a rank; then it is that
 * rank. From then on an end of the connection without a goodbye is a death, known at once since the
 * kernel closes what a dead process had open. A process that is stopped, or a host that is gone,
 * closes nothing: those are silent. A rank that waits too long is the sign of a stall. */
#include "comm/watch_int.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GUESTS = 64, EVENTS = 64 };
#define GUEST_SECONDS 5.0 /* to say who it is */

typedef struct peer {
    ll_watch_link link;
    bool met; /* has connected; else the rest means nothing */
    bool dead, left;
    double heard;
    ll_watch_state state;
} peer;

struct ll_watch_hub {
    int size, poll, listen;
    const int *world;
    double timeout, slow_at; /* slow_at: when a rank was last seen at something slow */
    uint64_t token;
    peer *peers; /* [size]; that of rank 0 has no link */
    struct {
        ll_watch_link link;
        double since;
    } guests[GUESTS];
    bool died;                        /* somebody, since the last judgement */
    char last_words[LL_WATCH_REPORT]; /* of a rank that gave up */
};

/* What an event is about: a rank, a guest, or one of these. */
enum { ABOUT_GUEST = 1 << 24, ABOUT_LISTEN = 1 << 25, ABOUT_WAKE };

/* Of those who knock it is told once: one that cannot be let in now is tried again each period. */
static bool poll_add(ll_watch_hub *h, int fd, uint32_t about, int how)
{
    struct epoll_event e = {.events = EPOLLIN, .data = {.u32 = about}};
    if (about == ABOUT_LISTEN) e.events |= EPOLLET;
    return epoll_ctl(h->poll, how, fd, &e) == 0;
}

ll_err ll_watch_hub_open(int size, const int *world, bool loopback, double timeout, int wake,
                         ll_watch_address *at, ll_watch_hub **out)
{
    LL_OWN(ll_watch_hub) h = (ll_watch_hub *)calloc(1, sizeof *h);
    CHECK(h, LL_E_MEM, "not enough memory to watch %d ranks", size);
    h->size = size;
    h->timeout = timeout;
    h->slow_at = -timeout;
    h->poll = h->listen = -1;
    h->peers = (peer *)calloc((size_t)size, sizeof *h->peers);
    h->world = world;
    for (int i = 0; i < GUESTS; i++) h->guests[i].link.fd = -1;
    for (int r = 0; h->peers && r < size; r++) h->peers[r].link.fd = -1;
    TRY(ll_watch_listen(loopback, at, &h->listen));
    h->token = at->token;
    h->poll = epoll_create1(EPOLL_CLOEXEC);
    CHECK(h->peers && h->poll >= 0 && poll_add(h, h->listen, ABOUT_LISTEN, EPOLL_CTL_ADD) &&
              poll_add(h, wake, ABOUT_WAKE, EPOLL_CTL_ADD),
          LL_E_SYS, "rank 0 cannot watch %d ranks: %s", size, strerror(errno));
    return LL_HAND(out, h);
}

void ll_watch_hub_close(ll_watch_hub *h)
{
    if (!h) return;
    for (int r = 0; h->peers && r < h->size; r++) {
        ll_watch_send(&h->peers[r].link, LL_WATCH_BYE, NULL);
        ll_watch_unlink(&h->peers[r].link);
    }
    for (int i = 0; i < GUESTS; i++) ll_watch_unlink(&h->guests[i].link);
    if (h->listen >= 0) close(h->listen);
    if (h->poll >= 0) close(h->poll);
    free(h->peers);
    free(h);
}

/* ---- guests ---- */

static void welcome_guests(ll_watch_hub *h)
{
    for (int i = 0; i < GUESTS; i++) {
        if (h->guests[i].link.fd >= 0) continue;
        int one = 1, fd = accept(h->listen, NULL, NULL);
        if (fd < 0) return;
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        h->guests[i].link = (ll_watch_link){.fd = fd};
        h->guests[i].since = ll_now();
        if (!poll_add(h, fd, ABOUT_GUEST + (uint32_t)i, EPOLL_CTL_ADD))
            ll_watch_unlink(&h->guests[i].link);
    }
}

static void drop_late_guests(ll_watch_hub *h, double now)
{
    for (int i = 0; i < GUESTS; i++)
        if (h->guests[i].link.fd >= 0 && now - h->guests[i].since > GUEST_SECONDS)
            ll_watch_unlink(&h->guests[i].link);
}

static void hear_guest(ll_watch_hub *h, int i)
{
    ll_watch_link *l = &h->guests[i].link;
    ll_watch_msg m;
    ll_watch_got got = l->fd >= 0 ? ll_watch_take(l, &m) : LL_WATCH_NOTHING;
    if (got == LL_WATCH_NOTHING) return;
    bool known = got == LL_WATCH_MESSAGE && m.kind == LL_WATCH_HELLO && m.token == h->token &&
                 m.rank > 0 && m.rank < h->size && !h->peers[m.rank].met;
    ll_watch_msg answer = {.token = ~h->token};
    if (!known || !poll_add(h, l->fd, (uint32_t)m.rank, EPOLL_CTL_MOD) ||
        !ll_watch_send(l, LL_WATCH_WELCOME, &answer)) {
        ll_watch_unlink(l);
        return;
    }
    h->peers[m.rank] = (peer){.link = *l, .met = true, .heard = ll_now()};
    l->fd = -1;
}

/* ---- ranks ---- */

static void hear_rank(ll_watch_hub *h, int rank)
{
    peer *p = &h->peers[rank];
    ll_watch_msg m;
    while (p->link.fd >= 0) {
        ll_watch_got got = ll_watch_take(&p->link, &m);
        if (got == LL_WATCH_NOTHING) return;
        p->heard = ll_now();
        if (got == LL_WATCH_BROKEN) {
            p->dead = h->died = true;
            ll_watch_unlink(&p->link);
        } else if (m.kind == LL_WATCH_BYE) {
            p->left = true;
            ll_watch_unlink(&p->link);
        } else if (m.kind == LL_WATCH_STATE) {
            p->state = m.state;
        } else if (m.kind == LL_WATCH_FAILED && !h->last_words[0]) {
            strcpy(h->last_words, m.report);
        }
    }
}

bool ll_watch_hub_serve(ll_watch_hub *h, double until)
{
    for (;;) {
        double left = until - ll_now();
        struct epoll_event events[EVENTS];
        /* After a death: only what has come already, others may have died with it. */
        int ms = h->died || h->last_words[0] || left <= 0 ? 0 : (int)(1e3 * left) + 1;
        int n = epoll_wait(h->poll, events, EVENTS, ms);
        for (int i = 0; i < n; i++) {
            uint32_t about = events[i].data.u32;
            if (about == ABOUT_WAKE) return true;
            if (about == ABOUT_LISTEN)
                welcome_guests(h);
            else if (about >= ABOUT_GUEST)
                hear_guest(h, (int)(about - ABOUT_GUEST));
            else
                hear_rank(h, (int)about);
        }
        if (n < EVENTS && (h->died || h->last_words[0] || ll_now() >= until)) break;
    }
    drop_late_guests(h, ll_now());
    welcome_guests(h);
    return h->died || h->last_words[0];
}

void ll_watch_hub_beat(ll_watch_hub *h, const ll_watch_state *mine)
{
    ll_watch_msg m = {.state = *mine};
    for (int r = 1; r < h->size; r++)
        if (h->peers[r].link.fd >= 0) ll_watch_send(&h->peers[r].link, LL_WATCH_STATE, &m);
}

/* Of a rank that was not heard of for this long. */
static ll_watch_fate fate_of(const peer *p, double now, double silence)
{
    if (p->dead) return LL_WATCH_DEAD;
    if (p->left) return LL_WATCH_LEFT;
    return p->met && now - p->heard > silence ? LL_WATCH_SILENT : LL_WATCH_HERE;
}

static void write_report(const ll_watch_hub *h, double now, char report[LL_WATCH_REPORT])
{
    /* Others wait for a rank that has missed several beats: no longer take its word for where it
     * is. */
    double silence = h->timeout / 4 < 3 ? h->timeout / 4 : 3;
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_watch_row *rows = LL_NEW_ARRAY(arena, ll_watch_row, h->size);
    for (int r = 0; r < h->size; r++) {
        const peer *p = &h->peers[r];
        rows[r] = (ll_watch_row){.rank = h->world[r], .silent_s = now - p->heard};
        rows[r].state = p->state;
        rows[r].state.seconds += now - p->heard;
        rows[r].fate = fate_of(p, now, silence);
    }
    ll_watch_report(rows, h->size, report);
}

bool ll_watch_hub_judge(ll_watch_hub *h, const ll_watch_state *mine, char report[LL_WATCH_REPORT],
                        bool *print)
{
    double now = ll_now();
    *print = !h->last_words[0];
    if (h->last_words[0]) {
        strcpy(report, h->last_words);
        return true;
    }
    h->peers[0] = (peer){.link = {.fd = -1}, .met = true, .heard = now, .state = *mine};
    bool bad = h->died, slow = false;
    h->died = false;
    for (int r = 0; r < h->size; r++)
        slow |= fate_of(&h->peers[r], now, h->timeout) == LL_WATCH_HERE &&
                !h->peers[r].state.waiting && h->peers[r].state.slow;
    if (slow) h->slow_at = now;
    /* Who waited for a slow rank is given a timeout more when that one goes on. */
    double patience = h->timeout * (now - h->slow_at < h->timeout ? LL_WATCH_SLOW : 1);
    LL_EACH (const peer, p, h->peers, h->size) {
        ll_watch_fate fate = fate_of(p, now, h->timeout);
        bool stalls = p->state.waiting && p->state.seconds > patience;
        bad = bad || fate == LL_WATCH_SILENT || (fate == LL_WATCH_HERE && stalls);
    }
    if (bad) write_report(h, now, report);
    return bad;
}

void ll_watch_hub_tell(ll_watch_hub *h, const char *report, bool lost)
{
    ll_watch_msg m = {.rank = lost};
    strncpy(m.report, report, sizeof m.report - 1);
    for (int r = 1; r < h->size; r++) ll_watch_send(&h->peers[r].link, LL_WATCH_FAILED, &m);
}

void ll_watch_hub_slept(ll_watch_hub *h, double seconds)
{
    for (int r = 0; r < h->size; r++) h->peers[r].heard += seconds;
}
