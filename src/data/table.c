/* table.c: which arrays become fields, and their numbers as the fields want them. */
#include "data/table.h"

#include "base/types.h"

#include <float.h>
#include <math.h>

void ll_table_begin(ll_dataset *d)
{
    if (d->table) return; /* files for validation are added to those to train on */
    d->table = LL_NEW(d->arena, ll_table);
    d->info.kind = LL_RECORDS;
}

void ll_table_file(ll_dataset *d, const char *file)
{
    ll_table *t = d->table;
    t->file = ll_arena_strdup(d->arena, file);
    t->offered[0] = '\0';
    t->n_offered = 0;
}

bool ll_fields_next(const char **at, ll_arena *a, const char **field, const char **array)
{
    if (!*at || !**at) return false;
    *at += strspn(*at, " ");
    size_t n = strcspn(*at, ","), length = n;
    while (length && (*at)[length - 1] == ' ') length--;
    char *item = ll_arena_printf(a, "%.*s", (int)length, *at), *equals = strchr(item, '=');
    *field = *array = item;
    if (equals) { /* blanks around it do not count */
        char *end = equals;
        while (end > item && end[-1] == ' ') end--;
        *end = '\0';
        *array = equals + 1 + strspn(equals + 1, " ");
    }
    *at += n + ((*at)[n] == ',');
    return true;
}

const char *ll_table_renamed(ll_arena *a, const char *map, const char *name, int number)
{
    for (const char *field, *array; ll_fields_next(&map, a, &field, &array);)
        if (!strcmp(array, name) && !number--) return field;
    return NULL;
}

const ll_field *ll_table_wanted(const ll_data_opts *o, const char *field)
{
    for (int i = 0; i < o->n_want; i++)
        if (!strcmp(o->want[i].name, field)) return &o->want[i];
    return NULL;
}

void ll_table_note(ll_dataset *d, const ll_array *a)
{
    ll_table *t = d->table;
    size_t at = strlen(t->offered);
    if (t->n_offered++ >= 16 || at > sizeof t->offered - 80) return;
    char text[LL_SHAPE_TEXT] = "[...]";
    ll_shape s = {.n = a->n_dim};
    memcpy(s.d, a->dim, sizeof s.d);
    if (s.n <= LL_MAX_DIMS) ll_shape_print(&s, text);
    snprintf(t->offered + at, sizeof t->offered - at, "%s%.24s %s", at ? ", " : "", a->name, text);
}

static ll_err new_column(ll_dataset *d, const ll_array *a, const char *field, ll_column **out)
{
    ll_table *t = d->table;
    CHECK(t->n < LL_MAX_FIELDS, LL_E_IO,
          "%s has more than %d arrays (%s ...): name those to use in data.fields", t->file,
          LL_MAX_FIELDS, t->offered);
    ll_column *c = *out = &t->columns[t->n++];
    *c = (ll_column){.name = ll_arena_strdup(d->arena, a->name),
                     .field = ll_arena_strdup(d->arena, field),
                     .type = a->type,
                     .shape = {.n = a->n_dim - 1},
                     .factor = a->factor,
                     .offset = a->offset,
                     .picture = a->rows.paths,
                     .map = a->map,
                     .standard = a->standard};
    memcpy(c->shape.d, a->dim + 1, sizeof(int64_t) * (size_t)c->shape.n);
    return LL_OK;
}

static ll_err find_column(ll_dataset *d, const ll_array *a, const char *field, ll_column **out)
{
    ll_table *t = d->table;
    *out = NULL;
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->columns[i].name, a->name) && !strcmp(t->columns[i].field, field))
            *out = &t->columns[i];
    if (!*out) {
        CHECK(t->n == 0 || t->columns[0].n_part == 0 || t->columns[0].parts[0].file == t->file,
              LL_E_IO, "%s: array %s is not in %s", t->file, a->name, t->columns[0].parts[0].file);
        return new_column(d, a, field, out);
    }
    const ll_column *c = *out;
    bool same = c->shape.n == a->n_dim - 1 && c->type.kind == a->type.kind &&
                c->type.bytes == a->type.bytes && c->type.swap == a->type.swap &&
                c->factor == a->factor && c->offset == a->offset;
    for (int i = 0; same && i < c->shape.n; i++) same = c->shape.d[i] == a->dim[i + 1];
    CHECK(same, LL_E_IO, "%s: array %s has another type or shape than in %s", t->file, a->name,
          c->parts[0].file);
    return LL_OK;
}

