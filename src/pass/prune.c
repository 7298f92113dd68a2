/* prune.c: the smallest numbers become zeros. */
#include "pass/prune.h"

#include <stdio.h>

/* In digits alone. */
static bool read_group(const char *text, ll_prune *out)
{
    int n = 0;
    return strspn(text, "0123456789:") == strlen(text) &&
           sscanf(text, "%2d:%2d%n", &out->keep, &out->of, &n) == 2 && !text[n] && out->keep > 0 &&
           out->keep < out->of && out->of <= LL_PRUNE_MOST;
}

ll_err ll_prune_parse(const char *text, ll_prune *out)
{
    char *end;
    *out = (ll_prune){0};
    if (!strcmp(text, "none")) return LL_OK;
    bool group = strchr(text, ':'), good = group && read_group(text, out);
    if (!group) {
        out->share = strtod(text, &end);
        good = end > text && !*end && out->share > 0 && out->share < 1;
    }
    CHECK(good, LL_E_ARG,
          "'%.50s' is not a pruning rule, expected none, N:M with 0 < N < M <= %d, such as 2:4 "
          "(keeps N of each M numbers), or a share of zeros above 0 and below 1, such as 0.5",
          text, LL_PRUNE_MOST);
    return LL_OK;
}

ll_err ll_prune_steps_parse(const char *text, ll_prune_steps *out)
{
    long long n[3] = {0};
    int end = 0, count = 0;
    *out = (ll_prune_steps){0};
    if (!*text) return LL_OK;
    if (strspn(text, "0123456789:") == strlen(text) && strlen(text) < 40)
        count = sscanf(text, "%15lld:%15lld%n:%15lld%n", &n[0], &n[1], &end, &n[2], &end);
    if (count == 2) n[2] = n[1] - n[0] < 20 ? 1 : (n[1] - n[0]) / 10;
    CHECK(count >= 2 && !text[end] && n[0] < n[1] && n[2] > 0 && n[2] <= n[1] - n[0], LL_E_ARG,
          "'%.50s' is not a range of pruning steps, expected A:B or A:B:K (steps A to B, A < B, "
          "every K, K at most B - A), such as 100:500:20",
          text);
    *out = (ll_prune_steps){n[0], n[1], n[2]};
    return LL_OK;
}

bool ll_prune_at(const ll_prune *p, const ll_prune_steps *s, int64_t step, ll_prune *out)
{
    if (step < s->from || step > s->to || ((step - s->from) % s->every && step != s->to))
        return false;
    double left = (double)(s->to - step) / (double)(s->to - s->from);
    double part = 1 - left * left * left;
    *out = (ll_prune){.of = p->of, .share = part * p->share};
    out->keep = p->of - (int)llrint(part * (p->of - p->keep));
    return p->of ? out->keep < p->of : out->share > 0;
}

static double size_of(const void *w, ll_dtype type, int64_t i)
{
    return fabs(ll_load(w, type, i));
}

static void prune_group(ll_dtype type, void *w, int64_t from, int n, int keep)
{
    double size[LL_PRUNE_MOST];
    for (int i = 0; i < n; i++) size[i] = size_of(w, type, from + i);
    for (int i = 0; i < n; i++) {
        int before = 0;
        for (int k = 0; k < n; k++) before += size[k] > size[i] || (size[k] == size[i] && k < i);
        if (before >= keep) ll_store(w, type, from + i, 0);
    }
}

/* Magnitudes are in the order of their bits. */
static uint64_t bits_of(double size)
{
    uint64_t bits;
    memcpy(&bits, &size, sizeof bits);
    return bits;
}

/* The bits of the count-th smallest of n, byte by byte; *left: how many with them are among these
 * count. */
static uint64_t find_limit(ll_dtype type, const void *w, int64_t n, int64_t count, int64_t *left)
{
    uint64_t limit = 0;
    *left = count;
    for (int shift = 56; shift >= 0; shift -= 8) {
        int64_t have[256] = {0};
        for (int64_t i = 0; i < n; i++) {
            uint64_t b = bits_of(size_of(w, type, i));
            if (shift == 56 || b >> (shift + 8) == limit >> (shift + 8)) have[b >> shift & 255]++;
        }
        uint64_t byte = 0;
        while (*left > have[byte]) *left -= have[byte++];
        limit |= byte << shift;
    }
    return limit;
}

static void prune_share(ll_dtype type, void *w, int64_t n, int64_t count)
{
    int64_t left;
    if (!count) return;
    uint64_t limit = find_limit(type, w, n, count, &left);
    for (int64_t i = n - 1; i >= 0; i--) { /* of equals the last go */
        uint64_t b = bits_of(size_of(w, type, i));
        if (b < limit || (b == limit && left-- > 0)) ll_store(w, type, i, 0);
    }
}

void ll_prune_numbers(const ll_prune *p, ll_dtype type, void *w, int64_t rows, int64_t cols)
{
    if (!p->of) {
        prune_share(type, w, rows * cols, llrint(p->share * (double)(rows * cols)));
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c += p->of)
            prune_group(type, w, r * cols + c, (int)(cols - c < p->of ? cols - c : p->of), p->keep);
}
