/* generate_limit.c: how long a sequence may become, told by what a generation declares. */
#include "op/ops.h"
#include "infer/generate.h"
#include "run/setup.h"
#include "weights/state.h"

enum { ENDLESS = 1 << 30 }; /* places are i32 */

/* What values follow from, alone: nothing; places; parameters; or all else. */
enum { NOTHING, PLACES = 1, TABLE = 2, OTHER = 4 };

/* Is a parameter looked up by the places of tokens? Then it has as many rows as there are. */
static bool learns_places(const ll_graph *g)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    uint8_t *of = LL_NEW_ARRAY(a, uint8_t, g->n_value);
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].node < 0) of[i] = g->values[i].kind == LL_PARAM ? TABLE : OTHER;
    if (ll_find(g, "at").id) of[ll_find(g, "at").id] = PLACES;
    LL_EACH (const ll_node, n, g->nodes, g->n_node) {
        uint8_t all = NOTHING;
        for (int k = 0; k < n->n_in; k++) all |= of[n->in[k].id];
        if (all == (PLACES | TABLE)) return true;
        for (int k = 0; k < n->n_out; k++) of[n->out[k].id] = all & OTHER ? OTHER : all;
    }
    return false;
}

ll_err ll_generator_limits(const ll_run *r, ll_generator_limit *out)
{
    LL_OWN(ll_graph) g = NULL;
    bool states = false, keys = false;
    *out = (ll_generator_limit){.places = ll_run_places(r)};
    CHECK(ll_run_takes_tokens(r) && out->places > 0, LL_E_ARG,
          "%s does not generate text: use a model of tokens, such as gpt or llama", r->model.name);
    TRY(ll_run_generation(r, &(ll_build){.batch = 1, .cache = 1, .step = 1}, &g));
    for (int i = 1; i < g->n_value; i++) {
        const char *name = g->values[i].name;
        if (!name || !ll_is_cache(name)) continue;
        bool state = ll_ends_with(name, LL_STATE_CACHE);
        states |= state;
        keys |= !state;
    }
    out->learned = learns_places(g);
    out->recurs = states;
    out->endless = states && !keys && !out->learned;
    if (out->endless) out->places = ENDLESS;
    return LL_OK;
}
