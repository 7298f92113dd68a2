/* text.c: strings that grow, and numbers as people read them. */
#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static void make_room(ll_buf *b, size_t more)
{
    size_t need = b->len + more + 1;
    if (need <= b->capacity) return;
    size_t capacity = b->capacity ? 2 * b->capacity : 256;
    if (capacity < need) capacity = need;
    char *grown = (char *)ll_arena_alloc(b->arena, capacity);
    if (b->len) memcpy(grown, b->text, b->len);
    b->text = grown;
    b->capacity = capacity;
}

void ll_buf_add(ll_buf *b, const void *bytes, size_t n)
{
    make_room(b, n);
    if (n) memcpy(b->text + b->len, bytes, n);
    b->len += n;
    b->text[b->len] = '\0';
}

void ll_buf_puts(ll_buf *b, const char *text)
{
    ll_buf_add(b, text, strlen(text));
}

void ll_buf_printf(ll_buf *b, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    size_t n = (size_t)vsnprintf(NULL, 0, format, args);
    make_room(b, n);
    vsnprintf(b->text + b->len, n + 1, format, again);
    b->len += n;
    va_end(args);
    va_end(again);
}

/* The words of a paragraph from a column on, where column `at` is reached; returns what follows. */
static const char *wrap(ll_buf *b, int at, int column, int width, const char *text)
{
    ll_buf_printf(b, "%*s", column - at, "");
    at = column;
    while (*text && *text != '\n') {
        int n = (int)strcspn(text, " \n");
        while (text[n] == ' ' && (text[n + 1] == '=' || text[n + 1] == '>')) { /* "0 = off" */
            n += 1 + (int)strcspn(text + n + 1, " \n");
            n += text[n] == ' ' ? 1 + (int)strcspn(text + n + 1, " \n") : 0;
        }
        bool first = at == column;
        if (!first && at + 1 + n > width) {
            ll_buf_printf(b, "\n%*s", column, "");
            at = column;
            first = true;
        }
        ll_buf_printf(b, "%s%.*s", first ? "" : " ", n, text);
        at += n + !first;
        text += n;
        text += strspn(text, " ");
    }
    ll_buf_puts(b, "\n");
    return text + (*text != '\0');
}

void ll_buf_row(ll_buf *b, const char *left, int column, int width, const char *text)
{
    int n = 2 + (int)strlen(left);
    ll_buf_printf(b, "  %s", left);
    if (n >= column) {
        ll_buf_puts(b, "\n");
        n = 0;
    }
    wrap(b, n, column, width, text);
}

void ll_buf_wrapped(ll_buf *b, int width, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        n += text[n] == '\n';
        if (*text == ' ') ll_buf_add(b, text, n);
        text = *text == ' ' ? text + n : wrap(b, 0, 0, width, text);
    }
}

int ll_text_width(void)
{
    enum { LEAST = 60, MOST = 100 };
    struct winsize w;
    bool terminal = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0;
    return !terminal || w.ws_col > MOST ? MOST : w.ws_col < LEAST ? LEAST : w.ws_col;
}

bool ll_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

bool ll_lists(const char *list, char between, const char *word, size_t n)
{
    for (;; list++) {
        size_t m = strcspn(list, (char[]){between, '\0'});
        if (m == n && !strncmp(list, word, n)) return true;
        list += m;
        if (!*list) return false;
    }
}

int ll_utf8_at(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return s[0] != 0;
    int n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    /* over-long forms, surrogates, beyond U+10FFFF */
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)) return 0;
    if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return n;
}

void ll_buf_json(ll_buf *b, const char *text)
{
    ll_buf_puts(b, "\"");
    while (*text) {
        unsigned char c = (unsigned char)*text;
        int n = ll_utf8_at(text);
        if (n == 0)
            ll_buf_puts(b, "\\ufffd");
        else if (c == '"' || c == '\\')
            ll_buf_printf(b, "\\%c", c);
        else if (c < 0x20)
            ll_buf_printf(b, "\\u%04x", c);
        else
            ll_buf_add(b, text, (size_t)n);
        text += n ? n : 1;
    }
    ll_buf_puts(b, "\"");
}

char *ll_text_quoted(ll_arena *a, const char *text)
{
    ll_buf b = {.arena = a};
    ll_buf_json(&b, text);
    return b.text;
}

/* Three significant digits of |v| < 1000. */
static void three_digits(double v, const char *unit, char *out)
{
    double size = fabs(v);
    int decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
    snprintf(out, LL_NUMBER_TEXT, "%.*f%s", decimals, v, unit);
}

