/* trace.c: traces of ranks, merged.
 *
 * Clocks of several nodes differ. Each rank's is held against rank 0's by ping-pongs, before and
 * after what is traced: of several the one that took least time is taken, and half of that time is
 * the error. In between the offset is taken to run evenly from one to the other.
 *
 *     rank 0   a ---->         ----> b      of rank r's clock: offset = m - (a + b) / 2
 *     rank r          m (noted)             error <= (b - a) / 2
 *
 * Every rank writes its intervals as JSON text, with times of rank 0's clock; rank 0 gets the texts
 * one after another. Collectives overlap: they are put into as many rows as are under way at once.
 */
#include "train/trace.h"

#include "base/file.h"
#include "run/ranks.h"

#include <unistd.h>

typedef struct clock_at {
    double when, offset, error; /* s, of this rank's clock; ahead of rank 0's; of the offset */
} clock_at;

struct ll_tracer {
    ll_comm *c; /* NULL: alone */
    ll_session *s;
    ll_tracer_opts opts;
    ll_trace *trace;
    ll_arena *arena;
    clock_at began, ended;
    double origin; /* rank 0's time of the start */
    int64_t step;  /* the last */
    bool begun, on, written;
    ll_timeline timeline;
};

/* ---- clocks ---- */

static ll_err send_to(ll_comm *c, int64_t number, int peer, const void *data, size_t bytes)
{
    const ll_exchange x = {.number = number, .to = peer, .from = -1, .data = data, .bytes = bytes};
    return ll_comm_exchange(c, &x, NULL);
}

static ll_err get_from(ll_comm *c, int64_t number, int peer, void *data, size_t bytes)
{
    const ll_exchange x = {
        .number = number, .to = -1, .from = peer, .room = data, .room_bytes = bytes};
    return ll_comm_exchange(c, &x, NULL);
}

/* Rank 0 measures rank r, and tells it. */
static ll_err compare_clocks(ll_comm *c, int64_t number, int r, clock_at *out)
{
    enum { TIMES = 24 };
    double theirs = 0;
    clock_at best = {.error = 1e30};
    for (int i = 0; i < TIMES; i++) {
        double a = ll_now();
        TRY(send_to(c, number, r, &a, sizeof a));
        TRY(get_from(c, number, r, &theirs, sizeof theirs));
        double b = ll_now();
        if (b - a < 2 * best.error) best = (clock_at){theirs, theirs - (a + b) / 2, (b - a) / 2};
    }
    *out = best;
    return send_to(c, number, r, &best, sizeof best);
}

static ll_err answer(ll_comm *c, int64_t number, clock_at *out)
{
    enum { TIMES = 24 };
    double theirs, mine;
    for (int i = 0; i < TIMES; i++) {
        TRY(get_from(c, number, 0, &theirs, sizeof theirs));
        mine = ll_now();
        TRY(send_to(c, number, 0, &mine, sizeof mine));
    }
    return get_from(c, number, 0, out, sizeof *out);
}

static ll_err read_clock(ll_tracer *t, clock_at *out)
{
    *out = (clock_at){.when = ll_now()};
    if (!t->c || ll_comm_size(t->c) == 1) return LL_OK;
    int64_t number = ll_comm_next_number(t->c, "comparison of clocks", "trace");
    if (ll_comm_rank(t->c)) return answer(t->c, number, out);
    clock_at other;
    for (int r = 1; r < ll_comm_size(t->c); r++) TRY(compare_clocks(t->c, number, r, &other));
    return LL_OK;
}

/* By rank 0's clock, from the start on, in microseconds. */
static double common_us(const ll_tracer *t, double when)
{
    double span = t->ended.when - t->began.when;
    double part = span > 0 ? (when - t->began.when) / span : 0;
    return 1e6 * (when - t->began.offset - part * (t->ended.offset - t->began.offset) - t->origin);
}

/* ---- opening ---- */

