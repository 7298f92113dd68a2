/* generate.c: sequences that go on token by token. */
#include "infer/generate.h"

#include "pass/packed.h"
#include "weights/state.h"

enum { CHUNK = 64, FEW = 4 }; /* so few tokens are quicker one by one */
enum { IDLE = -1, DISMISSED = -2 };
enum { GUESSES = 2, SOURCE = 3, PROGRAMS = 4 };

typedef struct sequence {
    int32_t *tokens;
    int64_t n, room;
    int64_t start;     /* the first that has a place */
    int64_t fed;       /* tokens from start on whose keys are there */
    int64_t held;      /* those that a state has taken in, which may be more */
    int64_t row, rows; /* of what was guessed: where logits are, how many follow */
} sequence;

struct ll_generator {
    ll_graph *g[PROGRAMS];
    /* of one token; of a chunk, and of guesses, which share the first's memory; of sources, which
     * shares what it keeps of them */
    ll_session *s[PROGRAMS];
    int64_t batch, places, step[PROGRAMS], vocab;
    int64_t prompt;           /* vectors before each sequence's tokens: "tokens" vocab and on */
    int64_t group;            /* of places whose keys are rounded together */
    int64_t keep;             /* entries that stay; 0: of all places */
    int32_t *source, *unread; /* [batch,step]; [batch]: that of a sequence was not read yet */
    int32_t pad;
    ll_comm *comm; /* of a mesh; NULL: alone */
    int32_t number;
    bool recurs; /* what it keeps of a sequence cannot go back (LL_STATE_CACHE) */
    int32_t *at, *last, *count, *x; /* one behind the other, as ranks are told of them */
    int64_t *fresh;                 /* of each, how many tokens a run reads */
    float *logits, *made; /* [batch, vocab]; of one run, of guesses [batch, step, vocab] */
    ll_draw_room room;
    sequence *of;
    ll_arena *arena;
};

/* ---- how long a sequence may become, told by what a generation declares ---- */

enum { ENDLESS = 1 << 30 }; /* places are i32 */

/* What values follow from, alone: nothing; places; parameters; or all else. */
enum { NOTHING, PLACES = 1, TABLE = 2, OTHER = 4 };

/* Is a parameter looked up by the places of tokens? Then it has as many rows as there are. */
static bool learns_places(const ll_graph *g)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    uint8_t *of = LL_NEW_ARRAY(a, uint8_t, g->n_value);
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].node < 0) of[i] = g->values[i].kind == LL_PARAM ? TABLE : OTHER;
    if (ll_find(g, "at").id) of[ll_find(g, "at").id] = PLACES;
    LL_EACH (const ll_node, n, g->nodes, g->n_node) {
        uint8_t all = NOTHING;
        for (int k = 0; k < n->n_in; k++) all |= of[n->in[k].id];
        if (all == (PLACES | TABLE)) return true;
        for (int k = 0; k < n->n_out; k++) of[n->out[k].id] = all & OTHER ? OTHER : all;
    }
    return false;
}

ll_err ll_generator_limits(const ll_run *r, ll_generator_limit *out)
{
    LL_OWN(ll_graph) g = NULL;
    bool states = false, keys = false;
    *out = (ll_generator_limit){.places = ll_run_places(r)};
    CHECK(ll_run_takes_tokens(r) && out->places > 0, LL_E_ARG,
          "%s does not generate text: use a model of tokens, such as gpt or llama", r->model.name);
    TRY(ll_run_generation(r, &(ll_build){.batch = 1, .cache = 1, .step = 1}, &g));
    for (int i = 1; i < g->n_value; i++) {
        const char *name = g->values[i].name;
        if (!name || !ll_is_cache(name)) continue;
        bool state = ll_ends_with(name, LL_STATE_CACHE);
        states |= state;
        keys |= !state;
    }
    out->learned = learns_places(g);
    out->recurs = states;
    out->endless = states && !keys && !out->learned;
    if (out->endless) out->places = ENDLESS;
    return LL_OK;
}

/* ---- opening ---- */

