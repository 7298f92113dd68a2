/* weight_map.c: maps read, names and dimensions through them. */
#include "weights/weight_map.h"

#include "base/bundled.h"
#include "base/file.h"

#include <ctype.h>

enum { MAP_LIMIT = 1 << 20 };

static const ll_bundled bundled[] = {
#include "map_list.inc"
    {0}};

const char *ll_map_bundled(int i)
{
    return bundled[i].name;
}

/* ---- reading ---- */

typedef struct reader {
    ll_map *m;
    const char *at; /* what is left of the line */
    int line;
} reader;

static ll_err bad(const reader *r, const char *what)
{
    FAIL(LL_E_CONFIG,
         "%s:%d: %s, at '%.40s'; expected OURS = THEIRS : fcrs -> frsc, tied A = B, skip PATTERN, "
         "refuse PATTERN, prefix TEXT, model A : B, size A = B, want A = B, put A = B : C, "
         "default A = B : C or ignore A : B",
         r->m->name, r->line, what, r->at);
}

static void blanks(reader *r)
{
    r->at += strspn(r->at, " \t\r");
}

/* A pattern, up to a blank or comma. */
static ll_err read_name(reader *r, const char **out)
{
    blanks(r);
    size_t n = strcspn(r->at, " \t\r,=");
    if (!n) return bad(r, "a name is missing");
    *out = ll_arena_printf(r->m->arena, "%.*s", (int)n, r->at);
    r->at += n;
    blanks(r);
    return LL_OK;
}

static ll_err read_names(reader *r, const char **out, int *n)
{
    for (*n = 0; *n < LL_MAP_SEVERAL;) {
        TRY(read_name(r, &out[(*n)++]));
        if (*r->at != ',') return LL_OK;
        r->at++;
    }
    return bad(r, "too many names");
}

static int stars(const char *pattern)
{
    int n = 0;
    for (; *pattern; pattern++) n += *pattern == '*';
    return n;
}

/* "c(zhd)" */
static ll_err read_dims(reader *r, ll_map_dims *d)
{
    bool seen[LL_MAP_LETTERS] = {0}, open = false;
    blanks(r);
    for (; islower((unsigned char)*r->at) || *r->at == '(' || *r->at == ')'; r->at++) {
        char c = *r->at;
        if (c == ')' ? !open || !d->of[d->n][0] : open && c == '(')
            return bad(r, "parentheses do not match");
        if (c != ')' && d->n == LL_MAX_DIMS) return bad(r, "too many dimensions");
        if (islower((unsigned char)c)) {
            if (seen[c - 'a']) return bad(r, "a letter is used twice");
            seen[c - 'a'] = true;
            d->of[d->n][strlen(d->of[d->n])] = c;
        }
        if (c == '(') open = true;
        if (c == ')') open = false;
        if (!open) d->n++;
    }
    if (open) return bad(r, "parentheses do not match");
    blanks(r);
    return d->n ? LL_OK : bad(r, "dimensions are missing");
}

static bool has(const ll_map_dims *d, char letter)
{
    for (int i = 0; i < d->n; i++)
        if (strchr(d->of[i], letter)) return true;
    return false;
}

/* Both sides have the same letters, but for one that counts several tensors. */
static ll_err check_letters(const reader *r, ll_map_line *l)
{
    int left = 0, right = 0;
    for (char c = 'a'; c <= 'z'; c++) {
        bool there = has(&l->left, c), here = has(&l->right, c);
        if (there && !here) left++, l->size[c - 'a'] = l->n_ours;
        if (here && !there) right++, l->size[c - 'a'] = l->n_theirs;
    }
    if (left != (l->n_ours > 1) || right != (l->n_theirs > 1))
        return bad(r, "both sides must have the same letters, except for one that counts several");
    return LL_OK;
}

