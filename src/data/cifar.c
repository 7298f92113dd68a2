/* cifar.c: CIFAR-10 in its binary form: data_batch_1.bin to data_batch_5.bin and test_batch.bin. */
#include "data/data_int.h"
#include "data/parse.h"

#include <limits.h>

#define CLASSES 10

ll_err ll_cifar_parse(const uint8_t *b, size_t size, const char *file, int64_t *n)
{
    *n = 0;
    CHECK(size > 0 && size % LL_CIFAR_RECORD == 0, LL_E_IO,
          "%s: %zu bytes, expected a multiple of %d (a label and 32 x 32 x 3 pixels); %zu are left "
          "over",
          file, size, LL_CIFAR_RECORD, size % LL_CIFAR_RECORD);
    int64_t count = (int64_t)(size / LL_CIFAR_RECORD);
    TRY(ll_labels_check(b, count, LL_CIFAR_RECORD, CLASSES, file, 0));
    *n = count;
    return LL_OK;
}

static ll_err add_file(ll_dataset *d, ll_split split, const char *path)
{
    ll_bytes b;
    int64_t n;
    TRY(ll_dataset_map(d, path, &b));
    TRY(ll_cifar_parse(b.data, b.size, path, &n));
    ll_segment_add(d, split,
                   &(ll_segment){.file = path,
                                 .n = n,
                                 .pixels = b.data + 1,
                                 .pixel_stride = LL_CIFAR_RECORD,
                                 .labels = b.data,
                                 .label_stride = LL_CIFAR_RECORD});
    return LL_OK;
}

ll_err ll_read_cifar10(ll_dataset *d, const char *path)
{
    char file[PATH_MAX];
    d->info.kind = LL_IMAGES;
    d->info.height = d->info.width = LL_CIFAR_SIDE;
    d->info.channels = 3;
    d->info.classes = CLASSES;
    d->planar = true;
    for (int i = 1; i <= 5; i++) {
        snprintf(file, sizeof file, "%s/data_batch_%d.bin", path, i);
        TRY(add_file(d, LL_TRAIN, file));
    }
    snprintf(file, sizeof file, "%s/test_batch.bin", path);
    return add_file(d, LL_VAL, file);
}
