/* Pictures: decoders, windows and sizes, folders and CSVs, the same samples on any threads and
 * ranks, and what is broken. Needs both libraries: without them it tests that the errors say so. */
#include "files.h"

#include "data/picture.h"

#include <math.h>
#include <sys/stat.h>

#if __has_include(<jpeglib.h>) && __has_include(<png.h>)
#include <jpeglib.h>
#include <png.h>

/* Bytes [h,w,c] that change slowly, as JPEG likes it: of pixel (y, x) of picture k. */
static uint8_t shade(int k, int y, int x, int c)
{
    return (uint8_t)(20 + 12 * (k % 5) + 20 * c + (y + x) / 3);
}

static size_t make_jpeg(uint8_t *out, int k, int height, int width, int channels, int quality)
{
    struct jpeg_compress_struct z;
    struct jpeg_error_mgr err;
    unsigned long size = 1 << 20;
    unsigned char *to = out;
    z.err = jpeg_std_error(&err);
    jpeg_create_compress(&z);
    jpeg_mem_dest(&z, &to, &size);
    z.image_height = (JDIMENSION)height, z.image_width = (JDIMENSION)width;
    z.input_components = channels;
    z.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&z);
    jpeg_set_quality(&z, quality, TRUE);
    jpeg_start_compress(&z, TRUE);
    uint8_t row[4096 * 4];
    for (int y = 0; y < height; y++) {
        for (int i = 0; i < width * channels; i++)
            row[i] =
                channels == 4 ? (i % 4 == 3 ? 255 : 100) : shade(k, y, i / channels, i % channels);
        JSAMPROW p = row;
        jpeg_write_scanlines(&z, &p, 1);
    }
    jpeg_finish_compress(&z);
    jpeg_destroy_compress(&z);
    assert_true(to == out);
    return size;
}

static size_t make_png(uint8_t *out, const uint8_t *pixels, int height, int width, uint32_t format)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .height = (png_uint_32)height,
                       .width = (png_uint_32)width,
                       .format = format};
    png_alloc_size_t size = 1 << 20;
    assert_true(png_image_write_to_memory(&image, out, &size, 0, pixels, 0, NULL));
    return size;
}

static uint8_t file[1 << 20];

static void put_jpeg(const char *path, int k, int height, int width)
{
    put_file(path, file, make_jpeg(file, k, height, width, 3, 95));
}

static ll_picture_view view(const ll_sampling *how, int64_t position, int64_t height, int64_t width,
                            int channels)
{
    return (ll_picture_view){how, position, height, width, channels, 1, false};
}

/* What is decoded of a part, at a coarser scale, is what the whole picture has there. */
static void jpeg_windows(void **state)
{
    (void)state;
    size_t n = make_jpeg(file, 1, 150, 200, 3, 95);
    static uint8_t out[64 * 64 * 3], whole[200 * 150 * 3];
    ll_sampling plain = {.split = LL_VAL};
    ll_picture_view all = view(&plain, 0, 150, 200, 3);
    LL_OWN_PICTURE full = {0};
    ok(ll_picture_parse(file, n, "f", &all, &full));
    assert_int_equal(full.height * 1000 + full.width, 150200);
    ok(ll_picture_view_fit(&all, &full, "f", whole));
    assert_memory_equal(whole, full.pixels, sizeof whole); /* no size to change: no byte changes */
    int smaller = 0;
    for (int64_t p = 0; p < 40; p++) {
        ll_sampling how = {.seed = 5, .scale = {0.05, 0.9}};
        int64_t h = 10 + p, w = 8 + p % 13;
        ll_picture_view v = view(&how, p, h, w, 3);
        ll_crop c = ll_picture_view_crop(&v, 150, 200);
        assert_true(c.y >= 0 && c.x >= 0 && c.y + c.height <= 150 && c.x + c.width <= 200);
        assert_true(c.height * c.width >= 0.049 * 30000 && c.height * c.width <= 0.91 * 30000);
        LL_OWN_PICTURE part = {0};
        ok(ll_picture_parse(file, n, "f", &v, &part));
        smaller += part.height * part.width < 150 * 200 / 4;
        ok(ll_picture_view_fit(&v, &part, "f", out));
        for (int64_t y = 0; y < h; y++)
            for (int64_t x = 0; x < w; x++) {
                double fy = c.y + ((double)y + 0.5) * c.height / (double)h;
                double fx = c.x + ((double)x + 0.5) * c.width / (double)w;
                for (int k = 0; k < 3; k++) {
                    double want = 20 + 12 + 20 * k + (fy + fx - 1) / 3;
                    assert_float_equal(out[(y * w + x) * 3 + k], want, 7);
                }
            }
    }
    assert_true(smaller > 10);
}