static ll_err make_files(const ll_session *s, const ll_tracer_opts *o)
{
    bool pipe = s->cut->plan && s->cut->plan->pipeline;
    CHECK(!o->timeline || pipe, LL_E_ARG,
          "--timeline needs a pipeline, but the mesh has none: add axis pipe=2");
    CHECK(!o->timeline || !s->machine->run, LL_E_ARG,
          "--timeline does not support machine %s yet: use --trace, which shows its kernels",
          s->machine->target->name);
    if (o->timeline) TRY(ll_file_write(o->timeline, "", 0));
    return o->path ? ll_file_write(o->path, "[]\n", 3) : LL_OK;
}

ll_err ll_tracer_open(ll_comm *c, ll_session *s, const ll_tracer_opts *opts, ll_tracer **out)
{
    *out = NULL;
    ll_arena *arena = ll_arena_new();
    LL_OWN(ll_tracer) t = LL_NEW(arena, ll_tracer);
    *t = (ll_tracer){.c = c, .s = s, .opts = *opts, .arena = arena};
    ll_err rc = ll_ranks_lead(c) ? make_files(s, opts) : LL_OK;
    if (rc == LL_OK) rc = ll_trace_open(&t->trace);
    TRY(ll_ranks_agree(c, rc));
    return LL_HAND(out, t);
}

static void turn(ll_tracer *t, bool on)
{
    t->on = on;
    t->s->e->trace = on ? t->trace : NULL;
    if (t->c) ll_comm_trace(t->c, on ? t->trace : NULL);
}

void ll_tracer_close(ll_tracer *t)
{
    if (!t) return;
    ll_tracer_stop(t);
    ll_trace_close(t->trace);
    ll_arena_free(t->arena);
}

void ll_tracer_stop(ll_tracer *t)
{
    if (t->on) turn(t, false);
}

ll_err ll_tracer_start(ll_tracer *t)
{
    t->begun = true;
    TRY(read_clock(t, &t->began));
    t->origin = ll_now();
    if (t->c) TRY(ll_comm_broadcast(t->c, &t->origin, 1, LL_F64, 0, NULL));
    turn(t, true);
    return LL_OK;
}

void ll_tracer_note(ll_tracer *t, const char *name, int64_t number, double from)
{
    ll_trace_event e = {.row = LL_TRACE_STEP, .name = name, .bytes = -1, .number = number};
    e.from = from;
    e.to = ll_now();
    if (t->on && number > 0) t->step = number;
    if (t->on) ll_trace_add(t->trace, &e);
}

/* ---- one rank's text ---- */

enum { TRACKS = 64, FIRST_TRACK = LL_TRACE_COMM };

/* Of a row, what holds another comes first; actions without a kernel before what is idle. */
static int by_start(const void *a, const void *b)
{
    const ll_trace_event *x = (const ll_trace_event *)a, *y = (const ll_trace_event *)b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    int longer = (x->to > y->to) - (x->to < y->to);
    if (x->row != LL_TRACE_PIPE) return -longer;
    return longer ? longer : (x->number > y->number) - (x->number < y->number);
}

/* The first track of collectives that is free by then; the last may have to hold two at once. */
static int track_of(const ll_trace_event *e, double until[TRACKS], int *n)
{
    int k = 0;
    while (k < *n && until[k] > e->from && k < TRACKS - 1) k++;
    if (k == *n) ++*n;
    until[k] = e->to;
    return k;
}

