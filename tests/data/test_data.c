/* Readers: each format there and back, and every way a file can be wrong. */
#include "files.h"

#include "data/data_int.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

/* Image i of a split against the formula; gz or not. */
static void check_image(const ll_dataset *d, ll_split split, int64_t i, int64_t number)
{
    const ll_data_info *f = ll_dataset_info(d);
    uint8_t pixels[64 * 64];
    int32_t label = -7;
    memset(pixels, 0x7f, sizeof pixels);
    ok(ll_dataset_image(d, split, i, pixels, &label));
    assert_int_equal(label, label_value(number));
    for (int64_t y = 0; y < f->height; y++)
        for (int64_t x = 0; x < f->width; x++)
            assert_int_equal(pixels[y * f->width + x], pixel_value(number, y, x));
}

static void idx_round_trip(void **state)
{
    for (int gz = 0; gz < 2; gz++) {
        ll_dataset *d;
        ll_data_opts o = from(state, "idx");
        put_idx(state, "train", gz, 23, 7, 5);
        put_idx(state, "t10k", gz, 11, 7, 5);
        ok(ll_dataset_open(&o, &d));
        const ll_data_info *f = ll_dataset_info(d);
        assert_int_equal(f->kind, LL_IMAGES);
        assert_int_equal(f->n[LL_TRAIN], 23);
        assert_int_equal(f->n[LL_VAL], 11);
        assert_int_equal(f->height * 1000 + f->width * 10 + f->channels, 7051);
        assert_int_equal(f->classes, 5);
        assert_int_equal(f->field_bytes[0], 7 * 5 * 4);
        assert_int_equal(f->fields[0].shape.n, 3);
        assert_int_equal(f->fields[1].shape.n, 0);
        for (int64_t i = 0; i < 23; i++) check_image(d, LL_TRAIN, i, i);
        for (int64_t i = 0; i < 11; i++) check_image(d, LL_VAL, i, i);
        float x[35];
        int32_t y;
        for (int i = 0; i < 35; i++) x[i] = NAN;
        ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 3, 1, (void *[]){x, &y}));
        for (int i = 0; i < 35; i++)
            assert_float_equal(x[i], (pixel_value(3, i / 5, i % 5) / 255.0 - 0.5) / 0.5, 1e-6);
        uint8_t byte[35];
        fails(ll_dataset_image(d, LL_VAL, 11, byte, &y), "image 11");
        fails(ll_dataset_tokens(d, LL_VAL, 0, 1, &y), "not tokens");
        ll_dataset_close(d);
        remove(tmpdir_path(state, "train-images-idx3-ubyte"));
        remove(tmpdir_path(state, "train-labels-idx1-ubyte"));
        remove(tmpdir_path(state, "t10k-images-idx3-ubyte"));
        remove(tmpdir_path(state, "t10k-labels-idx1-ubyte"));
    }
}

/* Without test files the last part is held out; a single images file finds its labels. */
static void val_split(void **state)
{
    ll_dataset *d;
    ll_data_opts o = from(state, "idx");
    put_idx(state, "train", true, 40, 3, 3);
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->n[LL_TRAIN], 38);
    assert_int_equal(ll_dataset_info(d)->n[LL_VAL], 2);
    ll_dataset_close(d);
    o.val_fraction = 0.26;
    o.path = tmpdir_path(state, "train-images-idx3-ubyte.gz");
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->n[LL_TRAIN], 29);
    assert_int_equal(ll_dataset_info(d)->n[LL_VAL], 11);
    check_image(d, LL_TRAIN, 28, 28);
    for (int64_t i = 0; i < 11; i++) check_image(d, LL_VAL, i, 29 + i);
    ll_dataset_close(d);
    o.val_fraction = 0.99;
    fails(ll_dataset_open(&o, &d), "no images are left to train on");
    o.val_fraction = 1.5;
    fails(ll_dataset_open(&o, &d), "val_fraction is 1.5");
    assert_null(d);
}

