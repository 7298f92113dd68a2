/* seq2seq: the transformer as it was first (Vaswani et al., 2017): an encoder that sees all of the
 * source, a decoder that sees what it has made and, by attention across, what the encoder made;
 * norms behind each part of a layer, relu, positions as sines and cosines (halves, not in turns),
 * one table for source, target and logits. Batch data: source [b,s], x and y [b,t], y being x
 * shifted by one; of plain text the source is what comes before. Tokens `pad` of the source are not
 * attended to, and where y is `pad` there is no loss.
 *
 * Encoder and decoder have the parameters of torch.nn.Transformer, with norms at their ends:
 *     layers width heads hidden        without the table    with 37,000 tokens
 *          6   512     8   2048          44,140,544           63,084,544    base
 *          6  1024    16   4096         176,361,472          214,249,472    big
 *
 * Letters as gpt's; s: positions of the source. */
#include "loopline.h"

#include <math.h>
#include <stdio.h>

typedef struct sizes {
    int64_t layers, width, heads, hidden, vocab, pad;
    double dropout;
} sizes;

static ll_val product(ll_graph *g, const char *name, const char *spec, ll_val x, ll_shape weight,
                      ll_shape bias, int64_t in, int64_t out)
{
    ll_init init = {LL_UNIFORM, sqrt(6.0 / (double)(in + out))}; /* Glorot's */
    ll_graph_push(g, name);
    ll_val w = ll_param(g, "weight", weight, init);
    x = ll_add(g, ll_matmul(g, spec, x, w), ll_param(g, "bias", bias, (ll_init){LL_ZEROS, 0}));
    ll_graph_pop(g);
    return x;
}

static ll_val dropped(ll_graph *g, const sizes *s, ll_val x)
{
    return s->dropout > 0 ? ll_dropout(g, x, s->dropout) : x;
}

/* x plus what it sees in `in`, and a norm: ll_attend's masks. */
static ll_val attend(ll_graph *g, const sizes *s, const char *name, const char *ln, ll_val x,
                     ll_val in, const ll_attend_opts *how)
{
    int64_t c = s->width, h = s->heads, d = c / h;
    ll_graph_push(g, name);
    ll_val q = product(g, "q", "btc,hdc->bthd", x, LL_SHAPE(h, d, c), LL_SHAPE(h, d), c, c);
    ll_val k = product(g, "k", "btc,hdc->bthd", in, LL_SHAPE(h, d, c), LL_SHAPE(h, d), c, c);
    ll_val v = product(g, "v", "btc,hdc->bthd", in, LL_SHAPE(h, d, c), LL_SHAPE(h, d), c, c);
    ll_val y = ll_attend(g, q, k, v, how);
    y = product(g, "proj", "bthd,chd->btc", y, LL_SHAPE(c, h, d), LL_SHAPE(c), c, c);
    ll_graph_pop(g);
    return ll_layernorm_layer(g, ln, ll_add(g, x, dropped(g, s, y)));
}

static ll_val mlp(ll_graph *g, const sizes *s, const char *ln, ll_val x)
{
    int64_t c = s->width, f = s->hidden;
    ll_graph_push(g, "mlp");
    ll_val y = product(g, "fc", "btc,fc->btf", x, LL_SHAPE(f, c), LL_SHAPE(f), c, f);
    y = dropped(g, s, ll_relu(g, y));
    y = product(g, "proj", "btf,cf->btc", y, LL_SHAPE(c, f), LL_SHAPE(c), f, c);
    ll_graph_pop(g);
    return ll_layernorm_layer(g, ln, ll_add(g, x, dropped(g, s, y)));
}

/* Tokens [b,t] and their places as [b,t,c]. */
static ll_val look_up(ll_graph *g, const sizes *s, ll_val table, ll_val tokens)
{
    int64_t half = s->width / 2, t = ll_graph_shape(g, tokens).d[1];
    ll_val turns = ll_exp(g, ll_arange(g, LL_F32, half, 0, -log(1e4) / (double)half));
    ll_val angle = ll_matmul(g, "t,c->tc", ll_arange(g, LL_F32, t, 0, 1), turns);
    ll_val place = ll_concat(g, (ll_val[]){ll_sin(g, angle), ll_cos(g, angle)}, 2, 1);
    ll_val x = ll_scale(g, ll_embedding(g, table, tokens), sqrt((double)s->width));
    return dropped(g, s, ll_add(g, x, place));
}

