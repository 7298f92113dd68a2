/* tokens.c: text, whose bytes are the tokens, and files of tokens: u16 as llm.c writes them,
 * behind a header (*.bin), and u16 or u32 without any (*.u16, *.u32). One file, a folder of
 * shards, or a pattern; shards with "val" in their name are for validation. */
#include "base/num.h"
#include "data/data_int.h"
#include "data/parse.h"
#include "data/fetch.h"

static int32_t le32(const uint8_t *p)
{
    return (int32_t)ll_le(p, 4);
}

ll_err ll_tokens_parse(const uint8_t *b, size_t size, const char *file, int64_t *n)
{
    *n = 0;
    CHECK(size >= LL_TOKENS_HEADER, LL_E_IO, "%s: %zu bytes, but the header of a token file has %d",
          file, size, LL_TOKENS_HEADER);
    CHECK(le32(b) == LL_TOKENS_MAGIC, LL_E_IO, "%s: magic is %d, expected %d (u16 tokens of GPT-2)",
          file, le32(b), LL_TOKENS_MAGIC);
    CHECK(le32(b + 4) == 1, LL_E_IO, "%s: version (offset 4) is %d, expected 1", file, le32(b + 4));
    int32_t count = le32(b + 8);
    size_t have = size - LL_TOKENS_HEADER;
    CHECK(count > 0 && have == 2 * (size_t)count, LL_E_IO,
          "%s: the header (offset 8) says %d tokens, but %zu bytes follow it, expected 2 per token",
          file, count, have);
    *n = count;
    return LL_OK;
}

/* Tokens without a header: how many bytes each has, by the name's end; 0: there is a header. */
static int bare(const ll_data_opts *o, const char *path)
{
    const char *dot = strrchr(path, '.');
    if (o->token_bytes) return (int)o->token_bytes;
    return dot && !strcmp(dot, ".u16") ? 2 : dot && !strcmp(dot, ".u32") ? 4 : 0;
}

static ll_err add_tokens(ll_dataset *d, const char *path)
{
    ll_bytes b;
    ll_segment s = {.file = path, .token_bytes = bare(d->opts, path)};
    TRY(ll_dataset_map(d, path, &b));
    if (s.token_bytes) {
        CHECK(b.size % (size_t)s.token_bytes == 0, LL_E_IO,
              "%s: %zu bytes, expected a multiple of %d, the bytes of a token", path, b.size,
              s.token_bytes);
        s.n = (int64_t)(b.size / (size_t)s.token_bytes);
    } else {
        TRY(ll_tokens_parse(b.data, b.size, path, &s.n));
        s.token_bytes = 2;
        s.token_offset = LL_TOKENS_HEADER;
    }
    s.tokens = b.data + s.token_offset;
    bool val = d->reading == LL_VAL || (!d->opts->val_path && strstr(ll_base_name(path), "val"));
    ll_segment_add(d, val ? LL_VAL : LL_TRAIN, &s);
    return LL_OK;
}

ll_err ll_read_tokens(ll_dataset *d, const char *path)
{
    const char *const *files;
    int n;
    d->info.kind = LL_TOKENS;
    d->info.vocab = d->opts->vocab ? d->opts->vocab : 50257;
    TRY(ll_data_files(d, path, "*.[bu][i13][n62]", &files, &n));
    for (int i = 0; i < n; i++) TRY(add_tokens(d, files[i]));
    CHECK(d->split[LL_TRAIN].n > 0, LL_E_IO,
          "%s has only validation files (\"val\" in the name), none to train on", path);
    return LL_OK;
}

ll_err ll_read_text(ll_dataset *d, const char *path)
{
    ll_bytes b;
    TRY(ll_bytes_map(path, &b));
    ll_dataset_note(d, ll_base_name(path), b.data, b.size);
    bool covered = d->fetcher && !d->opts->tokenizer; /* else it is all read now */
    ll_err rc = covered ? ll_fetcher_cover(d->fetcher, path, &b) : LL_OK;
    if (rc != LL_OK) ll_bytes_free(&b);
    TRY(rc);
    return ll_text_add(d, path, &b);
}
