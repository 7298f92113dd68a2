/* Sampling, augmentation, prefetch and the cache; then the sets that Debian packages bring. */
#include "base/crc32c.h"
#include "files.h"

#include "base/rng.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static ll_dataset *images(void *const *state, uint32_t n, uint32_t height, uint32_t width)
{
    ll_dataset *d;
    ll_data_opts o = from(state, "idx");
    put_idx(state, "train", false, n, height, width);
    put_idx(state, "t10k", false, 13, height, width);
    ok(ll_dataset_open(&o, &d));
    return d;
}

static void shuffle(void **state)
{
    const int64_t n = 101;
    ll_dataset *d = images(state, 101, 1, 1);
    int64_t order[3][101];
    for (uint64_t seed = 0; seed < 20; seed++) {
        ll_sampling how = {.seed = seed};
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            bool seen[101] = {0};
            for (int64_t i = 0; i < n; i++) {
                int64_t k = ll_sample_index(d, &how, epoch * n + i);
                assert_in_range(k, 0, n - 1);
                assert_false(seen[k]);
                seen[k] = true;
                order[epoch][i] = k;
            }
        }
        assert_memory_not_equal(order[0], order[1], sizeof order[0]);
        assert_memory_not_equal(order[1], order[2], sizeof order[0]);
    }
    /* Another order for another seed; validation in order, over and over. */
    int equal = 0;
    for (int64_t i = 0; i < n; i++) {
        equal += ll_sample_index(d, &(ll_sampling){.seed = 1}, i) ==
                 ll_sample_index(d, &(ll_sampling){.seed = 2}, i);
        assert_int_equal(ll_sample_index(d, &(ll_sampling){.split = LL_VAL, .seed = 9}, i), i % 13);
    }
    assert_in_range(equal, 0, 8);
    ll_dataset_close(d);
}

/* Windows are drawn from every place, those at the ends included, and never over a file's end. */
static void windows(void **state)
{
    ll_dataset *d;
    ll_data_opts o = from(state, "tokens");
    o.seq = 8;
    put_tokens(tmpdir_path(state, "a.bin"), 20, 0, 100);   /* 12 places */
    put_tokens(tmpdir_path(state, "b.bin"), 8, 50, 100);   /* none */
    put_tokens(tmpdir_path(state, "c.bin"), 9, 100, 1000); /* one */
    put_tokens(tmpdir_path(state, "val.bin"), 30, 0, 100);
    ok(ll_dataset_open(&o, &d));
    int hits[37] = {0};
    int32_t x[8], y[8];
    for (int64_t i = 0; i < 2000; i++) {
        ll_sampling how = {.seed = 3};
        int64_t at = ll_sample_index(d, &how, i);
        assert_in_range(at, 0, 36);
        hits[at]++;
        ok(ll_dataset_read(d, &how, i, 1, (void *[]){x, y}));
        for (int k = 0; k < 8; k++) {
            assert_int_equal(x[k], (at < 20 ? at : 100) + k);
            assert_int_equal(y[k], x[k] + 1);
        }
    }
    for (int at = 0; at < 37; at++) {
        if (at < 12 || at == 28)
            assert_in_range(hits[at], 80, 240);
        else
            assert_int_equal(hits[at], 0);
    }
    ll_dataset_close(d);
}

/* Reads steps batches of a loader into x and y, and closes it. */
static void drain(const ll_dataset *d, ll_loader_opts o, int64_t steps, char *x, char *y)
{
    ll_loader *l;
    ll_data_batch b;
    ok(ll_loader_open(d, &o, &l));
    for (int64_t k = 0; k < steps; k++) {
        ok(ll_loader_next(l, &b));
        assert_int_equal(b.number, o.start + k);
        memcpy(x + (size_t)k * b.bytes[0], b.data[0], b.bytes[0]);
        memcpy(y + (size_t)k * b.bytes[1], b.data[1], b.bytes[1]);
    }
    ll_loader_close(l);
}

/* Whatever the batch, the first step and the part that is read: the samples are those of a direct
 * read. */
