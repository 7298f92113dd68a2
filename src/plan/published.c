/* published.c: a row of a table of published trainings becomes a model, a mesh and a cluster. What
 * a row says of its hardware (memory, links, network) is believed; efficiencies are the cluster
 * file's, the same for every row. */
#define _GNU_SOURCE /* strcasestr */
#include "plan/published.h"
#include "data/parse.h"
#include "plan/search.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <strings.h>

/* Systems by parts of a row's text, the first that is there; what the model's name says goes before
 * all else, as one source tells of several. The last is for all others: Megatron-LM as it was until
 * 2022. */
static const struct {
    const char *parts; /* with | between them */
    ll_system system;
} systems[] = {
    /* Its shards are the master copy alone. */
    {"llm-foundry", {"FSDP", 1, false, true, 1, 4, 2, 10, 0, 4, 0, false, true}},
    {"MaxText|PaxML", {"JAX", 2, false, true, 2, 2, 2, 12, 0, 4, 0, false, true}},
    /* Its gradients are summed in bf16 since NeMo 2. */
    {"Benchmarking v25|NeMo 25|Megatron-Bridge",
     {"NeMo 2", 2, true, true, 1, 2, 2, 12, 0, 4, 0, false, true}},
    {"DGX Cloud|NeMo", {"NeMo", 2, true, true, 1, 4, 2, 12, 0, 4, 0, false, true}},
    {"Megatron-Core", {"Megatron-Core", 2, true, true, 1, 4, 2, 12, 0, 4, 0, false, true}},
    {"MegaScale", {"MegaScale", 1, true, true, 1, 2, 2, 12, 0, 4, 0, false, true}},
    {"AxoNN", {"AxoNN", 1, true, true, 1, 2, 2, 12, 0, 4, 0, false, true}},
    {"PaLM", {"JAX", 1, true, true, 2, 2, 2, 12, 0, 4, 0, false, true}},
    {"FlashAttention", {"flash", 1, false, true, 1, 2, 2, 12, 0, 4, 0, false, true}},
    {"SC21", {"Megatron-LM", 0, false, false, 4, 2, 2, 12, 1, 14, 0, false, false}},
    {"zero3|zero-3|FSDP", {"FSDP", 1, false, true, 1, 4, 2, 10, 0, 4, 0, false, true}},
    {"H100|B200", {"Megatron-Core", 2, true, true, 1, 4, 2, 12, 0, 4, 0, false, true}},
    /* Its README tells of this one of its models that gradients are summed beside the backward
     * pass. */
    {"GPT-2 8B", {"Megatron-LM 2020", 0, false, true, 4, 2, 2, 12, 1, 14, 0, true, false}},
    {"May-2020", {"Megatron-LM 2020", 0, false, false, 4, 2, 2, 12, 1, 14, 0, true, false}},
    {"BigScience|DeepSpeed|MT-NLG|NeoX|GLM-130B",
     {"Megatron-DeepSpeed", 0, false, false, 4, 2, 2, 12, 1, 14, 0, false, true, true, true, 4}},
    {"Megatron-LM", {"Megatron-LM", 0, false, false, 4, 2, 2, 12, 1, 14, 0, false, false}},
};

/* A caching allocator holds more than is in use at once, of what comes and goes: what a tool that
 * looks from outside counts, with what communication libraries take for themselves. */
static const double kept_blocks = 0.2, communicators_gb = 3;
static const double memory_doubt = 0.08; /* predictions of memory are off by 5 % in the mean */

/* What a source says of its machine on some days: all steps were longer, by its own repeats, before
 * what the notes of later rows tell of. */
static const struct {
    const char *source, *since;
    double longer;
} states[] = {{"BigScience", "after PCIe/NUMA fix", 1.057}};

typedef struct table {
    ll_csv csv;
    const char *file;
    const ll_cluster *const *more;
    int n_more;
    ll_images *images;
    ll_cluster *bundled[64];
    int n_bundled;
    ll_arena *arena;
} table;

