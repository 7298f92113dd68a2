/* Any bytes as an IDX file: as they are, and inside gzip. The first byte says which: 0 a plain
 * file, 1 a gzip file (as a user might have), else the rest is packed well-formed first, so that
 * the fuzzer also gets behind gzip's check sum. */
#include "data/parse.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static void check_plain(const uint8_t *data, size_t size)
{
    ll_idx idx;
    if (ll_idx_parse(data, size, "fuzz", &idx) != LL_OK) {
        must(ll_error_text()[0]);
        return;
    }
    int64_t elements = 1;
    must(idx.n_dim >= 1 && idx.n_dim <= LL_IDX_DIMS);
    for (int i = 0; i < idx.n_dim; i++) elements *= idx.dim[i];
    must(idx.offset + idx.bytes == size && (size_t)elements == idx.bytes);
    int most = 0;
    for (size_t i = idx.offset; i < size; i++)
        if (data[i] > most) most = data[i];
    bool fits = ll_labels_check(data + idx.offset, elements, 1, 10, "fuzz", idx.offset) == LL_OK;
    must(fits == (most < 10));
}

static bool check_gz(const uint8_t *data, size_t size)
{
    uint8_t *out;
    size_t out_size;
    if (ll_idx_gunzip(data, size, "fuzz", &out, &out_size) != LL_OK) {
        must(out == NULL && ll_error_text()[0]);
        return false;
    }
    ll_idx idx;
    must(ll_idx_parse(out, out_size, "fuzz", &idx) == LL_OK);
    check_plain(out, out_size);
    free(out);
    return true;
}

static void check_packed(const uint8_t *data, size_t size)
{
    z_stream z = {.next_in = (Bytef *)data, .avail_in = (uInt)size};
    must(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    size_t room = deflateBound(&z, size);
    uint8_t *gz = malloc(room);
    must(gz != NULL);
    z.next_out = gz;
    z.avail_out = (uInt)room;
    must(deflate(&z, Z_FINISH) == Z_STREAM_END);
    ll_idx idx; /* packed or not, the same files are accepted */
    bool plain = ll_idx_parse(data, size, "fuzz", &idx) == LL_OK;
    must(check_gz(gz, room - z.avail_out) == plain);
    deflateEnd(&z);
    free(gz);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if (data[0] == 0)
        check_plain(data + 1, size - 1);
    else if (data[0] == 1)
        check_gz(data + 1, size - 1);
    else
        check_packed(data + 1, size - 1);
    return 0;
}