static ll_err check_graph(const ll_run *r, const ll_graph *g, int64_t batch, int64_t step,
                          int64_t rows, int64_t *vocab)
{
    ll_val x = ll_find(g, "x"), y = ll_find_result(g, "logits");
    ll_shape a = x.id ? ll_graph_shape(g, x) : LL_SCALAR;
    ll_shape b = y.id ? ll_graph_shape(g, y) : LL_SCALAR;
    CHECK(a.n == 2 && a.d[0] == batch && a.d[1] == step && b.n == 3 && b.d[1] == rows, LL_E_ARG,
          "model %s cannot generate: its declaration does not use ll_build's cache "
          "(ll_self_attend, ll_build_places, ll_build_last; result logits)",
          r->model.name);
    *vocab = b.d[2];
    return LL_OK;
}

static ll_err check_source(const ll_run *r, const ll_graph *g, int64_t batch, int64_t step)
{
    ll_val x = ll_find(g, "source"), y = ll_find(g, "fresh");
    ll_shape a = x.id ? ll_graph_shape(g, x) : LL_SCALAR;
    CHECK(a.n == 2 && a.d[0] == batch && a.d[1] == step && y.id, LL_E_ARG,
          "model %s cannot generate: it has a size source, but keeps nothing of a source "
          "(ll_build_kept; batch data source)",
          r->model.name);
    return LL_OK;
}

/* A session on r's graph, of k. Packed: from the one that has the weights. */
static ll_err open_one(ll_generator *g, const ll_run *r, const ll_generator_opts *o, int k,
                       int bits, ll_session *share)
{
    LL_OWN(ll_graph) plain = NULL;
    ll_session_opts how = o->session;
    ll_build b = {.batch = g->batch,
                  .cache = g->places,
                  .step = g->step[k],
                  .longest = ll_max64(g->step[1], g->step[2]),
                  .keep = g->keep,
                  .cache_bits = o->cache_bits,
                  .source = k == SOURCE,
                  .all = k == GUESSES};
    TRY(ll_run_generation(r, &b, &plain));
    if (k == SOURCE)
        TRY(check_source(r, plain, g->batch, g->step[k]));
    else
        TRY(check_graph(r, plain, g->batch, g->step[k], b.all ? b.step : 1, &g->vocab));
    if (bits)
        TRY(ll_pack_graph(plain, bits, &g->g[k]));
    else
        g->g[k] = plain, plain = NULL;
    for (int i = 1; i < g->g[k]->n_value; i++) /* what is loaded needs no drawing */
        if (g->g[k]->values[i].kind == LL_PARAM) g->g[k]->values[i].init = (ll_init){LL_ZEROS, 0};
    how.share = share;
    how.reuse = share != NULL;
    how.micro_batches = 1;
    return ll_session_open(g->g[k], &how, &g->s[k]);
}

/* The programs that share the first one's memory. */
static ll_err open_others(ll_generator *g, const ll_run *r, const ll_generator_opts *o)
{
    TRY(open_one(g, r, o, 1, o->bits, g->s[0]));
    return g->step[2] ? open_one(g, r, o, 2, o->bits, g->s[0]) : LL_OK;
}

/* What has all weights: where sources are read no program of generation does. */
static ll_err open_whole(ll_generator *whole, const ll_run *r, const ll_generator_opts *o,
                         bool source)
{
    if (!source) return open_one(whole, r, o, 0, 0, NULL);
    TRY(ll_run_graph(r, whole->batch, NULL, &whole->g[0]));
    return ll_session_open(whole->g[0], &o->session, &whole->s[0]);
}

/* Programs that have weights of their own, of a session that has all. */
static ll_err open_from(ll_generator *g, const ll_run *r, const ll_generator_opts *o,
                        ll_session *whole, const ll_calibration *by)
{
    int count = 0;
    TRY(open_one(g, r, o, 0, o->bits, NULL));
    TRY(ll_pack_weights(whole, g->s[0], o->bits, by, &count));
    if (g->step[SOURCE]) {
        TRY(open_one(g, r, o, SOURCE, o->bits, g->s[0]));
        TRY(ll_pack_weights(whole, g->s[SOURCE], o->bits, by, &count));
    }
    CHECK(count || !o->bits, LL_E_ARG, LL_PACKED_NONE, o->bits, LL_PACK);
    return LL_OK;
}

