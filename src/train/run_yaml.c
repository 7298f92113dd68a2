/* run_yaml.c: a run file's bytes into settings. */
#include "base/yaml.h"
#include "train/run_int.h"

#include <string.h>

/* Is there a key in this section? If not, near has the nearest name of one. */
static bool is_section(void *context, const char *word, ll_near *near)
{
    const ll_run *run = (const ll_run *)context;
    for (const ll_pattern_section *s = ll_run_sections; s->name; s++) {
        if (!strcmp(word, s->name)) return true;
        ll_near_try(near, s->name);
    }
    for (const ll_key *k = ll_run_keys; k->name; k++) {
        const char *dot = strchr(k->name, '.');
        const char *name =
            ll_arena_printf(run->arena, "%.*s", (int)(dot ? dot - k->name : 0), k->name);
        if (dot && !strcmp(name, word)) return true;
        if (dot) ll_near_try(near, name);
    }
    return false;
}

static ll_err assign(void *context, const ll_yaml_value *v)
{
    return ll_run_assign((ll_run *)context, &(ll_setting){.key = v->key,
                                                          .value = v->value,
                                                          .is_list = v->is_list,
                                                          .origin = v->origin,
                                                          .once = true});
}

ll_err ll_run_parse(const char *bytes, size_t size, const char *file, ll_run **out)
{
    *out = NULL;
    LL_OWN(ll_run) run = ll_run_new(file);
    ll_yaml y = {run->arena, "run file", "train: {batch: 64}", run, is_section, assign};
    TRY(ll_yaml_read(&y, bytes, size, file));
    return LL_HAND(out, run);
}
