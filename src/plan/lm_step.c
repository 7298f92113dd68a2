/* lm_step.c: a whole step of a transformer: stages of layers, the pipeline, gradients, the update,
 * and the memory of the rank that has most. */
#include "plan/lm.h"

#include <math.h>

typedef struct step {
    const ll_cluster *c;
    const ll_lm *m;
    const ll_how *h;
    ll_arena *arena;
    int n_stage;
    double *layers; /* [n_stage] */
    ll_layer_time layer;
    double head_f, head_b, embed_f, embed_b; /* of the last and the first stage, besides */
    double layer_params;                     /* of one layer, on a rank, before ZeRO */
    double ends_params;                      /* of the embedding or the head, likewise */
    ll_peers data;                           /* who sums gradients */
    ll_outcome *out;
} step;

/* Each layer goes to the stage that would be done first. */
static void deal_by_time(step *s)
{
    int last = s->n_stage - 1;
    double layer = s->layer.f + s->layer.i + s->layer.w;
    for (int k = 0; k < (int)s->m->layers; k++) {
        int least = 0;
        double best = INFINITY;
        for (int i = 0; i <= last; i++) {
            double t = s->layers[i] * layer + (i == 0) * (s->embed_f + s->embed_b) +
                       (i == last) * (s->head_f + s->head_b);
            if (t < best) best = t, least = i;
        }
        s->layers[least]++;
    }
}

/* Layers of each stage: the first ones have those left over, or with full_first the last what is
 * left; with slots the embedding and the head take a layer's place. */
static void deal(step *s)
{
    if (s->h->system->balanced) {
        deal_by_time(s);
        return;
    }
    double slots = s->m->layers + (s->h->system->slots && s->n_stage > 1 ? 2 : 0);
    double full = ceil(slots / s->n_stage);
    for (int i = 0; i < s->n_stage; i++) {
        s->layers[i] = s->h->system->full_first
                           ? fmin(full, fmax(0, slots - i * full))
                           : floor(slots / s->n_stage) + (i < fmod(slots, s->n_stage));
        if (slots > s->m->layers && (i == 0 || i == s->n_stage - 1)) s->layers[i] -= 1;
        if (s->layers[i] < 0) s->layers[i] = 0;
    }
}

/* Embedding and head: a product with the vocabulary, and the loss on its result. */
static void find_ends(step *s)
{
    const ll_chip *c = &s->c->chip;
    const ll_how *h = s->h;
    double tokens = h->micro_batch * s->m->seq / h->context, v = s->m->vocab / h->tensor;
    ll_precision p = ll_precision_wide(h->precision);
    double k = s->m->width;
    double apart = h->system->lean ? 0 : tokens * v; /* logits that the loss reads and writes */
    s->head_f = ll_cost_product(c, p, 1, tokens, v, k) + ll_cost_stream(c, 12 * apart, 1);
    s->head_b = ll_cost_product(c, p, 1, tokens, k, v) + ll_cost_product(c, p, 1, k, v, tokens) +
                ll_cost_stream(c, 8 * apart, 1);
    s->embed_f = ll_cost_stream(c, 8 * tokens * k, 1);
    s->embed_b = ll_cost_stream(c, 8 * tokens * k, 1);
}

/* A layer's collectives of ZeRO 3: parameters for each pass, gradients after the second. */
static void gather_layers(step *s)
{
    const ll_how *h = s->h;
    if (h->zero < 3 || s->data.n <= 1) return;
    double n = fmax(1, h->system->gathers);
    ll_peers near = s->data;
    if (h->shard > 0) near.n = h->shard;
    if (n > 2) near.rings = 1; /* tensor by tensor: one ring, through one adapter */
    double gather = n * ll_cost_gather(s->c, near, s->layer_params * h->system->param_bytes / n);
    double scatter = n * ll_cost_gather(s->c, near, s->layer_params * h->system->grad_bytes / n);
    double f = s->layer.f, b = s->layer.i + s->layer.w, sums = 0;
    if (h->shard > 0 && h->shard < h->data) /* over replicas of the cut: by the same adapters */
        sums = ll_cost_allreduce(s->c, (ll_peers){h->data / h->shard, 1},
                                 s->layer_params * h->system->grad_bytes / h->shard) /
               h->n_micro;
    double ff = ll_cost_beside(&s->c->chip, f, gather);
    double bb = ll_cost_beside(&s->c->chip, b, gather + scatter + sums);
    s->out->data_s += (double)h->n_micro * s->m->layers * (ff - f + bb - b);
    s->layer.f = ff;
    s->layer.i += bb - b;
    s->out->moved += h->n_micro * s->m->layers * s->layer_params *
                     (2 * h->system->param_bytes + h->system->grad_bytes);
}

