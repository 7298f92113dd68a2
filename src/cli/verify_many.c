/* verify_many.c: verify --matrix and --fuzz.
 *
 * A case is a model's name and settings, as one would write them after `loopline verify`: it is
 * printed so where it fails. Models are small, of sizes that ranks do not divide. */
#include "cli/verify_many.h"

#include "base/rng.h"
#include "cli/common.h"
#include "sched/pipeline.h"
#include "verify/verify.h"

typedef enum outcome { ALIKE, REFUSED, WRONG } outcome;

typedef struct one {
    const char *model;
    ll_words set;
    ll_arena *arena; /* of the settings */
    ll_verify_report v;
    double took;
    bool limited;  /* to some memory: it may be too little */
    char why[512]; /* REFUSED, WRONG */
} one;

/* One setting more, printed: ADD(c, "train.batch=%d", n); */
#define ADD(c, ...)                                                                                \
    LL_PUSH((c)->arena, (c)->set.v, (c)->set.n, (c)->set.capacity,                                 \
            ll_arena_printf((c)->arena, __VA_ARGS__))

/* ---- one case ---- */

static ll_err verify_on(ll_comm *sub, const ll_run *r, const ll_verify_words *o, one *c)
{
    ll_verify_opts v = {.session = {.comm = sub, .mesh = r->parallel.mesh},
                        .steps = o->steps,
                        .tolerance = r->parallel.exact ? 0 : o->tolerance};
    return ll_verify_run(r, &v, true, &c->v);
}

/* On the first ranks, as many as the mesh has; all are told what came of it. */
static ll_err attempt(ll_comm *world, const ll_verify_words *o, one *c, outcome *out)
{
    ll_run *r = NULL;
    ll_mesh m;
    double rc = ll_cli_run(c->model, &c->set, true, &r);
    if (rc == LL_OK) rc = ll_mesh_parse(r->parallel.mesh, &m);
    bool mine = rc == LL_OK && ll_comm_rank(world) < m.n_rank;
    ll_comm *sub = NULL;
    c->v = (ll_verify_report){0};
    c->took = ll_now();
    if (rc == LL_OK) TRY(ll_comm_split_untuned(world, !mine, 0, &sub));
    /* Ranks that are not asked wait for all of it, which may be longer than a collective. */
    ll_comm_slow(world, mine);
    if (mine) rc = verify_on(sub, r, o, c);
    ll_comm_slow(world, false);
    if (rc != LL_OK) snprintf(c->why, sizeof c->why, "%s", ll_error_text());
    ll_comm_close(sub);
    ll_run_free(r);
    c->took = ll_now() - c->took;
    TRY(ll_comm_broadcast(world, &rc, 1, LL_F64, 0, NULL));
    if (rc == LL_OK && !c->v.ok)
        snprintf(c->why, sizeof c->why, "step %ld%s: %s%s%s differs by %.2e, more than %.2g",
                 c->v.step, c->v.in_f64 ? " in f64" : "", c->v.name, c->v.part[0] ? ", " : "",
                 c->v.part, c->v.rel_diff, c->v.allowed);
    bool cannot = rc == LL_E_SHARD || rc == LL_E_CONFIG || (rc == LL_E_MEM && c->limited);
    *out = cannot ? REFUSED : rc != LL_OK || (mine && !c->v.ok) ? WRONG : ALIKE;
    double worst = *out;
    TRY(ll_comm_broadcast(world, &worst, 1, LL_F64, 0, NULL));
    *out = (outcome)(int)worst;
    return LL_OK;
}

typedef struct count {
    int64_t of[WRONG + 1], in_f64;
    int64_t n_row;        /* of a matrix: each in the precision asked for and with exact sums */
    json_t *rows, *wrong; /* lists, for --json */
    json_t *corners;      /* cases in which rounding made a decision */
    char refused[256];    /* why, of the first */
} count;

/* What went wrong or was decided by rounding, and how to see it again. number: of those drawn; -1:
 * none was. */