static size_t read_all(const char *path, uint8_t *out, size_t most)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(out, 1, most, f);
    fclose(f);
    return n;
}

/* Writes a changed images file, or labels file, and opens the folder. */
static void idx_broken(void **state, bool labels, size_t at, uint8_t value, int64_t size,
                       const char *text)
{
    static uint8_t bytes[4096];
    const char *name = labels ? "train-labels-idx1-ubyte" : "train-images-idx3-ubyte";
    size_t whole = make_idx(bytes, 9, labels ? 0 : 4, 4);
    if (at < whole) bytes[at] = value;
    bytes[whole] = 1; /* what a longer file holds */
    size_t n = size < 0 ? whole + 1 : (size_t)size < whole ? (size_t)size : whole;
    ll_dataset *d = (void *)1;
    ll_data_opts o = from(state, "idx");
    put_idx(state, "train", false, 9, 4, 4);
    put_file(tmpdir_path(state, name), bytes, n);
    fails(ll_dataset_open(&o, &d), text);
    assert_null(d);
    assert_non_null(strstr(ll_error_text(), name));
    /* the same bytes, packed, fail for the same reasons */
    static uint8_t packed[8192], *out;
    size_t out_size;
    put_gz(tmpdir_path(state, "z"), bytes, n);
    size_t packed_size = read_all(tmpdir_path(state, "z"), packed, sizeof packed);
    assert_int_not_equal(ll_idx_gunzip(packed, packed_size, "z", &out, &out_size), LL_OK);
    assert_null(out);
}

static void idx_errors(void **state)
{
    const size_t none = SIZE_MAX;
    idx_broken(state, false, 2, 9, 1 << 20, "begins with 00 00 09");
    idx_broken(state, false, 3, 0, 1 << 20, "byte 3 says 0 dimensions");
    idx_broken(state, false, 3, 200, 1 << 20, "byte 3 says 200 dimensions");
    idx_broken(state, false, none, 0, 0, "is empty");
    idx_broken(state, false, none, 0, 3, "3 bytes, but an IDX header");
    idx_broken(state, false, none, 0, 15, "15 bytes, but a header of 3 dimensions has 16");
    idx_broken(state, false, none, 0, 16, "truncated");
    idx_broken(state, false, none, 0, 100, "84 bytes after the header, expected 144");
    idx_broken(state, false, none, 0, -1, "145 bytes after the header");
    idx_broken(state, false, 7, 0, 1 << 20, "dimension 0 (offset 4) is 0");
    idx_broken(state, false, 4, 255, 1 << 20, "truncated");               /* 4 billion images */
    idx_broken(state, true, 3, 2, 1 << 20, "after the header, expected"); /* 9 x labels 0..3 */
    idx_broken(state, true, none, 0, 7, "7 bytes, but a header");
}

static void idx_mismatch(void **state)
{
    ll_dataset *d;
    ll_data_opts o = from(state, "idx");
    uint8_t labels[64];
    fails(ll_dataset_open(&o, &d), "train-images-idx3-ubyte: no such file");
    put_idx(state, "train", false, 9, 4, 4);
    put_file(tmpdir_path(state, "train-labels-idx1-ubyte"), labels, make_idx(labels, 8, 0, 0));
    fails(ll_dataset_open(&o, &d), "9 images");
    assert_non_null(strstr(ll_error_text(), "has 8 labels"));
    put_idx(state, "train", false, 9, 4, 4);
    put_idx(state, "t10k", false, 9, 4, 3);
    fails(ll_dataset_open(&o, &d), "images are 4 x 3 x 1, but training images are 4 x 4 x 1");
    put_idx(state, "t10k", false, 9, 4, 4);
    o.classes = 4;
    fails(ll_dataset_open(&o, &d), "label 4 at offset 10, expected 0 to 3");
    assert_non_null(strstr(ll_error_text(), "train-labels"));
    o.classes = 0;
    size_t n = make_idx(labels, 9, 0, 0);
    labels[8 + 6] = 5; /* one more than training has */
    put_file(tmpdir_path(state, "t10k-labels-idx1-ubyte"), labels, n);
    fails(ll_dataset_open(&o, &d), "t10k-labels-idx1-ubyte: label 5 at offset 14, expected 0 to 4");
    remove(tmpdir_path(state, "t10k-labels-idx1-ubyte"));
    fails(ll_dataset_open(&o, &d), "t10k-labels-idx1-ubyte.gz: No such file");
    o.path = tmpdir_path(state, "nowhere");
    fails(ll_dataset_open(&o, &d), "nowhere: No such file");
    o.path = tmpdir_path(state, "train-labels-idx1-ubyte");
    fails(ll_dataset_open(&o, &d), "...images...");
}