static ll_err simulate(step *s, int n_micro, const char *name, const ll_pipeline_costs *costs,
                       const ll_pipeline **p, ll_pipeline_times *t)
{
    int pipe = (int)s->h->pipe;
    if (!strncmp(name, "auto ", 5)) { /* with memory for so many times the stages in flight */
        double *limit = LL_NEW_ARRAY(s->arena, double, pipe);
        for (int r = 0; r < pipe; r++)
            limit[r] = atof(name + 5) * pipe * costs->bytes[s->n_stage / 2];
        TRY(ll_pipeline_auto(s->arena, costs, limit, pipe, s->n_stage, n_micro, p));
    } else
        TRY(ll_pipeline_make(s->arena, name, pipe, s->n_stage, n_micro, p));
    return ll_pipeline_simulate(s->arena, *p, costs, t);
}

static const char *schedule_of(const ll_how *h)
{
    return h->schedule ? h->schedule : h->virtual_stages > 1 ? "interleaved" : "1f1b";
}

/* Ranks along tensor have the same: each sends a part, by DeepSpeed and blocking as well. */
static double edge_bytes(const step *s)
{
    const ll_how *h = s->h;
    return 2 * h->micro_batch * s->m->seq / h->context * s->m->width / h->tensor;
}

/* Times of the stages, and the schedule's makespan: of many micro-batches, which repeat, by two
 * smaller numbers of them. */
static ll_err run_pipeline(step *s, bool pictures, ll_piped *out)
{
    const ll_how *h = s->h;
    int n = s->n_stage, pipe = (int)h->pipe;
    double *f = LL_NEW_ARRAY(s->arena, double, n), *i = LL_NEW_ARRAY(s->arena, double, n),
           *w = LL_NEW_ARRAY(s->arena, double, n), *held = LL_NEW_ARRAY(s->arena, double, n),
           *send = LL_NEW_ARRAY(s->arena, double, n);
    double edge = edge_bytes(s);
    bool between = h->tensor * h->context * h->data * h->pipe > s->c->node.chips;
    for (int k = 0; k < n; k++) {
        f[k] = s->layers[k] * s->layer.f + (k == 0) * s->embed_f + (k == n - 1) * s->head_f;
        i[k] = s->layers[k] * s->layer.i + (k == n - 1) * s->head_b;
        w[k] = s->layers[k] * s->layer.w + (k == 0) * s->embed_b;
        held[k] = s->layers[k];
        send[k] = ll_cost_send(s->c, between, edge);
        if (!h->system->overlap_pipe && n > 1) f[k] += send[k], i[k] += send[k];
    }
    ll_pipeline_costs costs = {.f = f, .i = i, .w = w, .bytes = held, .send = send};
    const char *name = schedule_of(h);
    int few = 3 * pipe, more = 4 * pipe;
    ll_pipeline_times t;
    const ll_pipeline *p;
    double busy = 0, *seconds = &out->seconds;
    if (pictures || h->n_micro <= more) {
        TRY(simulate(s, h->n_micro, name, &costs, &p, &t));
        *seconds = t.makespan;
        s->out->pipeline = p, s->out->times = t;
    } else {
        few += h->n_micro % pipe, more += h->n_micro % pipe;
        ll_pipeline_times less;
        TRY(simulate(s, few, name, &costs, &p, &less));
        TRY(simulate(s, more, name, &costs, &p, &t));
        *seconds = t.makespan + (t.makespan - less.makespan) * (h->n_micro - more) / pipe;
    }
    for (int r = 0; r < pipe; r++) {
        double mine = 0; /* what repeats, too, takes as long as the fullest rank's work */
        for (int k = r; k < n; k += pipe) mine += h->n_micro * (f[k] + i[k] + w[k]);
        *seconds = fmax(*seconds, mine);
        busy += mine;
    }
    out->bubble = 1 - busy / (pipe * *seconds);
    for (int r = 0; r < pipe; r++) out->peak[r] = t.peak[r];
    out->known = true;
    return LL_OK;
}

