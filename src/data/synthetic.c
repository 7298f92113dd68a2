/* synthetic.c: samples computed from (seed, number), so a set of any size takes no memory.
 *
 * Images: each class has a pattern, a CELLS x CELLS grid of random bytes for each channel, laid
 * over the picture; the image is half pattern, half noise. Tokens: runs of RUN in which the next
 * token follows from the last one by a fixed rule three times out of four and is drawn at random
 * otherwise, so a model can learn down to a known loss and no further. Validation samples are the
 * numbers behind the training ones. */
#include "base/rng.h"
#include "data/data_int.h"

#include <math.h>

#define CELLS 4
#define RUN 64

/* splitmix64's n-th number: cheap, found without the ones before; Philox gives the key. */
static uint64_t mix(uint64_t key, uint64_t n)
{
    uint64_t z = key + (n + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t key_of(uint64_t seed, const char *stream, int64_t number)
{
    uint32_t w[4];
    ll_philox(seed, ll_stream(stream, 0), (uint64_t)number, w);
    return (uint64_t)w[0] << 32 | w[1];
}

ll_synthetic ll_synthetic_find(const ll_dataset *d, ll_split split, int64_t index)
{
    int64_t number = index + (split == LL_VAL ? d->info.n[LL_TRAIN] : 0);
    uint64_t key = key_of(d->seed, "synthetic image", number);
    int64_t class = (int64_t)(mix(key, 0) % (uint64_t)d->info.classes);
    return (ll_synthetic){.key = key, .label = (int32_t) class};
}

void ll_synthetic_row(const ll_dataset *d, const ll_synthetic *s, int64_t y, uint8_t *row)
{
    const ll_data_info *f = &d->info;
    const int64_t channels = f->channels, n = f->width * channels;
    const uint8_t *cells =
        d->patterns + (s->label * CELLS + y * CELLS / f->height) * CELLS * channels;
    for (int64_t x = 0, i = 0; x < f->width; x++) {
        const uint8_t *cell = cells + x * CELLS / f->width * channels;
        for (int64_t c = 0; c < channels; c++, i++) {
            uint64_t noise = mix(s->key, (uint64_t)(1 + y * n + i)) & 255;
            row[i] = (uint8_t)((cell[c] + noise) / 2);
        }
    }
}

void ll_synthetic_tokens(const ll_dataset *d, ll_split split, int64_t from, int64_t count,
                         int32_t *out)
{
    uint64_t vocab = (uint64_t)d->info.vocab, key = 0, token = 0;
    /* Validation begins where a run does, behind all of training. */
    if (split == LL_VAL) from += (d->split[LL_TRAIN].n / RUN + 1) * RUN;
    for (int64_t at = from / RUN * RUN; at < from + count; at++) {
        if (at % RUN == 0) key = key_of(d->seed, "synthetic tokens", at / RUN);
        uint64_t draw = mix(key, (uint64_t)(at % RUN));
        bool follows = at % RUN != 0 && draw % 4 != 0;
        token = follows ? (token * 5 + 7) % vocab : (draw >> 8) % vocab;
        if (at >= from) out[at - from] = (int32_t)token;
    }
}

static ll_err sizes_fit(const ll_data_opts *o)
{
    const struct {
        const char *name;
        int64_t value, most;
    } sizes[] = {{"height", o->height, LL_MAX_WIDTH},
                 {"width", o->width, LL_MAX_WIDTH},
                 {"channels", o->channels, LL_MAX_CHANNELS},
                 {"classes", o->classes, 1 << 20},
                 {"samples", o->samples, (int64_t)1 << 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK(sizes[i].value >= 0 && sizes[i].value <= sizes[i].most, LL_E_ARG,
              "synthetic data: %s is %ld, expected 1 to %ld", sizes[i].name, sizes[i].value,
              sizes[i].most);
    return LL_OK;
}

ll_err ll_read_synthetic(ll_dataset *d, const char *)
{
    const ll_data_opts *o = d->opts;
    ll_data_info *f = &d->info;
    TRY(sizes_fit(o));
    int64_t n = o->samples ? o->samples : 10000;
    int64_t held = (int64_t)ceil((double)n * ll_data_held_out(d));
    d->synthetic = true;
    d->seed = o->seed;
    f->where = "";
    if (o->vocab) {
        f->kind = LL_TOKENS;
        f->vocab = o->vocab;
        ll_segment_add(d, LL_TRAIN, &(ll_segment){.n = n * (f->source + f->seq) + 1});
        ll_segment_add(d, LL_VAL, &(ll_segment){.n = held * (f->source + f->seq) + 1});
        return LL_OK;
    }
    f->kind = LL_IMAGES;
    f->height = o->height ? o->height : 28;
    f->width = o->width ? o->width : 28;
    f->channels = o->channels ? o->channels : 1;
    f->classes = o->classes ? o->classes : 10;
    f->n[LL_TRAIN] = n;
    f->n[LL_VAL] = held;
    int64_t bytes = f->classes * CELLS * CELLS * f->channels;
    uint8_t *patterns = ll_arena_alloc(d->arena, (size_t)bytes);
    uint64_t key = key_of(o->seed, "synthetic patterns", 0);
    for (int64_t i = 0; i < bytes; i++) patterns[i] = (uint8_t)mix(key, (uint64_t)i);
    d->patterns = patterns;
    return LL_OK;
}