static const char *cell(const table *t, int64_t row, const char *column)
{
    for (int i = 0; i < t->csv.columns; i++)
        if (!strcmp(t->csv.cells[i], column)) return t->csv.cells[(row + 1) * t->csv.columns + i];
    return "";
}

/* What a cell may be: a number of a range, or, outside parentheses, words of a list; one that ends
 * in = has a whole number after it. A bad cell of what was measured is no measurement; any other is
 * a row that is not predicted. */
static const struct column {
    const char *name, *words;
    double least, most;
    bool whole, measured;
} columns[] = {
    {.name = "arch", .words = "dense encoder cnn moe"},
    {.name = "precision",
     .words = "bf16 fp16 fp8 fp32 tf32 amp pure mixed amp_bf16 amp_fp16 amp_fp8"},
    {.name = "recompute", .words = "none full selective"},
    {.name = "schedule",
     .words =
         "none 1F1B 1F1B-I interleaved interleaved-1F1B GPipe ZB-1p ZB-2p ZBV + scatter/gather"},
    {.name = "sharding",
     .words = "none zero0 zero1 zero2 zero3 zero-1 zero-2 zero-3 FSDP FSDP= x DP="},
    {"params_b", NULL, 1e-9, 1e9, false, false},
    {"layers", NULL, 1, 1e5, true, false},
    {"hidden", NULL, 1, 1e7, true, false},
    {"ffn", NULL, 1, 1e8, true, false},
    {"heads", NULL, 1, 1e6, true, false},
    {"kv_heads", NULL, 1, 1e6, true, false},
    {"seq", NULL, 1, 1e9, true, false},
    {"vocab", NULL, 1, 1e9, true, false},
    {"gpu_mem_gb", NULL, 1e-3, 1e6, false, false},
    {"gpus_per_node", NULL, 1, 1e6, true, false},
    {"intra_gbs", NULL, 1e-3, 1e6, false, false},
    {"inter_gbps_node", NULL, 1e-3, 1e7, false, false},
    {"gpus", NULL, 1, 1e7, true, false},
    {"tp", NULL, 1, 1e5, true, false},
    {"pp", NULL, 1, 4096, true, false},
    {"dp", NULL, 1, 1e7, true, false},
    {"cp", NULL, 1, 1e5, true, false},
    {"vpp", NULL, 1, 1e3, true, false},
    {"micro_batch", NULL, 1, 1e6, true, false},
    {"grad_accum", NULL, 1, 65536, true, false},
    {"global_batch", NULL, 1, 1e8, true, false},
    {"iter_time_s", NULL, 1e-6, 1e9, false, true},
    {"iter_time_s_derived", NULL, 1e-6, 1e9, false, true},
    {"tokens_per_s", NULL, 1e-6, 1e12, false, true},
    {"tokens_per_s_gpu", NULL, 1e-6, 1e9, false, true},
    {"samples_per_s", NULL, 1e-6, 1e12, false, true},
    {"tflops_gpu", NULL, 1e-6, 1e6, false, true},
    {"peak_tflops", NULL, 1e-6, 1e6, false, true},
    {"pct_peak", NULL, 1e-6, 100, false, true},
    {"mem_gb", NULL, 1e-6, 1e6, false, true},
};

static bool is_number(const char *text, double least, double most, bool whole)
{
    size_t n = strspn(text, "0123456789.eE+-");
    char *end;
    double v = strtod(text, &end);
    return n && end == text + n && !text[n] && v >= least && v <= most && (!whole || v == floor(v));
}

static bool is_word(const char *word, size_t n, const char *words)
{
    for (size_t k; *words; words += k + (words[k] == ' ')) {
        char text[16];
        k = strcspn(words, " ");
        if (k == n && !strncasecmp(word, words, n)) return true;
        if (words[k - 1] != '=' || n <= k || n - k >= sizeof text || strncasecmp(word, words, k))
            continue;
        snprintf(text, sizeof text, "%.*s", (int)(n - k), word + k);
        if (is_number(text, 1, 1e7, true)) return true;
    }
    return false;
}

