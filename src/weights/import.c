/* import.c: what another system's model is, by its own description. */
#include "weights/import.h"

#include "base/file.h"
#include "base/text.h"
#include "token/gguf.h"
#include "run/run.h"
#include "run/setup.h"
#include "weights/weights_load.h"

#include <jansson.h>
#include <math.h>

enum { CONFIG_LIMIT = 1 << 20 };

typedef struct source {
    const ll_weights *w;
    json_t *config; /* NULL: GGUF */
    const char *path, *form;
    ll_arena *arena;
} source;

bool ll_import_knows(const char *path)
{
    return ll_is_folder(path) || ll_ends_with(path, ".gguf");
}

/* ---- keys ---- */

/* Of config.json; "a.b" is b of its object a. */
static const json_t *setting(const source *s, const char *key)
{
    const char *dot = strchr(key, '.');
    if (!dot) return json_object_get(s->config, key);
    const char *first = ll_arena_printf(s->arena, "%.*s", (int)(dot - key), key);
    return json_object_get(json_object_get(s->config, first), dot + 1);
}

/* A key's value as a text: a JSON null is "null"; NULL: it is not there. */
static const char *text_of(const source *s, const char *key)
{
    double v;
    char number[LL_NUMBER_TEXT];
    if (s->config) {
        const json_t *j = setting(s, key);
        if (!j) return NULL;
        if (json_is_string(j)) return json_string_value(j);
        char *dumped = json_dumps(j, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9) | JSON_COMPACT);
        const char *text = dumped ? ll_arena_strdup(s->arena, dumped) : "";
        free(dumped);
        return text;
    }
    const ll_gguf_pair *p = ll_gguf_find(s->w->gguf, key);
    if (!p) return NULL;
    const char *text = ll_gguf_text(p, s->arena);
    if (text) return text;
    if (!ll_gguf_number(p, &v)) return "";
    return ll_arena_strdup(s->arena, v == floor(v) && fabs(v) < 1e15
                                         ? ll_arena_printf(s->arena, "%.0f", v)
                                         : ll_text_number(v, number));
}

/* False: it is not there, or null. NaN: it is no number. Of a list of texts, how many. */
static bool value_of(const source *s, const char *of, double *out)
{
    char *end;
    *out = NAN;
    if (!strncmp(of, "has:", 4) || !strncmp(of, "lacks:", 6)) {
        bool there = ll_weights_find(s->w, strchr(of, ':') + 1) != NULL;
        *out = there == (*of == 'h');
        return true;
    }
    *out = strtod(of, &end);
    if (!*end) return true;
    *out = NAN;
    if (!s->config) {
        const ll_gguf_pair *p = ll_gguf_find(s->w->gguf, of);
        if (p && (!p->array || ll_gguf_texts(p, s->arena, &(int *){0}))) ll_gguf_number(p, out);
        return p;
    }
    const json_t *j = setting(s, of);
    if (json_is_number(j)) *out = json_number_value(j);
    if (json_is_boolean(j)) *out = json_is_true(j);
    return j && !json_is_null(j);
}

/* A size is whole as it is, or, of those that are scaled, as near as f32 tells; 0 where the map has
 * a 0. */
static ll_err check_size(const source *s, const ll_map_key *k, int i, double v)
{
    double near = round(v * k->times), off = fabs(v * k->times - near);
    bool zero = strchr(k->of[i], ':') != NULL;
    const char *is = text_of(s, k->of[i]);
    char least[LL_NUMBER_TEXT], most[LL_NUMBER_TEXT];
    for (int n = 0; n < k->n; n++) zero |= !strcmp(k->of[n], "0");
    if (!s->config && !isfinite(v)) is = ll_arena_printf(s->arena, "%g", v);
    CHECK(near >= !zero && near <= 1e9 && off <= (k->times == 1 ? 0 : 1e-7 * near), LL_E_CONFIG,
          "%s: %s is %.80s (model.%s), expected %s to %s in steps of %g", s->path, k->of[i],
          is ? is : "", k->name, ll_text_number(!zero / k->times, least),
          ll_text_number(1e9 / k->times, most), 1 / k->times);
    return LL_OK;
}

static ll_err read_size(const source *s, const ll_map_key *k, ll_imported *out)
{
    double v = NAN;
    int i = 0;
    while (i < k->n && !value_of(s, k->of[i], &v)) i++;
    CHECK(i < k->n, LL_E_CONFIG, "%s: %s is missing (model.%s of model %s)", s->path, k->of[0],
          k->name, out->model->name);
    TRY(check_size(s, k, i, v));
    v = round(v * k->times);
    for (ll_size *x = out->sizes; x->name; x++)
        if (!strcmp(x->name, k->name)) {
            x->value = (int64_t)v;
            out->n++;
            return LL_OK;
        }
    FAIL(LL_E_CONFIG, "map %s: model %s has no size %s", out->map, out->model->name, k->name);
}

static ll_err check_wanted(const source *s, const ll_map_key *k)
{
    const char *is = text_of(s, k->name);
    ll_buf b = {.arena = s->arena};
    double a, c;
    for (int i = 0; is && i < k->n; i++) {
        char *end, *rest;
        a = strtod(is, &end), c = strtod(k->of[i], &rest);
        bool numbers = *is && !*end && !*rest && fabs(a - c) <= 1e-6 * fabs(c);
        if (numbers || !strcmp(is, k->of[i])) return LL_OK;
        if (s->config || strcmp(k->of[i], "null")) /* which is no value of GGUF's */
            ll_buf_printf(&b, "%s%s", b.len ? " or " : "", k->of[i]);
    }
    CHECK(!is, LL_E_CONFIG, "%s: %s is %.80s, expected %s for these models", s->path, k->name, is,
          b.text);
    return LL_OK;
}

