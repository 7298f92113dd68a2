/* classes.c: see classes.h. */
#include "infer/classes.h"

#include "base/plot.h"
#include "weights/checkpoint.h"
#include "replicas/loose.h"

/* ---- members of an ensemble ---- */

ll_err ll_members_read(const ll_st_file *f, const ll_session *s, ll_arena *arena, ll_members *out)
{
    ll_st_list l = ll_session_tensors(s, arena);
    ll_st_tensor *tensors = l.tensors;
    LL_ASSERT(!l.parts);
    int n = l.n, members = n ? ll_loose_in(f, tensors[0].name) : 0;
    CHECK(members, LL_E_IO, "%s has no ensemble members", f->path);
    *out = (ll_members){.n = members, .s = s, .tensors = tensors, .n_tensor = n};
    out->data = LL_NEW_ARRAY(arena, void *, (int64_t)members *n + 1);
    for (int k = 0; k < members; k++)
        for (int i = 0; i < n; i++) {
            ll_st_tensor t = tensors[i];
            t.name = ll_arena_printf(arena, LL_REPLICA "%d.%s", k, t.name);
            t.data = out->data[k * n + i] =
                ll_arena_alloc(arena, ll_tensor_bytes(t.dtype, &t.shape));
            TRY(ll_checkpoint_load(f, &t, NULL, 1, false));
        }
    return LL_OK;
}

static ll_err take(const ll_members *m, int k)
{
    for (int i = 0; i < m->n_tensor; i++)
        memcpy(m->tensors[i].data, m->data[k * m->n_tensor + i],
               ll_tensor_bytes(m->tensors[i].dtype, &m->tensors[i].shape));
    return ll_session_loaded(m->s);
}

/* ---- counting ---- */

/* The set's labels: field "y", a whole number a sample. */
static ll_err find_labels(const ll_data_info *f, int *out)
{
    for (int i = 0; i < f->n_field; i++)
        if (!strcmp(f->fields[i].name, "y") && f->fields[i].dtype == LL_I32 &&
            f->fields[i].shape.n == 0) {
            *out = i;
            return LL_OK;
        }
    FAIL(LL_E_ARG, "data %s has no label y for each sample: classes cannot be counted", f->name);
}

static int64_t likeliest(const float *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t k = 1; k < n; k++)
        if (row[k] > row[best]) best = k;
    return best;
}

static void count_row(ll_classes *c, int64_t *confusion, const float *row, int64_t label)
{
    int64_t best = likeliest(row, c->n), above = 0;
    for (int64_t k = 0; k < c->n; k++)
        above += row[k] > row[label] || (row[k] == row[label] && k < label);
    confusion[label * c->n + best]++;
    c->correct += best == label;
    c->in_top += above < c->top;
    c->samples++;
}

/* What is counted, and where. */
typedef struct counting {
    ll_predictor *p;
    const ll_dataset *d;
    const ll_members *members; /* NULL: none */
    ll_arena *arena;
    int64_t *confusion, *alone;
} counting;

/* sum += a row's probabilities / parts */
static void add_probabilities(const float *row, int64_t n, bool logits, int parts, float *sum)
{
    double most = (double)row[likeliest(row, n)], all = 0;
    for (int64_t k = 0; k < n && logits; k++) all += exp((double)row[k] - most);
    for (int64_t k = 0; k < n; k++) {
        double p = logits ? exp((double)row[k] - most) / all : (double)row[k];
        sum[k] += (float)(p / parts);
    }
}

/* rows [n,classes]: means over members. */
static ll_err predict_members(const counting *x, int64_t n, const void *const *in,
                              const int32_t *labels, int64_t classes, float *rows)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    float *one = LL_NEW_ARRAY(a, float, n *classes);
    bool logits = ll_predictor_info(x->p)->meaning == LL_LOGITS;
    memset(rows, 0, sizeof *rows * (size_t)(n * classes));
    for (int k = 0; k < x->members->n; k++) {
        TRY(take(x->members, k));
        TRY(ll_predict(x->p, n, in, one));
        for (int64_t i = 0; i < n; i++) {
            const float *row = one + i * classes;
            x->alone[k] += likeliest(row, classes) == labels[i];
            add_probabilities(row, classes, logits, x->members->n, rows + i * classes);
        }
    }
    return LL_OK;
}

static ll_err count_all(const counting *x, ll_classes *c, int64_t samples, const ll_stop *told)
{
    enum { AT_ONCE = 64 };
    static const ll_sampling in_order = {.split = LL_VAL};
    const ll_data_info *f = ll_dataset_info(x->d);
    const ll_predicts *info = ll_predictor_info(x->p);
    void *data[LL_MAX_FIELDS];
    const void *in[LL_MAX_FIELDS] = {0};
    int y;
    TRY(find_labels(f, &y));
    for (int i = 0; i < f->n_field; i++) {
        data[i] = ll_arena_alloc(x->arena, AT_ONCE * f->field_bytes[i]);
        for (int k = 0; k < info->n_input; k++)
            if (!strcmp(info->inputs[k].name, f->fields[i].name)) in[k] = data[i];
    }
    float *rows = LL_NEW_ARRAY(x->arena, float, AT_ONCE * c->n);
    for (int64_t at = 0, n; at < samples; at += n) {
        n = samples - at < AT_ONCE ? samples - at : AT_ONCE;
        TRY(ll_dataset_read(x->d, &in_order, at, n, data));
        const int32_t *labels = (const int32_t *)data[y];
        TRY(x->members ? predict_members(x, n, in, labels, c->n, rows)
                       : ll_predict(x->p, n, in, rows));
        for (int64_t i = 0; i < n; i++) {
            int64_t label = labels[i];
            CHECK(label >= 0 && label < c->n, LL_E_IO,
                  "label %ld of %s is out of range: the model has %ld classes", label, f->name,
                  c->n);
            count_row(c, x->confusion, rows + i * c->n, label);
            if (x->members) c->loss -= log((double)rows[i * c->n + label]) / (double)samples;
        }
        told->tell(told->context, &(ll_score){.loss = NAN, .samples = at + n});
    }
    return LL_OK;
}

