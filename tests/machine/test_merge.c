/* Launches of several instructions: whatever moves, memory ends as it does in the program's order;
 * those in branches: whatever touches the same bytes keeps its order.
 * Random programs on a few bytes that values share; SEED=7 draws others. */
#include "machine/merge.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { BYTES = 160, MOST = 60, WIDTH = 4 };

static uint64_t seed = 1;
static unsigned char memory[BYTES];

static bool alike(const ll_kcall *a, const ll_kcall *b)
{
    return a->threads == b->threads; /* which here is the kind */
}

static const ll_many many = {.alike = alike};

static ll_err nothing(const ll_kcall *c)
{
    (void)c;
    return LL_OK;
}

typedef struct program {
    ll_bound b[MOST];
    ll_instr instr[MOST];
    ll_tensor in[MOST][2], out[MOST][1];
    int n;
} program;

static uint64_t drawn;
static int draw(int below)
{
    return (int)ll_below_at(seed, 9, drawn++, (uint64_t)below);
}

static ll_tensor place(void)
{
    ll_shape s = {.n = 1, .d = {1 + draw(WIDTH)}};
    return (ll_tensor){memory + draw(BYTES - WIDTH), LL_U8, s};
}

static void make(program *p)
{
    *p = (program){.n = 1 + draw(MOST)};
    for (int i = 0; i < p->n; i++) {
        ll_bound *b = &p->b[i];
        p->in[i][0] = place();
        p->in[i][1] = place();
        p->out[i][0] = place();
        bool talks = draw(20) == 0;
        p->instr[i] = (ll_instr){.kernel.many = !talks && draw(2) ? &many : NULL,
                                 .kernel.run = talks ? NULL : nothing,
                                 .last = draw(10) == 0};
        b->instr = &p->instr[i];
        b->moves = draw(10) == 0;
        b->call =
            (ll_kcall){.threads = draw(3), .n_in = 2, .n_out = 1, .in = p->in[i], .out = p->out[i]};
    }
}

/* What instruction i writes at byte k: a word about all it reads. */
static unsigned char result(const program *p, int i, int64_t k)
{
    unsigned h = (unsigned)(i * 31 + (int)k);
    for (int o = 0; o < 2; o++)
        for (int64_t j = 0; j < p->in[i][o].shape.d[0]; j++)
            h = h * 37 + ((const unsigned char *)p->in[i][o].data)[j];
    return (unsigned char)(h ^ h >> 8);
}

/* All of a launch read before any of them writes. */
static void run(const program *p, const int *which, int n)
{
    unsigned char made[MOST][WIDTH];
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < p->out[which[i]][0].shape.d[0]; k++)
            made[i][k] = result(p, which[i], k);
    for (int i = 0; i < n; i++)
        memcpy(p->out[which[i]][0].data, made[i], (size_t)p->out[which[i]][0].shape.d[0]);
}

static void reset(void)
{
    for (int i = 0; i < BYTES; i++) memory[i] = (unsigned char)(i * 7);
}

static int joined(program *p)
{
    ll_arena *a = ll_arena_new();
    ll_launch *l = LL_NEW_ARRAY(a, ll_launch, p->n);
    unsigned char want[BYTES];
    int n = ll_merge(p->b, 0, p->n, a, l), seen[MOST] = {0}, total = 0, joins = 0, barrier = -1;
    reset();
    for (int i = 0; i < p->n; i++) run(p, &i, 1);
    memcpy(want, memory, sizeof want);
    reset();
    for (int i = 0; i < n; i++) {
        run(p, l[i].instr, l[i].n);
        for (int k = 0; k < l[i].n; k++) {
            int at = l[i].instr[k];
            assert_int_equal(seen[at]++, 0);
            assert_true(at > barrier);
            assert_ptr_equal(l[i].calls[k], &p->b[at].call);
            if (l[i].n == 1) continue;
            assert_ptr_equal(p->instr[at].kernel.many, &many);
            assert_false(p->b[at].moves);
            assert_int_equal(p->b[at].call.threads, l[i].calls[0]->threads);
            assert_int_equal(p->instr[at].last, p->instr[l[i].instr[0]].last);
        }
        if (!p->instr[l[i].instr[0]].kernel.run) barrier = l[i].instr[0];
        total += l[i].n;
        joins += l[i].n - 1;
    }
    assert_int_equal(total, p->n);
    if (memcmp(want, memory, BYTES))
        fail_msg("memory differs (seed %llu)", (unsigned long long)seed);
    ll_arena_free(a);
    return joins;
}

static void memory_ends_the_same(void **state)
{
    (void)state;
    static program p;
    int joins = 0;
    for (int i = 0; i < 3000; i++) {
        make(&p);
        joins += joined(&p);
    }
    print_message("%d instructions joined others\n", joins);
    assert_true(joins > 3000);
}

