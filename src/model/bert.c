/* bert: BERT (Devlin et al., 2019): an encoder that sees both ways; learned positions, norms behind
 * each half of a layer, exact gelu, the token table used again in the head. It is trained to find
 * masked tokens: some of the batch's are replaced by the token `mask`, drawn anew in each step, and
 * the loss is the mean over these, of each micro-batch. Tokens `pad` are not attended to.
 *
 *     layers width heads hidden        parameters (with head; seq 512, vocab 30522)
 *         12   768    12   3072          109,514,298
 *         24  1024    16   4096          335,174,458
 *
 * Letters as gpt's. */
#include "model/parts.h"

typedef struct sizes {
    int64_t width, heads, hidden, vocab, norm_eps;
} sizes;

static const ll_init small = {LL_NORMAL, 0.02};

static ll_val norm(ll_graph *g, const sizes *s, const char *name, ll_val x)
{
    ll_graph_push(g, name);
    ll_val gain = ll_param(g, "weight", LL_SHAPE(s->width), (ll_init){LL_CONSTANT, 1});
    ll_val bias = ll_param(g, "bias", LL_SHAPE(s->width), (ll_init){LL_ZEROS, 0});
    ll_graph_pop(g);
    return ll_layernorm(g, x, gain, bias, (double)s->norm_eps * 1e-12);
}

static ll_val layer(ll_graph *g, const sizes *s, ll_val x, ll_val mask)
{
    static const char *const names[3] = {"q", "k", "v"};
    int64_t c = s->width, h = s->heads, d = c / h, f = s->hidden;
    ll_val part[3];
    ll_graph_push(g, "attn");
    for (int i = 0; i < 3; i++)
        part[i] =
            product(g, names[i], "btc,hdc->bthd", x, LL_SHAPE(h, d, c), LL_SHAPE(h, d), small);
    ll_val y = ll_attend(g, part[0], part[1], part[2], &(ll_attend_opts){.mask = mask});
    y = product(g, "proj", "bthd,chd->btc", y, LL_SHAPE(c, h, d), LL_SHAPE(c), small);
    ll_graph_pop(g);
    x = norm(g, s, "ln1", ll_add(g, x, y));
    ll_graph_push(g, "mlp");
    y = product(g, "fc", "btc,fc->btf", x, LL_SHAPE(f, c), LL_SHAPE(f), small);
    y = product(g, "proj", "btf,cf->btc", ll_gelu_erf(g, y), LL_SHAPE(c, f), LL_SHAPE(c), small);
    ll_graph_pop(g);
    return norm(g, s, "ln2", ll_add(g, x, y));
}

/* Of tokens [b,t], the last layer's x [b,t,c]. */
static ll_val encode(ll_graph *g, const ll_build *b, const sizes *s, ll_val tokens, ll_val table)
{
    int64_t seq = ll_graph_shape(g, tokens).d[1];
    ll_val place = ll_param(g, "place", LL_SHAPE(seq, s->width), small);
    ll_val type = ll_param(g, "type", LL_SHAPE(2, s->width), small); /* the first sentence's */
    ll_val x = ll_add(g, ll_embedding(g, table, tokens), place);
    x = norm(g, s, "ln", ll_add(g, x, ll_slice(g, type, 0, 0, 1)));
    ll_val pad = ll_fill(g, LL_I32, LL_SCALAR, (double)ll_build_size(b, "pad"));
    ll_val mask = ll_reshape(g, ll_not_equal(g, tokens, pad), LL_SHAPE(b->batch, 1, 1, seq));
    for (int64_t i = 0; i < ll_build_size(b, "layers"); i++) {
        begin_layer(g, i);
        x = layer(g, s, x, mask);
        ll_graph_pop(g);
    }
    ll_graph_block(g);
    return x;
}

