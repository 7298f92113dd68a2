/* http_parse.c: requests of HTTP/1.1, and 1.0, strictly: lines end with CR LF, names of fields are
 * tokens, nothing is folded, the body's length is said once. */
#define _GNU_SOURCE /* memmem */
#include "cli/http.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { FIELDS = 64, PATH = 1024 }; /* which messages name */

bool ll_http_is(ll_http_text s, const char *text)
{
    return s.at && s.n == strlen(text) && !memcmp(s.at, text, s.n);
}

bool ll_http_path_is(ll_http_text s, const char *text)
{
    for (size_t i = 0; i < s.n; i++, text++) {
        char c = s.at[i];
        if (c == '%') {
            char hex[3] = {i + 2 < s.n ? s.at[i + 1] : 0, i + 2 < s.n ? s.at[i + 2] : 0};
            if (!isxdigit((unsigned char)hex[0]) || !isxdigit((unsigned char)hex[1])) return false;
            c = (char)strtol(hex, NULL, 16);
            i += 2;
        }
        if (!*text || c != *text) return false;
    }
    return s.at && !*text;
}

/* But for upper and lower case. */
static bool like(ll_http_text s, const char *text)
{
    return s.at && s.n == strlen(text) && !strncasecmp(s.at, text, s.n);
}

static bool is_token(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* Bytes up to `end`, which is passed over; false: it is not there. */
static bool until(ll_http_text *rest, char end, ll_http_text *out)
{
    const char *at = rest->n ? (const char *)memchr(rest->at, end, rest->n) : NULL;
    if (!at) return false;
    *out = (ll_http_text){rest->at, (size_t)(at - rest->at)};
    rest->at = at + 1;
    rest->n -= out->n + 1;
    return true;
}

/* A status and what stands in its message, which is text of JSON. */
static int no(ll_http_request *out, int status, const char *why)
{
    out->why = why;
    return status;
}

/* "POST /v1/models HTTP/1.1"; 0 where it is right. */
static int first_line(ll_http_text line, ll_http_request *out)
{
    static const char form[] = "the first line must be METHOD /PATH HTTP/1.1, in plain http";
    if (!until(&line, ' ', &out->method) || !until(&line, ' ', &out->path))
        return no(out, 400, form);
    if (line.n != 8 || memcmp(line.at, "HTTP/", 5)) return no(out, 400, form);
    out->old = !memcmp(line.at, "HTTP/1.0", 8);
    if (!out->old && memcmp(line.at, "HTTP/1.1", 8))
        return no(out, 505, "only HTTP/1.1 and HTTP/1.0 are supported");
    if (!out->method.n || !out->path.n || *out->path.at != '/') return no(out, 400, form);
    if (out->path.n > PATH) return no(out, 414, "the path must be of 1024 bytes at most");
    for (size_t i = 0; i < out->method.n; i++)
        if (!is_token(out->method.at[i])) return no(out, 400, form);
    for (size_t i = 0; i < out->path.n; i++)
        if (out->path.at[i] <= ' ' || out->path.at[i] > '~')
            return no(out, 400, "bytes of the path that are not printable ASCII must be %XX");
    const char *query = (const char *)memchr(out->path.at, '?', out->path.n);
    if (query) out->path.n = (size_t)(query - out->path.at); /* nothing here reads one */
    return 0;
}

/* Digits alone, and not more than limit. */
static int length_of(ll_http_text v, size_t limit, ll_http_request *out)
{
    static const char form[] = "Content-Length must be a number of bytes, said once";
    size_t n = 0;
    if (out->sized || !v.n) return no(out, 400, form);
    for (size_t i = 0; i < v.n; i++) {
        if (v.at[i] < '0' || v.at[i] > '9') return no(out, 400, form);
        n = 10 * n + (size_t)(v.at[i] - '0');
        if (n > limit) return no(out, 413, "the body is larger than the server takes (--body)");
    }
    out->sized = true;
    out->body.n = n;
    return 0;
}

/* A field that may be there once. */
static int once(ll_http_text *field, ll_http_text v, ll_http_request *out)
{
    if (field->at)
        return no(out, 400, "Host, Content-Type and Authorization must each be said once");
    *field = v;
    return 0;
}

static int take(ll_http_text name, ll_http_text v, size_t limit, ll_http_request *out)
{
    if (like(name, "host")) return once(&out->host, v, out);
    if (like(name, "content-type")) return once(&out->type, v, out);
    if (like(name, "authorization")) return once(&out->auth, v, out);
    if (like(name, "transfer-encoding"))
        return no(out, 501,
                  "a body in parts (Transfer-Encoding) is not supported: send it whole, with its "
                  "Content-Length");
    if (like(name, "expect")) {
        out->expects = like(v, "100-continue");
        return out->expects ? 0 : no(out, 417, "Expect must be 100-continue");
    }
    if (like(name, "connection")) out->last |= like(v, "close");
    return like(name, "content-length") ? length_of(v, limit, out) : 0;
}

/* "Name: value", without the blanks around the value. */
static int field(ll_http_text line, size_t limit, ll_http_request *out)
{
    static const char form[] = "a header must be NAME: VALUE, on one line, the name without blanks";
    ll_http_text name, v;
    if (!until(&line, ':', &name) || !name.n) return no(out, 400, form);
    v = line;
    for (size_t i = 0; i < name.n; i++)
        if (!is_token(name.at[i])) return no(out, 400, form);
    while (v.n && (*v.at == ' ' || *v.at == '\t')) v.at++, v.n--;
    while (v.n && (v.at[v.n - 1] == ' ' || v.at[v.n - 1] == '\t')) v.n--;
    for (size_t i = 0; i < v.n; i++)
        if (((unsigned char)v.at[i] < ' ' && v.at[i] != '\t') || v.at[i] == 127)
            return no(out, 400, "a header's value must have no control characters");
    return take(name, v, limit, out);
}

int ll_http_parse(const char *bytes, size_t n, size_t body_limit, ll_http_request *out)
{
    ll_http_text rest = {bytes, n < LL_HTTP_HEAD ? n : LL_HTTP_HEAD}, line;
    static const char many[] = "the headers must be 64 at most, of 16384 bytes in all";
    int status;
    *out = (ll_http_request){0};
    const char *end = rest.n ? (const char *)memmem(bytes, rest.n, "\r\n\r\n", 4) : NULL;
    if (!end) return n >= LL_HTTP_HEAD ? no(out, 431, many) : 0;
    rest.n = (size_t)(end - bytes) + 2;
    for (int i = 0; rest.n; i++) {
        if (!until(&rest, '\n', &line) || !line.n || line.at[line.n - 1] != '\r')
            return no(out, 400, "lines before the body must end in CR LF");
        line.n--;
        status = i > FIELDS ? no(out, 431, many)
                 : i        ? field(line, body_limit, out)
                            : first_line(line, out);
        if (status) return status;
    }
    if (!out->host.at && !out->old) return no(out, 400, "the header Host is missing");
    out->last |= out->old;
    out->expects &= !out->old;
    out->body.at = end + 4;
    out->bytes = (size_t)(out->body.at - bytes) + out->body.n;
    return n < out->bytes ? 0 : 200;
}
