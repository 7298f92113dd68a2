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
 * To generate, one program reads sources and keeps each decoder layer's keys and values of them;
 * those that go on token by token are the decoder alone.
 * Letters as gpt's; s: positions of the source. */
#include "model/parts.h"

#include <math.h>

typedef struct sizes {
    const ll_build *b;
    int64_t source, layers, width, heads, hidden, vocab, pad;
    double dropout;
} sizes;

static ll_init glorot(int64_t in, int64_t out)
{
    return (ll_init){LL_UNIFORM, sqrt(6.0 / (double)(in + out))};
}

/* Of x's rows by heads: queries, keys or values. */
static ll_val by_heads(ll_graph *g, const sizes *s, const char *name, ll_val x)
{
    int64_t c = s->width, h = s->heads, d = c / h;
    return product(g, name, "btc,hdc->bthd", x, LL_SHAPE(h, d, c), LL_SHAPE(h, d), glorot(c, c));
}

/* Keys or values of what the encoder made; none: it was read before. */
static ll_val across(ll_graph *g, const sizes *s, const char *name, ll_val memory)
{
    ll_shape shape = LL_SHAPE(s->b->batch, s->source, s->heads, s->width / s->heads);
    ll_val x = memory.id ? by_heads(g, s, name, memory) : memory;
    return ll_build_kept(s->b, name, LL_F32, shape, x);
}

/* Of what a sequence has so far. */
static ll_val attend_before(ll_graph *g, const sizes *s, ll_val q, ll_val k, ll_val v)
{
    ll_shape x = ll_graph_shape(g, q);
    if (!s->b->cache) return ll_self_attend(s->b, "self", q, k, v, 0);
    q = ll_reshape(g, q, LL_SHAPE(x.d[0], x.d[1], x.d[2], 1, x.d[3]));
    return ll_reshape(g, ll_self_attend(s->b, "self", q, k, v, 0), x);
}

typedef enum sees { ALL, BEFORE, ACROSS } sees;

/* x plus what it sees of itself, of what it has so far, or of memory, and a norm. */
static ll_val attend(ll_graph *g, const sizes *s, sees what, const char *ln, ll_val x,
                     ll_val memory, ll_val mask)
{
    int64_t c = s->width, h = s->heads, d = c / h;
    ll_attend_opts how = {.mask = mask};
    ll_graph_push(g, what == ACROSS ? "cross" : "attn");
    ll_val q = by_heads(g, s, "q", x);
    ll_val k = what == ACROSS ? across(g, s, "k", memory) : by_heads(g, s, "k", x);
    ll_val v = what == ACROSS ? across(g, s, "v", memory) : by_heads(g, s, "v", x);
    ll_val y = what == BEFORE ? attend_before(g, s, q, k, v) : ll_attend(g, q, k, v, &how);
    y = product(g, "proj", "bthd,chd->btc", y, LL_SHAPE(c, h, d), LL_SHAPE(c), glorot(c, c));
    ll_graph_pop(g);
    return ll_layernorm_layer(g, ln, ll_add(g, x, dropped(g, y, s->dropout)));
}

static ll_val mlp(ll_graph *g, const sizes *s, const char *ln, ll_val x)
{
    int64_t c = s->width, f = s->hidden;
    ll_graph_push(g, "mlp");
    ll_val y = product(g, "fc", "btc,fc->btf", x, LL_SHAPE(f, c), LL_SHAPE(f), glorot(c, f));
    y = dropped(g, ll_relu(g, y), s->dropout);
    y = product(g, "proj", "btf,cf->btc", y, LL_SHAPE(c, f), LL_SHAPE(c), glorot(f, c));
    ll_graph_pop(g);
    return ll_layernorm_layer(g, ln, ll_add(g, x, dropped(g, y, s->dropout)));
}

/* Tokens [b,t] and their places, none: from 0 on, as [b,t,c]. */
static ll_val look_up(ll_graph *g, const sizes *s, ll_val table, ll_val tokens, ll_val at)
{
    int64_t half = s->width / 2, t = ll_graph_shape(g, tokens).d[1];
    ll_val turns = ll_exp(g, ll_arange(g, LL_F32, half, 0, -log(1e4) / (double)half));
    ll_val angle = at.id ? ll_matmul(g, "bt,c->btc", ll_cast(g, at, LL_F32), turns)
                         : ll_matmul(g, "t,c->tc", ll_arange(g, LL_F32, t, 0, 1), turns);
    ll_val place = ll_concat(g, (ll_val[]){ll_sin(g, angle), ll_cos(g, angle)}, 2, at.id ? 2 : 1);
    ll_val x = ll_scale(g, ll_embedding(g, table, tokens), sqrt((double)s->width));
    return dropped(g, ll_add(g, x, place), s->dropout);
}

