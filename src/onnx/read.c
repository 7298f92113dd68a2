/* read.c: ONNX files, strictly. Before protobuf-c unpacks a file, its messages are walked once, so
 * that none is nested deeper than the stack has room for; what is unpacked lies in an arena with a
 * limit that follows from the file's size. A tensor's numbers must be just as many as its
 * dimensions say. */
#include "onnx/read.h"
#include "base/file.h"

#include <stdio.h>

enum { MAX_DEPTH = 64 };
#define MAX_FILE ((size_t)1 << 31) /* of any protobuf file */

/* ---- element types ---- */

typedef struct kind {
    const char *name;
    size_t bytes; /* in raw data */
    ll_dtype dtype;
    int64_t least, most; /* of whole numbers */
} kind;

static const kind kinds[] = {
    [ONNX_FLOAT] = {"float", 4, LL_F32},
    [ONNX_UINT8] = {"uint8", 1, LL_I32, 0, UINT8_MAX},
    [ONNX_INT8] = {"int8", 1, LL_I32, INT8_MIN, INT8_MAX},
    [ONNX_UINT16] = {"uint16", 2, LL_I32, 0, UINT16_MAX},
    [ONNX_INT16] = {"int16", 2, LL_I32, INT16_MIN, INT16_MAX},
    [ONNX_INT32] = {"int32", 4, LL_I32, INT32_MIN, INT32_MAX},
    [ONNX_INT64] = {"int64", 8, LL_I32, INT64_MIN, INT64_MAX},
    [ONNX_STRING] = {"string", 0, LL_N_DTYPE},
    [ONNX_BOOL] = {"bool", 1, LL_I32, 0, 1},
    [ONNX_FLOAT16] = {"float16", 2, LL_F32},
    [ONNX_DOUBLE] = {"double", 8, LL_F64},
    [ONNX_UINT32] = {"uint32", 4, LL_I32, 0, UINT32_MAX},
    [ONNX_UINT64] = {"uint64", 8, LL_I32, 0, INT64_MAX},
    [14] = {"complex64", 0, LL_N_DTYPE},
    [15] = {"complex128", 0, LL_N_DTYPE},
    [ONNX_BFLOAT16] = {"bfloat16", 2, LL_F32},
    {"float8e4m3fn", 0, LL_N_DTYPE},
    {"float8e4m3fnuz", 0, LL_N_DTYPE},
    {"float8e5m2", 0, LL_N_DTYPE},
    {"float8e5m2fnuz", 0, LL_N_DTYPE},
    {"uint4", 0, LL_N_DTYPE},
    {"int4", 0, LL_N_DTYPE},
    {"float4e2m1", 0, LL_N_DTYPE},
};

static const kind *kind_of(int type)
{
    bool known = type > 0 && type < (int)(sizeof kinds / sizeof kinds[0]) && kinds[type].name;
    static const kind none = {"an element type that is not known", 0, LL_N_DTYPE};
    return known ? &kinds[type] : &none;
}

const char *ll_onnx_type_name(int type)
{
    return kind_of(type)->name;
}

ll_dtype ll_onnx_dtype(int type)
{
    return kind_of(type)->dtype;
}

bool ll_onnx_whole(int type)
{
    return kind_of(type)->dtype == LL_I32;
}

static size_t kept_bytes(int type)
{
    return ll_onnx_dtype(type) == LL_F32 ? 4 : 8;
}

double ll_onnx_at(const host *h, int64_t i)
{
    if (ll_onnx_whole(h->type)) return (double)((const int64_t *)h->data)[i];
    return ll_load(h->data, ll_onnx_dtype(h->type), i);
}

void ll_onnx_put(host *h, int64_t i, double v)
{
    if (ll_onnx_whole(h->type))
        ((int64_t *)h->data)[i] = (int64_t)v;
    else
        ll_store(h->data, ll_onnx_dtype(h->type), i, v);
}

host *ll_onnx_host(ll_arena *a, int type, const ll_shape *shape)
{
    host *h = LL_NEW(a, host);
    size_t n = (size_t)ll_numel(shape);
    *h = (host){type, *shape, ll_arena_try(a, (n ? n : 1) * kept_bytes(type))};
    return h->data ? h : NULL;
}

