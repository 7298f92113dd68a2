/* test_op.c: every op of the registry against its own declaration. An op that is added is tested
 * here without a line changed. For each trial that the op lists:
 *
 *   kernels    the fast kernel gives what the reference kernel gives, on 1, 2 and 3 threads
 *   f64        so does its f64 form, where there is one; on whole numbers to the bit
 *   in place   a result that lies on an operand, where it may, is what it is elsewhere
 *   gradient   against finite differences in f64 (relative error < 1e-6), and again one order up
 *   micro      gradients accumulated over two micro-steps are the mean of the two
 *   split      each loop that may be cut, in 2 and 3 uneven parts, reassembled, is the whole
 *   same bits  the fast kernel gives the same bits in such parts and on 1, 2 and 3 threads: exact
 *              mode rests on it (sums: of whole numbers in f64; what has an expansion: not)
 *   expand     the expansion gives what the op gives
 *
 * Outputs are poisoned before each call. The seed is printed and can be set: SEED=7 test_op. With
 * ONLY=conv2d, one op, so are the variants of its kernel that ran each trial.
 * ONLY=conv2d tests one op. */
#include "ir/graph_text.h"
#include "op/trial.h"

static const char *only;
#ifdef __SANITIZE_ADDRESS__
enum { ELEMENTS = 4 }; /* of an operand: each moves through the same memory */
#else
enum { ELEMENTS = 10 };
#endif

/* ---- kernels ---- */

static bool has_f64(const trial *t)
{
    for (int i = 0; i < t->n_in; i++)
        if (t->in[i].dtype == LL_F64) return true;
    for (int o = 0; o < t->n_out; o++)
        if (t->out[o].dtype == LL_F64) return true;
    return false;
}

static bool has_narrow(const trial *t)
{
    for (int i = 0; i < t->n_in; i++)
        if (t->in[i].dtype == LL_BF16 || t->in[i].dtype == LL_F16) return true;
    for (int o = 0; o < t->n_out; o++)
        if (t->out[o].dtype == LL_BF16 || t->out[o].dtype == LL_F16) return true;
    return false;
}

static void test_kernels(const trial *t)
{
    ll_tensor in[LL_MAX_IN], want[LL_MAX_OUT], got[LL_MAX_OUT];
    if (has_f64(t) && !t->op->f64) return;
    for (int i = 0; i < t->n_in; i++) in[i] = new_input(t, i, &t->in[i], 0);
    new_outputs(t, want);
    call(t, NULL, t->attr, 1, in, want);
    for (const ll_solver *v = t->op->cpu; v->run; v++) /* from each variant on: all that fit */
        for (int threads = 1; threads <= 3; threads++) {
            char what[64];
            snprintf(what, sizeof what, "fast kernel %s, %d threads", v->name ? v->name : "",
                     threads);
            new_outputs(t, got);
            const char *ran = call(t, v, t->attr, threads, in, got);
            if (ran) check_same(t, what, want, got);
            if (only && ran && *ran && threads == 1) printf("by %s: %s\n", ran, t->text);
        }
}

/* Result 0 on an operand, where the op says that it may lie there. */
static void test_in_place(const trial *t)
{
    ll_tensor in[LL_MAX_IN], want[LL_MAX_OUT], got[LL_MAX_OUT];
    if (has_f64(t) && !t->op->f64) return;
    for (int i = 0; i < t->n_in; i++) in[i] = new_input(t, i, &t->in[i], 0);
    new_outputs(t, want);
    call(t, NULL, t->attr, 1, in, want);
    for (int k = 0; k < t->n_in; k++) {
        if (!t->op->elementwise && !(t->op->in_place >> k & 1)) continue;
        if (bytes_of(&t->in[k]) != bytes_of(&t->out[0])) continue;
        for (int threads = 0; threads <= 2; threads++) { /* 0: the reference kernel */
            char what[48];
            snprintf(what, sizeof what, "in place of operand %d, %d threads", k, threads);
            for (int i = 0; i < t->n_in; i++) in[i] = new_input(t, i, &t->in[i], 0);
            new_outputs(t, got);
            got[0].data = in[k].data;
            call(t, threads ? t->op->cpu : NULL, t->attr, threads, in, got);
            check_same(t, what, want, got);
        }
    }
}

