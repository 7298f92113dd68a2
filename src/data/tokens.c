/* tokens.c: text, whose bytes are the tokens, and files of u16 tokens as llm.c writes them (one
 * file, a folder of shards, or a pattern). Shards with "val" in their name are for validation. */
#include "data/data_int.h"
#include "data/parse.h"

#include <glob.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

static int32_t le32(const uint8_t *p)
{
    return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                     (uint32_t)p[3] << 24);
}

ll_err ll_tokens_parse(const uint8_t *b, size_t size, const char *file, int64_t *n)
{
    *n = 0;
    CHECK(size >= LL_TOKENS_HEADER, LL_E_IO, "%s: %zu bytes, the header of a token file has %d",
          file, size, LL_TOKENS_HEADER);
    CHECK(le32(b) == LL_TOKENS_MAGIC, LL_E_IO, "%s: magic is %d, wanted %d (u16 tokens of GPT-2)",
          file, le32(b), LL_TOKENS_MAGIC);
    CHECK(le32(b + 4) == 1, LL_E_IO, "%s: version (offset 4) is %d, wanted 1", file, le32(b + 4));
    int32_t count = le32(b + 8);
    size_t have = size - LL_TOKENS_HEADER;
    CHECK(count > 0 && have == 2 * (size_t)count, LL_E_IO,
          "%s: the header (offset 8) says %d tokens, %zu bytes follow it, wanted 2 each", file,
          count, have);
    *n = count;
    return LL_OK;
}

static ll_err add_tokens(ll_dataset *d, const char *path)
{
    ll_bytes b;
    int64_t n;
    TRY(ll_file_map(path, &b));
    ll_dataset_keep(d, &b);
    TRY(ll_tokens_parse(b.data, b.size, path, &n));
    const char *base = strrchr(path, '/');
    ll_split split = strstr(base ? base : path, "val") ? LL_VAL : LL_TRAIN;
    ll_segment_add(d, split,
                   &(ll_segment){.file = path,
                                 .n = n,
                                 .tokens = b.data + LL_TOKENS_HEADER,
                                 .token_bytes = 2,
                                 .token_offset = LL_TOKENS_HEADER});
    return LL_OK;
}

static ll_err add_matches(ll_dataset *d, const glob_t *g)
{
    for (size_t i = 0; i < g->gl_pathc; i++) TRY(add_tokens(d, g->gl_pathv[i]));
    return LL_OK;
}

ll_err ll_read_tokens(ll_dataset *d, const ll_data_opts *o, const char *path)
{
    struct stat st;
    char pattern[PATH_MAX];
    d->info.kind = LL_TOKENS;
    d->info.vocab = o->vocab ? o->vocab : 50257;
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        TRY(add_tokens(d, path));
    } else {
        bool folder = ll_file_exists(path);
        snprintf(pattern, sizeof pattern, "%s%s", path, folder ? "/*.bin" : "");
        glob_t g; /* sorted by name, so the order does not depend on the disk */
        int e = glob(pattern, 0, NULL, &g);
        ll_err rc = e == 0 ? add_matches(d, &g) : LL_OK;
        if (e == 0) globfree(&g);
        CHECK(e == 0, LL_E_IO, "%s: no such file%s", pattern, folder ? "s in the folder" : "");
        TRY(rc);
    }
    CHECK(d->split[LL_TRAIN].n > 0, LL_E_IO,
          "%s: only validation files (\"val\" in the name), none to train on", path);
    return LL_OK;
}

ll_err ll_read_text(ll_dataset *d, const ll_data_opts *o, const char *path)
{
    ll_bytes b;
    TRY(ll_file_map(path, &b));
    ll_text_add(d, o, path, &b);
    return LL_OK;
}
