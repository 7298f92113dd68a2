/* text_attr.c: attributes as text, driven by an op's field table (ir/op.h).
 *
 *     {stride=[1,1], groups=1, value=0.5, spec="nhwc->c", shape=[2,3], dtype=f32}
 *
 * Fields print in table order and are read in any order; one that is missing is zero. A fused chain
 * (LL_A_FUSED) is one field: the result's shape, each input's period (and "*repeat" where it is not
 * 1), the steps as assignments to registers, and the registers that are written, with their types:
 *
 *     {chain=(shape=[4,3], in=[12, 3, 4*3], r3=add(r0,r1), r4=scale(r3,0.5),
 *             out=[r3:f32, r4:bf16])}
 *
 * The number after the registers is the step's k, which an operand k reads: max(r0,k,0.5); a k of
 * zero is left out. */
#include "ir/text_int.h"

#include "base/near.h"
#include "base/num.h"
#include "kern/attr.h"

static const struct {
    const char *name;
    int operands;
} steps[LL_N_EW] = {
#define X(name, operands, value) {#name, operands},
    LL_EW(X)
#undef X
};

/* ---- printing ---- */
static void put_step(ll_buf *w, const ll_fused_step *s, int reg)
{
    const int16_t from[3] = {s->a, s->b, s->c};
    if (s->op < 0 || s->op >= LL_N_EW) {
        ll_buf_printf(w, ", r%d=?", reg);
        return;
    }
    ll_buf_printf(w, ", r%d=%s(", reg, steps[s->op].name);
    for (int i = 0; i < steps[s->op].operands; i++)
        if (from[i] == LL_FUSE_K)
            ll_buf_puts(w, i ? ",k" : "k");
        else
            ll_buf_printf(w, i ? ",r%d" : "r%d", from[i]);
    const uint64_t zero = 0;
    if (memcmp(&s->k, &zero, sizeof zero)) ll_buf_printf(w, ",%s", LL_EXACT(s->k)); /* -0.0 too */
    ll_buf_puts(w, ")");
}

static void put_fused(ll_buf *w, const ll_fused_attr *f)
{
    ll_buf_printf(w, "(shape=%s, in=[", LL_DIMS(&f->shape));
    for (int i = 0; i < f->n_in; i++) {
        ll_buf_printf(w, "%s%ld", i ? ", " : "", f->period[i]);
        if (f->repeat[i] != 1) ll_buf_printf(w, "*%ld", f->repeat[i]);
    }
    ll_buf_printf(w, "]");
    for (int i = 0; i < f->n_step; i++) put_step(w, &f->step[i], f->n_in + i);
    ll_buf_printf(w, ", out=[");
    for (int i = 0; i < f->n_out; i++)
        ll_buf_printf(w, "%sr%d:%s", i ? ", " : "", (int)f->out[i], ll_dtype_text(f->out_dtype[i]));
    ll_buf_printf(w, "])");
}

static void put_field(ll_buf *w, const ll_attr_field *f, const void *at)
{
    const int64_t *ints = (const int64_t *)at;
    switch (f->kind) {
    case LL_A_BITS:
    case LL_A_INT: ll_buf_printf(w, "%ld", *ints); break;
    case LL_A_F64: ll_buf_puts(w, LL_EXACT(*(const double *)at)); break;
    case LL_A_INTS:
        for (int i = 0; i < f->count; i++) ll_buf_printf(w, "%c%ld", i ? ',' : '[', ints[i]);
        ll_buf_printf(w, "]");
        break;
    case LL_A_SHAPE: ll_buf_puts(w, LL_DIMS((const ll_shape *)at)); break;
    case LL_A_DTYPE: ll_buf_puts(w, ll_dtype_text(*(const ll_dtype *)at)); break;
    case LL_A_SPEC: ll_buf_puts(w, ll_quoted(w->arena, (const char *)at)); break;
    case LL_A_FUSED: put_fused(w, (const ll_fused_attr *)at); break;
    }
}

