/* Files of arrays (npy, npz, safetensors, NetCDF, HDF5), bare tokens and lines of JSON: each there
 * and back with every conversion, and the ways that files can be wrong. */
#include "files.h"

#include "base/types.h"

#include <dlfcn.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

/* A .npy in out: its header padded as NumPy does, then the elements. */
static size_t make_npy(uint8_t *out, const char *descr, const char *shape, const void *data,
                       size_t bytes)
{
    char head[256];
    int n = snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                     descr, shape);
    int whole = (10 + n + 1 + 63) / 64 * 64 - 10;
    memcpy(out, "\x93NUMPY\1\0", 8);
    out[8] = (uint8_t)whole, out[9] = (uint8_t)(whole >> 8);
    memset(out + 10, ' ', (size_t)whole);
    memcpy(out + 10, head, (size_t)n);
    out[10 + whole - 1] = '\n';
    memcpy(out + 10 + whole, data, bytes);
    return 10 + (size_t)whole + bytes;
}

static void put_le(uint8_t **p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++) *(*p)++ = i < 8 ? (uint8_t)(v >> (8 * i)) : 0;
}

/* A zip archive of one entry or more, with 64-bit sizes where wide. */
typedef struct entry {
    const char *name;
    const uint8_t *data;
    size_t size;
    bool pack, wide;
} entry;

static size_t make_zip(uint8_t *out, const entry *e, int n)
{
    uint8_t *p = out, central[4096], *c = central;
    for (int i = 0; i < n; i++) {
        uint8_t packed[65536];
        const uint8_t *bytes = e[i].data;
        size_t size = e[i].size, at = (size_t)(p - out), name = strlen(e[i].name);
        if (e[i].pack) {
            z_stream z = {.next_in = (Bytef *)e[i].data,
                          .avail_in = (uInt)e[i].size,
                          .next_out = packed,
                          .avail_out = sizeof packed};
            assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY), Z_OK);
            assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
            size = z.total_out, bytes = packed;
            deflateEnd(&z);
        }
        uint32_t crc = (uint32_t)crc32(0, e[i].data, (uInt)e[i].size);
        put_le(&p, 0x04034b50, 4), put_le(&p, 20, 4), put_le(&p, e[i].pack ? 8 : 0, 2);
        put_le(&p, 0, 4), put_le(&p, crc, 4), put_le(&p, size, 4), put_le(&p, e[i].size, 4);
        put_le(&p, name, 2), put_le(&p, 0, 2);
        memcpy(p, e[i].name, name), p += name;
        memcpy(p, bytes, size), p += size;
        put_le(&c, 0x02014b50, 4), put_le(&c, 20, 4), put_le(&c, 0, 2);
        put_le(&c, e[i].pack ? 8 : 0, 2), put_le(&c, 0, 4), put_le(&c, crc, 4);
        put_le(&c, e[i].wide ? UINT32_MAX : size, 4);
        put_le(&c, e[i].wide ? UINT32_MAX : e[i].size, 4), put_le(&c, name, 2);
        put_le(&c, e[i].wide ? 20 : 0, 2), put_le(&c, 0, 10), put_le(&c, at, 4);
        memcpy(c, e[i].name, name), c += name;
        if (e[i].wide) put_le(&c, 1, 2), put_le(&c, 16, 2), put_le(&c, e[i].size, 8);
        if (e[i].wide) put_le(&c, size, 8);
    }
    size_t from = (size_t)(p - out), length = (size_t)(c - central);
    memcpy(p, central, length), p += length;
    put_le(&p, 0x06054b50, 4), put_le(&p, 0, 4), put_le(&p, (uint64_t)n, 2);
    put_le(&p, (uint64_t)n, 2), put_le(&p, length, 4), put_le(&p, from, 4), put_le(&p, 0, 2);
    return (size_t)(p - out);
}

/* x of 7 samples [3,2] as bytes 0, 1, 2 ...; y as i64 (10 k), w as big-endian doubles (k / 4). */
#define ROWS 7
static size_t make_x(uint8_t *out)
{
    uint8_t x[ROWS * 6];
    for (int i = 0; i < ROWS * 6; i++) x[i] = (uint8_t)i;
    return make_npy(out, "|u1", "(7, 3, 2)", x, sizeof x);
}