/* ---- messages ---- */

static bool varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t b = *(*at)++;
        *out |= (uint64_t)(b & 127) << shift;
        if (b < 128) return true;
    }
    return false;
}

static const ProtobufCFieldDescriptor *field(const ProtobufCMessageDescriptor *d, uint64_t id)
{
    for (unsigned i = 0; i < d->n_fields; i++)
        if (d->fields[i].id == id) return &d->fields[i];
    return NULL;
}

/* Messages within messages: at most depth deep, each within the one around it. */
static ll_err look(const ProtobufCMessageDescriptor *d, const uint8_t *at, const uint8_t *end,
                   const char *name, int depth)
{
    CHECK(depth, LL_E_IO, "%s: messages are nested deeper than %d", name, MAX_DEPTH);
    while (at < end) {
        uint64_t tag, n = 0;
        bool ok = varint(&at, end, &tag);
        int wire = (int)(tag & 7);
        if (ok && (wire == 0 || wire == 2)) ok = varint(&at, end, &n);
        size_t skip = wire == 1 ? 8 : wire == 5 ? 4 : wire == 2 ? n : 0;
        ok = ok && (wire <= 2 || wire == 5) && skip <= (size_t)(end - at);
        CHECK(ok, LL_E_IO, "%s is damaged or truncated: not a protobuf message", name);
        const ProtobufCFieldDescriptor *f = wire == 2 ? field(d, tag >> 3) : NULL;
        if (f && f->type == PROTOBUF_C_TYPE_MESSAGE)
            TRY(look(f->descriptor, at, at + n, name, depth - 1));
        at += skip;
    }
    return LL_OK;
}

typedef struct room {
    ll_arena *arena;
    size_t left;
} room;

static void *take(void *data, size_t n)
{
    room *r = data;
    if (n > r->left) return NULL;
    r->left -= n;
    return ll_arena_try(r->arena, n ? n : 1);
}

static void leave(void *, void *)
{
}

ll_err ll_onnx_unpack(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t size,
                      const char *name, ll_arena *a, ProtobufCMessage **out)
{
    TRY(look(d, data, data + size, name, MAX_DEPTH));
    room r = {a, 32 * size + ((size_t)64 << 20)};
    *out = protobuf_c_message_unpack(d, &(ProtobufCAllocator){take, leave, &r}, size, data);
    CHECK(*out, LL_E_IO, "%s is damaged: not an ONNX %s", name, d->short_name);
    return LL_OK;
}

/* ---- tensors ---- */

static ll_err shape_of(const Onnx__Tensor *t, ll_shape *s)
{
    int64_t n = 1;
    CHECK(t->n_dims <= LL_MAX_DIMS, LL_E_SHAPE, "tensor %s has %zu dimensions, expected at most %d",
          t->name, t->n_dims, LL_MAX_DIMS);
    *s = (ll_shape){.n = (int)t->n_dims};
    for (int i = 0; i < s->n; i++) {
        s->d[i] = t->dims[i];
        CHECK(s->d[i] >= 0 && !__builtin_mul_overflow(n, s->d[i] ? s->d[i] : 1, &n) &&
                  n < INT64_MAX / 64,
              LL_E_IO, "tensor %s: dimension %d is %ld", t->name, i, s->d[i]);
    }
    return LL_OK;
}

static const char *entry(const Onnx__Tensor *t, const char *key)
{
    for (size_t i = 0; i < t->n_external_data; i++)
        if (!strcmp(t->external_data[i]->key, key)) return t->external_data[i]->value;
    return NULL;
}

static ll_err number(const Onnx__Tensor *t, const char *key, int64_t initial, int64_t *out)
{
    const char *text = entry(t, key);
    char *end = NULL;
    *out = text ? strtoll(text, &end, 10) : initial;
    CHECK(!text || (*text && !*end && *out >= 0), LL_E_IO, "tensor %s: %s of its file is '%s'",
          t->name, key, text);
    return LL_OK;
}

