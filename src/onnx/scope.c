/* scope.c: names of values; see scope.h. */
#include "onnx/scope.h"

typedef struct binding {
    const char *name; /* NULL: free */
    value *x;
} binding;

scope *ll_scope_new(ll_arena *a, scope *up, const op *caller, const Onnx__Function *f)
{
    scope *s = LL_NEW(a, scope);
    *s = (scope){.arena = a, .up = up, .caller = caller, .f = f, .size = 64};
    s->table = LL_NEW_ARRAY(a, binding, s->size);
    if (up) s->version = up->version, s->caller = up->caller, s->f = up->f;
    return s;
}

static binding *place(const scope *s, const char *name)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (const char *c = name; *c; c++) h = (h ^ (uint8_t)*c) * 1099511628211u;
    int at = (int)(h & (uint64_t)(s->size - 1));
    while (s->table[at].name && strcmp(s->table[at].name, name)) at = (at + 1) & (s->size - 1);
    return &s->table[at];
}

static void grow(scope *s)
{
    scope old = *s;
    s->size *= 2;
    s->table = LL_NEW_ARRAY(s->arena, binding, s->size);
    for (int i = 0; i < old.size; i++)
        if (old.table[i].name) *place(s, old.table[i].name) = old.table[i];
}

ll_err ll_scope_add(scope *s, const char *name, value *x)
{
    if (2 * s->n >= s->size) grow(s);
    binding *b = place(s, name);
    CHECK(!b->name, LL_E_IO, "two values are named '%s'", name);
    *b = (binding){name, x};
    s->n++;
    return LL_OK;
}

ll_err ll_scope_find(const scope *s, const char *name, value **out)
{
    for (; s; s = s->up) {
        const binding *b = place(s, name);
        *out = b->x;
        if (b->name) return LL_OK;
    }
    FAIL(LL_E_IO, "'%s' is read, but nothing before produces it", name);
}
