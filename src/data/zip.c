/* zip.c: the entries of a zip archive, stored or deflated, with 64-bit sizes. The directory at the
 * end says where they are; of an entry's own header only its length matters. */
#include "data/parse.h"

#include "base/num.h"
#include "base/own.h"

#include <string.h>
#include <zlib.h>

#define END_SIZE 22 /* of the record that ends an archive, before its comment */

/* Where the directory begins. */
static ll_err find_directory(const uint8_t *b, size_t size, const char *file, size_t *at)
{
    CHECK(size >= END_SIZE, LL_E_IO, "%s: %zu bytes are too few for a zip archive", file, size);
    size_t end = size - END_SIZE, least = end > 65535 ? end - 65535 : 0;
    while (memcmp(b + end, "PK\5\6", 4) != 0 && end > least) end--;
    CHECK(memcmp(b + end, "PK\5\6", 4) == 0, LL_E_IO,
          "%s has no end-of-archive record: is it truncated?", file);
    uint64_t from = ll_le(b + end + 16, 4);
    if (from == UINT32_MAX && end >= 20 && memcmp(b + end - 20, "PK\6\7", 4) == 0) {
        uint64_t wide = ll_le(b + end - 12, 8);
        CHECK(wide <= end && end - wide >= 56 && memcmp(b + wide, "PK\6\6", 4) == 0, LL_E_IO,
              "%s: its 64-bit directory is not where it says", file);
        from = ll_le(b + wide + 48, 8);
    }
    CHECK(from < end, LL_E_IO, "%s: the directory is at byte %lu of %zu", file, from, size);
    *at = (size_t)from;
    return LL_OK;
}

/* Sizes and offset that do not fit 32 bits stand in an extra field, in this order. */
static void widen(const uint8_t *p, size_t n, uint64_t *v[3])
{
    while (n >= 4) {
        size_t length = (size_t)ll_le(p + 2, 2);
        if (length > n - 4) return;
        const uint8_t *q = p + 4, *end = q + length;
        for (int i = 0; ll_le(p, 2) == 1 && i < 3; i++)
            if (*v[i] == UINT32_MAX && end - q >= 8) *v[i] = ll_le(q, 8), q += 8;
        p += 4 + length;
        n -= 4 + length;
    }
}

ll_err ll_zip_next(const uint8_t *b, size_t size, const char *file, size_t *at, ll_zip_entry *out)
{
    *out = (ll_zip_entry){0};
    if (*at == 0) TRY(find_directory(b, size, file, at));
    const uint8_t *p = b + *at;
    size_t left = size - *at;
    if (left < 46 || memcmp(p, "PK\1\2", 4) != 0) { /* the end, of one kind or another */
        CHECK(left >= END_SIZE && p[0] == 'P' && p[1] == 'K', LL_E_IO,
              "%s: the directory is damaged at byte %zu", file, *at);
        return LL_OK;
    }
    uint64_t packed = ll_le(p + 20, 4), raw = ll_le(p + 24, 4), local = ll_le(p + 42, 4);
    size_t method = (size_t)ll_le(p + 10, 2), name = (size_t)ll_le(p + 28, 2);
    size_t extra = (size_t)ll_le(p + 30, 2), whole = 46 + name + extra + (size_t)ll_le(p + 32, 2);
    CHECK(whole <= left, LL_E_IO, "%s: the directory is truncated at byte %zu", file, *at);
    widen(p + 46 + name, extra, (uint64_t *[3]){&raw, &packed, &local});
    const char *text = (const char *)p + 46;
    CHECK(!(p[8] & 1) && (method == 0 || method == 8), LL_E_IO,
          "%s: %.*s is encrypted, or compressed by method %zu; expected stored or deflated", file,
          (int)name, text, method);
    CHECK(local <= size - 30 && memcmp(b + local, "PK\3\4", 4) == 0, LL_E_IO,
          "%s: %.*s is not at byte %lu", file, (int)name, text, local);
    uint64_t data = local + 30 + ll_le(b + local + 26, 2) + ll_le(b + local + 28, 2);
    CHECK(data <= size && packed <= size - data, LL_E_IO, "%s: %.*s is truncated", file, (int)name,
          text);
    CHECK(method == 8 ? raw / 1032 <= packed : raw == packed, LL_E_IO,
          "%s: %.*s claims that %lu bytes expand to %lu", file, (int)name, text, packed, raw);
    *out = (ll_zip_entry){.name = text,
                          .name_size = name,
                          .data = b + data,
                          .size = (size_t)packed,
                          .raw = (size_t)raw,
                          .packed = method == 8,
                          .crc = (uint32_t)ll_le(p + 16, 4)};
    *at += whole;
    return LL_OK;
}

static bool inflate_all(const ll_zip_entry *e, uint8_t *out)
{
    const size_t most = 1u << 30; /* zlib counts in unsigned int */
    z_stream z = {.next_in = (Bytef *)e->data, .next_out = out};
    if (inflateInit2(&z, -15) != Z_OK) return false;
    int rc = Z_OK;
    while (rc == Z_OK) {
        size_t in = (size_t)(e->data + e->size - z.next_in);
        size_t room = (size_t)(out + e->raw - z.next_out);
        z.avail_in = (uInt)(in < most ? in : most);
        z.avail_out = (uInt)(room < most ? room : most);
        rc = inflate(&z, Z_NO_FLUSH);
    }
    inflateEnd(&z);
    uLong crc = crc32(0, NULL, 0);
    for (size_t at = 0; at < e->raw; at += most)
        crc = crc32(crc, out + at, (uInt)(e->raw - at < most ? e->raw - at : most));
    return rc == Z_STREAM_END && z.next_out == out + e->raw && crc == e->crc;
}

ll_err ll_zip_inflate(const ll_zip_entry *e, const char *file, uint8_t **out)
{
    LL_OWN_MEMORY uint8_t *all = malloc(e->raw + 1);
    *out = NULL;
    CHECK(all, LL_E_MEM, "%s: not enough memory for %zu bytes; saved without packing it is mapped",
          file, e->raw);
    CHECK(inflate_all(e, all), LL_E_IO,
          "%s: the compressed data is damaged, or its checksum is wrong", file);
    return LL_HAND(out, all);
}