static void add_name(ll_buf *b, int pid, int tid, const char *what, const char *name)
{
    ll_buf_printf(b,
                  ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":%s}}",
                  pid, tid, what, ll_text_quoted(b->arena, name));
    if (strcmp(what, "thread_name")) return;
    ll_buf_printf(b,
                  ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{"
                  "\"sort_index\":%d}}",
                  pid, tid, tid);
}

static void add_field(ll_buf *b, const char *name, const char *value, bool *any)
{
    if (!value) return;
    ll_buf_printf(b, "%s\"%s\":%s", *any ? "," : "", name, ll_text_quoted(b->arena, value));
    *any = true;
}

static void add_number(ll_buf *b, const char *name, int64_t value, bool *any)
{
    if (value < 0) return;
    ll_buf_printf(b, "%s\"%s\":%ld", *any ? "," : "", name, value);
    *any = true;
}

/* An action's name is the schedule's; it has its stage and micro-batch. */
static void add_action(const ll_tracer *t, ll_buf *b, const ll_trace_event *e)
{
    static const char *const kinds[] = {"forward", "backward", "input gradient", "weight gradient"};
    ll_action a = t->s->p->pipe->actions[e->number];
    ll_buf_printf(b, "\"action\":\"%s\",\"stage\":%d,\"micro_batch\":%d,\"waited_us\":%.3f}}",
                  kinds[a.kind], a.stage, a.micro, 1e6 * e->waited);
}

static void add_event(const ll_tracer *t, ll_buf *b, const ll_trace_event *e, int pid, int tid)
{
    static const char *const rows[] = {"step", "pipeline", "compute", "gpu", "communication"};
    char title[256];
    const char *name = e->name ? e->name : "", *kind = e->kind ? e->kind : "";
    bool kernel = e->row == LL_TRACE_COMPUTE || e->row == LL_TRACE_DEVICE;
    bool plain = kernel && strcmp(kind, "wait"), any = false;
    bool action = e->row == LL_TRACE_PIPE && e->number >= 0;
    if (action)
        ll_action_text(t->s->p->pipe->actions[e->number], title);
    else if (e->row == LL_TRACE_STEP && e->number >= 0)
        snprintf(title, sizeof title, "%s %ld", name, e->number);
    else if (plain || !*kind)
        snprintf(title, sizeof title, "%s", *name ? name : kind);
    else
        snprintf(title, sizeof title, "%s%s%s", kind, *name ? " " : "", name);
    double from = common_us(t, e->from), us = common_us(t, e->to) - from;
    ll_buf_printf(b,
                  ",\n{\"ph\":\"X\",\"name\":%s,\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,"
                  "\"dur\":%.3f,\"args\":{",
                  ll_text_quoted(b->arena, title), rows[e->row], pid, tid, from, us > 0 ? us : 0);
    if (action) {
        add_action(t, b, e);
        return;
    }
    if (plain) add_field(b, "op", e->kind, &any);
    add_field(b, "algorithm", e->algorithm, &any);
    add_field(b, "ranks", e->peers, &any);
    add_number(b, "bytes", e->bytes, &any);
    add_number(b, "number", e->number, &any);
    ll_buf_puts(b, "}}");
}

/* Everything of this rank, each line led by a comma. */
static void write_rank(ll_tracer *t, ll_buf *b)
{
    int64_t n, dropped;
    const ll_trace_event *events = ll_trace_events(t->trace, &n, &dropped);
    ll_trace_event *sorted =
        (ll_trace_event *)ll_arena_copy(t->arena, events, sizeof *events * (size_t)n);
    int rank = t->c ? ll_comm_rank(t->c) : 0, tracks = 0;
    double until[TRACKS] = {0};
    char host[128] = "", name[256];
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "rank %d (%s)", rank, host);
    add_name(b, rank, 0, "process_name", name);
    add_name(b, rank, LL_TRACE_STEP, "thread_name", "steps");
    if (t->s->p->pipe) add_name(b, rank, LL_TRACE_PIPE, "thread_name", "pipeline");
    add_name(b, rank, LL_TRACE_COMPUTE, "thread_name", "compute");
    const char *device = t->s->machine->device;
    if (device) add_name(b, rank, LL_TRACE_DEVICE, "thread_name", device);
    ll_buf_printf(b,
                  ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_labels\",\"args\":{\"labels\":"
                  "\"clock offset %.1f us, error %.1f us%s\"}}",
                  rank, 1e6 * t->began.offset, 1e6 * t->began.error,
                  dropped ? "; some events are missing" : "");
    qsort(sorted, (size_t)n, sizeof *sorted, by_start);
    for (int64_t i = 0; i < n; i++) {
        bool comm = sorted[i].row == LL_TRACE_COMM;
        int tid = comm ? FIRST_TRACK + track_of(&sorted[i], until, &tracks) : (int)sorted[i].row;
        add_event(t, b, &sorted[i], rank, tid);
    }
    for (int k = 0; k < tracks; k++) {
        snprintf(name, sizeof name, k ? "communication %d" : "communication", k + 1);
        add_name(b, rank, FIRST_TRACK + k, "thread_name", name);
    }
}