/* a's and b's work apart, between it what needs a's: one launch, before or after. */
static void moves_both_ways(void **state)
{
    (void)state;
    static program p;
    for (int down = 0; down < 2; down++) {
        p = (program){.n = 3};
        static const int at[2][3][2] = {{{0, 8}, {8, 16}, {24, 32}}, {{0, 8}, {40, 24}, {24, 32}}};
        for (int i = 0; i < 3; i++) {
            p.in[i][0] = p.in[i][1] = (ll_tensor){memory + at[down][i][0], LL_U8, LL_SHAPE(4)};
            p.out[i][0] = (ll_tensor){memory + at[down][i][1], LL_U8, LL_SHAPE(4)};
            p.instr[i] = (ll_instr){.kernel = {.many = i == 1 ? NULL : &many, .run = nothing}};
            p.b[i] = (ll_bound){.instr = &p.instr[i],
                                .call = {.n_in = 2, .n_out = 1, .in = p.in[i], .out = p.out[i]}};
        }
        ll_arena *a = ll_arena_new();
        ll_launch l[3];
        assert_int_equal(ll_merge(p.b, 0, 3, a, l), 2);
        assert_int_equal(l[down].n, 2);
        ll_arena_free(a);
        assert_int_equal(joined(&p), 1);
    }
}

/* Bytes that a launch reads (1) and writes (2), scratch among the latter. */
static void touched(const program *p, const ll_launch *l, unsigned char marks[BYTES])
{
    memset(marks, 0, BYTES);
    for (int k = 0; k < l->n; k++) {
        int i = l->instr[k];
        const ll_tensor scratch = {p->b[i].call.scratch, LL_U8,
                                   LL_SHAPE((int64_t)p->instr[i].scratch)};
        const ll_tensor *all[] = {&p->in[i][0], &p->in[i][1], &p->out[i][0], &scratch};
        for (int t = 0; t < 4; t++)
            for (int64_t j = 0; j < all[t]->shape.d[0]; j++)
                marks[(unsigned char *)all[t]->data - memory + j] |= t < 2 ? 1 : 2;
    }
}

static bool conflict(const unsigned char a[BYTES], const unsigned char b[BYTES])
{
    for (int i = 0; i < BYTES; i++)
        if ((a[i] && b[i] & 2) || (a[i] & 2 && b[i])) return true;
    return false;
}

/* How many pairs of launches are in no order. */
static int apart(program *p)
{
    ll_arena *a = ll_arena_new();
    ll_launch *l = LL_NEW_ARRAY(a, ll_launch, p->n);
    static unsigned char marks[MOST][BYTES];
    static bool before[MOST][MOST];
    int n = ll_merge(p->b, 0, p->n, a, l), free = 0, tail[LL_BRANCHES] = {0};
    memset(before, 0, sizeof before);
    ll_branches(p->b, l, 0, n);
    for (int i = 0; i < n; i++) {
        touched(p, &l[i], marks[i]);
        for (int t = 0; t < LL_BRANCHES; t++) {
            int last = t == l[i].branch ? tail[t] : l[i].after[t];
            if (!last) continue;
            assert_true(last <= i);
            assert_int_equal(l[last - 1].branch, t);
            assert_true(t == l[i].branch || l[last - 1].awaited);
            before[i][last - 1] = true;
            for (int j = 0; j < last; j++) before[i][j] |= before[last - 1][j];
        }
        tail[l[i].branch] = i + 1;
        for (int j = 0; j < i; j++) {
            if (conflict(marks[j], marks[i]) && !before[i][j])
                fail_msg("launch %d of %d does not wait for %d (seed %llu)", i, n, j,
                         (unsigned long long)seed);
            free += !before[i][j];
        }
    }
    ll_arena_free(a);
    return free;
}

static void branches_keep_order(void **state)
{
    (void)state;
    static program p;
    int pairs = 0;
    for (int i = 0; i < 3000; i++) {
        make(&p);
        for (int k = 0; k < p.n; k++) {
            p.instr[k].scratch = draw(4) ? 0 : (size_t)(1 + draw(3 * WIDTH));
            p.b[k].call.scratch = memory + draw(BYTES - 3 * WIDTH);
        }
        pairs += apart(&p);
    }
    print_message("%d pairs of launches may run beside each other\n", pairs);
    assert_true(pairs > 30000);
}

int main(void)
{
    const char *s = getenv("SEED");
    if (s) seed = strtoull(s, NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_ends_the_same),
        cmocka_unit_test(moves_both_ways),
        cmocka_unit_test(branches_keep_order),
    };
    return cmocka_run_group_tests_name("merge", tests, NULL, NULL);
}
