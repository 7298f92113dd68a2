/* slices.c: the all-reduce of codes of fixed rate. With blocks 0..5 on 3 ranks, rank r is to own
 * blocks 2r and 2r + 1 of the sum:
 *
 *     1. every rank encodes its blocks and sends each owner its slice     all-to-all
 *     2. the owner decodes all ranks' codes of a block, adds them up in f32 in canonical order, and
 *        encodes the sum
 *     3. every rank gets all sums' codes and decodes them                 all-gather
 *
 * All ranks decode the same bytes, the owner too, so all get the same bits. A block's result
 * depends on its inputs alone: not on which rank owns it.
 *
 * Error feedback: what 1 loses of (input + residual) is the new residual; what 2 loses is added to
 * the owner's residual of that slice. So, but for rounding, the sum over ranks of inputs and old
 * residuals is that of results and new residuals.
 *
 * Squeezed, slices are Huffman-coded (zlib's deflate without its search for repeats) and go from
 * rank to rank one after another, as long as they come out.
 *
 * A long vector goes in chunks, in a pipeline: while chunk i is in 1's messages, i - 1 is in 3's
 * and i - 2 is decoded. */
#include "comm/codec_int.h"
#include "base/num.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>
#include <zlib.h>

enum {
    N = LL_CODE_BLOCK,
    CHUNK = 4096, /* blocks: 2 M elements */
    POLL = 128,   /* blocks between looks at messages */
    SAMPLE = 16,  /* the error of a long vector is measured on every 16th block */
    SLOTS = 3     /* chunks under way */
};

/* One chunk under way. */
typedef struct slot {
    uint8_t *code; /* every rank's slice of mine, then of the sums */
    uint8_t *got;  /* my slice of every rank's */
    int64_t *matrix, *starts;
    ll_request *request;
} slot;

typedef struct ll_slices {
    ll_arena *arena;
    int size;
    slot slots[SLOTS];
    uint8_t *out, *in; /* a slice squeezed, that is sent and that came */
    int64_t room;      /* of each */
} ll_slices;

/* One call's constants. */
typedef struct run {
    ll_codec *k;
    const ll_block_code *code;
    ll_comm *c;
    float *data;
    const char *site;
    ll_code_draw draw;
    int rank, size;
    int64_t n_block, n_chunk;
    int block_bytes;
    double lost, whole; /* squares, of the error's measure */
} run;

int64_t ll_code_bytes(const ll_codec *k, int64_t n)
{
    const ll_block_code *code = k->kind->code;
    int64_t full = n / N * code->bytes(k, N);
    return n % N ? full + code->bytes(k, (int)(n % N)) : full;
}

/* ---- memory ---- */
void ll_slices_free(ll_slices *s)
{
    if (s) ll_arena_free(s->arena);
}

static bool make_slot(ll_arena *a, slot *s, int64_t blocks, int block_bytes, int size)
{
    s->code = LL_TRY_ARRAY(a, uint8_t, blocks * block_bytes);
    s->got = LL_TRY_ARRAY(a, uint8_t, ll_ceil_div(blocks, size) * size * block_bytes);
    LL_ARRAYS(a, size * size + 1, s->matrix, s->starts);
    return s->code && s->got;
}

static ll_err make_slices(run *r)
{
    ll_codec *k = r->k;
    if (k->slices && k->slices->size == r->size) return LL_OK;
    ll_slices_free(k->slices);
    ll_arena *a = ll_arena_new();
    k->slices = LL_NEW(a, ll_slices);
    k->slices->arena = a;
    for (int i = 0; i < SLOTS && i < r->n_chunk; i++)
        CHECK(make_slot(a, &k->slices->slots[i], ll_min64(CHUNK, r->n_block), r->block_bytes,
                        r->size),
              LL_E_MEM, "buffers of codec \"%s\" for %s", k->text, k->name);
    k->slices->size = r->size;
    if (!k->squeezed) return LL_OK;
    int64_t slice = ll_ceil_div(ll_min64(CHUNK, r->n_block), r->size) * r->block_bytes;
    k->slices->room = slice + slice / 1000 + 64; /* deflate makes no more of it */
    k->slices->out = LL_TRY_ARRAY(a, uint8_t, k->slices->room);
    k->slices->in = LL_TRY_ARRAY(a, uint8_t, k->slices->room);
    CHECK(k->slices->out && k->slices->in, LL_E_MEM, "buffers of codec \"%s\" for %s", k->text,
          k->name);
    return LL_OK;
}

