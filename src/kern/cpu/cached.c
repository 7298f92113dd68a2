/* cached.c: attention of f32 to a cache of keys and values. A thread takes a sequence and a head of
 * keys, and reads each of its keys and values once for all queries that share them, of one new
 * token after another. */
#include "kern/attr.h"
#include "kern/cache8.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"

#include <omp.h>
#include <string.h>

ll_kernel cached_attend_cpu;
ll_scratch cached_attend_cpu_scratch;

static int64_t keys_of(const ll_kcall *c)
{
    return c->in[3].shape.d[1] + c->in[0].shape.d[1];
}

/* Of a thread: scores [g][keys], and a key. */
static int64_t floats_of(const ll_kcall *c)
{
    return keys_of(c) * c->in[0].shape.d[3] + c->in[0].shape.d[4];
}

size_t cached_attend_cpu_scratch(const ll_kcall *c)
{
    size_t one = (size_t)floats_of(c) * sizeof(float);
    return one * (size_t)(c->threads < 1 ? 1 : c->threads);
}

static float dot(const float *x, const float *y, int64_t n)
{
    ll_vec sum = ll_vec_all(0);
    int64_t i = 0;
    for (; i + LL_LANES <= n; i += LL_LANES) sum += ll_vec_at(x + i) * ll_vec_at(y + i);
    float total = 0;
    for (int k = 0; k < LL_LANES; k++) total += sum[k];
    for (; i < n; i++) total += x[i] * y[i];
    return total;
}

typedef struct head {
    const float *q;           /* [g,d] */
    const float *old, *new;   /* keys; then values */
    const uint8_t *bytes;     /* in place of old; NULL: none */
    float *key;               /* [d]: one of these */
    int64_t g, d, row;        /* row: floats between keys */
    int64_t from, at, end;    /* keys [from, end), the first at of the cache */
    float *scores, *o, scale; /* scores [g, keys] */
    int64_t keys;
} head;

static const float *key_at(const head *h, int64_t j)
{
    if (j < h->at && h->bytes) {
        const uint8_t *row = h->bytes + j * (h->row / h->d) * (h->d + LL_CACHE8_TAIL);
        float scale = ll_cache8_scale(row, h->d);
#pragma omp simd
        for (int64_t i = 0; i < h->d; i++) h->key[i] = scale * (float)(int8_t)row[i];
        return h->key;
    }
    return j < h->at ? h->old + j * h->row : h->new + (j - h->at) * h->row;
}

static void score(const head *h)
{
    for (int64_t j = h->from; j < h->end; j++) {
        const float *key = key_at(h, j);
        for (int64_t g = 0; g < h->g; g++)
            h->scores[g * h->keys + j] = dot(h->q + g * h->d, key, h->d) * h->scale;
    }
    for (int64_t g = 0; g < h->g; g++) {
        float *s = h->scores + g * h->keys + h->from;
        int64_t n = h->end - h->from;
        double sum = ll_row_exp(s, ll_row_top(s, n), s, n);
        for (int64_t j = 0; j < n; j++) s[j] = (float)(s[j] / sum);
    }
}

static void weigh(const head *h)
{
    memset(h->o, 0, (size_t)(h->g * h->d) * sizeof(float));
    for (int64_t j = h->from; j < h->end; j++) {
        const float *v = key_at(h, j);
        for (int64_t g = 0; g < h->g; g++) {
            float p = h->scores[g * h->keys + j], *o = h->o + g * h->d;
#pragma omp simd
            for (int64_t d = 0; d < h->d; d++) o[d] += p * v[d];
        }
    }
}

/* A head's old ones, which have a letter of their own in tensor x. */
static void set_old(head *h, const ll_tensor *x, int64_t row)
{
    h->old = (const float *)x->data + row * h->d;
    h->bytes = (const uint8_t *)x->data + row * (h->d + LL_CACHE8_TAIL);
    if (x->dtype != LL_U8) h->bytes = NULL;
}

ll_err cached_attend_cpu(const ll_kcall *c)
{
    const ll_cached_attr *a = (const ll_cached_attr *)c->attr;
    const int64_t *s = c->in[0].shape.d, t = s[1], n = s[2], g = s[3], d = s[4];
    const int64_t room = c->in[3].shape.d[1], keys = keys_of(c);
    const float *const *in = (const float *const[]){
        (const float *)c->in[0].data, (const float *)c->in[1].data, (const float *)c->in[2].data};
    const int32_t *at = (const int32_t *)c->in[5].data;
    int64_t work = 0;
    for (int64_t b = 0; b < s[0]; b++) work += (at[b] + t) * t * n * g * d;
#pragma omp parallel for num_threads(ll_team(c, work)) schedule(dynamic)
    for (int64_t k = 0; k < s[0] * n; k++) {
        int64_t b = k / n, i = k % n, seen = at[b] < 0 ? 0 : at[b] < room ? at[b] : room;
        for (int64_t q = 0; q < t; q++) {
            head h = {.g = g, .d = d, .row = n * d, .at = seen, .end = seen + q + 1, .keys = keys};
            int64_t place = ((b * t + q) * n + i) * g * d;
            h.q = in[0] + place;
            h.o = (float *)c->out[0].data + place;
            h.scale = (float)a->scale;
            h.scores = (float *)c->scratch + omp_get_thread_num() * floats_of(c);
            h.key = h.scores + g * keys;
            h.from = a->window > 0 && h.end > a->window ? h.end - a->window : 0;
            set_old(&h, &c->in[3], b * room * n + i);
            h.new = in[1] + (b * t * n + i) * d;
            score(&h);
            set_old(&h, &c->in[4], b * room * n + i);
            h.new = in[2] + (b * t * n + i) * d;
            weigh(&h);
        }
    }
    return LL_OK;
}
