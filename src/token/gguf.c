/* gguf.c: GGUF, versions 2 and 3, of little endian:
 *   "GGUF", version, number of tensors, of pairs; the pairs; each tensor's name, dimensions
 *   (the first runs fastest), type and place; then, at a multiple of general.alignment, data. */
#include "token/gguf.h"

#include "base/num.h"
#include "kern/blocks.h"

#include <math.h>

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64, N_TYPE };
static const uint8_t bytes_of[N_TYPE] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
enum { MOST = 1 << 24 }; /* pairs, tensors, and characters of a name */

/* ---- blocks ---- */

static float half(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return (float)ll_load(&h, LL_F16, 0);
}

static void q4_0(const uint8_t *p, float *y)
{
    float d = half(p);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((p[2 + i] & 15) - 8);
        y[i + 16] = d * (float)((p[2 + i] >> 4) - 8);
    }
}

/* Eight groups of 32, with 6 bits each for scale and least value; of the last four groups the upper
 * 2 bits lie in those of the first. */
static void q4_k(const uint8_t *p, float *y)
{
    float d = half(p), m = half(p + 2);
    const uint8_t *s = p + 4, *q = p + 16;
    for (int k = 0; k < 8; k++) {
        int scale = k < 4 ? s[k] & 63 : (s[k + 4] & 15) | s[k - 4] >> 6 << 4;
        int least = k < 4 ? s[k + 4] & 63 : s[k + 4] >> 4 | s[k] >> 6 << 4;
        for (int i = 0; i < 32; i++) {
            int v = k % 2 ? q[k / 2 * 32 + i] >> 4 : q[k / 2 * 32 + i] & 15;
            y[k * 32 + i] = d * (float)scale * (float)v - m * (float)least;
        }
    }
}

/* Sixteen groups of 16, with a scale of 8 bits each; 4 lower bits, then 2 upper ones. */
static void q6_k(const uint8_t *p, float *y)
{
    const uint8_t *low = p, *high = p + 128;
    const int8_t *s = (const int8_t *)p + 192;
    float d = half(p + 208);
    for (int i = 0; i < 256; i++) {
        int part = i / 128, k = i % 128 / 32, l = i % 32;
        int bits = low[part * 64 + k % 2 * 32 + l] >> (k / 2 * 4) & 15;
        int v = (bits | (high[part * 32 + l] >> (2 * k) & 3) << 4) - 32;
        y[i] = d * (float)s[i / 16] * (float)v;
    }
}

static const ll_quant quants[] = {{0, "F32", LL_F32, 1, 4, NULL},
                                  {1, "F16", LL_F16, 1, 2, NULL},
                                  {2, "Q4_0", LL_F32, 32, 18, q4_0},
                                  {3, "Q4_1", LL_F32, 32, 20, ll_unpack_int4},
                                  {8, "Q8_0", LL_F32, 32, 34, ll_unpack_int8},
                                  {12, "Q4_K", LL_F32, 256, 144, q4_k},
                                  {14, "Q6_K", LL_F32, 256, 210, q6_k},
                                  {30, "BF16", LL_BF16, 1, 2, NULL}};

const ll_quant *ll_quant_find(int id)
{
    for (size_t i = 0; i < sizeof quants / sizeof *quants; i++)
        if (quants[i].id == id) return &quants[i];
    return NULL;
}

/* ---- reading ---- */

typedef struct reader {
    const uint8_t *at, *begin, *end;
    const char *path;
    ll_arena *arena;
} reader;

static ll_err need(const reader *r, uint64_t bytes)
{
    CHECK(bytes <= (uint64_t)(r->end - r->at), LL_E_IO,
          "%s: ends at byte %ld, in the middle of its header", r->path, (r->end - r->begin));
    return LL_OK;
}

static ll_err number(reader *r, int bytes, uint64_t *out)
{
    TRY(need(r, (uint64_t)bytes));
    *out = ll_le(r->at, bytes);
    r->at += bytes;
    return LL_OK;
}

static ll_err text(reader *r, const char **out)
{
    uint64_t n;
    TRY(number(r, 8, &n));
    CHECK(n < MOST, LL_E_IO, "%s: a name of %lu bytes, at byte %ld", r->path, n,
          (r->at - r->begin));
    TRY(need(r, n));
    char *s = (char *)ll_arena_alloc(r->arena, n + 1);
    memcpy(s, r->at, n);
    s[n] = '\0';
    r->at += n;
    *out = s;
    return LL_OK;
}

