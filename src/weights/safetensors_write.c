/* safetensors_write.c: writing: order the tensors, then one pass over the bytes to the file and for
 * the checksums, then the header that has them. Many ranks do the same, each with the bytes it has:
 * checksums of whole tensors are made of theirs, and rank 0, which opened the file, writes the
 * header and, when everyone's bytes are on disk, gives it its name. What ranks do together (begin,
 * sum) and what each does by itself (put, seal) are apart, so that the latter may be a thread's. */
#include "weights/safetensors.h"
#include "base/arena.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/text.h"
#include "run/ranks.h"

#include <stdio.h>
#include <stdlib.h>

static const char *type_name(ll_dtype t)
{
    static const char *const names[] = {
#define X(name, text, bytes) #name,
        LL_DTYPES(X)
#undef X
    };
    return names[t];
}

static size_t bytes_of(const ll_st_tensor *t)
{
    return ll_tensor_bytes(t->dtype, &t->shape);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const ll_st_tensor *const *)a)->name, (*(const ll_st_tensor *const *)b)->name);
}

/* Larger elements first: each tensor then begins at a multiple of its element. */
static int by_place(const void *a, const void *b)
{
    size_t x = ll_dtype_bytes((*(const ll_st_tensor *const *)a)->dtype);
    size_t y = ll_dtype_bytes((*(const ll_st_tensor *const *)b)->dtype);
    return x != y ? (x > y ? -1 : 1) : by_name(a, b);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const ll_st_pair *)a)->key, ((const ll_st_pair *)b)->key);
}

static ll_err check_tensor(const char *path, const ll_st_tensor *t, bool spare)
{
    CHECK(t->name && t->name[0] && strcmp(t->name, "__metadata__"), LL_E_ARG,
          "%s: \"%s\" is not a valid tensor name", path, t->name ? t->name : "");
    CHECK(ll_is_utf8(t->name), LL_E_ARG, "%s: the name of tensor %s is not UTF-8", path, t->name);
    for (int i = 0; i < t->shape.n; i++)
        CHECK(t->shape.d[i] >= 0, LL_E_SHAPE, "%s: tensor %s: dimension %d is %ld", path, t->name,
              i, t->shape.d[i]);
    CHECK(t->data || bytes_of(t) == 0 || spare, LL_E_ARG, "%s: tensor %s has no data", path,
          t->name);
    return LL_OK;
}

struct ll_st_writer {
    const char *path;
    ll_st_content x;
    const ll_st_tensor **order; /* as in the file */
    const ll_st_tensor **named; /* in order of names */
    int *at;                    /* of tensor i as given, its place in the file's order */
    uint32_t *crc;              /* [n], in the file's order: remainders, of all ranks once summed */
    const char *header;         /* as planned */
    size_t header_bytes;        /* it is written last, but decides where the rest lies */
    ll_atomic *f;
    ll_arena *arena;
};

/* Sorts them into the file's order. */
static ll_err arrange(const char *path, const ll_st_content *x, const ll_st_tensor **order,
                      const ll_st_tensor **named)
{
    int n = x->n;
    for (int i = 0; i < n; i++) TRY(check_tensor(path, order[i], x->parts && x->parts[i].spare));
    if (n == 0) return LL_OK;
    qsort(order, (size_t)n, sizeof *order, by_name);
    for (int i = 1; i < n; i++)
        CHECK(strcmp(order[i - 1]->name, order[i]->name), LL_E_ARG, "%s: two tensors are named %s",
              path, order[i]->name);
    memcpy(named, order, sizeof *order * (size_t)n);
    qsort(order, (size_t)n, sizeof *order, by_place);
    return LL_OK;
}

