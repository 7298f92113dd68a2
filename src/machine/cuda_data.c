/* cuda_data.c: what comes to a program on a GPU and what leaves it, without a wait where none is
 * needed.
 *
 *     this process     set x,y of step 2 | queue step 1 ... set x,y of step 3 | wait for reply 1
 *     upload stream      view -> staging               view -> staging
 *     compute stream                       deliver 1 | kernels of step 1 | collect 1 | update ...
 *
 * Batch data is copied to its view, which is pinned memory, and from there to staging memory on the
 * GPU, beside the step that runs. Delivering, at the head of a step, is one kernel: staging to
 * slots, the clock and numbers such as the learning rate. Collecting is one too: scalar results and
 * the data's mistakes to pinned memory, for which a step waits once.
 *
 * What is laid aside is in this process's memory, and is seen there when the kernels are over. */
#include "base/num.h"
#include "base/rng.h"
#include "machine/cuda.h"

#include <stdlib.h>

static bool is_batch(const ll_exec *e, int slot)
{
    return e->p->slots[slot].kind == LL_BATCH;
}

static size_t rounded(size_t bytes)
{
    return (size_t)ll_round_up((int64_t)bytes, 256);
}

/* Does it lie elsewhere than in the slab, so that each micro-batch is aligned? */
static bool is_apart(const ll_exec *e, int slot)
{
    size_t bytes = e->p->slots[slot].bytes;
    return is_batch(e, slot) && e->p->n_micro > 1 && ll_exec_stride(e, bytes) != bytes;
}

/* Where micro-batch i of a slot lies. */
static char *home_of(const ll_exec *e, int slot, int micro)
{
    return (char *)e->address[slot] + (size_t)micro * ll_exec_stride(e, e->p->slots[slot].bytes);
}

static bool in_reply(const ll_slot *s)
{
    return s->type.shape.n == 0 && s->bytes <= sizeof(int64_t);
}

/* ---- views ---- */

ll_err ll_cuda_pin(ll_exec *e, int slot, void **out)
{
    ll_cuda_view *v = &ll_cuda_of(e)->views[slot];
    if (!v->data) {
        /* as far apart as micro-batches are on the GPU, for collectives that read them there */
        size_t each = ll_exec_stride(e, e->p->slots[slot].bytes);
        TRY(ll_gpu_pinned(each * (is_batch(e, slot) ? (size_t)e->p->n_micro : 1), &v->data));
        v->pinned = true;
    }
    *out = v->data;
    return LL_OK;
}

static void *room_of(const ll_exec *e, int slot)
{
    ll_cuda_view *v = &ll_cuda_of(e)->views[slot];
    size_t bytes = ll_exec_slot_bytes(e, slot);
    if (!v->data) v->data = malloc(bytes ? bytes : 1);
    if (!v->data) ll_assert_failed("memory for a view", __FILE__, __LINE__, __func__);
    return v->data;
}

static ll_err await_reply(const ll_exec *e)
{
    ll_cuda *o = ll_cuda_of(e);
    if (o->reply_state == LL_REPLY_COMING) {
        TRY(ll_cuda_await(e, LL_STREAM_COMPUTE));
        o->reply_state = LL_REPLY_HERE;
    }
    return LL_OK;
}

/* A GPU that fails stays so: the next run tells. */
void *ll_cuda_view_of(const ll_exec *e, int slot)
{
    ll_cuda *o = ll_cuda_of(e);
    int at = o->reply_of[slot];
    if (at && await_reply(e) == LL_OK && o->reply_state == LL_REPLY_HERE) return &o->reply[at - 1];
    if (ll_cuda_is_aside(e, slot)) {
        ll_err rc = ll_cuda_await(e, LL_STREAM_COMPUTE);
        (void)rc;
        return e->address[slot];
    }
    void *data = room_of(e, slot);
    if (o->views[slot].staging) return data; /* no kernel writes batch data */
    ll_err rc = ll_cuda_read(e, slot, data);
    (void)rc;
    return data;
}