/* " : fcrs -> frsc h=6" */
static ll_err read_spec(reader *r, ll_map_line *l)
{
    r->at++;
    TRY(read_dims(r, &l->left));
    if (strncmp(r->at, "->", 2)) return bad(r, "'->' is missing");
    r->at += 2;
    TRY(read_dims(r, &l->right));
    for (; islower((unsigned char)*r->at) && r->at[1] == '='; blanks(r)) {
        char *end;
        long long v = strtoll(r->at + 2, &end, 10);
        if (end == r->at + 2 || v < 1 || v > 1 << 30) return bad(r, "a size is not a number");
        l->size[*r->at - 'a'] = v;
        r->at = end;
    }
    return check_letters(r, l);
}

static ll_err read_pair(reader *r, ll_map_line *l)
{
    TRY(read_names(r, l->ours, &l->n_ours));
    if (*r->at != '=') return bad(r, "'=' is missing");
    r->at++;
    TRY(read_names(r, l->theirs, &l->n_theirs));
    if (l->n_ours > 1 && l->n_theirs > 1) return bad(r, "several on both sides");
    for (int i = 0; i < l->n_ours; i++)
        for (int k = 0; k < l->n_theirs; k++)
            if (stars(l->ours[i]) != stars(l->theirs[k]) || stars(l->ours[i]) > LL_MAP_SEVERAL)
                return bad(r, "names have different numbers of *, or too many");
    if (*r->at == ':') return read_spec(r, l);
    l->plain = true;
    return l->n_ours + l->n_theirs == 2 ? LL_OK : bad(r, "several names need their dimensions");
}

/* Is this the line's first word? Then it is passed over. */
static bool word(reader *r, const char *w)
{
    size_t n = strlen(w);
    if (strncmp(r->at, w, n) || (r->at[n] != ' ' && r->at[n] != '\t')) return false;
    const char *after = r->at + n + strspn(r->at + n, " \t");
    if (*after == '=' || *after == ',') return false; /* a tensor of that name */
    r->at = after;
    return true;
}

/* "width = hidden_size * 2"; of put also " : SIZE", of default " : FORM" */
static ll_err read_key(reader *r, const char *kind)
{
    ll_map *m = r->m;
    ll_map_key k = {.kind = kind, .times = 1};
    char *end;
    TRY(read_name(r, &k.name));
    if (*r->at != (strchr("mi", *kind) ? ':' : '='))
        return bad(r, "'=' (of model and ignore ':') is missing");
    r->at++;
    TRY(read_names(r, k.of, &k.n));
    if (*r->at == '*') {
        k.times = strtod(r->at + 1, &end);
        if (end == r->at + 1) return bad(r, "a number is missing");
        k.real = true;
        r->at = end;
        blanks(r);
    }
    if (strchr("pd", *kind) && *r->at == ':') {
        r->at++;
        TRY(read_name(r, &k.when));
    }
    if (*kind == 'd' && !k.when) return bad(r, "a default is of a form");
    if (*r->at) return bad(r, "unexpected text at the end");
    LL_PUSH(m->arena, m->keys, m->n_key, m->key_capacity, k);
    return LL_OK;
}

static ll_err read_line(reader *r)
{
    static const char *const keys[] = {"model", "size", "want", "put", "default", "ignore"};
    ll_map *m = r->m;
    ll_map_line l = {.kind = ""};
    blanks(r);
    if (!*r->at) return LL_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (word(r, keys[i])) return read_key(r, keys[i]);
    if (word(r, "prefix")) {
        TRY(read_name(r, &m->prefix));
        return *r->at ? bad(r, "unexpected text at the end") : LL_OK;
    }
    bool skip = word(r, "skip");
    if (skip || word(r, "refuse")) {
        l.kind = skip ? "skip" : "refuse";
        l.n_theirs = 1;
        TRY(read_name(r, &l.theirs[0]));
    } else {
        if (word(r, "tied")) l.kind = "tied";
        TRY(read_pair(r, &l));
    }
    if (*r->at) return bad(r, "unexpected text at the end");
    if (*l.kind && l.n_ours + l.n_theirs > 2) return bad(r, "expected one name on each side");
    LL_PUSH(m->arena, m->lines, m->n, m->capacity, l);
    return LL_OK;
}

