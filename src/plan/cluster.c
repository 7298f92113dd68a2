/* cluster.c: cluster files: a table of keys, read by base/yaml.h. */
#include "plan/cluster.h"
#include "base/bundled.h"
#include "base/file.h"
#include "base/text.h"
#include "base/yaml.h"
#include "pass/target.h"

#include <errno.h>

static const ll_bundled bundled[] = {
#include "cluster_list.inc"
    {0}};

enum { DEEPEST = 8 }; /* likes of likes */

typedef struct key {
    const char *name;
    size_t offset;
    double min, max; /* max 0: a text */
    bool whole;
    const char *unit; /* "": a share, or a number of things */
} key;

#define KEY(name, field, min, max, whole, unit)                                                    \
    {                                                                                              \
        name, offsetof(ll_cluster, field), min, max, whole, unit                                   \
    }
#define FIELD(field, min, max, whole, unit) KEY(#field, field, min, max, whole, unit)
#define PEAK(p, min) KEY("chip." #p, chip.tera[LL_PRECISION_##p], min, 1e6, false, " TFLOP/s")
#define NUMBER(field, min, max) FIELD(field, min, max, false, "")
#define UNIT(field, min, max, unit) FIELD(field, min, max, false, " " unit)
#define WHOLE(field, min, max) FIELD(field, min, max, true, "")
#define WORD(field) FIELD(field, 0, 0, false, "")

static const key keys[] = {
    WORD(about),
    WORD(like),
    WORD(chip.name),
    WORD(chip.names),
    WORD(chip.machine),
    PEAK(bf16, 0),
    PEAK(fp8, 0),
    PEAK(tf32, 0),
    PEAK(f32, 1e-6),
    UNIT(chip.vector, 1e-6, 1e6, "TFLOP/s"),
    UNIT(chip.memory, 1e-3, 1e6, "GB"),
    UNIT(chip.bandwidth, 1e-3, 1e6, "GB/s"),
    WHOLE(chip.units, 1, 1e5),
    WHOLE(chip.tile_m, 1, 4096),
    WHOLE(chip.tile_n, 1, 4096),
    NUMBER(chip.gemm, 1e-3, 1),
    NUMBER(chip.gemm_f32, 1e-3, 1),
    NUMBER(chip.gemm_fp8, 1e-3, 1),
    NUMBER(chip.gemm_k, 0, 1e5),
    NUMBER(chip.stream, 1e-3, 1),
    NUMBER(chip.attention, 1e-3, 1),
    NUMBER(chip.attention_tuned, 1e-3, 1),
    NUMBER(chip.conv, 1e-3, 1),
    NUMBER(chip.overlap, 1, 100),
    UNIT(chip.host, 0, 1e5, "us"),
    UNIT(chip.launch, 0, 1e5, "us"),
    UNIT(chip.reserved, 0, 1e5, "GB"),
    WORD(own.source),
    NUMBER(own.gemm, 1e-3, 1),
    NUMBER(own.gemm_fp8, 1e-3, 1),
    NUMBER(own.gemm_fp8block, 1e-3, 1),
    NUMBER(own.gemm_k, 1e-3, 1e5),
    NUMBER(own.stream, 1e-3, 1),
    UNIT(own.stream_k, 1e-3, 1e5, "MB"),
    NUMBER(own.attention, 1e-3, 1),
    NUMBER(own.attention_k, 1e-3, 1e5),
    UNIT(own.launch, 1e-3, 1e5, "us"),
    WHOLE(node.chips, 1, 1e6),
    WHOLE(node.hosts, 1, 1e6),
    UNIT(node.link, 1e-3, 1e6, "GB/s"),
    NUMBER(node.efficiency, 1e-3, 1.2),
    UNIT(node.latency, 0, 1e6, "us"),
    UNIT(node.host, 1e-3, 1e6, "GB/s"),
    WORD(network.topology),
    UNIT(network.gbps, 1e-3, 1e7, "Gbit/s"),
    NUMBER(network.efficiency, 1e-3, 1.2),
    UNIT(network.latency, 0, 1e6, "us"),
    NUMBER(network.pod, 0, 1e6),
    NUMBER(network.taper, 1, 1e3),
    NUMBER(network.jitter, 0, 1),
    UNIT(cost.watts, 0, 1e6, "W"),
    NUMBER(cost.price, 0, 1e6),
    UNIT(cost.carbon, 0, 1e5, "g a kWh"),
    UNIT(cost.mtbf, 1, 1e9, "hours"),
    UNIT(cost.restart, 0, 1e5, "minutes"),
    UNIT(cost.checkpoint, 1e-3, 1e6, "GB/s"),
};
enum { N_KEY = sizeof keys / sizeof *keys };

typedef struct loading {
    ll_cluster *c;
    const char *file;
    const char *origin[N_KEY]; /* in this file */
    int depth;
    bool names_chip;
} loading;