ll_err ll_table_take(ll_dataset *d, const ll_array *a, const char *field)
{
    ll_table *t = d->table;
    const ll_data_opts *o = d->opts;
    ll_column *c;
    if (!o->fields && o->n_want && !ll_table_wanted(o, field)) return LL_OK;
    bool named = o->fields || o->n_want;
    if (!named && (a->n_dim < 1 || !a->type.kind)) return LL_OK; /* no samples: a text, a scalar */
    CHECK(a->n_dim < 1 || a->dim[0] > 0, LL_E_IO, "%s: array %s has no samples", t->file, a->name);
    CHECK(a->type.kind || !a->text, LL_E_IO, "%s", a->text);
    CHECK(a->type.kind, LL_E_IO, "%s: array %s has elements that are not numbers", t->file,
          a->name);
    CHECK(a->n_dim >= 1 && a->n_dim <= LL_MAX_DIMS, LL_E_IO,
          "%s: array %s has %d dimensions, expected 1 to %d, the first for samples", t->file,
          a->name, a->n_dim, LL_MAX_DIMS);
    TRY(find_column(d, a, field, &c));
    ll_data_part p = a->rows;
    p.file = t->file, p.n = a->dim[0];
    if (!p.stride) p.stride = (size_t)ll_numel(&c->shape) * (size_t)a->type.bytes;
    LL_PUSH(d->arena, c->parts, c->n_part, c->capacity, p);
    return LL_OK;
}

ll_err ll_table_offer(ll_dataset *d, const ll_array *a)
{
    const char *map = d->opts->fields, *field;
    ll_table_note(d, a);
    if (!map) return ll_table_take(d, a, a->field ? a->field : a->name);
    for (int i = 0; (field = ll_table_renamed(d->arena, map, a->name, i)); i++)
        TRY(ll_table_take(d, a, field)); /* it may be several inputs */
    return LL_OK;
}

/* Every name of data.fields, or input of the model, must have been found. */
static ll_err all_found(const ll_dataset *d)
{
    const ll_table *t = d->table;
    const ll_data_opts *o = d->opts;
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *fields = t->sorted_out ? NULL : o->fields;
    for (const char *at = fields, *field, *array; ll_fields_next(&at, a, &field, &array);) {
        bool found = false;
        for (int i = 0; i < t->n; i++) found |= !strcmp(t->columns[i].name, array);
        CHECK(found, LL_E_IO, "%s: data.fields names %s, but the file has %s", t->file, array,
              t->n_offered ? t->offered : "nothing");
    }
    for (int i = 0; i < o->n_want; i++) {
        bool found = false;
        for (int k = 0; k < t->n; k++) found |= !strcmp(t->columns[k].field, o->want[i].name);
        CHECK(found, LL_E_IO, "%s: the model takes %s; there %s %s: set data.fields: \"%s=...\"",
              t->file, o->want[i].name, t->n_offered ? "are" : "is",
              t->n_offered ? t->offered : "nothing", o->want[i].name);
    }
    return LL_OK;
}

ll_err ll_table_file_end(ll_dataset *d)
{
    ll_table *t = d->table;
    TRY(all_found(d));
    CHECK(t->n > 0, LL_E_IO, "%s has no arrays of samples", t->file);
    const ll_data_part *first = &t->columns[0].parts[t->columns[0].n_part - 1];
    for (int i = 0; i < t->n; i++) {
        const ll_column *c = &t->columns[i];
        CHECK(c->n_part == t->columns[0].n_part && c->parts[c->n_part - 1].file == t->file, LL_E_IO,
              "%s: array %s is missing, but other files have it", t->file, c->name);
        CHECK(c->parts[c->n_part - 1].n == first->n, LL_E_IO,
              "%s: arrays differ in their first dimension, which counts samples: %s; name those to "
              "use in data.fields",
              t->file, t->offered);
    }
    t->rows[d->reading] += first->n;
    return LL_OK;
}

/* The same numbers in the same order: shapes that differ in dimensions of 1 alone. */
static bool same_but_ones(const ll_shape *a, const ll_shape *b)
{
    int i = 0, k = 0;
    for (;; i++, k++) {
        while (i < a->n && a->d[i] == 1) i++;
        while (k < b->n && b->d[k] == 1) k++;
        if (i == a->n || k == b->n) return i == a->n && k == b->n;
        if (a->d[i] != b->d[k]) return false;
    }
}

