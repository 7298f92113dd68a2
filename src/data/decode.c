/* decode.c: JPEG by libjpeg(-turbo), PNG by libpng, each where it was found when this was built.
 * Both libraries leave by a long jump: what must be let go is kept where the jump ends. */
#include "data/picture.h"

#include <setjmp.h>
#include <strings.h>

#define MAX_PIXELS ((int64_t)1 << 27) /* more are a bomb, or not for training */

/* Nobody asks where neither library is. */
[[maybe_unused]] static ll_err sizes_fit(const char *file, int64_t height, int64_t width)
{
    CHECK(height > 0 && width > 0 && height <= MAX_PIXELS / width, LL_E_IO,
          "%s: a picture of %ld x %ld pixels, expected at most %ld in all", file, height, width,
          MAX_PIXELS);
    return LL_OK;
}

bool ll_picture_named(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot &&
           (!strcasecmp(dot, ".jpg") || !strcasecmp(dot, ".jpeg") || !strcasecmp(dot, ".png"));
}

#ifdef LL_libjpeg
#include <jpeglib.h>
#include <jerror.h>

typedef struct jpeg {
    struct jpeg_decompress_struct z;
    struct jpeg_error_mgr err;
    jmp_buf back;
    const char *file;
    uint8_t *row;
} jpeg;

static void jpeg_failed(j_common_ptr z)
{
    jpeg *j = (jpeg *)z->client_data;
    char text[JMSG_LENGTH_MAX];
    z->err->format_message(z, text);
    (void)RAISE(LL_E_IO, "%s: this JPEG cannot be read: %s", j->file, text);
    longjmp(j->back, 1);
}

/* Warnings are let pass, but for data that ends early, in whose place there would be grey. */
static void jpeg_message(j_common_ptr z, int level)
{
    if (level < 0 && z->err->msg_code == JWRN_JPEG_EOF) jpeg_failed(z);
}

/* Pixels of the window and a margin for the filter, at the coarsest scale that is not below the
 * result's. */
static ll_err jpeg_rows(jpeg *j, const ll_picture_view *v, ll_picture *out)
{
    struct jpeg_decompress_struct *z = &j->z;
    const int64_t margin = 4;
    TRY(sizes_fit(j->file, z->image_height, z->image_width));
    ll_crop w = ll_picture_view_crop(v, z->image_height, z->image_width);
    bool cmyk = z->num_components == 4;
    z->out_color_space = cmyk ? JCS_CMYK : v->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    z->scale_denom = 8;
    for (z->scale_num = 1; z->scale_num < 8; z->scale_num *= 2)
        if (w.height * z->scale_num >= 8 * (double)v->height &&
            w.width * z->scale_num >= 8 * (double)v->width)
            break;
    jpeg_start_decompress(z);
    double sy = (double)z->output_height / z->image_height;
    double sx = (double)z->output_width / z->image_width;
    out->window = (ll_crop){w.y * sy, w.x * sx, w.height * sy, w.width * sx};
    int64_t reach = margin + (int64_t)(out->window.width / (double)v->width);
    int64_t left = (int64_t)out->window.x - reach,
            right = (int64_t)(out->window.x + out->window.width) + reach;
    reach = margin + (int64_t)(out->window.height / (double)v->height);
    int64_t top = (int64_t)out->window.y - reach,
            bottom = (int64_t)(out->window.y + out->window.height) + reach;
    left = left < 0 ? 0 : left, top = top < 0 ? 0 : top;
    right = right > z->output_width ? z->output_width : right;
    bottom = bottom > z->output_height ? z->output_height : bottom;
    JDIMENSION from = (JDIMENSION)left, count = (JDIMENSION)(right - left);
    jpeg_crop_scanline(z, &from, &count);
    out->height = bottom - top, out->width = count;
    out->channels = z->output_components == 1 ? 1 : 3;
    out->window.x -= from, out->window.y -= (double)top;
    size_t stride = (size_t)count * (size_t)out->channels;
    out->pixels = malloc((size_t)out->height * stride);
    if (cmyk) j->row = malloc((size_t)count * 4);
    CHECK(out->pixels && (j->row || !cmyk), LL_E_MEM, "%s: not enough memory for its pixels",
          j->file);
    if (top > 0) jpeg_skip_scanlines(z, (JDIMENSION)top);
    for (int64_t y = 0; y < out->height; y++) {
        JSAMPROW row = cmyk ? j->row : out->pixels + (size_t)y * stride;
        while (jpeg_read_scanlines(z, &row, 1) == 0) {
        }
        for (size_t i = 0; cmyk && i < stride; i++) { /* ink, which Adobe writes inverted */
            uint8_t ink = row[i / 3 * 4 + i % 3], black = row[i / 3 * 4 + 3];
            if (!z->saw_Adobe_marker) ink = (uint8_t)~ink, black = (uint8_t)~black;
            out->pixels[(size_t)y * stride + i] = (uint8_t)(ink * black / 255);
        }
    }
    return LL_OK;
}

