/* bench_comm.c: loopline bench comm: its options, and what they ask for. */
#include "cli/bench.h"
#include "base/file.h"
#include "cli/common.h"

#include <limits.h>
#include <malloc.h>

#define OPT(field) LL_OPT(ll_comm_bench_opts, field)
static const ll_arg args[] = {
    {"--ranks|-n", LL_ARG_COUNT, offsetof(ll_comm_bench_opts, ranks), "N",
     "number of ranks to start", .most = LL_RANKS_MOST},
    {"--op", OPT(op), "NAME", "collective to benchmark", "all-reduce"},
    {"--sizes", OPT(sizes), "LIST", "message sizes in bytes per rank", "4K,64K,1M,16M,64M"},
    {"--algorithms", OPT(algorithms), "LIST",
     "algorithms by name, or all; if not given, all but those predicted to be 20 times slower than "
     "the best"},
    {"--segment", OPT(segment), "BYTES",
     "segment size of pipelined algorithms; if not given, the tuner's choice"},
    {"--dtype", OPT(dtype), "TYPE", "element type", "f32"},
    {"--canonical", OPT(canonical), NULL, "only algorithms that sum in canonical order"},
    {"--shared", OPT(shared), NULL, "keep data in memory that the ranks share"},
    {"--codec", OPT(codecs), "TEXT",
     "benchmark a compressed f32 all-reduce too, such as qsgd:4; may be given several times"},
    {"--seconds", OPT(seconds), "S", "how long to measure", "6"},
    {"--fresh", OPT(fresh), NULL, "tune again even if there is a tuning table"},
    {"--table", OPT(table), "''|FILE", "the tuner's table; '' = do not keep one"},
    {"--json", OPT(json), NULL, "print one JSON list to standard output"},
    {"--svg", OPT(svg), "FILE.svg", "draw measured and predicted times"},
    {0}};

static ll_err find_coll(const char *name, ll_coll *out)
{
    ll_near near = {.word = name};
    for (*out = 0; *out < LL_N_COLL; ++*out)
        if (ll_near_try(&near, ll_coll_name(*out))) return LL_OK;
    FAIL(LL_E_ARG, "unknown collective '%s'%s (collectives:%s)", name, ll_near_hint(&near),
         near.known);
}

static ll_err read_size(const char *text, size_t n_char, size_t *out)
{
    size_t v = 0, i = 0, most = (size_t)1 << 40;
    for (; i < n_char && text[i] >= '0' && text[i] <= '9' && v < most; i++)
        v = 10 * v + (size_t)(text[i] - '0');
    bool digits = i > 0;
    const char *units = "KMG", *unit = i < n_char ? strchr(units, text[i]) : NULL;
    if (unit) {
        v <<= 10 * (unit - units + 1);
        i++;
    }
    CHECK(digits && i == n_char && v > 0 && v <= most, LL_E_ARG,
          "'%.*s' is not a size, expected bytes such as 512, 64K, 16M or 1G", (int)n_char, text);
    *out = v;
    return LL_OK;
}

/* "4K,64K,1M": whole elements. */
static ll_err read_points(ll_arena *a, const char *text, ll_comm_bench_report *out)
{
    size_t elem = ll_dtype_bytes(out->dtype);
    out->points = LL_NEW_ARRAY(a, ll_comm_bench_point, strlen(text) + 1);
    for (;; text++) {
        size_t n = strcspn(text, ","), bytes;
        TRY(read_size(text, n, &bytes));
        CHECK(bytes >= elem, LL_E_ARG, "a size of %zu bytes is less than one element of %s", bytes,
              ll_dtype_name(out->dtype));
        out->points[out->n_point++].bytes = bytes / elem * elem;
        text += n;
        if (!*text) return LL_OK;
    }
}

static ll_err check_names(ll_arena *arena, ll_coll coll, const char *list)
{
    for (;; list++) {
        const char *word = ll_arena_printf(arena, "%.*s", (int)strcspn(list, ","), list);
        ll_near near = {.word = word};
        for (const ll_algo *const *a = ll_algos(); *a; a++)
            if ((*a)->coll == coll) ll_near_try(&near, (*a)->name);
        CHECK(ll_algo_find(coll, word), LL_E_ARG, "%s has no algorithm '%s' (algorithms:%s)",
              ll_coll_name(coll), word, near.known);
        list += strlen(word);
        if (!*list) return LL_OK;
    }
}

/* What could not be written is told before anything is measured. */
static ll_err check_folder(ll_arena *a, const char *option, const char *path)
{
    CHECK(!path || ll_is_folder(ll_cli_above(a, path)), LL_E_ARG, "%s %s: its folder is not there",
          option, path);
    return LL_OK;
}

/* What is asked for, or what is wrong with it, before any rank is started. In the arena. */
static ll_err check(const ll_comm_bench_opts *o, ll_arena *a, ll_comm_bench_report *out)
{
    *out = (ll_comm_bench_report){.opts = o};
    CHECK(o->seconds > 0, LL_E_ARG, "--seconds is %g, expected more than 0", o->seconds);
    TRY(check_folder(a, "--table", o->table));
    TRY(check_folder(a, "--svg", o->svg));
    TRY(find_coll(o->op, &out->coll));
    CHECK(ll_dtype_find(o->dtype, &out->dtype) && out->dtype != LL_U8, LL_E_ARG,
          "--dtype is '%s', expected f32, bf16, f16, f64 or i32", o->dtype);
    CHECK(!o->codecs.n || (out->coll == LL_COLL_ALLREDUCE && out->dtype == LL_F32), LL_E_ARG,
          "--codec needs --op all-reduce and --dtype f32");
    if (o->segment) TRY(read_size(o->segment, strlen(o->segment), &out->segment_bytes));
    if (o->algorithms && strcmp(o->algorithms, "all"))
        TRY(check_names(a, out->coll, o->algorithms));
    return read_points(a, o->sizes, out);
}

static ll_err work(ll_comm *c, ll_arena *a, ll_comm_bench_report *r)
{
    TRY(ll_comm_bench_measure(c, a, r));
    if (ll_comm_rank(c) != 0) return LL_OK;
    if (r->opts->svg) TRY(ll_comm_bench_svg(r, r->opts->svg));
    if (r->opts->json) return ll_comm_bench_json(r);
    ll_comm_bench_print(r);
    return LL_OK;
}

static ll_err run(const void *given)
{
    const ll_comm_bench_opts *o = (const ll_comm_bench_opts *)given;
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_comm *c;
    ll_comm_bench_report r;
    TRY(check(o, a, &r));
    TRY(ll_cli_launch(o->ranks, NULL));
    /* Open MPI allocates with every large reduction; memory that malloc gives back to the system
     * comes again as pages of zeros, one fault each, and would make it look slow. */
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_TOP_PAD, 64 << 20);
    TRY(ll_comm_open(&(ll_comm_opts){.canonical = o->canonical, .table = o->table}, &c));
    return ll_cli_leave(c, work(c, a, &r));
}

const ll_command ll_bench_comm_command = {
    "bench comm", "time collectives: every algorithm, the tuner's choice and the MPI library's",
    args, sizeof(ll_comm_bench_opts), run};
