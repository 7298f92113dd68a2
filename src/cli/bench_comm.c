/* bench_comm.c: loopline bench comm: its options, and which part of it they ask for. */
#include "cli/bench.h"
#include "base/near.h"
#include "cli/bench_netns.h"
#include "cli/launch.h"

#include <limits.h>
#include <malloc.h>
#include <string.h>

#define OPT(field) offsetof(ll_comm_bench_opts, field)
static const ll_arg args[] = {
    {"--ranks|-n", LL_ARG_COUNT, OPT(ranks), "N", "how many ranks to start", NULL},
    {"--op", LL_ARG_TEXT, OPT(op), "NAME", "the collective (all-reduce; with --list all)", NULL},
    {"--sizes", LL_ARG_TEXT, OPT(sizes), "LIST", "bytes on every rank", "4K,64K,1M,16M,64M"},
    {"--algorithms", LL_ARG_TEXT, OPT(algorithms), "LIST",
     "names, or all; the default leaves out those predicted to be 20 times slower than the best",
     NULL},
    {"--segment", LL_ARG_TEXT, OPT(segment), "BYTES",
     "for algorithms that cut; without it the tuner's", NULL},
    {"--dtype", LL_ARG_TEXT, OPT(dtype), "TYPE", "of the elements", "f32"},
    {"--canonical", LL_ARG_FLAG, OPT(canonical), NULL, "only sums in canonical order", NULL},
    {"--shared", LL_ARG_FLAG, OPT(shared), NULL, "data lies in memory that the ranks share", NULL},
    {"--codec", LL_ARG_WORDS, OPT(codecs), "TEXT",
     "also a compressed all-reduce, such as qsgd:4 (f32, may be given many times)", NULL},
    {"--seconds", LL_ARG_NUMBER, OPT(seconds), "S", "how long to measure", "6"},
    {"--fresh", LL_ARG_FLAG, OPT(fresh), NULL, "tune anew, even if there is a table", NULL},
    {"--table", LL_ARG_TEXT, OPT(table), "FILE", "the tuner's table", NULL},
    {"--json", LL_ARG_FLAG, OPT(json), NULL, "one JSON list on standard output", NULL},
    {"--svg", LL_ARG_TEXT, OPT(svg), "FILE", "draw measured and predicted times", NULL},
    {"--list", LL_ARG_FLAG, OPT(list), NULL, "every algorithm and what it costs on -n ranks", NULL},
    {"--show", LL_ARG_TEXT, OPT(show), "ALGORITHM", "print its steps (with -n, --count)", NULL},
    {"--count", LL_ARG_INT, OPT(count), "C", "elements, with --show and --netns", NULL},
    {"--netns", LL_ARG_FLAG, OPT(netns), NULL,
     "a gradient between hosts in network namespaces of this machine (needs root)", NULL},
    {"--hosts", LL_ARG_INT, OPT(hosts), "N", "with --netns: how many (4)", NULL},
    {"--rate", LL_ARG_TEXT, OPT(rate), "RATE", "with --netns: of each link (1gbit)", NULL},
    {0}};

ll_err ll_comm_bench_coll(const char *name, ll_coll *out)
{
    ll_near near = {.word = name};
    for (int c = 0; c < LL_N_COLL; c++) {
        const char *known = ll_coll_name((ll_coll)c);
        ll_near_try(&near, known);
        *out = (ll_coll)c;
        if (!strcmp(known, name)) return LL_OK;
    }
    FAIL(LL_E_ARG, "there is no collective '%s'%s%s%s", name, near.best ? "; did you mean " : "",
         near.best ? near.best : "", near.best ? "?" : "");
}

ll_err ll_comm_bench_size(const char *text, size_t n_char, size_t *out)
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
          "'%.*s' is not a size: write 512, 64K, 16M or 1G bytes", (int)n_char, text);
    *out = v;
    return LL_OK;
}

ll_err ll_comm_bench_sizes(ll_arena *a, const char *text, size_t **out, int *n)
{
    *out = LL_NEW_ARRAY(a, size_t, strlen(text) + 1);
    *n = 0;
    for (;; text++) {
        size_t m = strcspn(text, ",");
        TRY(ll_comm_bench_size(text, m, &(*out)[(*n)++]));
        text += m;
        if (!*text) return LL_OK;
    }
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

static ll_err start(const ll_comm_bench_opts *o, ll_arena *a)
{
    bool child;
    ll_comm *c;
    ll_comm_bench_report r;
    TRY(ll_comm_bench_check(o, a, &r));
    TRY(ll_cli_launch(o->ranks, &child));
    /* Open MPI allocates with every large reduction; memory that malloc gives back to the system
     * comes again as pages of zeros, one fault each, and would make it look slow. */
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_TOP_PAD, 64 << 20);
    TRY(ll_comm_open(&(ll_comm_opts){.canonical = o->canonical, .table = o->table}, &c));
    return ll_cli_leave(c, work(c, a, &r));
}

ll_err ll_comm_bench_run(const ll_comm_bench_opts *o)
{
    ll_arena *a = ll_arena_new();
    ll_err rc = start(o, a);
    ll_arena_free(a);
    return rc;
}

static ll_err run(const void *given)
{
    const ll_comm_bench_opts *o = (const ll_comm_bench_opts *)given;
    if (o->list) return ll_comm_bench_list(o);
    if (o->show) return ll_comm_bench_show(o);
    CHECK(o->netns || (!o->hosts && !o->rate), LL_E_ARG, "--hosts and --rate go with --netns");
    CHECK(o->hosts <= 250, LL_E_ARG, "--hosts %lld: want 2 to 250", (long long)o->hosts);
    if (o->netns)
        return ll_bench_netns(&(ll_netns_opts){
            .hosts = (int)o->hosts, .rate = o->rate, .count = o->count, .json = o->json});
    return ll_comm_bench_run(o);
}

const ll_command ll_bench_comm_command = {
    "bench comm",
    "times collectives: every algorithm, the tuner's choice and the MPI library's own",
    args,
    sizeof(ll_comm_bench_opts),
    run,
    NULL,
    NULL};