ll_err ll_onnx_location(const Onnx__Tensor *t, const char **out)
{
    const char *at = *out = entry(t, "location");
    CHECK(at && *at && *at != '/' && !strstr(at, "..") && !strchr(at, '\\'), LL_E_IO,
          "tensor %s: '%s' is not a file inside the model's folder", t->name, at ? at : "");
    return LL_OK;
}

/* Numbers in a file beside the model: inside its folder, and just as many as the tensor has. */
static ll_err outside(const Onnx__Tensor *t, const char *folder, size_t want, ll_arena *a,
                      const void **out)
{
    const char *at;
    int64_t offset, length;
    CHECK(folder, LL_E_IO, "tensor %s is stored in another file, which may not be read here",
          t->name);
    TRY(ll_onnx_location(t, &at));
    TRY(number(t, "offset", 0, &offset));
    TRY(number(t, "length", (int64_t)want, &length));
    CHECK((size_t)length == want, LL_E_IO, "tensor %s: %ld bytes of %s, expected %zu", t->name,
          length, at, want);
    const char *path = ll_arena_printf(a, "%s/%s", folder, at);
    LL_OWN(FILE) f = fopen(path, "rb");
    CHECK(f, LL_E_IO, "tensor %s: %s cannot be opened: %m", t->name, path);
    bool there =
        !fseek(f, 0, SEEK_END) && ftell(f) - offset >= (int64_t)want && !fseek(f, offset, SEEK_SET);
    CHECK(there, LL_E_IO, "tensor %s: %s ends before byte %ld", t->name, path,
          (offset + (int64_t)want));
    void *data = ll_arena_try(a, want ? want : 1);
    CHECK(data && fread(data, 1, want, f) == want, LL_E_IO, "tensor %s: %s cannot be read", t->name,
          path);
    *out = data;
    return LL_OK;
}

static int64_t raw_whole(const uint8_t *p, const kind *k)
{
    uint64_t u = 0;
    memcpy(&u, p, k->bytes);
    if (k->least < 0 && k->bytes < 8 && u >> (8 * k->bytes - 1)) u -= (uint64_t)1 << (8 * k->bytes);
    return (int64_t)u;
}

static void raw_floats(const void *from, int type, int64_t n, float *to)
{
    const uint16_t *half = from;
    for (int64_t i = 0; i < n; i++)
        to[i] = type == ONNX_FLOAT16 ? ll_f16_to_f32(half[i]) : ll_bf16_to_f32(half[i]);
}

static ll_err from_raw(const Onnx__Tensor *t, const void *raw, int64_t n, host *h)
{
    const kind *k = kind_of(h->type);
    for (int64_t i = 0; i < n && k->dtype == LL_I32; i++) {
        int64_t v = raw_whole((const uint8_t *)raw + (size_t)i * k->bytes, k);
        CHECK(v >= k->least && v <= k->most, LL_E_IO, "tensor %s: a %s of %ld", t->name, k->name,
              v);
        ((int64_t *)h->data)[i] = v;
    }
    if (k->bytes == 2 && k->dtype == LL_F32)
        raw_floats(raw, h->type, n, h->data);
    else if (k->dtype != LL_I32)
        memcpy(h->data, raw, (size_t)n * k->bytes);
    return LL_OK;
}

/* Which list holds a type's numbers where they are not raw bytes. */
static ll_err from_lists(const Onnx__Tensor *t, int64_t n, host *h)
{
    const kind *k = kind_of(h->type);
    bool wide = h->type == ONNX_INT64, natural = h->type == ONNX_UINT32 || h->type == ONNX_UINT64;
    size_t have = h->type == ONNX_FLOAT    ? t->n_float_data
                  : h->type == ONNX_DOUBLE ? t->n_double_data
                  : wide                   ? t->n_int64_data
                  : natural                ? t->n_uint64_data
                                           : t->n_int32_data;
    CHECK((int64_t)have == n, LL_E_IO, "tensor %s has %zu numbers, but its dimensions say %ld",
          t->name, have, n);
    for (int64_t i = 0; i < n; i++) {
        if (h->type == ONNX_FLOAT || h->type == ONNX_DOUBLE) {
            ll_store(h->data, k->dtype, i,
                     k->dtype == LL_F64 ? t->double_data[i] : (double)t->float_data[i]);
            continue;
        }
        int64_t v = wide      ? t->int64_data[i]
                    : natural ? (int64_t)t->uint64_data[i]
                              : t->int32_data[i];
        uint16_t bits = (uint16_t)v;
        if (k->dtype == LL_F32) {
            raw_floats(&bits, h->type, 1, (float *)h->data + i);
            continue;
        }
        CHECK(v >= k->least && v <= k->most, LL_E_IO, "tensor %s: a %s of %ld", t->name, k->name,
              v);
        ((int64_t *)h->data)[i] = v;
    }
    return LL_OK;
}