/* ---- all ranks' ---- */

static void write_head(const ll_tracer *t, ll_buf *b)
{
    char mesh[LL_MESH_TEXT] = "";
    if (t->s->team) ll_mesh_text(&t->s->team->m, mesh);
    ll_buf_printf(
        b,
        "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"loopline %s\",\"run\":%s,"
        "\"ranks\":%d,\"mesh\":\"%s\",\"clocks\":\"rank 0's; those of others by "
        "ping-pongs, see process labels\"},\n"
        "\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"process_sort_index\","
        "\"args\":{\"sort_index\":0}}",
        ll_version(), ll_text_quoted(t->arena, t->opts.title), t->c ? ll_comm_size(t->c) : 1, mesh);
}

/* On rank 0: adds what rank r sends. */
static ll_err take_text(ll_tracer *t, int64_t number, int r, ll_buf *b)
{
    uint64_t n = 0;
    TRY(get_from(t->c, number, r, &n, sizeof n));
    LL_OWN_MEMORY char *text = (char *)malloc(n ? n : 1);
    CHECK(text, LL_E_MEM, "not enough memory for a trace of %lu bytes of rank %d", n, r);
    TRY(get_from(t->c, number, r, text, n));
    ll_buf_add(b, text, n);
    return LL_OK;
}

static ll_err gather(ll_tracer *t, ll_buf *b)
{
    if (!t->c || ll_comm_size(t->c) == 1) return LL_OK;
    int64_t number = ll_comm_next_number(t->c, "gathering of traces", "trace");
    uint64_t n = b->len;
    if (ll_comm_rank(t->c)) {
        TRY(send_to(t->c, number, 0, &n, sizeof n));
        return send_to(t->c, number, 0, b->text, n);
    }
    for (int r = 1; r < ll_comm_size(t->c); r++) TRY(take_text(t, number, r, b));
    return LL_OK;
}

/* In the place of what make_files made, or nothing. */
static ll_err write_or_drop(const char *path, const char *text, size_t n)
{
    ll_err rc = ll_file_write(path, text, n);
    if (rc != LL_OK) unlink(path);
    return rc;
}

static ll_err write_trace(ll_tracer *t)
{
    ll_buf b = {.arena = t->arena};
    if (ll_ranks_lead(t->c)) write_head(t, &b);
    write_rank(t, &b);
    TRY(gather(t, &b));
    ll_buf_puts(&b, "\n]}\n");
    return ll_ranks_agree(t->c,
                          ll_ranks_lead(t->c) ? write_or_drop(t->opts.path, b.text, b.len) : LL_OK);
}

/* ---- timelines ---- */

/* A row of the table of timelines: starts, ends, waits of this rank's actions, [most] each, and its
 * update, in the last traced step; false: the trace has no whole one. */
static bool fill_row(const ll_tracer *t, int most, double *row)
{
    int64_t n, dropped, found = 0;
    const ll_trace_event *events = ll_trace_events(t->trace, &n, &dropped);
    int n_action = t->s->p->pipe->n_action;
    for (int64_t i = 0; i < n; i++) { /* later steps replace earlier ones */
        const ll_trace_event *e = &events[i];
        double from = 1e-6 * common_us(t, e->from), to = 1e-6 * common_us(t, e->to);
        if (e->row != LL_TRACE_PIPE) continue;
        if (e->number >= 0 && e->number < n_action) {
            row[e->number] = from;
            row[most + e->number] = to;
            row[2 * most + e->number] = e->waited;
            found++;
        } else if (e->name && !strcmp(e->name, "update"))
            row[3 * most] = from, row[3 * most + 1] = to;
    }
    return found >= n_action;
}

