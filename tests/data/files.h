/* files.h: small dataset files for the tests, whose every byte is known. */
#pragma once
#include "data/data.h"
#include "data/parse.h"
#include "tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <zlib.h>
#include <cmocka.h>

#define ok(call)                                                                                   \
    do {                                                                                           \
        if ((call) != LL_OK) fail_msg("%s: %s", #call, ll_error_text());                           \
    } while (0)

/* The call fails, and its message holds text. */
#define fails(call, text)                                                                          \
    do {                                                                                           \
        if ((call) == LL_OK) fail_msg("%s: succeeded, wanted '%s'", #call, text);                  \
        if (!strstr(ll_error_text(), text))                                                        \
            fail_msg("%s: '%s', wanted '%s'", #call, ll_error_text(), text);                       \
    } while (0)

static inline void put_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static inline void put_gz(const char *path, const void *data, size_t size)
{
    gzFile f = gzopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, data, (unsigned)size), (int)size);
    assert_int_equal(gzclose(f), Z_OK);
}

static inline void put_be32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* Pixel (y, x) of image i, and its label. */
static inline uint8_t pixel_value(int64_t i, int64_t y, int64_t x)
{
    return (uint8_t)(i * 37 + y * 11 + x * 3);
}

static inline uint8_t label_value(int64_t i)
{
    return (uint8_t)(i * 7 % 5);
}

/* An IDX file of n images or, with height 0, of n labels, in a static buffer. */
static inline size_t make_idx(uint8_t *out, uint32_t n, uint32_t height, uint32_t width)
{
    const uint32_t dims[3] = {n, height, width};
    int n_dim = height ? 3 : 1;
    memcpy(out, (uint8_t[]){0, 0, 8, (uint8_t)n_dim}, 4);
    for (int i = 0; i < n_dim; i++) put_be32(out + 4 + 4 * i, dims[i]);
    uint8_t *p = out + 4 + 4 * n_dim;
    for (uint32_t i = 0; i < n; i++) {
        if (!height) *p++ = label_value(i);
        for (uint32_t y = 0; y < height; y++)
            for (uint32_t x = 0; x < width; x++) *p++ = pixel_value(i, y, x);
    }
    return (size_t)(p - out);
}

typedef void put_fn(const char *path, const void *data, size_t size);

/* stem-images-idx3-ubyte and its labels in the test's folder. */
static inline void put_idx(void *const *state, const char *stem, bool gz, uint32_t n,
                           uint32_t height, uint32_t width)
{
    static uint8_t bytes[1 << 22];
    char name[64];
    put_fn *put = gz ? put_gz : put_file;
    snprintf(name, sizeof name, "%s-images-idx3-ubyte%s", stem, gz ? ".gz" : "");
    put(tmpdir_path(state, name), bytes, make_idx(bytes, n, height, width));
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte%s", stem, gz ? ".gz" : "");
    put(tmpdir_path(state, name), bytes, make_idx(bytes, n, 0, 0));
}

/* A token file of n tokens: first, first + 1, ... modulo vocab. */
static inline void put_tokens(const char *path, int n, int first, int vocab)
{
    static uint8_t bytes[LL_TOKENS_HEADER + 2 * 100000];
    int32_t head[3] = {LL_TOKENS_MAGIC, 1, n};
    memset(bytes, 0, LL_TOKENS_HEADER);
    memcpy(bytes, head, sizeof head);
    for (int i = 0; i < n; i++) {
        bytes[LL_TOKENS_HEADER + 2 * i] = (uint8_t)((first + i) % vocab);
        bytes[LL_TOKENS_HEADER + 2 * i + 1] = (uint8_t)((first + i) % vocab >> 8);
    }
    put_file(path, bytes, LL_TOKENS_HEADER + 2 * (size_t)n);
}

/* A dataset of the test's folder. */
static inline ll_data_opts from(void *const *state, const char *format)
{
    return (ll_data_opts){.path = *state, .format = format};
}
