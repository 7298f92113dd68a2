/* pipeline_text.c: schedules as text, a line a rank.
 *
 *     # two ranks              PyTorch's:
 *     F0 F1 B0 B1              0F0,0F1,,,0B0,,0B1
 *     F0 B0 F1 B1              ,1F0,1B0,1F1,1B1
 *
 * A '-' behind an action, which PyTorch has not: it is of the batch before.
 *
 * Readers are strict. What they return is well formed, no larger than its text, and still to be
 * checked (ll_pipeline_check). */
#include "sched/pipeline_int.h"

#include <string.h>

enum { STAGES = LL_PIPELINE_RANKS * LL_PIPELINE_PER_RANK };

typedef struct word {
    const char *at, *end;
} word;

typedef struct reader {
    ll_arena *arena;
    const char *name;
    const ll_action **actions; /* [LL_PIPELINE_RANKS] */
    int *n_action, *rank_of;   /* of stages, 1 for rank 0; 0: nowhere yet */
    ll_action *list;           /* of the line */
    int line, n_word, capacity, n_rank, n_stage, n_micro;
    int64_t n;
} reader;

#define REFUSE(r, w, ...)                                                                          \
    FAIL(LL_E_ARG, "%s, line %d, word %d (%.*s): %s", (r)->name, (r)->line, (r)->n_word + 1,       \
         (int)((w).end - (w).at > 24 ? 24 : (w).end - (w).at), (w).at, __VA_ARGS__)

/* Digits that make a number below limit, taken off the word. */
static bool take_number(word *w, int limit, int *out)
{
    const char *from = w->at;
    int64_t n = 0;
    for (; w->at < w->end && *w->at >= '0' && *w->at <= '9'; w->at++) {
        n = 10 * n + *w->at - '0';
        if (n >= limit) return false;
    }
    *out = (int)n;
    return w->at > from;
}

static bool take_kind(word *w, ll_action_kind *out)
{
    static const char letters[] = "FBIW";
    const char *found = w->at < w->end ? memchr(letters, *w->at, 4) : NULL;
    if (found) *out = (ll_action_kind)(found - letters);
    if (found) w->at++;
    return found;
}

/* The end of an action: '-', or nothing. */
static bool take_end(word w, ll_action *out)
{
    out->before = w.at < w.end && *w.at == '-';
    return w.at + out->before == w.end;
}

/* "F3.0", "F3". */
static bool take_action(const reader *r, word w, ll_action *out)
{
    out->stage = r->n_rank;
    if (!take_kind(&w, &out->kind) || !take_number(&w, LL_PIPELINE_MICROS, &out->micro))
        return false;
    if (w.at < w.end && *w.at == '.' && (w.at++, !take_number(&w, STAGES, &out->stage)))
        return false;
    return take_end(w, out);
}

/* "0F3". */
static bool take_cell(const reader *, word w, ll_action *out)
{
    return take_number(&w, STAGES, &out->stage) && take_kind(&w, &out->kind) &&
           take_number(&w, LL_PIPELINE_MICROS, &out->micro) && take_end(w, out);
}

typedef struct format {
    const char *between, *want; /* words */
    bool (*take)(const reader *, word, ll_action *);
} format;

static const format lines = {" \t\r", "not F, B, I or W, micro-batch, '.', stage, such as F3.0",
                             take_action};
static const format cells = {",", "not stage, F, B, I or W, micro-batch, such as 0F3", take_cell};

static ll_err put(reader *r, word w, const format *f)
{
    ll_action a;
    if (!f->take(r, w, &a)) REFUSE(r, w, f->want);
    int *rank = &r->rank_of[a.stage];
    if (*rank && *rank != r->n_rank + 1) REFUSE(r, w, "the stage is another rank's already");
    *rank = r->n_rank + 1;
    LL_PUSH(r->arena, r->list, r->n_word, r->capacity, a);
    if (a.stage >= r->n_stage) r->n_stage = a.stage + 1;
    if (a.micro >= r->n_micro) r->n_micro = a.micro + 1;
    return LL_OK;
}

static word trim(word w)
{
    while (w.at < w.end && strchr(" \t\r", *w.at) && *w.at) w.at++;
    while (w.end > w.at && strchr(" \t\r", w.end[-1]) && w.end[-1]) w.end--;
    return w;
}

