/* mpi: 2 3 4
 * Generation on meshes: rank 0 leads, the others follow, and the text is the one of a single
 * process, drawn or the likeliest, guessed ahead or not; keys and values are cut. */
#include "infer/generate.h"

#include "exec/session.h"
#include "no_error.h"
#include "run/setup.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 5, NEW = 8, V = 61 };

static ll_comm *comm;

typedef struct trial {
    const char *model, *mesh; /* mesh: axis with %d ranks */
    int bits, cache_bits, keep, prompt;
    bool exact, guess;
    int cut; /* heads of keys that are divided; 0: caches are something else's matter */
} trial;

#define LLAMA                                                                                      \
    "{name: llama, layers: 4, width: 96, heads: 6, kv_heads: 3, hidden: 64, seq: 24, vocab: 61}"
#define GPT "{name: gpt, layers: 4, width: 32, heads: 4, seq: 24, vocab: 61}"

#define LINEAR                                                                                     \
    "{name: gpt, layers: 4, width: 32, heads: 4, seq: 24, vocab: 61, linear: 1, decay: 2}"
#define SHARED                                                                                     \
    "{name: llama, layers: 4, width: 96, heads: 6, kv_heads: 3, hidden: 64, seq: 24, vocab: 61, "  \
    "linear: 1}"

#define SEQ2SEQ                                                                                    \
    "{name: seq2seq, layers: 4, width: 48, heads: 4, hidden: 64, seq: 24, source: 7, vocab: 61}"

static const trial trials[] = {
    {LLAMA, "tensor=%d", .cut = 3},
    {LLAMA, "tensor=%d", .guess = true},
    {GPT, "tensor=%d", .exact = true},
    {LLAMA, "tensor=%d", .bits = 8, .cache_bits = 8},
    {LLAMA, "tensor=%d", .cache_bits = 4, .cut = 3},
    {LLAMA, "tensor=%d", .keep = 11, .cut = 3},
    {GPT, "pipe=%d", .keep = 11},
    {GPT, "data=%d", .keep = 11},
    {LLAMA, "tensor=%d", .prompt = 5, .cut = 3},
    {LLAMA, "pipe=%d", .prompt = 5, .guess = true},
    {LLAMA, "tensor=%d", .bits = 4},
    {LLAMA, "pipe=%d"},
    {LLAMA, "data=%d"},
    {GPT, "tensor=%d", .cut = 4},
    {GPT, "pipe=%d", .guess = true},
    {LINEAR, "tensor=%d", .cut = 4},
    {LINEAR, "tensor=%d", .exact = true},
    {LINEAR, "pipe=%d"},
    {SHARED, "tensor=%d", .cut = 3},
    {SHARED, "data=%d"},
    {SEQ2SEQ, "tensor=%d", .cut = 4},
    {SEQ2SEQ, "tensor=%d", .bits = 8},
    {SEQ2SEQ, "pipe=%d"},
    {SEQ2SEQ, "data=%d"},
};

static ll_err copy_from(void *user, ll_session *s)
{
    ll_session *from = (ll_session *)user;
    for (int i = 1; i < from->g->n_value; i++) {
        const ll_value *v = &from->g->values[i];
        size_t bytes = (size_t)ll_numel(&v->type.shape) * sizeof(float);
        if (v->kind != LL_PARAM || v->node >= 0) continue;
        LL_OWN_MEMORY float *x = (float *)malloc(bytes);
        TRY(ll_session_get(from, v->name, x, bytes));
        TRY(ll_session_set(s, v->name, 0, x, bytes));
    }
    return LL_OK;
}

/* Weights of a run, the same on every rank, large enough for logits to differ. */
static ll_session *weights_of(const ll_run *r, ll_graph **g)
{
    ll_session *s;
    no_error(ll_run_graph(r, 1, NULL, g));
    for (int i = 1; i < (*g)->n_value; i++)
        if ((*g)->values[i].init.kind == LL_NORMAL) (*g)->values[i].init.a = 0.2;
    no_error(ll_session_open(*g, &(ll_session_opts){.threads = 1, .seed = 5}, &s));
    return s;
}

static ll_generator *open_one(const trial *t, const ll_run *r, ll_session *weights, bool mesh)
{
    char axes[64];
    ll_generator *g;
    ll_generator_opts o = {.batch = BATCH,
                           .chunk = 6,
                           .bits = t->bits,
                           .cache_bits = t->cache_bits,
                           .keep = t->keep,
                           .guesses = t->guess ? 2 : 0,
                           .load = copy_from,
                           .user = weights,
                           .session = {.threads = 1, .exact = t->exact}};
    snprintf(axes, sizeof axes, t->mesh, ll_comm_size(comm));
    if (mesh) o.session.comm = comm, o.session.mesh = axes;
    no_error(ll_generator_open(r, &o, &g));
    return g;
}