static void channels(void **state)
{
    (void)state;
    ll_sampling plain = {.split = LL_VAL};
    uint8_t out[8 * 8 * 4], rgba[64 * 4];
    const int wants[] = {1, 3, 4};
    for (int i = 0; i < 64; i++) memcpy(rgba + 4 * i, (uint8_t[]){200, 100, 50, 128}, 4);
    for (int i = 0; i < 3; i++) {
        ll_picture_view v = view(&plain, 0, 8, 8, wants[i]);
        LL_OWN_PICTURE p = {0};
        ok(ll_picture_parse(file, make_png(file, rgba, 8, 8, PNG_FORMAT_RGBA), "f", &v, &p));
        ok(ll_picture_view_fit(&v, &p, "f", out));
        const uint8_t grey[1] = {124}, all[4] = {200, 100, 50, 128};
        assert_memory_equal(out, i == 0 ? grey : all, (size_t)wants[i]);
        assert_memory_equal(out + 63 * wants[i], i == 0 ? grey : all, (size_t)wants[i]);
        LL_OWN_PICTURE g = {0};
        ok(ll_picture_parse(file, make_jpeg(file, 0, 8, 8, 1, 100), "f", &v, &g));
        ok(ll_picture_view_fit(&v, &g, "f", out));
        for (int c = 0; c < wants[i]; c++)
            assert_in_range(out[c], c == 3 ? 255 : 18, c == 3 ? 255 : 22);
        LL_OWN_PICTURE ink = {0}; /* written as Adobe does: 255 is none */
        ok(ll_picture_parse(file, make_jpeg(file, 0, 8, 8, 4, 100), "f", &v, &ink));
        ok(ll_picture_view_fit(&v, &ink, "f", out));
        for (int c = 0; c < wants[i]; c++)
            assert_in_range(out[c], c == 3 ? 255 : 97, c == 3 ? 255 : 103);
    }
}

/* train/b and train/a, val/a: classes in the order of names. */
static void make_folder(void *const *state, int n)
{
    char path[512];
    mkdir(tmpdir_path(state, "train"), 0777), mkdir(tmpdir_path(state, "val"), 0777);
    mkdir(tmpdir_path(state, "train/a"), 0777), mkdir(tmpdir_path(state, "train/b"), 0777);
    mkdir(tmpdir_path(state, "val/b"), 0777);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s/%02d.JPG", (char *)*state,
                 i % 3 == 0   ? "val/b"
                 : i % 3 == 1 ? "train/a"
                              : "train/b",
                 i);
        put_jpeg(path, i, 40 + i % 7, 50 + i % 5);
    }
}