static void compare(const ll_dataset *d, ll_sampling how)
{
    const ll_data_info *f = ll_dataset_info(d);
    enum { N = 240 };
    char *x = malloc(N * f->field_bytes[0]), *y = malloc(N * f->field_bytes[1]);
    char *want_x = malloc(N * f->field_bytes[0]), *want_y = malloc(N * f->field_bytes[1]);
    const int64_t batches[] = {1, 2, 5, 40, 120, 240};
    ok(ll_dataset_read(d, &how, 0, N, (void *[]){want_x, want_y}));
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        int64_t batch = batches[i];
        memset(x, 0x7f, N * f->field_bytes[0]), memset(y, 0x7f, N * f->field_bytes[1]);
        drain(d, (ll_loader_opts){.how = how, .batch = batch}, N / batch, x, y);
        assert_memory_equal(x, want_x, N * f->field_bytes[0]);
        assert_memory_equal(y, want_y, N * f->field_bytes[1]);
        int64_t start = N / batch / 3; /* resumed in the middle */
        size_t skip = (size_t)(start * batch), left = N - skip;
        memset(x, 0x7f, N * f->field_bytes[0]), memset(y, 0x7f, N * f->field_bytes[1]);
        drain(d, (ll_loader_opts){.how = how, .batch = batch, .start = start}, N / batch - start, x,
              y);
        assert_memory_equal(x, want_x + skip * f->field_bytes[0], left * f->field_bytes[0]);
        assert_memory_equal(y, want_y + skip * f->field_bytes[1], left * f->field_bytes[1]);
    }
    /* Three readers of 2, 2 and 1 of each 5. */
    for (int64_t first = 0; first < 5; first += 2) {
        int64_t count = first == 4 ? 1 : 2;
        drain(d, (ll_loader_opts){.how = how, .batch = 5, .first = first, .count = count}, 10, x,
              y);
        for (int64_t k = 0; k < 10; k++)
            assert_memory_equal(x + (size_t)(k * count) * f->field_bytes[0],
                                want_x + (size_t)(k * 5 + first) * f->field_bytes[0],
                                (size_t)count * f->field_bytes[0]);
    }
    /* The same where a batch is 4 micro-batches of 5. */
    for (int64_t first = 0; first < 5; first += 2) {
        int64_t count = first == 4 ? 1 : 2;
        ll_loader_opts o = {.how = how, .batch = 20, .every = 5, .first = first, .count = count};
        drain(d, o, 10, x, y);
        for (int64_t k = 0; k < 40; k++) {
            assert_memory_equal(x + (size_t)(k * count) * f->field_bytes[0],
                                want_x + (size_t)(k * 5 + first) * f->field_bytes[0],
                                (size_t)count * f->field_bytes[0]);
            assert_memory_equal(y + (size_t)(k * count) * f->field_bytes[1],
                                want_y + (size_t)(k * 5 + first) * f->field_bytes[1],
                                (size_t)count * f->field_bytes[1]);
        }
    }
    free(x), free(y), free(want_x), free(want_y);
}

static void loader_is_direct_read(void **state)
{
    ll_dataset *d = images(state, 101, 5, 6);
    compare(d, (ll_sampling){.seed = 4});
    compare(d, (ll_sampling){.seed = 4, .flip = true, .crop = 2});
    ll_dataset_close(d);
    ok(ll_dataset_open(&(ll_data_opts){.name = "synthetic", .vocab = 1000, .seq = 17}, &d));
    compare(d, (ll_sampling){.seed = 5});
    ll_dataset_close(d);
    ok(ll_dataset_open(&(ll_data_opts){.name = "synthetic", .channels = 3, .height = 9}, &d));
    compare(d, (ll_sampling){.seed = 5, .crop = 4});
    ll_dataset_close(d);
}