void ll_put_attrs(ll_buf *w, const ll_op *op, const void *attr)
{
    if (!op->attrs || !op->attrs->name) return;
    for (const ll_attr_field *f = op->attrs; f->name; f++) {
        const void *at = (const char *)attr + f->offset;
        if (f->kind == LL_A_BITS && !*(const int64_t *)at) continue;
        ll_buf_printf(w, "%s%s=", f == op->attrs ? "{" : ", ", f->name);
        put_field(w, f, at);
    }
    ll_buf_printf(w, "}");
}

char *ll_print_attr(const ll_op *op, const void *attr, ll_arena *arena)
{
    ll_buf w = {.arena = arena};
    ll_buf_printf(&w, "%s", "");
    ll_put_attrs(&w, op, attr);
    return w.text;
}

/* ---- reading ---- */
static ll_err scan_field(ll_scan *s, const ll_attr_field *f, void *at)
{
    int64_t *ints = (int64_t *)at;
    switch (f->kind) {
    case LL_A_BITS: return ll_scan_int(s, f->name, 0, LL_MOST_ROUNDED, ints);
    case LL_A_INT: return ll_scan_int(s, f->name, INT64_MIN, INT64_MAX, ints);
    case LL_A_F64: return ll_scan_double(s, f->name, (double *)at);
    case LL_A_INTS: /* sizes and steps: bounded, so that ops may multiply them */
        for (int i = 0; i < f->count; i++) {
            TRY(ll_scan_want(s, i ? ',' : '['));
            TRY(ll_scan_int(s, f->name, INT32_MIN, INT32_MAX, &ints[i]));
        }
        return ll_scan_want(s, ']');
    case LL_A_SHAPE: return ll_scan_shape(s, (ll_shape *)at);
    case LL_A_DTYPE: return ll_scan_dtype(s, (ll_dtype *)at);
    case LL_A_SPEC: return ll_scan_string(s, f->name, (char *)at, LL_SPEC_MAX);
    case LL_A_FUSED:
        return s->fused ? s->fused(s, at) : ll_scan_fail(s, s->at, "a chain, which is made late");
    }
    return LL_OK;
}

static ll_err find_field(ll_scan *s, const ll_op *op, const char *word, const char *from, int *out)
{
    ll_near near = {.word = word};
    for (*out = 0; op->attrs && op->attrs[*out].name; ++*out)
        if (ll_near_try(&near, op->attrs[*out].name)) return LL_OK;
    return ll_scan_fail(s, from, "%s has no attribute %s%s", op->name, word, ll_near_hint(&near));
}

ll_err ll_scan_attrs(ll_scan *s, const ll_op *op, void *attr, ll_given *given)
{
    ll_given here = {0}, *had = given ? given : &here;
    if (!ll_scan_is(s, '{') || ll_scan_is(s, '}')) return LL_OK;
    do {
        char word[LL_WORD_MAX + 1];
        int i;
        ll_scan_blank(s);
        const char *from = s->at;
        TRY(ll_scan_word(s, "an attribute's name", word));
        TRY(find_field(s, op, word, from, &i));
        LL_ASSERT(i < LL_ATTR_FIELDS);
        if (had->has[i]) return ll_scan_fail(s, from, "%s is given twice", word);
        had->has[i] = true;
        TRY(ll_scan_want(s, '='));
        if (given && ll_scan_is(s, '$'))
            TRY(ll_scan_word(s, "a hole's name", given->hole[i]));
        else
            TRY(scan_field(s, &op->attrs[i], (char *)attr + op->attrs[i].offset));
    } while (ll_scan_is(s, ','));
    return ll_scan_want(s, '}');
}

size_t ll_attr_bytes(const ll_attr_field *f)
{
    static const size_t bytes[] = {
        [LL_A_INT] = sizeof(int64_t),    [LL_A_F64] = sizeof(double),
        [LL_A_INTS] = sizeof(int64_t),   [LL_A_SHAPE] = sizeof(ll_shape),
        [LL_A_DTYPE] = sizeof(ll_dtype), [LL_A_SPEC] = LL_SPEC_MAX,
        [LL_A_BITS] = sizeof(int64_t),   [LL_A_FUSED] = sizeof(ll_fused_attr)};
    return bytes[f->kind] * (size_t)(f->kind == LL_A_INTS ? f->count : 1);
}