static void gz_errors(void **state)
{
    static uint8_t bytes[1 << 16], gz[1 << 17], twice[1 << 17];
    const char *path = tmpdir_path(state, "x.gz");
    size_t size = make_idx(bytes, 50, 16, 16), out_size, n;
    uint8_t *out;
    put_gz(path, bytes, size);
    n = read_all(path, gz, sizeof gz);
    for (size_t cut = 0; cut < n; cut++) {
        assert_int_not_equal(ll_idx_gunzip(gz, cut, "x.gz", &out, &out_size), LL_OK);
        assert_null(out);
    }
    fails(ll_idx_gunzip(gz, n / 2, "x.gz", &out, &out_size), "x.gz: the gzip data ends");
    fails(ll_idx_gunzip(gz, n - 1, "x.gz", &out, &out_size), "bad end of the gzip data");
    gz[n - 6] ^= 1; /* the check sum */
    fails(ll_idx_gunzip(gz, n, "x.gz", &out, &out_size), "incorrect data check");
    gz[n - 6] ^= 1;
    /* two members are one file; junk behind is not */
    put_gz(path, bytes, 300);
    size_t a = read_all(path, twice, sizeof twice);
    put_gz(path, bytes + 300, size - 300);
    a += read_all(path, twice + a, sizeof twice - a);
    ok(ll_idx_gunzip(twice, a, "x.gz", &out, &out_size));
    assert_int_equal(out_size, size);
    assert_memory_equal(out, bytes, size);
    free(out);
    fails(ll_idx_gunzip(twice, a + 5, "x.gz", &out, &out_size), "bad end");
    put_be32(bytes + 4, 0xffffffff); /* refused before anything is allocated */
    put_gz(path, bytes, size);
    n = read_all(path, gz, sizeof gz);
    fails(ll_idx_gunzip(gz, n, "x.gz", &out, &out_size), "more than");
    put_be32(bytes + 4, 49);
    put_gz(path, bytes, size);
    n = read_all(path, gz, sizeof gz);
    fails(ll_idx_gunzip(gz, n, "x.gz", &out, &out_size), "more data than its IDX header says");
}

static void put_cifar(void *const *state, const char *name, int n, int first)
{
    static uint8_t bytes[20 * LL_CIFAR_RECORD];
    for (int i = 0; i < n; i++) {
        uint8_t *p = bytes + i * LL_CIFAR_RECORD;
        *p++ = label_value(first + i);
        for (int c = 0; c < 3; c++)
            for (int y = 0; y < 32; y++)
                for (int x = 0; x < 32; x++)
                    *p++ = (uint8_t)(pixel_value(first + i, y, x) + 100 * c);
    }
    put_file(tmpdir_path(state, name), bytes, (size_t)n * LL_CIFAR_RECORD);
}

