/* file.c: the tuner's table as a file, JSON that people can read:
 *
 *     {"loopline_comm_table": 1, "key": "4 ranks on 1 node, ...", "ranks": 4, "seconds": 1.4,
 *      "model": {"alpha_us": [0.8, 40], ...},
 *      "entries": [{"collective": "all-reduce", "bytes": 4096, "shared": false, "why": "...",
 *                   "ways": [{"algorithm": "window1", "segment_bytes": 0,
 *                             "predicted_us": 2.1, "measured_us": 2.4}, ...]}, ...]}
 *
 * Whoever reads it trusts nothing in it: a table of another key, with algorithms that this program
 * does not have or numbers that are none is an error, and the caller measures anew. */
#include "base/crc32c.h"
#include "base/file.h"
#include "base/text.h"
#include "sched/nodes.h"
#include "tune/tune_int.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FORMAT = 1, ENTRIES_MAX = 4096, WAYS_MAX = 256, SEGMENT_MIN = 1024 };

/* ---- the key ---- */

/* The value of a line "name : value" of /proc/cpuinfo, added to b. */
static bool add_cpu_line(ll_buf *b, const char *info, const char *name)
{
    const char *at = strstr(info, name);
    if (!at || !(at = strchr(at, ':'))) return false;
    at += 1 + strspn(at + 1, " \t");
    ll_buf_printf(b, "%s%.*s", b->len ? " " : "", (int)strcspn(at, "\n"), at);
    return true;
}

const char *ll_tune_cpu(ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    char info[4096] = "";
    LL_OWN(FILE) f = fopen("/proc/cpuinfo", "r");
    if (!f || !fread(info, 1, sizeof info - 1, f)) return "unknown processor";
    if (!add_cpu_line(&b, info, "model name")) {
        add_cpu_line(&b, info, "CPU implementer");
        add_cpu_line(&b, info, "CPU part");
    }
    return b.len ? b.text : "unknown processor";
}

/* Which ranks are together, whatever the nodes are called. */
static uint32_t placement(const int *node, int size)
{
    uint32_t crc = 0;
    for (int i = 0; i < size; i++) {
        int32_t first = 0;
        while (node[first] != node[i]) first++;
        crc = ll_crc32c(crc, &first, sizeof first);
    }
    return crc;
}

const char *ll_tune_key(ll_arena *arena, ll_comm *c)
{
    int size = ll_comm_size(c);
    const ll_coll_spec at = {.size = size, .node = ll_comm_nodes(c)};
    return ll_arena_printf(
        arena, "loopline %s, %d ranks on %d nodes (placed %08x), %s, %s, %ld cores, window %zu%s%s",
        ll_version(), size, ll_nodes_count(&at), (unsigned)placement(ll_comm_nodes(c), size),
        ll_transport_library(), ll_tune_cpu(arena), sysconf(_SC_NPROCESSORS_ONLN),
        ll_comm_options(c)->window_bytes, ll_comm_has_window(c) ? "" : " unused",
        ll_comm_options(c)->canonical ? ", canonical" : "");
}

const char *ll_tune_path(ll_arena *arena, ll_comm *c, const char *key)
{
    const char *table = ll_comm_options(c)->table;
    if (table) return *table ? table : NULL;
    char cache[4096];
    if (!ll_cache_folder(cache, sizeof cache)) return NULL;
    const ll_coll_spec at = {.size = ll_comm_size(c), .node = ll_comm_nodes(c)};
    return ll_arena_printf(arena, "%s/comm-%dx%d-%08x.json", cache, ll_nodes_count(&at),
                           ll_nodes_most(&at), (unsigned)ll_crc32c(0, key, strlen(key)));
}

/* ---- reading ---- */

typedef struct reader {
    ll_arena *arena;
    const char *path;
} reader;

static ll_err number(const reader *r, const json_t *v, const char *name, double unit, double *out)
{
    double x = json_number_value(v);
    CHECK(json_is_number(v) && isfinite(x) && x >= 0 && x < 1e18, LL_E_IO,
          "%s: %s is not a number of at least 0", r->path, name);
    *out = unit * x;
    return LL_OK;
}