/* ---- which model ---- */

/* Keys of config.json as this form means them. */
static void read_defaults(const source *s, const ll_map *m)
{
    LL_EACH (const ll_map_key, k, m->keys, m->n_key) {
        for (int i = 0; i < k->n && !strcmp(k->kind, "ignore"); i++)
            if (!strcmp(k->of[i], s->form)) json_object_del(s->config, k->name);
        if (strcmp(k->kind, "default") || strcmp(k->when, s->form)) continue;
        if (json_object_get(s->config, k->name)) continue;
        json_object_set_new(s->config, k->name, json_loads(k->of[0], JSON_DECODE_ANY, NULL));
    }
}

static ll_err by_map(const source *s, const ll_map *m, const char *ours, ll_imported *out)
{
    out->map = ll_arena_strdup(s->arena, m->name);
    out->form = s->form;
    out->model = ll_model_find(ours);
    CHECK(out->model, LL_E_CONFIG, "map %s: unknown model %s", m->name, ours);
    memcpy(out->sizes, out->model->sizes, sizeof out->sizes);
    read_defaults(s, m);
    LL_EACH (const ll_map_key, k, m->keys, m->n_key) {
        if (!strcmp(k->kind, "want")) TRY(check_wanted(s, k));
        if (!strcmp(k->kind, "size")) TRY(read_size(s, k, out));
    }
    return LL_OK;
}

static ll_err choose(const source *s, ll_imported *out)
{
    ll_buf known = {.arena = s->arena};
    const char *name;
    for (int i = 0; (name = ll_map_bundled(i)); i++) {
        LL_OWN(ll_map) m = NULL;
        TRY(ll_map_open(name, &m));
        LL_EACH (const ll_map_key, x, m->keys, m->n_key) {
            for (int j = 0; j < x->n && !strcmp(x->kind, "model"); j++) {
                if (!strcmp(x->of[j], s->form)) return by_map(s, m, x->name, out);
                ll_buf_printf(&known, "%s%s", known.len ? ", " : "", x->of[j]);
            }
        }
    }
    FAIL(LL_E_CONFIG, "%s: no map supports format %s; supported: %s", s->path, s->form, known.text);
}

static void count(const ll_weights *w, ll_imported *out)
{
    int64_t most = 0;
    for (int i = 0; i < w->n; i++) {
        int64_t sum = 0;
        if (w->all[i].shape.n < 0) continue;
        out->tensors++;
        out->numbers += ll_numel(&w->all[i].shape);
        for (int k = 0; k < w->n; k++)
            if (w->all[k].shape.n >= 0 && !strcmp(w->all[i].type, w->all[k].type))
                sum += ll_numel(&w->all[k].shape);
        if (sum > most) most = sum, out->type = w->all[i].type;
    }
}

/* Its graph is built and its tensors are held against it: what import takes, commands can use. */
static ll_err check_model(const source *s, const ll_imported *m)
{
    LL_OWN(ll_run) r = NULL;
    LL_OWN(ll_graph) g = NULL;
    ll_buf b = {.arena = s->arena};
    ll_buf_printf(&b, "model:\n  name: %s\n", m->model->name);
    for (const ll_size *x = m->sizes; x->name; x++)
        ll_buf_printf(&b, "  %s: %ld\n", x->name, x->value);
    TRY(ll_run_parse(b.text, b.len, s->path, &r));
    TRY(ll_run_finish(r));
    TRY(ll_run_graph(r, 1, NULL, &g));
    return ll_weights_check(g, s->w, &(ll_weights_from){.path = s->path, .map = m->map}, s->arena);
}

static ll_err look(source *s, ll_imported *out)
{
    const char *name = text_of(s, s->config ? "model_type" : "general.architecture");
    CHECK(name, LL_E_CONFIG, "%s does not name its model (%s)", s->path,
          s->config ? "model_type in config.json" : "general.architecture");
    s->form = ll_arena_printf(s->arena, "%s:%.80s", s->config ? "hf" : "gguf", name);
    TRY(choose(s, out));
    TRY(check_model(s, out));
    count(s->w, out);
    if (out->type) out->type = ll_arena_strdup(s->arena, out->type);
    return LL_OK;
}

ll_err ll_import_look(const char *path, ll_arena *a, ll_imported *out)
{
    LL_OWN(ll_weights) w = NULL;
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t size;
    json_auto_t *config = NULL;
    source s = {.path = path, .arena = a};
    *out = (ll_imported){0};
    if (ll_is_folder(path))
        TRY(ll_file_read(ll_arena_printf(a, "%s/config.json", path), CONFIG_LIMIT, &text, &size));
    TRY(ll_weights_open(NULL, path, &w));
    CHECK(text || w->gguf, LL_E_ARG, "%s is neither a GGUF file nor a folder with a config.json",
          path);
    s.w = w;
    if (text) {
        json_error_t e;
        s.config = config = json_loadb((const char *)text, size, 0, &e);
        CHECK(json_is_object(config), LL_E_IO, "%s/config.json: %s", path,
              config ? "not an object" : e.text);
    }
    return look(&s, out);
}