/* Of a model's classes; those that the data has not are numbers. NULL: it names none. */
static const char *const *names_of(const ll_data_info *f, int64_t n, ll_arena *a)
{
    if (!f->class_names || f->classes == n) return f->class_names;
    const char **names = LL_NEW_ARRAY(a, const char *, n);
    for (int64_t k = 0; k < n; k++)
        names[k] = k < f->classes ? f->class_names[k] : ll_arena_printf(a, "%ld", k);
    return names;
}

ll_err ll_classes_count(const ll_run *r, const ll_dataset *d, ll_session *share,
                        const ll_members *m, int64_t samples, int64_t top, const ll_stop *told,
                        ll_arena *a, ll_classes *out)
{
    const ll_data_info *f = ll_dataset_info(d);
    LL_OWN(ll_predictor) p = NULL;
    TRY(ll_predictor_open(r, share, NULL, &p));
    const ll_predicts *made = ll_predictor_info(p);
    CHECK(made->meaning != LL_NUMBERS && made->type.shape.n == 1 && made->type.dtype == LL_F32,
          LL_E_ARG,
          "model %s is not a classifier: %s is not one row of logits or probabilities per sample",
          r->model.name, made->name);
    if (samples <= 0 || samples > f->n[LL_VAL]) samples = f->n[LL_VAL];
    int64_t n = made->type.shape.d[0];
    counting x = {.p = p, .d = d, .members = m, .arena = a};
    x.confusion = LL_NEW_ARRAY(a, int64_t, n * n);
    if (m) x.alone = LL_NEW_ARRAY(a, int64_t, m->n);
    *out = (ll_classes){.n = n, .confusion = x.confusion, .top = top, .alone = x.alone};
    out->names = names_of(f, n, a);
    return count_all(&x, out, samples, told);
}

ll_class_score ll_class_score_of(const ll_classes *c, int64_t k)
{
    int64_t hits = c->confusion[k * c->n + k], taken = 0;
    ll_class_score s = {0};
    for (int64_t i = 0; i < c->n; i++) {
        taken += c->confusion[i * c->n + k];
        s.support += c->confusion[k * c->n + i];
    }
    s.precision = taken ? (double)hits / (double)taken : NAN;
    s.recall = s.support ? (double)hits / (double)s.support : NAN;
    s.f1 = taken + s.support ? 2 * (double)hits / (double)(taken + s.support) : NAN;
    return s;
}

/* ---- the picture ---- */

enum { LEFT = 130, TOP = 150, SIDE = 34, SMALL = 8, FEW = 40 };

static char *name_of(const ll_classes *c, int64_t k, ll_arena *a)
{
    return c->names ? ll_plot_xml(a, c->names[k]) : ll_arena_printf(a, "%ld", k);
}

static void add_cell(ll_buf *b, const ll_classes *c, int64_t row, int64_t column, int side,
                     double of)
{
    int64_t n = c->confusion[row * c->n + column];
    double x = LEFT + (double)(column * side), y = TOP + (double)(row * side);
    if (!n) return;
    ll_buf_printf(
        b,
        "<rect x=\"%g\" y=\"%g\" width=\"%d\" height=\"%d\" class=\"f%d\" opacity=\"%.3f\">"
        "<title>%s taken for %s: %ld</title></rect>\n",
        x, y, side - 1, side - 1, row == column ? 1 : 2, 0.1 + 0.5 * (double)n / of,
        name_of(c, row, b->arena), name_of(c, column, b->arena), n);
    if (side == SIDE)
        ll_buf_printf(b,
                      "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\" class=\"soft\">%ld</text>\n",
                      x + side / 2.0, y + side / 2.0 + 4, n);
}

char *ll_classes_svg(const ll_classes *c, const char *title, ll_arena *a)
{
    ll_buf b = {.arena = a};
    int side = c->n <= FEW ? SIDE : SMALL, all = (int)c->n * side;
    int width = LEFT + all + 90; /* the last column's name leans out */
    ll_plot_begin(&b, width > 360 ? width : 360, TOP + all + 30, title);
    ll_plot_words(&b, title, "rows: the class; columns: what it was taken for");
    for (int64_t k = 0; k < c->n && side == SIDE; k++) {
        double at = (double)(k * side) + side / 2.0 + 4;
        const char *name = name_of(c, k, a);
        ll_buf_printf(&b,
                      "<text x=\"%d\" y=\"%g\" text-anchor=\"end\" class=\"soft\">%s</text>\n<text "
                      "transform=\"translate(%g,%d) rotate(-45)\" class=\"soft\">%s</text>\n",
                      LEFT - 8, TOP + at, name, LEFT + at, TOP - 8, name);
    }
    for (int64_t i = 0; i < c->n; i++) {
        double of = fmax(1, (double)ll_class_score_of(c, i).support);
        for (int64_t k = 0; k < c->n; k++) add_cell(&b, c, i, k, side, of);
    }
    ll_plot_end(&b);
    return b.text;
}