static void cifar(void **state)
{
    ll_dataset *d;
    ll_data_opts o = {.name = "cifar10", .path = *state};
    char name[32];
    fails(ll_dataset_open(&o, &d), "data_batch_1.bin: No such file");
    assert_non_null(strstr(ll_error_text(), ": data_batch_1.bin to"));
    assert_non_null(strstr(ll_error_text(), "; expected in "));
    for (int i = 1; i <= 5; i++) {
        snprintf(name, sizeof name, "data_batch_%d.bin", i);
        put_cifar(state, name, i, 10 * i); /* files of 1, 2, 3, 4 and 5 records */
    }
    put_cifar(state, "test_batch.bin", 7, 0);
    ok(ll_dataset_open(&o, &d));
    const ll_data_info *f = ll_dataset_info(d);
    assert_int_equal(f->n[LL_TRAIN], 15);
    assert_int_equal(f->n[LL_VAL], 7);
    assert_string_equal(f->class_names[3], "cat");
    uint8_t pixels[32 * 32 * 3];
    int32_t label;
    ok(ll_dataset_image(d, LL_TRAIN, 4, pixels, &label)); /* the second of the third file */
    assert_int_equal(label, label_value(31));
    for (int i = 0; i < 32 * 32 * 3; i++)
        assert_int_equal(pixels[i], (uint8_t)(pixel_value(31, i / 96, i / 3 % 32) + 100 * (i % 3)));
    float x[32 * 32 * 3];
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 2, 1, (void *[]){x, &label}));
    assert_float_equal(x[3 * (5 * 32 + 9) + 2],
                       ((uint8_t)(pixel_value(2, 5, 9) + 200) / 255.0 - 0.4465) / 0.2616, 1e-6);
    ll_dataset_close(d);
    uint8_t bytes[2 * LL_CIFAR_RECORD] = {0};
    int64_t n;
    fails(ll_cifar_parse(bytes, LL_CIFAR_RECORD - 1, "c", &n), "3072 bytes, expected a multiple");
    fails(ll_cifar_parse(bytes, 0, "c", &n), "0 bytes");
    bytes[LL_CIFAR_RECORD] = 10;
    fails(ll_cifar_parse(bytes, sizeof bytes, "c", &n), "label 10 at offset 3073, expected 0 to 9");
}

static void tokens(void **state)
{
    ll_dataset *d;
    ll_data_opts o = from(state, "tokens");
    o.seq = 10;
    fails(ll_dataset_open(&o, &d), "no such files in the folder");
    put_tokens(tmpdir_path(state, "a_train_1.bin"), 1001, 0, 50000);
    put_tokens(tmpdir_path(state, "a_train_0.bin"), 25, 40000, 50000);
    put_tokens(tmpdir_path(state, "a_train_2.bin"), 10, 5, 50000); /* too short for a window */
    put_tokens(tmpdir_path(state, "a_val.bin"), 99, 7000, 50000);
    ok(ll_dataset_open(&o, &d));
    const ll_data_info *f = ll_dataset_info(d);
    assert_int_equal(f->tokens[LL_TRAIN], 25 + 1001 + 10);
    assert_int_equal(f->tokens[LL_VAL], 99);
    assert_int_equal(f->n[LL_TRAIN], 2 + 100);
    assert_int_equal(f->n[LL_VAL], 9);
    assert_int_equal(f->vocab, 50257);
    int32_t t[25], x[20], y[20];
    memset(t, 0x7f, sizeof t);
    ok(ll_dataset_tokens(d, LL_TRAIN, 24, 1, t)); /* files in the order of their names */
    ok(ll_dataset_tokens(d, LL_TRAIN, 25, 3, t + 1));
    assert_int_equal(t[0], 40024);
    assert_int_equal(t[3], 2);
    fails(ll_dataset_tokens(d, LL_TRAIN, 20, 6, t), "within one file");
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 7, 2, (void *[]){x, y}));
    for (int i = 0; i < 20; i++) {
        assert_int_equal(x[i], 7070 + i);
        assert_int_equal(y[i], 7071 + i);
    }
    ll_dataset_close(d);
    o.path = tmpdir_path(state, "a_*_[01].bin"); /* a pattern: the last of training is held out */
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->tokens[LL_VAL], 52);
    ll_dataset_close(d);
    o.vocab = 900;
    fails(ll_dataset_open(&o, &d),
          "a_train_0.bin has token 40000 at offset 1024: set model.vocab=");
}