static ll_err get_number(const reader *r, const json_t *o, const char *name, double unit,
                         double *out)
{
    return number(r, json_object_get(o, name), name, unit, out);
}

static ll_err get_text(const reader *r, const json_t *o, const char *name, const char **out)
{
    const json_t *v = json_object_get(o, name);
    CHECK(json_is_string(v), LL_E_IO, "%s: %s is not a text", r->path, name);
    *out = ll_arena_strdup(r->arena, json_string_value(v));
    return LL_OK;
}

static ll_err get_list(const reader *r, const json_t *o, const char *name, size_t most,
                       const json_t **out)
{
    *out = json_object_get(o, name);
    CHECK(json_is_array(*out) && json_array_size(*out) >= 1 && json_array_size(*out) <= most,
          LL_E_IO, "%s: %s is not a list of 1 to %zu items", r->path, name, most);
    return LL_OK;
}

static ll_err get_two(const reader *r, const json_t *o, const char *name, double unit,
                      double out[2])
{
    const json_t *v = json_object_get(o, name);
    CHECK(json_array_size(v) == 2, LL_E_IO, "%s: %s is not two numbers", r->path, name);
    TRY(number(r, json_array_get(v, 0), name, unit, &out[0]));
    return number(r, json_array_get(v, 1), name, unit, &out[1]);
}

static ll_err read_model(const reader *r, const json_t *root, ll_link_model *m)
{
    const json_t *o = json_object_get(root, "model");
    CHECK(json_is_object(o), LL_E_IO, "%s: there is no model", r->path);
    TRY(get_two(r, o, "alpha_us", 1e-6, m->alpha));
    TRY(get_two(r, o, "beta_ns", 1e-9, m->beta));
    TRY(get_number(r, o, "gamma_ns", 1e-9, &m->gamma));
    TRY(get_number(r, o, "kappa_ns", 1e-9, &m->kappa));
    TRY(get_number(r, o, "sigma_us", 1e-6, &m->sigma));
    return get_number(r, o, "share", 1, &m->share);
}

static ll_err read_way(const reader *r, const json_t *o, ll_coll coll, ll_tuned_way *w)
{
    const char *name;
    double segment;
    TRY(get_text(r, o, "algorithm", &name));
    w->algo = ll_algo_find(coll, name);
    CHECK(w->algo, LL_E_IO, "%s: %s has no algorithm %s", r->path, ll_coll_name(coll), name);
    TRY(get_number(r, o, "segment_bytes", 1, &segment));
    CHECK(segment == 0 || segment >= SEGMENT_MIN, LL_E_IO,
          "%s: segment_bytes is %g, expected %d or more", r->path, segment, SEGMENT_MIN);
    w->segment_bytes = (size_t)segment;
    TRY(get_number(r, o, "predicted_us", 1e-6, &w->predicted_s));
    return get_number(r, o, "measured_us", 1e-6, &w->measured_s);
}

static ll_err read_entry(const reader *r, const json_t *o, ll_tuned *e)
{
    const char *name;
    const json_t *ways;
    double bytes;
    TRY(get_text(r, o, "collective", &name));
    while (e->coll < LL_N_COLL && strcmp(ll_coll_name(e->coll), name)) e->coll++;
    CHECK(e->coll < LL_N_COLL, LL_E_IO, "%s: there is no collective %s", r->path, name);
    TRY(get_number(r, o, "bytes", 1, &bytes));
    CHECK(bytes >= 1, LL_E_IO, "%s: an entry for %g bytes", r->path, bytes);
    e->bytes = (size_t)bytes;
    e->shared = json_is_true(json_object_get(o, "shared"));
    TRY(get_text(r, o, "why", &e->why));
    TRY(get_list(r, o, "ways", WAYS_MAX, &ways));
    ll_tuned_way *list = LL_NEW_ARRAY(r->arena, ll_tuned_way, json_array_size(ways));
    for (size_t i = 0; i < json_array_size(ways); i++)
        TRY(read_way(r, json_array_get(ways, i), e->coll, &list[e->n_way++]));
    e->ways = list;
    return LL_OK;
}