static bool is_sound(const struct column *c, const char *text)
{
    if (!*text) return true;
    if (!c->words) return is_number(text, c->least, c->most, c->whole);
    while (*text) {
        size_t n = *text == '(' ? strcspn(text, ")") : strcspn(text, " (/"),
               whole = strcspn(text, " (");
        bool note = *text == '(' && text[n];
        if (note)
            n++;
        else if (is_word(text, whole, c->words))
            n = whole;
        else if (!is_word(text, n, c->words))
            return false;
        text += n;
        text += strspn(text, " /");
    }
    return true;
}

/* measured: of the columns of what was measured, else of all others. */
static ll_err check_cells(const table *t, int64_t row, bool measured)
{
    LL_EACH (const struct column, c, columns, sizeof columns / sizeof *columns) {
        const char *text = cell(t, row, c->name);
        if (c->measured != measured || is_sound(c, text)) continue;
        CHECK(!c->words, LL_E_ARG, "column %s is '%.40s', expected words of: %s", c->name, text,
              c->words);
        FAIL(LL_E_ARG, "column %s is '%.40s', expected a %snumber from %g to %g%s", c->name, text,
             c->whole ? "whole " : "", c->least, c->most, measured ? "; no measurement" : "");
    }
    return LL_OK;
}

/* NAN: not given, or not sound. */
static double number(const table *t, int64_t row, const char *column)
{
    const char *text = cell(t, row, column);
    return is_number(text, -1e12, 1e12, false) ? strtod(text, NULL) : NAN;
}

static double at_least(const table *t, int64_t row, const char *column, double otherwise)
{
    double v = number(t, row, column);
    return v >= 1 ? v : otherwise;
}

static bool says(const table *t, int64_t row, const char *column, const char *part)
{
    return strcasestr(cell(t, row, column), part) != NULL;
}

/* The longest name of a chip that is a part of the row's. */
static const ll_cluster *find_cluster(const table *t, int64_t row)
{
    const ll_cluster *best = NULL;
    size_t longest = 0;
    const char *gpu = cell(t, row, "gpu");
    for (int i = 0; i < t->n_more + t->n_bundled; i++) {
        const ll_cluster *c = i < t->n_more ? t->more[i] : t->bundled[i - t->n_more];
        const char *p = c->chip.names;
        for (size_t n; *p; p += n + (p[n] == ',')) {
            char name[64];
            n = strcspn(p, ",");
            snprintf(name, sizeof name, "%.*s", (int)n, p);
            if (n > longest && strcasestr(gpu, name)) best = c, longest = n;
        }
    }
    return best;
}

/* The cluster as the row describes it. */
static ll_cluster described(const table *t, int64_t row, const ll_cluster *c)
{
    ll_cluster d = *c;
    double chips = number(t, row, "gpus_per_node"), memory = number(t, row, "gpu_mem_gb");
    double link = number(t, row, "intra_gbs"), gbps = number(t, row, "inter_gbps_node");
    bool host = d.node.hosts > 1 && chips <= d.node.chips / d.node.hosts; /* of many on one link */
    if (host && gbps > 0) gbps *= d.node.chips / chips;
    if (chips >= 1 && !host) d.network.gbps *= chips / d.node.chips, d.node.chips = chips;
    if (memory > 0) d.chip.memory = memory;
    if (link > 0) d.node.link = link;
    if (gbps > 0) d.network.gbps = gbps;
    return d;
}

/* Heads that a row leaves out are those of the nearest row of its source that is as wide. */
static double heads_of(const table *t, int64_t row, double width)
{
    for (int64_t d = 0; d < t->csv.rows; d++)
        for (int side = -1; side <= 1; side += 2) {
            int64_t k = row + side * d;
            if (k < 0 || k >= t->csv.rows || strcmp(cell(t, k, "source"), cell(t, row, "source")) ||
                number(t, k, "hidden") != width || !(number(t, k, "heads") >= 1))
                continue;
            return number(t, k, "heads");
        }
    return fmax(1, round(width / 128));
}