/* By tensor's name, of whole tensors. */
static const char *print_sums(const ll_st_writer *w)
{
    ll_buf b = {.arena = w->arena};
    ll_buf_puts(&b, "");
    for (int k = 0; k < w->x.n; k++) {
        int i = w->at[w->named[k] - w->x.tensors];
        ll_buf_printf(&b, "%s%08x", k ? " " : "", ll_crc32c_of(w->crc[i], bytes_of(w->order[i])));
    }
    return b.text ? b.text : "";
}

/* The remainder of all tensors, one behind another. */
static uint32_t whole_sum(const ll_st_writer *w)
{
    uint32_t r = 0;
    uint64_t bytes = 0;
    for (int i = 0; i < w->x.n; i++) {
        r = ll_crc32c_zeros(r, bytes_of(w->order[i])) ^ w->crc[i];
        bytes += bytes_of(w->order[i]);
    }
    return ll_crc32c_of(r, bytes);
}

static ll_err print_meta(ll_buf *b, const ll_st_writer *w)
{
    char checksum[9];
    int n = w->x.n_meta;
    ll_st_pair *pairs = LL_NEW_ARRAY(b->arena, ll_st_pair, n + 2);
    if (n) memcpy(pairs, w->x.meta, sizeof *pairs * (size_t)n);
    snprintf(checksum, sizeof checksum, "%08x", whole_sum(w));
    if (!w->x.unsummed) {
        pairs[n++] = (ll_st_pair){"crc32c", checksum};
        pairs[n++] = (ll_st_pair){"crc32c.tensors", print_sums(w)};
    }
    qsort(pairs, (size_t)n, sizeof *pairs, by_key);
    ll_buf_puts(b, "{\"__metadata__\":{");
    for (int i = 0; i < n; i++) {
        CHECK(i == 0 || strcmp(pairs[i - 1].key, pairs[i].key), LL_E_ARG,
              "%s: metadata %s is given twice", w->path, pairs[i].key);
        ll_buf_printf(b, "%s%s:%s", i ? "," : "", ll_text_quoted(b->arena, pairs[i].key),
                      ll_text_quoted(b->arena, pairs[i].value));
    }
    ll_buf_puts(b, "}");
    return LL_OK;
}

static void print_tensors(ll_buf *b, const ll_st_tensor *const *order, int n)
{
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const ll_st_tensor *t = order[i];
        char shape[LL_SHAPE_TEXT];
        ll_buf_printf(b, ",%s:{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                      ll_text_quoted(b->arena, t->name), type_name(t->dtype),
                      ll_shape_print(&t->shape, shape), at, at + bytes_of(t));
        at += bytes_of(t);
    }
    ll_buf_puts(b, "}");
    while (b->len % 8) ll_buf_puts(b, " ");
}

/* Of its length too. */
static ll_err print_header(const ll_st_writer *w, ll_buf *b)
{
    uint64_t length = 0;
    ll_buf_add(b, &length, 8);
    TRY(print_meta(b, w));
    print_tensors(b, w->order, w->x.n);
    length = b->len - 8;
    memcpy(b->text, &length, 8);
    return LL_OK;
}

static ll_err plan(ll_st_writer *w)
{
    ll_buf b = {.arena = w->arena};
    TRY(arrange(w->path, &w->x, w->order, w->named));
    for (int i = 0; i < w->x.n; i++) w->at[w->order[i] - w->x.tensors] = i;
    TRY(print_header(w, &b));
    w->header = b.text;
    w->header_bytes = b.len;
    return LL_OK;
}

static ll_st_writer *new_writer(const char *path, const ll_st_content *x)
{
    ll_arena *a = ll_arena_new();
    ll_st_writer *w = LL_NEW(a, ll_st_writer);
    *w = (ll_st_writer){.path = ll_arena_strdup(a, path), .x = *x, .arena = a};
    w->order = LL_NEW_ARRAY(a, const ll_st_tensor *, x->n + 1);
    w->named = LL_NEW_ARRAY(a, const ll_st_tensor *, x->n + 1);
    w->at = LL_NEW_ARRAY(a, int, x->n + 1);
    w->crc = LL_NEW_ARRAY(a, uint32_t, x->n + 1);
    for (int i = 0; i < x->n; i++) w->order[i] = &x->tensors[i];
    return w;
}