/* ---- f64 ---- */

/* Whether all results are whole numbers that every order of summation gives. */
static bool all_whole(const trial *t, const ll_tensor *out)
{
    for (int o = 0; o < t->n_out; o++)
        for (int64_t i = 0; i < ll_numel(&out[o].shape); i++) {
            double v = ll_load(out[o].data, out[o].dtype, i);
            if (!(fabs(v) < 0x1p53 && v == rint(v))) return false;
        }
    return true;
}

/* False: a fused op that is made of f32 alone. */
static bool widened(const trial *t, trial *out)
{
    trial w = *t;
    char *attr = (char *)ll_arena_copy(t->arena, t->attr, t->op->attr_size);
    w.attr = attr;
    for (int i = 0; i < t->n_in; i++)
        if (t->in[i].dtype == LL_F32) w.in[i].dtype = LL_F64;
    for (const ll_attr_field *f = t->op->attrs; f && f->name; f++) {
        ll_dtype *type = (ll_dtype *)(void *)(attr + f->offset);
        if (f->kind == LL_A_DTYPE && *type == LL_F32) *type = LL_F64;
    }
    ll_err rc = infer_outputs(&w);
    if (t->op->ref) must(rc, &w, "shapes");
    *out = w;
    return rc == LL_OK;
}

static void test_f64(const trial *narrow)
{
    ll_tensor in[LL_MAX_IN], want[LL_MAX_OUT], got[LL_MAX_OUT];
    if (!narrow->op->f64 || has_narrow(narrow)) return;
    trial t;
    if (!widened(narrow, &t)) return;
    test_kernels(&t);
    test_in_place(&t);
    whole_numbers = true;
    for (int i = 0; i < t.n_in; i++) in[i] = new_input(&t, i, &t.in[i], 0);
    whole_numbers = false;
    new_outputs(&t, want);
    call(&t, NULL, t.attr, 1, in, want);
    if (!all_whole(&t, want)) return;
    for (int threads = 1; threads <= 3; threads++) {
        new_outputs(&t, got);
        call(&t, t.op->cpu, t.attr, threads, in, got);
        for (int o = 0; o < t.n_out; o++)
            if (worst_difference(&want[o], &got[o]) > 0)
                fail_msg("%s, trial \"%s\" in f64, %d threads: whole numbers differ", t.op->name,
                         t.text, threads);
    }
}

/* ---- gradients ---- */

typedef struct check_graph { /* y = sum over results of sum(result * weight); its gradients */
    ll_graph *g;
    ll_val in[LL_MAX_IN], y, dx[LL_MAX_IN];
    int n_x, x_of[LL_MAX_IN]; /* which operands are differentiated */
} check_graph;

/* sum(v * fixed random numbers), a scalar */
static ll_val weighed(ll_graph *g, ll_val v, const char *name)
{
    ll_type t = ll_value_of(g, v)->type;
    ll_val w = ll_input(g, name, LL_STATE, t, (ll_init){LL_NORMAL, 1});
    return ll_sum_all(g, ll_mul(g, v, w));
}

static ll_val all_weighed(ll_graph *g, const ll_val *v, int n, const char *prefix)
{
    ll_val sum = {0};
    for (int i = 0; i < n; i++) {
        if (!v[i].id || !ll_dtype_is_float(ll_graph_dtype(g, v[i]))) continue;
        char name[32];
        snprintf(name, sizeof name, "%s%d", prefix, i);
        ll_val s = weighed(g, v[i], name);
        sum = sum.id ? ll_add(g, sum, s) : s;
    }
    return sum;
}