static bool read_model(const table *t, int64_t row, ll_lm *m)
{
    double n = 1e9 * number(t, row, "params_b");
    *m = (ll_lm){.layers = number(t, row, "layers"),
                 .width = number(t, row, "hidden"),
                 .seq = number(t, row, "seq"),
                 .vocab = at_least(t, row, "vocab", 51200),
                 .tied = !says(t, row, "model", "llama") && !says(t, row, "model", "nemotron"),
                 .encoder = says(t, row, "arch", "encoder")};
    if (!(m->layers >= 1 && m->width >= 1 && m->seq >= 1)) return false;
    m->heads = heads_of(t, row, m->width);
    m->kv_heads = at_least(t, row, "kv_heads", m->heads);
    m->ffn = at_least(t, row, "ffn", 4 * m->width);
    ll_lm gated = *m;
    gated.gated = true;
    m->gated = n > 0 ? fabs(ll_lm_parameters(&gated) - n) < fabs(ll_lm_parameters(m) - n)
                     : says(t, row, "model", "llama");
    return true;
}

/* A part as a word: Nemotron is not NeMo. */
static bool names(const table *t, int64_t row, const char *column, const char *parts)
{
    char part[64];
    for (size_t n; *parts; parts += n + (parts[n] == '|')) {
        n = strcspn(parts, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, parts);
        for (const char *at = cell(t, row, column); (at = strcasestr(at, part)); at += n)
            if (!isalpha((unsigned char)at[n])) return true;
    }
    return false;
}

static ll_system read_system(const table *t, int64_t row)
{
    static const char *const where[] = {"source", "notes", "gpu", "sharding", "schedule"};
    const size_t last = sizeof systems / sizeof *systems - 1;
    size_t i = 0;
    while (i <= last && !names(t, row, "model", systems[i].parts)) i++;
    bool found = i <= last;
    for (i = found ? i : 0; !found && i < last; i += !found)
        for (size_t k = 0; k < sizeof where / sizeof *where; k++)
            found |= names(t, row, where[k], systems[i].parts);
    ll_system s = systems[i].system;
    if (says(t, row, "precision", "pure")) s.grad_bytes = 2;
    if (s.attention == 0 && says(t, row, "precision", "bf16") && says(t, row, "sharding", "zero"))
        s.grad_bytes = 4, s.kept_bytes = 4;
    if (says(t, row, "schedule", "ZB")) s.overlap_pipe = true;
    if (says(t, row, "notes", "not compiled")) s.eager = true;
    s.slots = says(t, row, "notes", "one transformer layer fewer") ||
              says(t, row, "notes", "own pipeline slots");
    return s;
}

static double slowed(const table *t, int64_t row)
{
    double by = 1;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (says(t, row, "source", states[i].source) && !says(t, row, "notes", states[i].since))
            by *= states[i].longer;
    return by;
}

