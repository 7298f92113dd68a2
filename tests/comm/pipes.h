/* pipes.h: ranks without MPI: forked processes and a transport over socket pairs, enough for small
 * messages (send, receive, test). Each pair of ranks has a pair of sockets that keeps messages
 * whole. */
#pragma once
#include "comm/transport.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

enum { PIPES_MAX = 8 };

typedef struct pipes {
    ll_transport t;
    int fd[PIPES_MAX]; /* to each rank; -1: to itself */
    int numbers[PIPES_MAX], nodes[PIPES_MAX];
} pipes;

typedef struct pipes_recv {
    void *data;
    size_t bytes;
    int peer;
} pipes_recv;

static ll_err pipes_post(ll_transport *t, bool sends, void *data, size_t bytes, int peer, int tag,
                         ll_message *out)
{
    (void)tag;
    *out = (ll_message){0};
    CHECK(!sends || send(((pipes *)t)->fd[peer], data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes,
          LL_E_COMM, "to rank %d: %s", peer, strerror(errno));
    if (sends) return LL_OK;
    pipes_recv *r = (pipes_recv *)malloc(sizeof *r);
    LL_ASSERT(r);
    *r = (pipes_recv){data, bytes, peer};
    *out = (ll_message){.handle = r};
    return LL_OK;
}

static ll_err pipes_test(ll_transport *t, ll_message *m, bool *done)
{
    pipes_recv *r = (pipes_recv *)m->handle;
    *done = true;
    if (!r) return LL_OK;
    ssize_t n = recv(((pipes *)t)->fd[r->peer], r->data, r->bytes, MSG_DONTWAIT);
    *done = n > 0;
    if (n > 0) {
        m->bytes = (size_t)n;
        m->handle = NULL;
        free(r);
        return LL_OK;
    }
    CHECK(n < 0 && errno == EAGAIN, LL_E_COMM, "rank %d is gone", r->peer);
    return LL_OK;
}

/* Forks n ranks, each of which runs body and ends with what it returns; pids [n]. nodes: they
 * are on different hosts, as far as the transport knows. */
static inline void pipes_fork(int n, bool nodes, int (*body)(ll_transport *t, const void *arg),
                              const void *arg, pid_t *pids)
{
    static const ll_transport_ops ops = {.name = "pipes", .post = pipes_post, .test = pipes_test};
    static int fd[PIPES_MAX][PIPES_MAX];
    for (int i = 0; i < n; i++)
        for (int j = fd[i][i] = -1, pair[2]; ++j < i;) {
            LL_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
            fd[i][j] = pair[0];
            fd[j][i] = pair[1];
        }
    for (int r = 0; r < n; r++) {
        pids[r] = fork();
        LL_ASSERT(pids[r] >= 0);
        if (pids[r]) continue;
        pipes p = {.t = {.ops = &ops, .rank = r, .size = n, .max_tag = 32767}};
        for (int i = 0; i < n; i++) {
            p.fd[i] = fd[r][i];
            p.numbers[i] = i;
            p.nodes[i] = nodes ? i : 0;
            for (int j = 0; j < n; j++)
                if (i != r && fd[i][j] >= 0) close(fd[i][j]);
        }
        p.t.node = p.nodes;
        p.t.world = p.numbers;
        _exit(body(&p.t, arg));
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (fd[i][j] >= 0) close(fd[i][j]);
}