static ll_err load_bundled(const char *what, ll_cluster *c, int depth, bool given[N_KEY]);

static bool is_section(void *, ll_near *near)
{
    static const char *const sections[] = {"chip", "own", "node", "network", "cost"};
    bool found = false;
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        found |= ll_near_try(near, sections[i]);
    return found;
}

static ll_err check_topology(const ll_yaml_value *v)
{
    static const char *const known[] = {"fat-tree", "rail", "dragonfly", "torus"};
    ll_near near = {.word = v->value};
    bool found = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= ll_near_try(&near, known[i]);
    CHECK(found, LL_E_CONFIG, "%s: %s is '%.40s', expected one of%s%s", v->origin, v->key, v->value,
          near.known, ll_near_hint(&near));
    return LL_OK;
}

static ll_err assign(void *context, const ll_yaml_value *v)
{
    loading *l = (loading *)context;
    ll_near near = {.word = v->key};
    int i = 0;
    while (i < N_KEY && !ll_near_try(&near, keys[i].name)) i++;
    CHECK(i < N_KEY, LL_E_CONFIG, "%s: unknown key %.60s of clusters%s", v->origin, v->key,
          ll_near_hint(&near));
    CHECK(!l->origin[i], LL_E_CONFIG, "%s: %s is already set (%s)", v->origin, v->key,
          l->origin[i]);
    l->origin[i] = v->origin;
    char *at = (char *)l->c + keys[i].offset;
    if (!strcmp(v->key, "network.topology")) TRY(check_topology(v));
    CHECK(strcmp(v->key, "chip.machine") || !strcmp(v->value, "none") || ll_target_find(v->value),
          LL_E_CONFIG, "%s: %s is '%.40s', expected none, or what train.machine takes", v->origin,
          v->key, v->value);
    if (keys[i].max == 0) {
        *(const char **)(void *)at = ll_arena_strdup(l->c->arena, v->value);
        return LL_OK;
    }
    char *end;
    errno = 0;
    double n = strtod(v->value, &end);
    CHECK(!v->is_list && end != v->value && !*end && !errno && n >= keys[i].min &&
              n <= keys[i].max && (!keys[i].whole || n == floor(n)),
          LL_E_CONFIG, "%s: %s is '%.40s', expected a %snumber from %g to %g%s", v->origin, v->key,
          v->value, keys[i].whole ? "whole " : "", keys[i].min, keys[i].max, keys[i].unit);
    *(double *)(void *)at = n;
    return LL_OK;
}

/* Only the line of `like`, which is needed before all others, and whether the chip is another. */
static ll_err find_like(void *context, const ll_yaml_value *v)
{
    loading *l = (loading *)context;
    if (!strcmp(v->key, "like")) l->c->like = ll_arena_strdup(l->c->arena, v->value);
    l->names_chip |= !strcmp(v->key, "chip.name");
    return LL_OK;
}

static ll_err parse(const char *bytes, size_t size, const char *file, ll_cluster *c, int depth,
                    bool given[N_KEY])
{
    CHECK(depth < DEEPEST, LL_E_CONFIG, "%s: clusters refer to others (like) more than %d deep",
          file, DEEPEST);
    loading l = {.c = c, .file = file, .depth = depth};
    ll_yaml y = {c->arena, "cluster file", "chip: {memory: 80}", &l, is_section, find_like};
    c->like = NULL;
    TRY(ll_yaml_read(&y, bytes, size, file));
    if (c->like) TRY(load_bundled(c->like, c, depth + 1, given));
    if (l.names_chip) c->own = (ll_own){0}; /* what was measured is of the other one */
    y.assign = assign;
    TRY(ll_yaml_read(&y, bytes, size, file));
    for (int i = 0; i < N_KEY; i++) given[i] |= l.origin[i] != NULL;
    return LL_OK;
}

static ll_err load_bundled(const char *what, ll_cluster *c, int depth, bool given[N_KEY])
{
    ll_near near = {.word = what};
    const ll_bundled *b = ll_bundled_find(bundled, &near);
    CHECK(b || !depth, LL_E_CONFIG,
          "like is '%.60s', expected a bundled cluster's name%s (clusters:%s)", what,
          ll_near_hint(&near), near.known);
    CHECK(b, LL_E_ARG, "unknown cluster %.60s%s (clusters:%s, `this`, or a file)", what,
          ll_near_hint(&near), near.known);
    const char *file = ll_arena_printf(c->arena, "%s.yaml", what);
    return parse(b->text, strlen(b->text), file, c, depth, given);
}

/* Of chips that exist, products have some hundreds of FLOPs for a byte of memory: what is far from
 * it has another unit. (Links may be as slow as one likes: what if they were.) */
