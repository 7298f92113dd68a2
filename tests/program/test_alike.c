/* test_alike.c: every rank of a mesh starts the same collectives, bundled alike, in one order,
 * however unevenly it is cut, and however much each lays aside. Models of odd sizes, meshes, ZeRO
 * stages, exact sums, pieces, micro-batches, memory and machines are drawn at random; the programs
 * of all ranks are made, without any ranks, and their starts compared. SEED=7 COUNT=1000 test_alike
 * draws others, and more. */
#include "base/rng.h"
#include "base/text.h"
#include "exec/session.h"
#include "kern/attr.h"
#include "pass/partition.h"
#include "program/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed, drawn;
#ifdef __SANITIZE_ADDRESS__
enum { COUNT = 10 };
#else
enum { COUNT = 24 };
#endif

static int64_t below(int64_t n)
{
    return (int64_t)ll_below_at(seed, 91, drawn++, (uint64_t)n);
}

static int64_t between(int64_t from, int64_t to)
{
    return from + below(to - from + 1);
}

/* ---- what is drawn ---- */

typedef struct size {
    const char *name;
    int64_t from, to;
} size;

static const struct {
    const char *name;
    size sizes[8];
    const char *axes[8];
} models[] = {
    {"mlp",
     {{"image", 1, 5}, {"width", 3, 17}, {"depth", 1, 3}, {"classes", 3, 11}},
     {"data", "tensor", "rows", "cols", "channel", "filter", "depth"}},
    {"lenet5",
     {{"image", 12, 28}, {"channels", 1, 4}, {"classes", 3, 11}},
     {"data", "tensor", "height", "width", "channel", "filter"}},
    {"gpt",
     {{"layers", 1, 2},
      {"heads", 1, 4},
      {"width", 2, 7},
      {"seq", 4, 13},
      {"vocab", 5, 31},
      {"dropout", 0, 300}},
     {"data", "tensor", "sequence"}},
    {"gpt", /* about as large as fusions for GPUs ask for */
     {{"layers", 1, 1}, {"heads", 1, 2}, {"width", 32, 80}, {"seq", 16, 40}, {"vocab", 500, 1100}},
     {"data", "tensor", "sequence"}},
    {"resnet18",
     {{"image", 8, 24}, {"channels", 1, 4}, {"classes", 3, 11}},
     {"data", "tensor", "height", "width", "channel", "filter"}},
};

static ll_graph *draw_model(int which, int64_t batch)
{
    static const char *const optimizers[] = {"sgd", "momentum", "adamw", "lamb", "lars"};
    const ll_model *m = ll_model_find(models[which].name);
    ll_build b = {.batch = batch, .training = true};
    int64_t heads = 1;
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    for (const size *s = models[which].sizes; s->name; s++)
        for (int i = 0; i < LL_MAX_SIZES && b.sizes[i].name; i++) {
            if (strcmp(b.sizes[i].name, s->name)) continue;
            b.sizes[i].value = between(s->from, s->to);
            if (!strcmp(s->name, "heads")) heads = b.sizes[i].value;
            if (!strcmp(s->name, "width")) b.sizes[i].value *= heads; /* of a head */
        }
    ll_graph *g = ll_graph_new(m->name);
    ll_val loss = m->declare(g, &b);
    ll_minimize(g, loss,
                &(ll_optim){.name = optimizers[below(5)],
                            .weight_decay = below(2) * 0.1,
                            .clip = (double)below(2)});
    return g;
}

/* Up to three axes of 2 to 4 ranks. */
static void draw_mesh(int which, char out[64])
{
    int n_axis = 0, n = (int)between(1, 3), len = 0;
    while (n_axis < 8 && models[which].axes[n_axis]) n_axis++;
    int64_t at = below(n_axis);
    for (int i = 0; i < n && at < n_axis; i++, at += between(1, 2))
        len += snprintf(out + len, (size_t)(64 - len), "%s%s=%d", i ? "," : "",
                        models[which].axes[at], (int)between(2, n > 2 ? 2 : 4));
}

/* ---- programs ---- */

static ll_err nothing(const ll_kcall *c)
{
    (void)c;
    return LL_OK;
}

/* Every op has a kernel, so that programs for GPUs can be made where there is none. */
static bool pick_any(const ll_op *op, const ll_kcall *c, ll_solver *out)
{
    (void)op, (void)c;
    *out = (ll_solver){.run = nothing};
    return true;
}