static bool build_gradient(const trial *t, int order, ll_kind kind, check_graph *c)
{
    char name[16];
    ll_graph *g = ll_graph_new("check");
    ll_val out[LL_MAX_OUT];
    *c = (check_graph){.g = g};
    ll_val x[LL_MAX_IN];
    for (int i = 0; i < t->n_in; i++) {
        snprintf(name, sizeof name, "in%d", i);
        c->in[i] = ll_input(g, name, kind, t->in[i], (ll_init){0});
        if (ll_dtype_is_float(t->in[i].dtype)) x[c->n_x] = c->in[i], c->x_of[c->n_x++] = i;
    }
    must(ll_emit_all(g, t->op, t->attr, c->in, t->n_in, out), t, "gradient graph");
    c->y = all_weighed(g, out, t->n_out, "w");
    for (int k = 1; c->y.id && c->n_x && k <= order; k++) {
        ll_grad(g, c->y, x, c->n_x, c->dx);
        must(ll_graph_check(g), t, "gradient");
        snprintf(name, sizeof name, "u%d_", k);
        if (k < order) c->y = all_weighed(g, c->dx, c->n_x, name);
    }
    bool any = c->y.id && c->n_x;
    if (!any) ll_graph_free(g);
    return any;
}

static void set_inputs(const trial *t, const ll_program *p, ll_exec *e, int micro, uint64_t salt)
{
    for (int i = 0; i < t->n_in; i++) {
        char name[16];
        snprintf(name, sizeof name, "in%d", i);
        int s = ll_program_input(p, name);
        int64_t n = ll_numel(&t->in[i].shape);
        for (int64_t k = 0; k < n; k++)
            ll_store(ll_exec_data(e, s, micro), p->slots[s].type.dtype, k, draw(t, i, k, salt));
    }
}

static void open_on_ref(const trial *t, ll_graph *g, ll_dtype dtype, int n_micro, ll_program **p,
                        ll_exec **e)
{
    ll_graph *wide;
    must(ll_retype(g, dtype, false, &wide), t, "retype");
    must(ll_lower(wide, &(ll_lower_opts){.target = &ll_target_ref, .n_micro = n_micro}, p), t,
         "lower");
    must(ll_exec_open(*p, &(ll_exec_opts){.seed = seed, .poison = true}, e), t, "open");
    ll_graph_free(wide);
}

static double value_at(const trial *t, const ll_program *p, ll_exec *e)
{
    must(ll_exec_run(e, LL_MICRO, 3), t, "run");
    return ll_load(ll_exec_data(e, ll_program_result(p, "y"), 0), LL_F64, 0);
}

/* Fourth-order central difference of y by one element. */
static double difference(const trial *t, const ll_program *p, ll_exec *e, double *element)
{
    const double h = 1e-4, at = *element;
    double f[4];
    static const double steps[4] = {-2, -1, 1, 2};
    for (int i = 0; i < 4; i++) {
        *element = at + steps[i] * h;
        f[i] = value_at(t, p, e);
    }
    *element = at;
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
}

/* Differences are of a program that has y alone: gradients take most of the other's time. */
static void test_gradient(const trial *t, int order)
{
    check_graph c;
    ll_program *p, *of_y;
    ll_exec *e, *moved;
    if (t->op->no_grad || has_narrow(t) || !build_gradient(t, order, LL_STATE, &c)) return;
    ll_graph_result(c.g, "y", c.y);
    open_on_ref(t, c.g, LL_F64, 1, &of_y, &moved);
    for (int i = 0; i < c.n_x; i++) {
        char name[16];
        snprintf(name, sizeof name, "dx%d", i);
        ll_graph_result(c.g, name, c.dx[i]);
    }
    open_on_ref(t, c.g, LL_F64, 1, &p, &e);
    set_inputs(t, p, e, 0, 0);
    set_inputs(t, of_y, moved, 0, 0);
    double y = value_at(t, p, e);
    for (int i = 0; i < c.n_x; i++) {
        char name[16];
        snprintf(name, sizeof name, "dx%d", i);
        int slot = ll_program_result(p, name);
        int64_t n = ll_numel(&p->slots[slot].type.shape);
        const double *d = (const double *)ll_exec_data(e, slot, 0);
        snprintf(name, sizeof name, "in%d", c.x_of[i]);
        double *x = (double *)ll_exec_data(moved, ll_program_input(of_y, name), 0), scale = 1e-2;
        for (int64_t k = 0; k < n; k++) scale = fmax(scale, fabs(d[k]));
        scale = fmax(scale, 1e-4 * fabs(y));
        /* A sample of all but small operands, from a random start. */
        int64_t most = n > 1000 ? 5 : ELEMENTS, stride = n > most ? n / most : 1;
        int64_t from = n > most ? (int64_t)ll_below_at(seed, 1, (uint64_t)i, (uint64_t)stride) : 0;
        for (int64_t k = from; k < n; k += stride) {
            double want = difference(t, of_y, moved, &x[k]);
            if (!(fabs(want - d[k]) / scale < 1e-6))
                fail_msg("%s, trial \"%s\": gradient of order %d by operand %d, element %lld: "
                         "%.12g, finite difference %.12g (seed %llu)",
                         t->op->name, t->text, order, c.x_of[i], (long long)k, d[k], want,
                         (unsigned long long)seed);
        }
    }
    ll_exec_close(moved);
    ll_program_free(of_y);
    ll_exec_close(e);
    ll_program_free(p);
    ll_graph_free(c.g);
}