static void tokens_errors(void **state)
{
    uint8_t b[LL_TOKENS_HEADER + 8] = {0};
    int64_t n;
    ll_dataset *d;
    ll_data_opts o = from(state, "tokens");
    const char *path = o.path = tmpdir_path(state, "x.bin");
    fails(ll_dataset_open(&o, &d), "x.bin: no such file");
    put_file(path, "", 0);
    fails(ll_dataset_open(&o, &d), "is empty");
    memcpy(b, (int32_t[]){LL_TOKENS_MAGIC, 1, 4}, 12);
    ok(ll_tokens_parse(b, sizeof b, "t", &n));
    assert_int_equal(n, 4);
    fails(ll_tokens_parse(b, LL_TOKENS_HEADER - 1, "t", &n), "1023 bytes, but the header");
    fails(ll_tokens_parse(b, sizeof b - 1, "t", &n), "says 4 tokens, but 7 bytes follow");
    memcpy(b + 8, (int32_t[]){2000000000}, 4);
    fails(ll_tokens_parse(b, sizeof b, "t", &n), "says 2000000000 tokens, but 8 bytes");
    memcpy(b + 8, (int32_t[]){-4}, 4);
    fails(ll_tokens_parse(b, sizeof b, "t", &n), "says -4 tokens");
    b[4] = 2;
    fails(ll_tokens_parse(b, sizeof b, "t", &n), "version (offset 4) is 2, expected 1");
    b[0] ^= 1;
    fails(ll_tokens_parse(b, sizeof b, "t", &n), "magic is 20240521, expected 20240520");
    put_tokens(path, 20, 0, 100);
    o.seq = 20;
    fails(ll_dataset_open(&o, &d), "less than one window of seq + 1 = 21");
    put_tokens(tmpdir_path(state, "val.bin"), 20, 0, 100);
    o.path = tmpdir_path(state, "val.bin");
    fails(ll_dataset_open(&o, &d), "none to train on");
}

static void text(void **state)
{
    char words[1000];
    int32_t x[7], y[7];
    ll_dataset *d;
    ll_data_opts o = {.path = tmpdir_path(state, "t.txt"), .format = "text", .seq = 7};
    for (int i = 0; i < 1000; i++) words[i] = (char)(i * 31);
    put_file(o.path, words, sizeof words);
    ok(ll_dataset_open(&o, &d));
    const ll_data_info *f = ll_dataset_info(d);
    assert_true(f->is_text);
    assert_int_equal(f->vocab, 256);
    assert_int_equal(f->tokens[LL_TRAIN], 950);
    assert_int_equal(f->n[LL_VAL], 7);
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 6, 1, (void *[]){x, y}));
    for (int i = 0; i < 7; i++) {
        assert_int_equal(x[i], (uint8_t)words[950 + 42 + i]);
        assert_int_equal(y[i], (uint8_t)words[950 + 43 + i]);
    }
    char *shown = NULL;
    size_t size;
    FILE *m = open_memstream(&shown, &size);
    ok(ll_show_tokens(d, LL_TRAIN, 0, 3, m));
    fclose(m);
    assert_string_equal(shown, "\\x00\\x1f>\n");
    uint32_t digest = f->digest;
    free(shown);
    ll_dataset_close(d);
    words[500]++; /* as long as before, but another text */
    put_file(o.path, words, sizeof words);
    ok(ll_dataset_open(&o, &d));
    assert_int_not_equal(ll_dataset_info(d)->digest, digest);
    ll_dataset_close(d);
    o.seq = 100;
    fails(ll_dataset_open(&o, &d), "50 tokens for validation are less than one window");
}