static char *starts_of(const ll_graph *part, const ll_lower_opts *o, const char *what, ll_arena *a)
{
    ll_program *p;
    ll_buf b = {.arena = a};
    if (ll_lower(part, o, &p) != LL_OK)
        fail_msg("%s: %s\n%s", what, ll_error_text(), ll_error_frames());
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        if (x->kernel.run || x->wait || x->aside) continue;
        for (int k = 0; k < x->n_in; k++)
            ll_buf_printf(&b, "%s%s %lld", k ? " and " : "\n", x->op,
                          x->collective == LL_HALO
                              ? (long long)((const ll_halo_attr *)x->attrs[k])->serial
                              : (long long)((const ll_coll_attr *)x->attrs[k])->serial);
    }
    ll_program_free(p);
    ll_buf_puts(&b, "\n");
    return b.text;
}

/* A limit that lies below what the rank takes. */
static size_t draw_memory(const ll_graph *part, const ll_lower_opts *o, const char *what)
{
    ll_program *p;
    if (ll_lower(part, o, &p) != LL_OK)
        fail_msg("%s: %s\n%s", what, ll_error_text(), ll_error_frames());
    size_t bytes = p->bytes;
    ll_program_free(p);
    return bytes * (size_t)between(30, 99) / 100;
}

/* 1: compared; 0: the mesh does not fit the model. */
static int compare_ranks(void)
{
    int which = (int)below((int64_t)(sizeof models / sizeof *models));
    int64_t batch = between(2, 9);
    ll_graph *g = draw_model(which, batch);
    ll_target target = below(2) ? ll_target_cuda : ll_target_cpu;
    target.pick = pick_any;
    ll_lower_opts how = {.target = &target, .n_micro = (int)between(1, 2), .subsets = below(2)};
    if (target.precisions >> LL_PRECISION_fp8 & 1)
        how.precision = (ll_precision)below(LL_PRECISION_fp8);
    how.bucket_bytes = below(2) ? 0 : (size_t)between(1, 2000);
    char mesh[64], what[256], *first = NULL;
    ll_mesh m;
    ll_placement *p;
    draw_mesh(which, mesh);
    if (ll_mesh_parse(mesh, &m) != LL_OK) fail_msg("%s: %s", mesh, ll_error_text());
    ll_place_opts o = {.mesh = &m, .exact = !below(4), .overlap = (ll_overlap)below(3)};
    o.zero = strstr(mesh, "data") ? (int)below(4) : 0;
    o.factors = (ll_factors)below(3);
    if (o.exact) how.precision = LL_PRECISION_f32;
    snprintf(
        what, sizeof what,
        "seed %llu: %s, batch %lld, on %s, zero %d, exact %d, overlap %d, %s %s, %d micro-batches",
        (unsigned long long)seed, g->name, (long long)batch, mesh, o.zero, o.exact, o.overlap,
        target.name, ll_precision_name(how.precision), how.n_micro);
    bool fits = ll_graph_check(g) == LL_OK && ll_place(g, &o, &p) == LL_OK;
    ll_arena *a = ll_arena_new();
    bool limited = !below(3);
    for (int r = 0; fits && r < m.n_rank; r++) {
        ll_graph *part;
        if (ll_partition(p, r, &part) != LL_OK)
            fail_msg("%s: %s\n%s", what, ll_error_text(), ll_error_frames());
        if (limited && r == 0) how.memory = draw_memory(part, &how, what);
        char *starts = starts_of(part, &how, what, a);
        if (!first) first = starts;
        if (strcmp(first, starts)) {
            int line = 1, at = 0;
            for (; first[at] == starts[at]; at++) line += first[at] == '\n';
            fail_msg("%s: ranks 0 and %d part at start %d:\n%.60s\nagainst\n%.60s", what, r, line,
                     first + at, starts + at);
        }
        ll_graph_free(part);
    }
    if (fits) ll_placement_free(p);
    ll_arena_free(a);
    ll_graph_free(g);
    return fits;
}

static void test_alike(void **state)
{
    (void)state;
    const char *from = getenv("SEED"), *count = getenv("COUNT");
    uint64_t start = from ? strtoull(from, NULL, 10) : 1,
             n = count ? strtoull(count, NULL, 10) : COUNT;
    int compared = 0;
    for (seed = start; seed < start + n; seed++) {
        drawn = 0;
        compared += compare_ranks();
    }
    print_message("%d of %d drawn\n", compared, (int)n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alike)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