/* ---- blocks ---- */
static int elements(const run *r, int64_t block)
{
    return (int)ll_min64(N, r->k->n - block * N);
}

/* Whose numbers are encoded: rank who - 1's, or (0) the sum. */
static ll_code_draw draw_for(const run *r, int64_t block, int who)
{
    ll_code_draw d = r->draw;
    d.counter = (uint64_t)who << 40 | (uint64_t)block;
    return d;
}

/* x [N]: the block of a vector, padded where it is the last and short. */
static const float *block_of(const run *r, const float *vector, int64_t block, float room[N])
{
    int m = elements(r, block);
    if (m == N) return vector + block * N;
    memset(room, 0, N * sizeof(float));
    memcpy(room, vector + block * N, (size_t)m * sizeof(float));
    return room;
}

static void measure(run *r, const float *x, const float *decoded, int m)
{
    float lost = 0, whole = 0;
#pragma omp simd reduction(+ : lost, whole)
    for (int i = 0; i < m; i++) {
        lost += (x[i] - decoded[i]) * (x[i] - decoded[i]);
        whole += x[i] * x[i];
    }
    r->lost += lost;
    r->whole += whole;
}

/* The residual of a block, for input (with the residual) x that is decoded as d. A block that is
 * not finite leaves it as it was: the step that it spoils will not be taken. */
static void keep_lost(run *r, int64_t block, const float *x, const float *d, bool add)
{
    float *restrict residual = r->k->residual + block * N;
    int m = elements(r, block);
    if (!isfinite(d[0])) return;
    if (add)
        for (int i = 0; i < m; i++) residual[i] += x[i] - d[i];
    else
        for (int i = 0; i < m; i++) residual[i] = x[i] - d[i];
}

static void encode_mine(run *r, int64_t block, uint8_t *code)
{
    float room[N], sum[N], decoded[N];
    const float *x = block_of(r, r->data, block, room);
    int m = elements(r, block);
    if (r->k->residual) {
        const float *residual = r->k->residual + block * N;
        memset(sum + m, 0, (size_t)(N - m) * sizeof(float));
        for (int i = 0; i < m; i++) sum[i] = x[i] + residual[i];
        x = sum;
    }
    ll_code_draw draw = draw_for(r, block, r->rank + 1);
    r->code->encode(r->k, x, m, &draw, code);
    bool sampled = r->n_block <= 64 * SAMPLE || block % SAMPLE == 0;
    if (!r->k->residual && !sampled) return;
    r->code->decode(r->k, code, m, decoded);
    if (sampled) measure(r, x, decoded, m);
    if (r->k->residual) keep_lost(r, block, x, decoded, false);
}

/* Ranks first..end-1 of a block, in canonical order; a rank's code is stride after the one before.
 */
static void sum_codes(const run *r, const uint8_t *code, int64_t stride, int first, int end, int m,
                      float out[N])
{
    if (end - first == 1) {
        r->code->decode(r->k, code + first * stride, m, out);
        return;
    }
    float right[N];
    int q = ll_tree_split(end - first);
    sum_codes(r, code, stride, first, first + q, m, out);
    sum_codes(r, code, stride, first + q, end, m, right);
    ll_fold(out, (const void *[]){out, right}, 2, N, LL_F32, LL_REDUCE_SUM);
}

static void encode_sum(run *r, int64_t block, const uint8_t *from, int64_t stride, uint8_t *code)
{
    float sum[N], decoded[N];
    int m = elements(r, block);
    sum_codes(r, from, stride, 0, r->size, m, sum);
    memset(sum + m, 0, (size_t)(N - m) * sizeof(float));
    ll_code_draw draw = draw_for(r, block, 0);
    r->code->encode(r->k, sum, m, &draw, code);
    if (!r->k->residual) return;
    r->code->decode(r->k, code, m, decoded);
    keep_lost(r, block, sum, decoded, true);
}