static void synthetic(void **state)
{
    (void)state;
    ll_dataset *d, *again;
    ll_data_opts o = {
        .name = "synthetic", .height = 9, .width = 6, .channels = 3, .classes = 4, .samples = 400};
    ok(ll_dataset_open(&o, &d));
    ok(ll_dataset_open(&o, &again));
    const ll_data_info *f = ll_dataset_info(d);
    assert_int_equal(f->n[LL_TRAIN], 400);
    assert_int_equal(f->n[LL_VAL], 20);
    /* Images of a class are nearer to its mean than to another's: there is something to learn. */
    double mean[4][162] = {0}, count[4] = {0};
    uint8_t p[162], q[162];
    int32_t label, same;
    for (int64_t i = 0; i < 400; i++) {
        ok(ll_dataset_image(d, LL_TRAIN, i, p, &label));
        ok(ll_dataset_image(again, LL_TRAIN, i, q, &same));
        assert_memory_equal(p, q, sizeof p);
        assert_int_equal(label, same);
        assert_in_range(label, 0, 3);
        count[label]++;
        for (int k = 0; k < 162; k++) mean[label][k] += p[k];
    }
    for (int64_t i = 0; i < 20; i++) {
        ok(ll_dataset_image(d, LL_VAL, i, p, &label));
        int best = -1;
        double least = 1e300;
        for (int c = 0; c < 4; c++) {
            double sum = 0;
            for (int k = 0; k < 162; k++) sum += pow(p[k] - mean[c][k] / count[c], 2);
            if (sum < least) least = sum, best = c;
        }
        assert_int_equal(best, label);
    }
    ll_dataset_close(again);
    ll_dataset_close(d);
    o.channels = 5;
    fails(ll_dataset_open(&o, &d), "channels is 5");
}

static void synthetic_tokens(void **state)
{
    (void)state;
    ll_dataset *d;
    ok(ll_dataset_open(
        &(ll_data_opts){.name = "synthetic", .vocab = 97, .seq = 33, .samples = 100, .seed = 5},
        &d));
    assert_int_equal(ll_dataset_info(d)->n[LL_TRAIN], 100);
    assert_int_equal(ll_dataset_info(d)->n[LL_VAL], 5);
    int32_t t[3301], part[50];
    int follow = 0;
    ok(ll_dataset_tokens(d, LL_TRAIN, 0, 3301, t));
    ok(ll_dataset_tokens(d, LL_TRAIN, 777, 50, part)); /* the same wherever one starts */
    assert_memory_equal(part, t + 777, sizeof part);
    for (int i = 0; i < 3300; i++) {
        assert_in_range(t[i], 0, 96);
        follow += t[i + 1] == (t[i] * 5 + 7) % 97;
    }
    assert_in_range(follow, 2200, 2700);
    ll_dataset_close(d);
}

static void names(void **state)
{
    ll_dataset *d;
    setenv("XDG_CACHE_HOME", *state, 1); /* the list opens what is installed */
    fails(ll_dataset_open(&(ll_data_opts){.name = "fasion-mnist"}, &d),
          "did you mean fashion-mnist?");
    fails(ll_dataset_open(&(ll_data_opts){.path = "x", .format = "idy"}, &d),
          "'idy', expected idx");
    fails(ll_dataset_open(&(ll_data_opts){.path = "x"}, &d),
          "needs a name, or a path and a format");
    fails(ll_dataset_open(&(ll_data_opts){.name = "kjv", .path = "/nonexistent/bible.data"}, &d),
          "/nonexistent/bible.data: No such file or directory");
    assert_non_null(strstr(ll_error_text(), "Debian package bible-kjv-text"));
    fails(ll_dataset_open(&(ll_data_opts){.name = "fashion-mnist", .path = "/nonexistent"}, &d),
          "Debian package dataset-fashion-mnist");
    setenv("LOOPLINE_DATA", "/nonexistent/sets", 1);
    fails(ll_dataset_open(&(ll_data_opts){.name = "tokens"}, &d), "/nonexistent/sets/tokens");
    ll_data_entry e[LL_MAX_DATASETS];
    int n = ll_dataset_list(e);
    unsetenv("LOOPLINE_DATA");
    unsetenv("XDG_CACHE_HOME");
    assert_int_equal(n, 5);
    for (int i = 0; i < n; i++) {
        bool generated = strcmp(e[i].name, "synthetic") == 0;
        assert_true(e[i].installed ? e[i].info.n[LL_VAL] > 0 : e[i].problem[0]);
        assert_true(!generated || e[i].installed);
        assert_true(strcmp(e[i].name, "cifar10") != 0 || !e[i].installed);
        assert_true(generated || e[i].where[0]);
    }
    ll_dataset_close(NULL);
}