/* Gradients of two micro-steps with different data, accumulated, are the mean of the two. */
static void test_micro(const trial *t)
{
    check_graph c;
    ll_program *p;
    ll_exec *e;
    double *sum[LL_MAX_IN] = {NULL};
    if (t->op->no_grad || t->op->random || has_narrow(t) || !build_gradient(t, 1, LL_BATCH, &c))
        return;
    for (int i = 0; i < c.n_x; i++) {
        char name[16];
        snprintf(name, sizeof name, "dx%d", i);
        ll_graph_result(c.g, name, ll_accum(c.g, c.dx[i]));
    }
    for (int run = 0; run < 3; run++) { /* first data, second data, both as micro-batches */
        open_on_ref(t, c.g, LL_F64, run == 2 ? 2 : 1, &p, &e);
        set_inputs(t, p, e, 0, run == 1);
        if (run == 2) set_inputs(t, p, e, 1, 1);
        must(ll_exec_run(e, LL_MICRO, 3), t, "micro-steps");
        must(ll_exec_run(e, LL_REPORT, 3), t, "micro-steps");
        for (int i = 0; i < c.n_x; i++) {
            int slot = ll_program_result(p, c.g->results[i].name);
            int64_t n = ll_numel(&p->slots[slot].type.shape);
            double *d = (double *)ll_exec_data(e, slot, 0);
            if (!sum[i]) sum[i] = LL_NEW_ARRAY(t->arena, double, n + 1);
            for (int64_t k = 0; k < n && run < 2; k++) sum[i][k] += d[k] / 2;
            for (int64_t k = 0; k < n && run == 2; k++)
                if (!(fabs(sum[i][k] - d[k]) <= 1e-9 * (1 + fabs(d[k]))))
                    fail_msg("%s, trial \"%s\": accumulated gradient by operand %d, element %lld: "
                             "%g, want %g",
                             t->op->name, t->text, c.x_of[i], (long long)k, d[k], sum[i][k]);
        }
        ll_exec_close(e);
        ll_program_free(p);
    }
    ll_graph_free(c.g);
}

/* ---- splits ---- */

/* Copies [from,to) of dimension dim between a whole tensor and a part of it; combines into it. */
typedef enum { CUT, PASTE, ADD, MAX } copy_mode;
static void copy_part(const ll_tensor *whole, const ll_tensor *part, int dim, int64_t from,
                      copy_mode mode)
{
    int64_t inner = 1, n = ll_numel(&part->shape), len = dim < 0 ? 1 : part->shape.d[dim];
    int64_t full = dim < 0 ? 1 : whole->shape.d[dim];
    for (int d = dim + 1; dim >= 0 && d < part->shape.n; d++) inner *= part->shape.d[d];
    for (int64_t i = 0; i < n; i++) {
        int64_t j = i;
        if (dim >= 0) {
            int64_t in = i % inner, mid = i / inner % len, outer = i / inner / len;
            j = (outer * full + mid + from) * inner + in;
        }
        double p = ll_load(part->data, part->dtype, i), w = ll_load(whole->data, whole->dtype, j);
        if (mode == CUT)
            ll_store(part->data, part->dtype, i, w);
        else
            ll_store(whole->data, whole->dtype, j,
                     mode == ADD   ? w + p
                     : mode == MAX ? fmax(w, p)
                                   : p);
    }
}

