/* bpe.c: a word's bytes merged to tokens. Neighbours that can be merged wait in a heap, by rank and
 * then by place, so that a word of n bytes takes n log n, whatever it is. */
#define _GNU_SOURCE /* qsort_r */
#include "token/bpe.h"

#include <string.h>

/* ---- tables ---- */

static unsigned hash_bytes(const char *p, int n)
{
    unsigned h = 2166136261u;
    for (int i = 0; i < n; i++) h = (h ^ (unsigned char)p[i]) * 16777619u;
    return h ^ h >> 15;
}

static unsigned hash_pair(int a, int b)
{
    uint64_t h = ((uint64_t)(unsigned)a << 32 | (unsigned)b) * 0x9E3779B97F4A7C15u;
    return (unsigned)(h >> 32);
}

int ll_token_find(const ll_tokenizer *t, const char *bytes, int n)
{
    for (unsigned i = hash_bytes(bytes, n);; i++) {
        int k = t->by_bytes[i & t->mask];
        if (k < 0) return -1;
        if (t->tokens[k].length == n && !memcmp(t->tokens[k].bytes, bytes, (size_t)n)) return k;
    }
}

static const ll_merge *find_merge(const ll_tokenizer *t, int a, int b)
{
    for (unsigned i = hash_pair(a, b);; i++) {
        const ll_merge *m = &t->merge[i & t->merge_mask];
        if (m->rank < 0) return NULL;
        if (m->a == a && m->b == b) return m;
    }
}

static unsigned room_for(int n)
{
    unsigned room = 16;
    while (room < 2 * (unsigned)n) room *= 2;
    return room;
}

/* Texts before special ones, which may be spelled alike. */
static void add_token(ll_tokenizer *t, int k)
{
    const ll_token *x = &t->tokens[k];
    unsigned i = hash_bytes(x->bytes, x->length);
    while (t->by_bytes[i & t->mask] >= 0) i++;
    t->by_bytes[i & t->mask] = k;
}

static int longer(const void *a, const void *b, void *tokens)
{
    const ll_token *all = (const ll_token *)tokens;
    int x = all[*(const int *)a].length, y = all[*(const int *)b].length;
    return x != y ? (x < y) - (x > y) : *(const int *)a - *(const int *)b;
}

ll_err ll_tokenizer_finish(ll_tokenizer *t, const ll_merge *merges, int n_merge)
{
    unsigned room = room_for(t->n), room_merge = room_for(n_merge);
    t->by_bytes = LL_NEW_ARRAY(t->arena, int, room);
    t->merge = LL_NEW_ARRAY(t->arena, ll_merge, room_merge);
    t->added = LL_NEW_ARRAY(t->arena, int, t->n + 1);
    t->mask = room - 1, t->merge_mask = room_merge - 1;
    for (unsigned i = 0; i < room; i++) t->by_bytes[i] = -1;
    for (unsigned i = 0; i < room_merge; i++) t->merge[i].rank = -1;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < t->n; i++)
            if (t->tokens[i].length && !pass == !t->tokens[i].kind &&
                t->tokens[i].kind != LL_TOKEN_BYTE)
                add_token(t, i);
    for (int i = 0; i < t->n; i++)
        if (t->tokens[i].length && t->tokens[i].kind && t->tokens[i].kind != LL_TOKEN_BYTE)
            t->added[t->n_added++] = i;
    qsort_r(t->added, (size_t)t->n_added, sizeof *t->added, longer, t->tokens);
    for (int i = 0; i < 256; i++) t->byte[i] = -1;
    for (int i = 0; i < t->n; i++)
        if (t->tokens[i].kind == LL_TOKEN_BYTE) t->byte[(unsigned char)*t->tokens[i].bytes] = i;
    for (int i = 0; i < 256 && !t->rank; i++) {
        char c = (char)i;
        t->byte[i] = ll_token_find(t, &c, 1); /* some vocabularies lack those that are rare */
        CHECK(t->byte[i] >= 0 || i < 32 || i > 126, LL_E_IO,
              "%s: has no token for byte %d: it is not of byte-level BPE", t->path, i);
    }
    for (int i = 0; i < n_merge; i++) {
        if (find_merge(t, merges[i].a, merges[i].b)) continue; /* the first counts */
        unsigned k = hash_pair(merges[i].a, merges[i].b);
        while (t->merge[k & t->merge_mask].rank >= 0) k++;
        t->merge[k & t->merge_mask] = merges[i];
    }
    return LL_OK;
}

/* ---- the characters of vocabularies: bytes that print are themselves, others follow 255 ---- */