/* The table as times. */
static ll_pipeline_times times_of(const ll_pipeline *p, double *table, int most, ll_arena *a)
{
    double **start = LL_NEW_ARRAY(a, double *, p->n_rank),
           **end = LL_NEW_ARRAY(a, double *, p->n_rank);
    double **waited = LL_NEW_ARRAY(a, double *, p->n_rank);
    ll_interval *update = LL_NEW_ARRAY(a, ll_interval, p->n_rank);
    for (int r = 0; r < p->n_rank; r++) {
        double *row = table + (size_t)r * (size_t)(3 * most + 2);
        start[r] = row;
        end[r] = row + most;
        waited[r] = row + 2 * most;
        update[r] = (ll_interval){row[3 * most], row[3 * most + 1]};
    }
    return (ll_pipeline_times){.start = start, .end = end, .waited = waited, .update = update};
}

/* Draws the ranks along axis pipe that have coordinate 0 on all others: each fills in its own row
 * and leaves the others zero; the sum over ranks is all of it. */
static ll_err write_timeline(ll_tracer *t)
{
    enum { COLUMNS = 110 };
    const ll_pipeline *p = t->s->cut->plan->pipeline;
    const ll_mesh *m = &t->s->team->m;
    int axis = ll_mesh_axis(m, LL_AXIS_PIPE), most = 0, rank = ll_comm_rank(t->c);
    for (int r = 0; r < p->n_rank; r++)
        if (p->n_action[r] > most) most = p->n_action[r];
    int64_t width = 3 * most + 2, n = width * p->n_rank; /* behind the table a row that none sees */
    double *table = LL_NEW_ARRAY(t->arena, double, n + width);
    int64_t row = ll_mesh_coord(m, axis, rank);
    for (int a = 0; a < m->n; a++)
        if (a != axis && ll_mesh_coord(m, a, rank)) row = p->n_rank;
    ll_err rc = LL_OK;
    if (!fill_row(t, most, table + row * width))
        rc = RAISE(LL_E_MEM, "the trace has no whole step: no timeline is drawn");
    TRY(ll_ranks_agree(t->c, rc));
    TRY(ll_comm_allreduce(t->c, table, n, LL_F64, LL_REDUCE_SUM,
                          &(ll_coll_opts){.site = "timeline"}));
    ll_pipeline_times times = times_of(p, table, most, t->arena);
    times.title = ll_arena_printf(t->arena, "%s, step %ld as measured", p->name, t->step);
    if (p->overlaps)
        times.title =
            ll_arena_printf(t->arena, "%s, with the end of step %ld", times.title, t->step - 1);
    if (t->s->after) times.period = -1; /* ranks do not wait for each other's ends */
    ll_pipeline_sum_up(p, &times);
    ll_buf text = {.arena = t->arena}, svg = {.arena = t->arena};
    ll_pipeline_draw_text(&text, p, &times, COLUMNS);
    ll_pipeline_draw_svg(&svg, p, &times);
    t->timeline = (ll_timeline){text.text, svg.text, times.bubble};
    return ll_ranks_agree(
        t->c, ll_ranks_lead(t->c) ? write_or_drop(t->opts.timeline, svg.text, svg.len) : LL_OK);
}

const ll_timeline *ll_tracer_timeline(const ll_tracer *t)
{
    return t->timeline.text ? &t->timeline : NULL;
}

ll_err ll_tracer_write(ll_tracer *t)
{
    if (!t->begun || t->written) return LL_OK;
    ll_tracer_stop(t);
    t->written = true;
    TRY(read_clock(t, &t->ended));
    if (t->opts.path) TRY(write_trace(t));
    return t->opts.timeline ? write_timeline(t) : LL_OK;
}
