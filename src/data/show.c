/* show.c: samples on a terminal. A character cell holds two pixels, one above the other: the upper
 * half block in the upper pixel's colour on a ground of the lower's. */
#include "data/data_int.h"

#include <ctype.h>
#include <strings.h>
#include <unistd.h>

ll_show ll_show_style(FILE *f)
{
    const char *term = getenv("TERM"), *colour = getenv("COLORTERM"), *none = getenv("NO_COLOR");
    const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    const char *locale = ""; /* the first that is set wins, as in setlocale */
    for (int i = 2; i >= 0; i--) {
        const char *v = getenv(names[i]);
        if (v && *v) locale = v;
    }
    if (!isatty(fileno(f)) || !term || strcmp(term, "dumb") == 0 || (none && *none))
        return LL_SHOW_ASCII;
    const char *dot = strrchr(locale, '.'); /* as in en_US.UTF-8 and C.utf8 */
    if (!dot || (strncasecmp(dot, ".utf-8", 6) != 0 && strncasecmp(dot, ".utf8", 5) != 0))
        return LL_SHOW_ASCII;
    bool rgb = colour && (strcmp(colour, "truecolor") == 0 || strcmp(colour, "24bit") == 0);
    return rgb ? LL_SHOW_RGB : LL_SHOW_256;
}

typedef struct colour {
    int r, g, b;
} colour;

/* Pixel (y, x); black outside. One or two channels are grey, a fourth is ignored. */
static colour pixel(const ll_data_info *f, const uint8_t *image, int64_t y, int64_t x)
{
    if (y >= f->height) return (colour){0, 0, 0};
    const uint8_t *p = image + (y * f->width + x) * f->channels;
    if (f->channels < 3) return (colour){p[0], p[0], p[0]};
    return (colour){p[0], p[1], p[2]};
}

static int light(colour c)
{
    return (299 * c.r + 587 * c.g + 114 * c.b) / 1000;
}

/* The nearest of xterm's 24 greys or of its 6 x 6 x 6 cube. */
static int palette(colour c)
{
    if (c.r == c.g && c.g == c.b) return c.r < 4 ? 16 : c.r > 246 ? 231 : 232 + (c.r - 3) / 10;
    return 16 + 36 * ((c.r * 5 + 127) / 255) + 6 * ((c.g * 5 + 127) / 255) + (c.b * 5 + 127) / 255;
}

static void put_cell(FILE *f, ll_show how, colour up, colour down)
{
    static const char ramp[] = " .:-=+*#%@";
    if (how == LL_SHOW_ASCII)
        fputc(ramp[(light(up) + light(down)) * 9 / 510], f);
    else if (how == LL_SHOW_256)
        fprintf(f, "\x1b[38;5;%d;48;5;%dm\xe2\x96\x80", palette(up), palette(down));
    else
        fprintf(f, "\x1b[38;2;%d;%d;%d;48;2;%d;%d;%dm\xe2\x96\x80", up.r, up.g, up.b, down.r,
                down.g, down.b);
}

static void put_rows(const ll_data_info *f, const uint8_t *images, int n, ll_show how, FILE *out)
{
    const int64_t bytes = f->height * f->width * f->channels;
    for (int64_t y = 0; y < f->height; y += 2) {
        for (int i = 0; i < n; i++) {
            for (int64_t x = 0; x < f->width; x++)
                put_cell(out, how, pixel(f, images + i * bytes, y, x),
                         pixel(f, images + i * bytes, y + 1, x));
            fputs(how == LL_SHOW_ASCII ? "  " : "\x1b[0m  ", out);
        }
        fputc('\n', out);
    }
}

ll_err ll_show_images(const ll_dataset *d, ll_split split, const int64_t *index, int n, ll_show how,
                      FILE *out)
{
    const ll_data_info *f = &d->info;
    const size_t bytes = (size_t)(f->height * f->width * f->channels);
    CHECK(f->kind == LL_IMAGES, LL_E_ARG, "dataset %s has tokens, not images", f->name);
    LL_OWN(ll_arena) arena = ll_arena_new();
    uint8_t *images = ll_arena_alloc(arena, (size_t)n * bytes);
    int32_t *labels = LL_NEW_ARRAY(arena, int32_t, n);
    for (int i = 0; i < n; i++)
        TRY(ll_dataset_image(d, split, index[i], images + (size_t)i * bytes, &labels[i]));
    put_rows(f, images, n, how, out);
    for (int i = 0; i < n; i++) {
        const char *name = f->class_names ? f->class_names[labels[i]]
                                          : ll_arena_printf(arena, "class %d", labels[i]);
        fprintf(out, "%-*.*s  ", (int)f->width, (int)f->width, name);
    }
    fputc('\n', out);
    return LL_OK;
}

ll_err ll_show_tokens(const ll_dataset *d, ll_split split, int64_t from, int64_t count, FILE *out)
{
    for (int64_t i = 0; i < count; i++) {
        int32_t t;
        TRY(ll_dataset_tokens(d, split, from + i, 1, &t));
        if (!d->info.is_text)
            fprintf(out, "%s%d", i > 0 ? " " : "", t);
        else if (t == '\n' || (t < 128 && isprint(t)))
            fputc(t, out);
        else
            fprintf(out, "\\x%02x", (unsigned)t);
    }
    fputc('\n', out);
    return LL_OK;
}