/* 13 validation samples in batches of 5: in order, and then from the first one on. */
static void validation_in_order(void **state)
{
    ll_dataset *d = images(state, 40, 2, 2);
    ll_loader *l;
    ll_data_batch b;
    ok(ll_loader_open(d, &(ll_loader_opts){.how = {.split = LL_VAL}, .batch = 5}, &l));
    for (int64_t k = 0; k < 5; k++) {
        ok(ll_loader_next(l, &b));
        for (int64_t i = 0; i < 5; i++)
            assert_int_equal(((const int32_t *)b.data[1])[i], label_value((k * 5 + i) % 13));
    }
    ll_loader_close(l);
    ok(ll_loader_open(
        d, &(ll_loader_opts){.how = {.split = LL_VAL}, .batch = 5, .start = 2, .first = 4}, &l));
    ok(ll_loader_next(l, &b)); /* sample 14 of 13 */
    assert_int_equal(b.number, 2);
    assert_int_equal(*(const int32_t *)b.data[1], label_value(1));
    ll_loader_close(l);
    ll_loader_close(NULL);
    fails(ll_loader_open(d, &(ll_loader_opts){.batch = 0}, &l), "batch is 0");
    fails(ll_loader_open(d, &(ll_loader_opts){.batch = 4, .first = 3, .count = 2}, &l), "part 3+2");
    fails(ll_loader_open(d, &(ll_loader_opts){.batch = 4, .every = 3}, &l), "every 3 samples");
    fails(ll_loader_open(d, &(ll_loader_opts){.batch = 4, .start = -1}, &l), "start is batch -1");
    assert_null(l);
    ll_dataset_close(d);
}

/* A token over the vocabulary, found by the thread, is next()'s error, in its turn and for good. */
static void thread_errors(void **state)
{
    ll_dataset *d;
    ll_loader *l;
    ll_data_batch b;
    ll_data_opts o = from(state, "tokens");
    o.seq = 10, o.vocab = 150;
    o.fetch = 1; /* tokens of a slow store are looked at as they are used */
    put_tokens(tmpdir_path(state, "a.bin"), 100, 0, 100);
    put_tokens(tmpdir_path(state, "val.bin"), 200, 0, 1000);
    ok(ll_dataset_open(&o, &d));
    ok(ll_loader_open(d, &(ll_loader_opts){.how = {.split = LL_VAL}, .batch = 2}, &l));
    for (int i = 0; i < 7; i++) {
        ok(ll_loader_next(l, &b));
        assert_int_equal(((const int32_t *)b.data[1])[19], 20 * i + 20);
    }
    for (int i = 0; i < 2; i++)
        fails(ll_loader_next(l, &b), "val.bin has token 150 at offset 1324: set model.vocab=200");
    ll_loader_close(l);
    fails(ll_loader_open(d, &(ll_loader_opts){.how = {.flip = true}, .batch = 2}, &l),
          "apply only to images");
    ll_dataset_close(d);
}