static size_t make_y(uint8_t *out)
{
    int64_t y[ROWS];
    for (int i = 0; i < ROWS; i++) y[i] = 10 * i;
    return make_npy(out, "<i8", "(7,)", y, sizeof y);
}

static size_t make_w(uint8_t *out)
{
    uint8_t w[ROWS * 8];
    for (int i = 0; i < ROWS; i++) {
        double v = i / 4.0;
        for (int k = 0; k < 8; k++) w[8 * i + k] = ((uint8_t *)&v)[7 - k];
    }
    return make_npy(out, ">f8", "(7, 1)", w, sizeof w);
}

static const ll_field wants[] = {
    {"x", LL_F32, {3, {3, 2, 1}}}, {"y", LL_I32, {0}}, {"w", LL_F32, {0}}};

/* Fields x, y and w of all samples of the sets above, training ones first. */
static void check_rows(ll_dataset *d, int64_t held)
{
    const ll_data_info *f = ll_dataset_info(d);
    int at[3] = {-1, -1, -1};
    for (int i = 0; i < f->n_field; i++)
        at[f->fields[i].name[0] - (f->fields[i].name[0] == 'w' ? 'u' : 'x')] = i;
    assert_int_equal(f->kind, LL_RECORDS);
    assert_int_equal(f->n[LL_TRAIN], ROWS - held);
    assert_int_equal(f->n[LL_VAL], held);
    for (int64_t i = 0; i < ROWS; i++) {
        ll_sampling how = {.split = i < ROWS - held ? LL_TRAIN : LL_VAL};
        int64_t position = i < ROWS - held ? 0 : i - (ROWS - held);
        while (how.split == LL_TRAIN && ll_sample_index(d, &how, position) != i) position++;
        float x[6] = {NAN, NAN, NAN, NAN, NAN, NAN}, w = NAN;
        int32_t y = -1;
        void *out[LL_MAX_FIELDS] = {0};
        out[at[0]] = x, out[at[1]] = &y, out[at[2]] = &w;
        ok(ll_dataset_read(d, &how, position, 1, out));
        for (int k = 0; k < 6; k++) assert_float_equal(x[k], (i * 6 + k) / 255.0, 1e-7);
        assert_int_equal(y, 10 * i);
        assert_float_equal(w, i / 4.0, 0);
    }
    ll_dataset_close(d);
}

static void npy_folder(void **state)
{
    static uint8_t b[4096];
    ll_dataset *d;
    put_file(tmpdir_path(state, "x.npy"), b, make_x(b));
    put_file(tmpdir_path(state, "y.npy"), b, make_y(b));
    put_file(tmpdir_path(state, "weight.npy"), b, make_w(b));
    ll_data_opts o = from(state, "npy");
    o.want = wants, o.n_want = 2; /* x and y alone */
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->n_field, 2);
    assert_int_equal(ll_dataset_info(d)->fields[0].shape.n, 3); /* as the model has it */
    assert_int_equal(ll_dataset_info(d)->n_file, 3);
    uint32_t digest = ll_dataset_info(d)->digest;
    ll_dataset_close(d);
    o.n_want = 3, o.val_fraction = 0.25;
    fails(ll_dataset_open(&o, &d), "the model takes w; there are weight [7,1], x [7,3,2], y [7]");
    o.fields = "x, w=weight,y";
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->digest, digest);
    check_rows(d, 2);
    o.fields = "x,w=weight,y,again=weight"; /* one array for two inputs */
    ok(ll_dataset_open(&o, &d));
    float w[2];
    ok(ll_dataset_read(d, &(ll_sampling){0}, 3, 1, (void *[]){&w[0], &w[1], NULL, NULL}));
    assert_int_equal(ll_dataset_info(d)->n_field, 4);
    assert_true(w[0] == w[1]);
    ll_dataset_close(d);
    o.fields = "x,y,w=wait";
    fails(ll_dataset_open(&o, &d), "data.fields names wait, but the file has");
    put_file(tmpdir_path(state, "y.npy"), b, make_npy(b, "<i8", "(0,)", b, 0));
    o.fields = "y";
    fails(ll_dataset_open(&o, &d), "array y has no samples");
    put_file(tmpdir_path(state, "y.npy"), b,
             make_npy(b, "<i8", "(2,)", (int64_t[]){1, 1ll << 40}, 16));
    o.fields = "x,y,w=weight";
    fails(ll_dataset_open(&o, &d), "arrays differ in their first dimension");
    o = (ll_data_opts){.path = tmpdir_path(state, "y.npy"), .format = "npy", .val_fraction = 0.5};
    ok(ll_dataset_open(&o, &d));
    assert_int_not_equal(ll_dataset_info(d)->digest, digest);
    int32_t y;
    fails(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 0, 1, (void *[]){&y}),
          "y of sample 1 is 1.09951e+12, expected a whole number for i32 of y");
    ll_dataset_close(d);
}