/* A line: a rank, or nothing. */
static ll_err read_line(reader *r, word line, const format *f)
{
    line = trim(line);
    if (line.at == line.end) return LL_OK;
    CHECK(r->n_rank < LL_PIPELINE_RANKS, LL_E_ARG, "%s, line %d: more than %d ranks", r->name,
          r->line, LL_PIPELINE_RANKS);
    r->n_word = 0;
    for (word w = {line.at, line.at}; w.at < line.end; w.at = w.end + 1) {
        for (w.end = w.at; w.end < line.end && !(*w.end && strchr(f->between, *w.end));) w.end++;
        word bare = trim(w);
        if (bare.at < bare.end) TRY(put(r, bare, f));
    }
    CHECK(r->n_word, LL_E_ARG, "%s, line %d: a rank that does nothing", r->name, r->line);
    r->actions[r->n_rank] = ll_arena_copy(r->arena, r->list, sizeof *r->list * (size_t)r->n_word);
    r->n_action[r->n_rank++] = r->n_word;
    r->n += r->n_word;
    return LL_OK;
}

/* Every stage has a rank, and there is enough text for what its numbers say. */
static ll_err finish(reader *r, const ll_pipeline **out)
{
    CHECK(r->n_rank, LL_E_ARG, "%s: no rank does anything", r->name);
    for (int s = 0; s < r->n_stage; s++)
        CHECK(r->rank_of[s]-- > 0, LL_E_ARG, "%s: no rank has stage %d", r->name, s);
    TRY(ll_pipeline_sizes(r->n_rank, r->n_stage, r->n_micro));
    CHECK(r->n >= 2 * (int64_t)r->n_stage * r->n_micro, LL_E_ARG,
          "%s: %ld actions are too few for %d stages of %d micro-batches", r->name, r->n,
          r->n_stage, r->n_micro);
    ll_pipeline p = {ll_arena_strdup(r->arena, r->name), r->n_rank, r->n_stage, r->n_micro};
    p.rank_of = r->rank_of;
    p.n_action = r->n_action;
    p.actions = r->actions;
    *out = ll_pipeline_keep(r->arena, p);
    return LL_OK;
}

ll_err ll_pipeline_parse(ll_arena *arena, const char *from, size_t size, const char *name,
                         const ll_pipeline **out)
{
    reader r = {.arena = arena, .name = name};
    word text = {from, from + size}, bare = text;
    while (bare.at < bare.end && *bare.at && strchr(" \t\r\n", *bare.at)) bare.at++;
    bool csv = bare.at < bare.end && *bare.at && strchr(",0123456789", *bare.at);
    const format *f = csv ? &cells : &lines;
    LL_ARRAYS(arena, LL_PIPELINE_RANKS, r.actions, r.n_action);
    r.rank_of = LL_NEW_ARRAY(arena, int, STAGES);
    while (text.at < text.end) {
        const char *end = memchr(text.at, '\n', (size_t)(text.end - text.at));
        if (!end) end = text.end;
        const char *comment = memchr(text.at, '#', (size_t)(end - text.at));
        r.line++;
        TRY(read_line(&r, (word){text.at, comment ? comment : end}, f));
        text.at = end < text.end ? end + 1 : end;
    }
    return finish(&r, out);
}

void ll_pipeline_print(ll_buf *b, const ll_pipeline *p)
{
    ll_buf_printf(b, "# %d ranks, %d stages, %d micro-batches\n", p->n_rank, p->n_stage,
                  p->n_micro);
    for (int r = 0; r < p->n_rank; r++)
        for (int k = 0; k < p->n_action[r]; k++)
            ll_buf_printf(b, "%s%c", LL_ACTION(p->actions[r][k]),
                          k + 1 < p->n_action[r] ? ' ' : '\n');
}

void ll_pipeline_print_csv(ll_buf *b, const ll_pipeline *p)
{
    for (int r = 0; r < p->n_rank; r++)
        for (int k = 0; k < p->n_action[r]; k++) {
            ll_action a = p->actions[r][k];
            ll_buf_printf(b, "%d%c%d%s%c", a.stage, "FBIW"[a.kind], a.micro, a.before ? "-" : "",
                          k + 1 < p->n_action[r] ? ',' : '\n');
        }
}