static void tell(const one *c, const ll_verify_words *o, int64_t number, const char *what,
                 const char *why, json_t *list)
{
    ll_buf b = {.arena = c->arena};
    ll_buf_printf(&b, "loopline verify %s --random --steps %ld", c->model, o->steps);
    if (o->tolerance != 1e-5) ll_buf_printf(&b, " --tolerance %g", o->tolerance);
    for (int i = 0; i < c->set.n; i++) ll_buf_printf(&b, " -s %s", c->set.v[i]);
    if (o->json) {
        json_array_append_new(list, LL_JSON(LL_IF(number >= 0, "number", number), LL_IS("why", why),
                                            LL_IS("command", b.text)));
        return;
    }
    if (number >= 0)
        printf("%s, number %ld: %s\n    %s\n", what, number, why, b.text);
    else
        printf("%s: %s\n    %s\n", what, why, b.text);
    fflush(stdout);
}

/* Counts what came of a case, and tells of it on rank 0. */
static void take(const ll_comm *world, const one *c, const ll_verify_words *o, int64_t number,
                 outcome out, count *n)
{
    char why[256];
    n->of[out]++;
    if (out == REFUSED && !*n->refused) snprintf(n->refused, sizeof n->refused, "%.255s", c->why);
    n->in_f64 += c->v.worst[1][0] != 0;
    if (ll_comm_rank(world) != 0) return;
    if (out == WRONG) tell(c, o, number, "WRONG", c->why, n->wrong);
    if (out != ALIKE || !c->v.corners) return;
    snprintf(why, sizeof why, "step %ld: %s differs by %.2e", c->v.corner_step, c->v.corner,
             c->v.corner_rel_diff);
    tell(c, o, number, "alike but for a decision of rounding", why, n->corners);
}

static one begin(const char *model, const ll_verify_words *o)
{
    one c = {.model = model, .arena = ll_arena_new()};
    ADD(&c, "train.threads=1");
    c.limited = ll_words_said(&o->set, "train.memory");
    for (int i = 0; i < o->set.n; i++) /* meshes are the cases' own */
        if (strncmp(o->set.v[i], "parallel.mesh=", 14)) ADD(&c, "%s", o->set.v[i]);
    return c;
}

/* ---- all models, all strategies ---- */

static const struct {
    const char *name;
    int batch;
    const char *sizes[8];
} models[] = {
    {"mlp", 13, {"model.image=9", "model.width=37"}},
    {"lenet5", 13, {NULL}},
    {"resnet18", 13, {"model.image=13", "model.width=8", "model.classes=7"}},
    {"googlenet", 7, {"model.image=49", "model.classes=7"}},
    {"gpt",
     7,
     {"model.layers=2", "model.width=24", "model.heads=6", "model.seq=13", "model.vocab=53"}},
    {"llama",
     7,
     {"model.layers=2", "model.width=24", "model.heads=6", "model.kv_heads=3", "model.hidden=40",
      "model.seq=13", "model.vocab=53", "model.window=5"}},
    {"seq2seq",
     7,
     {"model.layers=2", "model.width=24", "model.heads=6", "model.hidden=40", "model.seq=13",
      "model.source=11", "model.vocab=53"}},
    {"bert",
     7,
     {"model.layers=2", "model.width=24", "model.heads=6", "model.hidden=40", "model.seq=13",
      "model.vocab=53", "model.mask=3"}},
};

typedef struct strategy {
    const char *mesh;
    int zero;
    const char *schedule; /* of a pipeline, and how many micro-batches; else NULL */
    int micro;
    const char *sequence; /* parallel.sequence; NULL: as it is */
} strategy;