/* Closing at any moment: while the thread fills, while it waits, before the first batch. */
static void close_any_time(void **state)
{
    ll_dataset *d = images(state, 50, 28, 28);
    for (int i = 0; i < 60; i++) {
        ll_loader *l;
        ll_data_batch b;
        ok(ll_loader_open(d, &(ll_loader_opts){.batch = 50}, &l));
        for (int k = 0; k < i % 4; k++) ok(ll_loader_next(l, &b));
        if (i % 3 == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        ll_loader_close(l);
    }
    ll_dataset_close(d);
}

/* Every moved image is one of the crops of the padded one, mirrored or not, and all occur. */
static void augmentation(void **state)
{
    enum { H = 5, W = 7, PAD = 2, N = 3000 };
    ll_dataset *d = images(state, 29, H, W);
    ll_sampling how = {.seed = 11, .flip = true, .crop = PAD};
    int seen[2][2 * PAD + 1][2 * PAD + 1] = {0};
    for (int64_t p = 0; p < N; p++) {
        float x[H * W], again[H * W];
        int32_t y;
        ok(ll_dataset_read(d, &how, p, 1, (void *[]){x, &y}));
        ok(ll_dataset_read(d, &how, p, 1, (void *[]){again, &y}));
        assert_memory_equal(x, again, sizeof x);
        int64_t number = ll_sample_index(d, &how, p);
        assert_int_equal(y, label_value(number));
        int found = 0;
        for (int m = 0; m < 2; m++)
            for (int dy = -PAD; dy <= PAD; dy++)
                for (int dx = -PAD; dx <= PAD; dx++) {
                    bool same = true;
                    for (int i = 0; i < H * W && same; i++) {
                        int fy = i / W + dy, fx = (m ? W - 1 - i % W : i % W) + dx;
                        bool in = fy >= 0 && fy < H && fx >= 0 && fx < W;
                        double v = in ? pixel_value(number, fy, fx) : 0;
                        same = fabs(x[i] - (v / 255 - 0.5) / 0.5) < 1e-5;
                    }
                    found += same;
                    seen[m][dy + PAD][dx + PAD] += same;
                }
        assert_int_equal(found, 1);
    }
    for (int i = 0; i < 2 * 25; i++) assert_in_range((&seen[0][0][0])[i], 30, 100);
    /* Validation is never touched. */
    float x[H * W];
    int32_t y;
    how.split = LL_VAL;
    ok(ll_dataset_read(d, &how, 4, 1, (void *[]){x, &y}));
    for (int i = 0; i < H * W; i++)
        assert_float_equal(x[i], (pixel_value(4, i / W, i % W) / 255.0 - 0.5) / 0.5, 1e-6);
    how.crop = -1;
    fails(ll_dataset_read(d, &how, 4, 1, (void *[]){x, &y}), "crop is -1");
    ll_dataset_close(d);
}

/* Pairs: what is read is a blend, or a rectangle, of two samples and says of which, by how much;
 * validation is never touched. */
static void mixed(void **state)
{
    enum { H = 6, W = 8, N = 400 };
    ll_dataset *plain = images(state, 29, H, W), *d;
    for (int kind = 1; kind < 4; kind++) {
        ll_data_opts o = from(state, "idx");
        o.mixup = kind & 1 ? 0.4 : 0, o.cutmix = kind & 2 ? 1 : 0;
        ok(ll_dataset_open(&o, &d));
        assert_int_equal(ll_dataset_info(d)->n_field, 4);
        double sum = 0;
        int cut = 0;
        for (int64_t p = 0; p < N; p++) {
            ll_sampling how = {.seed = 3};
            float x[H * W], a[H * W], b[H * W], mix, again[H * W];
            int32_t y, y2, ya, yb;
            ok(ll_dataset_read(d, &how, p, 1, (void *[]){x, &y, &y2, &mix}));
            ok(ll_dataset_read(d, &how, p, 1, (void *[]){again, NULL, NULL, NULL}));
            assert_memory_equal(x, again, sizeof x);
            ok(ll_dataset_read(plain, &how, p, 1, (void *[]){a, &ya}));
            ok(ll_dataset_read(plain, &how, p + 29, 1, (void *[]){b, &yb}));
            assert_true(y == ya && y2 == yb && mix >= 0 && mix <= 1);
            int of_a = 0, blended = 0;
            for (int i = 0; i < H * W; i++) {
                of_a += x[i] == a[i];
                blended += fabs(x[i] - (mix * a[i] + (1 - mix) * b[i])) < 1e-5;
                assert_true(kind != 2 || x[i] == a[i] || x[i] == b[i]);
            }
            bool part = blended < H * W;
            cut += part;
            assert_true(kind == 1 ? !part : !part || of_a + 0.5 >= mix * H * W);
            sum += mix;
        }
        assert_true(kind == 1   ? cut == 0
                    : kind == 2 ? cut > N / 2
                                : cut > N / 4 && cut < 3 * N / 4);
        sum /= N; /* rectangles are cut at edges */
        if (!(sum > 0.44 && sum < (kind == 1 ? 0.56 : 0.8)))
            fail_msg("kind %d: a share of %g on average", kind, sum);
        float v[H * W], w[H * W], mix;
        int32_t y, y2;
        ll_sampling how = {.split = LL_VAL, .seed = 3};
        ok(ll_dataset_read(d, &how, 5, 1, (void *[]){v, &y, &y2, &mix}));
        ok(ll_dataset_read(plain, &how, 5, 1, (void *[]){w, &y2}));
        assert_memory_equal(v, w, sizeof v);
        assert_true(y == y2 && mix == 1);
        ll_dataset_close(d);
    }
    ll_dataset_close(plain);
    ll_data_opts o = from(state, "text");
    o.mixup = 0.2, o.seq = 1;
    put_file(tmpdir_path(state, "text"), "one text that is long enough to have windows of it", 50);
    o.path = tmpdir_path(state, "text");
    fails(ll_dataset_open(&o, &d), "mixup and cutmix need images");
}

/* ---- the cache ---- */
static uint8_t noise[4 + 12 + 1300 * 32 * 32];

static uint8_t first_pixel(void *const *state)
{
    ll_dataset *d;
    uint8_t pixels[32 * 32];
    int32_t label;
    ok(ll_dataset_open(&(ll_data_opts){.path = *state, .format = "idx"}, &d));
    ok(ll_dataset_image(d, LL_TRAIN, 0, pixels, &label));
    ll_dataset_close(d);
    return pixels[0];
}

static void cache(void **state)
{
    char folder[512], file[1024], command[2048];
    const char *gz = tmpdir_path(state, "train-images-idx3-ubyte.gz");
    setenv("XDG_CACHE_HOME", tmpdir_path(state, "deep/cache"), 1);
    snprintf(folder, sizeof folder, "%s/deep/cache/loopline", (char *)*state);
    put_idx(state, "train", true, 1300, 1, 1); /* for the labels */
    make_idx(noise, 1300, 32, 32);
    for (size_t i = 16; i < sizeof noise; i += 16)
        ll_philox(1, 2, i, (uint32_t *)(void *)(noise + i)); /* will not compress */
    put_gz(gz, noise, sizeof noise);
    uint8_t right = noise[16], wrong = (uint8_t)(right ^ 0xff);
    assert_int_equal(first_pixel(state), right);
    assert_int_equal(tmpdir_count(folder), 1); /* the images; the labels are not worth it */
    snprintf(command, sizeof command, "ls -d %s/*", folder);
    FILE *ls = popen(command, "r");
    assert_non_null(fgets(file, sizeof file, ls));
    file[strcspn(file, "\n")] = '\0';
    pclose(ls);
    int fd = open(file, O_RDWR); /* a byte that is not what was written: no cache */
    assert_int_equal(pwrite(fd, &wrong, 1, 64 + 16), 1);
    close(fd);
    assert_int_equal(first_pixel(state), right);
    fd = open(file, O_RDWR); /* with its checksum it shows: the cache is what is read */
    noise[16] = wrong;
    uint32_t crc = ll_crc32c(0, noise, sizeof noise);
    noise[16] = right;
    assert_int_equal(pwrite(fd, &wrong, 1, 64 + 16), 1);
    assert_int_equal(pwrite(fd, &crc, sizeof crc, 48), sizeof crc);
    close(fd);
    assert_int_equal(first_pixel(state), wrong);
    /* The source was touched: inflated again, the cache replaced. */
    const struct timespec touched[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, gz, touched, 0), 0);
    assert_int_equal(first_pixel(state), right);
    assert_int_equal(tmpdir_count(folder), 1);
    assert_int_equal(first_pixel(state), right);
    /* A cache cut short or empty is no cache. */
    assert_int_equal(truncate(file, 1000), 0);
    assert_int_equal(first_pixel(state), right);
    assert_int_equal(truncate(file, 0), 0);
    assert_int_equal(first_pixel(state), right);
    /* Nowhere to write. */
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    assert_int_equal(first_pixel(state), right);
    unsetenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    unsetenv("HOME");
    assert_int_equal(first_pixel(state), right);
    if (home) setenv("HOME", home, 1);
}