/* Layers of one side; memory: the encoder's result. */
static ll_val side(ll_graph *g, const sizes *s, bool decoder, ll_val x, ll_val memory, ll_val mask)
{
    const ll_val none = {0};
    ll_graph_push(g, decoder ? "decoder" : "encoder");
    for (int64_t i = 0; i < s->layers; i++) {
        begin_layer(g, i);
        x = attend(g, s, decoder ? BEFORE : ALL, "ln1", x, none, decoder ? none : mask);
        if (decoder) x = attend(g, s, ACROSS, "ln2", x, memory, mask);
        x = mlp(g, s, decoder ? "ln3" : "ln2", x);
        ll_graph_pop(g);
    }
    ll_graph_block(g);
    x = ll_layernorm_layer(g, "ln", decoder ? ll_build_last(s->b, x) : x);
    ll_graph_pop(g);
    return x;
}

/* What the decoder's layers see of the source. */
static void keep(ll_graph *g, const sizes *s, ll_val memory)
{
    ll_graph_push(g, "decoder");
    for (int64_t i = 0; i < s->layers; i++) {
        begin_layer(g, i);
        ll_graph_push(g, "cross");
        across(g, s, "k", memory);
        across(g, s, "v", memory);
        ll_graph_pop(g);
        ll_graph_pop(g);
    }
    ll_graph_pop(g);
}

static bool sound(ll_graph *g, const sizes *s)
{
    WANT(s->heads >= 1 && s->width >= 2 && s->width % s->heads == 0 && s->width % 2 == 0 &&
             s->layers >= 1 && s->layers <= 10000,
         "seq2seq: expected an even width, a multiple of heads, and 1 to 10000 layers");
    WANT(s->pad < s->vocab, "seq2seq: pad %ld is not a token of the vocabulary of %ld", s->pad,
         s->vocab);
    return true;
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    ll_build own = *b;
    sizes s = {SIZE(source), SIZE(layers), SIZE(width), SIZE(heads),
               SIZE(hidden), SIZE(vocab),  SIZE(pad)};
    s.b = &own;
    s.dropout = dropout_of(b);
    int64_t t = b->cache ? b->step : ll_build_size(b, "seq");
    bool reads = !b->cache || b->source, writes = !b->cache || !b->source;
    ll_val x = {0}, y = {0}, from = {0}, mask = {0}, memory = {0};
    own.g = g;
    if (!sound(g, &s)) return (ll_val){0};
    if (writes) x = ll_batch(g, "x", LL_I32, LL_SHAPE(b->batch, t));
    if (!b->cache) y = ll_batch(g, "y", LL_I32, LL_SHAPE(b->batch, t));
    if (reads) from = ll_batch(g, "source", LL_I32, LL_SHAPE(b->batch, s.source));
    ll_val places = writes ? ll_build_places(&own) : x;
    ll_graph_block(g);
    ll_val pad = ll_fill(g, LL_I32, LL_SCALAR, (double)s.pad);
    ll_shape seen = LL_SHAPE(b->batch, 1, 1, s.source);
    if (reads) mask = ll_reshape(g, ll_not_equal(g, from, pad), seen);
    ll_val table = ll_param(g, "embed.weight", LL_SHAPE(s.vocab, s.width),
                            (ll_init){LL_NORMAL, 1 / sqrt((double)s.width)});
    if (reads) memory = side(g, &s, false, look_up(g, &s, table, from, memory), memory, mask);
    mask = ll_build_kept(&own, "mask", LL_I32, seen, mask);
    if (!writes) keep(g, &s, memory);
    if (!writes) return memory;
    ll_val last = side(g, &s, true, look_up(g, &s, table, x, places), memory, mask);
    ll_val logits = ll_matmul(g, "btc,vc->btv", last, table);
    if (!b->training) ll_graph_result(g, "logits", logits);
    if (b->cache) return logits;
    ll_val counts = ll_cast(g, ll_not_equal(g, y, pad), LL_F32);
    ll_val loss = mean_of(g, b, ll_cross_entropy(g, logits, y), counts);
    ll_graph_result(g, "loss", loss);
    return loss;
}

static const ll_model seq2seq = {
    .name = "seq2seq",
    .help = "the original transformer: encoder and decoder (Attention Is All You Need)",
    .input = "tokens",
    .sizes = {{"layers", 6, "layers of the encoder, and of the decoder"},
              {"width", 512, "hidden size, even, a multiple of heads"},
              {"heads", 8, "attention heads"},
              {"hidden", 2048, "hidden size of the MLP"},
              {"seq", 128, "target sequence length in tokens"},
              {"source", 128, "source sequence length in tokens"},
              {"vocab", 37000, "vocabulary size"},
              {"dropout", 100, "dropout, in thousandths"},
              {"pad", 0, "ID of the padding token, which is masked in attention and loss"}},
    .declare = declare,
};

const ll_model *const ll_models_seq2seq[] = {&seq2seq, NULL};