ll_err ll_cuda_read(const ll_exec *e, int slot, void *to)
{
    size_t all = ll_exec_slot_bytes(e, slot), bytes = e->p->slots[slot].bytes;
    ll_gpu *g = ll_cuda_of(e)->gpu;
    if (ll_cuda_is_aside(e, slot)) {
        TRY(ll_cuda_await(e, LL_STREAM_COMPUTE));
        return ll_host_read(e, slot, to);
    }
    for (int m = 0; bytes && m < (int)(all / bytes); m++)
        TRY(ll_gpu_read(g, (char *)to + (size_t)m * bytes, home_of(e, slot, m), bytes));
    return ll_cuda_await(e, LL_STREAM_COMPUTE);
}

/* ---- coming ---- */

/* Bytes of the view are uploaded, to where the next step finds them. */
static ll_err stage(const ll_exec *e, int slot, size_t at, size_t bytes)
{
    ll_cuda *o = ll_cuda_of(e);
    ll_cuda_view *v = &o->views[slot];
    v->staged = o->uploading = true;
    return ll_gpu_copy(o->gpu, LL_STREAM_UPLOAD, (char *)v->staging + at, (char *)v->data + at,
                       bytes);
}

static ll_err stage_data(const ll_exec *e, int slot, int micro, const void *data, size_t bytes)
{
    ll_cuda *o = ll_cuda_of(e);
    ll_cuda_view *v = &o->views[slot];
    size_t at = (size_t)micro * e->p->slots[slot].bytes;
    /* What was uploaded from there must be over: of the step before, or of a set before this. */
    if (!o->uploaded || micro < v->next) TRY(ll_cuda_await(e, LL_STREAM_UPLOAD));
    o->uploaded = true;
    v->next = micro + 1;
    if (bytes) memcpy((char *)v->data + at, data, bytes);
    return stage(e, slot, at, bytes);
}

static ll_err note_scalar(ll_cuda *o, int slot, const void *data, size_t bytes)
{
    struct ll_step_scalar *s = o->scalars;
    while (s < o->scalars + o->n_scalar && s->slot != slot) s++;
    if (s == o->scalars + o->n_scalar) o->n_scalar++;
    s->slot = slot;
    memcpy(&s->value, data, bytes);
    return LL_OK;
}

ll_err ll_cuda_put(const ll_exec *e, int slot, int micro, const void *data)
{
    ll_cuda *o = ll_cuda_of(e);
    const ll_slot *s = &e->p->slots[slot];
    if (is_batch(e, slot)) return stage_data(e, slot, micro, data, s->bytes);
    if (ll_cuda_is_aside(e, slot)) {
        TRY(ll_cuda_await(e, LL_STREAM_COMPUTE));
        return ll_host_put(e, slot, micro, data);
    }
    bool few = o->n_scalar < LL_STEP_SCALARS && s->bytes <= sizeof(uint64_t);
    if (s->kind == LL_STEP && few) return note_scalar(o, slot, data, s->bytes);
    return ll_gpu_write(o->gpu, e->address[slot], data, s->bytes);
}

ll_err ll_cuda_changed(const ll_exec *e, int slot)
{
    ll_cuda *o = ll_cuda_of(e);
    if (is_batch(e, slot)) {
        o->views[slot].next = e->p->n_micro;
        TRY(stage(e, slot, 0, ll_exec_slot_bytes(e, slot)));
        return ll_cuda_await(e, LL_STREAM_UPLOAD); /* views may be written again at once */
    }
    if (ll_cuda_is_aside(e, slot)) return LL_OK; /* the view is what was changed */
    TRY(ll_gpu_write(o->gpu, e->address[slot], room_of(e, slot), ll_exec_slot_bytes(e, slot)));
    return ll_cuda_await(e, LL_STREAM_COMPUTE);
}

static bool is_drawn(const ll_slot *s)
{
    const ll_init *i = &s->init;
    bool random = !i->data && (i->kind == LL_NORMAL || i->kind == LL_UNIFORM);
    return random && (s->type.dtype == LL_F32 || s->type.dtype == LL_F64);
}