ll_err ll_map_parse(const char *text, size_t size, const char *name, ll_map **out)
{
    ll_arena *arena = ll_arena_new();
    LL_OWN(ll_map) m = LL_NEW(arena, ll_map);
    *m = (ll_map){.name = ll_arena_strdup(arena, name), .prefix = "", .arena = arena};
    *out = NULL;
    reader r = {.m = m};
    for (size_t at = 0; at < size; at++) {
        const char *end = (const char *)memchr(text + at, '\n', size - at);
        size_t n = end ? (size_t)(end - text) - at : size - at;
        char *line = ll_arena_printf(arena, "%.*s", (int)n, text + at);
        line[strcspn(line, "#")] = '\0';
        r.at = line;
        r.line++;
        TRY(read_line(&r));
        at += n;
    }
    CHECK(m->n, LL_E_CONFIG, "%s: the map is empty", name);
    return LL_HAND(out, m);
}

ll_err ll_map_open(const char *name, ll_map **out)
{
    ll_near near = {.word = name};
    *out = NULL;
    const ll_bundled *b = ll_bundled_find(bundled, &near);
    if (b) return ll_map_parse(b->text, strlen(b->text), name, out);
    CHECK(strpbrk(name, "/."), LL_E_CONFIG,
          "unknown map of weights '%s'%s (maps:%s, or a file such as ./my.map)", name,
          ll_near_hint(&near), near.known);
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t size;
    TRY(ll_file_read(name, MAP_LIMIT, &text, &size));
    return ll_map_parse((const char *)text, size, name, out);
}

void ll_map_close(ll_map *m)
{
    if (m) ll_arena_free(m->arena);
}

/* ---- names ---- */

static bool fits(const char *p, const char *name, ll_map_match *out)
{
    while (*p && *p != '*')
        if (*p++ != *name++) return false;
    if (!*p) return !*name;
    if (out->n == LL_MAP_SEVERAL) return false;
    int k = out->n++;
    out->at[k] = name;
    for (size_t n = 0, most = strlen(name); n <= most; n++) {
        out->length[k] = (int)n;
        if (fits(p + 1, name + n, out)) return true;
        out->n = k + 1;
    }
    return false;
}

bool ll_map_fits(const char *pattern, const char *name, ll_map_match *out)
{
    out->n = 0;
    return fits(pattern, name, out);
}

static const char *filled(ll_arena *a, const char *pattern, const ll_map_match *m)
{
    size_t room = strlen(pattern) + 1;
    for (int i = 0; i < m->n; i++) room += (size_t)m->length[i];
    char *out = (char *)ll_arena_alloc(a, room), *at = out;
    for (int k = 0; *pattern; pattern++) {
        if (*pattern != '*') {
            *at++ = *pattern;
            continue;
        }
        memcpy(at, m->at[k], (size_t)m->length[k]);
        at += m->length[k++];
    }
    return out;
}

/* ---- dimensions ---- */

/* Sizes of letters from a shape of ours. False: they do not divide it, or are too few. */
static bool find_sizes(ll_map_line *l, const ll_shape *s)
{
    for (int d = 0; d < s->n; d++) {
        int64_t known = 1, *unknown = NULL;
        for (const char *c = l->right.of[d]; *c; c++) {
            int64_t *size = &l->size[*c - 'a'];
            if (!*size && unknown) return false;
            if (!*size)
                unknown = size;
            else if (__builtin_mul_overflow(known, *size, &known))
                return false;
        }
        if (s->d[d] % known) return false;
        if (unknown)
            *unknown = s->d[d] / known;
        else if (known != s->d[d])
            return false;
    }
    return true;
}