static void decode_block(run *r, int64_t block, const uint8_t *code)
{
    float room[N];
    int m = elements(r, block);
    float *x = m == N ? r->data + block * N : room;
    r->code->decode(r->k, code, m, x);
    if (m < N) memcpy(r->data + block * N, room, (size_t)m * sizeof(float));
}

/* ---- chunks ---- */
/* Blocks of chunk i: from *first on. */
static int64_t chunk_blocks(const run *r, int64_t i, int64_t *first)
{
    *first = i * CHUNK;
    return ll_min64(CHUNK, r->n_block - *first);
}

/* Where in a chunk's code its block b begins; b may be the number of its blocks. */
static int64_t place(const run *r, int64_t first, int64_t b)
{
    int64_t from = first * N;
    return ll_code_bytes(r->k, ll_min64(r->k->n, (first + b) * N) - from);
}

static ll_err poll_now_and_then(run *r, int64_t block)
{
    if (r->size > 1 && block % POLL == POLL - 1) TRY(ll_comm_poll(r->c));
    return LL_OK;
}

static ll_err wait_for(slot *s)
{
    ll_request *q = s->request;
    s->request = NULL;
    return q ? ll_request_wait(q) : LL_OK;
}

/* ---- squeezed slices ---- */
static ll_err squeeze(const uint8_t *x, int64_t n, uint8_t *out, int64_t room, size_t *bytes)
{
    z_stream z = {
        .next_in = (Bytef *)x, .avail_in = (uInt)n, .next_out = out, .avail_out = (uInt)room};
    CHECK(deflateInit2(&z, 1, Z_DEFLATED, -15, 9, Z_HUFFMAN_ONLY) == Z_OK, LL_E_MEM,
          "not enough memory to squeeze %ld bytes", n);
    int rc = deflate(&z, Z_FINISH);
    *bytes = (size_t)room - z.avail_out;
    deflateEnd(&z);
    CHECK(rc == Z_STREAM_END, LL_E_COMM, "%ld bytes of codes do not fit, compressed, in %ld", n,
          room);
    return LL_OK;
}

static ll_err stretch(const uint8_t *x, size_t bytes, uint8_t *out, int64_t n)
{
    uint8_t none; /* inflate wants a place, for no bytes too */
    z_stream z = {.next_in = (Bytef *)x,
                  .avail_in = (uInt)bytes,
                  .next_out = n ? out : &none,
                  .avail_out = (uInt)n};
    CHECK(inflateInit2(&z, -15) == Z_OK, LL_E_MEM, "not enough memory to stretch %zu bytes", bytes);
    int rc = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    CHECK(rc == Z_STREAM_END && !z.avail_out && !z.avail_in, LL_E_COMM,
          "%zu bytes that arrived are not %ld bytes of codes", bytes, n);
    return LL_OK;
}

/* Every rank's slice of the chunk goes to its owner; sums: the owner's goes to every rank. */
static ll_err swap(run *r, slot *s, bool sums)
{
    ll_slices *w = r->k->slices;
    int64_t number = ll_comm_next_number(r->c, sums ? "squeezed sums" : "squeezed codes", r->site);
    int64_t mine = s->starts[r->rank], slice = s->starts[r->rank + 1] - mine;
    size_t bytes, got;
    if (sums)
        TRY(squeeze(s->code + mine, slice, w->out, w->room, &bytes));
    else
        memcpy(s->got + r->rank * slice, s->code + mine, (size_t)slice);
    for (int q = 1; q < r->size; q++) {
        int to = (r->rank + q) % r->size, from = (r->rank - q + r->size) % r->size;
        int64_t out = s->starts[to + 1] - s->starts[to], in = s->starts[from + 1] - s->starts[from];
        if (!sums) TRY(squeeze(s->code + s->starts[to], out, w->out, w->room, &bytes));
        const ll_exchange e = {number, to, from, w->out, bytes, w->in, (size_t)w->room};
        TRY(ll_comm_exchange(r->c, &e, &got));
        TRY(sums ? stretch(w->in, got, s->code + s->starts[from], in)
                 : stretch(w->in, got, s->got + from * slice, slice));
        r->k->last.bytes += (int64_t)bytes;
    }
    return LL_OK;
}