static void npz_archives(void **state)
{
    static uint8_t x[4096], y[4096], w[4096], zip[32768];
    size_t nx = make_x(x), ny = make_y(y), nw = make_w(w);
    for (int pack = 0; pack < 2; pack++)
        for (int wide = 0; wide < 2; wide++) {
            entry e[] = {{"x.npy", x, nx, pack, wide},
                         {"y.npy", y, ny, pack, wide},
                         {"w.npy", w, nw, pack, wide}};
            ll_dataset *d;
            const char *path = tmpdir_path(state, "a.npz");
            put_file(path, zip, make_zip(zip, e, 3));
            ll_data_opts o = {
                .path = path, .format = "npz", .want = wants, .n_want = 3, .val_fraction = 0.3};
            ok(ll_dataset_open(&o, &d));
            check_rows(d, 3);
        }
}

/* Two shards to train on by a pattern, one for validation. */
static void shards(void **state)
{
    static uint8_t b[4096], zip[8192];
    ll_dataset *d;
    for (int i = 0; i < 3; i++) {
        char name[16];
        float x[4] = {(float)(10 * i), (float)(10 * i + 1), (float)(10 * i + 2),
                      (float)(10 * i + 3)};
        size_t n = make_npy(b, "<f4", i == 1 ? "(4,)" : "(3,)", x, i == 1 ? 16 : 12);
        snprintf(name, sizeof name, "s%d.npz", i);
        entry e = {"x.npy", b, n, false, false};
        put_file(tmpdir_path(state, name), zip, make_zip(zip, &e, 1));
    }
    char *train = strdup(tmpdir_path(state, "s[01].npz")),
         *val = strdup(tmpdir_path(state, "s2.npz"));
    ll_data_opts o = {.path = train, .format = "npz", .val_path = val};
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->n[LL_TRAIN], 7);
    assert_int_equal(ll_dataset_info(d)->n[LL_VAL], 3);
    bool seen[20] = {0};
    for (int64_t i = 0; i < 7; i++) {
        float x = NAN;
        ok(ll_dataset_read(d, &(ll_sampling){.seed = 3}, i, 1, (void *[]){&x}));
        assert_true(x >= 0 && x <= 13 && !seen[(int)x]);
        seen[(int)x] = true;
    }
    assert_true(seen[2] && !seen[3] && seen[10] && seen[13]);
    float x = NAN;
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 2, 1, (void *[]){&x}));
    assert_float_equal(x, 22, 0);
    ll_dataset_close(d);
    put_file(
        tmpdir_path(state, "s1.npz"), zip,
        make_zip(zip,
                 &(entry){"x.npy", b, make_npy(b, "<f4", "(1, 2)", (float[2]){0}, 8), false, false},
                 1));
    fails(ll_dataset_open(&o, &d), "array x has another type or shape than in");
    o.path = "/nowhere/*.npz";
    fails(ll_dataset_open(&o, &d), "/nowhere/*.npz: no such file");
    free(train), free(val);
}

