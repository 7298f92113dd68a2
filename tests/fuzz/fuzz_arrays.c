/* Any bytes as a CSV, as an .npy, as a zip archive of such, as classic NetCDF and as lines of
 * JSON, which their first bytes tell apart. What is accepted lies within the bytes: all of it is
 * read. */
#include "base/arena.h"
#include "data/data.h"
#include "data/parse.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) abort();
}

static volatile uint8_t sum;
static void touch(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) sum = (uint8_t)(sum + p[i]);
}

static void check_npy(const uint8_t *data, size_t size)
{
    ll_npy npy;
    if (ll_npy_parse(data, size, "fuzz", &npy) == LL_OK)
        touch(data + npy.offset, npy.bytes);
    else
        must(npy.bytes == 0 && ll_error_text()[0]);
}

static void check_zip(const uint8_t *data, size_t size)
{
    ll_zip_entry e;
    size_t raw = 0;
    for (size_t at = 0; ll_zip_next(data, size, "fuzz", &at, &e) == LL_OK && e.data;) {
        uint8_t *out = NULL;
        touch((const uint8_t *)e.name, e.name_size);
        touch(e.data, e.size);
        if (!e.packed)
            check_npy(e.data, e.size);
        else if ((raw += e.raw) < 1 << 20 && ll_zip_inflate(&e, "fuzz", &out) == LL_OK)
            check_npy(out, e.raw);
        free(out);
    }
}

static void check_cdf(const uint8_t *data, size_t size)
{
    static ll_cdf cdf;
    if (ll_cdf_parse(data, size, "fuzz", &cdf) != LL_OK) must(cdf.n == 0 && ll_error_text()[0]);
    for (int i = 0; i < cdf.n; i++) {
        const ll_cdf_variable *v = &cdf.v[i];
        touch((const uint8_t *)v->name, v->name_size);
        int64_t rows = v->record ? v->dim[0] : 1;
        if (rows > 0) touch(data + v->begin, v->bytes);
        if (rows > 1) touch(data + v->begin + (size_t)(rows - 1) * v->stride, v->bytes);
    }
}

static void check_jsonl(const uint8_t *data, size_t size)
{
    uint8_t *out;
    size_t n;
    if (ll_jsonl_parse(data, size, "text", "fuzz", &out, &n) == LL_OK) {
        must(n > 0 && n <= size && out[n - 1] == 0);
        touch(out, n);
    } else
        must(!out && n == 0 && ll_error_text()[0]);
    free(out);
}

static void check_choices(const uint8_t *data, size_t size)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_question *q;
    int64_t n;
    if (ll_choices_parse(data, size, "fuzz", a, &q, &n) != LL_OK) {
        must(ll_error_text()[0]);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        must(q[i].n >= 2 && q[i].answer >= 0 && q[i].answer < q[i].n && *q[i].text);
        for (int k = 0; k < q[i].n; k++)
            touch((const uint8_t *)q[i].choices[k], strlen(q[i].choices[k]));
    }
}

static void check_csv(const uint8_t *data, size_t size)
{
    ll_csv c;
    LL_OWN(ll_arena) a = ll_arena_new();
    if (ll_csv_parse(data, size, "fuzz", a, &c) != LL_OK) must(!c.cells && ll_error_text()[0]);
    for (int64_t i = 0; i < (c.cells ? (c.rows + 1) * c.columns : 0); i++)
        touch((const uint8_t *)c.cells[i], strlen(c.cells[i]));
}

static void check_told(const uint8_t *data, size_t size)
{
    ll_dataset *d;
    if (ll_told_parse((const char *)data, size, "fuzz", &d) == LL_OK) {
        LL_OWN(ll_arena) a = ll_arena_new();
        ll_buf b = {.arena = a};
        ll_dataset_tell(d, &b);
        ll_dataset_close(d);
        must(ll_told_parse(b.text, b.len, "told", &d) == LL_OK);
        ll_dataset_close(d);
    } else
        must(!d && ll_error_text()[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_told(data, size);
    check_csv(data, size);
    check_npy(data, size);
    check_zip(data, size);
    check_cdf(data, size);
    check_jsonl(data, size);
    check_choices(data, size);
    return 0;
}