static void folder(void **state)
{
    ll_dataset *d;
    ll_data_opts o = from(state, "images");
    fails(ll_dataset_open(&o, &d), "has no folders, expected one for each class");
    make_folder(state, 18);
    o.image_height = 12, o.image_width = 16;
    ok(ll_dataset_open(&o, &d));
    const ll_data_info *f = ll_dataset_info(d);
    assert_int_equal(f->kind, LL_IMAGES);
    assert_int_equal(f->n[LL_TRAIN] * 100 + f->n[LL_VAL], 1206);
    assert_int_equal(f->classes, 2);
    assert_string_equal(f->class_names[1], "b");
    assert_int_equal(f->n_file, 18);
    assert_string_equal(f->files[0].name, "a/01.JPG");
    assert_float_equal(f->mean[2], 0.406, 0);
    uint8_t pixels[12 * 16 * 3];
    int32_t label;
    for (int i = 0; i < 12; i++) {
        ok(ll_dataset_image(d, LL_TRAIN, i, pixels, &label));
        assert_int_equal(label, i >= 6);
        int k = i < 6 ? 1 + 3 * i : 2 + 3 * (i - 6);
        int height = 40 + k % 7, width = 50 + k % 5;
        assert_float_equal(pixels[0], 20 + 12 * (k % 5) + (width - height * 16 / 12) / 6, 4);
    }
    ok(ll_dataset_image(d, LL_VAL, 0, pixels, &label));
    assert_int_equal(label, 1);
    uint32_t digest = f->digest;
    ll_dataset_close(d);
    put_jpeg(tmpdir_path(state, "val/b/03.JPG"), 1, 30, 30);
    ok(ll_dataset_open(&o, &d));
    assert_int_not_equal(ll_dataset_info(d)->digest, digest);
    ll_dataset_close(d);
    mkdir(tmpdir_path(state, "val/c"), 0777);
    put_jpeg(tmpdir_path(state, "val/c/1.jpg"), 1, 30, 30);
    fails(ll_dataset_open(&o, &d), "class c is not among the training classes");
    mkdir(tmpdir_path(state, "train/c"), 0777);
    fails(ll_dataset_open(&o, &d), "train/c has no pictures");
}

/* One folder for all: a part of each class is held out, the same however often it is read. */
static void held_out(void **state)
{
    ll_dataset *d;
    make_folder(state, 30);
    ll_data_opts o = {.path = tmpdir_path(state, "train"),
                      .format = "images",
                      .val_fraction = 0.25,
                      .image_height = 8,
                      .image_width = 8};
    int32_t labels[2] = {0}, label;
    uint8_t pixels[8 * 8 * 3];
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->n[LL_VAL], 6);
    for (int i = 0; i < 6; i++) {
        ok(ll_dataset_image(d, LL_VAL, i, pixels, &label));
        labels[label]++;
    }
    assert_int_equal(labels[0], 3);
    ll_dataset_close(d);
    o.val_path = tmpdir_path(state, "val");
    fails(ll_dataset_open(&o, &d), "data.val_fraction=0.25 cannot be combined with data.val_path=");
    o.path = tmpdir_path(state, ""), o.val_path = NULL; /* has train/ and val/ */
    fails(ll_dataset_open(&o, &d), "/val, which has its own validation data: set it to 0");
    o.path = tmpdir_path(state, "train"), o.val_path = tmpdir_path(state, "val");
    o.val_fraction = 0;
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->n[LL_VAL], 10);
    assert_int_equal(ll_dataset_info(d)->n[LL_TRAIN], 20);
    ll_dataset_close(d);
}

/* A batch of 6 in all ways of cutting it, on 1, 2 and 5 threads: the same bytes. */
static void any_threads(void **state)
{
    ll_dataset *d;
    make_folder(state, 18);
    ll_data_opts o = from(state, "images");
    o.image_height = 9, o.image_width = 7;
    ok(ll_dataset_open(&o, &d));
    enum { N = 24, X = 9 * 7 * 3, BATCH = 6 };
    static float x[N * X];
    static int32_t y[N];
    ll_sampling how = {.seed = 9, .flip = true, .crop = 1, .scale = {0.2, 1}, .jitter = 0.3};
    ok(ll_dataset_read(d, &how, 0, N, (void *[]){x, y}));
    int different = 0; /* epochs see other windows of the same picture */
    for (int i = 0; i < 12; i++)
        different += memcmp(x + i * X, x + (i + 12) * X, sizeof(float) * X) != 0;
    assert_true(different == 12);
    const int threads[] = {1, 2, 5};
    for (int t = 0; t < 3; t++)
        for (int rank = 0; rank < 3; rank++)
            for (int micro = 0; micro < 2; micro++) {
                ll_loader *l;
                int64_t every = micro ? 3 : 6, count = every / 3, first = rank * count;
                ok(ll_loader_open(d,
                                  &(ll_loader_opts){.how = how,
                                                    .batch = BATCH,
                                                    .first = first,
                                                    .count = count,
                                                    .every = every,
                                                    .threads = threads[t]},
                                  &l));
                for (int64_t k = 0; k < N / BATCH; k++) {
                    ll_data_batch b;
                    ok(ll_loader_next(l, &b));
                    for (int64_t i = 0; i < BATCH / 3; i++) {
                        int64_t p = k * BATCH + i / count * every + first + i % count;
                        assert_memory_equal((const float *)b.data[0] + i * X, x + p * X,
                                            sizeof(float) * X);
                        assert_int_equal(((const int32_t *)b.data[1])[i], y[p]);
                    }
                }
                ll_loader_close(l);
            }
    ll_dataset_close(d);
    put_file(tmpdir_path(state, "train/a/07.JPG"), "\xff\xd8\xff nothing", 11);
    ok(ll_dataset_open(&o, &d));
    ll_loader *l;
    ll_data_batch b;
    ok(ll_loader_open(d, &(ll_loader_opts){.how = how, .batch = 12, .threads = 2}, &l));
    fails(ll_loader_next(l, &b), "train/a/07.JPG: this JPEG cannot be read");
    ll_loader_close(l);
    ll_dataset_close(d);
}