static ll_err read_table(const reader *r, const json_t *root, const char *key, int size,
                         ll_tuned_table *t)
{
    const char *was;
    double format, ranks;
    const json_t *entries;
    CHECK(json_is_object(root), LL_E_IO, "%s: not a JSON object", r->path);
    TRY(get_number(r, root, LL_TABLE_MARK, 1, &format));
    CHECK(format == FORMAT, LL_E_IO, "%s: a table of format %g, expected %d", r->path, format,
          FORMAT);
    TRY(get_text(r, root, "key", &was));
    CHECK(!key || !strcmp(was, key), LL_E_IO, "%s: a table for '%s', expected '%s'", r->path, was,
          key);
    TRY(get_number(r, root, "ranks", 1, &ranks));
    CHECK(ranks == size, LL_E_IO, "%s: a table for %g ranks, expected %d", r->path, ranks, size);
    TRY(get_number(r, root, "seconds", 1, &t->seconds));
    t->size = size;
    TRY(read_model(r, root, &t->model));
    TRY(get_list(r, root, "entries", ENTRIES_MAX, &entries));
    ll_tuned *list = LL_NEW_ARRAY(r->arena, ll_tuned, json_array_size(entries));
    for (size_t i = 0; i < json_array_size(entries); i++)
        TRY(read_entry(r, json_array_get(entries, i), &list[t->n_entry++]));
    t->entries = list;
    return LL_OK;
}

ll_err ll_tune_parse(const char *text, size_t bytes, const char *path, const char *key, int size,
                     ll_tuned_table **out)
{
    *out = NULL;
    json_error_t why;
    json_auto_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    CHECK(root, LL_E_IO, "%s: not JSON: %s (line %d)", path, why.text, why.line);
    ll_arena *arena = ll_arena_new();
    LL_OWN(ll_tuned_table) t = LL_NEW(arena, ll_tuned_table);
    t->arena = arena;
    t->was_read = true;
    TRY(read_table(&(reader){arena, path}, root, key, size, t));
    t->file = ll_arena_strdup(arena, path);
    return LL_HAND(out, t);
}

/* ---- writing ---- */

static json_t *entry_json(const ll_tuned *e)
{
    json_t *ways = json_array();
    LL_EACH (const ll_tuned_way, w, e->ways, e->n_way)
        json_array_append_new(ways, json_pack("{s:s,s:I,s:f,s:f}", "algorithm", w->algo->name,
                                              "segment_bytes", (json_int_t)w->segment_bytes,
                                              "predicted_us", 1e6 * w->predicted_s, "measured_us",
                                              1e6 * w->measured_s));
    return json_pack("{s:s,s:I,s:b,s:s,s:o}", "collective", ll_coll_name(e->coll), "bytes",
                     (json_int_t)e->bytes, "shared", (int)e->shared, "why", e->why, "ways", ways);
}

ll_err ll_tune_write(const ll_tuned_table *t, const char *path, const char *key)
{
    const ll_link_model *m = &t->model;
    json_t *entries = json_array();
    for (int i = 0; i < t->n_entry; i++) json_array_append_new(entries, entry_json(&t->entries[i]));
    json_auto_t *root =
        json_pack("{s:i,s:s,s:i,s:f,s:{s:[ff],s:[ff],s:f,s:f,s:f,s:f},s:o}", LL_TABLE_MARK, FORMAT,
                  "key", key, "ranks", t->size, "seconds", t->seconds, "model", "alpha_us",
                  1e6 * m->alpha[0], 1e6 * m->alpha[1], "beta_ns", 1e9 * m->beta[0],
                  1e9 * m->beta[1], "gamma_ns", 1e9 * m->gamma, "kappa_ns", 1e9 * m->kappa,
                  "sigma_us", 1e6 * m->sigma, "share", m->share, "entries", entries);
    LL_OWN_MEMORY char *text =
        root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
    CHECK(text, LL_E_MEM, "%s: not enough memory for the table", path);
    TRY(ll_mkdirs_above(path));
    return ll_file_write(path, text, strlen(text));
}