static const char *read_schedule(const table *t, int64_t row)
{
    static const struct {
        const char *part, *name;
    } known[] = {{"ZB-1p", "auto 1"}, {"ZB-2p", "auto 2"}, {"ZBV", "zb-v"}, {"GPipe", "gpipe"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (says(t, row, "schedule", known[i].part)) return known[i].name;
    return NULL;
}

/* fp16 takes as long as bf16; amp is one of both. What is in parentheses is said of it. */
static ll_precision read_precision(const table *t, int64_t row)
{
    char text[64];
    snprintf(text, sizeof text, "%s", cell(t, row, "precision"));
    text[strcspn(text, "(")] = '\0';
    return strcasestr(text, "fp8")    ? LL_PRECISION_fp8
           : strcasestr(text, "tf32") ? LL_PRECISION_tf32
           : strcasestr(text, "fp32") ? LL_PRECISION_f32
                                      : LL_PRECISION_bf16;
}

static void read_how(const table *t, int64_t row, const ll_lm *m, const ll_system *s, ll_how *h)
{
    const char *shard = strcasestr(cell(t, row, "sharding"), "FSDP="),
               *zero = strcasestr(cell(t, row, "sharding"), "zero");
    *h = (ll_how){.tensor = at_least(t, row, "tp", 1),
                  .pipe = at_least(t, row, "pp", 1),
                  .context = at_least(t, row, "cp", 1),
                  .virtual_stages = (int)at_least(t, row, "vpp", 1),
                  .shard = shard ? atof(shard + 5) : 0,
                  .zero = zero                               ? atoi(zero + 4 + (zero[4] == '-'))
                          : says(t, row, "sharding", "FSDP") ? 3
                                                             : 0,
                  .sequence = number(t, row, "seq_parallel") > 0 ||
                              says(t, row, "seq_parallel", "yes") ||
                              says(t, row, "seq_parallel", "true"),
                  .schedule = read_schedule(t, row),
                  .precision = read_precision(t, row),
                  .remake = says(t, row, "recompute", "full") ? LL_REMAKE_FULL
                            : says(t, row, "recompute", "selective")
                                ? (s->attention == 1 && !strcmp(s->name, "FSDP")
                                       ? LL_REMAKE_FFN /* PyTorch's: every second product */
                                       : LL_REMAKE_SELECTIVE)
                            : !*cell(t, row, "recompute") && says(t, row, "model", "PaxML")
                                ? LL_REMAKE_FULL /* as its models do unless told otherwise */
                                : LL_REMAKE_NONE,
                  .system = s};
    h->data = at_least(t, row, "dp",
                       fmax(1, at_least(t, row, "gpus", 1) / (h->tensor * h->pipe * h->context)));
    int stage = (int)(m->layers / h->pipe);
    if (says(t, row, "schedule", "interleaved") && h->virtual_stages == 1 && h->pipe > 1)
        for (h->virtual_stages = 2; stage % h->virtual_stages && h->virtual_stages < stage;)
            h->virtual_stages++;
}

/* Seconds of a step, as printed or as follows from what is. */
static double measured_step(const table *t, int64_t row, const ll_lm *m)
{
    double s = number(t, row, "iter_time_s"), batch = number(t, row, "global_batch");
    double gpus = number(t, row, "gpus"), flops = batch * ll_lm_flops(m);
    if (says(t, row, "tflops_kind", "96") || says(t, row, "pct_kind", "HFU"))
        flops = 96 * batch * m->seq * m->layers * m->width * m->width *
                (1 + m->seq / (6 * m->width) + m->vocab / (16 * m->layers * m->width));
    if (isnan(s)) s = number(t, row, "iter_time_s_derived");
    if (isnan(s)) s = batch * m->seq / number(t, row, "tokens_per_s");
    if (isnan(s)) s = batch * m->seq / number(t, row, "tokens_per_s_gpu") / gpus;
    if (isnan(s)) s = batch / number(t, row, "samples_per_s");
    if (isnan(s)) s = flops / (1e12 * gpus * number(t, row, "tflops_gpu"));
    if (isnan(s))
        s = flops / (1e10 * gpus * number(t, row, "pct_peak") * number(t, row, "peak_tflops"));
    return s;
}

/* A step; a row that does not say what is made again made the least that fits, as well as memory is
 * predicted. */
static ll_err try_step(const table *t, int64_t row, const ll_cluster *c, const ll_lm *m, ll_how *h,
                       ll_outcome *o, bool *fits)
{
    bool told = *cell(t, row, "recompute") || h->remake;
    for (;; h->remake = h->remake == LL_REMAKE_NONE ? LL_REMAKE_FFN : LL_REMAKE_FULL) {
        LL_OWN(ll_arena) scratch = ll_arena_new();
        TRY(ll_lm_step(c, m, h, scratch, false, o));
        o->pipeline = NULL;
        double bytes = ll_lm_bytes_sum(&o->bytes), most = 1e9 * c->chip.memory;
        *fits = bytes <= most;
        if (bytes <= most * (1 + memory_doubt) || told || h->remake == LL_REMAKE_FULL) return LL_OK;
    }
}

/* A micro-batch that the row does not give is the quickest that fits. */
static ll_err predict_lm(const table *t, int64_t row, const ll_cluster *c, const ll_lm *m,
                         ll_how *h, ll_outcome *out)
{
    double batch = number(t, row, "global_batch"), given = number(t, row, "micro_batch");
    double best = INFINITY;
    for (double micro = given > 0 ? given : 1; micro <= (given > 0 ? given : 16); micro *= 2) {
        ll_how how = *h;
        ll_outcome o;
        how.micro_batch = micro;
        how.n_micro = (int)round(at_least(t, row, "grad_accum", batch / h->data / micro));
        if (how.n_micro < 1) continue;
        CHECK(how.n_micro * how.pipe <= 1e7, LL_E_ARG,
              "%d micro-batches through %g stages are too many to simulate", how.n_micro, how.pipe);
        bool fits;
        TRY(try_step(t, row, c, m, &how, &o, &fits));
        double score = o.step_s * (fits ? 1 : 1e3);
        if (score < best) best = score, *out = o;
    }
    CHECK(best < INFINITY, LL_E_ARG, "its batch and micro-batch do not match");
    return LL_OK;
}

/* Rows that the efficiencies of chips were fitted to (scripts/fit_plan.py): of sources with many,
 * every second of those that are there. */
static bool was_fitted(const table *t, int64_t row)
{
    static const struct {
        const char *part;
        bool half;
    } fitted[] = {{"Megatron-LM SC21", false}, {"Megatron-LM README", false}, {"Zero Bubble", true},
                  {"llm-foundry", true},       {"BigScience", true},          {"DGX Cloud", true}};
    int id = atoi(cell(t, row, "id"));
    for (size_t i = 0; i < sizeof fitted / sizeof *fitted; i++)
        if (says(t, row, "source", fitted[i].part)) return !fitted[i].half || id % 4 == 0;
    return false;
}

/* What every row has; kind, predicted seconds and bytes are there. */
static void fill(const table *t, int64_t row, const ll_cluster *c, double bytes, ll_published *r)
{
    r->held_out = !was_fitted(t, row);
    r->low = r->predicted / (1 + ll_plan_spread(r->kind));
    r->high = r->predicted * (1 + ll_plan_spread(r->kind));
    r->predicted_memory = 1e-9 * bytes;
    r->flagged = r->predicted_memory > c->chip.memory;
    r->measured_percent = number(t, row, "pct_peak");
    r->percent = r->measured_percent * r->measured / r->predicted;
}

/* Images: a batch that the row does not give is the largest, up to 256 a chip, that fits. */
static ll_err predict_images(const table *t, int64_t row, const ll_cluster *c, ll_published *r)
{
    int gpus = (int)number(t, row, "gpus"), given = (int)at_least(t, row, "micro_batch", 0);
    ll_precision precision = ll_precision_wide(read_precision(t, row));
    double bytes = INFINITY, gradients;
    int batch = given ? given : 512;
    CHECK(t->images, LL_E_ARG, "image models cannot be compiled here");
    CHECK(ll_chip_peak(&c->chip, precision) > 0, LL_E_ARG, "chip %s has no matrix products in %s",
          c->chip.name, ll_precision_name(precision));
    do {
        batch /= given ? 1 : 2;
        TRY(t->images(r->model, c, precision, batch, says(t, row, "source", "MXNet"), &r->predicted,
                      &bytes, &gradients));
    } while (!given && batch > 1 && bytes > 1e9 * c->chip.memory);
    /* Sums of gradients run beside the backward pass, two thirds of the step. */
    ll_peers all = {gpus, fmin(gpus, c->node.chips)};
    double back = r->predicted * 2 / 3, sums = ll_cost_allreduce(c, all, gradients);
    r->predicted += ll_cost_beside(&c->chip, back, sums) - back;
    r->kind = "images";
    r->measured = number(t, row, "iter_time_s");
    if (isnan(r->measured)) r->measured = number(t, row, "iter_time_s_derived");
    if (isnan(r->measured)) r->measured = batch * gpus / number(t, row, "samples_per_s");
    fill(t, row, c, bytes, r);
    return LL_OK;
}

static ll_err predict(const table *t, int64_t row, ll_published *r)
{
    ll_lm m;
    ll_how h;
    ll_outcome o;
    const ll_cluster *c = find_cluster(t, row);
    double gpus = number(t, row, "gpus");
    TRY(check_cells(t, row, false));
    CHECK(c, LL_E_ARG, "no cluster file has a chip named %.40s", cell(t, row, "gpu"));
    CHECK(gpus >= 1, LL_E_ARG, "the number of chips is not given");
    ll_cluster d = described(t, row, c);
    if (says(t, row, "arch", "cnn")) return predict_images(t, row, &d, r);
    CHECK(!says(t, row, "arch", "moe"), LL_E_ARG, "a mixture of experts is not modelled");
    CHECK(read_model(t, row, &m), LL_E_ARG, "layers, hidden size or sequence length not given");
    ll_system s = read_system(t, row);
    read_how(t, row, &m, &s, &h);
    CHECK(ll_chip_peak(&d.chip, h.precision) > 0, LL_E_ARG, "chip %s has no matrix products in %s",
          d.chip.name, ll_precision_name(h.precision));
    CHECK(number(t, row, "global_batch") >= 1, LL_E_ARG, "the batch is not given");
    CHECK(fabs(h.data * h.tensor * h.pipe * h.context - gpus) < 0.5, LL_E_ARG,
          "%g chips are not %g x %g x %g x %g", gpus, h.data, h.tensor, h.pipe, h.context);
    bool cut = fmod(m.heads, h.tensor) == 0 || !(number(t, row, "heads") >= 1);
    CHECK(cut || says(t, row, "notes", "3-D product"), LL_E_ARG,
          "tensor %g does not cut %g heads into equal parts: unequal ones are not modelled",
          h.tensor, m.heads);
    TRY(predict_lm(t, row, &d, &m, &h, &o));
    r->measured = measured_step(t, row, &m);
    r->predicted = o.step_s * slowed(t, row);
    r->kind = ll_how_kind(&h);
    fill(t, row, &d, ll_lm_bytes_sum(&o.bytes), r);
    if (!says(t, row, "mem_kind", "smi") && !r->out_of_memory)
        r->predicted_memory -= d.chip.reserved; /* the allocator's own count */
    else                                        /* blocks that it keeps beyond what is used */
        r->predicted_memory +=
            communicators_gb +
            1e-9 * kept_blocks * (o.bytes.activations + o.bytes.buffers + o.bytes.reserved);
    return LL_OK;
}

/* A bad cell of memory or of a percentage leaves the time that was measured. */
static void forget_bad(const table *t, int64_t row, ll_published *r)
{
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const char *name = columns[i].name;
        if (!columns[i].measured || is_sound(&columns[i], cell(t, row, name))) continue;
        if (!strcmp(name, "mem_gb"))
            r->memory = NAN;
        else if (!strcmp(name, "pct_peak"))
            r->measured_percent = r->percent = NAN;
        else
            r->measured = r->percent = NAN;
    }
}

static ll_err check_header(const table *t)
{
    for (int i = 0; i < t->csv.columns; i++)
        for (int k = 0; k < i; k++)
            CHECK(!*t->csv.cells[i] || strcmp(t->csv.cells[i], t->csv.cells[k]), LL_E_CONFIG,
                  "%s: columns %d and %d are both named %.40s", t->file, k + 1, i + 1,
                  t->csv.cells[i]);
    return LL_OK;
}

ll_err ll_published_read(const char *text, size_t size, const char *file,
                         const ll_cluster *const *clusters, int n_cluster, ll_images *images,
                         ll_arena *arena, ll_published **rows, int *n)
{
    table t = {
        .file = file, .more = clusters, .n_more = n_cluster, .images = images, .arena = arena};
    TRY(ll_csv_parse((const uint8_t *)text, size, file, arena, &t.csv));
    CHECK(*cell(&t, -1, "gpu") && *cell(&t, -1, "gpus"), LL_E_CONFIG,
          "%s has no columns gpu and gpus: use those of published tables (docs/running.md)", file);
    TRY(check_header(&t));
    ll_err rc = LL_OK;
    for (const char *name; rc == LL_OK && (name = ll_cluster_name(t.n_bundled)); t.n_bundled++)
        rc = ll_cluster_load(name, &t.bundled[t.n_bundled]);
    *n = (int)t.csv.rows;
    *rows = LL_NEW_ARRAY(arena, ll_published, *n);
    for (int i = 0; rc == LL_OK && i < *n; i++) {
        ll_published *r = &(*rows)[i];
        *r = (ll_published){.id = cell(&t, i, "id"),
                            .source = cell(&t, i, "source"),
                            .model = cell(&t, i, "model"),
                            .kind = "",
                            .sweep = cell(&t, i, "ref"),
                            .low = NAN,
                            .high = NAN,
                            .measured = NAN,
                            .predicted = NAN,
                            .percent = NAN,
                            .measured_percent = NAN,
                            .predicted_memory = NAN,
                            .memory = number(&t, i, "mem_gb"),
                            .out_of_memory = says(&t, i, "mem_kind", "OOM")};
        ll_err did = predict(&t, i, r);
        if (did == LL_OK && (did = check_cells(&t, i, true)) != LL_OK) forget_bad(&t, i, r);
        if (did != LL_OK) r->why = ll_arena_strdup(arena, ll_error_message());
    }
    for (int i = 0; i < t.n_bundled; i++) ll_cluster_free(t.bundled[i]);
    return rc;
}

/* ---- how rows were met, by source or all ---- */

/* What 80 % of rows of a kind that were not fitted stay within. */
double ll_plan_spread(const char *kind)
{
    static const struct {
        const char *kind;
        double spread;
    } known[] = {{"sharded", 0.10},
                 {"pipeline", 0.09},
                 {"data and tensor", 0.06},
                 {"images", 0.10},
                 {"own images", 0.08},
                 {"small step", 1.4}}; /* of launches: LeNet-5's and small GPTs' on an H200 */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].kind, kind)) return known[i].spread;
    return 0.15;
}

