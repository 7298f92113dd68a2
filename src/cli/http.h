/* http.h: a small server of HTTP/1.1, and 1.0, for programs on the same machine: requests with a
 * body of a known length in, JSON and streams of events out. One thread, many connections. What is
 * asked is read strictly (http_parse.c): what is not plainly right is refused with its status.
 *
 *     READING --whole request--> ASKED --answer, or begin part end--> WRITING --> READING
 *                                                                        \-> LINGER (the last)
 * 1. A connection has one request at a time; what follows it waits in its bytes.
 * 2. Between the handler's call and the answer, or the end, its number is the handler's, also where
 *    the client has gone: then what is sent goes nowhere.
 * 3. A request must be there whole `patience` seconds after its first byte; a client must take
 *    bytes, or ask again, within as many. Where all connections are taken, a new client has that
 *    of the one that has been silent, or about to ask, longest, a second at least. */
#pragma once
#include "base/err.h"
#include "base/own.h"

enum { LL_HTTP_HEAD = 16384 }; /* bytes of a request before its body */

typedef struct ll_http_text {
    const char *at;
    size_t n;
} ll_http_text;
bool ll_http_is(ll_http_text s, const char *text);      /* the same bytes */
bool ll_http_path_is(ll_http_text s, const char *text); /* the same, where "%41" is "A" */

typedef struct ll_http_request {
    /* path: without a query; type: of the body; at NULL: not said */
    ll_http_text method, path, host, type, auth, body;
    bool old;        /* of HTTP/1.0, which need not say host, and knows no parts */
    bool last;       /* asks to close, or is old */
    bool expects;    /* waits for a word before it sends its body */
    bool sized;      /* said how long its body is */
    size_t bytes;    /* of all of it */
    const char *why; /* of one that is refused: what is wrong, and what would be right */
} ll_http_request;

/* 0: more is to come (out->expects says whether the client waits); 200: it is whole; else the
 * status that refuses it, and out->why. */
int ll_http_parse(const char *bytes, size_t n, size_t body_limit, ll_http_request *out);

typedef struct ll_http_opts {
    const char *host; /* an address to listen on */
    int port;         /* 0: any */
    int connections;  /* at most; further ones wait (3) */
    size_t body;      /* bytes at most */
    double patience;  /* s */
} ll_http_opts;

typedef struct ll_http ll_http;
ll_err ll_http_open(const ll_http_opts *o, ll_http **out);
void ll_http_close(ll_http *h);
LL_OWNED(ll_http, ll_http_close);
int ll_http_port(const ll_http *h);
bool ll_http_local(const ll_http *h); /* listens on an address of this machine alone */

typedef void ll_http_handler(void *user, int connection, const ll_http_request *r);
/* Waits up to so long for something to do, and does it. A signal ends the wait. */
ll_err ll_http_poll(ll_http *h, int ms, ll_http_handler *f, void *user);
void ll_http_answer(ll_http *h, int connection, int status, const char *type, const char *body,
                    size_t n);
/* 200, in parts. */
void ll_http_begin(ll_http *h, int connection, const char *type);
void ll_http_part(ll_http *h, int connection, const char *bytes, size_t n);
void ll_http_end(ll_http *h, int connection);
bool ll_http_gone(const ll_http *h, int connection);
/* No new connections and requests; true while there is something to write. */
bool ll_http_closing(ll_http *h);