/* All programs; their parameters are there. */
static ll_err open_all(ll_generator *g, const ll_run *r, const ll_generator_opts *o)
{
    if (!o->bits && !g->step[SOURCE]) {
        TRY(open_one(g, r, o, 0, 0, NULL));
        TRY(o->load(o->user, g->s[0]));
        return open_others(g, r, o);
    }
    int64_t ranks = o->session.comm ? ll_comm_size(o->session.comm) : 1;
    ll_generator whole = {.batch = g->step[SOURCE] ? ranks : 1, .places = 1, .step = {1, 1}};
    ll_calibration *by = NULL;
    ll_calibrate how = o->calibrate;
    how.bits = o->bits;
    ll_err rc = open_whole(&whole, r, o, g->step[SOURCE] > 0);
    if (rc == LL_OK) rc = o->load(o->user, whole.s[0]);
    if (rc == LL_OK && how.windows) rc = ll_calibration_open(r, whole.s[0], &how, &by);
    if (rc == LL_OK) rc = open_from(g, r, o, whole.s[0], by);
    ll_calibration_close(by);
    ll_session_close(whole.s[0]);
    ll_graph_free(whole.g[0]);
    TRY(rc);
    return open_others(g, r, o);
}

ll_err ll_generator_open(const ll_run *r, const ll_generator_opts *o, ll_generator **out)
{
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_generator) g = LL_NEW(a, ll_generator);
    int64_t prompt = r->train.prompt;
    ll_generator_limit limit;
    *g = (ll_generator){
        .arena = a, .number = o->number, .batch = o->batch ? o->batch : 1, .prompt = prompt};
    *out = NULL;
    TRY(ll_generator_limits(r, &limit));
    g->recurs = limit.recurs;
    g->places = prompt + (o->places ? ll_min64(o->places, limit.places) : limit.places);
    CHECK(o->bits == 0 || o->bits == 4 || o->bits == 8, LL_E_ARG,
          "weights of %d bits, expected 8 or 4", o->bits);
    CHECK(!o->calibrate.windows || o->bits == 4 || (o->bits && !o->calibrate.gptq), LL_E_ARG,
          "calibration needs weights of 4 bits, or of 8 with awq only");
    CHECK(!o->session.exact || (!o->bits && !o->cache_bits), LL_E_ARG,
          "exact sums cannot be combined with weights, keys or values of fewer bits than f32: "
          "leave one out (-s parallel.exact=false)");
    CHECK(o->cache_bits == 0 || o->cache_bits == 4 || o->cache_bits == 8, LL_E_ARG,
          "keys and values of %d bits, expected 8 or 4", o->cache_bits);
    g->group = o->cache_bits == 4 ? LL_CACHE4_GROUP : 1;
    g->keep = o->keep < g->places ? o->keep : 0;
    CHECK(!g->keep || (!o->cache_bits && !o->guesses && !o->session.exact), LL_E_ARG,
          "keeping %ld of %ld keys and values needs f32, no drafts and no exact sums", g->keep,
          g->places);
    g->step[0] = 1;
    g->step[1] = o->chunk ? o->chunk : CHUNK;
    if (g->step[1] > g->places) g->step[1] = g->places;
    CHECK(!o->guesses || o->guesses < g->places, LL_E_ARG,
          "%ld guesses, expected fewer than the %ld places", o->guesses, g->places);
    g->step[2] = o->guesses ? o->guesses + 1 : 0;
    g->step[SOURCE] = ll_run_size(r, "source", 0);
    g->pad = (int32_t)ll_run_size(r, "pad", 0);
    TRY(open_all(g, r, o));
    if (g->s[0]->team) g->comm = o->session.comm;
    int64_t n = g->batch * g->vocab, most = 0;
    for (int k = 0; k < PROGRAMS; k++) most = g->step[k] > most ? g->step[k] : most;
    g->source = LL_NEW_ARRAY(a, int32_t, g->batch * g->step[SOURCE] + 1);
    g->unread = LL_NEW_ARRAY(a, int32_t, g->batch);
    g->at = LL_NEW_ARRAY(a, int32_t, g->batch * (most + 3));
    g->last = g->at + g->batch;
    g->count = g->last + g->batch;
    g->x = g->count + g->batch;
    g->fresh = LL_NEW_ARRAY(a, int64_t, g->batch);
    g->logits = LL_NEW_ARRAY(a, float, n);
    g->made = LL_NEW_ARRAY(a, float, n *(g->step[2] ? g->step[2] : 1));
    g->room.logits = LL_NEW_ARRAY(a, float, g->vocab);
    g->room.heap = LL_NEW_ARRAY(a, ll_draw_candidate, g->vocab);
    g->of = LL_NEW_ARRAY(a, sequence, g->batch);
    return LL_HAND(out, g);
}