static void npy_errors(void **state)
{
    (void)state;
    static uint8_t b[1024];
    ll_npy npy;
    size_t n = make_npy(b, "<f4", "(2, 3)", (float[6]){0}, 24);
    ok(ll_npy_parse(b, n, "f", &npy));
    assert_int_equal(npy.n_dim * 100 + npy.dim[0] * 10 + npy.dim[1], 223);
    fails(ll_npy_parse(b, n - 1, "f", &npy),
          "is truncated: 23 bytes after the header, expected 24");
    fails(ll_npy_parse(b, 30, "f", &npy), "the header has");
    fails(ll_npy_parse(b + 1, n - 1, "f", &npy), "is not a .npy file");
    n = make_npy(b, "<c8", "(2, 3)", (float[12]){0}, 48);
    fails(ll_npy_parse(b, n, "f", &npy), "type '<c8'");
    n = make_npy(b, "<f4", "(99999999999, 99999999999)", (float[6]){0}, 24);
    fails(ll_npy_parse(b, n, "f", &npy), "too many elements");
    n = make_npy(b, "<f4", "(2, -3)", (float[6]){0}, 24);
    fails(ll_npy_parse(b, n, "f", &npy), "integers");
    n = make_npy(b, "<f4", "(1, 1, 1, 1, 1, 1, 1, 1, 6)", (float[6]){0}, 24);
    fails(ll_npy_parse(b, n, "f", &npy), "1 to 6 integers");
    n = make_npy(b, "<f4", "(2, 3)", (float[6]){0}, 24);
    memcpy(strstr((char *)b + 10, "False"), "True ", 5);
    fails(ll_npy_parse(b, n, "f", &npy), "Fortran");
}