/* Meshes; behind a /: ZeRO, a pipeline's schedule*micro-batches, parallel.sequence. */
static const char strategies[] =
    "data=2 data=2/1 data=2/2 data=2/3 tensor=2 height=2 width=2 channel=2 filter=2"
    " sequence=2 data=3 data=3/3 tensor=3 height=3 width=3 channel=3 filter=3 sequence=3"
    " data=4 data=4/2 tensor=4 sequence=4 sequence=2/rows sequence=3/rows sequence=4/rows"
    " data=2,tensor=2 data=2,tensor=2/1 data=2,tensor=2/3 tensor=2,sequence=2"
    " data=2,sequence=2 height=2,width=2 data=2,height=2 data=2,filter=2/2 channel=2,filter=2"
    " rows=2,cols=2 data=6 data=6/3 tensor=6 data=2,tensor=3/1 data=2,filter=3/3"
    " tensor=2,sequence=3 data=2,sequence=3 height=3,width=2 channel=2,filter=3 rows=3,cols=2"
    " rows=2,cols=1,depth=3 data=2,height=2,width=2 rows=2,cols=2,depth=2 pipe=2/1f1b*3"
    " pipe=3/gpipe*2 pipe=2/zb-h1*4 pipe=3/zb-h2*3 pipe=2/interleaved*3"
    " pipe=2/breadth-first*3 pipe=2/zb-v*4 pipe=2/dualpipe-v*3 pipe=4/1f1b*5"
    " pipe=2,data=2/1f1b*3 pipe=2,data=2/1/1f1b*2 pipe=2,data=2/2/1f1b*3"
    " pipe=2,data=2/3/1f1b*3 pipe=2,tensor=2/zb-h1*3 pipe=2,height=2/1f1b*2"
    " pipe=3,sequence=2/1f1b*3 pipe=2,data=2,tensor=2/1f1b*3"
    " pipe=2,data=2,tensor=2/3/interleaved*3";
enum { MOST_STRATEGIES = 256 };

static strategy read_strategy(char *word)
{
    char *rest = NULL;
    strategy s = {.mesh = strtok_r(word, "/", &rest)};
    for (char *w; (w = strtok_r(NULL, "/", &rest));) {
        char *times = strchr(w, '*');
        if (times)
            *times = '\0', s.schedule = w, s.micro = atoi(times + 1);
        else if (*w >= '0' && *w <= '9')
            s.zero = atoi(w);
        else
            s.sequence = w;
    }
    return s;
}

static ll_err cell(ll_comm *c, const ll_verify_words *o, int m, const strategy *s, bool exact,
                   count *n, outcome *out, one *made)
{
    one x = begin(models[m].name, o);
    for (int i = 0; i < 8 && models[m].sizes[i]; i++) ADD(&x, "%s", models[m].sizes[i]);
    ADD(&x, "parallel.mesh=%s", s->mesh);
    if (s->schedule) {
        int each = (models[m].batch + 1) / 2;
        ADD(&x, "parallel.schedule=%s", s->schedule);
        ADD(&x, "train.batch=%d", each * s->micro);
        ADD(&x, "train.micro_batch=%d", each);
    } else
        ADD(&x, "train.batch=%d", models[m].batch);
    if (s->sequence) ADD(&x, "parallel.sequence=%s", s->sequence);
    if (s->zero) ADD(&x, "parallel.zero=%d", s->zero);
    if (exact) ADD(&x, "parallel.exact=true");
    ll_err rc = attempt(c, o, &x, out);
    if (rc == LL_OK) take(c, &x, o, -1, *out, n);
    ll_arena_free(x.arena);
    *made = x;
    return rc;
}

static json_t *row_json(int m, const strategy *s, const one *a, const one *b, outcome plain,
                        outcome exact)
{
    return LL_JSON(
        LL_IS("model", models[m].name), LL_IS("mesh", s->mesh), LL_IS("schedule", s->schedule),
        LL_IS("micro_batches", s->schedule ? s->micro : 1), LL_IS("sequence", s->sequence),
        LL_IS("zero", s->zero), LL_IS("ok", json_boolean(plain == ALIKE && exact != WRONG)),
        LL_IS("max_rel_diff", a->v.max_rel_diff[0]),
        LL_IS("f64_rel_diff", a->v.worst[1][0] ? a->v.max_rel_diff[1] : NAN),
        LL_IS("exact_differing",
              exact == REFUSED ? json_null() : json_integer(exact == ALIKE ? 0 : b->v.differing)),
        LL_IS("seconds", a->took + b->took));
}

/* What cells that are not exact have. */
static const char *sums_of(const ll_verify_words *o)
{
    const char *said = ll_words_said(&o->set, "train.precision");
    return said ? said : "f32";
}

