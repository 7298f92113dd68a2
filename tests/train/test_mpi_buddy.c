/* mpi: 1 4
 * The state in memory: after steps on one mesh it is found and read on another, with make-believe
 * nodes of which any one is lost; what was being written, or is damaged, is not taken for whole. */
#include "comm/comm.h"
#include "train/buddy_int.h"
#include "weights/checkpoint.h"
#include "run/ranks.h"
#include "run/setup.h"
#include "no_error.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static ll_comm *comm;
static ll_start start = {.out = ""};

typedef struct side {
    ll_run *r;
    ll_graph *g;
    ll_session *s;
} side;

/* large: so that threads share its copies. */
static void open_side(side *x, const char *mesh, int zero, bool large)
{
    static const char text[] = "model: {name: mlp, image: 4, width: 9, depth: 2, classes: 5}\n"
                               "data: {name: synthetic, samples: 40}\n"
                               "train: {batch: 8, optimizer: adam, threads: 1}\n";
    char set[64];
    no_error(ll_run_parse(text, strlen(text), "test", &x->r));
    snprintf(set, sizeof set, "parallel.zero=%d", zero);
    no_error(ll_run_set(x->r, set));
    if (large) no_error(ll_run_set(x->r, "model.width=401"));
    if (large) no_error(ll_run_set(x->r, "train.threads=3"));
    no_error(ll_run_finish(x->r));
    ll_session_opts o = ll_run_session(x->r, ll_comm_size(comm) > 1 ? comm : NULL, mesh);
    no_error(ll_run_compile(x->r, &o, &x->g, &x->s));
}

static void close_side(side *x)
{
    ll_session_close(x->s);
    ll_graph_free(x->g);
    ll_run_free(x->r);
}

/* Every element of the state its own number, in the whole, and another in each step. */
static void fill(const side *x, int step)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_st_list l = ll_session_all_tensors(x->s, a);
    ll_st_tensor *t = l.tensors;
    ll_st_part *parts = l.parts;
    int n = l.n;
    for (int i = 0; i < n; i++) {
        ll_st_part whole = {.shape = t[i].shape}, *p = parts ? &parts[i] : &whole;
        ll_st_runs runs = ll_st_runs_of(&t[i].shape, p, t[i].dtype);
        uint8_t *data = (uint8_t *)t[i].data;
        for (int64_t k = 0; k < runs.n; k++)
            for (uint64_t b = 0; b < runs.bytes; b++)
                *data++ = (uint8_t)((ll_st_run_at(&runs, k) + b) * 7 + strlen(t[i].name) +
                                    31 * (uint64_t)step);
    }
}

/* Has it what fill writes in this step? */
static bool is_filled(const side *x, int step)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_st_list l = ll_session_all_tensors(x->s, a);
    ll_st_tensor *t = l.tensors;
    ll_st_part *parts = l.parts;
    int n = l.n, wrong = 0;
    void **was = LL_NEW_ARRAY(a, void *, n);
    for (int i = 0; i < n; i++) {
        size_t bytes =
            (size_t)ll_numel(parts ? &parts[i].shape : &t[i].shape) * ll_dtype_bytes(t[i].dtype);
        was[i] = ll_arena_copy(a, t[i].data, bytes);
    }
    fill(x, step);
    for (int i = 0; i < n; i++) {
        size_t bytes =
            (size_t)ll_numel(parts ? &parts[i].shape : &t[i].shape) * ll_dtype_bytes(t[i].dtype);
        wrong += memcmp(was[i], t[i].data, bytes) != 0;
    }
    return !wrong;
}

/* -1: nothing is found. */
static int64_t load(const side *x)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_st_file) f = NULL;
    ll_comm *c = ll_comm_size(comm) > 1 ? comm : NULL;
    int64_t step;
    no_error(ll_buddy_open(c, start.job, &f));
    if (!f) return -1;
    ll_st_list l = ll_session_all_tensors(x->s, a);
    no_error(ll_ranks_agree(c, ll_checkpoint_load(f, l.tensors, l.parts, l.n, true)));
    no_error(ll_checkpoint_int(f, "step", &step));
    return step;
}

static void pretend_nodes(const int *node)
{
    int *real = (int *)ll_comm_nodes(comm);
    for (int r = 0; r < ll_comm_size(comm); r++) real[r] = node[r];
}

static void meet(void)
{
    int32_t x = 0;
    no_error(ll_comm_allreduce(comm, &x, 1, LL_I32, LL_REDUCE_SUM, NULL));
}