static ll_err draw(ll_exec *e, int slot)
{
    const ll_slot *s = &e->p->slots[slot];
    ll_gpu_drawing d = {.seed = e->opts.seed,
                        .stream = ll_init_stream(s->name),
                        .normal = s->init.kind == LL_NORMAL,
                        .f64 = s->type.dtype == LL_F64,
                        .scale = s->init.a,
                        .shape = s->type.shape,
                        .whole = s->piece ? s->piece->whole : s->type.shape};
    for (int k = 0; s->piece && k < d.shape.n; k++) d.at[k] = s->piece->at[k];
    return ll_gpu_draw(ll_cuda_of(e)->gpu, e->address[slot], &d);
}

ll_err ll_cuda_init(ll_exec *e, int slot)
{
    ll_cuda *o = ll_cuda_of(e);
    const ll_slot *s = &e->p->slots[slot];
    if (ll_cuda_is_aside(e, slot)) return ll_host_init(e, slot);
    if (s->init.kind == LL_ZEROS) return ll_gpu_fill(o->gpu, e->address[slot], 0, s->bytes);
    if (is_drawn(s)) return draw(e, slot);
    void *data = malloc(s->bytes + 1);
    CHECK(data, LL_E_MEM, "not enough memory for the initial values of %s", s->name);
    ll_init_fill(&s->init, s->name, e->opts.seed, &s->type, s->piece, e->p->threads, data);
    ll_err rc = ll_gpu_write(o->gpu, e->address[slot], data, s->bytes);
    if (rc == LL_OK) rc = ll_cuda_await(e, LL_STREAM_COMPUTE);
    free(data);
    return rc;
}

static ll_err send(ll_cuda *o, ll_gpu_piece *pieces, int *n)
{
    TRY(ll_gpu_pieces(o->gpu, pieces, *n));
    *n = 0;
    return LL_OK;
}

ll_err ll_cuda_begin(ll_exec *e, uint64_t step)
{
    ll_cuda *o = ll_cuda_of(e);
    ll_gpu_piece pieces[LL_GPU_PIECES];
    int n = 0;
    if (e->opts.poison)
        TRY(ll_gpu_fill(o->gpu, e->slab + e->input_bytes, 0xff,
                        e->p->work_bytes + e->p->scratch_bytes));
    o->reply_state = LL_REPLY_OLD;
    if (!o->started || o->step != step)
        pieces[n++] =
            (ll_gpu_piece){.to = o->clock, .value = ll_stream("", step), .bytes = sizeof(uint64_t)};
    o->started = true;
    o->step = step;
    LL_EACH (const struct ll_step_scalar, s, o->scalars, o->n_scalar) {
        pieces[n++] = (ll_gpu_piece){
            .to = e->address[s->slot], .value = s->value, .bytes = e->p->slots[s->slot].bytes};
    }
    o->n_scalar = 0;
    bool took = o->uploading;
    if (took) TRY(ll_gpu_after(o->gpu, LL_STREAM_COMPUTE, LL_STREAM_UPLOAD));
    for (int i = 0; i < e->p->n_input && o->uploading; i++) {
        int slot = e->p->inputs[i].slot;
        ll_cuda_view *v = &o->views[slot];
        if (!v->staged) continue;
        int times = is_apart(e, slot) ? e->p->n_micro : 1;
        size_t bytes = ll_exec_slot_bytes(e, slot) / (size_t)times;
        for (int m = 0; m < times; m++) {
            if (n == LL_GPU_PIECES) TRY(send(o, pieces, &n));
            pieces[n++] = (ll_gpu_piece){home_of(e, slot, m),
                                         (char *)v->staging + (size_t)m * bytes, bytes, 0};
        }
        v->staged = false;
        v->next = 0;
    }
    o->uploading = o->uploaded = false;
    if (n) TRY(send(o, pieces, &n));
    return took ? ll_gpu_after(o->gpu, LL_STREAM_UPLOAD, LL_STREAM_COMPUTE) : LL_OK;
}

/* ---- leaving ---- */