/* Exact sums are of f32 alone: in another precision there is no case to try. */
static bool has_exact(const ll_verify_words *o)
{
    return !strcmp(sums_of(o), "f32");
}

static ll_err row(ll_comm *c, const ll_verify_words *o, int m, const strategy *s, count *n)
{
    outcome plain, exact = REFUSED;
    one a, b = {0};
    TRY(cell(c, o, m, s, false, n, &plain, &a));
    if (plain == REFUSED) return LL_OK; /* nothing there to cut so */
    if (has_exact(o)) TRY(cell(c, o, m, s, true, n, &exact, &b));
    n->n_row++;
    if (ll_comm_rank(c) != 0) return LL_OK;
    if (o->json) {
        json_array_append_new(n->rows, row_json(m, s, &a, &b, plain, exact));
        return LL_OK;
    }
    char f64[32] = "", bits[32] = "none", how[64];
    snprintf(how, sizeof how, "%s%s%s", s->mesh, s->sequence ? " by " : "",
             s->sequence ? s->sequence : "");
    if (s->schedule) snprintf(how, sizeof how, "%s (%s of %d)", s->mesh, s->schedule, s->micro);
    if (a.v.worst[1][0]) snprintf(f64, sizeof f64, "%.1e", a.v.max_rel_diff[1]);
    if (exact == WRONG) snprintf(bits, sizeof bits, "%ld", b.v.differing);
    if (exact == REFUSED) snprintf(bits, sizeof bits, has_exact(o) ? "refused" : "needs f32");
    printf("| %-9s | %-40s | %d | %.1e%s | %-7s | %-4s | %4.1f s |\n", models[m].name, how, s->zero,
           a.v.max_rel_diff[0], plain == ALIKE ? "" : " WRONG", f64, bits, a.took + b.took);
    fflush(stdout);
    return LL_OK;
}

static count begin_count(const ll_comm *c, const ll_verify_words *o)
{
    if (!o->json || ll_comm_rank(c)) return (count){0};
    return (count){
        .rows = o->fuzz > 0 ? NULL : json_array(), .wrong = json_array(), .corners = json_array()};
}

/* On rank 0, which has the lists. */
static ll_err tell_sum(const ll_verify_words *o, const count *n, int ranks, double seconds)
{
    if (o->json)
        TRY(ll_cli_json(LL_JSON(LL_IS("ok", json_boolean(!n->of[WRONG])),
                                LL_IS("alike", n->of[ALIKE]), LL_IS("judged_in_f64", n->in_f64),
                                LL_IS("different", n->of[WRONG]), LL_IS("refused", n->of[REFUSED]),
                                LL_IS("ranks", ranks), LL_IS("steps", o->steps),
                                LL_IS("seconds", seconds), LL_IF(o->fuzz > 0, "seed", o->seed),
                                LL_IF(o->fuzz <= 0, "rows", n->rows), LL_IS("wrong", n->wrong),
                                LL_IS("decided_by_rounding", n->corners))));
    if (!o->json && n->n_row)
        printf("%ld rows, each with %s sums%s: ", n->n_row, sums_of(o),
               has_exact(o) ? " and exact ones" : " (exact ones need f32)");
    if (!o->json)
        printf("%ld alike (%ld judged in f64 too), %ld different, %ld"
               " cannot be cut so; %s each, %.0f s\n",
               n->of[ALIKE], n->in_f64, n->of[WRONG], n->of[REFUSED], LL_COUNTED(o->steps, "step"),
               seconds);
    CHECK(!n->of[WRONG], LL_E_DIFFER, "%ld of these do not train what one process trains",
          n->of[WRONG]);
    CHECK(n->of[ALIKE] || o->fuzz > 0, LL_E_SHARD,
          "nothing was proved: none can be cut so; the first: %s", n->refused);
    return LL_OK;
}

static ll_err sum_up(ll_comm *c, const ll_verify_words *o, const count *n, double began)
{
    bool leads = ll_comm_rank(c) == 0;
    return ll_comm_agree(c, leads ? tell_sum(o, n, ll_comm_size(c), ll_now() - began) : LL_OK);
}