/* Writes over a byte of a node's file, or takes its seal. */
static void damage(int node, int turn, bool seal)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    seals_name name = {start.job, start.number, node};
    int fd = open(ll_seals_path(a, &name, seal ? -1 : turn), O_RDWR);
    struct seals head;
    assert_true(fd >= 0 && pread(fd, &head, sizeof head, 0) == sizeof head);
    int64_t none = -1;
    off_t end = lseek(fd, 0, SEEK_END), at = end - 1;
    if (seal) at = (off_t)(sizeof head + sizeof(struct seal) * (size_t)(turn * head.n_slot));
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, seal ? (void *)&none : &byte, seal ? 8 : 1, at), seal ? 8 : 1);
    close(fd);
}

typedef struct trial {
    const char *mesh, *other;
    int zero, node[4];
    bool large;
} trial;

static void lose_and_find(const trial *t)
{
    const ll_st_pair meta[] = {{"model", "mlp"}};
    ll_comm *c = ll_comm_size(comm) > 1 ? comm : NULL;
    bool lead = ll_comm_rank(comm) == 0;
    int n_node = 1 + t->node[3], before[4];
    side x, y;
    memcpy(before, ll_comm_nodes(comm), sizeof(int) * (size_t)ll_comm_size(comm));
    open_side(&x, t->mesh, t->zero, t->large);
    open_side(&y, t->other, 0, t->large);
    if (c) pretend_nodes(t->node);
    for (int lost = n_node > 1 ? 0 : -1; lost < (n_node > 1 ? n_node : 0); lost++, start.number++) {
        ll_buddy *b;
        no_error(ll_buddy_new(c, &start, x.s, NULL, meta, 1, &b));
        for (int step = 1; step <= 3; step++) {
            fill(&x, step);
            no_error(ll_buddy_copy(b, step, "0000000000000000"));
            meet();
        }
        ll_buddy_free(b);
        LL_OWN(ll_arena) a = ll_arena_new();
        seals_name name = {start.job, start.number, lost};
        if (lead && lost >= 0) assert_int_equal(unlink(ll_seals_path(a, &name, -1)), 0);
        meet();
        assert_int_equal(load(&y), 3);
        assert_true(is_filled(&y, 3));
        int node = (lost + 1) % n_node; /* its file has what the lost one had */
        meet();
        if (lead) damage(node, 0, lost < 0); /* step 3 is in the first of the two files */
        meet();
        assert_int_equal(load(&y), 2);
        assert_true(is_filled(&y, 2));
        meet();
        if (lead) damage(node, 1, false);
        meet();
        assert_int_equal(load(&y), -1);
        meet();
        if (lead) ll_buddy_sweep(start.job);
        meet();
        assert_int_equal(load(&y), -1);
    }
    if (c) pretend_nodes(before);
    close_side(&x);
    close_side(&y);
}

static void lost_nodes(void **state)
{
    (void)state;
    static const trial one[] = {{"", "", 0, {0, 0, 0, 0}}, {"", "", 0, {0, 0, 0, 0}, true}};
    static const trial four[] = {{"data=4", "tensor=4", 0, {0, 0, 0, 0}},
                                 {"data=2,tensor=2", "data=4", 0, {0, 0, 1, 1}},
                                 {"tensor=4", "data=2,tensor=2", 0, {0, 1, 1, 2}},
                                 {"data=4", "tensor=4", 3, {0, 1, 2, 3}},
                                 {"data=2,tensor=2", "tensor=4", 1, {0, 0, 1, 1}, true}};
    int n = ll_comm_size(comm) > 1 ? 5 : 2;
    for (int i = 0; i < n; i++) lose_and_find(n > 2 ? &four[i] : &one[i]);
}

/* One bit of one rank's copy. */
static void copies_that_differ(void **state)
{
    (void)state;
    ll_comm *c = ll_comm_size(comm) > 1 ? comm : NULL;
    LL_OWN(ll_arena) a = ll_arena_new();
    side x;
    open_side(&x, c ? "data=4" : "", 0, false);
    ll_st_tensor *t = ll_session_all_tensors(x.s, a).tensors;
    no_error(ll_copies_check(c, x.s, 7));
    uint8_t *byte = (uint8_t *)t[2].data + 5;
    if (ll_comm_rank(comm) == 2) *byte ^= 1;
    if (c) {
        char want[200];
        snprintf(want, sizeof want, "after step 7 rank 2 has other bits of %s than rank ",
                 t[2].name);
        assert_int_equal(ll_copies_check(c, x.s, 7), LL_E_NUMERIC);
        assert_non_null(strstr(ll_error_message(), want));
        if (ll_comm_rank(comm) == 2) *byte ^= 1;
        no_error(ll_copies_check(c, x.s, 8));
    }
    close_side(&x);
}

int main(void)
{
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 120}, &comm));
    int64_t id = getpid();
    no_error(ll_ranks_share(comm, &id, sizeof id));
    snprintf(start.job, sizeof start.job, "%016llx", (unsigned long long)id);
    const struct CMUnitTest tests[] = {cmocka_unit_test(lost_nodes),
                                       cmocka_unit_test(copies_that_differ)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
