/* simulate.c: how long the lists of all ranks take, in the model of one message at a time in and
 * one out of a rank. Events in the order of time: a rank posts a round, a message ends. After all
 * events of one moment, messages that both sides have posted start where both ports are free: lower
 * senders first, and of one sender's the first in its list. So the answer is a function of lists
 * and model alone.
 *
 * A message without a partner waits in its sender's or receiver's queue for the pair; with one, it
 * is in two rings, of those that its sender and its receiver still have to move. All of a rank's
 * are of its current round: queues and rings are short. */
#include "sched/simulate.h"

#include "base/heap.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

typedef struct message {
    int from, to;
    int64_t n;
    int index;             /* in the sender's list */
    int next_out, next_in; /* of the sender's, the receiver's; or of the pair's queue (next_out) */
} message;

typedef struct rank_state {
    const ll_sched *list;
    int at, end; /* the round's steps */
    int pending; /* messages of the round not yet over */
    int n_signal;
    double *signals;         /* [list->n_signal] when each was raised */
    int waits_for;           /* rank whose signal is awaited; -1: none */
    double now;              /* when the round before was over */
    double folded;           /* when the round's folds are over */
    int first_out, first_in; /* messages ready to go, by list index; -1: none */
    bool out_busy, in_busy;
} rank_state;

typedef struct event {
    double time;
    int rank;    /* whose round is posted, or -1 */
    int message; /* that ends */
} event;

typedef struct simulation {
    ll_arena *arena;
    const ll_link_model *model;
    const int *node;
    double share, bytes;
    int size, n_done;
    rank_state *ranks;
    int *sends, *recvs; /* [from * size + to] first without a partner, or -1 */
    message *messages;
    int n_message, capacity, unused; /* unused: first of those that ended, by next_out */
    event *heap;
    int n_event;
    int *ready; /* ranks that post a round at this very moment: they need not go through the heap */
    int n_ready;
    double time;
    uint64_t *may_start; /* a bit for each sender to look at */
    double last;
} simulation;

/* ---- events, a binary heap ---- */
static bool earlier(const event *a, const event *b)
{
    if (a->time != b->time) return a->time < b->time;
    return a->rank != b->rank ? a->rank < b->rank : a->message < b->message;
}

LL_HEAP(event, earlier)

/* ---- messages ---- */
static int new_message(simulation *m)
{
    int i = m->unused;
    if (i >= 0) {
        m->unused = m->messages[i].next_out;
        return i;
    }
    LL_PUSH(m->arena, m->messages, m->n_message, m->capacity, (message){0});
    return m->n_message - 1;
}

static void look_at(simulation *m, int sender)
{
    m->may_start[sender / 64] |= (uint64_t)1 << sender % 64;
}

/* Both sides have posted: into the sender's list by index, and the receiver's. */
static void make_ready(simulation *m, int i)
{
    message *msg = &m->messages[i];
    int *p = &m->ranks[msg->from].first_out;
    while (*p >= 0 && m->messages[*p].index < msg->index) p = &m->messages[*p].next_out;
    msg->next_out = *p;
    *p = i;
    msg->next_in = m->ranks[msg->to].first_in;
    m->ranks[msg->to].first_in = i;
    look_at(m, msg->from);
}

static void post(simulation *m, int rank, const ll_step *s, int index)
{
    bool sends = s->kind == LL_STEP_SEND;
    int pair = sends ? rank * m->size + s->peer : s->peer * m->size + rank;
    int *mine = sends ? &m->sends[pair] : &m->recvs[pair];
    int *theirs = sends ? &m->recvs[pair] : &m->sends[pair], i = *theirs;
    m->ranks[rank].pending++;
    if (i >= 0) {
        *theirs = m->messages[i].next_out;
        if (sends) m->messages[i].index = index;
        make_ready(m, i);
        return;
    }
    i = new_message(m);
    m->messages[i] = (message){.from = sends ? rank : s->peer,
                               .to = sends ? s->peer : rank,
                               .n = s->n,
                               .index = sends ? index : 0,
                               .next_out = -1};
    while (*mine >= 0) mine = &m->messages[*mine].next_out;
    *mine = i;
}

static void start(simulation *m, int *out, double now)
{
    int i = *out;
    message *msg = &m->messages[i];
    *out = msg->next_out;
    int *in = &m->ranks[msg->to].first_in;
    while (*in != i) in = &m->messages[*in].next_in;
    *in = msg->next_in;
    m->ranks[msg->from].out_busy = m->ranks[msg->to].in_busy = true;
    bool far = m->node && m->node[msg->from] != m->node[msg->to];
    double takes = m->model->alpha[far] + (double)msg->n * m->bytes * m->model->beta[far];
    heap_push(m->heap, &m->n_event, (event){.time = now + takes, .rank = -1, .message = i});
}

static void start_all(simulation *m, double now)
{
    for (int w = 0; w <= (m->size - 1) / 64; w++)
        for (uint64_t set = m->may_start[w]; set; set &= set - 1) {
            rank_state *r = &m->ranks[64 * w + __builtin_ctzll(set)];
            if (r->out_busy) continue;
            int *out = &r->first_out;
            while (*out >= 0 && m->ranks[m->messages[*out].to].in_busy)
                out = &m->messages[*out].next_out;
            if (*out >= 0) start(m, out, now);
        }
    memset(m->may_start, 0, sizeof(uint64_t) * (size_t)ll_ceil_div(m->size, 64));
}