static ll_err check_units(const ll_cluster *c, const char *what)
{
    enum { MOST_FLOPS = 5000 };
    double tera = fmax(c->chip.tera[LL_PRECISION_bf16], c->chip.tera[LL_PRECISION_f32]),
           each = 1e3 * tera / c->chip.bandwidth;
    CHECK(each <= MOST_FLOPS, LL_E_CONFIG,
          "%s: chip.bandwidth is %g GB/s for %g TFLOP/s of products, %.3g per byte, but chips have "
          "some hundreds: give it in GB/s (2 TB/s is 2000)",
          what, c->chip.bandwidth, tera, each);
    return LL_OK;
}

static ll_err finish(ll_cluster *c, const char *what, const bool given[N_KEY])
{
    CHECK(!c->node.hosts || fmod(c->node.chips, c->node.hosts) == 0, LL_E_CONFIG,
          "%s: node.hosts=%g does not divide node.chips=%g: set both", what, c->node.hosts,
          c->node.chips);
    CHECK(c->chip.reserved < c->chip.memory || !c->chip.memory, LL_E_CONFIG,
          "%s: chip.reserved is %g GB, all of chip.memory (%g GB): nothing is left for tensors",
          what, c->chip.reserved, c->chip.memory);
    static const char *const optional[] = {
        "about",     "like",          "chip.names",  "chip.conv",     "chip.fp8",
        "chip.tf32", "chip.gemm_fp8", "network.pod", "network.taper", "chip.attention_tuned",
        "node.hosts"};
    for (int i = 0; i < N_KEY; i++) {
        bool may = given[i] || !strncmp(keys[i].name, "own.", 4);
        for (size_t k = 0; k < sizeof optional / sizeof *optional; k++)
            may |= !strcmp(keys[i].name, optional[k]);
        CHECK(may, LL_E_CONFIG,
              "%s: %s is not set, neither in this file nor in one it refers to (like)", what,
              keys[i].name);
    }
    for (int i = 0; i < N_KEY && !c->own.source; i++)
        CHECK(strncmp(keys[i].name, "own.", 4) || !*(double *)(void *)((char *)c + keys[i].offset),
              LL_E_CONFIG, "%s: %s is set without own.source: set it to what was measured", what,
              keys[i].name);
    if (!c->network.taper) c->network.taper = 1;
    if (!c->chip.attention_tuned) c->chip.attention_tuned = c->chip.attention;
    if (!c->chip.gemm_fp8) c->chip.gemm_fp8 = c->chip.gemm;
    TRY(check_units(c, what));
    const char *base = ll_base_name(what);
    c->name = ll_arena_printf(c->arena, "%.*s", (int)strcspn(base, "."), base);
    return LL_OK;
}

static ll_cluster *fresh(void)
{
    ll_arena *a = ll_arena_new();
    ll_cluster *c = LL_NEW(a, ll_cluster);
    c->arena = a;
    c->about = c->chip.names = "";
    return c;
}

ll_err ll_cluster_parse(const char *bytes, size_t size, const char *file, ll_cluster **out)
{
    LL_OWN(ll_cluster) c = fresh();
    bool given[N_KEY] = {0};
    TRY(parse(bytes, size, file, c, 0, given));
    TRY(finish(c, file, given));
    return LL_HAND(out, c);
}

ll_err ll_cluster_load(const char *what, ll_cluster **out)
{
    enum { LIMIT = 1 << 20 };
    LL_OWN_MEMORY uint8_t *data = NULL;
    size_t size = 0;
    if (strchr(what, '/') || ll_ends_with(what, ".yaml")) {
        TRY(ll_file_read(what, LIMIT, &data, &size));
        return ll_cluster_parse((const char *)data, size, what, out);
    }
    LL_OWN(ll_cluster) c = fresh();
    bool given[N_KEY] = {0};
    TRY(load_bundled(what, c, 0, given));
    TRY(finish(c, what, given));
    return LL_HAND(out, c);
}

void ll_cluster_free(ll_cluster *c)
{
    if (c) ll_arena_free(c->arena);
}

const char *ll_cluster_name(int i)
{
    return bundled[i].name;
}

ll_cluster ll_cluster_own(const ll_cluster *c)
{
    ll_cluster o = *c;
    const struct {
        double own, *to;
    } all[] = {{c->own.gemm, &o.chip.gemm},
               {c->own.gemm_fp8, &o.chip.gemm_fp8},
               {c->own.gemm_fp8block, &o.chip.gemm_fp8block},
               {c->own.gemm_k, &o.chip.gemm_k},
               {c->own.stream, &o.chip.stream},
               {c->own.attention, &o.chip.attention},
               {c->own.attention_k, &o.chip.attention_k},
               {c->own.stream_k, &o.chip.stream_k},
               {c->own.launch, &o.chip.launch}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].own > 0) *all[i].to = all[i].own;
    return o;
}
