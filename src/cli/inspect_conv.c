/* inspect_conv.c: each convolution's way, then time against workspace: with room planned over
 * lifetimes (what train.workspace does), and with the same bytes for each convolution by itself. */
#include "cli/inspect.h"

#include "exec/choose.h"

typedef struct account {
    double seconds; /* of a step's convolutions, as measured */
    size_t scratch; /* the most that one of them asks for */
    size_t bytes;   /* the program's work region and scratch */
    int slow;       /* how many take the plain way, which is not measured */
} account;

static bool is_choice(const ll_program *p, const ll_instr *x)
{
    return x->kernel.run && ll_way_list(p->target, ll_op_find(x->op));
}

static account add_up(const ll_program *p)
{
    account a = {.bytes = p->work_bytes + p->scratch_bytes};
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        if (!is_choice(p, x)) continue;
        a.seconds += x->seconds * ll_program_times(p, i);
        a.slow += !x->seconds && x->flops;
        if (x->scratch > a.scratch) a.scratch = x->scratch;
    }
    return a;
}

static ll_err try_limit(const ll_graph *g, const ll_lower_opts *opts, size_t limit, bool apart,
                        account *out)
{
    ll_lower_opts l = *opts;
    LL_OWN(ll_program) p = NULL;
    l.limited = true;
    l.workspace = limit;
    l.apart = apart;
    TRY(ll_lower(g, &l, &p));
    *out = add_up(p);
    return LL_OK;
}

static void print_layers(const ll_program *p)
{
    printf("%-28s %-10s %-10s %8s %12s %10s\n", "convolution", "op", "algorithm", "images",
           "workspace", "time");
    LL_EACH (const ll_instr, x, p->instrs, p->n_instr) {
        char some[24] = "all";
        if (!is_choice(p, x)) continue;
        if (x->at_once) snprintf(some, sizeof some, "%ld", x->at_once);
        printf("%-28s %-10s %-10s %8s %12s %10s\n", x->name, x->op, x->kernel.name, some,
               LL_BYTES(x->scratch), x->seconds ? LL_TIME(x->seconds) : "not measured");
    }
}

static void print_time(const account *a)
{
    if (a->slow)
        printf(" %12s", "slow");
    else
        printf(" %12s", LL_TIME(a->seconds));
}

static ll_err print_frontier(const ll_graph *g, const ll_lower_opts *l, const account *free)
{
    printf("\n%-12s %12s %12s %12s   time of all convolutions per step\n", "workspace", "planned",
           "each its own", "work memory");
    for (size_t part = 64; part >= 1; part /= 2) {
        size_t limit = free->scratch / part;
        account joint, apart;
        TRY(try_limit(g, l, limit, false, &joint));
        TRY(try_limit(g, l, limit, true, &apart));
        printf("%-12s", LL_BYTES(limit));
        print_time(&joint);
        print_time(&apart);
        printf(" %12s\n", LL_BYTES(joint.bytes));
    }
    return LL_OK;
}

ll_err ll_inspect_conv(const ll_graph *g, const ll_lower_opts *opts)
{
    enum { MORE = 16 << 20 };
    LL_OWN(ll_arena) arena = ll_arena_new();
    LL_OWN(ll_program) first = NULL;
    LL_OWN(ll_program) free = NULL;
    LL_OWN(ll_program) mine = NULL;
    ll_ways ways = {.arena = arena};
    ll_lower_opts l = *opts, any = *opts;
    const char *path;
    l.solver = any.solver = NULL;
    l.ways = any.ways = &ways;
    any.limited = false;
    TRY(ll_lower(g, opts, &first));
    TRY(ll_choose_ways(first, NULL, true, &ways, &path));
    TRY(ll_lower(g, &any, &free));
    TRY(ll_lower(g, &l, &mine));
    print_layers(mine);
    account a = add_up(mine), best = add_up(free), more;
    if (!best.seconds) {
        printf("no convolution has a choice of algorithms\n");
        return LL_OK;
    }
    TRY(print_frontier(g, &l, &best));
    printf("%-12s", "any");
    print_time(&best);
    print_time(&best);
    printf(" %12s\n", LL_BYTES(best.bytes));
    if (l.limited && !a.slow) {
        TRY(try_limit(g, &l, l.workspace + MORE, false, &more));
        printf("\n%s of workspace; another 16 MiB would save %s, %.1f %%\n", LL_BYTES(l.workspace),
               LL_TIME(a.seconds - more.seconds), 100 * (a.seconds - more.seconds) / a.seconds);
    }
    printf("\nalgorithms of train.conv=fast, by measurements in %s\n", path ? path : "no file");
    return LL_OK;
}
