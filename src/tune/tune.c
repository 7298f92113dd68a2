/* tune.c: a tuning from start to end: the file, or else fit, predict, measure and write the
 * file. Rank 0 alone reads and writes it; the others get its bytes. */
#include "base/file.h"
#include "base/text.h"
#include "tune/tune_int.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const size_t FILE_MAX = (size_t)8 << 20;

/* ---- the file ---- */

/* On rank 0: the table's text where there is one for this key; a broken one is told of, and is as
 * none. The caller frees. */
static void load(const char *path, const char *key, int size, const char *otherwise, uint8_t **text,
                 size_t *bytes)
{
    struct stat st;
    LL_OWN(ll_tuned_table) t = NULL;
    if (!path || stat(path, &st) != 0) return;
    if (ll_file_read(path, FILE_MAX, text, bytes) == LL_OK &&
        ll_tune_parse((const char *)*text, *bytes, path, key, size, &t) == LL_OK)
        return;
    fprintf(stderr, "loopline: warning: %s; %s\n", ll_error_message(), otherwise);
    free(*text);
    *text = NULL;
    *bytes = 0;
}

/* The table of the file, equal on every rank; NULL where there is none. */
static ll_err read_table(ll_comm *c, const char *path, const char *key, const char *otherwise,
                         ll_tuned_table **out)
{
    *out = NULL;
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t bytes = 0;
    bool root = ll_comm_rank(c) == 0;
    if (root) load(path, key, ll_comm_size(c), otherwise, &text, &bytes);
    double n = (double)bytes;
    TRY(ll_tune_most(c, &n, 1));
    if (n == 0) return LL_OK;
    bytes = (size_t)n;
    if (!root) text = (uint8_t *)malloc(bytes);
    TRY(ll_comm_agree(
        c, text ? LL_OK : RAISE(LL_E_MEM, "not enough memory for a table of %zu bytes", bytes)));
    TRY(ll_comm_broadcast(c, text, (int64_t)bytes, LL_U8, 0, &(ll_coll_opts){.site = "tuner"}));
    return ll_comm_agree(c, ll_tune_parse((const char *)text, bytes, path ? path : "rank 0's table",
                                          NULL, ll_comm_size(c), out));
}

/* ---- the table ---- */

static const char *reason(ll_arena *arena, const ll_tune_cell *cell)
{
    ll_buf b = {.arena = arena};
    int n = 0;
    while (n < cell->n_way && cell->ways[n].measured_s > 0) n++;
    if (n)
        ll_buf_printf(&b, "fastest of %d measured", n);
    else
        ll_buf_puts(&b, "best predicted, none measured in the time there was");
    for (int i = 0; i < cell->n_way && i < (n ? n : 3); i++) {
        const ll_tuned_way *w = &cell->ways[i];
        ll_buf_printf(&b, "%s %s", i ? "," : ":", w->algo->name);
        if (w->segment_bytes) ll_buf_printf(&b, "/%zuK", w->segment_bytes >> 10);
        if (w->measured_s > 0) ll_buf_printf(&b, " %s", LL_TIME(w->measured_s));
        if (w->predicted_s > 0)
            ll_buf_printf(&b, n ? " (predicted %s)" : " %s", LL_TIME(w->predicted_s));
    }
    return b.text;
}

static void fill_entries(ll_tuned_table *out, const ll_tuning *t)
{
    ll_tuned *list = LL_NEW_ARRAY(out->arena, ll_tuned, t->n_cell);
    LL_EACH (const ll_tune_cell, cell, t->cells, t->n_cell) {
        if (!cell->n_way) continue;
        list[out->n_entry++] = (ll_tuned){.coll = cell->coll,
                                          .bytes = cell->bytes,
                                          .shared = cell->shared,
                                          .ways = cell->ways,
                                          .n_way = cell->n_way,
                                          .why = reason(out->arena, cell)};
    }
    out->entries = list;
}

static ll_err measure(ll_comm *c, double began, double budget_s, ll_tuned_table *out)
{
    ll_tuning t = {.c = c, .arena = out->arena, .began = began, .budget_s = budget_s};
    if (ll_comm_size(c) == 1) { /* nothing to choose by */
        t.model.share = 1;
    } else {
        TRY(ll_tune_fit(&t));
        TRY(ll_tune_plan(&t));
        TRY(ll_tune_measure(&t));
    }
    out->model = t.model;
    fill_entries(out, &t);
    return LL_OK;
}

/* Were the small all-reduces measured, at least? Where not even these were, the machine is busy
 * with something else, and a table would keep that for ever. */
static bool worth_keeping(const ll_tuned_table *t)
{
    LL_EACH (const ll_tuned, e, t->entries, t->n_entry) {
        bool small = e->coll == LL_COLL_ALLREDUCE && !e->shared && e->bytes <= 64 << 10;
        if (small && !(e->ways[0].measured_s > 0)) return false;
    }
    return t->n_entry > 0;
}

/* What is there may be written over: a table, be it broken, or nothing. */
static ll_err check_ours(const char *path)
{
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t bytes = 0;
    struct stat st;
    if (stat(path, &st) != 0 || st.st_size == 0) return LL_OK;
    TRY(ll_file_read(path, FILE_MAX, &text, &bytes));
    CHECK(strstr((const char *)text, LL_TABLE_MARK), LL_E_IO,
          "%s is not a table of Loopline's, and is left as it is: name another file", path);
    return LL_OK;
}

/* Rank 0 writes; that it could not is no failure of the tuning. */
static void keep(ll_comm *c, ll_tuned_table *t, const char *path, const char *key)
{
    t->file = path && worth_keeping(t) ? ll_arena_strdup(t->arena, path) : NULL;
    if (ll_comm_rank(c) != 0) return;
    ll_err rc = path ? check_ours(path) : LL_OK;
    if (rc == LL_OK && t->file) rc = ll_tune_write(t, path, key);
    if (rc == LL_OK) return;
    fprintf(stderr, "loopline: warning: the tuner's table is not kept: %s\n", ll_error_message());
    t->file = NULL;
}

ll_err ll_tune_read(ll_comm *c, const ll_tuned_table **out)
{
    *out = NULL;
    if (ll_comm_size(c) == 1) return LL_OK;
    LL_OWN(ll_arena) arena = ll_arena_new();
    const char *key = ll_tune_key(arena, c);
    ll_tuned_table *t = NULL;
    TRY(read_table(c, ll_tune_path(arena, c, key), key, "by rules then", &t));
    if (t) ll_comm_set_table(c, t);
    *out = t;
    return LL_OK;
}

ll_err ll_tune(ll_comm *c, const ll_tune_opts *opts, const ll_tuned_table **out)
{
    double began = ll_now(), budget = opts && opts->budget_s > 0 ? opts->budget_s : 1.5;
    bool fresh = opts && opts->fresh, alone = ll_comm_size(c) == 1;
    LL_OWN(ll_arena) arena = ll_arena_new();
    const char *key = ll_tune_key(arena, c), *path = ll_tune_path(arena, c, key);
    LL_OWN(ll_tuned_table) t = NULL;
    if (!fresh && !alone) TRY(read_table(c, path, key, "measuring anew", &t));
    if (!t) {
        ll_arena *own = ll_arena_new();
        t = LL_NEW(own, ll_tuned_table);
        t->arena = own;
        t->size = ll_comm_size(c);
        TRY(measure(c, began, budget, t));
        t->seconds = ll_now() - began;
        keep(c, t, path, key);
    }
    ll_comm_set_table(c, t);
    ll_comm_trim(c);
    if (out) *out = t;
    t = NULL; /* it is the communicator's */
    return LL_OK;
}