void ll_st_writer_close(ll_st_writer *w)
{
    if (!w) return;
    ll_atomic_close(w->f);
    ll_arena_free(w->arena);
}

ll_err ll_st_plan(const ll_st_content *x, ll_arena *arena, ll_st_image *out)
{
    LL_OWN(ll_st_writer) w = new_writer("a state in memory", x);
    TRY(plan(w));
    *out = (ll_st_image){.header_bytes = w->header_bytes, .bytes = w->header_bytes};
    out->header = (char *)ll_arena_copy(arena, w->header, w->header_bytes);
    out->order = LL_NEW_ARRAY(arena, int, x->n + 1);
    out->at = LL_NEW_ARRAY(arena, uint64_t, x->n + 1);
    for (int i = 0; i < x->n; i++) {
        out->order[i] = (int)(w->order[i] - x->tensors);
        out->at[i] = out->bytes;
        out->bytes += bytes_of(w->order[i]);
    }
    return LL_OK;
}

ll_err ll_st_begin(const char *path, const ll_st_content *x, ll_st_writer **out)
{
    ll_comm *c = x->comm;
    bool lead = ll_ranks_lead(c);
    *out = NULL;
    LL_OWN(ll_st_writer) w = new_writer(path, x);
    ll_err rc = plan(w);
    if (rc == LL_OK && lead) rc = ll_atomic_open(path, &w->f);
    TRY(ll_ranks_agree(c, rc));
    int64_t token = lead ? ll_atomic_token(w->f) : 0;
    TRY(ll_ranks_share(c, &token, sizeof token));
    TRY(ll_ranks_agree(c, lead ? LL_OK : ll_atomic_join(path, token, &w->f)));
    return LL_HAND(out, w);
}

/* Of tensor i in the file's order, what this rank is to write. */
static ll_st_runs runs_of(const ll_st_writer *w, int i)
{
    const ll_st_tensor *t = w->order[i];
    ll_st_part whole = {.shape = t->shape};
    const ll_st_part *part = w->x.parts ? &w->x.parts[t - w->x.tensors] : &whole;
    ll_st_runs r = ll_st_runs_of(&t->shape, part, t->dtype);
    if (part->spare) r.n = 0;
    return r;
}

ll_err ll_st_put(ll_st_writer *w)
{
    uint64_t base = w->header_bytes;
    for (int i = 0; i < w->x.n; i++) {
        ll_st_runs runs = runs_of(w, i);
        const char *data = (const char *)w->order[i]->data;
        uint64_t at = 0, all = bytes_of(w->order[i]);
        uint32_t r = 0;
        for (int64_t k = 0; k < runs.n; k++, data += runs.bytes) {
            uint64_t begin = ll_st_run_at(&runs, k);
            TRY(ll_atomic_add_at(w->f, data, (size_t)runs.bytes, base + begin));
            r = ll_crc32c_piece(ll_crc32c_zeros(r, begin - at), data, (size_t)runs.bytes);
            at = begin + runs.bytes;
        }
        w->crc[i] = ll_crc32c_zeros(r, all - at);
        base += all;
    }
    return ll_ranks_lead(w->x.comm) ? LL_OK : ll_atomic_commit(w->f);
}

ll_err ll_st_sum(ll_st_writer *w)
{
    return ll_ranks_xor(w->x.comm, w->crc, w->x.n);
}

ll_err ll_st_seal(ll_st_writer *w)
{
    ll_buf b = {.arena = w->arena};
    if (!ll_ranks_lead(w->x.comm)) return LL_OK;
    TRY(print_header(w, &b));
    LL_ASSERT(b.len == w->header_bytes);
    TRY(ll_atomic_add_at(w->f, b.text, b.len, 0));
    return ll_atomic_commit(w->f);
}

