/* bpe_train.c: merges learnt from text (Sennrich et al., 2016): the pair of tokens that stands
 * beside each other most often becomes a token, again and again; of equally many the pair of lower
 * numbers. Words are counted first, by threads, in chunks of a fixed size that end where words do;
 * then a merge touches only the words that have its pair. */
#include "token/bpe.h"

#include "base/heap.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 };

/* ---- words and how often they are there ---- */

typedef struct word {
    const char *text;
    int n;
    int64_t count;
    int *token;
} word;

typedef struct bag {
    word *v;
    int64_t n, room; /* room: a power of two; v is the table */
    bool failed;
} bag;

static uint64_t hash_of(const char *p, size_t n)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)p[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static void bag_add(bag *b, const char *text, size_t n, int64_t count);

static void bag_grow(bag *b)
{
    bag next = {.room = b->room ? 2 * b->room : 1024};
    next.v = (word *)calloc((size_t)next.room, sizeof *next.v);
    b->failed |= !next.v;
    if (!next.v) return;
    for (int64_t i = 0; i < b->room; i++)
        if (b->v[i].count) bag_add(&next, b->v[i].text, (size_t)b->v[i].n, b->v[i].count);
    free(b->v);
    *b = next;
}

static void bag_add(bag *b, const char *text, size_t n, int64_t count)
{
    if (2 * b->n >= b->room) bag_grow(b);
    if (b->failed) return;
    uint64_t i = hash_of(text, n);
    word *w;
    while ((w = &b->v[i & (uint64_t)(b->room - 1)])->count &&
           (w->n != (int)n || memcmp(w->text, text, n)))
        i++;
    if (!w->count) b->n++;
    w->text = text;
    w->n = (int)n;
    w->count += count;
}

static void count_piece(void *user, const char *text, size_t n)
{
    if (n < 1 << 16) bag_add((bag *)user, text, n, 1); /* longer ones are no words */
}

/* The chunk's end: at or after it, a blank behind something that is none. */
static size_t chunk_end(const char *text, size_t size, size_t at)
{
    if (at >= size) return size;
    while (at < size && !(text[at] == ' ' && text[at - 1] != ' ' && text[at - 1] != '\n')) at++;
    return at;
}

static ll_err count_text(const ll_pretok *split, int threads, const char *text, size_t size,
                         bag *all)
{
    int64_t chunks = (int64_t)(size / CHUNK) + 1;
    bag *part = (bag *)calloc((size_t)chunks, sizeof *part);
    ll_err rc = LL_OK;
    CHECK(part, LL_E_MEM, "not enough memory to count words");
#pragma omp parallel for num_threads(threads < 1 ? 1 : threads) schedule(dynamic)
    for (int64_t i = 0; i < chunks; i++) {
        size_t from = i ? chunk_end(text, size, (size_t)i * CHUNK) : 0;
        size_t to = chunk_end(text, size, (size_t)(i + 1) * CHUNK);
        ll_err mine = to > from
                          ? ll_pretok_text(split, text + from, to - from, count_piece, &part[i])
                          : LL_OK;
        if (mine != LL_OK || part[i].failed)
#pragma omp critical
            rc = mine != LL_OK ? mine : LL_E_MEM;
    }
    for (int64_t i = 0; i < chunks; i++) {
        for (int64_t k = 0; k < part[i].room; k++)
            if (part[i].v[k].count)
                bag_add(all, part[i].v[k].text, (size_t)part[i].v[k].n, part[i].v[k].count);
        free(part[i].v);
    }
    free(part);
    CHECK(rc == LL_OK && !all->failed, rc == LL_OK ? LL_E_MEM : rc, "words cannot be counted: %s",
          rc == LL_OK ? "no memory" : ll_error_text());
    return LL_OK;
}

static int by_text(const void *a, const void *b)
{
    const word *x = (const word *)a, *y = (const word *)b;
    int n = x->n < y->n ? x->n : y->n, c = memcmp(x->text, y->text, (size_t)n);
    return c ? c : x->n - y->n;
}

/* ---- pairs ---- */

typedef struct pair {
    int a, b;
    int64_t count;
    int *where, n, room; /* words, some of which may have it no more */
    bool touched;
} pair;
typedef struct waiting {
    int64_t count;
    int pair, a, b;
} waiting;

typedef struct learner {
    ll_arena *arena;
    word *words;
    int64_t n_word;
    pair *pairs;
    int n_pair, room_pair;
    int *table; /* pair + 1, by (a,b) */
    unsigned mask;
    waiting *heap;
    int n_heap, room_heap;
    int *touched, n_touched, room_touched;
} learner;

static unsigned slot_of(const learner *l, int a, int b)
{
    uint64_t h = ((uint64_t)(unsigned)a << 32 | (unsigned)b) * 0x9E3779B97F4A7C15u;
    unsigned i = (unsigned)(h >> 32);
    for (; l->table[i & l->mask]; i++) {
        const pair *p = &l->pairs[l->table[i & l->mask] - 1];
        if (p->a == a && p->b == b) break;
    }
    return i & l->mask;
}

static void grow_table(learner *l)
{
    l->mask = l->mask ? 2 * l->mask + 1 : (1 << 16) - 1;
    l->table = LL_NEW_ARRAY(l->arena, int, (size_t)l->mask + 1);
    for (int i = 0; i < l->n_pair; i++) l->table[slot_of(l, l->pairs[i].a, l->pairs[i].b)] = i + 1;
}

static int pair_of(learner *l, int a, int b)
{
    if (2u * (unsigned)l->n_pair >= l->mask) grow_table(l);
    unsigned at = slot_of(l, a, b);
    if (l->table[at]) return l->table[at] - 1;
    LL_PUSH(l->arena, l->pairs, l->n_pair, l->room_pair, (pair){.a = a, .b = b});
    l->table[at] = l->n_pair;
    return l->n_pair - 1;
}

/* More or fewer of a pair, in a word. */
static void change(learner *l, int a, int b, int64_t by, int in)
{
    int k = pair_of(l, a, b);
    pair *p = &l->pairs[k];
    p->count += by;
    if (by > 0 && (!p->n || p->where[p->n - 1] != in))
        LL_PUSH(l->arena, p->where, p->n, p->room, in);
    if (p->touched) return;
    p->touched = true;
    LL_PUSH(l->arena, l->touched, l->n_touched, l->room_touched, k);
}

static bool first(const waiting *x, const waiting *y)
{
    if (x->count != y->count) return x->count > y->count;
    return x->a != y->a ? x->a < y->a : x->b < y->b;
}

LL_HEAP(waiting, first)

static void push_touched(learner *l)
{
    for (int t = 0; t < l->n_touched; t++) {
        pair *p = &l->pairs[l->touched[t]];
        p->touched = false;
        if (p->count <= 0) continue;
        l->heap =
            (waiting *)ll_arena_grow(l->arena, l->heap, sizeof *l->heap, l->n_heap, &l->room_heap);
        heap_push(l->heap, &l->n_heap, (waiting){p->count, l->touched[t], p->a, p->b});
    }
    l->n_touched = 0;
}

/* The pair that is there most often; -1: none that is there twice. */
static int pop_most(learner *l)
{
    while (l->n_heap) {
        waiting top = heap_pop(l->heap, &l->n_heap);
        if (top.count == l->pairs[top.pair].count) return top.count > 1 ? top.pair : -1;
    }
    return -1;
}

static void merge_in(learner *l, int at, int a, int b, int to)
{
    word *w = &l->words[at];
    int n = 0;
    for (int i = 0; i < w->n; i++) {
        if (i + 1 == w->n || w->token[i] != a || w->token[i + 1] != b) {
            w->token[n++] = w->token[i];
            continue;
        }
        if (n) {
            change(l, w->token[n - 1], a, -w->count, at);
            change(l, w->token[n - 1], to, w->count, at);
        }
        if (i + 2 < w->n) {
            change(l, b, w->token[i + 2], -w->count, at);
            change(l, to, w->token[i + 2], w->count, at);
        }
        change(l, a, b, -w->count, at);
        w->token[n++] = to;
        i++;
    }
    w->n = n;
}

/* Makes tokens from number `next` on; merges[i]: of which two. */
static int learn(learner *l, int next, int vocab, ll_merge *merges)
{
    int made = 0;
    for (int64_t i = 0; i < l->n_word; i++)
        for (int k = 0; k + 1 < l->words[i].n; k++)
            change(l, l->words[i].token[k], l->words[i].token[k + 1], l->words[i].count, (int)i);
    push_touched(l);
    for (; next < vocab; next++) {
        int k = pop_most(l);
        if (k < 0) break;
        int a = l->pairs[k].a, b = l->pairs[k].b;
        merges[made] = (ll_merge){a, b, next, made};
        made++;
        for (int i = 0; i < l->pairs[k].n; i++) merge_in(l, l->pairs[k].where[i], a, b, next);
        push_touched(l);
    }
    return made;
}

/* The special token, the bytes, and what they were merged to. */
static ll_err write(const char *special, const char *split, const ll_merge *m, int n, ll_arena *a,
                    const char *path)
{
    LL_OWN(ll_tokenizer) t = ll_tokenizer_new(path);
    const char *const *p = ll_pretok_known(split);
    ll_token *k = t->tokens = LL_NEW_ARRAY(a, ll_token, 257 + n);
    t->n = 257 + n;
    k[0] = (ll_token){special, (int)strlen(special), LL_TOKEN_SPECIAL};
    for (int i = 0; i < 256; i++)
        k[1 + i] = (ll_token){(char *)ll_arena_copy(a, &(char){(char)i}, 1), 1, LL_TOKEN_TEXT};
    for (int i = 0; i < n; i++) {
        const ll_token *x = &k[m[i].a], *y = &k[m[i].b];
        char *both = (char *)ll_arena_alloc(a, (size_t)(x->length + y->length));
        memcpy(both, x->bytes, (size_t)x->length);
        memcpy(both + x->length, y->bytes, (size_t)y->length);
        k[257 + i] = (ll_token){both, x->length + y->length, LL_TOKEN_TEXT};
    }
    while (p[t->n_cut]) t->cuts[t->n_cut] = p[t->n_cut], t->n_cut++;
    TRY(ll_tokenizer_finish(t, m, n));
    return ll_tokenizer_save_json(t, path);
}

static ll_err train(const ll_bpe_opts *o, bag *all, ll_arena *a, const char *split,
                    const char *path, int *made)
{
    learner l = {.arena = a, .words = LL_NEW_ARRAY(a, word, all->n + 1)};
    for (int64_t i = 0; i < all->room; i++)
        if (all->v[i].count) l.words[l.n_word++] = all->v[i];
    CHECK(l.n_word && l.n_word < INT32_MAX, LL_E_ARG, "%s",
          l.n_word ? "too many different words" : "the text has no words");
    qsort(l.words, (size_t)l.n_word, sizeof *l.words, by_text);
    for (int64_t i = 0; i < l.n_word; i++) {
        word *w = &l.words[i];
        w->token = LL_NEW_ARRAY(a, int, w->n);
        for (int k = 0; k < w->n; k++) w->token[k] = 1 + (unsigned char)w->text[k];
    }
    ll_merge *merges = LL_NEW_ARRAY(a, ll_merge, o->vocab + 1);
    int n = learn(&l, 257, o->vocab, merges);
    *made = 257 + n;
    return write("<|endoftext|>", split, merges, n, a, path);
}

ll_err ll_bpe_train(const ll_bpe_opts *o, const char *const *texts, const size_t *sizes, int n,
                    const char *path, int *made)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_pretok) split = NULL;
    const char *name = o->split ? o->split : LL_PRETOK_GPT2;
    const char *const *p = ll_pretok_known(name);
    bag all = {0};
    int n_pattern = 0;
    CHECK(o->vocab >= 257 && o->vocab < 1 << 22, LL_E_ARG,
          "a vocabulary of %d tokens: expected 257 (all bytes, and what ends a text) or more",
          o->vocab);
    CHECK(p, LL_E_ARG, "words are cut as %s does: that is not known", name);
    while (p[n_pattern]) n_pattern++;
    TRY(ll_pretok_open(p, n_pattern, name, &split));
    ll_err rc = LL_OK;
    for (int i = 0; i < n && rc == LL_OK; i++)
        rc = count_text(split, o->threads, texts[i], sizes[i], &all);
    if (rc == LL_OK) rc = train(o, &all, a, name, path, made);
    free(all.v);
    return rc;
}
