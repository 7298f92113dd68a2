/* folder.c: pictures in a folder for each class, whose names in order are classes 0, 1, ...:
 *
 *     DIR/train/cat/1.jpg  DIR/train/dog/x.png  DIR/val/cat/2.jpg
 *
 * or DIR/cat/1.jpg, of which part is held out: of each class those whose names have the largest
 * hashes, so that it stays the same pictures where others are added or the folder is copied. */
#include "base/rng.h"
#include "data/picture.h"
#include "data/table.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <sys/stat.h>

typedef struct picture_file {
    const char *path;
    uint64_t hash;
    int32_t label;
} picture_file;

typedef struct listing {
    picture_file *files;
    int n, capacity;
    bool val; /* where a class may have none */
} listing;

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int by_hash(const void *a, const void *b)
{
    const picture_file *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return strcmp(x->path, y->path);
}

static int shown(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Names in a folder, sorted, as the arena's; *n of them. */
static ll_err names_in(ll_arena *a, const char *folder, const char ***out, int *n)
{
    struct dirent **e;
    *n = scandir(folder, &e, shown, by_name);
    CHECK(*n >= 0, LL_E_IO, "%s: %s", folder, strerror(errno));
    *out = LL_NEW_ARRAY(a, const char *, *n + 1);
    for (int i = 0; i < *n; i++) {
        (*out)[i] = ll_arena_strdup(a, e[i]->d_name);
        free(e[i]);
    }
    free(e);
    return LL_OK;
}

static ll_err list_class(ll_dataset *d, const char *root, const char *class, int32_t label,
                         listing *l)
{
    struct stat st;
    const char **names;
    int n, before = l->n;
    const char *folder = ll_arena_printf(d->arena, "%s/%s", root, class);
    TRY(names_in(d->arena, folder, &names, &n));
    for (int i = 0; i < n; i++) {
        if (!ll_picture_named(names[i])) continue;
        const char *path = ll_arena_printf(d->arena, "%s/%s", folder, names[i]);
        CHECK(stat(path, &st) == 0, LL_E_IO, "%s: %s", path, strerror(errno));
        ll_dataset_note(d, path + strlen(root) + 1, NULL, (uint64_t)st.st_size);
        LL_PUSH(d->arena, l->files, l->n, l->capacity,
                (picture_file){path, ll_stream(names[i], 0), label});
    }
    CHECK(l->n > before || l->val, LL_E_IO, "%s has no pictures (.jpg, .jpeg, .png)", folder);
    return LL_OK;
}

static int class_of(const ll_data_info *f, const char *name)
{
    int k = 0;
    while (k < f->classes && strcmp(f->class_names[k], name)) k++;
    return k;
}

/* Classes keep the numbers that a model was trained with, where it knows all of their names. */
static bool are_told(const ll_dataset *told, const char **names, int n)
{
    const ll_data_info *f = told ? &told->info : NULL;
    if (!f || !f->class_names) return false;
    for (int i = 0; i < n; i++)
        if (class_of(f, names[i]) == f->classes) return false;
    return true;
}

/* All pictures below root; the first time, its folders are the classes. */
static ll_err list_all(ll_dataset *d, const char *root, listing *l)
{
    const char **names;
    int n, classes = 0;
    TRY(names_in(d->arena, root, &names, &n));
    for (int i = 0; i < n; i++)
        if (ll_is_folder(ll_arena_printf(d->arena, "%s/%s", root, names[i])))
            names[classes++] = names[i];
    CHECK(classes > 0, LL_E_IO, "%s has no folders, expected one for each class", root);
    if (!d->info.class_names && are_told(d->opts->told, names, classes))
        ll_columns_adopt(d, &d->opts->told->info);
    if (!d->info.class_names) {
        d->info.class_names = names;
        d->info.classes = classes;
    }
    for (int i = 0; i < classes; i++) {
        int k = class_of(&d->info, names[i]);
        CHECK(k < d->info.classes, LL_E_IO, "%s: class %s is not among the training classes", root,
              names[i]);
        TRY(list_class(d, root, names[i], k, l));
    }
    return LL_OK;
}

static ll_err offer(ll_dataset *d, const listing *l)
{
    const char **paths = LL_NEW_ARRAY(d->arena, const char *, l->n);
    int32_t *labels = LL_NEW_ARRAY(d->arena, int32_t, l->n);
    for (int i = 0; i < l->n; i++) paths[i] = l->files[i].path, labels[i] = l->files[i].label;
    TRY(ll_table_offer(
        d,
        &(ll_array){
            .name = "x", .type = {'u', 1}, .n_dim = 1, .dim = {l->n}, .rows = {.paths = paths}}));
    return ll_table_offer(d, &(ll_array){.name = "y",
                                         .type = {'i', 4},
                                         .n_dim = 1,
                                         .dim = {l->n},
                                         .rows = {.data = (const uint8_t *)labels}});
}

/* Of each class a part, but never the only one. */
static void hold_out(ll_dataset *d, listing *l)
{
    double fraction = ll_data_held_out(d);
    int8_t *part = LL_NEW_ARRAY(d->arena, int8_t, l->n);
    for (int from = 0, to; from < l->n; from = to) {
        for (to = from; to < l->n && l->files[to].label == l->files[from].label; to++) {
        }
        int held = (int)ceil((to - from) * fraction);
        if (held >= to - from) held = to - from - 1;
        qsort(l->files + from, (size_t)(to - from), sizeof *l->files, by_hash);
        for (int i = to - held; i < to; i++) part[i] = LL_VAL;
    }
    ll_table_pick(d, part, l->n);
}

ll_err ll_read_images(ll_dataset *d, const char *path)
{
    listing l = {.val = d->reading == LL_VAL};
    if (!l.val) d->info.classes = 0; /* as many as there are folders */
    d->info.kind = LL_IMAGES;
    TRY(list_all(d, path, &l));
    if (!l.val && !d->opts->val_path) hold_out(d, &l);
    return offer(d, &l);
}
