/* saver.c: a checkpoint's way to the disk beside the steps. */
#include "train/saver.h"

#include "run/ranks.h"

#include <stdatomic.h>

struct ll_saver {
    ll_comm *comm;
    const ll_session *s;
    const ll_loose *replicas; /* NULL: the session's tensors are all there is */
    const char *run;
    bool beside;
    char *copy; /* of this rank's parts; NULL: they are written from where they are */
    size_t bytes;
    ll_arena *arena; /* of the one under way */
    ll_checkpoint c;
    int keep;
    ll_st_writer *w; /* NULL: idle */
    bool sealing;
    pthread_t thread;
    bool running; /* the thread is to be joined */
    atomic_bool busy;
    ll_err rc; /* the thread's, with its message */
    char message[1024];
    int64_t written;
};

static size_t bytes_of(const ll_st_list *l, int i)
{
    const ll_st_tensor *t = &l->tensors[i];
    const ll_st_part *p = l->parts ? &l->parts[i] : NULL;
    if (!t->data || (p && p->spare)) return 0;
    return ll_tensor_bytes(t->dtype, p ? &p->shape : &t->shape);
}

static ll_st_list list(const ll_saver *v, ll_arena *a)
{
    return v->replicas ? ll_loose_tensors(v->replicas, a) : ll_session_all_tensors(v->s, a);
}

ll_err ll_saver_open(ll_comm *c, const ll_session *s, const ll_loose *replicas, const char *run,
                     bool beside, ll_saver **out)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_saver *v = (ll_saver *)calloc(1, sizeof *v);
    *out = v;
    TRY(ll_ranks_agree(c, v ? LL_OK : RAISE(LL_E_MEM, "not enough memory to save")));
    v->comm = c;
    v->s = s;
    v->replicas = replicas;
    v->run = run;
    v->beside = beside;
    v->written = -1;
    if (!beside) return LL_OK;
    ll_st_list l = list(v, a);
    for (int i = 0; i < l.n; i++) v->bytes += bytes_of(&l, i);
    v->copy = (char *)malloc(v->bytes + 1);
    ll_err rc = LL_OK;
    if (!v->copy)
        rc = RAISE(LL_E_MEM,
                   "not enough memory for a copy of %zu bytes: set train.save_beside=false",
                   v->bytes);
    return ll_ranks_agree(c, rc);
}

static void end_one(ll_saver *v)
{
    if (v->running) pthread_join(v->thread, NULL);
    v->running = v->sealing = false;
    ll_st_writer_close(v->w);
    ll_arena_free(v->arena);
    v->w = NULL;
    v->arena = NULL;
}

void ll_saver_close(ll_saver *v)
{
    if (!v) return;
    end_one(v);
    free(v->copy);
    free(v);
}

size_t ll_saver_bytes(const ll_saver *v)
{
    return v->bytes;
}

bool ll_saver_busy(const ll_saver *v)
{
    return v->busy;
}

bool ll_saver_idle(const ll_saver *v)
{
    return !v->w;
}

int64_t ll_saver_step(const ll_saver *v)
{
    return v->written;
}

static ll_err seal(ll_saver *v)
{
    TRY(ll_st_seal(v->w));
    return ll_checkpoint_prune(v->run, &v->c, v->keep);
}

static void *work(void *arg)
{
    ll_saver *v = (ll_saver *)arg;
    v->rc = v->sealing ? seal(v) : ll_st_put(v->w);
    snprintf(v->message, sizeof v->message, "%s", v->rc == LL_OK ? "" : ll_error_message());
    v->busy = false;
    return NULL;
}

/* In a thread, or at once. */
static void start_work(ll_saver *v)
{
    v->busy = true;
    v->running = v->beside && ll_thread_start(&v->thread, work, v);
    if (!v->running) work(v);
}

static ll_err join(ll_saver *v)
{
    if (v->running) pthread_join(v->thread, NULL);
    v->running = false;
    if (v->rc != LL_OK) v->rc = RAISE(v->rc, "%s", v->message); /* now this thread's */
    ll_err rc = ll_ranks_agree(v->comm, v->rc);
    if (rc != LL_OK) end_one(v);
    return rc;
}

ll_err ll_saver_move(ll_saver *v)
{
    TRY(join(v));
    if (!v->sealing) {
        TRY(ll_st_sum(v->w));
        v->sealing = true;
        v->rc = LL_OK;
        if (ll_ranks_lead(v->comm)) start_work(v);
        return LL_OK;
    }
    v->written = v->c.step;
    end_one(v);
    return LL_OK;
}

ll_err ll_saver_finish(ll_saver *v)
{
    while (v->w) TRY(ll_saver_move(v));
    return LL_OK;
}

/* What this rank is to write, where the steps to come do not change it. */
static void copy(ll_saver *v, const ll_st_list *l)
{
    char *to = v->copy;
    for (int i = 0; i < l->n; i++) {
        size_t bytes = bytes_of(l, i);
        if (!bytes) continue;
        memcpy(to, l->tensors[i].data, bytes);
        l->tensors[i].data = to;
        to += bytes;
    }
}

static const ll_st_pair *copy_meta(ll_arena *a, const ll_st_content *c)
{
    ll_st_pair *all = LL_NEW_ARRAY(a, ll_st_pair, c->n_meta + 1);
    for (int i = 0; i < c->n_meta; i++)
        all[i] =
            (ll_st_pair){ll_arena_strdup(a, c->meta[i].key), ll_arena_strdup(a, c->meta[i].value)};
    return all;
}

ll_err ll_saver_save(ll_saver *v, const ll_checkpoint *what, int keep)
{
    LL_ASSERT(ll_saver_idle(v));
    v->arena = ll_arena_new();
    v->c = *what;
    v->keep = keep;
    ll_st_list l = list(v, v->arena);
    v->c.x.tensors = l.tensors, v->c.x.parts = l.parts, v->c.x.n = l.n;
    v->c.x.meta = copy_meta(v->arena, &what->x);
    if (v->beside) copy(v, &l);
    ll_err rc = ll_checkpoint_begin(v->run, &v->c, v->arena, &v->w);
    if (rc != LL_OK) {
        end_one(v);
        return rc;
    }
    start_work(v);
    return v->beside ? LL_OK : ll_saver_finish(v);
}