ll_err ll_st_finish(ll_st_writer *w)
{
    TRY(ll_ranks_agree(w->x.comm, ll_st_put(w)));
    TRY(ll_st_sum(w));
    return ll_ranks_agree(w->x.comm, ll_st_seal(w));
}

ll_err ll_st_write(const char *path, const ll_st_content *x)
{
    LL_OWN(ll_st_writer) w = NULL;
    TRY(ll_st_begin(path, x, &w));
    return ll_st_finish(w);
}

/* What print_sums wrote, if it agrees with the checksum of all; NULL: there is none. */
static ll_err read_sums(const ll_st_file *f, const char *all, ll_arena *a, uint32_t **out)
{
    const char *text = ll_st_meta(f, "crc32c.tensors");
    uint32_t *sums = LL_NEW_ARRAY(a, uint32_t, f->n_entries + 1), r = 0;
    *out = text ? sums : NULL;
    for (int i = 0; text && i < f->n_entries; i++) {
        const ll_st_entry *e = &f->entries[i];
        char *end;
        sums[i] = (uint32_t)strtoul(text, &end, 16);
        bool good = end == text + 8 && *end == (i + 1 < f->n_entries ? ' ' : '\0');
        CHECK(good, LL_E_IO, "%s: metadata crc32c.tensors is malformed at '%.20s'", f->path, text);
        text += 9;
        uint32_t mine = ll_crc32c_of(sums[i], e->end - e->begin); /* its own inverse */
        r ^= ll_crc32c_zeros(mine, f->data_bytes - e->end);
    }
    char whole[9];
    snprintf(whole, sizeof whole, "%08x", ll_crc32c_of(r, f->data_bytes));
    CHECK(!*out || !strcmp(whole, all), LL_E_IO,
          "%s: the checksum of all tensors is %.16s, but %s by those of each", f->path, all, whole);
    return LL_OK;
}

/* Of a file whose checksum is wrong: the first tensor whose own is. */
static ll_err find_damage(const ll_st_file *f, const uint32_t *sums)
{
    for (int i = 0; sums && i < f->n_entries; i++) {
        const ll_st_entry *e = &f->entries[i];
        uint32_t crc = 0;
        TRY(ll_st_remainder(f, e->begin, e->end, &crc));
        crc = ll_crc32c_of(crc, e->end - e->begin);
        CHECK(crc == sums[i], LL_E_IO, "%s: tensor %s: the checksum is %08x, expected %08x",
              f->path, e->name, crc, sums[i]);
    }
    return LL_OK;
}

ll_err ll_st_check(ll_comm *c, const ll_st_file *f)
{
    const char *want = ll_st_meta(f, "crc32c");
    if (!want) return LL_OK;
    LL_OWN(ll_arena) a = ll_arena_new();
    uint32_t *sums;
    uint64_t size = c ? (uint64_t)ll_comm_size(c) : 1, rank = c ? (uint64_t)ll_comm_rank(c) : 0;
    uint64_t all = f->data_bytes, from = all / size * rank;
    uint64_t to = rank + 1 == size ? all : all / size * (rank + 1);
    uint32_t crc = 0;
    TRY(ll_ranks_agree(c, ll_st_remainder(f, from, to, &crc)));
    crc = ll_crc32c_zeros(crc, all - to);
    TRY(ll_ranks_xor(c, &crc, 1));
    char have[9];
    snprintf(have, sizeof have, "%08x", ll_crc32c_of(crc, all));
    ll_err rc = read_sums(f, want, a, &sums);
    if (rc == LL_OK && strcmp(have, want) && ll_ranks_lead(c)) rc = find_damage(f, sums);
    if (strcmp(have, want) && rc == LL_OK)
        rc = RAISE(LL_E_IO, "%s: the tensors' checksum is %s, expected %.16s", f->path, have, want);
    return ll_ranks_agree(c, rc);
}
