/* llama: decoder of the Llama family (Touvron et al., 2023): rotary positions, RMS norm before each
 * half of a layer, groups of query heads that share keys and values, swiglu, no biases. SmolLM2,
 * Llama 2 and 3, and Mistral (with a window) are this with other sizes:
 *
 *                 layers width heads kv_heads hidden  vocab tied       parameters
 *     SmolLM2-135M    30   576     9        3   1536  49152    1      134,515,008
 *     SmolLM2-360M    32   960    15        5   2560  49152    1      361,821,120
 *     Llama-2-7B      32  4096    32       32  11008  32000    0    6,738,415,616
 *     Mistral-7B      32  4096    32        8  14336  32000    0    7,241,732,096
 *     Llama-3-8B      32  4096    32        8  14336 128256    0    8,030,261,248
 *
 * Letters: b batch, t time, c channel (width), n head of keys, g query heads that share it, d
 * channel of a head, f channel inside the mlp, v vocabulary. */
#include "model/parts.h"

#include <math.h>

typedef struct sizes {
    int64_t layers, width, heads, kv_heads, head, hidden, seq, vocab, rope_base, norm_eps, tied,
        window, linear, decay;
} sizes;

static ll_val weight(ll_graph *g, const char *name, ll_shape shape, double deviation)
{
    ll_graph_push(g, name);
    ll_val w = ll_param(g, "weight", shape, (ll_init){LL_NORMAL, deviation});
    ll_graph_pop(g);
    return w;
}

static ll_val norm(ll_graph *g, const sizes *s, const char *name, ll_val x)
{
    ll_graph_push(g, name);
    ll_val gain = ll_param(g, "weight", LL_SHAPE(s->width), (ll_init){LL_CONSTANT, 1});
    ll_graph_pop(g);
    return ll_rmsnorm(g, x, gain, (double)s->norm_eps * 1e-12);
}

static ll_val attention(const ll_build *b, const sizes *s, ll_val x, ll_val places)
{
    ll_graph *g = b->g;
    int64_t c = s->width, n = s->kv_heads, m = s->heads / n, d = s->head;
    ll_graph_push(g, "attn");
    ll_val q = ll_matmul(g, "btc,ngdc->btngd", x, weight(g, "q", LL_SHAPE(n, m, d, c), 0.02));
    ll_val k = ll_matmul(g, "btc,ndc->btnd", x, weight(g, "k", LL_SHAPE(n, d, c), 0.02));
    ll_val v = ll_matmul(g, "btc,ndc->btnd", x, weight(g, "v", LL_SHAPE(n, d, c), 0.02));
    q = ll_rope_at(g, q, places, (double)s->rope_base, false);
    k = ll_rope_at(g, k, places, (double)s->rope_base, false);
    x = s->linear ? ll_self_linear(b, "self", q, k, v, (double)s->decay)
                  : ll_self_attend(b, "self", q, k, v, s->window);
    ll_val w = weight(g, "proj", LL_SHAPE(c, n, m, d), 0.02 / sqrt(2.0 * (double)s->layers));
    x = ll_matmul(g, "btngd,cngd->btc", x, w);
    ll_graph_pop(g);
    return x;
}

static ll_val mlp(ll_graph *g, const sizes *s, ll_val x)
{
    int64_t c = s->width, f = s->hidden;
    ll_graph_push(g, "mlp");
    ll_val gate = ll_matmul(g, "btc,fc->btf", x, weight(g, "gate", LL_SHAPE(f, c), 0.02));
    ll_val up = ll_matmul(g, "btc,fc->btf", x, weight(g, "up", LL_SHAPE(f, c), 0.02));
    ll_val w = weight(g, "down", LL_SHAPE(c, f), 0.02 / sqrt(2.0 * (double)s->layers));
    x = ll_matmul(g, "btf,cf->btc", ll_mul(g, ll_silu(g, gate), up), w);
    ll_graph_pop(g);
    return x;
}

/* Logits [b,t,v] of tokens [b,t]. */
static ll_val network(const ll_build *b, const sizes *s, ll_val tokens)
{
    ll_graph *g = b->g;
    ll_val places = ll_build_places(b);
    ll_graph_block(g);
    ll_val table = weight(g, "embed", LL_SHAPE(s->vocab, s->width), 0.02);
    ll_val x = ll_build_embed(b, table, tokens);
    for (int64_t i = 0; i < s->layers; i++) {
        begin_layer(g, i);
        x = ll_add(g, x, attention(b, s, norm(g, s, "ln1", x), places));
        x = ll_add(g, x, mlp(g, s, norm(g, s, "ln2", x)));
        ll_graph_pop(g);
    }
    ll_graph_block(g);
    x = norm(g, s, "norm", ll_build_last(b, x));
    if (!s->tied) table = weight(g, "head", LL_SHAPE(s->vocab, s->width), 0.02);
    return ll_matmul(g, "btc,vc->btv", x, table);
}