static bool prints(int b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

/* Those that do not print are 0 to 32, 127 to 160, and 173. */
static int code_of(int byte)
{
    if (prints(byte)) return byte;
    return 256 + (byte < 127 ? byte : byte < 173 ? 33 + byte - 127 : 67);
}

static int byte_of(unsigned code)
{
    if (code < 256) return prints((int)code) ? (int)code : -1;
    code -= 256;
    return code < 33 ? (int)code : code < 67 ? 127 + (int)code - 33 : code == 67 ? 173 : -1;
}

void ll_byte_char(int byte, char out[4])
{
    int c = code_of(byte);
    memset(out, 0, 4);
    if (c < 128)
        out[0] = (char)c;
    else
        out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 63));
}

int ll_byte_text(const char *text, size_t n, char *out)
{
    int made = 0;
    for (size_t i = 0; i < n;) {
        unsigned c = (unsigned char)text[i++];
        if (c >= 0xC0 && c < 0xE0 && i < n)
            c = (c & 31) << 6 | ((unsigned char)text[i++] & 63);
        else if (c >= 128)
            return -1;
        int b = byte_of(c);
        if (b < 0) return -1;
        out[made++] = (char)b;
    }
    return made;
}

size_t ll_plain_blanks(const char *text, size_t n, char *out)
{
    size_t made = 0;
    for (size_t i = 0; i < n;) {
        bool blank = n - i > 2 && !memcmp(text + i, "\xe2\x96\x81", 3);
        out[made++] = blank ? ' ' : text[i];
        i += blank ? 3 : 1;
    }
    return made;
}

/* ---- encoding ---- */

typedef struct part {
    int value;        /* a token; of SentencePiece's, how many bytes; -1: it is gone */
    int next, before; /* indices of parts; -1: none */
} part;
typedef struct pending {
    int rank, at, a, b, to; /* values: of the two that stood there, and of what they become */
} pending;

typedef struct encoder {
    const ll_tokenizer *t;
    const char *text; /* the word's */
    int32_t *out;
    int64_t n, room;
    part *parts;
    pending *heap;
    size_t room_word;
    int n_heap;
    bool failed;
    int no_token; /* a byte that has none; -1: all have */
} encoder;

static void put(encoder *e, int token)
{
    if (e->n == e->room) {
        int64_t room = e->room ? 2 * e->room : 256;
        int32_t *more = (int32_t *)realloc(e->out, sizeof *more * (size_t)room);
        if (!more) {
            e->failed = true;
            return;
        }
        e->out = more;
        e->room = room;
    }
    e->out[e->n++] = token;
}