/* ---- the sets of Debian packages ---- */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fashion_mnist(void **state)
{
    if (access("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz", R_OK) != 0) {
        print_message("skipped: the Debian package dataset-fashion-mnist is not installed\n");
        skip();
    }
    ll_dataset *d;
    setenv("XDG_CACHE_HOME", *state, 1);
    for (int run = 0; run < 2; run++) { /* inflated, then from the cache */
        double t = now();
        ok(ll_dataset_open(&(ll_data_opts){.name = "fashion-mnist"}, &d));
        print_message("opened in %.4f s\n", now() - t);
        const ll_data_info *f = ll_dataset_info(d);
        assert_int_equal(f->n[LL_TRAIN], 60000);
        assert_int_equal(f->n[LL_VAL], 10000);
        assert_string_equal(f->class_names[9], "boot");
        /* 6000 of each class; over all of training, mean 0 and deviation 1 */
        int counts[10] = {0};
        double sum = 0, squares = 0;
        static float x[1000 * 784];
        int32_t y[1000];
        for (int64_t p = 0; p < 60000; p += 1000) {
            ok(ll_dataset_read(d, &(ll_sampling){.seed = 1}, p, 1000, (void *[]){x, y}));
            for (int i = 0; i < 1000; i++) counts[y[i]]++;
            for (int i = 0; i < 784000; i++) sum += x[i], squares += (double)x[i] * x[i];
        }
        for (int c = 0; c < 10; c++) assert_int_equal(counts[c], 6000);
        double mean = sum / 47040000, deviation = sqrt(squares / 47040000 - mean * mean);
        assert_true(fabs(mean) < 1e-3 && fabs(deviation - 1) < 1e-3);
        ll_dataset_close(d);
    }
    unsetenv("XDG_CACHE_HOME");
}

