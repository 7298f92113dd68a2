/* file.c: files as blocks of bytes, and the segments of them that a set is made of. Files are
 * mapped, not read: opening a set of any size costs a few pages until its samples are used, and
 * ranks of one machine share them. */
#include "base/crc32c.h"
#include "base/mapped.h"
#include "base/types.h"
#include "data/fetch.h"
#include "token/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

ll_err ll_bytes_map(const char *path, ll_bytes *out)
{
    *out = (ll_bytes){.mapped = true};
    ll_err rc = ll_file_map(path, &out->data, &out->size);
    if (rc != LL_OK) *out = (ll_bytes){0};
    out->base = (void *)out->data;
    out->base_size = out->size;
    if (rc == LL_OK) ll_mapped_add(out->base, out->base_size, path);
    return rc;
}

void ll_bytes_free(ll_bytes *b)
{
    if (b->mapped) {
        ll_mapped_remove(b->base);
        munmap(b->base, b->base_size);
    } else
        free((void *)b->data);
    *b = (ll_bytes){0};
}

void ll_dataset_keep(ll_dataset *d, const ll_bytes *b)
{
    LL_PUSH(d->arena, d->blocks, d->n_blocks, d->block_capacity, *b);
    d->info.bytes += b->size;
    if (b->mapped) d->info.mapped += b->size;
}

void ll_dataset_hold(ll_dataset *d, void (*let_go)(void *what), void *what)
{
    ll_at_close *h = LL_NEW(d->arena, ll_at_close);
    *h = (ll_at_close){let_go, what, d->held};
    d->held = h;
}

enum { WHOLE = 16 << 20, PAGES = 64, PAGE = 4096 };

/* All of a file, or of a large one pages from its first to its last. */
static uint32_t sample(uint32_t crc, const uint8_t *x, size_t n)
{
    if (n <= WHOLE) return ll_crc32c(crc, x, n);
    for (size_t i = 0; i < PAGES; i++) crc = ll_crc32c(crc, x + (n - PAGE) * i / (PAGES - 1), PAGE);
    return crc;
}

void ll_dataset_note(ll_dataset *d, const char *name, const uint8_t *data, uint64_t size)
{
    ll_data_info *f = &d->info;
    if (f->n_file < LL_NOTED_FILES)
        f->files[f->n_file] = (ll_data_file){ll_arena_strdup(d->arena, name), size};
    f->n_file++;
    f->file_bytes += size;
    f->digest = ll_crc32c(f->digest, name, strlen(name) + 1);
    f->digest = ll_crc32c(f->digest, &size, sizeof size);
    if (!data) return;
    f->digest = sample(f->digest, data, size);
    f->looked_at += size <= WHOLE ? size : PAGES * LL_FAULT_BYTES;
}

ll_err ll_dataset_map(ll_dataset *d, const char *path, ll_bytes *out)
{
    TRY(ll_bytes_map(path, out));
    ll_dataset_keep(d, out);
    ll_dataset_note(d, ll_base_name(path), out->data, out->size);
    return d->fetcher ? ll_fetcher_cover(d->fetcher, path, out) : LL_OK;
}

void ll_field_add(ll_dataset *d, const char *name, ll_dtype t, ll_shape shape)
{
    ll_data_info *f = &d->info;
    LL_ASSERT(f->n_field < LL_MAX_FIELDS);
    f->field_bytes[f->n_field] = ll_tensor_bytes(t, &shape);
    f->fields[f->n_field++] = (ll_field){name, t, shape};
}

ll_err ll_data_files(const ll_dataset *d, const char *path, const char *names,
                     const char *const **out, int *n)
{
    bool folder = ll_is_folder(path);
    const char *pattern = folder ? ll_arena_printf(d->arena, "%s/%s", path, names) : path;
    if (!folder && ll_file_exists(path)) {
        *out = ll_arena_copy(d->arena, &path, sizeof path);
        *n = 1;
        return LL_OK;
    }
    *out = ll_files(d->arena, pattern, n);
    CHECK(*n, LL_E_IO, "%s: no such file%s", pattern, folder ? "s in the folder" : "");
    return LL_OK;
}

void ll_segment_add(ll_dataset *d, ll_split split, const ll_segment *s)
{
    ll_segments *list = &d->split[split];
    LL_PUSH(d->arena, list->item, list->count, list->capacity, *s);
    if (s->file) list->item[list->count - 1].file = ll_arena_strdup(d->arena, s->file);
    list->n += s->n;
}

/* Documents, with a zero byte behind each, as tokens below vocab, with what ends a text behind
 * each. */
static ll_err encode_text(const ll_tokenizer *t, int64_t vocab, const ll_bytes *text, ll_bytes *out)
{
    size_t room = 0;
    LL_OWN_MEMORY uint8_t *made = NULL;
    *out = (ll_bytes){0};
    for (size_t at = 0; at < text->size;) {
        const uint8_t *end = (const uint8_t *)memchr(text->data + at, 0, text->size - at);
        size_t n = end ? (size_t)(end - text->data) - at : text->size - at;
        LL_OWN_MEMORY int32_t *tokens = NULL;
        int64_t count;
        TRY(ll_tokenizer_encode(t, (const char *)text->data + at, n, false, &tokens, &count));
        for (int64_t i = 0; i < count; i++) /* now rather than after some steps */
            CHECK(tokens[i] < vocab, LL_E_ARG,
                  "data.tokenizer produces token %d, but model.vocab is %ld: set model.vocab=%d",
                  tokens[i], vocab, t->n);
        size_t more = (size_t)(count + 1) * sizeof *tokens;
        if (out->size + more > room) {
            uint8_t *grown = (uint8_t *)realloc(made, room = 2 * (out->size + more));
            CHECK(grown, LL_E_MEM, "not enough memory for the tokens of %zu bytes of text",
                  text->size);
            made = grown;
        }
        memcpy(made + out->size, tokens, (size_t)count * sizeof *tokens);
        out->size += (size_t)count * sizeof *tokens;
        int32_t eos = t->eos;
        if (end && eos >= 0) memcpy(made + out->size, &eos, 4), out->size += 4;
        at += n + 1;
    }
    return LL_HAND(&out->data, made);
}

ll_err ll_text_add(ll_dataset *d, const char *path, ll_bytes *text)
{
    const ll_data_opts *o = d->opts;
    d->info.kind = LL_TOKENS;
    d->info.is_text = !o->tokenizer;
    d->info.vocab = o->vocab ? o->vocab : 256;
    if (o->tokenizer) {
        LL_OWN(ll_tokenizer) t = NULL;
        ll_bytes tokens;
        ll_err rc = ll_tokenizer_open(o->tokenizer, &t);
        if (rc == LL_E_IO) rc = RAISE(LL_E_ARG, "data.tokenizer: %s", ll_error_message());
        if (rc == LL_OK) rc = encode_text(t, d->info.vocab, text, &tokens);
        ll_bytes_free(text);
        TRY(rc);
        *text = tokens;
    }
    int each = o->tokenizer ? 4 : 1;
    ll_dataset_keep(d, text);
    ll_segment_add(d, d->reading,
                   &(ll_segment){.file = path,
                                 .n = (int64_t)text->size / each,
                                 .tokens = text->data,
                                 .token_bytes = each});
    return LL_OK;
}