static int64_t extent(const ll_map_line *l, const char *letters)
{
    int64_t n = 1;
    for (; *letters; letters++) n *= l->size[*letters - 'a'];
    return n;
}

/* A line that does not say dimensions, for these. */
static void all_alike(ll_map_line *l, const ll_shape *s)
{
    l->left.n = l->right.n = s->n;
    for (int i = 0; i < s->n; i++) {
        l->left.of[i][0] = l->right.of[i][0] = (char)('a' + i);
        l->size[i] = s->d[i];
    }
}

ll_err ll_map_find(const ll_map *m, ll_arena *a, const char *ours, const ll_shape *shape,
                   ll_mapped *out)
{
    *out = (ll_mapped){0};
    for (int i = 0; i < m->n && !out->n; i++) {
        const ll_map_line *l = &m->lines[i];
        ll_map_match match;
        if (*l->kind || (!l->plain && l->right.n != shape->n)) continue;
        for (int k = 0; k < l->n_ours && !out->n; k++) {
            if (!ll_map_fits(l->ours[k], ours, &match)) continue;
            out->line = *l;
            out->which = k;
            for (out->n = 0; out->n < l->n_theirs; out->n++)
                out->theirs[out->n] = filled(a, l->theirs[out->n], &match);
        }
    }
    if (!out->n) return LL_OK;
    char text[LL_SHAPE_TEXT];
    bool empty = false; /* divides by nothing: of no elements, whatever lies where */
    for (int d = 0; d < shape->n; d++) empty |= shape->d[d] == 0;
    CHECK(out->line.plain || (!empty && find_sizes(&out->line, shape)), LL_E_CONFIG,
          "map %s: the letters of %s do not give %s: sizes are missing (such as h=6), or do not "
          "divide it",
          m->name, out->line.ours[out->which], ll_shape_print(shape, text));
    if (out->line.plain) all_alike(&out->line, shape);
    out->shape.n = out->line.left.n;
    for (int d = 0; d < out->shape.n; d++)
        out->shape.d[d] = extent(&out->line, out->line.left.of[d]);
    return LL_OK;
}

/* Of each letter, how far apart its elements are; of the one that theirs lacks 0. */
static void letter_strides(const ll_mapped *x, const int64_t *stride, int64_t out[LL_MAP_LETTERS])
{
    for (int d = 0; d < x->line.left.n; d++) {
        int64_t step = stride[d];
        const char *of = x->line.left.of[d];
        for (size_t k = strlen(of); k-- > 0; step *= x->line.size[of[k] - 'a'])
            out[of[k] - 'a'] = step;
    }
}

ll_map_places ll_map_place(const ll_mapped *x, const int64_t *stride, const ll_shape *part,
                           const int64_t *from, ll_arena *a)
{
    const ll_map_line *l = &x->line;
    int64_t step[LL_MAP_LETTERS] = {0};
    ll_map_places p = {0};
    letter_strides(x, stride, step);
    for (char c = 'a'; c <= 'z'; c++)
        if (l->n_ours > 1 && has(&l->left, c) && !has(&l->right, c))
            p.first = x->which * step[c - 'a'];
    for (int d = 0; d < part->n; d++) {
        p.at[d] = LL_NEW_ARRAY(a, int64_t, part->d[d] + 1);
        p.which[d] = LL_NEW_ARRAY(a, int, part->d[d] + 1);
        const char *of = l->right.of[d];
        for (int64_t i = 0; i < part->d[d]; i++) {
            int64_t left = i + from[d];
            for (size_t k = strlen(of); k-- > 0;) {
                int64_t size = l->size[of[k] - 'a'], index = left % size;
                left /= size;
                p.at[d][i] += index * step[of[k] - 'a'];
                if (l->n_theirs > 1 && !has(&l->left, of[k])) p.which[d][i] += (int)index;
            }
        }
    }
    return p;
}