/* Passes over n strings. */
static ll_err pass_texts(reader *r, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t length;
        TRY(number(r, 8, &length));
        CHECK(length < MOST, LL_E_IO, "%s: a string of %lu bytes", r->path, length);
        TRY(need(r, length));
        r->at += length;
    }
    return LL_OK;
}

static ll_err read_pair(reader *r, ll_gguf_pair *p)
{
    uint64_t type, n = 1;
    TRY(text(r, &p->key));
    TRY(number(r, 4, &type));
    p->array = type == ARRAY;
    if (p->array) {
        TRY(number(r, 4, &type));
        TRY(number(r, 8, &n));
    }
    CHECK(type < N_TYPE && type != ARRAY && n <= INT64_MAX / 8, LL_E_IO,
          "%s: %s is of unknown type %lu (or an array of arrays)", r->path, p->key, type);
    p->type = (int)type;
    p->n = (int64_t)n;
    p->at = r->at;
    if (type == TEXT) return pass_texts(r, n);
    TRY(need(r, n * bytes_of[type]));
    r->at += n * bytes_of[type];
    return LL_OK;
}

/* Dimensions in our order; how many elements. */
static ll_err read_shape(reader *r, ll_gguf_tensor *t, uint64_t *count)
{
    uint64_t n, d[8];
    TRY(number(r, 4, &n));
    CHECK(n <= 8, LL_E_IO, "%s: %s has %lu dimensions", r->path, t->name, n);
    uint64_t most = 1; /* but for dimensions of 0, whichever is first */
    *count = 1;
    for (uint64_t i = 0; i < n; i++) {
        TRY(number(r, 8, &d[i]));
        CHECK(!__builtin_mul_overflow(most, d[i] ? d[i] : 1, &most) && most < INT64_MAX / 64,
              LL_E_IO, "%s: %s has more elements than can be counted", r->path, t->name);
        *count *= d[i];
    }
    t->shape.n = n <= LL_MAX_DIMS ? (int)n : -1;
    for (int i = 0; i < t->shape.n; i++) t->shape.d[i] = (int64_t)d[n - 1 - (uint64_t)i];
    return LL_OK;
}

typedef struct place {
    uint64_t at, bytes;
} place;

static ll_err read_tensor(reader *r, ll_gguf_tensor *t, place *p)
{
    uint64_t type, count;
    TRY(text(r, &t->name));
    TRY(read_shape(r, t, &count));
    TRY(number(r, 4, &type));
    TRY(number(r, 8, &p->at));
    t->type = (int)type;
    t->quant = ll_quant_find(t->type);
    if (!t->quant) return LL_OK;
    int64_t row = t->shape.n > 0 ? t->shape.d[t->shape.n - 1] : 1;
    CHECK(row % t->quant->block == 0, LL_E_IO, "%s: %s has rows of %ld, expected a multiple of %d",
          r->path, t->name, row, t->quant->block);
    p->bytes = count / (uint64_t)t->quant->block * (uint64_t)t->quant->bytes;
    return LL_OK;
}

static ll_err alignment(const ll_gguf *g, const char *path, uint64_t *out)
{
    const ll_gguf_pair *p = ll_gguf_find(g, "general.alignment");
    double v = 32;
    bool known = !p || (!p->array && ll_gguf_number(p, &v));
    CHECK(known && v >= 8 && v <= 1 << 20 && fmod(v, 8) == 0, LL_E_IO,
          "%s: general.alignment is %g, expected a multiple of 8", path, known ? v : (double)NAN);
    *out = (uint64_t)v;
    return LL_OK;
}

static ll_err read_all(reader *r, uint64_t n_tensor, uint64_t n_pair, ll_gguf *g)
{
    uint64_t by;
    g->pairs = LL_NEW_ARRAY(r->arena, ll_gguf_pair, n_pair + 1);
    g->tensors = LL_NEW_ARRAY(r->arena, ll_gguf_tensor, n_tensor + 1);
    place *p = LL_NEW_ARRAY(r->arena, place, n_tensor + 1);
    for (; (uint64_t)g->n_pair < n_pair; g->n_pair++) TRY(read_pair(r, &g->pairs[g->n_pair]));
    for (; (uint64_t)g->n_tensor < n_tensor; g->n_tensor++)
        TRY(read_tensor(r, &g->tensors[g->n_tensor], &p[g->n_tensor]));
    TRY(alignment(g, r->path, &by));
    uint64_t head = (uint64_t)(r->at - r->begin), size = (uint64_t)(r->end - r->begin);
    uint64_t from = (head + by - 1) / by * by, room = size > from ? size - from : 0;
    for (int i = 0; i < g->n_tensor; i++) {
        ll_gguf_tensor *t = &g->tensors[i];
        CHECK(p[i].at <= room && p[i].bytes <= room - p[i].at, LL_E_IO,
              "%s: %s lies at bytes %lu to %lu of the data, which has %lu", r->path, t->name,
              p[i].at, (p[i].at + p[i].bytes), room);
        CHECK(p[i].at % by == 0, LL_E_IO,
              "%s: %s lies at byte %lu of the data, expected a multiple of %lu (general.alignment)",
              r->path, t->name, p[i].at, by);
        if (t->quant) t->data = r->begin + from + p[i].at;
    }
    return LL_OK;
}

