/* gpt: GPT-2 (Radford et al., 2019): learned positions, layer norm before each half of a layer,
 * gelu, the token table used again as the last layer's weights. Weights start normal(0.02), those
 * that end a residual branch smaller by 1/sqrt(2 layers), biases 0.
 *
 *     layers width heads            parameters (seq 1024, vocab 50257)
 *         12   768    12             124,439,808
 *         24  1024    16             354,823,168
 *         36  1280    20             774,030,080
 *         48  1600    25           1,557,611,200
 *
 * Letters: b batch, t time, c channel (width), z query/key/value, h head, d channel of a head,
 * f channel inside the mlp, v vocabulary. Weights of attention keep z, h and d as dimensions of
 * their own, so heads are a loop of each product and nothing is ever reshaped. */
#include "model/parts.h"

#include <math.h>

typedef struct sizes {
    int64_t layers, width, heads, seq, vocab, linear;
    double dropout, decay;
} sizes;

static const ll_init small = {LL_NORMAL, 0.02};

/* Of weights that end a residual branch. */
static ll_init ending(const sizes *s)
{
    return (ll_init){LL_NORMAL, 0.02 / sqrt(2.0 * (double)s->layers)};
}

/* Query, key or value, of packed ones: [b,t,h,1,d] or [b,t,h,d]. */
static ll_val part(ll_graph *g, ll_val qkv, int z)
{
    ll_shape s = ll_graph_shape(g, qkv);
    return ll_reshape(g, ll_slice(g, qkv, 2, z, z + 1),
                      z ? LL_SHAPE(s.d[0], s.d[1], s.d[3], s.d[4])
                        : LL_SHAPE(s.d[0], s.d[1], s.d[3], 1, s.d[4]));
}

/* What is no softmax of packed ones, [b,t,h,d]. */
static ll_val unpacked(const ll_build *b, const sizes *s, ll_val qkv)
{
    ll_graph *g = b->g;
    ll_shape x = ll_graph_shape(g, qkv);
    if (!qkv.id) return qkv;
    ll_val q = part(g, qkv, 0), k = part(g, qkv, 1), v = part(g, qkv, 2);
    ll_val y = s->linear ? ll_self_linear(b, "self", q, k, v, s->decay)
                         : ll_self_attend(b, "self", q, k, v, 0);
    return ll_reshape(g, y, LL_SHAPE(x.d[0], x.d[1], x.d[3], x.d[4]));
}

static ll_val attention(const ll_build *b, const sizes *s, ll_val x)
{
    ll_graph *g = b->g;
    int64_t c = s->width, h = s->heads, d = c / h;
    ll_graph_push(g, "attn");
    x = product(g, "qkv", "btc,zhdc->btzhd", x, LL_SHAPE(3, h, d, c), LL_SHAPE(3, h, d), small);
    x = b->cache || s->linear ? unpacked(b, s, x) : ll_attention(g, x); /* [b,t,h,d] */
    x = product(g, "proj", "bthd,chd->btc", x, LL_SHAPE(c, h, d), LL_SHAPE(c), ending(s));
    ll_graph_pop(g);
    return dropped(g, x, s->dropout);
}

static ll_val mlp(ll_graph *g, const sizes *s, ll_val x)
{
    int64_t c = s->width, f = 4 * c;
    ll_graph_push(g, "mlp");
    x = product(g, "fc", "btc,fc->btf", x, LL_SHAPE(f, c), LL_SHAPE(f), small);
    x = product(g, "proj", "btf,cf->btc", ll_gelu(g, x), LL_SHAPE(c, f), LL_SHAPE(c), ending(s));
    ll_graph_pop(g);
    return dropped(g, x, s->dropout);
}

static ll_val layer(const ll_build *b, const sizes *s, ll_val x)
{
    ll_graph *g = b->g;
    x = ll_add(g, x, attention(b, s, ll_layernorm_layer(g, "ln1", x)));
    return ll_add(g, x, mlp(g, s, ll_layernorm_layer(g, "ln2", x)));
}

/* Logits [b,t,v] of tokens [b,t]. */
static ll_val network(const ll_build *b, const sizes *s, ll_val tokens)
{
    ll_graph *g = b->g;
    ll_graph_block(g);
    ll_val table = ll_param(g, "wte", LL_SHAPE(s->vocab, s->width), small);
    ll_val place = ll_param(g, "wpe", LL_SHAPE(s->seq, s->width), small);
    if (b->cache) place = ll_embedding(g, place, ll_build_places(b));
    ll_val x = dropped(g, ll_add(g, ll_embedding(g, table, tokens), place), s->dropout);
    for (int64_t i = 0; i < s->layers; i++) {
        begin_layer(g, i);
        x = layer(b, s, x);
        ll_graph_pop(g);
    }
    ll_graph_block(g);
    x = ll_layernorm_layer(g, "ln_f", ll_build_last(b, x));
    return ll_matmul(g, "btc,vc->btv", x, table);
}

static bool sound(ll_graph *g, const sizes *s)
{
    WANT(s->layers >= 1 && s->layers <= 10000, "gpt: layers %ld, expected 1 to 10000", s->layers);
    WANT(s->heads >= 1 && s->width >= 1 && s->width % s->heads == 0,
         "gpt: width %ld is not a multiple of heads %ld", s->width, s->heads);
    WANT(s->linear == 0 || s->linear == 1, "gpt: model.linear is %ld, expected 0 or 1", s->linear);
    WANT(s->decay <= 0 || s->linear,
         "gpt: model.decay is %g, which needs linear attention: set model.linear=1, or "
         "model.decay=0",
         s->decay);
    return true;
}

static const ll_model gpt;

static ll_val declare(ll_graph *g, const ll_build *given)
{
    ll_build own = *given, *b = &own;
    own.g = g;
    own.model = &gpt;
    sizes s = {SIZE(layers), SIZE(width), SIZE(heads), SIZE(seq), SIZE(vocab), SIZE(linear)};
    s.decay = (double)ll_build_size(b, "decay");
    s.dropout = dropout_of(b);
    if (!sound(g, &s)) return (ll_val){0};
    ll_val x = ll_batch(g, "x", LL_I32, LL_SHAPE(b->batch, b->cache ? b->step : s.seq));
    ll_val logits, y, loss;
    if (b->cache) {
        ll_graph_result(g, "logits", logits = network(b, &s, x));
        return logits;
    }
    y = ll_batch(g, "y", LL_I32, LL_SHAPE(b->batch, s.seq));
    logits = network(b, &s, x);
    loss = ll_mean(g, ll_cross_entropy(g, logits, y));
    ll_graph_result(g, "loss", loss);
    if (!b->training) ll_graph_result(g, "logits", logits);
    return loss;
}

static const ll_model gpt = {
    .name = "gpt",
    .help = "GPT-2 of any size",
    .input = "tokens",
    .sizes = {{"layers", 12, "transformer layers"},
              {"width", 768, "hidden size, a multiple of heads"},
              {"heads", 12, "attention heads"},
              {"seq", 1024, "sequence length in tokens"},
              {"vocab", 50257, "vocabulary size"},
              {"dropout", 0, "dropout after embedding, attention and MLP, in thousandths"},
              {"linear", 0, "1 = linear attention (time and memory linear in seq), 0 = softmax"},
              {"decay", 0,
               "linear attention: head i forgets a fraction 2^-(decay+i) of its state per token; 0 "
               "= none"}},
    .declare = declare,
};

const ll_model *const ll_models_gpt[] = {&gpt, NULL};