/* Pictures, maps of classes, labels by name, numbers and a split out of a CSV. */
static void csv(void **state)
{
    static const char text[] = "\xef\xbb\xbfimage,label,split,age,lung_mask\r\n"
                               "p0.jpg,\"dog, big\",train,1.5,m.png\r\n"
                               "p1.jpg,cat,val,2,m.png\r\n"
                               "\"p2.jpg\",cat,train,-3e1,m.png";
    ll_dataset *d;
    uint8_t map[20 * 20];
    for (int i = 0; i < 400; i++) map[i] = (uint8_t)(i % 20 < 10 ? 3 : 7);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d.jpg", i);
        put_jpeg(tmpdir_path(state, name), i, 20, 20);
    }
    put_file(tmpdir_path(state, "m.png"), file, make_png(file, map, 20, 20, PNG_FORMAT_GRAY));
    const char *path = tmpdir_path(state, "all.csv");
    put_file(path, text, sizeof text - 1);
    ll_data_opts o = {
        .path = path, .format = "csv", .image_height = 10, .image_width = 10, .image_channels = 1};
    ok(ll_dataset_open(&o, &d));
    const ll_data_info *f = ll_dataset_info(d);
    assert_int_equal(f->n_field * 100 + f->n[0] * 10 + f->n[1], 421);
    assert_string_equal(f->fields[3].name, "lung_mask");
    assert_string_equal(f->class_names[1], "dog, big");
    float x[100], age;
    int32_t y, m[100];
    ll_sampling how = {.seed = 1, .flip = true};
    int mirrored = 0;
    for (int64_t p = 0; p < 20; p++) {
        ok(ll_dataset_read(d, &how, p, 1, (void *[]){x, &y, &age, m}));
        assert_true(y ? age == 1.5f : age == -30);
        mirrored += x[0] > x[9];
        assert_int_equal(m[0], x[0] > x[9] ? 7 : 3); /* as the picture is */
        assert_int_equal(m[95], x[0] > x[9] ? 3 : 7);
    }
    assert_in_range(mirrored, 4, 16);
    ll_dataset_close(d);
    const ll_field want[] = {{"x", LL_F32, {3, {10, 10, 1}}}, {"seg", LL_F32, {3, {10, 10, 1}}}};
    o.want = want, o.n_want = 2, o.fields = "x=image,seg=lung_mask";
    ok(ll_dataset_open(&o, &d));
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 0, 1, (void *[]){NULL, x}));
    assert_float_equal(x[0], 3 / 255.0, 1e-7);
    ll_dataset_close(d);
    o.fields = "x=image,seg=label";
    fails(ll_dataset_open(&o, &d), "column label: 'dog, big' is not a number");
    o.fields = NULL, o.n_want = 0;
    static const char *const bad[][2] = {
        {"a,b\n1\n", "all.csv:2: 1 cells, but the first line has 2"},
        {"a,b\n\"1,2\n", "all.csv:2: a quoted cell is not closed"},
        {"a\n\"1\"x\n", "continues after its closing quote"},
        {"a\n", "has no rows"},
        {"a,b,a\n1,2,3\n", "two columns are named a"},
        {"a,split\n1,vall\n", "all.csv:2: split is 'vall'"},
        {"a,label\n\n\"p\n\",cat\nq, \n", "all.csv:5: column"},
        {"a,b\n1.png,1\n,2\n", "all.csv:3: column a is empty"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_file(path, bad[i][0], strlen(bad[i][0]));
        fails(ll_dataset_open(&o, &d), bad[i][1]);
    }
    put_file(path, "a,label\n1,0\n\n2,99\n3,1\n", 22);
    fails(ll_dataset_open(&o, &d), "image and channels apply only to images");
    o.image_height = o.image_width = o.image_channels = 0;
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->classes, 100);
    assert_non_null(strstr(ll_dataset_info(d)->last_class, "all.csv:4"));
    ll_dataset_close(d);
}

