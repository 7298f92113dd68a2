/* codec.c: codecs by text. "qsgd:4" is the kind "qsgd" with the settings "4"; kinds are in the
 * files codec_*.c, which the build lists. */
#include "comm/codec_int.h"
#include "base/near.h"

#include <stdio.h>
#include <string.h>

#define CODEC(x) extern const ll_codec_kind ll_codecs_##x[];
#include "codec_list.inc"
#undef CODEC

static const ll_codec_kind *const files[] = {
#define CODEC(x) ll_codecs_##x,
#include "codec_list.inc"
#undef CODEC
    NULL};

/* The kind of that name, or the forms there are and the one that was probably meant. */
static ll_err find(const char *text, const ll_codec_kind **out)
{
    char word[64] = "", forms[512] = "";
    size_t len = strcspn(text, ":"), at = 0;
    memcpy(word, text, len < sizeof word ? len : sizeof word - 1);
    ll_near near = {.word = word};
    for (const ll_codec_kind *const *f = files; *f; f++)
        for (const ll_codec_kind *k = *f; k->name; k++) {
            if (strlen(k->name) == len && !memcmp(k->name, text, len)) return *out = k, LL_OK;
            ll_near_try(&near, k->name);
            at += (size_t)snprintf(forms + at, sizeof forms - at, "%s%s", at ? ", " : "", k->form);
        }
    FAIL(LL_E_ARG, "unknown codec \"%s\"%s (codecs: %s)", text, ll_near_hint(&near), forms);
}

static ll_err open_kind(ll_codec *k, const char *text)
{
    TRY(find(text, &k->kind));
    CHECK(k->n >= 0, LL_E_ARG, "codec \"%s\" for %ld elements, expected 0 or more", text, k->n);
    if (k->kind->feedback && k->n > 0) {
        k->residual = LL_TRY_ARRAY(k->arena, float, k->n);
        CHECK(k->residual, LL_E_MEM, "residual of codec \"%s\" for %s: %ld bytes", text, k->name,
              k->n * 4);
    }
    const char *colon = strchr(text, ':');
    if (k->kind->open) return k->kind->open(k, colon ? colon + 1 : NULL);
    return colon ? ll_codec_bad(k, "it has no settings") : LL_OK;
}

const char *ll_codec_asked(const char *compress)
{
    return compress && strcmp(compress, "none") && strcmp(compress, "factors") ? compress : NULL;
}

ll_err ll_codec_open(const char *text, const char *name, int64_t n, uint64_t seed, ll_codec **out)
{
    *out = NULL;
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_codec) k = LL_NEW(a, ll_codec);
    *k = (ll_codec){.arena = a,
                    .text = ll_arena_strdup(a, text),
                    .name = ll_arena_strdup(a, name),
                    .n = n,
                    .seed = seed};
    k->last.form = "";
    TRY(open_kind(k, text));
    return LL_HAND(out, k);
}

void ll_codec_close(ll_codec *k)
{
    if (!k || k->unsettled) return;
    if (k->kind && k->kind->close) k->kind->close(k);
    ll_slices_free(k->slices);
    ll_arena_free(k->arena);
}

ll_err ll_codec_allreduce(ll_codec *k, ll_comm *c, float *data, int64_t step, const char *site)
{
    int64_t size = ll_comm_size(c);
    k->last = (ll_codec_report){.form = ""};
    ll_err rc = k->kind->code ? ll_codec_slices(k, c, data, step, site)
                              : k->kind->allreduce(k, c, data, step, site);
    k->unsettled = rc && !ll_comm_settled(c);
    TRY(rc);
    k->last.dense_bytes = (int64_t)(2.0 * (double)(size - 1) / (double)size * (double)k->n * 4);
    return LL_OK;
}

ll_err ll_codec_estimate(const char *text, int64_t n, int size, double *bytes)
{
    LL_OWN(ll_codec) k = NULL;
    TRY(ll_codec_open(text, "estimate", n, 0, &k));
    int64_t encoded = k->kind->code ? ll_code_bytes(k, n) : k->kind->size(k);
    *bytes = 2.0 * (size - 1) / size * (double)encoded;
    return LL_OK;
}

ll_codec_report ll_codec_last(const ll_codec *k)
{
    return k->last;
}

bool ll_codec_by_number(const ll_codec *k)
{
    return k->kind->by_number;
}

float *ll_codec_residual(ll_codec *k)
{
    return k->residual;
}
