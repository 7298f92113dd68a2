/* linear_step.c: linear attention of new tokens, of f32: the state takes in one after the other.
 * Heads of keys of all sequences are shared among threads; a result has the same bits whatever is
 * made beside it. */
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/row.h"

LL_KERNELS(linear_step)

/* state = keep state + key value', [d,f]; the last column sums keys. */
static void take_in(float *restrict state, const float *key, const float *restrict value, int64_t d,
                    int64_t f, float keep)
{
    for (int64_t i = 0; i < d; i++, state += f) {
        float k = key[i];
#pragma omp simd
        for (int64_t e = 0; e < f - 1; e++) state[e] = keep * state[e] + k * value[e];
        state[f - 1] = keep * state[f - 1] + k;
    }
}

/* o = query' state */
static void see(const float *restrict state, const float *query, int64_t d, int64_t f,
                float *restrict o, float *l)
{
    float sum = 0;
    memset(o, 0, (size_t)(f - 1) * sizeof(float));
    for (int64_t i = 0; i < d; i++, state += f) {
        float q = query[i];
#pragma omp simd
        for (int64_t e = 0; e < f - 1; e++) o[e] += q * state[e];
        sum += q * state[f - 1];
    }
    *l = sum;
}

static void one_head(const ll_kcall *c, int64_t b, int64_t n)
{
    const int64_t *s = c->in[0].shape.d, *x = c->in[1].shape.d;
    const int64_t t = x[1], heads = x[2], group = x[3], d = x[4], f = s[3];
    const float *q = (const float *)c->in[1].data, *k = (const float *)c->in[2].data;
    const float *v = (const float *)c->in[3].data;
    float *state = (float *)c->out[0].data + (b * heads + n) * d * f, *o = (float *)c->out[1].data;
    float *l = (float *)c->out[2].data + (b * heads + n) * group * t;
    float keep = (float)exp(ll_linear_decay((const ll_linear_attr *)c->attr, n));
    int64_t new = ((const int32_t *)c->in[5].data)[b] + 1;
    if (new > 0 && !((const int32_t *)c->in[4].data)[b])
        memset(state, 0, (size_t)(d * f) * sizeof(float));
    else if (c->out[0].data != c->in[0].data)
        memcpy(state, (const float *)c->in[0].data + (b * heads + n) * d * f,
               (size_t)(d * f) * sizeof(float));
    for (int64_t i = 0; i < t; i++) {
        int64_t key = (b * t + i) * heads + n;
        if (i < new) take_in(state, k + key * d, v + key * (f - 1), d, f, keep);
        for (int64_t g = 0; g < group; g++) {
            float *to = o + (key * group + g) * (f - 1);
            if (i < new)
                see(state, q + (key * group + g) * d, d, f, to, &l[g * t + i]);
            else
                memset(to, 0, (size_t)(f - 1) * sizeof(float)), l[g * t + i] = 0;
        }
    }
}

static void some_heads(const void *given, int64_t from, int64_t to)
{
    const ll_kcall *c = (const ll_kcall *)given;
    int64_t heads = c->in[0].shape.d[1];
    for (int64_t i = from; i < to; i++) one_head(c, i / heads, i % heads);
}

ll_err linear_step_cpu(const ll_kcall *c)
{
    const int64_t *s = c->in[0].shape.d, *x = c->in[1].shape.d;
    ll_in_parts(ll_team(c, ll_numel(&c->in[0].shape) * x[1] * (x[3] + 1)), s[0] * s[1], some_heads,
                c);
    return LL_OK;
}
