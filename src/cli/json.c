/* json.c: JSON objects of pairs. */
#include "cli/json.h"

#include <math.h>

json_t *ll_json_add(json_t *j, size_t n, const ll_json_pair *pairs)
{
    for (size_t i = 0; i < n; i++)
        if (pairs[i].value) json_object_set_new(j, pairs[i].key, pairs[i].value);
    return j;
}

json_t *ll_json_own(json_t *x)
{
    return x;
}

json_t *ll_json_text(const char *x)
{
    return x ? json_string(x) : json_null();
}

json_t *ll_json_bool(bool x)
{
    return json_boolean(x);
}

json_t *ll_json_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}
