/* jsonl.c: text as lines of JSON, one object a document: {"text": "..."}. Tokens are the bytes
 * of the texts (UTF-8), with a byte of zero behind each document. */
#include "base/crc32c.h"
#include "data/data_int.h"
#include "data/parse.h"

#include <jansson.h>

const char *ll_line_next(const char **at, const uint8_t *end, int64_t *line, size_t *n)
{
    while (*at < (const char *)end) {
        size_t left = (size_t)((const char *)end - *at);
        const char *p = *at, *stop = memchr(p, '\n', left);
        *n = stop ? (size_t)(stop - p) : left;
        *at += stop ? *n + 1 : left;
        ++*line;
        for (; *n && strchr(" \t\r", *p); p++) --*n;
        if (*n) return p;
    }
    return NULL;
}

/* The document of a line, whose field is a text. */
static ll_err text_of(const char *line, size_t n, const char *field, const char *file, int64_t at,
                      json_t **out)
{
    json_error_t why;
    *out = json_loadb(line, n, JSON_ALLOW_NUL, &why);
    CHECK(*out, LL_E_IO, "%s:%ld: not valid JSON: %s", file, at, why.text);
    CHECK(json_is_string(json_object_get(*out, field)), LL_E_IO,
          "%s:%ld: field \"%s\" is missing or not a string (set data.field)", file, at, field);
    return LL_OK;
}

ll_err ll_jsonl_parse(const uint8_t *b, size_t size, const char *field, const char *file,
                      uint8_t **out, size_t *out_size)
{
    size_t made = 0;
    *out = NULL;
    *out_size = 0;
    /* A text is at most as long as its line, whose quotes leave room for the zero byte. */
    LL_OWN_MEMORY uint8_t *text = malloc(size + 1);
    CHECK(text, LL_E_MEM, "%s: not enough memory for %zu bytes of text", file, size);
    int64_t line = 0;
    size_t n;
    for (const char *at = (const char *)b, *p; (p = ll_line_next(&at, b + size, &line, &n));) {
        json_auto_t *doc = NULL;
        TRY(text_of(p, n, field, file, line, &doc));
        const json_t *value = json_object_get(doc, field);
        size_t length = json_string_length(value);
        memcpy(text + made, json_string_value(value), length);
        text[made + length] = '\0';
        made += length + 1;
    }
    CHECK(made > 0, LL_E_IO, "%s has no lines of JSON", file);
    *out_size = made;
    return LL_HAND(out, text);
}

ll_err ll_read_jsonl(ll_dataset *d, const char *path)
{
    LL_OWN_BYTES b = {0};
    ll_bytes text = {0};
    uint8_t *out;
    const char *field = d->opts->field ? d->opts->field : "text";
    TRY(ll_bytes_map(path, &b));
    ll_dataset_note(d, ll_base_name(path), NULL, b.size);
    d->info.digest = ll_crc32c(d->info.digest, b.data, b.size);
    TRY(ll_jsonl_parse(b.data, b.size, field, path, &out, &text.size));
    text.data = out;
    return ll_text_add(d, path, &text);
}