/* Rows of one page or table of a source, whatever line of it. */
static bool same_sweep(const ll_published *a, const ll_published *b)
{
    const char *line = strstr(a->sweep, " line ");
    size_t n = line ? (size_t)(line - a->sweep) : strlen(a->sweep) + 1;
    return !strcmp(a->source, b->source) && !strncmp(a->sweep, b->sweep, n);
}

ll_account ll_published_account(const ll_published *rows, int n, const char *source)
{
    ll_account a = {.source = source};
    double pairs = 0, agree = 0;
    for (int i = 0; i < n; i++) {
        const ll_published *r = &rows[i];
        if (source && strcmp(r->source, source)) continue;
        a.rows++;
        a.predicted += !isnan(r->predicted);
        a.out_of_memory += r->out_of_memory;
        a.flagged += r->out_of_memory && r->flagged;
        a.false_alarms += !r->out_of_memory && r->flagged;
        if (!isnan(r->memory) && !isnan(r->predicted_memory)) {
            a.memory_error += fabs(r->predicted_memory / r->memory - 1);
            a.n_memory++;
        }
        double e = r->predicted / r->measured - 1;
        if (isnan(e)) continue;
        a.compared++;
        a.error += fabs(e), a.bias += e;
        if (r->held_out) {
            a.held_out++, a.held_out_error += fabs(e);
            a.covered_rows += r->measured >= r->low && r->measured <= r->high;
        }
        for (int k = 0; k < i; k++) {
            if (!same_sweep(r, &rows[k]) || isnan(rows[k].predicted / rows[k].measured)) continue;
            double x = r->measured - rows[k].measured, y = r->predicted - rows[k].predicted;
            if (x == 0) continue;
            pairs++, agree += x * y > 0 ? 1 : x * y < 0 ? -1 : 0;
        }
    }
    a.error /= a.compared, a.bias /= a.compared;
    a.held_out_error /= a.held_out, a.covered = (double)a.covered_rows / a.held_out;
    a.memory_error /= a.n_memory;
    a.tau = agree / pairs;
    return a;
}
