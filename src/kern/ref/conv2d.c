/* conv2d and its gradients, reference. All three walk the same points (n, o, p, f, r, s, c), where
 * output pixel (o, p) and filter tap (r, s) meet image pixel (i, j); each sums over the letters its
 * result does not have. */
#include "base/num.h"
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel conv2d_ref, conv2d_dx_ref, conv2d_dw_ref;

typedef struct conv {
    const ll_conv_attr *a;
    const ll_tensor *x, *w, *y;  /* image, filter, output; or their gradients */
    const int64_t *xd, *wd, *yd; /* [n,h,w,c], [f,r,s,c/groups], [n,h,w,f] */
    int64_t fg;                  /* filters of a group */
    double start;                /* of sums */
} conv;

/* The image row (k = 0) or column (k = 1) under tap t of output o; -1: outside. */
static int64_t under(const conv *v, int k, int64_t o, int64_t t)
{
    int64_t i = o * v->a->stride[k] - v->a->pad[2 * k] + t * v->a->dilation[k];
    return i < 0 || i >= v->xd[1 + k] ? -1 : i;
}

static double at(const ll_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t *s = t->shape.d;
    return ll_at(t, ((a * s[1] + b) * s[2] + c) * s[3] + d);
}

static double y_at(const conv *v, int64_t n, int64_t o, int64_t p, int64_t f)
{
    double sum = v->start;
    int64_t c0 = f / v->fg * v->wd[3];
    for (int64_t r = 0; r < v->wd[1]; r++)
        for (int64_t s = 0; s < v->wd[2]; s++) {
            int64_t i = under(v, 0, o, r), j = under(v, 1, p, s);
            if (i < 0 || j < 0) continue;
            for (int64_t c = 0; c < v->wd[3]; c++)
                sum = fma(at(v->x, n, i, j, c0 + c), at(v->w, f, r, s, c), sum);
        }
    return sum - v->start;
}

/* The output row (k = 0) or column (k = 1) that meets image row i in tap t; -1: none. */
static int64_t over(const conv *v, int k, int64_t i, int64_t t)
{
    int64_t at = i + v->a->pad[2 * k] - t * v->a->dilation[k], o = at / v->a->stride[k];
    return at < 0 || at % v->a->stride[k] || o >= v->yd[1 + k] ? -1 : o;
}

static double x_at(const conv *v, int64_t n, int64_t i, int64_t j, int64_t c)
{
    double sum = v->start;
    int64_t f0 = c / v->wd[3] * v->fg;
    for (int64_t r = 0; r < v->wd[1]; r++)
        for (int64_t s = 0; s < v->wd[2]; s++) {
            int64_t o = over(v, 0, i, r), p = over(v, 1, j, s);
            if (o < 0 || p < 0) continue;
            for (int64_t f = f0; f < f0 + v->fg; f++)
                sum = fma(at(v->y, n, o, p, f), at(v->w, f, r, s, c % v->wd[3]), sum);
        }
    return sum - v->start;
}

static double w_at(const conv *v, int64_t f, int64_t r, int64_t s, int64_t c)
{
    double sum = v->start;
    int64_t c0 = f / v->fg * v->wd[3];
    for (int64_t n = 0; n < v->yd[0]; n++)
        for (int64_t o = 0; o < v->yd[1]; o++)
            for (int64_t p = 0; p < v->yd[2]; p++) {
                int64_t i = under(v, 0, o, r), j = under(v, 1, p, s);
                if (i < 0 || j < 0) continue;
                sum = fma(at(v->y, n, o, p, f), at(v->x, n, i, j, c0 + c), sum);
            }
    return sum - v->start;
}

static ll_err each(const ll_kcall *c, const ll_tensor *x, const ll_tensor *w, const ll_tensor *y,
                   double (*value)(const conv *, int64_t, int64_t, int64_t, int64_t))
{
    const ll_conv_attr *a = (const ll_conv_attr *)c->attr;
    conv v = {a, x, w, y, x->shape.d, w->shape.d, y->shape.d};
    v.fg = w->shape.d[0] / a->groups, v.start = ll_sum_start(a->bits);
    const ll_tensor *out = &c->out[0];
    const int64_t *s = out->shape.d;
    for (int64_t e = 0; e < ll_numel(&out->shape); e++) {
        int64_t row = e / s[3] / s[2];
        ll_set(out, e, value(&v, row / s[1], row % s[1], e / s[3] % s[2], e % s[3]));
    }
    return LL_OK;
}

ll_err conv2d_ref(const ll_kcall *c)
{
    return each(c, &c->in[0], &c->in[1], &c->out[0], y_at);
}

ll_err conv2d_dx_ref(const ll_kcall *c)
{
    return each(c, &c->out[0], &c->in[1], &c->in[0], x_at);
}

ll_err conv2d_dw_ref(const ll_kcall *c)
{
    return each(c, &c->in[1], &c->out[0], &c->in[0], w_at);
}
