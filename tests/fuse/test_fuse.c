/* test_fuse.c: every fusion of the registry against what it replaces. A fusion that is
 * added is tested here without a line changed. For each row, on its trials or on those of the op
 * that it makes: the pattern is a graph, the fusion must find it, and what comes of it must give
 * the same results on machine ref, where ops that have no reference kernel run as what they mean.
 * Fusions that are no patterns: the same with graphs that they list. And whatever has no reference
 * kernel means something. ONLY=product tests one fusion, SEED=7 as in test_op.c. */
#include "ir/graph_text.h"
#include "fuse/fuse_int.h"
#include "ir/text_int.h"
#include "op/trial.h"

typedef struct case_of { /* an unfused graph, and what its inputs may be */
    const char *name;
    ll_graph *g;
    trial t; /* numbers are drawn by it */
} case_of;

static void ok(ll_err rc, const char *name, const char *what)
{
    if (rc != LL_OK) fail_msg("%s: %s: %s\n%s", name, what, ll_error_text(), ll_error_frames());
}

static ll_val add_input(case_of *c, const char *name, ll_type type, int64_t limit)
{
    int k = c->t.n_in++;
    c->t.in[k] = type;
    c->t.limit[k] = limit;
    return ll_input(c->g, name, LL_STATE, type, (ll_init){.two_of_four = limit < 0});
}

/* ---- a row's pattern as a graph ---- */

static const ll_attr_field *field_of(const ll_fuse_text *t, int hole)
{
    for (int i = 0; i < t->n_line; i++)
        for (int k = 0; t->line[i].op->attrs && t->line[i].op->attrs[k].name; k++)
            if (t->line[i].field[k] == hole + 1) return &t->line[i].op->attrs[k];
    return NULL;
}

/* "x: f32[2,3], label: i32[2]<3 $spec="ab->a"" */
static ll_err read_trial(case_of *c, const ll_fuse_text *t, const char *text, ll_fuse_holes *h,
                         ll_val *now)
{
    ll_scan s = {.at = text, .line_start = text, .line = 1};
    char word[LL_WORD_MAX + 1];
    do {
        ll_type type;
        int64_t limit = 0;
        TRY(ll_scan_word(&s, "a value", word));
        TRY(ll_scan_want(&s, ':'));
        TRY(ll_scan_dtype(&s, &type.dtype));
        TRY(ll_scan_shape(&s, &type.shape));
        if (ll_scan_is(&s, '<')) TRY(ll_scan_int(&s, "a limit", 1, INT32_MAX, &limit));
        if (ll_scan_is(&s, '>')) limit = 1;
        if (ll_scan_is(&s, '%')) limit = -1;
        int w = ll_fuse_word(t, word);
        if (w >= 0) now[w] = add_input(c, word, type, limit); /* others: of another row */
    } while (ll_scan_is(&s, ','));
    while (ll_scan_is(&s, '$')) {
        char hole[LL_WORD_MAX + 2], attr[64] = "";
        TRY(ll_scan_word(&s, "a hole", word));
        TRY(ll_scan_want(&s, '='));
        snprintf(hole, sizeof hole, "$%s", word);
        int w = ll_fuse_word(t, hole);
        const ll_attr_field *f = w < 0 ? NULL : field_of(t, w);
        size_t n = strcspn(s.at, "$");
        if (f) { /* by an op of this one field */
            ll_attr_field one[] = {{f->name, f->kind, 0, f->count}, {0}};
            ll_op like = {.name = "hole", .attrs = one};
            char given[128];
            snprintf(given, sizeof given, "{%s=%.*s}", f->name, (int)n, s.at);
            ll_scan v = {.at = given, .line_start = given, .line = 1};
            TRY(ll_scan_attrs(&v, &like, attr, NULL));
            memcpy(h->attr[w], attr, sizeof attr);
            h->bound[w] = true;
        }
        s.at += n;
    }
    return LL_OK;
}

/* The operands of the op that a row makes. False: the trial has another number of them. */
static bool from_op(case_of *c, const ll_fuse_text *t, const char *text, ll_fuse_holes *h,
                    ll_val *now)
{
    const ll_fuse_line *l = t->put;
    ll_type in[LL_MAX_IN];
    int64_t limit[LL_MAX_IN];
    int n_in;
    void *attr;
    ok(ll_parse_trial(l->op, text, c->t.arena, &n_in, in, limit, &attr), l->op->name, text);
    if (n_in != l->n_in || !ll_fuse_attrs(l, attr, &in[0].shape, h)) return false;
    for (int k = 0; k < n_in; k++) now[l->in[k]] = add_input(c, t->word[l->in[k]], in[k], limit[k]);
    return true;
}