static bool sound(ll_graph *g, sizes *s)
{
    bool even = s->head || s->heads < 1 || s->width % s->heads == 0;
    if (!s->head && s->heads > 0) s->head = s->width / s->heads;
    WANT(s->layers >= 1 && s->layers <= 10000, "llama: layers %ld, expected 1 to 10000", s->layers);
    WANT(s->heads >= 1 && s->kv_heads >= 1 && s->heads % s->kv_heads == 0,
         "llama: heads %ld is not a multiple of kv_heads %ld", s->heads, s->kv_heads);
    WANT(even,
         "llama: width %ld is not a multiple of heads %ld: set model.head to the channels of a "
         "head",
         s->width, s->heads);
    WANT(s->head >= 2 && s->head % 2 == 0,
         "llama: heads have %ld channels (model.head, or width / heads), expected an even number",
         s->head);
    WANT(s->rope_base >= 1 && s->norm_eps >= 1, "llama: model.%s is 0, expected 1 or more",
         s->rope_base < 1 ? "rope_base" : "norm_eps");
    WANT(s->tied == 0 || s->tied == 1, "llama: model.tied is %ld, expected 0 or 1", s->tied);
    WANT(s->linear == 0 || s->linear == 1, "llama: model.linear is %ld, expected 0 or 1",
         s->linear);
    WANT(!s->linear || s->window <= 0,
         "llama: model.window is %ld, which needs softmax attention: set model.linear=0, or "
         "model.window=0",
         s->window);
    WANT(s->linear || s->decay <= 0,
         "llama: model.decay is %ld, which needs linear attention: set model.linear=1, or "
         "model.decay=0",
         s->decay);
    return true;
}

static const ll_model llama;

static ll_val declare(ll_graph *g, const ll_build *given)
{
    ll_build own = *given, *b = &own;
    own.g = g;
    own.model = &llama;
    sizes s = {SIZE(layers), SIZE(width),  SIZE(heads),  SIZE(kv_heads),  SIZE(head),
               SIZE(hidden), SIZE(seq),    SIZE(vocab),  SIZE(rope_base), SIZE(norm_eps),
               SIZE(tied),   SIZE(window), SIZE(linear), SIZE(decay)};
    if (!sound(g, &s)) return (ll_val){0};
    int64_t t = b->cache ? b->step : s.seq;
    ll_val logits = network(b, &s, ll_batch(g, "x", LL_I32, LL_SHAPE(b->batch, t)));
    if (!b->training) ll_graph_result(g, "logits", logits);
    if (b->cache) return logits;
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(b->batch, t));
    ll_val loss = ll_mean(g, ll_cross_entropy(g, logits, y));
    ll_graph_result(g, "loss", loss);
    return loss;
}

static const ll_model llama = {
    .name = "llama",
    .help = "Llama family: Llama 2 and 3, Mistral, SmolLM2",
    .input = "tokens",
    .sizes = {{"layers", 30, "transformer layers"},
              {"width", 576, "hidden size"},
              {"heads", 9, "query heads, a multiple of kv_heads"},
              {"kv_heads", 3, "key/value heads (grouped-query attention)"},
              {"head", 0, "size of a head; 0 = width / heads"},
              {"hidden", 1536, "hidden size of the MLP"},
              {"seq", 2048, "sequence length in tokens"},
              {"vocab", 49152, "vocabulary size"},
              {"rope_base", 100000, "base of rotary position embeddings (rope_theta)"},
              {"norm_eps", 10000000, "epsilon of the norms, in units of 1e-12"},
              {"tied", 1, "1 = the output layer shares its weights with the token embedding"},
              {"window", 0,
               "sliding-window attention: tokens that each one attends to; 0 = all before it"},
              {"linear", 0, "1 = linear attention (time and memory linear in seq), 0 = softmax"},
              {"decay", 0,
               "linear attention: head i forgets a fraction 2^-(decay+i) of its state per token; 0 "
               "= none"},
              {"places", 0, "longest sequence that imported weights were made for; 0 = seq"}},
    .declare = declare,
};

const ll_model *const ll_models_llama[] = {&llama, NULL};