/* ---- chunks on their way ---- */
static ll_err send_mine(run *r, int64_t i)
{
    slot *s = &r->k->slices->slots[i % SLOTS];
    int64_t first, n = chunk_blocks(r, i, &first), p = r->size;
    for (int64_t b = 0; b < n; b++) {
        encode_mine(r, first + b, s->code + b * r->block_bytes);
        TRY(poll_now_and_then(r, b));
    }
    if (p == 1) return LL_OK;
    s->starts[0] = 0;
    for (int to = 0; to < p; to++) {
        int64_t from_block, to_block;
        ll_share(n, (int)p, to, &from_block, &to_block);
        s->starts[to + 1] = place(r, first, to_block);
        for (int64_t from = 0; from < p; from++)
            s->matrix[from * p + to] = s->starts[to + 1] - s->starts[to];
        int64_t others = to == r->rank ? p - 1 : 1; /* my slice of the sums, my part of theirs */
        if (!r->k->squeezed) r->k->last.bytes += (s->starts[to + 1] - s->starts[to]) * others;
    }
    if (r->k->squeezed) return swap(r, s, false);
    ll_coll_call call = {
        .spec = {.coll = LL_COLL_ALLTOALL, .count = s->starts[p], .matrix = s->matrix},
        .data = s->code,
        .out = s->got,
        .algo = r->k->alltoall,
        .dtype = LL_U8,
        .site = r->site};
    return ll_comm_start(r->c, &call, &s->request);
}

static ll_err send_sums(run *r, int64_t i)
{
    slot *s = &r->k->slices->slots[i % SLOTS];
    if (r->size == 1) return LL_OK;
    TRY(wait_for(s));
    int64_t first, n = chunk_blocks(r, i, &first), from, to;
    ll_share(n, r->size, r->rank, &from, &to);
    int64_t slice = s->starts[r->rank + 1] - s->starts[r->rank];
    for (int64_t b = from; b < to; b++) {
        encode_sum(r, first + b, s->got + (b - from) * r->block_bytes, slice,
                   s->code + b * r->block_bytes);
        TRY(poll_now_and_then(r, b));
    }
    if (r->k->squeezed) return swap(r, s, true);
    ll_coll_call call = {
        .spec = {.coll = LL_COLL_ALLGATHER, .count = s->starts[r->size], .starts = s->starts},
        .data = s->code,
        .algo = r->k->allgather,
        .dtype = LL_U8,
        .site = r->site};
    return ll_comm_start(r->c, &call, &s->request);
}

static ll_err take_sums(run *r, int64_t i)
{
    slot *s = &r->k->slices->slots[i % SLOTS];
    TRY(wait_for(s));
    int64_t first, n = chunk_blocks(r, i, &first);
    for (int64_t b = 0; b < n; b++) {
        decode_block(r, first + b, s->code + b * r->block_bytes);
        TRY(poll_now_and_then(r, b));
    }
    return LL_OK;
}

static ll_err all_chunks(run *r)
{
    for (int64_t i = 0; i < r->n_chunk + 2; i++) {
        if (i < r->n_chunk) TRY(send_mine(r, i));
        if (i >= 1 && i - 1 < r->n_chunk) TRY(send_sums(r, i - 1));
        if (i >= 2) TRY(take_sums(r, i - 2));
    }
    return LL_OK;
}

ll_err ll_codec_slices(ll_codec *k, ll_comm *c, float *data, int64_t step, const char *site)
{
    run r = {.k = k,
             .code = k->kind->code,
             .c = c,
             .data = data,
             .site = site,
             .draw = {.seed = k->seed, .stream = ll_stream(k->name, (uint64_t)step)},
             .rank = ll_comm_rank(c),
             .size = ll_comm_size(c),
             .n_block = ll_ceil_div(k->n, N),
             .block_bytes = k->kind->code->bytes(k, N)};
    r.n_chunk = ll_ceil_div(r.n_block, CHUNK);
    k->last.form = "slices";
    TRY(make_slices(&r));
    ll_err e = all_chunks(&r);
    if (e != LL_OK) { /* requests still read and write the buffers; these waits fail as well */
        for (int i = 0; i < SLOTS; i++) (void)wait_for(&k->slices->slots[i]);
        return ll_frame(e, __FILE__, __LINE__, __func__);
    }
    k->last.error = r.whole > 0 ? sqrt(r.lost / r.whole) : 0;
    return LL_OK;
}