static ll_err find_pipeline(step *s, bool pictures, double *seconds, double *peak)
{
    const ll_how *h = s->h;
    ll_piped own = {0}, *p = h->piped && !pictures ? &h->piped[h->remake] : &own;
    if (!p->known) TRY(run_pipeline(s, pictures, p));
    *seconds = p->seconds;
    memcpy(peak, p->peak, sizeof p->peak);
    s->out->moved += 2.0 * h->n_micro * edge_bytes(s) * h->virtual_stages;
    s->out->bubble = p->bubble;
    s->out->bubble_s = p->bubble * p->seconds; /* of ranks in the mean, so with uneven stages */
    s->out->compute_s = p->seconds - s->out->bubble_s;
    return LL_OK;
}

/* Gradients over axis data, parameters back from those who updated them. */
static void sum_gradients(step *s, double params)
{
    const ll_how *h = s->h;
    double grads = params * h->system->grad_bytes, stage = s->m->layers / h->pipe;
    double back = stage * (s->layer.i + s->layer.w), ahead = stage * s->layer.f, sums, after = 0;
    if (s->data.n <= 1 || h->zero >= 3) return;
    sums = h->zero ? ll_cost_gather(s->c, s->data, grads) : ll_cost_allreduce(s->c, s->data, grads);
    if (h->zero) after = ll_cost_gather(s->c, s->data, params * h->system->param_bytes);
    if (h->system->sums > 0) sums *= h->system->sums, after *= h->system->sums;
    s->out->moved += grads * (h->zero ? 1 : 2) + (h->zero ? params * h->system->param_bytes : 0);
    if (h->system->overlap_data) {
        sums = ll_cost_beside(&s->c->chip, back, sums) - back;
        after = after > 0 ? ll_cost_beside(&s->c->chip, ahead, after) - ahead : 0;
    }
    s->out->data_s += sums + after;
}

/* Ranks that ZeRO cuts over. */
static double cut_over(const step *s)
{
    return s->h->system->zero_data ? s->h->data : s->data.n;
}

/* Bytes of a layer's activations that a micro-batch leaves for the backward pass. */
static double kept(const step *s, ll_remake remake)
{
    const ll_how *h = s->h;
    double sbh = h->micro_batch * s->m->seq / h->context * s->m->width;
    double ffn = s->m->ffn / s->m->width / 4 * (s->m->gated ? 1.5 : 1);
    double mask = h->system->dropout, cut = h->sequence ? h->tensor : 1;
    if (remake == LL_REMAKE_FULL) return 2 * sbh / cut;
    double scores = remake == LL_REMAKE_NONE && !h->system->attention
                        ? (4 + mask) * s->m->heads * s->m->seq / s->m->width / h->tensor
                        : 0;
    double heads = 4 + 4 * s->m->kv_heads / s->m->heads;
    double outside = (8 + 2 * mask) / cut, inside = (heads + 16 * ffn) / h->tensor;
    if (remake == LL_REMAKE_FFN) outside = (4 + 2 * mask) / cut, inside = heads / h->tensor;
    if (ll_precision_unit(h->precision) == LL_PRECISION_fp8) inside *= 0.75;
    return sbh * (outside + inside + scores);
}

static void find_memory(step *s, const double *peak)
{
    const ll_how *h = s->h;
    const ll_system *y = h->system;
    double d = cut_over(s),
           per[3] = {h->zero >= 3 ? d : 1, h->zero >= 2 ? d : 1, h->zero >= 1 ? d : 1};
    if (h->zero >= 3 && h->shard > 0) per[0] = per[1] = per[2] = h->shard;
    double most = 0, tokens = h->micro_batch * s->m->seq / h->context;
    for (int r = 0; r < (int)h->pipe; r++) {
        double layers = 0, ends = 0;
        for (int k = r; k < s->n_stage; k += (int)h->pipe) layers += s->layers[k];
        if (r == 0) ends += s->ends_params;
        if (r == (int)h->pipe - 1 && (h->pipe > 1 || !s->m->tied)) ends += s->ends_params;
        double params = layers * s->layer_params + ends;
        ll_lm_bytes b = {.weights = params * y->param_bytes / per[0],
                         .gradients = params * (y->grad_bytes + y->kept_bytes) / per[1],
                         .optimizer = h->offload ? 0 : params * y->state_bytes / per[2],
                         .activations = (h->pipe > 1 ? peak[r] : layers) * kept(s, h->remake)};
        if (h->remake >= LL_REMAKE_FFN) b.activations += kept(s, LL_REMAKE_NONE);
        if (h->zero >= 3)
            b.buffers +=
                s->layer_params * (2 * y->param_bytes + y->grad_bytes) / (y->gathers > 2 ? 4 : 1);
        if (r == (int)h->pipe - 1) b.buffers += tokens * s->m->vocab / h->tensor * y->loss_bytes;
        if (h->tensor > 1) b.buffers += 4 * tokens * s->m->width;
        if (s->m->dropout) b.buffers += 4 * tokens * s->m->width;
        b.reserved = 1e9 * s->c->chip.reserved;
        if (ll_lm_bytes_sum(&b) > most) most = ll_lm_bytes_sum(&b), s->out->bytes = b;
    }
}