void ll_generator_close(ll_generator *g)
{
    if (!g) return;
    for (int k = PROGRAMS - 1; k >= 0; k--) ll_session_close(g->s[k]);
    for (int k = 0; k < PROGRAMS; k++) ll_graph_free(g->g[k]);
    for (int64_t i = 0; g->of && i < g->batch; i++) free(g->of[i].tokens);
    ll_arena_free(g->arena);
}

static size_t kept_bytes(const ll_session *s, bool cache)
{
    size_t sum = 0;
    for (int i = 0; i < s->n_kept; i++) {
        const ll_slot *x = &s->p->slots[s->kept[i]];
        if (ll_is_cache(x->name) == cache) sum += ll_tensor_bytes(x->type.dtype, &x->type.shape);
    }
    return sum;
}

int64_t ll_generator_places(const ll_generator *g)
{
    return g->places - g->prompt;
}

size_t ll_generator_cache_bytes(const ll_generator *g)
{
    return kept_bytes(g->s[0], true);
}

size_t ll_generator_weight_bytes(const ll_generator *g)
{
    return kept_bytes(g->s[0], false);
}

size_t ll_generator_bytes(const ll_generator *g)
{
    size_t most = 0; /* they work in the same memory */
    for (int k = 0; k < SOURCE; k++)
        if (g->s[k] && ll_session_bytes(g->s[k]) > most) most = ll_session_bytes(g->s[k]);
    return most + (g->s[SOURCE] ? ll_exec_bytes(g->s[SOURCE]->e) : 0);
}

/* ---- running ---- */

static ll_err check_finite(const float *x, int64_t n)
{
    float none = 0; /* times 0, others are NaN */
#pragma omp simd reduction(+ : none)
    for (int64_t i = 0; i < n; i++) none += x[i] * 0;
    if (none == 0) return LL_OK;
    for (int64_t i = 0; i < n; i++)
        CHECK(isfinite(x[i]), LL_E_NUMERIC,
              "the logit of token %ld is %g: the weights are damaged, or training diverged", i,
              (double)x[i]);
    return LL_OK;
}

/* Places that a sequence wants; what stands there; those that were not read yet. */
static int64_t length_of(const ll_generator *g, const sequence *s)
{
    return s->n > s->start ? g->prompt + s->n - s->start : 0;
}
static int32_t token_of(const ll_generator *g, const sequence *s, int64_t place)
{
    return place < g->prompt ? (int32_t)(g->vocab + place)
                             : s->tokens[s->start + place - g->prompt];
}
static int64_t left_of(const ll_generator *g, const sequence *s)
{
    return length_of(g, s) - s->fed;
}

ll_err ll_generator_put(ll_generator *g, int64_t sequence_of, const int32_t *tokens, int64_t n)
{
    sequence *s = &g->of[sequence_of];
    if (s->n + n > s->room) {
        int64_t room = 2 * (s->n + n);
        int32_t *more = (int32_t *)realloc(s->tokens, sizeof *more * (size_t)room);
        CHECK(more, LL_E_MEM, "not enough memory for %ld tokens", room);
        s->tokens = more;
        s->room = room;
    }
    for (int64_t i = 0; i < n; i++)
        CHECK(tokens[i] >= 0 && tokens[i] < g->vocab, LL_E_ARG,
              "token %d is outside the model's vocabulary of %ld tokens", tokens[i], g->vocab);
    memcpy(s->tokens + s->n, tokens, sizeof *tokens * (size_t)n);
    s->n += n;
    return LL_OK;
}

void ll_generator_clear(ll_generator *g, int64_t sequence_of)
{
    sequence *s = &g->of[sequence_of];
    s->n = s->start = s->fed = 0;
}