ll_err ll_gguf_parse(const uint8_t *bytes, size_t size, const char *path, ll_arena *arena,
                     ll_gguf *out)
{
    reader r = {bytes, bytes, bytes + size, path, arena};
    uint64_t magic, version, tensors, pairs;
    *out = (ll_gguf){0};
    TRY(number(&r, 4, &magic));
    CHECK(magic == 0x46554747, LL_E_IO, "%s: does not begin with GGUF", path);
    TRY(number(&r, 4, &version));
    CHECK(version == 2 || version == 3, LL_E_IO, "%s: GGUF of version %lu, expected 2 or 3", path,
          version);
    TRY(number(&r, 8, &tensors));
    TRY(number(&r, 8, &pairs));
    /* a pair has 13 bytes at least, a tensor 24 */
    CHECK(tensors <= size / 24 && pairs <= size / 13 && tensors < MOST && pairs < MOST, LL_E_IO,
          "%s: %zu bytes cannot have %lu tensors and %lu pairs", path, size, tensors, pairs);
    return read_all(&r, tensors, pairs, out);
}

/* ---- pairs ---- */

const ll_gguf_pair *ll_gguf_find(const ll_gguf *g, const char *key)
{
    for (int i = 0; i < g->n_pair; i++)
        if (!strcmp(g->pairs[i].key, key)) return &g->pairs[i];
    return NULL;
}

static double scalar(const uint8_t *p, int type)
{
    uint64_t v = ll_le(p, bytes_of[type]);
    float f;
    double d;
    switch (type) {
    case I8: return (int8_t)v;
    case I16: return (int16_t)v;
    case I32: return (int32_t)v;
    case I64: return (double)(int64_t)v;
    case F32: memcpy(&f, p, 4); return (double)f;
    case F64: memcpy(&d, p, 8); return d;
    default: return (double)v;
    }
}

bool ll_gguf_number(const ll_gguf_pair *p, double *out)
{
    if (!p || (!p->array && p->type == TEXT)) return false;
    *out = p->array ? (double)p->n : scalar(p->at, p->type);
    return true;
}

/* The string at p, which is moved behind it. */
static const char *next_text(const uint8_t **p, ll_arena *a, int *length)
{
    uint64_t n = (uint64_t)scalar(*p, U64);
    char *s = (char *)ll_arena_alloc(a, n + 1);
    memcpy(s, *p + 8, n);
    s[n] = '\0';
    *p += 8 + n;
    *length = (int)n;
    return s;
}

const char *ll_gguf_text(const ll_gguf_pair *p, ll_arena *a)
{
    if (!p || p->array || p->type != TEXT) return NULL;
    const uint8_t *at = p->at;
    int length;
    return next_text(&at, a, &length);
}

const char **ll_gguf_texts(const ll_gguf_pair *p, ll_arena *a, int **lengths)
{
    if (!p || !p->array || p->type != TEXT) return NULL;
    const char **out = LL_NEW_ARRAY(a, const char *, p->n + 1);
    const uint8_t *at = p->at;
    *lengths = LL_NEW_ARRAY(a, int, p->n + 1);
    for (int64_t i = 0; i < p->n; i++) out[i] = next_text(&at, a, &(*lengths)[i]);
    return out;
}

double *ll_gguf_numbers(const ll_gguf_pair *p, ll_arena *a)
{
    if (!p || !p->array || p->type == TEXT) return NULL;
    double *out = LL_NEW_ARRAY(a, double, p->n + 1);
    for (int64_t i = 0; i < p->n; i++) out[i] = scalar(p->at + i * bytes_of[p->type], p->type);
    return out;
}