/* Runs one part of a cut loop and puts its results into place. threads 0: the reference kernel. */
static void run_part(const trial *t, int threads, const ll_loops *l, int loop, ll_range r,
                     const ll_tensor *in, const ll_tensor *sum)
{
    ll_tensor pin[LL_MAX_IN], pout[LL_MAX_OUT];
    ll_part part = {.attr = ll_arena_copy(t->arena, t->attr, t->op->attr_size)};
    for (int i = 0; i < t->n_in; i++) part.in[i] = r;
    if (t->op->split) must(t->op->split(t->attr, l, loop, r, t->in, &part), t, "split");
    for (int i = 0; i < t->n_in; i++) {
        int d = ll_dim_of(l->in[i], loop);
        ll_type type = t->in[i];
        if (d >= 0) type.shape.d[d] = part.in[i].to - part.in[i].from;
        pin[i] = (ll_tensor){new_data(t, &type), type.dtype, type.shape};
        copy_part(&in[i], &pin[i], d, d >= 0 ? part.in[i].from : 0, CUT);
    }
    for (int o = 0; o < t->n_out; o++) {
        int d = ll_dim_of(l->out[o], loop);
        ll_type type = t->out[o];
        if (d >= 0) type.shape.d[d] = r.to - r.from;
        pout[o] = (ll_tensor){new_data(t, &type), type.dtype, type.shape};
    }
    call(t, threads ? t->op->cpu : NULL, part.attr, threads, pin, pout);
    for (int o = 0; o < t->n_out; o++) {
        int d = ll_dim_of(l->out[o], loop);
        copy_mode m = d >= 0 ? PASTE : l->combine[loop] == LL_MAX ? MAX : ADD;
        copy_part(&sum[o], &pout[o], d, d >= 0 ? r.from : 0, m);
    }
}

/* All parts of a cut loop, put together. */
static void run_parts(const trial *t, int threads, const ll_loops *l, int k, int parts,
                      const ll_tensor *in, ll_tensor *sum)
{
    new_outputs(t, sum);
    for (int o = 0; o < t->n_out; o++)
        for (int64_t i = 0; i < ll_numel(&sum[o].shape); i++)
            ll_store(sum[o].data, sum[o].dtype, i, l->combine[k] == LL_MAX ? -1e30 : 0);
    for (int i = 0; i < parts; i++)
        run_part(t, threads, l, k,
                 (ll_range){i * l->extent[k] / parts, (i + 1) * l->extent[k] / parts}, in, sum);
}

/* The worst difference of parts put together, over the tolerance; what: of which loop. */
static double worst_split(const trial *t, char what[32])
{
    ll_loops l;
    ll_tensor in[LL_MAX_IN], want[LL_MAX_OUT], sum[LL_MAX_OUT];
    double worst = 0;
    if (t->op->random) return 0; /* parts draw by global index, which the executor provides */
    must(ll_loops_of(t->op, t->attr, t->n_in, t->in, t->n_out, t->out, &l), t, "loops");
    for (int i = 0; i < t->n_in; i++) in[i] = new_input(t, i, &t->in[i], 0);
    new_outputs(t, want);
    call(t, NULL, t->attr, 1, in, want);
    for (int k = 0; k < l.n; k++)
        for (int parts = 2; parts <= 3 && l.combine[k] != LL_WHOLE; parts++) {
            if (l.extent[k] < parts) continue;
            run_parts(t, 0, &l, k, parts, in, sum);
            for (int o = 0; o < t->n_out; o++) {
                double bar = tolerance(want[o].dtype), d = worst_difference(&want[o], &sum[o]);
                if (d <= bar || d / (bar + 1e-30) <= worst) continue;
                worst = d / (bar + 1e-30);
                snprintf(what, 32, "loop %c in %d parts", l.letter[k], parts);
            }
        }
    return worst;
}

static void test_split(const trial *t)
{
    char what[32];
    double d = worst_split(t, what);
    if (d > 1)
        fail_msg("%s, trial \"%s\", %s: differs by %g times the tolerance (seed %llu)", t->op->name,
                 t->text, what, d, (unsigned long long)seed);
}

/* Rules that are wrong must not pass: softmax and a layer norm whose rows, over which they sum, are
 * declared free; a sum declared a maximum. */