/* Those of the list; and of --pipelines every schedule on two to four stages, with few
 * micro-batches and many (2bw, the last, has two or more). */
static int list_all(const ll_verify_words *o, ll_arena *a, strategy list[MOST_STRATEGIES])
{
    static const int micro[] = {1, 2, 5, 8};
    int n = 0;
    char *rest = NULL, *words = ll_arena_strdup(a, strategies);
    for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        list[n++] = read_strategy(w);
    for (int p = 2; p <= 4 && o->pipelines; p++)
        for (int k = 0; ll_pipeline_name(k); k++)
            for (int i = !ll_pipeline_name(k + 1); i < 4; i++)
                list[n++] = (strategy){.mesh = ll_arena_printf(a, "pipe=%d", p),
                                       .schedule = ll_pipeline_name(k),
                                       .micro = micro[i]};
    LL_ASSERT(n <= MOST_STRATEGIES);
    return n;
}

static bool is_asked(int ranks, const ll_verify_words *o, const strategy *s)
{
    ll_mesh mesh;
    const char *only = ll_words_said(&o->set, "parallel.mesh");
    if (only && strcmp(only, s->mesh)) return false;
    return ll_mesh_parse(s->mesh, &mesh) == LL_OK && mesh.n_rank <= ranks;
}

static int list_asked(int ranks, const ll_verify_words *o, ll_arena *a,
                      strategy list[MOST_STRATEGIES])
{
    int n = 0, all = list_all(o, a, list);
    for (int i = 0; i < all; i++)
        if (is_asked(ranks, o, &list[i])) list[n++] = list[i];
    return n;
}

ll_err ll_verify_matrix_has(const ll_verify_words *o, int ranks)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    strategy list[MOST_STRATEGIES];
    char names[256] = "";
    bool known = !o->run;
    for (int m = 0; m < (int)(sizeof models / sizeof *models); m++) {
        known |= o->run && !strcmp(o->run, models[m].name);
        snprintf(names + strlen(names), sizeof names - strlen(names), " %s", models[m].name);
    }
    CHECK(known, LL_E_ARG, "the matrix has no model '%s' (models:%s)", o->run, names);
    CHECK(list_asked(ranks, o, a, list), LL_E_ARG,
          "no strategy of the matrix has this mesh and at most %d ranks: leave out --mesh to print "
          "them all (--pipelines: and every schedule)",
          ranks);
    return LL_OK;
}

ll_err ll_verify_matrix(ll_comm *c, const ll_verify_words *o)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    strategy list[MOST_STRATEGIES];
    int n_list = list_asked(ll_comm_size(c), o, a, list);
    count n = begin_count(c, o);
    double began = ll_now();
    if (ll_comm_rank(c) == 0 && !o->json)
        printf("| model     | mesh (schedule of so many micro-batches)  | zero | worst difference "
               "| in f64 | exact: bits that differ | time |\n|---|---|---|---|---|---|---|\n");
    for (int m = 0; m < (int)(sizeof models / sizeof *models); m++)
        for (int i = 0; i < n_list; i++)
            if (!o->run || !strcmp(o->run, models[m].name)) TRY(row(c, o, m, &list[i], &n));
    if (ll_comm_rank(c) == 0 && !o->json) printf("\n");
    return sum_up(c, o, &n, began);
}

/* ---- at random ---- */

typedef struct dice {
    uint64_t seed, stream, i;
} dice;

static int64_t draw(dice *d, int64_t n)
{
    return (int64_t)ll_below_at(d->seed, d->stream, d->i++, (uint64_t)n);
}