static ll_val logits_of(ll_graph *g, const ll_build *b, const sizes *s, ll_val x, ll_val table)
{
    if (!ll_build_size(b, "head")) return ll_matmul(g, "btc,vc->btv", x, table);
    ll_graph_push(g, "head");
    x = product(g, "fc", "btc,dc->btd", x, LL_SHAPE(s->width, s->width), LL_SHAPE(s->width), small);
    x = norm(g, s, "ln", ll_gelu_erf(g, x));
    ll_val bias = ll_param(g, "bias", LL_SHAPE(s->vocab), (ll_init){LL_ZEROS, 0});
    ll_graph_pop(g);
    return ll_add(g, ll_matmul(g, "btc,vc->btv", x, table), bias);
}

static ll_val declare(ll_graph *g, const ll_build *b)
{
    sizes s = {SIZE(width), SIZE(heads), SIZE(hidden), SIZE(vocab), SIZE(norm_eps)};
    double share = (double)ll_build_size(b, "masked") / 100;
    if (b->cache || s.heads < 1 || s.width % s.heads || share < 0 || share > 0.9 ||
        s.norm_eps < 1 || ll_build_size(b, "layers") < 1 || ll_build_size(b, "layers") > 10000) {
        ll_graph_reject(g, b->cache ? "bert reads in both directions and cannot generate text"
                                    : "bert: expected width to be a multiple of heads, masked 0 to "
                                      "90, norm_eps 1 or more, 1 to 10000 layers");
        return (ll_val){0};
    }
    int64_t pad = ll_build_size(b, "pad"), mask = ll_build_size(b, "mask");
    if (pad >= s.vocab || (b->training && share > 0 && mask >= s.vocab))
        ll_graph_reject(g, "bert: pad %ld and mask %ld must be tokens of the vocabulary of %ld",
                        pad, mask, s.vocab);
    ll_shape shape = LL_SHAPE(b->batch, ll_build_size(b, "seq"));
    ll_val x = ll_batch(g, "x", LL_I32, shape), tokens = x, hidden = {0};
    ll_graph_block(g);
    if (share > 0) { /* what dropout leaves of ones */
        ll_val kept = ll_dropout(g, ll_fill(g, LL_F32, shape, 1), share);
        hidden = ll_equal(g, kept, ll_fill(g, LL_F32, LL_SCALAR, 0));
        ll_val cover = ll_fill(g, LL_I32, shape, (double)mask);
        tokens = ll_select(g, ll_cast(g, hidden, LL_I32), cover, x);
    }
    ll_val table = ll_param(g, "embed.weight", LL_SHAPE(s.vocab, s.width), small);
    ll_val last = encode(g, b, &s, tokens, table), logits = logits_of(g, b, &s, last, table);
    ll_val each = ll_cross_entropy(g, logits, x);
    ll_val loss = hidden.id ? mean_of(g, b, each, hidden) : ll_mean(g, each);
    ll_graph_result(g, "loss", loss);
    if (!b->training) ll_graph_result(g, "logits", logits);
    if (!b->training) ll_graph_result(g, "hidden", last);
    return loss;
}

static const ll_model bert = {
    .name = "bert",
    .help = "BERT, trained with masked language modelling",
    .input = "tokens",
    .sizes = {{"layers", 12, "transformer layers"},
              {"width", 768, "hidden size, a multiple of heads"},
              {"heads", 12, "attention heads"},
              {"hidden", 3072, "hidden size of the MLP"},
              {"seq", 512, "sequence length in tokens"},
              {"vocab", 30522, "vocabulary size"},
              {"norm_eps", 1, "epsilon of the norms, in units of 1e-12"},
              {"head", 1,
               "1 = masked-LM head with a dense layer and a norm; 0 = output embedding only"},
              {"masked", 15,
               "percentage of tokens that are masked; 0 = none, and the loss is over all tokens"},
              {"mask", 103, "ID of the mask token"},
              {"pad", 0, "ID of the padding token, which nothing attends to"}},
    .declare = declare,
};

const ll_model *const ll_models_bert[] = {&bert, NULL};