/* What a column becomes where no model says: whole numbers i32, but for bytes of more than a label,
 * which are taken for pictures. */
static void add_field(ll_dataset *d, ll_column *c)
{
    const ll_field *want = ll_table_wanted(d->opts, c->field);
    const ll_data_info *i = &d->info;
    if (c->picture) {
        bool whole = c->map && !(want && ll_dtype_is_float(want->dtype));
        ll_shape shape = LL_SHAPE(i->height, i->width, i->channels);
        if (c->map) shape.n = 2;
        if (want && same_but_ones(&want->shape, &shape)) shape = want->shape;
        ll_field_add(d, c->field, whole ? LL_I32 : LL_F32, shape);
        return;
    }
    bool whole = c->type.kind != 'f' && c->type.kind != 'b' && c->factor == 0;
    bool bytes = c->type.kind == 'u' && c->type.bytes == 1;
    ll_field f = {c->field, whole && !(bytes && c->shape.n) ? LL_I32 : LL_F32, c->shape};
    if (want) f.dtype = want->dtype;
    if (want && same_but_ones(&want->shape, &c->shape)) f.shape = want->shape;
    if (bytes && ll_dtype_is_float(f.dtype) && c->factor == 0) c->factor = 1 / 255.0;
    ll_field_add(d, c->field, f.dtype, f.shape);
}

ll_err ll_table_finish(ll_dataset *d)
{
    ll_table *t = d->table;
    int64_t all = t->rows[LL_TRAIN], held = t->rows[LL_VAL];
    for (int i = 0; i < t->n; i++) add_field(d, &t->columns[i]);
    if (!t->pick[LL_TRAIN]) {
        d->info.n[LL_VAL] = held ? held : (int64_t)ceil((double)all * ll_data_held_out(d));
        d->info.n[LL_TRAIN] = held ? all : all - d->info.n[LL_VAL];
        t->first[LL_VAL] = d->info.n[LL_TRAIN];
    }
    for (int s = 0; s < 2; s++)
        CHECK(d->info.n[s] > 0, LL_E_IO, "%s: none of %ld samples is left %s", d->info.where,
              (all + held), s == LL_TRAIN ? "to train on" : "for validation");
    return LL_OK;
}

void ll_table_pick(ll_dataset *d, const int8_t *part, int64_t n)
{
    ll_table *t = d->table;
    int64_t *pick[2], *count = d->info.n;
    count[0] = count[1] = 0;
    for (int64_t i = 0; i < n; i++)
        if (part[i] != LL_TABLE_NEITHER) count[part[i]]++;
    for (int s = 0; s < 2; s++)
        t->pick[s] = pick[s] = LL_NEW_ARRAY(d->arena, int64_t, count[s] + 1);
    count[0] = count[1] = 0;
    for (int64_t i = 0; i < n; i++)
        if (part[i] != LL_TABLE_NEITHER) pick[part[i]][count[part[i]]++] = i;
}

const ll_column *ll_table_find(const ll_table *t, const char *field)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->columns[i].field, field)) return &t->columns[i];
    return NULL;
}

int64_t ll_table_row(const ll_table *t, ll_split split, int64_t i)
{
    return t->pick[split] ? t->pick[split][i] : t->first[split] + i;
}

#define CHUNK 256
#define LOAD(type)                                                                                 \
    for (int64_t i = 0; i < n; i++) {                                                              \
        type v;                                                                                    \
        memcpy(&v, p + (size_t)i * sizeof v, sizeof v);                                            \
        out[i] = (double)v;                                                                        \
    }                                                                                              \
    break

/* n elements in this machine's byte order. */
static void load(ll_elem t, const uint8_t *p, int64_t n, double *out)
{
    switch (t.kind << 8 | t.bytes) {
    case 'f' << 8 | 4: LOAD(float);
    case 'f' << 8 | 8: LOAD(double);
    case 'u' << 8 | 1:
    case '?' << 8 | 1: LOAD(uint8_t);
    case 'u' << 8 | 2: LOAD(uint16_t);
    case 'u' << 8 | 4: LOAD(uint32_t);
    case 'u' << 8 | 8: LOAD(uint64_t);
    case 'i' << 8 | 1: LOAD(int8_t);
    case 'i' << 8 | 2: LOAD(int16_t);
    case 'i' << 8 | 4: LOAD(int32_t);
    case 'i' << 8 | 8: LOAD(int64_t);
    case 'f' << 8 | 2:
        for (int64_t i = 0; i < n; i++) out[i] = ll_load(p, LL_F16, i);
        break;
    case 'b' << 8 | 2:
        for (int64_t i = 0; i < n; i++) out[i] = ll_load(p, LL_BF16, i);
        break;
    default: LL_ASSERT(!"an element that readers make");
    }
}

