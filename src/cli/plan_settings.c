/* plan_settings.c: settings of the command line that a plan is asked with. */
#include "cli/plan.h"

#include <string.h>

bool ll_plan_said(const ll_words *set, const char *key)
{
    size_t n = strlen(key);
    for (int i = 0; i < set->n; i++)
        if (!strncmp(set->v[i], key, n) && set->v[i][n] == '=') return true;
    return false;
}

ll_err ll_plan_refuse(const ll_words *set, const char *const *unread, const char *what)
{
    for (; *unread; unread++)
        CHECK(!ll_plan_said(set, *unread), LL_E_ARG, "%s: plans of %s do not take it; leave it out",
              *unread, what);
    return LL_OK;
}