static void zip_errors(void **state)
{
    static uint8_t b[1024], zip[8192], z[8192];
    size_t n = make_npy(b, "<f4", "(2,)", (float[2]){1, 2}, 8);
    size_t whole = make_zip(zip, &(entry){"x.npy", b, n, true, false}, 1);
    const char *path = tmpdir_path(state, "z.npz");
    ll_data_opts o = {.path = path, .format = "npz", .val_fraction = 0.5};
    ll_dataset *d;
    struct {
        size_t at;
        uint8_t value;
        const char *text;
    } bad[] = {{whole - 22, 'Q', "no end-of-archive record"},
               {whole - 6, 255, "the directory is"},
               {37, 0x55, "x.npy: the compressed data is damaged"},
               {whole - 22 - 51 + 26, 255, "claims"}, /* a bomb: 16 MB of 60 bytes */
               {whole - 22 - 51 + 10, 9, "compressed by method 9"},
               {whole - 22 - 51 + 42, 5, "is not at byte 5"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(z, zip, whole);
        z[bad[i].at] = bad[i].value;
        put_file(path, z, whole);
        fails(ll_dataset_open(&o, &d), bad[i].text);
        assert_non_null(strstr(ll_error_text(), "z.npz"));
    }
    for (size_t cut = 1; cut < whole; cut += 7) {
        put_file(path, zip, whole - cut);
        assert_int_not_equal(ll_dataset_open(&o, &d), LL_OK);
    }
    put_file(path, zip, whole);
    ok(ll_dataset_open(&o, &d));
    ll_dataset_close(d);
}

static void safetensors(void **state)
{
    char head[512];
    uint8_t file[1024], *p = file;
    int n = snprintf(head, sizeof head,
                     "{\"images\":{\"dtype\":\"U8\",\"shape\":[7,3,2],\"data_offsets\":[56,98]},"
                     "\"labels\":{\"dtype\":\"I64\",\"shape\":[7],\"data_offsets\":[0,56]},"
                     "\"w\":{\"dtype\":\"BF16\",\"shape\":[7],\"data_offsets\":[98,112]}}");
    put_le(&p, (uint64_t)n, 8);
    memcpy(p, head, (size_t)n), p += n;
    for (int i = 0; i < ROWS; i++) put_le(&p, (uint64_t)(10 * i), 8);
    for (int i = 0; i < ROWS * 6; i++) put_le(&p, (uint64_t)i, 1);
    for (int i = 0; i < ROWS; i++) {
        float v = (float)i / 4;
        put_le(&p, ll_bits_of(v) >> 16, 2);
    }
    const char *path = tmpdir_path(state, "a.safetensors");
    put_file(path, file, (size_t)(p - file));
    ll_data_opts o = {.path = path,
                      .format = "safetensors",
                      .want = wants,
                      .n_want = 3,
                      .val_fraction = 0.3,
                      .fields = "x=images,y=labels,w"};
    ll_dataset *d;
    ok(ll_dataset_open(&o, &d));
    check_rows(d, 3);
}

static void put_be(uint8_t **p, uint64_t v, int n)
{
    while (n--) *(*p)++ = (uint8_t)(v >> (8 * n));
}

static void put_name(uint8_t **p, const char *name, int count)
{
    size_t n = strlen(name);
    put_be(p, n, count);
    memset(*p, 0, (n + 3) / 4 * 4);
    memcpy(*p, name, n), *p += (n + 3) / 4 * 4;
}

/* x [records,3,2] as bytes and w [records] as shorts with a scale_factor; y [7] apart. */
static size_t make_cdf(uint8_t *out, int version)
{
    int count = version == 5 ? 8 : 4, offset = version == 1 ? 4 : 8;
    uint8_t *p = out, *begin[3];
    put_be(&p, 0x43444600u | (unsigned)version, 4), put_be(&p, ROWS, count);
    put_be(&p, 10, 4), put_be(&p, 4, count);
    put_name(&p, "time", count), put_be(&p, 0, count);
    put_name(&p, "a", count), put_be(&p, 3, count);
    put_name(&p, "b", count), put_be(&p, 2, count);
    put_name(&p, "n", count), put_be(&p, ROWS, count);
    put_be(&p, 0, 4), put_be(&p, 0, count);
    put_be(&p, 11, 4), put_be(&p, 3, count);
    static const struct {
        const char *name;
        int n_dim, dim[3], type, bytes;
    } v[3] = {{"x", 3, {0, 1, 2}, 7, 8}, {"y", 1, {3}, 4, 28}, {"w", 1, {0}, 3, 4}};
    for (int i = 0; i < 3; i++) {
        put_name(&p, v[i].name, count), put_be(&p, (uint64_t)v[i].n_dim, count);
        for (int k = 0; k < v[i].n_dim; k++) put_be(&p, (uint64_t)v[i].dim[k], count);
        put_be(&p, i == 2 ? 12 : 0, 4), put_be(&p, i == 2, count);
        if (i == 2)
            put_name(&p, "scale_factor", count), put_be(&p, 6, 4), put_be(&p, 1, count),
                put_be(&p, 0x3fb0000000000000u /* 1/16 */, 8);
        put_be(&p, (uint64_t)v[i].type, 4), put_be(&p, (uint64_t)v[i].bytes, count);
        begin[i] = p, p += offset;
    }
    size_t at[3] = {(size_t)(p - out) + 28, (size_t)(p - out), (size_t)(p - out) + 28 + 8};
    for (int i = 0; i < 3; i++) put_be(&begin[i], at[i], offset);
    for (int i = 0; i < ROWS; i++) put_be(&p, (uint64_t)(10 * i), 4);
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < 6; k++) put_be(&p, (uint64_t)(6 * i + k), 1);
        put_be(&p, 0, 2), put_be(&p, (uint64_t)(4 * i), 2), put_be(&p, 0, 2);
    }
    return (size_t)(p - out);
}

static void netcdf_classic(void **state)
{
    static uint8_t b[4096];
    static ll_cdf cdf;
    const int versions[] = {1, 2, 5};
    for (int i = 0; i < 3; i++) {
        size_t n = make_cdf(b, versions[i]);
        const char *path = tmpdir_path(state, "a.nc");
        put_file(path, b, n);
        ll_data_opts o = {
            .path = path, .format = "netcdf", .want = wants, .n_want = 3, .val_fraction = 0.3};
        ll_dataset *d;
        ok(ll_dataset_open(&o, &d));
        check_rows(d, 3);
        for (size_t cut = 3; cut <= n; cut++) /* the last two bytes are padding */
            assert_int_not_equal(ll_cdf_parse(b, n - cut, "f", &cdf), LL_OK);
    }
    b[8] = 255; /* records that cannot be there */
    fails(ll_cdf_parse(b, sizeof b, "f", &cdf), "the number of records");
}

