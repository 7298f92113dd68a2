/* bible.c: the King James text out of bible.data (Debian package bible-kjv-text).
 *
 * The file, all numbers big-endian u32: "EC02" and a title, 80 bytes; 0; the size of a window
 * (65536); the number of windows w; w + 1 offsets, the last one the file's end. Window i is the
 * text from i * 65536 on, packed as compress(1) does (LZW, codes of 9 to 16 bits, lowest bit first)
 * but without its 3-byte header; code 256, which clears the table there, ends a window here.
 * The text has a title line, dropped here, and one line a verse, "Ge1:1 In the beginning ...": the
 * result is what `bible -f gen1:1-rev22:21` prints. All takes some 20 ms: nothing is cached. */
#include "base/num.h"
#include "data/data_int.h"
#include "data/parse.h"

#define HEADER 92 /* before the offsets */
#define WINDOW 65536
#define END_CODE 256
#define FIRST_CODE 257
#define MAX_BITS 16

/* A string of the table stands in the text already: an earlier one and the byte behind it. */
typedef struct string {
    uint32_t at, length;
} string;
#define TABLE (1 << MAX_BITS)

/* The code of `width` bits at bit `at`, all of them within size bytes. */
static uint32_t code_at(const uint8_t *in, size_t size, size_t at, int width)
{
    size_t i = at / 8;
    uint32_t word = in[i];
    if (i + 1 < size) word |= (uint32_t)in[i + 1] << 8;
    if (i + 2 < size) word |= (uint32_t)in[i + 2] << 16;
    return word >> at % 8 & ((1u << width) - 1);
}

/* Codes come in groups of 8; when they grow wider, the rest of a group is left unused. */
static ll_err unpack_window(string *table, const uint8_t *in, size_t in_size, const char *file,
                            size_t offset, uint8_t *out, size_t *made)
{
    size_t n = 0, at = 0, group = 0, bits = in_size * 8;
    int width = 9;
    uint32_t next = FIRST_CODE;
    string last = {0};
    for (bool first = true;; first = false) {
        if (next > (1u << width) - 1 && width < MAX_BITS) {
            size_t whole = 8 * (size_t)width++;
            at = group = group + (at - group + whole - 1) / whole * whole;
        }
        if (at + (size_t)width > bits) break;
        uint32_t code = code_at(in, in_size, at, width);
        if (code == END_CODE) break;
        CHECK(code < 256 || (!first && code <= next), LL_E_IO,
              "%s: bad code %u in the window at offset %zu, bit %zu; expected at most %u", file,
              code, offset, at, first ? 255 : next);
        at += (size_t)width;
        bool add = !first && next < TABLE;
        if (add) table[next] = (string){last.at, last.length + 1};
        string now = {(uint32_t)n, code < 256 ? 1 : table[code].length};
        CHECK(n + now.length <= WINDOW, LL_E_IO,
              "%s: the window at offset %zu is longer than %d bytes", file, offset, WINDOW);
        if (code < 256) out[n] = (uint8_t)code;
        /* Forwards, byte by byte: the string just added ends with the first byte copied here. */
        for (uint32_t i = 0; code > 255 && i < now.length; i++)
            out[n + i] = out[table[code].at + i];
        n += now.length;
        next += add;
        last = now;
    }
    *made = n;
    return LL_OK;
}

static ll_err unpack(string *table, const uint8_t *b, size_t size, const char *file, uint8_t *out,
                     size_t *out_size)
{
    uint32_t windows = (uint32_t)ll_be(b + 88, 4);
    size_t n = 0;
    for (uint32_t i = 0; i < windows; i++) {
        const uint8_t *p = b + HEADER + 4 * (size_t)i;
        size_t from = ll_be(p, 4), to = ll_be(p + 4, 4), made = 0;
        CHECK(from >= HEADER + 4 * ((size_t)windows + 1) && from < to && to <= size, LL_E_IO,
              "%s: window %u has bad offsets, %zu to %zu of %zu", file, i, from, to, size);
        TRY(unpack_window(table, b + from, to - from, file, from, out + n, &made));
        CHECK(made == WINDOW || i + 1 == windows, LL_E_IO,
              "%s: window %u has %zu bytes, expected %d", file, i, made, WINDOW);
        n += made;
    }
    const uint8_t *line = memchr(out, '\n', n);
    CHECK(line && line + 1 < out + n, LL_E_IO, "%s: the text has no second line", file);
    size_t title = (size_t)(line + 1 - out);
    memmove(out, out + title, n - title);
    *out_size = n - title;
    return LL_OK;
}

ll_err ll_bible_parse(const uint8_t *b, size_t size, const char *file, uint8_t **out,
                      size_t *out_size)
{
    *out = NULL;
    CHECK(size > HEADER && memcmp(b, "EC02", 4) == 0, LL_E_IO,
          "%s does not begin with EC02 like the data of bible-kjv-text", file);
    uint32_t window = (uint32_t)ll_be(b + 84, 4), windows = (uint32_t)ll_be(b + 88, 4);
    CHECK(window == WINDOW, LL_E_IO, "%s: windows of %u bytes (offset 84), expected %d", file,
          window, WINDOW);
    /* LZW needs some 420 bytes for a whole window: more windows cannot be there. */
    CHECK(windows > 0 && windows - 1 <= size / 400 && windows < (size - HEADER) / 4, LL_E_IO,
          "%s: %u windows (offset 88) do not fit a file of %zu bytes", file, windows, size);
    LL_OWN_MEMORY uint8_t *text = malloc((size_t)windows * WINDOW);
    LL_OWN_MEMORY string *table = malloc(TABLE * sizeof *table);
    CHECK(text && table, LL_E_MEM, "%s: not enough memory for %zu bytes", file,
          (size_t)windows * WINDOW);
    TRY(unpack(table, b, size, file, text, out_size));
    return LL_HAND(out, text);
}

ll_err ll_read_bible(ll_dataset *d, const char *path)
{
    LL_OWN_BYTES packed = {0};
    ll_bytes text = {0};
    uint8_t *out;
    TRY(ll_bytes_map(path, &packed));
    TRY(ll_bible_parse(packed.data, packed.size, path, &out, &text.size));
    text.data = out;
    ll_dataset_note(d, ll_base_name(path), text.data, text.size);
    return ll_text_add(d, path, &text);
}