static void draw_sizes(dice *d, one *c)
{
    int64_t heads = 1 + draw(d, 6);
    if (!strcmp(c->model, "gpt")) {
        ADD(c, "model.layers=%ld", 1 + draw(d, 3));
        ADD(c, "model.heads=%ld", heads);
        ADD(c, "model.width=%ld", heads * (2 + draw(d, 7)));
        ADD(c, "model.seq=%ld", 2 + draw(d, 16));
        ADD(c, "model.vocab=%ld", 7 + draw(d, 60));
        if (!draw(d, 4)) ADD(c, "model.dropout=100");
        int64_t linear = draw(d, 4); /* attention; heads that forget */
        if (linear > 1) ADD(c, "model.linear=1");
        if (linear > 2) ADD(c, "model.decay=%ld", 1 + draw(d, 5));
        return;
    }
    bool lenet = !strcmp(c->model, "lenet5");
    ADD(c, "model.image=%ld", (lenet ? 16 : 4) + draw(d, 14));
    ADD(c, "model.channels=%ld", 1 + draw(d, 4));
    ADD(c, "model.classes=%ld", 2 + draw(d, 12));
    if (!lenet) ADD(c, "model.width=%ld", 2 + draw(d, 8));
    if (!strcmp(c->model, "mlp")) ADD(c, "model.depth=%ld", draw(d, 4));
}

typedef struct drawn_mesh {
    bool data, sequence;
    int64_t pipe; /* 0: there is none */
} drawn_mesh;

/* Up to three axes, and a pipeline in some, of as many ranks as there are at most. */
static drawn_mesh draw_mesh(dice *d, one *c, int64_t ranks)
{
    static const char *const images[] = {"data", "tensor", "channel", "filter", "rows",
                                         "cols", "depth",  "height",  "width"};
    static const char *const text[] = {"data",   "tensor", "sequence", "channel",
                                       "filter", "rows",   "cols",     "depth"};
    bool gpt = !strcmp(c->model, "gpt"), mlp = !strcmp(c->model, "mlp");
    drawn_mesh m = {0};
    char mesh[128] = "";
    size_t len = 0;
    unsigned used = 0;
    if (!draw(d, 2)) m.pipe = 2 + draw(d, (ranks < 4 ? ranks : 4) - 1);
    bool inner = draw(d, 2); /* the pipeline's ranks lie side by side */
    if (m.pipe) ranks /= m.pipe;
    if (m.pipe && !inner) len = (size_t)snprintf(mesh, sizeof mesh, "pipe=%ld", m.pipe);
    for (int i = 0; i < 3 && ranks > 1 && ((i == 0 && !m.pipe) || draw(d, 2)); i++) {
        int64_t k = draw(d, gpt ? 8 : mlp ? 7 : 9), size = 2 + draw(d, ranks - 1);
        if (used >> k & 1) continue;
        used |= 1u << k;
        m.data |= k == 0;
        m.sequence |= gpt && k == 2;
        len += (size_t)snprintf(mesh + len, sizeof mesh - len, "%s%s=%ld", len ? "," : "",
                                (gpt ? text : images)[k], size);
        ranks /= size;
    }
    if (m.pipe && inner)
        snprintf(mesh + len, sizeof mesh - len, "%spipe=%ld", len ? "," : "", m.pipe);
    ADD(c, "parallel.mesh=%s", mesh);
    return m;
}

/* A schedule, but 2bw, the last, which wants two micro-batches; and where it may have any number of
 * stages, how many a rank has. */
static void draw_pipeline(dice *d, one *c)
{
    int n = 0;
    while (ll_pipeline_name(n + 1)) n++;
    const char *name = ll_pipeline_name((int)draw(d, n));
    ADD(c, "parallel.schedule=%s", name);
    bool any = !strcmp(name, "interleaved") || !strcmp(name, "breadth-first");
    if (any && draw(d, 2)) ADD(c, "parallel.virtual_stages=%ld", 1 + draw(d, 3));
}