static void bare_tokens(void **state)
{
    ll_dataset *d;
    uint16_t u16[50];
    uint32_t u32[50];
    for (int i = 0; i < 50; i++) u16[i] = (uint16_t)(1000 * i), u32[i] = 100000u * (unsigned)i;
    put_file(tmpdir_path(state, "t.u16"), u16, sizeof u16);
    put_file(tmpdir_path(state, "t.u32"), u32, sizeof u32);
    int32_t t[40];
    ll_data_opts o = {.path = tmpdir_path(state, "t.u32"),
                      .format = "tokens",
                      .vocab = 5000000,
                      .seq = 8,
                      .val_fraction = 0.2};
    ok(ll_dataset_open(&o, &d));
    ok(ll_dataset_tokens(d, LL_TRAIN, 0, 40, t));
    for (int i = 0; i < 40; i++) assert_int_equal(t[i], 100000 * i);
    ll_dataset_close(d);
    o.token_bytes = 2, o.vocab = 50000, o.path = tmpdir_path(state, "t.u16");
    ok(ll_dataset_open(&o, &d));
    ok(ll_dataset_tokens(d, LL_TRAIN, 0, 40, t));
    for (int i = 0; i < 40; i++) assert_int_equal(t[i], 1000 * i);
    ll_dataset_close(d);
    o.vocab = 49000;
    fails(ll_dataset_open(&o, &d), "token 49000 at offset 98");
    o.vocab = 50000; /* of files as large as this, not all is looked at before it is used */
    assert_int_equal(truncate(o.path, 48 << 20), 0);
    FILE *end = fopen(o.path, "r+");
    fseek(end, -2, SEEK_END);
    assert_int_equal(fwrite((uint16_t[]){50000}, 2, 1, end), 1);
    fclose(end);
    o.val_fraction = 0.1;
    fails(ll_dataset_open(&o, &d), "token 50000 at offset 50331646"); /* the last to validate on */
    o.val_fraction = 0.8;
    ok(ll_dataset_open(&o, &d));
    int64_t last = ll_dataset_info(d)->tokens[LL_VAL] - 1;
    fails(ll_dataset_tokens(d, LL_VAL, last, 1, t), "token 50000 at offset 50331646");
    ll_dataset_close(d);
    put_file(tmpdir_path(state, "t.u32"), u32, 41);
    o = (ll_data_opts){.path = tmpdir_path(state, "t.u32"), .format = "tokens"};
    fails(ll_dataset_open(&o, &d), "41 bytes, expected a multiple of 4");
}

static void jsonl(void **state)
{
    static const char lines[] =
        "{\"text\": \"a\\u00e9\\n\", \"id\": 1}\n\n  \r\n{\"id\": 2, \"text\": \"bc\"}";
    static const uint8_t want[] = "a\xc3\xa9\n\0bc";
    ll_dataset *d;
    int32_t t[8];
    put_file(tmpdir_path(state, "a.jsonl"), lines, sizeof lines - 1);
    put_file(tmpdir_path(state, "b.jsonl"), "{\"text\":\"0123456789\"}", 21);
    char *val = strdup(tmpdir_path(state, "b.jsonl"));
    ll_data_opts o = {
        .path = tmpdir_path(state, "a.jsonl"), .val_path = val, .format = "jsonl", .seq = 4};
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->tokens[LL_TRAIN], sizeof want);
    ok(ll_dataset_tokens(d, LL_TRAIN, 0, sizeof want, t));
    for (size_t i = 0; i < sizeof want; i++) assert_int_equal(t[i], want[i]);
    ll_dataset_close(d);
    o.field = "body";
    fails(ll_dataset_open(&o, &d), "a.jsonl:1: field \"body\" is missing");
    put_file(o.path, "{\"text\":\"0123\"}\n{\"text\":", 24);
    o.field = NULL;
    fails(ll_dataset_open(&o, &d), "a.jsonl:2: not valid JSON");
    free(val);
}