/* A set of another size and number of channels than the model's. */
static void known_sizes(void **state)
{
    ll_dataset *d;
    ll_data_opts o = from(state, "idx");
    put_idx(state, "train", false, 9, 4, 4);
    put_idx(state, "t10k", false, 9, 4, 4);
    o.image_height = 8, o.image_width = 8, o.image_channels = 3;
    o.n_mean = o.n_deviation = 1, o.mean[0] = 0, o.deviation[0] = 1 / 255.0;
    ok(ll_dataset_open(&o, &d));
    assert_int_equal(ll_dataset_info(d)->fields[0].shape.d[2], 3);
    float x[8 * 8 * 3];
    int32_t y;
    ok(ll_dataset_read(d, &(ll_sampling){.split = LL_VAL}, 5, 1, (void *[]){x, &y}));
    for (int c = 0; c < 3; c++) {
        assert_float_equal(x[c], pixel_value(5, 0, 0), 0.01); /* corners stay */
        assert_float_equal(x[63 * 3 + c], pixel_value(5, 3, 3), 0.01);
        assert_float_equal(x[9 * 3 + c], pixel_value(5, 0, 0) + 11 / 4.0 + 3 / 4.0, 0.51);
    }
    ll_dataset_close(d);
    o.image_channels = 2;
    fails(ll_dataset_open(&o, &d), "images with 2 channels");
    o.image_channels = 3, o.n_mean = 2;
    fails(ll_dataset_open(&o, &d), "2 numbers of mean");
}

static void broken(void **state)
{
    (void)state;
    ll_sampling plain = {.split = LL_VAL};
    ll_picture_view v = view(&plain, 0, 16, 16, 3);
    LL_OWN_PICTURE p = {0};
    uint8_t grey[32 * 32];
    memset(grey, 9, sizeof grey);
    fails(ll_picture_parse((const uint8_t *)"GIF89a..", 8, "f.jpg", &v, &p),
          "f.jpg is neither a JPEG nor a PNG");
    size_t n = make_jpeg(file, 0, 64, 64, 3, 90);
    for (size_t cut = 20; cut < n; cut += 61)
        assert_int_not_equal(ll_picture_parse(file, cut, "f", &v, &p), LL_OK);
    assert_null(p.pixels);
    v.map = true;
    fails(ll_picture_parse(file, n, "f", &v, &p), "save it as PNG");
    n = make_png(file, grey, 32, 32, PNG_FORMAT_GRAY);
    for (size_t cut = 9; cut < n - 12; cut += 7)
        fails(ll_picture_parse(file, cut, "f.png", &v, &p), "f.png: this PNG cannot be read");
    file[16] = 0x7f; /* 2 billion pixels wide */
    assert_int_not_equal(ll_picture_parse(file, n, "f", &v, &p), LL_OK);
}
#else
static void broken(void **state)
{
    (void)state;
    ll_picture p;
    fails(ll_picture_parse((const uint8_t *)"\xff\xd8\xff", 3, "f", &(ll_picture_view){0}, &p),
          "built without libjpeg");
}
#endif

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, tmpdir_setup, tmpdir_teardown)
    const struct CMUnitTest tests[] = {
#if __has_include(<jpeglib.h>) && __has_include(<png.h>)
        T(jpeg_windows),
        T(channels),
        T(folder),
        T(held_out),
        T(any_threads),
        T(csv),
        T(known_sizes),
#endif
        T(broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
