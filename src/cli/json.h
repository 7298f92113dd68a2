/* json.h: JSON objects, as one would write them:
 *
 *     return LL_JSON(LL_IS("model", r->model.name), LL_IS("step", t->step),
 *                    LL_IF(s->samples, "loss", s->loss / s->samples));
 *
 * A value is a text (NULL: null), a bool, a whole number, a number (not finite: null), or JSON,
 * which the object takes. */
#pragma once
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct ll_json_pair {
    const char *key;
    json_t *value; /* NULL: left out */
} ll_json_pair;
#define LL_IS(key, x) LL_IF(true, key, x)
/* Left out unless c; x is then not looked at. */
#define LL_IF(c, key, x)                                                                           \
    {                                                                                              \
        key, (c) ? LL_JSON_OF(x) : NULL                                                            \
    }
#define LL_JSON_OF(x)                                                                              \
    _Generic((x), json_t *: ll_json_own, char *: ll_json_text, const char *: ll_json_text,         \
             bool: ll_json_bool, double: ll_json_real, float: ll_json_real,                        \
             default: json_integer)(x)
#define LL_JSON(...) LL_JSON_ADD(json_object(), __VA_ARGS__)
#define LL_JSON_ADD(j, ...)                                                                        \
    ll_json_add(j, sizeof((const ll_json_pair[]){__VA_ARGS__}) / sizeof(ll_json_pair),             \
                (const ll_json_pair[]){__VA_ARGS__})
/* A list of n values, that of number i: LL_JSON_LIST(i, n, v[i]). */
#define LL_JSON_LIST(i, n, value)                                                                  \
    ({                                                                                             \
        json_t *list_of_##i = json_array();                                                        \
        for (int64_t i = 0; i < (n); i++) json_array_append_new(list_of_##i, LL_JSON_OF(value));   \
        list_of_##i;                                                                               \
    })
static inline json_t *ll_json_add(json_t *j, size_t n, const ll_json_pair *pairs)
{
    for (size_t i = 0; i < n; i++)
        if (pairs[i].value) json_object_set_new(j, pairs[i].key, pairs[i].value);
    return j;
}
static inline json_t *ll_json_own(json_t *x)
{
    return x;
}
static inline json_t *ll_json_text(const char *x)
{
    return x ? json_string(x) : json_null();
}
static inline json_t *ll_json_bool(bool x)
{
    return json_boolean(x);
}
static inline json_t *ll_json_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}