void ll_generator_back(ll_generator *g, int64_t sequence_of, int64_t n)
{
    sequence *s = &g->of[sequence_of];
    if (n >= s->n) return;
    s->n = n;
    if (s->start > n) s->start = s->fed = 0;
    if (s->fed <= length_of(g, s)) return;
    s->fed = length_of(g, s);
    s->fed -= s->fed % g->group; /* what was rounded with what is no more is read again */
    if (g->keep) s->fed = 0;     /* and what was given up for it */
}

ll_err ll_generator_source(ll_generator *g, int64_t sequence_of, const int32_t *tokens, int64_t n)
{
    int64_t most = g->step[SOURCE];
    CHECK(most, LL_E_ARG, "a source needs a model that reads one, such as seq2seq");
    CHECK(n > 0 && n <= most, LL_E_ARG, "a source of %ld tokens, expected 1 to %ld (model.source)",
          n, most);
    for (int64_t i = 0; i < n; i++)
        CHECK(tokens[i] >= 0 && tokens[i] < g->vocab, LL_E_ARG,
              "token %d is outside the model's vocabulary of %ld tokens", tokens[i], g->vocab);
    for (int64_t i = 0; i < most; i++)
        g->source[sequence_of * most + i] = i < n ? tokens[i] : g->pad;
    g->unread[sequence_of] = 1;
    return LL_OK;
}

/* Too long a sequence: what was new at first as much as there is room for, later half of it. A
 * state that has taken in other tokens begins anew. */
static void make_room(const ll_generator *g, sequence *s)
{
    int64_t most = g->places - g->prompt;
    if (g->recurs && s->held != s->fed) s->fed = s->held = 0;
    if (s->n - s->start <= most) return;
    int64_t keep = s->fed ? (most + 1) / 2 : most;
    s->start = s->n - keep;
    s->fed = s->held = 0;
}

/* Row i of a run of k: returns how many of its tokens are new. One that has none repeats its last:
 * what is written is what is there, and a state, or where few entries stay, is told that none is
 * new. */
static int64_t set_row(ll_generator *g, int64_t i, int k)
{
    sequence *s = &g->of[i];
    int64_t step = g->step[k], left = left_of(g, s), n = left < step ? left : step;
    int64_t from = n || g->keep ? s->fed : s->fed - 1, used = n || g->keep ? n : 1;
    int32_t *x = g->x + i * step;
    for (int64_t j = 0; j < step; j++) x[j] = from >= 0 && j < used ? token_of(g, s, from + j) : 0;
    g->at[i] = (int32_t)(from < 0 ? 0 : from);
    g->last[i] = (int32_t)(g->recurs ? n - 1 : used ? used - 1 : 0);
    g->count[i] = (int32_t)n;
    return n;
}

/* Runs program k on rows that are set: of all ranks alike. */
static ll_err run_program(ll_generator *g, int k)
{
    size_t row = sizeof(float) * (size_t)g->vocab, ints = sizeof(int32_t) * (size_t)g->batch;
    ll_session *s = g->s[k];
    TRY(ll_session_set(s, k == SOURCE ? "source" : "x", 0, g->x, ints * (size_t)g->step[k]));
    TRY(ll_session_set(s, k == SOURCE ? "fresh" : "at", 0, g->at, ints));
    if (k < 2 || (k == GUESSES && g->recurs)) TRY(ll_session_set(s, "last", 0, g->last, ints));
    if (k < 2 && g->keep) TRY(ll_session_set(s, "count", 0, g->count, ints));
    TRY(ll_session_run(s, 0));
    if (k == SOURCE) return LL_OK;
    int64_t rows = k < 2 ? g->batch : g->batch * g->step[k];
    return ll_session_get(s, "logits", g->made, row * (size_t)rows);
}

/* Rank 0 says what is run, or that nothing is. */
static ll_err tell(const ll_generator *g, int32_t number, int32_t k)
{
    int32_t what[2] = {number, k};
    return g->comm ? ll_comm_broadcast(g->comm, what, 2, LL_I32, 0, NULL) : LL_OK;
}

static ll_err share_rows(ll_generator *g, int k)
{
    int64_t n = g->batch * (g->step[k] + 3);
    return g->comm ? ll_comm_broadcast(g->comm, g->at, n, LL_I32, 0, NULL) : LL_OK;
}

