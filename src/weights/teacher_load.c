/* teacher_load.c: a teacher's parameters into the session that learns. */
#include "weights/checkpoint.h"
#include "run/setup.h"
#include "weights/state.h"
#include "run/teacher.h"
#include "weights/weights_load.h"

#include <stdlib.h>

static ll_err load(const ll_run *t, ll_session *s, ll_arena *a, const char **note)
{
    LL_OWN(ll_st_file) f = NULL;
    int64_t step;
    *note = NULL;
    TRY(ll_checkpoint_open_latest(NULL, t->out, &f));
    if (f) {
        TRY(ll_session_take(s, f, &step));
        *note = ll_arena_printf(a, "teacher: %s", f->path);
        return LL_OK;
    }
    CHECK(*t->train.init, LL_E_IO, "train.teacher %s has no checkpoint: train it first", t->out);
    return ll_weights_load(
        s, &(ll_weights_from){t->train.init, t->train.init_map, t->train.init_skip}, a, note);
}

ll_err ll_teacher_load(const ll_run *r, ll_session *s, ll_arena *arena, const char **note)
{
    LL_OWN(ll_run) t = NULL;
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_session) from = NULL;
    *note = NULL;
    if (!*r->train.teacher) return LL_OK;
    TRY(ll_teacher_run(r, &t));
    TRY(ll_run_graph(t, 1, NULL, &g));
    TRY(ll_session_open(g, &(ll_session_opts){.threads = (int)r->train.threads}, &from));
    ll_err rc = load(t, from, arena, note);
    CHECK(rc == LL_OK, rc, "train.teacher %s: %s", r->train.teacher, ll_error_message());
    LL_EACH (const ll_value, v, g->values + 1, g->n_value - 1) {
        if (v->node >= 0 || (v->kind != LL_PARAM && v->kind != LL_STATE)) continue;
        LL_OWN(ll_arena) a = ll_arena_new();
        size_t bytes = ll_tensor_bytes(v->type.dtype, &v->type.shape);
        const char *name = ll_arena_printf(a, LL_TEACHER "%s", v->name);
        LL_OWN_MEMORY void *x = malloc(bytes + 1);
        CHECK(x, LL_E_MEM, "not enough memory for %s", name);
        TRY(ll_session_get(from, v->name, x, bytes));
        TRY(ll_session_set(s, name, 0, x, bytes));
    }
    return LL_OK;
}
