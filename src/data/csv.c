/* csv.c: the cells of a CSV, whose first line names the columns. */
#include "base/arena.h"
#include "base/text.h"
#include "data/parse.h"

#include <string.h>

/* A cell from *p on, unquoted in place; *p is then behind what ended it: ',' '\n' or the end, and
 * *at the line of the file there. */
static ll_err cell(char **p, const char *end, const char *file, int64_t *at, char **out, char *stop)
{
    char *q = *p, *w = *p;
    int64_t line = *at;
    *out = w;
    if (q < end && *q == '"') {
        for (q++;; *w++ = *q++) {
            while (q < end && *q == '"' && q + 1 < end && q[1] == '"') *w++ = '"', q += 2;
            CHECK(q < end, LL_E_IO, "%s:%ld: a quoted cell is not closed", file, line);
            if (*q == '"') break;
            *at += *q == '\n';
        }
        q++;
    } else
        while (q < end && *q != ',' && *q != '\n' && *q != '\r') *w++ = *q++;
    if (q < end && *q == '\r') q++;
    CHECK(q == end || q == *p || q[-1] != '\r' || *q == '\n', LL_E_IO,
          "%s:%ld: a line ends in a carriage return alone, expected a line feed", file, line);
    CHECK(q == end || *q == ',' || *q == '\n', LL_E_IO,
          "%s:%ld: a cell continues after its closing quote", file, line);
    *stop = q < end ? *q : '\0';
    *at += *stop == '\n';
    *w = '\0';
    *p = q < end ? q + 1 : q;
    return LL_OK;
}

static ll_err check_header(const ll_csv *c, const char *file)
{
    const char *other = c->columns == 1 ? strpbrk(c->cells[0], ";\t") : NULL;
    CHECK(!other, LL_E_IO, "%s: cells are separated by %s, expected commas", file,
          *other == ';' ? "semicolons" : "tabs");
    for (int k = 0; k < c->columns; k++)
        CHECK(ll_is_utf8(c->cells[k]), LL_E_IO,
              "%s: the name of column %d is not UTF-8: save the file as UTF-8", file, k + 1);
    return LL_OK;
}

static ll_err parse_rows(ll_csv *c, char *text, size_t size, const char *file, ll_arena *a)
{
    char *p = text, *end = text + size, stop;
    int capacity = 0, n = 0, n_line = 0, most = 0;
    for (int64_t at = 1, line; p < end;) {
        if (*p == '\n' || (*p == '\r' && p + 1 < end && p[1] == '\n')) { /* nothing in it */
            p += *p == '\r' ? 2 : 1;
            at++;
            continue;
        }
        int first = n;
        line = at;
        LL_PUSH(a, c->line, n_line, most, line);
        do {
            char *out;
            TRY(cell(&p, end, file, &at, &out, &stop));
            CHECK(n < INT32_MAX / 2, LL_E_IO, "%s: too many cells", file);
            LL_PUSH(a, c->cells, n, capacity, out);
        } while (stop == ',');
        if (first == 0) c->columns = n;
        if (first == 0) TRY(check_header(c, file));
        CHECK(n - first == c->columns, LL_E_IO, "%s:%ld: %d cells, but the first line has %d", file,
              line, n - first, c->columns);
    }
    CHECK(n > c->columns, LL_E_IO, "%s has no rows below the header line", file);
    c->rows = n / c->columns - 1;
    return LL_OK;
}

char *ll_csv_trimmed(char *name)
{
    name += strspn(name, " \t");
    size_t n = strlen(name);
    while (n > 0 && strchr(" \t", name[n - 1])) n--;
    name[n] = '\0';
    return name;
}

ll_err ll_csv_parse(const uint8_t *b, size_t size, const char *file, ll_arena *a, ll_csv *out)
{
    *out = (ll_csv){0};
    if (size >= 3 && !memcmp(b, "\xef\xbb\xbf", 3)) b += 3, size -= 3; /* a byte order mark */
    char *text = ll_arena_try(a, size + 1);
    CHECK(text, LL_E_MEM, "%s: not enough memory for %zu bytes", file, size);
    memcpy(text, b, size);
    CHECK(!memchr(text, '\0', size), LL_E_IO, "%s contains zero bytes: is it text?", file);
    ll_csv csv = {0};
    TRY(parse_rows(&csv, text, size, file, a));
    for (int k = 0; k < csv.columns; k++) csv.cells[k] = ll_csv_trimmed(csv.cells[k]);
    *out = csv;
    return LL_OK;
}