static void test_wrong_rules(void **state)
{
    (void)state;
    static const char *const names[] = {"softmax", "layernorm", "sum"};
    for (int i = 0; i < 3; i++) {
        ll_op wrong = *ll_op_find(names[i]);
        trial t = {.op = &wrong, .text = wrong.trials[0], .arena = ll_arena_new()};
        char what[32];
        wrong.whole = NULL;
        if (wrong.sum) wrong.max = wrong.sum, wrong.sum = NULL;
        must(ll_parse_trial(&wrong, t.text, t.arena, &t.n_in, t.in, t.limit, &t.attr), &t, "parse");
        must(infer_outputs(&t), &t, "shapes");
        if (!(worst_split(&t, what) > 1)) fail_msg("a wrong rule of %s passes", names[i]);
        ll_arena_free(t.arena);
    }
}

/* ---- the same bits ---- */

static void check_bits(const trial *t, const char *what, const ll_tensor *want,
                       const ll_tensor *got)
{
    for (int o = 0; o < t->n_out; o++) {
        size_t size = ll_dtype_bytes(want[o].dtype);
        const char *a = (const char *)want[o].data, *b = (const char *)got[o].data;
        for (int64_t i = 0; i < ll_numel(&want[o].shape); i++, a += size, b += size)
            if (memcmp(a, b, size))
                fail_msg("%s, trial \"%s\", %s: element %lld of result %d is %.9g, not %.9g (seed "
                         "%llu)",
                         t->op->name, t->text, what, (long long)i, o, ll_load(b, want[o].dtype, 0),
                         ll_load(a, want[o].dtype, 0), (unsigned long long)seed);
    }
}

/* Whole on one thread against each loop in parts, and on more threads. */
static void hold_bits(const trial *t)
{
    ll_loops l;
    ll_tensor in[LL_MAX_IN], want[LL_MAX_OUT], got[LL_MAX_OUT];
    char what[64];
    must(ll_loops_of(t->op, t->attr, t->n_in, t->in, t->n_out, t->out, &l), t, "loops");
    for (int i = 0; i < t->n_in; i++) in[i] = new_input(t, i, &t->in[i], 0);
    new_outputs(t, want);
    call(t, t->op->cpu, t->attr, 1, in, want);
    for (int threads = 1; threads <= 3; threads++) {
        new_outputs(t, got);
        call(t, t->op->cpu, t->attr, threads, in, got);
        snprintf(what, sizeof what, "%d threads", threads);
        check_bits(t, what, want, got);
        for (int k = 0; k < l.n; k++)
            for (int parts = 2; parts <= 3 && l.combine[k] != LL_WHOLE; parts++) {
                if (l.extent[k] < parts) continue;
                run_parts(t, threads, &l, k, parts, in, got);
                snprintf(what, sizeof what, "loop %c in %d parts on %d threads", l.letter[k], parts,
                         threads);
                check_bits(t, what, want, got);
            }
    }
}

static void test_same_bits(const trial *t, bool first)
{
    if (t->op->expand || has_narrow(t)) return;
    if (t->op->sum && !t->op->picks) {
        trial w;
        if (!t->op->f64 || !widened(t, &w)) return;
        whole_numbers = true;
        hold_bits(&w);
        whole_numbers = false;
        return;
    }
    hold_bits(t);
    if (!first || !t->op->elementwise) return;
    trial large = *t; /* vectors and what is left of them, more threads than one */
    for (int i = 0; i < t->n_in; i++) large.in[i].shape = LL_SHAPE(3, 7001);
    must(infer_outputs(&large), &large, "shapes");
    wild = true;
    hold_bits(&large);
    wild = false;
}

/* ---- expansion ---- */