static void find_update(step *s, double params)
{
    double mine = s->h->zero ? params / cut_over(s) : params, state = s->h->system->state_bytes;
    /* Norm, moments and parameters, read and written. */
    s->out->update_s = ll_cost_stream(&s->c->chip, mine * (20 + state), 1);
    if (!s->h->offload) return;
    s->out->update_s +=
        2 * mine * state / (1e9 * s->c->node.host); /* there is no room to come early */
}

ll_err ll_lm_step(const ll_cluster *c, const ll_lm *m, const ll_how *h, ll_arena *arena,
                  bool pictures, ll_outcome *out)
{
    ll_cluster slow = *c;
    if (h->system->blocking) slow.chip.launch += c->chip.host;
    c = &slow;
    step s = {.c = c, .m = m, .h = h, .arena = arena, .out = out};
    double kv = m->kv_heads / m->heads, peers = h->data * h->context, seconds;
    double peak[LL_PIPELINE_RANKS];
    *out = (ll_outcome){.parameters = ll_lm_parameters(m)};
    CHECK(h->pipe <= LL_PIPELINE_RANKS, LL_E_ARG, "%g pipeline ranks, at most %d", h->pipe,
          LL_PIPELINE_RANKS);
    s.n_stage = (int)h->pipe * (h->virtual_stages > 1 ? h->virtual_stages : 1);
    s.layers = LL_NEW_ARRAY(arena, double, s.n_stage);
    s.data = (ll_peers){peers, fmax(1, fmin(peers, floor(c->node.chips / h->tensor)))};
    s.layer_params = m->width * (m->width * (2 + 2 * kv) + (m->gated ? 3 : 2) * m->ffn) / h->tensor;
    s.ends_params = m->vocab * m->width / h->tensor;
    s.layer = ll_lm_layer(c, m, h);
    out->tensor_s = h->n_micro * m->layers / h->pipe *
                    (s.layer.tensor * (h->remake == LL_REMAKE_FULL ? 3 : 2) + s.layer.ring);
    find_ends(&s);
    gather_layers(&s);
    deal(&s);
    double params = s.layer_params * ceil(m->layers / h->pipe) + s.ends_params;
    if (s.n_stage > 1) {
        TRY(find_pipeline(&s, pictures, &seconds, peak));
    } else {
        double one = m->layers * (s.layer.f + s.layer.i + s.layer.w) + s.head_f + s.head_b +
                     s.embed_f + s.embed_b;
        seconds = out->compute_s = h->n_micro * one;
    }
    double inside = h->zero >= 3 ? out->data_s : 0;
    sum_gradients(&s, params);
    find_update(&s, params);
    find_memory(&s, peak);
    double nodes = ceil(h->data * h->tensor * h->pipe * h->context / c->node.chips);
    out->step_s = seconds + out->data_s - inside + out->update_s;
    out->wait_s = out->step_s * c->network.jitter * log2(fmax(1, nodes));
    out->step_s += out->wait_s;
    out->compute_s -= inside;
    double samples = h->data * h->n_micro * h->micro_batch;
    out->model_flops = samples * ll_lm_flops(m);
    double again = h->remake == LL_REMAKE_FULL ? s.layer.f_flops : 0;
    out->hardware_flops =
        out->model_flops + h->data * h->tensor * h->context * h->n_micro * m->layers * again;
    return LL_OK;
}