/* In the largest of six units, each so many of the one before, of which there is one. */
static const char *in_units(double v, double many, const char *const *units, char *out)
{
    double n = v;
    int u = 0;
    for (; fabs(n) >= many - 0.5 && u < 5; u++) n /= many;
    if (!isfinite(v) || fabs(n) >= 1e6)
        snprintf(out, LL_NUMBER_TEXT, "%.3g%s", v, units[0]);
    else if (u == 0 && n == floor(n))
        snprintf(out, LL_NUMBER_TEXT, "%.0f%s", n, units[0]);
    else
        three_digits(n, units[u], out);
    return out;
}

const char *ll_text_count(double n, char out[LL_NUMBER_TEXT])
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    return in_units(n, 1000, units, out);
}

bool ll_is_utf8(const char *text)
{
    for (int n; *text; text += n)
        if (!(n = ll_utf8_at(text))) return false;
    return true;
}

const char *ll_text_loss(double x, char out[LL_NUMBER_TEXT])
{
    snprintf(out, LL_NUMBER_TEXT, fabs(x) < 1e5 ? "%.4f" : "%.3e", x);
    return out;
}

const char *ll_text_bytes(double bytes, char out[LL_NUMBER_TEXT])
{
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
    return in_units(bytes, 1024, units, out);
}

/* As the next number up that reads so, or down: in steps less than its last digit. */
static const char *bytes_within(double bytes, bool up, char out[LL_NUMBER_TEXT])
{
    double read = bytes, near = bytes;
    ll_text_bytes(near, out);
    while (ll_text_to_bytes(out, &read) && (up ? read < bytes : floor(read) > bytes))
        ll_text_bytes(near *= up ? 1.0005 : 0.9995, out);
    return out;
}

const char *ll_text_bytes_up(double bytes, char out[LL_NUMBER_TEXT])
{
    return bytes_within(bytes, true, out);
}

const char *ll_text_bytes_down(double bytes, char out[LL_NUMBER_TEXT])
{
    return bytes_within(bytes, false, out);
}

const char *ll_text_time(double s, char out[LL_NUMBER_TEXT])
{
    static const char *const units[] = {" s", " ms", " us", " ns"};
    int u = 0;
    while (s < 0.9995 && u < 3) {
        s *= 1000;
        u++;
    }
    if (!isfinite(s) || s >= 1e6)
        snprintf(out, LL_NUMBER_TEXT, "%.3g s", s);
    else
        three_digits(s > 0 ? s : 0, units[s > 0 ? u : 0], out);
    return out;
}

const char *ll_text_counted(int64_t n, const char *word, char out[LL_NUMBER_TEXT])
{
    snprintf(out, LL_NUMBER_TEXT, "%ld %s%s", n, word, n == 1 ? "" : "s");
    return out;
}

const char *ll_text_duration(double s, char out[LL_NUMBER_TEXT])
{
    if (!(s >= 0 && s < 1e12)) {
        snprintf(out, LL_NUMBER_TEXT, "?");
        return out;
    }
    long long t = llround(s);
    if (s < 9.95)
        snprintf(out, LL_NUMBER_TEXT, "%.1fs", s);
    else if (t < 60)
        snprintf(out, LL_NUMBER_TEXT, "%llds", t);
    else if (t < 3600)
        snprintf(out, LL_NUMBER_TEXT, "%lldm %02llds", t / 60, t % 60);
    else if (t < 86400)
        snprintf(out, LL_NUMBER_TEXT, "%lldh %02lldm", t / 3600, t / 60 % 60);
    else
        snprintf(out, LL_NUMBER_TEXT, "%lldd %02lldh", t / 86400, t / 3600 % 24);
    return out;
}

const char *ll_text_number(double v, char out[LL_NUMBER_TEXT])
{
    if (!isfinite(v)) {
        snprintf(out, LL_NUMBER_TEXT, "null");
        return out;
    }
    bool is_float = fabs(v) <= 0x1.fffffep127 && (double)(float)v == v;
    char text[LL_NUMBER_TEXT]; /* under sanitizers gcc thinks that out may be NULL */
    for (int digits = is_float ? 6 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (is_float ? strtof(text, NULL) == (float)v : strtod(text, NULL) == v) break;
    }
    for (char *c = text; *c; c++) /* whatever the program's locale is */
        if (*c == ',') *c = '.';
    return memcpy(out, text, sizeof text);
}

bool ll_text_to_bytes(const char *text, double *out)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
                 {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50},
                 {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9}};
    char *end;
    double n = strtod(text, &end);
    while (end > text && *end == ' ') end++;
    for (size_t i = 0; end > text && i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].name)) continue;
        *out = n * units[i].bytes;
        return isfinite(*out) && *out >= 0;
    }
    return false;
}