static ll_err run_rows(ll_generator *g, int k)
{
    TRY(tell(g, g->number, k));
    TRY(share_rows(g, k));
    return run_program(g, k);
}

ll_err ll_generator_idle(const ll_generator *g)
{
    return tell(g, IDLE, 0);
}

ll_err ll_generator_dismiss(const ll_generator *g)
{
    return tell(g, DISMISSED, 0);
}

ll_err ll_generator_follow(ll_generator *const *g, int n)
{
    for (;;) {
        int32_t what[2];
        TRY(ll_comm_broadcast(g[0]->comm, what, 2, LL_I32, 0, NULL));
        if (what[0] == DISMISSED) return LL_OK;
        if (what[0] == IDLE) continue;
        LL_ASSERT(what[0] < n && what[1] < PROGRAMS);
        TRY(share_rows(g[what[0]], what[1]));
        TRY(run_program(g[what[0]], what[1]));
    }
}

static ll_err run_once(ll_generator *g, int k)
{
    size_t row = sizeof(float) * (size_t)g->vocab;
    int64_t some = 0;
    int64_t *new = g->fresh;
    for (int64_t i = 0; i < g->batch; i++) some += new[i] = set_row(g, i, k);
    if (!some) return LL_OK;
    TRY(run_rows(g, k));
    for (int64_t i = 0; i < g->batch; i++) {
        g->of[i].fed += new[i];
        g->of[i].held = g->of[i].fed;
        if (!new[i]) continue;
        TRY(check_finite(g->made + i * g->vocab, g->vocab));
        memcpy(g->logits + i * g->vocab, g->made + i * g->vocab, row);
    }
    return LL_OK;
}

/* Sources that are new; what is kept of the others stays. */
static ll_err read_sources(ll_generator *g)
{
    size_t ints = sizeof(int32_t) * (size_t)g->batch;
    bool any = false;
    for (int64_t i = 0; i < g->batch; i++) any |= g->unread[i] != 0;
    if (!any) return LL_OK;
    memcpy(g->x, g->source, ints * (size_t)g->step[SOURCE]);
    memcpy(g->at, g->unread, ints);
    memset(g->unread, 0, ints);
    return run_rows(g, SOURCE);
}

bool ll_generator_ready(const ll_generator *g, int64_t sequence_of)
{
    return !left_of(g, &g->of[sequence_of]);
}

ll_err ll_generator_step(ll_generator *g)
{
    int64_t most = 0;
    TRY(read_sources(g));
    for (int64_t i = 0; i < g->batch; i++) {
        make_room(g, &g->of[i]);
        int64_t left = left_of(g, &g->of[i]);
        if (left > most) most = left;
    }
    return most ? run_once(g, most > FEW && g->step[1] > FEW) : LL_OK;
}

ll_err ll_generator_run(ll_generator *g)
{
    for (bool more = true; more;) {
        TRY(ll_generator_step(g));
        more = false;
        for (int64_t i = 0; i < g->batch; i++) more |= !ll_generator_ready(g, i);
    }
    return LL_OK;
}

/* ---- guesses ---- */

static void take_row(ll_generator *g, int64_t i)
{
    const sequence *s = &g->of[i];
    memcpy(g->logits + i * g->vocab, g->made + (i * g->step[2] + s->row) * g->vocab,
           sizeof(float) * (size_t)g->vocab);
}

/* Tokens that are left, or the last once more; then guesses, as many as there is room for. */
static void set_guesses(ll_generator *g, int64_t i, const int32_t *guesses, int n)
{
    sequence *s = &g->of[i];
    int64_t left = left_of(g, s), used = left ? left : s->n > s->start, step = g->step[2];
    int64_t from = length_of(g, s) - used, room = g->places - length_of(g, s);
    int32_t *x = g->x + i * step;
    s->rows = n < room ? n : room;
    for (int64_t j = 0; j < step; j++)
        x[j] = j < used ? token_of(g, s, from + j) : j < used + s->rows ? guesses[j - used] : 0;
    g->at[i] = (int32_t)from;
    g->last[i] = (int32_t)(used + s->rows - 1);
    s->row = used ? used - 1 : 0;
}