static bool before(const pending *a, const pending *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void offer(encoder *e, pending x)
{
    int i = e->n_heap++;
    for (; i && before(&x, &e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = x;
}

static void push(encoder *e, int at)
{
    const part *p = &e->parts[at];
    if (p->next < 0) return;
    int a = p->value, b = e->parts[p->next].value;
    if (e->t->rank) { /* what they spell */
        int k = ll_token_find(e->t, e->text + at, a + b);
        if (k >= 0) offer(e, (pending){e->t->rank[k], at, a, b, a + b});
        return;
    }
    const ll_merge *m = find_merge(e->t, a, b);
    if (m) offer(e, (pending){m->rank, at, a, b, m->to});
}

static pending pop(encoder *e)
{
    pending top = e->heap[0], x = e->heap[--e->n_heap];
    int i = 0;
    for (int k; (k = 2 * i + 1) < e->n_heap; i = k) {
        if (k + 1 < e->n_heap && before(&e->heap[k + 1], &e->heap[k])) k++;
        if (!before(&e->heap[k], &x)) break;
        e->heap[i] = e->heap[k];
    }
    e->heap[i] = x;
    return top;
}

static bool make_room(encoder *e, size_t n)
{
    if (n <= e->room_word) return true;
    size_t room = 2 * n + 64;
    free(e->parts);
    free(e->heap);
    e->parts = (part *)malloc(room * sizeof *e->parts);
    e->heap = (pending *)malloc(3 * room * sizeof *e->heap); /* each merge adds two at most */
    e->room_word = e->parts && e->heap ? room : 0;
    e->failed |= !e->room_word;
    return e->room_word > 0;
}

/* Parts, from the first on. */
static void merge_parts(encoder *e)
{
    e->n_heap = 0;
    for (int i = 0; i >= 0; i = e->parts[i].next) push(e, i);
    while (e->n_heap) {
        pending x = pop(e);
        part *p = &e->parts[x.at];
        if (p->value != x.a || p->next < 0 || e->parts[p->next].value != x.b) continue;
        int gone = p->next;
        p->value = x.to;
        p->next = e->parts[gone].next;
        e->parts[gone].value = -1;
        if (p->next >= 0) e->parts[p->next].before = x.at;
        push(e, x.at);
        if (p->before >= 0) push(e, p->before);
    }
}

static void put_byte(encoder *e, int token, char byte)
{
    if (token < 0) e->no_token = (unsigned char)byte;
    put(e, token);
}

static void merge_word(encoder *e, const char *text, int n)
{
    e->text = text;
    for (int i = 0; i < n; i++)
        e->parts[i] = (part){e->t->byte[(unsigned char)text[i]], i + 1 < n ? i + 1 : -1, i - 1};
    merge_parts(e);
    for (int i = 0; i >= 0; i = e->parts[i].next) put_byte(e, e->parts[i].value, text[i]);
}

/* ---- SentencePiece's: characters, and what their neighbours spell ---- */

static int char_bytes(unsigned char first)
{
    return first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

static void merge_chars(encoder *e, const char *text, int n)
{
    int last = -1;
    e->text = text;
    for (int i = 0; i < n; i = e->parts[i].next) {
        int length = char_bytes((unsigned char)text[i]), left = n - i;
        if (length > left) length = left;
        e->parts[i] = (part){length, i + length, last};
        last = i;
    }
    e->parts[last].next = -1;
    merge_parts(e);
    for (int i = 0; i >= 0; i = e->parts[i].next) {
        int k = ll_token_find(e->t, text + i, e->parts[i].value);
        for (int b = i; k < 0 && b < i + e->parts[i].value; b++)
            put_byte(e, e->t->byte[(unsigned char)text[b]], text[b]);
        if (k >= 0) put(e, k);
    }
}

/* With a blank before it, where texts begin so; U+2581 is a blank there. */
static void whole_text(encoder *e, const char *text, size_t n)
{
    LL_OWN_MEMORY char *own = (char *)malloc(n + 1);
    size_t made = 0;
    if (!n) return;
    if (!own || n > 1 << 28 || !make_room(e, n + 1)) {
        e->failed = true;
        return;
    }
    if (e->t->leads) own[made++] = ' ';
    made += ll_plain_blanks(text, n, own + made);
    merge_chars(e, own, (int)made);
}

static void word(void *user, const char *text, size_t n)
{
    encoder *e = (encoder *)user;
    int whole = -1;
    if (e->failed || n > 1 << 28 || !make_room(e, n)) {
        e->failed = true;
        return;
    }
    if (e->t->whole && n < 4096) whole = ll_token_find(e->t, text, (int)n);
    if (whole >= 0 && !e->t->tokens[whole].kind)
        put(e, whole);
    else
        merge_word(e, text, (int)n);
}

/* The added token that begins at text; -1: none. */
static int added_at(const ll_tokenizer *t, const char *text, size_t n, bool special)
{
    for (int i = 0; i < t->n_added; i++) {
        const ll_token *x = &t->tokens[t->added[i]];
        if (x->kind == LL_TOKEN_SPECIAL && !special) continue;
        if ((size_t)x->length <= n && x->bytes[0] == *text &&
            !memcmp(x->bytes, text, (size_t)x->length))
            return t->added[i];
    }
    return -1;
}

static ll_err words(encoder *e, const char *text, size_t n)
{
    if (!e->t->rank) return ll_pretok_text(e->t->split, text, n, word, e);
    whole_text(e, text, n);
    return LL_OK;
}

static ll_err encode(encoder *e, const char *text, size_t n, bool special)
{
    const ll_tokenizer *t = e->t;
    bool first[256] = {0};
    size_t from = 0;
    for (int i = 0; i < t->n_added; i++)
        if (special || t->tokens[t->added[i]].kind == LL_TOKEN_ALWAYS)
            first[(unsigned char)t->tokens[t->added[i]].bytes[0]] = true;
    for (size_t i = 0; i < n;) {
        int k = first[(unsigned char)text[i]] ? added_at(t, text + i, n - i, special) : -1;
        if (k < 0) {
            i++;
            continue;
        }
        TRY(words(e, text + from, i - from));
        put(e, k);
        i += (size_t)t->tokens[k].length;
        from = i;
    }
    TRY(words(e, text + from, n - from));
    CHECK(e->no_token < 0, LL_E_ARG, "%s has no token for the text's byte %d", t->path,
          e->no_token);
    CHECK(!e->failed, LL_E_MEM, "not enough memory for the tokens of %zu bytes", n);
    return LL_OK;
}

ll_err ll_tokenizer_encode(const ll_tokenizer *t, const char *text, size_t n, bool special,
                           int32_t **out, int64_t *count)
{
    encoder e = {.t = t, .no_token = -1};
    ll_err rc = encode(&e, text, n, special);
    free(e.parts);
    free(e.heap);
    *out = rc == LL_OK ? e.out : NULL;
    *count = rc == LL_OK ? e.n : 0;
    if (rc != LL_OK) free(e.out);
    return rc;
}