static ll_err jpeg_parse(const uint8_t *b, size_t size, const char *file, const ll_picture_view *v,
                         ll_picture *out)
{
    jpeg j = {.file = file};
    volatile ll_err rc = LL_E_IO;
    j.z.err = jpeg_std_error(&j.err);
    j.z.client_data = &j;
    j.err.error_exit = jpeg_failed;
    j.err.emit_message = jpeg_message;
    if (setjmp(j.back) == 0) {
        jpeg_create_decompress(&j.z);
        jpeg_mem_src(&j.z, b, size);
        jpeg_read_header(&j.z, TRUE);
        rc = jpeg_rows(&j, v, out);
    } else
        rc = LL_E_IO;
    jpeg_destroy_decompress(&j.z);
    free(j.row);
    return rc;
}
#else
static ll_err jpeg_parse(const uint8_t *, size_t, const char *file, const ll_picture_view *,
                         ll_picture *)
{
    FAIL(LL_E_IO, "%s: this program was built without libjpeg: install libjpeg-dev and build again",
         file);
}
#endif

#ifdef LL_libpng
#include <png.h>

typedef struct png {
    png_structp p;
    png_infop info;
    const uint8_t *at;
    size_t left;
    const char *file;
    uint8_t **rows;
} png;

static void png_failed(png_structp p, png_const_charp text)
{
    const png *s = (const png *)png_get_error_ptr(p);
    (void)RAISE(LL_E_IO, "%s: this PNG cannot be read: %s", s->file, text);
    png_longjmp(p, 1);
}

static void png_message(png_structp, png_const_charp)
{
}

static void png_give(png_structp p, png_bytep out, size_t n)
{
    png *s = (png *)png_get_io_ptr(p);
    if (n > s->left) png_error(p, "the file is cut short");
    memcpy(out, s->at, n);
    s->at += n;
    s->left -= n;
}

static ll_err png_rows(png *s, const ll_picture_view *v, ll_picture *out)
{
    png_read_info(s->p, s->info);
    out->height = png_get_image_height(s->p, s->info);
    out->width = png_get_image_width(s->p, s->info);
    TRY(sizes_fit(s->file, out->height, out->width));
    out->window = ll_picture_view_crop(v, out->height, out->width);
    if (v->map)
        png_set_packing(s->p); /* few bits a pixel as they are, one byte each */
    else
        png_set_expand(s->p);
    png_set_scale_16(s->p);
    png_set_interlace_handling(s->p);
    png_read_update_info(s->p, s->info);
    out->channels = png_get_channels(s->p, s->info);
    size_t stride = png_get_rowbytes(s->p, s->info);
    CHECK(stride == (size_t)(out->width * out->channels), LL_E_IO, "%s: pixels of %zu bytes a row",
          s->file, stride);
    out->pixels = malloc((size_t)out->height * stride);
    s->rows = malloc((size_t)out->height * sizeof *s->rows);
    CHECK(out->pixels && s->rows, LL_E_MEM, "%s: not enough memory for its pixels", s->file);
    for (int64_t y = 0; y < out->height; y++) s->rows[y] = out->pixels + (size_t)y * stride;
    png_read_image(s->p, s->rows);
    return LL_OK;
}

static ll_err png_parse(const uint8_t *b, size_t size, const char *file, const ll_picture_view *v,
                        ll_picture *out)
{
    png s = {.at = b, .left = size, .file = file};
    volatile ll_err rc = LL_E_MEM;
    s.p = png_create_read_struct(PNG_LIBPNG_VER_STRING, &s, png_failed, png_message);
    if (s.p) s.info = png_create_info_struct(s.p);
    CHECK(s.p && s.info, LL_E_MEM, "%s: not enough memory to read it", file);
    if (setjmp(png_jmpbuf(s.p)) == 0) {
        png_set_read_fn(s.p, &s, png_give);
        rc = png_rows(&s, v, out);
    } else
        rc = LL_E_IO;
    png_destroy_read_struct(&s.p, &s.info, NULL);
    free(s.rows);
    return rc;
}
#else
static ll_err png_parse(const uint8_t *, size_t, const char *file, const ll_picture_view *,
                        ll_picture *)
{
    FAIL(LL_E_IO, "%s: this program was built without libpng: install libpng-dev and build again",
         file);
}
#endif

ll_err ll_picture_parse(const uint8_t *b, size_t size, const char *file, const ll_picture_view *v,
                        ll_picture *out)
{
    *out = (ll_picture){0};
    bool is_jpeg = size >= 3 && !memcmp(b, "\xff\xd8\xff", 3);
    bool is_png = size >= 8 && !memcmp(b, "\x89PNG\r\n\x1a\n", 8);
    CHECK(is_jpeg || is_png, LL_E_IO, "%s is neither a JPEG nor a PNG, by its first bytes", file);
    CHECK(!is_jpeg || !v->map, LL_E_IO,
          "%s: a map of classes must not be a JPEG, which blurs: save it as PNG", file);
    ll_err rc = is_jpeg ? jpeg_parse(b, size, file, v, out) : png_parse(b, size, file, v, out);
    if (rc == LL_OK) return rc;
    ll_picture_drop(out);
    *out = (ll_picture){0};
    return rc;
}