/* ---- rounds ---- */
/* Begins the next round where its signals are known to be raised at some time. */
static void next_round(simulation *m, int rank)
{
    rank_state *r = &m->ranks[rank];
    double t = r->now;
    if (r->at == r->list->n_step) {
        if (t > m->last) m->last = t;
        m->n_done++;
        return;
    }
    const ll_step *steps = r->list->steps;
    for (r->end = r->at; r->end < r->list->n_step && steps[r->end].round == steps[r->at].round;
         r->end++) {
        const ll_step *s = &steps[r->end];
        if (s->kind != LL_STEP_AWAIT) continue;
        const rank_state *peer = &m->ranks[s->peer];
        if (s->value > peer->n_signal) {
            r->waits_for = s->peer;
            return;
        }
        if (peer->signals[s->value - 1] > t) t = peer->signals[s->value - 1];
        t += m->model->sigma;
    }
    if (t == m->time)
        m->ready[m->n_ready++] = rank;
    else
        heap_push(m->heap, &m->n_event, (event){.time = t, .rank = rank});
}

static double local_time(const simulation *m, const ll_step *s)
{
    double n = (double)s->n * m->bytes * m->share;
    return s->n_from == 1 ? n * m->model->kappa : n * m->model->gamma * (s->n_from - 1);
}

static void end_round_if_over(simulation *m, int rank, double now)
{
    rank_state *r = &m->ranks[rank];
    if (r->pending) return;
    r->now = now > r->folded ? now : r->folded;
    r->at = r->end;
    next_round(m, rank);
}

static void post_round(simulation *m, int rank, double now)
{
    rank_state *r = &m->ranks[rank];
    bool signals = false;
    r->folded = now;
    for (int i = r->at; i < r->end; i++) {
        const ll_step *s = &r->list->steps[i];
        if (s->kind == LL_STEP_FOLD) r->folded += local_time(m, s);
        if (s->kind == LL_STEP_SEND || s->kind == LL_STEP_RECV) post(m, rank, s, i);
        signals |= s->kind == LL_STEP_SIGNAL;
    }
    if (signals) r->signals[r->n_signal++] = r->folded;
    for (int q = 0; signals && q < m->size; q++)
        if (m->ranks[q].waits_for == rank) {
            m->ranks[q].waits_for = -1;
            next_round(m, q);
        }
    end_round_if_over(m, rank, now);
}

static void end_message(simulation *m, int i, double now)
{
    message *msg = &m->messages[i];
    rank_state *from = &m->ranks[msg->from], *to = &m->ranks[msg->to];
    int sender = msg->from, receiver = msg->to;
    from->out_busy = to->in_busy = false;
    from->pending--;
    to->pending--;
    msg->next_out = m->unused;
    m->unused = i;
    look_at(m, sender);
    for (int k = to->first_in; k >= 0; k = m->messages[k].next_in) look_at(m, m->messages[k].from);
    end_round_if_over(m, sender, now);
    end_round_if_over(m, receiver, now);
}

static double run(simulation *m)
{
    for (int r = 0; r < m->size; r++) next_round(m, r);
    while (m->n_event || m->n_ready) {
        if (!m->n_ready) m->time = m->heap[0].time;
        while (m->n_ready) post_round(m, m->ready[--m->n_ready], m->time);
        while (m->n_event && m->heap[0].time == m->time) {
            event e = heap_pop(m->heap, &m->n_event);
            if (e.rank >= 0)
                post_round(m, e.rank, m->time);
            else
                end_message(m, e.message, m->time);
            while (m->n_ready) post_round(m, m->ready[--m->n_ready], m->time);
        }
        start_all(m, m->time);
    }
    return m->n_done == m->size ? m->last : NAN;
}

double ll_sched_time(const ll_coll_spec *s, const ll_sched *const *ranks, size_t elem_bytes,
                     const ll_link_model *model)
{
    int size = ranks[0]->size;
    simulation m = {.arena = ll_arena_new(),
                    .model = model,
                    .node = s ? s->node : NULL,
                    .share = model->share > 0 ? model->share : 1,
                    .bytes = (double)elem_bytes,
                    .size = size,
                    .unused = -1};
    LL_ARRAYS(m.arena, size, m.ranks, m.ready);
    LL_ARRAYS(m.arena, size * size, m.sends, m.recvs);
    memset(m.sends, -1, sizeof(int) * (size_t)(size * size));
    memset(m.recvs, -1, sizeof(int) * (size_t)(size * size));
    m.heap = LL_NEW_ARRAY(m.arena, event, 2 * size + 1);
    m.may_start = LL_NEW_ARRAY(m.arena, uint64_t, ll_ceil_div(size, 64));
    bool library = false;
    for (int r = 0; r < size; r++) {
        const ll_sched *list = ranks[r];
        m.ranks[r] = (rank_state){.list = list, .waits_for = -1, .first_out = -1, .first_in = -1};
        m.ranks[r].signals = LL_NEW_ARRAY(m.arena, double, list->n_signal);
        library |= list->n_step && list->steps[0].kind == LL_STEP_LIBRARY;
    }
    double t = library ? NAN : run(&m);
    ll_arena_free(m.arena);
    return t;
}

double ll_cost_time(const ll_cost *c, size_t elem_bytes, const ll_link_model *m, bool between_nodes)
{
    double bytes = (double)elem_bytes, share = m->share > 0 ? m->share : 1;
    return c->messages * m->alpha[between_nodes] + c->sent * bytes * m->beta[between_nodes] +
           (c->folded * m->gamma + c->copied * m->kappa) * bytes * share + c->awaits * m->sigma;
}