static void test_expand(const trial *t)
{
    if (!t->op->expand || has_narrow(t)) return;
    ll_graph *g = ll_graph_new("expand");
    ll_val in[LL_MAX_IN], a[LL_MAX_OUT], b[LL_MAX_OUT] = {{0}};
    char name[16];
    for (int i = 0; i < t->n_in; i++) {
        snprintf(name, sizeof name, "in%d", i);
        in[i] = ll_input(g, name, LL_STATE, t->in[i], (ll_init){0});
    }
    must(ll_emit_all(g, t->op, t->attr, in, t->n_in, a), t, "op");
    t->op->expand(g, t->attr, in, t->n_in, b);
    must(ll_graph_check(g), t, "expand");
    for (int o = 0; o < t->n_out; o++) {
        snprintf(name, sizeof name, "a%d", o);
        ll_graph_result(g, name, a[o]);
        snprintf(name, sizeof name, "b%d", o);
        if (b[o].id) ll_graph_result(g, name, b[o]);
    }
    ll_program *p;
    ll_exec *e;
    open_on_ref(t, g, LL_F64, 1, &p, &e);
    set_inputs(t, p, e, 0, 0);
    must(ll_exec_run(e, LL_MICRO, 3), t, "run");
    for (int o = 0; o < t->n_out; o++) {
        snprintf(name, sizeof name, "a%d", o);
        int x = ll_program_result(p, name);
        snprintf(name, sizeof name, "b%d", o);
        int y = ll_program_result(p, name);
        if (y < 0) fail_msg("%s: its expansion does not give result %d", t->op->name, o);
        ll_tensor u = {ll_exec_data(e, x, 0), p->slots[x].type.dtype, p->slots[x].type.shape};
        ll_tensor v = {ll_exec_data(e, y, 0), p->slots[y].type.dtype, p->slots[y].type.shape};
        double d = worst_difference(&u, &v);
        if (d > 1e-9)
            fail_msg("%s, trial \"%s\": expansion differs by %g", t->op->name, t->text, d);
    }
    ll_exec_close(e);
    ll_program_free(p);
    ll_graph_free(g);
}

/* ---- the walk ---- */

static bool empty(const trial *t)
{
    for (int i = 0; i < t->n_in; i++)
        if (!ll_numel(&t->in[i].shape)) return true;
    return false;
}

static void test_trial(const ll_op *op, const char *text, bool first)
{
    trial t = {.op = op, .text = text, .arena = ll_arena_new()};
    must(ll_parse_trial(op, text, t.arena, &t.n_in, t.in, t.limit, &t.attr), &t, "parse");
    must(infer_outputs(&t), &t, "shapes");
    test_kernels(&t);
    test_in_place(&t);
    test_f64(&t);
    test_split(&t);
    test_same_bits(&t, first);
    if (!empty(&t)) {
        if (!rounds(&t) && !op->straight) test_gradient(&t, 1);
        test_micro(&t);
        test_expand(&t);
        if (first) test_gradient(&t, 2);
    }
    ll_arena_free(t.arena);
}

static void test_op(void **state)
{
    const ll_op *op = (const ll_op *)*state;
    if (ll_op_find(op->name) != op) fail_msg("two ops are named %s", op->name);
    if (!op->cpu) return; /* made for GPUs alone: test_op_gpu.c */
    if (!op->grad && !op->expand && !op->no_grad && !op->straight)
        fail_msg("%s has neither grad nor expand, and is neither no_grad nor straight", op->name);
    if (!op->dims && !op->loops && !op->no_grad) fail_msg("%s declares no loop dims", op->name);
    if (!op->trials[0]) fail_msg("%s has no trials", op->name);
    for (size_t i = 0; i < sizeof op->trials / sizeof *op->trials && op->trials[i]; i++)
        test_trial(op, op->trials[i], i == 0);
}

int main(void)
{
    const char *s = getenv("SEED");
    if (s) seed = strtoull(s, NULL, 10);
    only = getenv("ONLY");
    printf("seed %llu\n", (unsigned long long)seed);
    static struct CMUnitTest tests[256];
    size_t n = 0;
    if (!only) tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_wrong_rules);
    for (const ll_op *const *op = ll_ops(); *op && n < 256; op++)
        if (!(*op)->collective && (!only || !strcmp(only, (*op)->name))) /* those: tests/pass */
            tests[n++] =
                (struct CMUnitTest){(*op)->name, test_op, NULL, NULL, (void *)(uintptr_t)*op};
    if (!n) fprintf(stderr, "no op is named %s\n", only);
    if (!n) return 1;
    return _cmocka_run_group_tests("op", tests, n, NULL, NULL);
}