typedef struct said {
    int32_t tokens[BATCH][NEW];
    float logits[V];
} said;

/* Prompts of other lengths, of which two outgrow their places; what follows each. */
static void say(ll_generator *g, const trial *t, double temperature, said *out)
{
    for (int i = 0; i < BATCH; i++) {
        int32_t x[20], source[] = {3, 7 + i, 60 - 2 * i, 9, 1};
        if (!strcmp(t->model, SEQ2SEQ)) no_error(ll_generator_source(g, i, source, 2 + i % 4));
        int n = 2 + 4 * i;
        for (int k = 0; k < n; k++) x[k] = (k * k + 7 * i + 3 * k) % V;
        ll_generator_clear(g, i);
        no_error(ll_generator_put(g, i, x, n));
    }
    for (int k = 0; k < NEW; k++) {
        int32_t wrong[2 * BATCH] = {0};
        int n[BATCH] = {2, 1, 0, 2, 1};
        if (t->guess)
            no_error(ll_generator_guess(g, wrong, 2, n));
        else
            no_error(ll_generator_run(g));
        if (k == 0) memcpy(out->logits, ll_generator_logits(g, 2), sizeof out->logits);
        for (int i = 0; i < BATCH; i++) {
            ll_draw_opts how = {.temperature = temperature, .seed = 9, .stream = (uint64_t)i};
            out->tokens[i][k] = ll_generator_draw(g, i, &how, k);
            no_error(ll_generator_put(g, i, &out->tokens[i][k], 1));
        }
    }
}

static void assert_same(const trial *t, const said *a, const said *b)
{
    double most = 0, size = 0;
    for (int i = 0; i < V; i++) {
        most = fmax(most, fabs((double)a->logits[i] - (double)b->logits[i]));
        size = fmax(size, fabs((double)a->logits[i]));
    }
    printf("%d ranks, %s: logits of %.2g, off by %.2g\n", ll_comm_size(comm), t->mesh, size, most);
    assert_true(size > 0.1 && most <= (t->exact ? 0 : t->bits ? 1e-2 : 1e-5) * size);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
}

/* Together the ranks have each key once, where there are as many heads; which places of a source
 * are seen they know each. */
static void assert_cut(const trial *t, const ll_generator *g, size_t whole)
{
    double sum = (double)ll_generator_cache_bytes(g);
    no_error(ll_comm_allreduce(comm, &sum, 1, LL_F64, LL_REDUCE_SUM, NULL));
    int ranks = ll_comm_size(comm), mask = strcmp(t->model, SEQ2SEQ) ? 0 : 4 * 7 * BATCH;
    if (t->cut >= ranks) assert_true(sum == (double)whole + (ranks - 1) * mask);
}

static void one(const trial *t)
{
    char text[512];
    ll_run *r;
    ll_graph *g;
    said alone[2], here;
    snprintf(text, sizeof text, "model: %s\ntrain: {threads: 1, prompt: %d}\n", t->model,
             t->prompt);
    no_error(ll_run_parse(text, strlen(text), "test", &r));
    no_error(ll_run_finish(r));
    ll_session *weights = weights_of(r, &g);
    ll_generator *serial = open_one(t, r, weights, false), *cut = open_one(t, r, weights, true);
    for (int k = 0; k < 2 && ll_comm_rank(comm) == 0; k++) say(serial, t, 0.8 * k, &alone[k]);
    assert_cut(t, cut, ll_generator_cache_bytes(serial));
    if (ll_comm_rank(comm))
        no_error(ll_generator_follow(&cut, 1));
    else {
        for (int k = 0; k < 2; k++) {
            say(cut, t, 0.8 * k, &here);
            assert_same(t, &alone[k], &here);
            no_error(ll_generator_idle(cut));
        }
        no_error(ll_generator_dismiss(cut));
    }
    ll_generator_close(cut);
    ll_generator_close(serial);
    ll_session_close(weights);
    ll_graph_free(g);
    ll_run_free(r);
}

#ifdef __SANITIZE_ADDRESS__ /* compiling takes most of it: every third */
enum { STRIDE = 3 };
#else
enum { STRIDE = 1 };
#endif

static void same_text(void **)
{
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i += STRIDE) one(&trials[i]);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60}, &comm) != LL_OK) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_text)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return failed;
}