ll_err ll_onnx_tensor(const Onnx__Tensor *t, int declared, const char *folder, ll_arena *a,
                      const host **out)
{
    ll_shape s;
    int type = declared == ONNX_BFLOAT16 && t->data_type == ONNX_UINT16 ? declared : t->data_type;
    const kind *k = kind_of(type);
    TRY(shape_of(t, &s));
    CHECK(k->dtype != LL_N_DTYPE, LL_E_ARG,
          "tensor %s is of type %s, which cannot be computed with", t->name, k->name);
    CHECK(!t->segment, LL_E_ARG, "tensor %s is one segment of a larger one", t->name);
    int64_t n = ll_numel(&s);
    const void *raw = t->raw_data.data;
    size_t want = (size_t)n * k->bytes;
    bool lists = t->n_float_data || t->n_int32_data || t->n_int64_data || t->n_double_data ||
                 t->n_uint64_data;
    if (t->data_location == 1) {
        TRY(outside(t, folder, want, a, &raw));
    } else if (!lists) {
        CHECK(t->raw_data.len == want, LL_E_IO,
              "tensor %s has %zu bytes, but its dimensions say %zu", t->name, t->raw_data.len,
              want);
    } else {
        raw = NULL;
    }
    if (raw && (type == ONNX_FLOAT || type == ONNX_DOUBLE) && !((uintptr_t)raw % k->bytes)) {
        host *there = LL_NEW(a, host); /* lies as it should */
        *there = (host){type, s, (void *)(uintptr_t)raw};
        *out = there;
        return LL_OK;
    }
    host *h = ll_onnx_host(a, type, &s);
    CHECK(h, LL_E_MEM, "tensor %s has no room", t->name);
    if (n) TRY(raw ? from_raw(t, raw, n, h) : from_lists(t, n, h));
    *out = h;
    return LL_OK;
}

/* ---- models ---- */

ll_err ll_onnx_parse(ll_arena *a, const uint8_t *data, size_t size, const char *name,
                     const char *folder, ll_onnx **out)
{
    ProtobufCMessage *model;
    *out = NULL;
    TRY(ll_onnx_unpack(&onnx__model__descriptor, data, size, name, a, &model));
    ll_onnx *m = LL_NEW(a, ll_onnx);
    *m = (ll_onnx){a, ll_arena_strdup(a, name), folder ? ll_arena_strdup(a, folder) : NULL,
                   (Onnx__Model *)model};
    CHECK(m->model->graph, LL_E_IO, "%s has no graph: not an ONNX model", name);
    CHECK(m->model->n_opset_import, LL_E_IO, "%s does not name its opset", name);
    *out = m;
    return LL_OK;
}

ll_err ll_onnx_load(ll_arena *a, const char *path, ll_onnx **out)
{
    LL_OWN_MEMORY uint8_t *data = NULL;
    LL_OWN_MEMORY char *folder = strdup(path);
    size_t size;
    *out = NULL;
    CHECK(folder && *path, LL_E_IO, "a model's file has a name");
    char *slash = strrchr(folder, '/');
    strcpy(slash ? slash : folder, slash ? "" : ".");
    TRY(ll_file_read(path, MAX_FILE, &data, &size));
    return ll_onnx_parse(a, data, size, path, *folder ? folder : "/", out);
}