ll_err ll_cuda_end(ll_exec *e)
{
    ll_cuda *o = ll_cuda_of(e);
    ll_gpu_piece pieces[LL_GPU_PIECES];
    int n = 0;
    for (int i = 0; i < e->p->n_result; i++) {
        int slot = e->p->results[i].slot, at = o->reply_of[slot];
        if (!at) continue;
        if (n == LL_GPU_PIECES) TRY(send(o, pieces, &n));
        pieces[n++] =
            (ll_gpu_piece){&o->reply[at - 1], e->address[slot], e->p->slots[slot].bytes, 0};
    }
    if (n == LL_GPU_PIECES) TRY(send(o, pieces, &n));
    pieces[n++] =
        (ll_gpu_piece){o->reply + o->n_reply, o->trouble, LL_TROUBLE_WORDS * sizeof(int64_t), 0};
    o->reply_state = LL_REPLY_COMING;
    return send(o, pieces, &n);
}

ll_err ll_cuda_wait(ll_exec *e)
{
    ll_cuda *o = ll_cuda_of(e);
    TRY(await_reply(e));
    const int64_t *t = o->reply + o->n_reply;
    if (o->reply_state == LL_REPLY_OLD) return LL_OK;
    if (e->saturated >= 0) e->saturated = t[LL_TROUBLE_SATURATED] - o->saturated;
    o->saturated = t[LL_TROUBLE_SATURATED];
    if (!t[0]) return LL_OK;
    int64_t none[LL_TROUBLE_SATURATED] = {0};
    TRY(ll_gpu_write(o->gpu, o->trouble, none, sizeof none));
    CHECK(t[0] != LL_TROUBLE_DENSE, LL_E_ARG,
          "train.prune is 2:4, and weights are not: more than two of the four numbers from %ld on "
          "of "
          "row %ld of a product's are no zeros: load a checkpoint that was pruned so, or use "
          "train.prune=none",
          t[2], t[1]);
    FAIL(LL_E_ARG, "%s %ld of the batch is %ld, which is outside of its range",
         t[0] == 1 ? "the label of row" : "index", t[1], t[2]);
}

/* ---- all of it ---- */

/* Where batch data waits and, where that is not in the slab, lies: in one piece of memory. */
static ll_err open_staging(ll_exec *e)
{
    ll_cuda *o = ll_cuda_of(e);
    const ll_program *p = e->p;
    size_t bytes = 0, at = 0;
    for (int round = 0; round < 2; round++) { /* how much, then which */
        if (round && bytes) TRY(ll_gpu_alloc(o->gpu, bytes, &o->staging));
        if (round && bytes) TRY(ll_gpu_fill(o->gpu, o->staging, 0, bytes));
        for (int i = 0; i < p->n_input; i++) {
            int slot = p->inputs[i].slot;
            ll_cuda_view *v = &o->views[slot];
            void *view;
            if (!is_batch(e, slot)) continue;
            if (round) TRY(ll_cuda_pin(e, slot, &view));
            if (round) v->staging = (char *)o->staging + at;
            at += rounded(ll_exec_slot_bytes(e, slot));
            if (!is_apart(e, slot)) continue;
            if (round) e->address[slot] = (char *)o->staging + at;
            at += rounded((size_t)p->n_micro * ll_exec_stride(e, p->slots[slot].bytes));
        }
        bytes = at;
        at = 0;
    }
    e->extra_bytes += bytes;
    return LL_OK;
}

ll_err ll_cuda_open_data(ll_exec *e)
{
    ll_cuda *o = ll_cuda_of(e);
    const ll_program *p = e->p;
    void *data;
    TRY(open_staging(e));
    o->reply_of = LL_NEW_ARRAY(e->arena, int, p->n_slot + 1);
    for (int i = 0; i < p->n_result; i++) {
        int slot = p->results[i].slot;
        if (in_reply(&p->slots[slot]) && !o->reply_of[slot]) o->reply_of[slot] = ++o->n_reply;
    }
    TRY(ll_gpu_pinned(sizeof(int64_t) * (size_t)(o->n_reply + LL_TROUBLE_WORDS), &data));
    o->reply = (int64_t *)data;
    return LL_OK;
}

void ll_cuda_close_data(ll_exec *e)
{
    ll_cuda *o = ll_cuda_of(e);
    LL_EACH (ll_cuda_view, v, o->views, e->p->n_slot)
        v->pinned ? ll_gpu_unpin(v->data) : free(v->data);
    ll_gpu_unpin(o->reply);
    ll_gpu_free(o->gpu, o->staging);
}