/* What data.json says is enough to bring other samples to the set's. */
static void told(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    ll_buf b = {.arena = a};
    ll_dataset *d, *t;
    ok(ll_dataset_open(&(ll_data_opts){.name = "synthetic",
                                       .height = 5,
                                       .width = 7,
                                       .channels = 3,
                                       .n_mean = 3,
                                       .mean = {0.1, 0.2, 0.3},
                                       .centre = 0.875},
                       &d));
    ll_dataset_tell(d, &b);
    ok(ll_told_parse(b.text, b.len, "data.json", &t));
    const ll_data_info *f = ll_dataset_info(d), *g = ll_dataset_info(t);
    assert_int_equal(g->kind, LL_IMAGES);
    assert_int_equal(g->height * 100 + g->width * 10 + g->channels, 573);
    assert_memory_equal(g->mean, f->mean, sizeof f->mean);
    assert_memory_equal(g->deviation, f->deviation, sizeof f->deviation);
    assert_true(t->centre == 0.875);
    assert_memory_equal(t->scale, d->scale, 3 * sizeof *d->scale);
    ll_dataset_close(t);
    ll_dataset_close(d);
    static const char names[] = "{\"kind\": \"records\", \"classes\": [\"a\", \"\\u00e9\"]}";
    ok(ll_told_parse(names, strlen(names), "j", &t));
    assert_string_equal(ll_dataset_info(t)->class_names[1], "\xc3\xa9");
    ll_dataset_close(t);
    static const char *const bad[][2] = {
        {"{", "not valid JSON"},
        {"{\"kind\": \"image\"}", "kind"},
        {"{\"kind\": \"images\"}", "image needs 3 numbers"},
        {"{\"kind\": \"tokens\", \"classes\": [1]}", "not a name"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        fails(ll_told_parse(bad[i][0], strlen(bad[i][0]), "j", &t), bad[i][1]);
    ll_arena_free(a);
}

static void show(void **state)
{
    ll_dataset *d;
    ll_data_opts o = from(state, "idx");
    put_idx(state, "train", false, 40, 3, 4);
    ok(ll_dataset_open(&o, &d));
    const int64_t which[2] = {0, 6};
    char *s = NULL;
    size_t size;
    FILE *m = open_memstream(&s, &size);
    ok(ll_show_images(d, LL_TRAIN, which, 2, LL_SHOW_ASCII, m));
    fclose(m);
    assert_string_equal(s, "      %%%%  \n      ====  \nclas  clas  \n");
    free(s);
    m = open_memstream(&s, &size);
    ok(ll_show_images(d, LL_TRAIN, which, 1, LL_SHOW_RGB, m));
    fclose(m);
    assert_non_null(strstr(s, "\x1b[38;2;3;3;3;48;2;14;14;14m\xe2\x96\x80"));
    free(s);
    m = open_memstream(&s, &size);
    ok(ll_show_images(d, LL_TRAIN, which, 1, LL_SHOW_256, m));
    assert_int_equal(ll_show_style(m), LL_SHOW_ASCII); /* not a terminal */
    fclose(m);
    assert_non_null(strstr(s, "\x1b[38;5;16;48;5;"));
    free(s);
    ll_dataset_close(d);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        T(idx_round_trip), T(val_split), T(idx_errors),       T(idx_mismatch),
        T(gz_errors),      T(cifar),     T(tokens),           T(tokens_errors),
        T(text),           T(synthetic), T(synthetic_tokens), T(names),
        T(told),           T(show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