/* Layers of one side; memory: the encoder's result, none in the encoder itself. */
static ll_val side(ll_graph *g, const sizes *s, const char *name, ll_val x, ll_val memory,
                   ll_val mask)
{
    ll_attend_opts all = {.mask = mask}, before = {.causal = LL_CAUSAL};
    ll_graph_push(g, name);
    for (int64_t i = 0; i < s->layers; i++) {
        char text[32];
        snprintf(text, sizeof text, "h%lld", (long long)i);
        ll_graph_block(g);
        ll_graph_push(g, text);
        x = attend(g, s, "attn", "ln1", x, x, memory.id ? &before : &all);
        if (memory.id) x = attend(g, s, "cross", "ln2", x, memory, &all);
        x = mlp(g, s, memory.id ? "ln3" : "ln2", x);
        ll_graph_pop(g);
    }
    ll_graph_block(g);
    x = ll_layernorm_layer(g, "ln", x);
    ll_graph_pop(g);
    return x;
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    sizes s = {.layers = ll_build_size(b, "layers"),
               .width = ll_build_size(b, "width"),
               .heads = ll_build_size(b, "heads"),
               .hidden = ll_build_size(b, "hidden"),
               .vocab = ll_build_size(b, "vocab"),
               .pad = ll_build_size(b, "pad"),
               .dropout = b->training ? (double)ll_build_size(b, "dropout") / 1000 : 0};
    int64_t seq = ll_build_size(b, "seq"), source = ll_build_size(b, "source");
    if (b->cache || s.heads < 1 || s.width < 2 || s.width % s.heads || s.width % 2 ||
        s.layers > 10000) {
        ll_graph_reject(g, b->cache ? "seq2seq answers a source: generate and serve take gpt, llama"
                                    : "seq2seq: want an even width, a multiple of heads, at most "
                                      "10000 layers");
        return (ll_val){0};
    }
    if (s.pad >= s.vocab)
        ll_graph_reject(g, "seq2seq: pad %lld is no token of the vocabulary of %lld",
                        (long long)s.pad, (long long)s.vocab);
    ll_val x = ll_batch(g, "x", LL_I32, LL_SHAPE(b->batch, seq));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(b->batch, seq));
    ll_val from = ll_batch(g, "source", LL_I32, LL_SHAPE(b->batch, source));
    ll_graph_block(g);
    ll_val pad = ll_fill(g, LL_I32, LL_SCALAR, (double)s.pad);
    ll_val mask = ll_reshape(g, ll_not_equal(g, from, pad), LL_SHAPE(b->batch, 1, 1, source));
    ll_val table = ll_param(g, "embed.weight", LL_SHAPE(s.vocab, s.width),
                            (ll_init){LL_NORMAL, 1 / sqrt((double)s.width)});
    ll_val memory = side(g, &s, "encoder", look_up(g, &s, table, from), (ll_val){0}, mask);
    ll_val last = side(g, &s, "decoder", look_up(g, &s, table, x), memory, mask);
    ll_val logits = ll_matmul(g, "btc,vc->btv", last, table);
    ll_val counts = ll_cast(g, ll_not_equal(g, y, pad), LL_F32);
    ll_val loss = ll_mean(g, ll_mul(g, ll_cross_entropy(g, logits, y), counts));
    ll_graph_result(g, "loss", loss);
    if (!b->training) ll_graph_result(g, "logits", logits);
    return loss;
}

static const ll_model seq2seq = {
    .name = "seq2seq",
    .help = "the first transformer: an encoder of the source, a decoder of the target",
    .input = "tokens",
    .sizes = {{"layers", 6, "of the encoder, and of the decoder"},
              {"width", 512, "channels, even, a multiple of heads"},
              {"heads", 8, "attention heads"},
              {"hidden", 2048, "channels inside the mlp"},
              {"seq", 128, "tokens of a target"},
              {"source", 128, "tokens of a source"},
              {"vocab", 37000, "different tokens"},
              {"dropout", 100, "in thousandths"},
              {"pad", 0, "the token that nothing attends to, and that has no loss"}},
    .declare = declare,
};

const ll_model *const ll_models_seq2seq[] = {&seq2seq, NULL};