static void kjv(void **state)
{
    (void)state;
    if (access("/usr/lib/bible.data", R_OK) != 0) {
        print_message("skipped: the Debian package bible-kjv-text is not installed\n");
        skip();
    }
    ll_dataset *d;
    ok(ll_dataset_open(&(ll_data_opts){.name = "kjv"}, &d));
    const ll_data_info *f = ll_dataset_info(d);
    assert_int_equal(f->tokens[LL_TRAIN] + f->tokens[LL_VAL], 4404412);
    char *text = calloc(1, 4404413);
    int64_t n = 0, verses = 0;
    for (int s = 0; s < 2; s++)
        for (int64_t i = 0; i < f->tokens[s]; i++) {
            int32_t t;
            ok(ll_dataset_tokens(d, s, i, 1, &t));
            assert_true(t == '\n' || (t >= ' ' && t < 127));
            verses += t == '\n';
            text[n++] = (char)t;
        }
    assert_int_equal(verses, 31102);
    assert_memory_equal(text, "Ge1:1 In the beginning God created the heaven and the earth.\n", 61);
    assert_non_null(strstr(text, "\nJohn11:35 Jesus wept.\n"));
    assert_string_equal(text + n - 41, "Lord Jesus Christ be with you all. Amen.\n");
    free(text);
    ll_dataset_close(d);
}

/* The packed text, cut at any length or with a byte changed, is refused or unpacks to something. */
static void bible_errors(void **state)
{
    (void)state;
    uint8_t *out, b[600] = "EC02";
    size_t size;
    fails(ll_bible_parse(b, 50, "b", &out, &size), "does not begin with EC02");
    put_be32(b + 84, 65536);
    fails(ll_bible_parse(b, sizeof b, "b", &out, &size), "0 windows (offset 88)");
    put_be32(b + 88, 1000000);
    fails(ll_bible_parse(b, sizeof b, "b", &out, &size), "1000000 windows");
    put_be32(b + 88, 1);
    fails(ll_bible_parse(b, sizeof b, "b", &out, &size), "window 0 has bad offsets, 0 to 0 of 600");
    put_be32(b + 92, 100);
    put_be32(b + 96, 601);
    fails(ll_bible_parse(b, sizeof b, "b", &out, &size), "100 to 601 of 600");
    /* codes of 9 bits, lowest first: '\n' 'a' 257 (= "\na") 259 (= "\na\n", not yet known) */
    const uint32_t codes[] = {'\n', 'a', 257, 259, 256};
    for (int i = 0; i < 5 * 9; i++) b[100 + i / 8] |= (codes[i / 9] >> i % 9 & 1) << i % 8;
    put_be32(b + 96, 106);
    ok(ll_bible_parse(b, sizeof b, "b", &out, &size));
    assert_int_equal(size, 6);
    assert_memory_equal(out, "a\na\na\n", 6);
    free(out);
    b[100 + 4] |= 1; /* 259 becomes 259 + 32: beyond the table */
    fails(ll_bible_parse(b, sizeof b, "b", &out, &size), "bad code 291");
    assert_null(out);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
        T(shuffle),
        T(windows),
        T(loader_is_direct_read),
        T(validation_in_order),
        T(thread_errors),
        T(close_any_time),
        T(augmentation),
        T(mixed),
        T(cache),
        T(fashion_mnist),
        T(kjv),
        T(bible_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