/* An HDF5 file by the library itself, where it is: x in chunks and packed, y and w in one piece. */
static void hdf5(void **state)
{
    void *lib = dlopen("libhdf5_serial.so.103", RTLD_NOW);
    if (!lib) lib = dlopen("libhdf5.so", RTLD_NOW);
    if (!lib) lib = dlopen("libhdf5_serial.so", RTLD_NOW);
    ll_dataset *d;
    char *path = strdup(tmpdir_path(state, "a.h5"));
    ll_data_opts o = {
        .path = path, .format = "hdf5", .want = wants, .n_want = 3, .val_fraction = 0.3};
    put_file(path, "no such thing", 13);
    fails(ll_dataset_open(&o, &d), lib ? "a.h5 cannot be opened as HDF5" : "install libhdf5-dev");
    if (!lib) {
        free(path);
        skip();
    }
    typedef int64_t id;
    int (*start)(void) = dlsym(lib, "H5open");
    id (*create)(const char *, unsigned, id, id) = dlsym(lib, "H5Fcreate");
    id (*space)(int, const uint64_t *, const uint64_t *) = dlsym(lib, "H5Screate_simple");
    id (*array)(id, const char *, id, id, id, id, id) = dlsym(lib, "H5Dcreate2");
    int (*put)(id, id, id, id, id, const void *) = dlsym(lib, "H5Dwrite");
    int (*close)(id) = dlsym(lib, "H5Fclose"), (*end)(id) = dlsym(lib, "H5Dclose");
    id (*list)(id) = dlsym(lib, "H5Pcreate"),
       (*group)(id, const char *, id, id, id) = dlsym(lib, "H5Gcreate2");
    int (*chunk)(id, int, const uint64_t *) = dlsym(lib, "H5Pset_chunk");
    int (*pack)(id, unsigned) = dlsym(lib, "H5Pset_deflate");
    assert_true(start() >= 0);
    id u8 = *(id *)dlsym(lib, "H5T_STD_U8LE_g"), i64 = *(id *)dlsym(lib, "H5T_STD_I64LE_g");
    id f64 = *(id *)dlsym(lib, "H5T_IEEE_F64BE_g"),
       native = *(id *)dlsym(lib, "H5T_NATIVE_DOUBLE_g");
    id file = create(path, 2, 0, 0), how = list(*(id *)dlsym(lib, "H5P_CLS_DATASET_CREATE_ID_g"));
    assert_true(file >= 0 && chunk(how, 3, (uint64_t[]){2, 3, 2}) >= 0 && pack(how, 4) >= 0);
    uint8_t x[ROWS * 6];
    int64_t y[ROWS];
    double w[ROWS];
    for (int i = 0; i < ROWS * 6; i++) x[i] = (uint8_t)i;
    for (int i = 0; i < ROWS; i++) y[i] = 10 * i, w[i] = i / 4.0;
    id dx = array(file, "x", u8, space(3, (uint64_t[]){ROWS, 3, 2}, NULL), 0, how, 0);
    assert_true(put(dx, u8, 0, 0, 0, x) >= 0 && end(dx) >= 0);
    id dy = array(file, "y", i64, space(1, (uint64_t[]){ROWS}, NULL), 0, 0, 0);
    assert_true(put(dy, i64, 0, 0, 0, y) >= 0 && end(dy) >= 0);
    assert_true(group(file, "more", 0, 0, 0) >= 0);
    id dw = array(file, "more/weight", f64, space(1, (uint64_t[]){ROWS}, NULL), 0, 0, 0);
    assert_true(put(dw, native, 0, 0, 0, w) >= 0 && end(dw) >= 0 && close(file) >= 0);
    o.fields = "x,y,w=more/weight";
    ok(ll_dataset_open(&o, &d));
    check_rows(d, 3);
    o.fields = NULL;
    fails(ll_dataset_open(&o, &d), "the model takes w; there are x [7,3,2], y [7]");
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, tmpdir_setup, tmpdir_teardown)
        T(npy_folder),  T(npz_archives),   T(shards),      T(npy_errors), T(zip_errors),
        T(safetensors), T(netcdf_classic), T(bare_tokens), T(jsonl),      T(hdf5),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
