/* picture.h: pictures as bytes [h,w,c], brought to the size that a model takes.
 *
 * A window is chosen (at random while training, in the middle otherwise), brought to size by a
 * triangle filter as wide as the reduction, its channels converted, its colours changed. All of it
 * is a function of (seed, position) and of the picture's own size. */
#pragma once
#include "data/data_int.h"

typedef struct ll_crop {
    double y, x, height, width; /* in pixels; it may lie anywhere within the picture */
} ll_crop;

typedef struct ll_picture {
    uint8_t *pixels; /* malloc'ed, or NULL */
    int64_t height, width;
    int channels;   /* 1 grey, 2 and alpha, 3 colours, 4 and alpha */
    ll_crop window; /* that was asked for, in these pixels */
} ll_picture;
static inline void ll_picture_drop(ll_picture *p)
{
    free(p->pixels);
}
#define LL_OWN_PICTURE __attribute__((cleanup(ll_picture_drop))) ll_picture

/* What is wanted of a picture. */
typedef struct ll_picture_view {
    const ll_sampling *how;
    int64_t position;
    int64_t height, width; /* of the result */
    int channels;
    double centre; /* the part of the largest window of these proportions that is seen */
    bool map;      /* numbers of classes: palettes and few bits are left as they are */
} ll_picture_view;

ll_crop ll_picture_view_crop(const ll_picture_view *v, int64_t height, int64_t width);
/* The window as bytes [v->height, v->width, v->channels]. */
ll_err ll_picture_view_fit(const ll_picture_view *v, const ll_picture *p, const char *file,
                           uint8_t *out);
/* Of a map, one channel: the nearest pixels. */
void ll_picture_view_map(const ll_picture_view *v, const ll_picture *p, uint8_t *out);

/* decode.c: a JPEG or PNG as bytes; of a JPEG no more pixels than the window, and no finer than the
 * result needs. Any bytes may be given. */
ll_err ll_picture_parse(const uint8_t *bytes, size_t size, const char *file,
                        const ll_picture_view *v, ll_picture *out);
bool ll_picture_named(const char *name); /* does it end as a picture's file does? */