static void draw_training(dice *d, one *c, drawn_mesh m)
{
    static const char *const optimizers[] = {
        "sgd",   "momentum", "nesterov", "adagrad", "rmsprop", "adam",
        "adamw", "lars",     "larc",     "lamb",    "muon",    "schedule-free-adamw"};
    static const char *const overlap[] = {"auto", "none", "all"};
    static const char *const sequence[] = {"auto", "heads", "rows"};
    static const char *const recompute[] = {"none", "selective", "full"};
    int64_t micro = m.pipe ? 1 + draw(d, 5) : draw(d, 4) ? 1 : 2 + draw(d, 2);
    int64_t each = 1 + draw(d, micro > 2 ? 6 : 12);
    if (!strcmp(c->model, "resnet18")) each += 2; /* a batch norm of one number is none */
    bool exact = !draw(d, 4);
    ADD(c, "train.batch=%ld", micro * each);
    if (micro > 1) ADD(c, "train.micro_batch=%ld", each);
    ADD(c, "train.optimizer=%s", optimizers[draw(d, 12)]);
    ADD(c, "train.seed=%ld", draw(d, 1000));
    if (draw(d, 2)) ADD(c, "train.clip=0.5");
    if (draw(d, 2)) ADD(c, "train.weight_decay=0.1");
    ADD(c, "parallel.overlap=%s", overlap[draw(d, 3)]);
    if (m.sequence) ADD(c, "parallel.sequence=%s", sequence[exact ? 2 * draw(d, 2) : draw(d, 3)]);
    int64_t zero = m.data ? draw(d, 4) : 0;
    if (zero) ADD(c, "parallel.zero=%ld", zero);
    if (exact) ADD(c, "parallel.exact=true");
    if (!exact && !draw(d, 8)) ADD(c, "train.precision=bf16");
    if (!exact && m.data && !zero && !draw(d, 4)) ADD(c, "parallel.compress=factors");
    ADD(c, "parallel.recompute=%s", recompute[draw(d, 3)]);
    c->limited = !draw(d, 4);
    if (!c->limited && m.pipe && !draw(d, 3)) ADD(c, "parallel.post_validation=true");
    if (!c->limited) return;
    ADD(c, "train.memory=%ldkB", 50 + draw(d, 1000));
    if (!m.pipe || draw(d, 2)) ADD(c, "train.offload=/tmp");
}

static one draw_case(const ll_verify_words *o, int64_t number, int64_t ranks)
{
    static const char *const names[] = {"mlp", "lenet5", "resnet18", "gpt", "gpt"};
    dice d = {(uint64_t)o->seed, ll_stream("verify", (uint64_t)number), 0};
    int64_t k = draw(&d, 5);
    one c = begin(o->run ? o->run : names[k], o);
    draw_sizes(&d, &c);
    drawn_mesh m = draw_mesh(&d, &c, 2 + draw(&d, ranks - 1));
    if (m.pipe && draw(&d, 8)) draw_pipeline(&d, &c);
    draw_training(&d, &c, m);
    return c;
}

static ll_err drawn(ll_comm *world, const ll_verify_words *o, int64_t number, count *n)
{
    one c = draw_case(o, number, ll_comm_size(world));
    outcome out;
    ll_err rc = attempt(world, o, &c, &out);
    if (rc == LL_OK) take(world, &c, o, number, out, n);
    if (rc != LL_OK && ll_comm_rank(world) == 0)
        tell(&c, o, number, "WRONG", ll_error_text(), n->wrong);
    ll_arena_free(c.arena);
    return rc;
}

ll_err ll_verify_fuzz(ll_comm *c, const ll_verify_words *o)
{
    double began = ll_now(), said = began;
    CHECK(ll_comm_size(c) >= 2, LL_E_ARG, "--fuzz needs ranks: use -n 2 to -n 8");
    count n = begin_count(c, o);
    for (int64_t i = 0;; i++) {
        double over = ll_now() - began >= o->fuzz;
        TRY(ll_comm_broadcast(c, &over, 1, LL_F64, 0, NULL));
        if (over > 0) break;
        TRY(drawn(c, o, i, &n));
        if (ll_comm_rank(c) != 0 || ll_now() < said + 10) continue;
        said = ll_now();
        fprintf(stderr, "%ld drawn, %ld different, %ld cannot be cut so\n", i + 1, n.of[WRONG],
                n.of[REFUSED]);
    }
    if (ll_comm_rank(c) == 0 && !o->json)
        printf("%ld drawn with --seed %ld on up to %d ranks: ",
               n.of[ALIKE] + n.of[WRONG] + n.of[REFUSED], o->seed, ll_comm_size(c));
    return sum_up(c, o, &n, began);
}