static bool build(case_of *c, const ll_fusion_row *row, const char *text)
{
    ll_fuse_text t;
    ll_fuse_holes h = {0};
    ll_val now[LL_FUSE_WORDS] = {{0}};
    ok(ll_fuse_read(row, c->t.arena, &t), c->name, row->pattern);
    c->g = ll_graph_new(c->name);
    if (row->trials[0])
        ok(read_trial(c, &t, text, &h, now), c->name, text);
    else if (!from_op(c, &t, text, &h, now))
        return false;
    for (int i = 0; i < t.n_line; i++) ok(ll_fuse_put(c->g, &t.line[i], &h, now), c->name, text);
    for (int i = 0; i < t.n_line; i++)
        for (int o = 0; o < t.line[i].n_out && !t.line[i].kept; o++)
            if (t.made[t.line[i].out[o]])
                ll_graph_result(c->g, t.word[t.line[i].out[o]], now[t.line[i].out[o]]);
    ok(ll_verify(c->g), c->name, text);
    return true;
}

/* ---- both graphs on machine ref ---- */

typedef struct running {
    ll_program *p;
    ll_exec *e;
} running;

static running start(const case_of *c, const ll_graph *g)
{
    running r;
    ok(ll_lower(g, &(ll_lower_opts){.target = &ll_target_ref}, &r.p), c->name, "lower");
    ok(ll_exec_open(r.p, &(ll_exec_opts){.seed = seed, .poison = true}, &r.e), c->name, "open");
    for (int v = 1, k = 0; v < c->g->n_value; v++) {
        if (c->g->values[v].node >= 0) continue;
        int slot = ll_program_input(r.p, c->g->values[v].name);
        for (int64_t i = 0; i < ll_numel(&c->t.in[k].shape); i++)
            ll_store(ll_exec_data(r.e, slot, 0), c->t.in[k].dtype, i, draw(&c->t, k, i, 0));
        k++;
    }
    ok(ll_exec_run(r.e, LL_MICRO, 3), c->name, "run");
    ok(ll_exec_run(r.e, LL_REPORT, 3), c->name, "run");
    return r;
}

static ll_tensor result(const running *r, const char *name)
{
    int s = ll_program_result(r->p, name);
    return (ll_tensor){ll_exec_data(r->e, s, 0), r->p->slots[s].type.dtype,
                       r->p->slots[s].type.shape};
}

static void stop(running *r)
{
    ll_exec_close(r->e);
    ll_program_free(r->p);
}

/* 8-bit floats are compared by what is made of them, and bf16 is rounded here and there. */
static double allowed(const case_of *c, const ll_graph *fused)
{
    double most = 2e-5;
    for (int v = 1; v < fused->n_value; v++) {
        ll_dtype t = fused->values[v].type.dtype;
        if (t == LL_F8_E4M3 || t == LL_F8_E5M2) return 0.15;
    }
    for (int k = 0; k < c->t.n_in; k++)
        if (c->t.in[k].dtype == LL_BF16) most = 3e-2;
    return most;
}

static void same_results(const case_of *c, const ll_graph *fused)
{
    running a = start(c, c->g), b = start(c, fused);
    double limit = allowed(c, fused);
    bool eight = false;
    for (int i = 0; i < c->g->n_result; i++)
        eight |= ll_graph_dtype(c->g, c->g->results[i].value) == LL_F8_E4M3;
    for (int i = 0; i < c->g->n_result; i++) {
        const char *name = c->g->results[i].name;
        ll_tensor x = result(&a, name), y = result(&b, name);
        if (eight && (x.dtype == LL_F8_E4M3 || !x.shape.n)) continue; /* a scale of another kind */
        double d = worst_difference(&x, &y);
        if (d > limit)
            fail_msg("%s, trial \"%s\": %s differs by %g (seed %llu)", c->name, c->t.text, name, d,
                     (unsigned long long)seed);
    }
    stop(&a);
    stop(&b);
}

static int count(const ll_graph *g, const ll_op *op)
{
    int n = 0;
    for (int i = 0; i < g->n_node; i++) n += g->nodes[i].op == op;
    return n;
}

static void fires(const case_of *c, const ll_fusion *f, const ll_op *makes)
{
    ll_graph *fused;
    int fired;
    ll_buf log = {.arena = c->t.arena};
    ok(ll_fuse_one(f, c->g, &log, &fired, &fused), c->name, "fuse");
    if (!fused || !fired)
        fail_msg("%s, trial \"%s\": does not find it:\n%s%s", c->name, c->t.text,
                 ll_print(c->g, c->t.arena), log.text ? log.text : "");
    if (makes && !count(fused, makes))
        fail_msg("%s, trial \"%s\": makes no %s:\n%s", c->name, c->t.text, makes->name,
                 ll_print(fused, c->t.arena));
    same_results(c, fused);
    ll_graph_free(fused);
}