static void swap_bytes(uint8_t *p, int64_t n, int bytes)
{
    for (; n > 0; n--, p += bytes)
        for (int i = 0; i < bytes / 2; i++) {
            uint8_t b = p[i];
            p[i] = p[bytes - 1 - i];
            p[bytes - 1 - i] = b;
        }
}

static ll_err convert(const ll_column *c, const ll_data_part *part, int64_t row, const uint8_t *raw,
                      const ll_field *f, void *out)
{
    const int64_t n = ll_numel(&c->shape);
    const bool whole = !ll_dtype_is_float(f->dtype);
    const double most = f->dtype == LL_U8 ? 255 : INT32_MAX,
                 least = f->dtype == LL_U8 ? 0 : INT32_MIN;
    /* others are never too large for f32 */
    const bool large = f->dtype == LL_F32 && (c->type.bytes == 8 || c->factor != 0 || c->mean);
    uint8_t swapped[CHUNK * 8];
    double v[CHUNK];
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t some = n - at < CHUNK ? n - at : CHUNK;
        const uint8_t *p = raw + at * c->type.bytes;
        if (c->type.swap) {
            memcpy(swapped, p, (size_t)(some * c->type.bytes));
            swap_bytes(swapped, some, c->type.bytes);
            p = swapped;
        }
        load(c->type, p, some, v);
        for (int64_t i = 0; c->factor != 0 && i < some; i++) v[i] = v[i] * c->factor + c->offset;
        for (int64_t i = 0; c->mean && i < some; i++)
            v[i] = (v[i] - c->mean[at + i]) / c->deviation[at + i];
        for (int64_t i = 0; whole && i < some; i++)
            CHECK(v[i] >= least && v[i] <= most && v[i] == floor(v[i]), LL_E_IO,
                  "%s: %s of %s %ld is %g, expected a whole number for %s of %s", part->file,
                  c->name, part->line ? "line" : "sample", (part->line ? part->line[row] : row),
                  v[i], ll_dtype_name(f->dtype), f->name);
        for (int64_t i = 0; large && i < some; i++) /* inf: of a file that has it */
            CHECK(!(fabs(v[i]) > FLT_MAX) || (isinf(v[i]) && !c->mean), LL_E_IO,
                  "%s: %s of %s %ld: number %ld is too large for f32: divide it", part->file,
                  c->name, part->line ? "line" : "sample", (part->line ? part->line[row] : row),
                  (at + i + 1));
        if (f->dtype == LL_F32)
            for (int64_t i = 0; i < some; i++) ((float *)out)[at + i] = (float)v[i];
        else
            for (int64_t i = 0; i < some; i++) ll_store(out, f->dtype, at + i, v[i]);
    }
    return LL_OK;
}

const ll_data_part *ll_column_part(const ll_column *c, int64_t *row)
{
    const ll_data_part *p = c->parts;
    while (*row >= p->n) *row -= p++->n;
    return p;
}

ll_err ll_column_read(const ll_column *c, int64_t row, const ll_field *f, void *out)
{
    const ll_data_part *p = ll_column_part(c, &row);
    size_t bytes = (size_t)ll_numel(&c->shape) * (size_t)c->type.bytes;
    const uint8_t *raw = p->data + (size_t)row * p->stride;
    LL_OWN_MEMORY uint8_t *room = NULL;
    if (p->row) {
        raw = room = malloc(bytes ? bytes : 1);
        CHECK(room, LL_E_MEM, "%s: not enough memory for a sample of %zu bytes", p->file, bytes);
        TRY(p->row(p->user, row, room));
    }
    bool same = f->dtype == LL_F32
                    ? c->type.kind == 'f' && c->type.bytes == 4
                    : f->dtype == LL_I32 && c->type.kind == 'i' && c->type.bytes == 4;
    if (!same || c->type.swap || c->factor != 0 || c->mean) return convert(c, p, row, raw, f, out);
    memcpy(out, raw, bytes);
    return LL_OK;
}