ll_err ll_generator_guess(ll_generator *g, const int32_t *guesses, int64_t stride, const int *n)
{
    LL_ASSERT(g->step[2]);
    TRY(read_sources(g));
    for (bool more = true; more;) { /* what is too long for it is read before */
        more = false;
        for (int64_t i = 0; i < g->batch; i++) {
            make_room(g, &g->of[i]);
            more |= left_of(g, &g->of[i]) > 1;
        }
        if (more) TRY(ll_generator_step(g));
    }
    for (int64_t i = 0; i < g->batch; i++) {
        CHECK(!g->recurs || left_of(g, &g->of[i]) == 1 || !g->of[i].n, LL_E_ARG,
              "tokens cannot be tried with linear attention, whose state cannot undo them");
        set_guesses(g, i, guesses + i * stride, n[i]);
    }
    TRY(run_rows(g, 2));
    for (int64_t i = 0; i < g->batch; i++) {
        sequence *s = &g->of[i];
        s->fed = length_of(g, s);
        s->held = s->fed + s->rows;
        int64_t rows = (s->row + 1 + s->rows) * g->vocab;
        if (s->n) TRY(check_finite(g->made + i * g->step[2] * g->vocab, rows));
        take_row(g, i);
    }
    return LL_OK;
}

bool ll_generator_accept(ll_generator *g, int64_t i)
{
    sequence *s = &g->of[i];
    if (!s->rows) return false;
    s->rows--;
    s->row++;
    s->fed++;
    take_row(g, i);
    return true;
}

/* Minus the logarithm of a token's probability. */
static double surprise(const float *logits, int64_t n, int32_t token)
{
    double top = logits[0], sum = 0;
    for (int64_t i = 1; i < n; i++) top = logits[i] > top ? logits[i] : top;
    for (int64_t i = 0; i < n; i++) sum += exp(logits[i] - top);
    return log(sum) + top - logits[token];
}

ll_err ll_generator_score(ll_generator *g, const int32_t *tokens, int64_t first, int64_t n,
                          double *sum)
{
    int64_t same = 0, have;
    const int32_t *had = ll_generator_tokens(g, 0, &have);
    while (same < first - 1 && same < have && had[same] == tokens[same]) same++;
    LL_OWN_MEMORY int *count = (int *)calloc((size_t)g->batch, sizeof *count);
    CHECK(count && first > 0 && n >= first && n <= ll_generator_places(g) + 1, LL_E_ARG,
          "%ld tokens to score, but the model has %ld places", n, ll_generator_places(g));
    if (same)
        ll_generator_back(g, 0, same);
    else
        ll_generator_clear(g, 0);
    TRY(ll_generator_put(g, 0, tokens + same, first - same));
    for (int64_t i = first; i < n;) {
        count[0] = (int)(n - 1 - i < g->step[2] - 1 ? n - 1 - i : g->step[2] - 1);
        TRY(g->step[2] ? ll_generator_guess(g, tokens + i, 0, count) : ll_generator_run(g));
        for (bool more = true; more; i++) {
            *sum += surprise(ll_generator_logits(g, 0), g->vocab, tokens[i]);
            TRY(ll_generator_put(g, 0, &tokens[i], 1));
            more = ll_generator_accept(g, 0);
        }
    }
    return LL_OK;
}

const float *ll_generator_logits(const ll_generator *g, int64_t sequence_of)
{
    return g->logits + sequence_of * g->vocab;
}

const int32_t *ll_generator_tokens(const ll_generator *g, int64_t sequence_of, int64_t *n)
{
    *n = g->of[sequence_of].n;
    return g->of[sequence_of].tokens;
}

bool ll_generator_recurs(const ll_generator *g)
{
    return g->recurs;
}

ll_session *ll_generator_session(const ll_generator *g)
{
    return g->s[0];
}

int32_t ll_generator_draw(ll_generator *g, int64_t sequence_of, const ll_draw_opts *how, int64_t i)
{
    const sequence *s = &g->of[sequence_of];
    ll_draw_from from = {ll_generator_logits(g, sequence_of), g->vocab, s->tokens + s->start,
                         s->n - s->start};
    return ll_draw(&from, how, i, &g->room);
}