/* ---- the walk ---- */

static case_of open_case(const ll_fusion *f, const char *text)
{
    case_of c = {.name = f->name, .t = {.text = text, .arena = ll_arena_new()}};
    return c;
}

static void close_case(case_of *c)
{
    ll_graph_free(c->g);
    ll_arena_free(c->t.arena);
}

static void test_row(const ll_fusion *f, const ll_fusion_row *row)
{
    ll_fuse_text t;
    ll_arena *a = ll_arena_new();
    int n = 0;
    ok(ll_fuse_read(row, a, &t), f->name, row->replace);
    const ll_op *makes = t.put[0].op;
    for (int i = 0; i < t.n_new; i++)
        if (!t.put[i].op->ref) makes = t.put[i].op;
    const char *const *trials = row->trials[0] ? row->trials : makes->trials;
    for (int i = 0; i < (row->trials[0] ? 4 : 10) && trials[i]; i++) {
        case_of c = open_case(f, trials[i]);
        if (build(&c, row, trials[i])) fires(&c, f, makes), n++;
        close_case(&c);
    }
    if (!n) fail_msg("%s: no trial of \"%s\"", f->name, row->pattern);
    ll_arena_free(a);
}

static void test_graph(const ll_fusion *f, const char *body)
{
    case_of c = open_case(f, body);
    ok(ll_parse(ll_arena_printf(c.t.arena, "graph \"g\" {\n%s}\n", body), &c.g), f->name, body);
    for (int v = 1; v < c.g->n_value; v++)
        if (c.g->values[v].node < 0) c.t.in[c.t.n_in++] = c.g->values[v].type;
    fires(&c, f, NULL);
    close_case(&c);
}

static void test_fusion(void **state)
{
    const ll_fusion *f = (const ll_fusion *)*state;
    assert_true(!f->rows == !!f->rewrite);
    assert_true(f->target);
    for (const ll_fusion_row *row = f->rows; row && row->pattern; row++) test_row(f, row);
    if (f->rewrite && !f->trials[0]) fail_msg("%s has no trials", f->name);
    for (int i = 0; f->rewrite && i < 4 && f->trials[i]; i++) test_graph(f, f->trials[i]);
}

#ifdef __SANITIZE_ADDRESS__
enum { MOST_WORK = 1 << 16 };
#else
enum { MOST_WORK = 1 << 22 };
#endif

/* An op without a reference kernel is made of ops that have one, on all its trials. */
static void test_meanings(void **state)
{
    (void)state;
    for (const ll_op *const *op = ll_ops(); *op; op++)
        for (int i = 0; !(*op)->ref && !(*op)->collective && i < 10 && (*op)->trials[i]; i++) {
            trial t = {.op = *op, .text = (*op)->trials[i], .arena = ll_arena_new()};
            ll_tensor in[LL_MAX_IN], out[LL_MAX_OUT];
            must(ll_parse_trial(*op, t.text, t.arena, &t.n_in, t.in, t.limit, &t.attr), &t, "read");
            must(infer_outputs(&t), &t, "shapes");
            for (int k = 0; k < t.n_in; k++) in[k] = new_input(&t, k, &t.in[k], 0);
            new_outputs(&t, out);
            int64_t work = ll_numel(&t.in[0].shape) * (t.n_in > 1 ? ll_numel(&t.in[1].shape) : 1);
            if (work < MOST_WORK) reference(&t, in, out);
            for (int o = 0; work < MOST_WORK && o < t.n_out; o++)
                for (int64_t e = 0; e < ll_numel(&out[o].shape); e++)
                    assert_true(isfinite(ll_load(out[o].data, out[o].dtype, e)));
            ll_arena_free(t.arena);
        }
}

int main(void)
{
    const char *s = getenv("SEED"), *only = getenv("ONLY");
    if (s) seed = strtoull(s, NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    static struct CMUnitTest tests[64];
    size_t n = 0;
    if (!only) tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_meanings);
    for (const ll_fusion *const *f = ll_fusions(); *f && n < 64; f++)
        if (!only || !strcmp(only, (*f)->name))
            tests[n++] =
                (struct CMUnitTest){(*f)->name, test_fusion, NULL, NULL, (void *)(uintptr_t)*f};
    if (!n) fprintf(stderr, "no fusion is named %s\n", only);
    if (!n) return 1;
    return _cmocka_run_group_tests("fusions", tests, n, NULL, NULL);
}
