/* loopline serve, by a client of plain sockets: what it answers is what generate says, alone, as
 * events, and among others; what is no request is refused; it ends when it is told to. */
#include "cli/program.h"

#include <arpa/inet.h>
#include <sys/socket.h>

static char text[12001];

static void put_model(void **state)
{
    static const char *const words[] = {"in the beginning ", "was ", "a ring of rails ",
                                        "and on it ",        "ran ", "a train.\n"};
    size_t n = 0;
    for (unsigned i = 7; n < sizeof text - 32; i = i * 75 % 65537)
        n += (size_t)sprintf(text + n, "%s", words[i % 6]);
    write_whole(tmpdir_path(state, "t.txt"), text, n);
    write_text(tmpdir_path(state, "s.yaml"),
               "model: {name: llama, layers: 1, width: 32, heads: 2, kv_heads: 1, hidden: 32, seq: "
               "96, vocab: 300}\n"
               "data: {format: text, path: t.txt, tokenizer: tok}\n"
               "train: {batch: 4, steps: 40, lr: 0.01, threads: 1, log_every: 40}\n");
    assert_int_equal(mkdir(tmpdir_path(state, "tok"), 0777), 0);
    must(*state, "tokens train t.txt --vocab 290 --out tok/tokenizer.json");
    write_text(tmpdir_path(state, "tok/tokenizer_config.json"),
               "{\"chat_template\": \"<|im_start|>\", \"eos_token\": \"<|endoftext|>\"}");
    must(*state, "train s.yaml --out g");
}

/* ---- a client ---- */

static int start(void **state, pid_t *child, const char *const *words)
{
    int port = 0;
    remove(tmpdir_path(state, "stdout.txt"));
    *child = program_start(*state, NULL, words);
    for (int i = 0; i < 20000 && !port; i++) {
        char *out = read_whole(tmpdir_path(state, "stdout.txt"), NULL);
        const char *at = out && strchr(out, '\n') ? strstr(out, "http://") : NULL;
        if (at) port = atoi(strchr(at + 7, ':') + 1);
        free(out);
        if (!port) sleep_ms(5);
    }
    assert_true(port > 0);
    return port;
}

static int connect_to(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    struct timeval most = {100, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    return fd;
}

static void say(int fd, const char *bytes)
{
    assert_int_equal(send(fd, bytes, strlen(bytes), MSG_NOSIGNAL), (ssize_t)strlen(bytes));
}

static void post(int fd, const char *path, const char *more, const char *body)
{
    char *all = malloc(strlen(body) + 512);
    sprintf(all,
            "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s"
            "Content-Length: %zu\r\n\r\n%s",
            path, more, strlen(body), body);
    say(fd, all);
    free(all);
}

/* One answer, whole: its status, and its body, which the caller frees; parts are joined. */
static int answer(int fd, char **body)
{
    size_t n = 0, room = 1 << 20;
    char *all = malloc(room + 1), *head;
    for (;;) {
        ssize_t got = recv(fd, all + n, 1, 0);
        if (got <= 0) fail_msg("the server closed, or said nothing: '%.*s'", (int)n, all);
        all[n += (size_t)got] = '\0';
        assert_true(n < room);
        if (!(head = strstr(all, "\r\n\r\n"))) continue;
        const char *length = strstr(all, "Content-Length: ");
        if (length && length < head && n == (size_t)(head + 4 - all) + (size_t)atoi(length + 16))
            break;
        if (!length && n >= 5 && !strcmp(all + n - 5, "0\r\n\r\n")) break;
    }
    int status = atoi(all + 9);
    char *out = strdup("");
    bool parts = strstr(all, "Transfer-Encoding: chunked") != NULL;
    for (char *at = head + 4; *at;) {
        size_t size = parts ? strtoul(at, &at, 16) : strlen(at);
        if (parts) at += 2;
        out = realloc(out, strlen(out) + size + 1);
        strncat(out, at, size);
        at += size + (parts ? 2 : 0);
        if (parts && !size) break;
    }
    free(all);
    *body = out;
    return status;
}

/* A text of an answer: choices[0].text, or message.content. */
static char *words_of(const char *body)
{
    json_t *j = json_of(body), *c = json_array_get(json_object_get(j, "choices"), 0);
    const json_t *v = json_object_get(c, "text");
    if (!v) v = json_object_get(json_object_get(c, "message"), "content");
    assert_true(json_is_string(v));
    assert_true(json_num(json_object_get(j, "usage"), "completion_tokens") > 0);
    char *s = strdup(json_string_value(v));
    json_decref(j);
    return s;
}

static char *asked(int port, const char *path, const char *body)
{
    char *b, *s;
    int fd = connect_to(port);
    post(fd, path, "Connection: close\r\n", body);
    int status = answer(fd, &b);
    if (status != 200) fail_msg("%s: status %d: %s", body, status, b);
    char end;
    assert_int_equal(recv(fd, &end, 1, 0), 0);
    close(fd);
    s = words_of(b);
    free(b);
    return s;
}

/* Texts of events, joined. */
static char *told(const char *body, bool chat)
{
    char *out = calloc(1, strlen(body) + 1);
    int done = 0;
    for (const char *at = body; (at = strstr(at, "data: ")); at++) {
        if (!strncmp(at + 6, "[DONE]", 6)) {
            done++;
            continue;
        }
        char *line = strndup(at + 6, strcspn(at + 6, "\n"));
        json_t *j = json_of(line), *c = json_array_get(json_object_get(j, "choices"), 0);
        const json_t *v = chat ? json_object_get(json_object_get(c, "delta"), "content")
                               : json_object_get(c, "text");
        if (v) strcat(out, json_string_value(v));
        json_decref(j);
        free(line);
    }
    assert_int_equal(done, 1);
    return out;
}

static void status_is(int port, int status, const char *bytes)
{
    char *b;
    int fd = connect_to(port);
    say(fd, bytes);
    int got = answer(fd, &b);
    if (got != status) fail_msg("status %d, wanted %d, of %.200s\n%s", got, status, bytes, b);
    if (status != 200) {
        json_t *j = json_of(b);
        const json_t *e = json_object_get(j, "error");
        assert_true(json_is_string(json_object_get(e, "message")));
        assert_true(json_is_string(json_object_get(e, "type")));
        json_decref(j);
    }
    free(b);
    close(fd);
}

/* Refused, in a message that has these words. */
static void told_is(int port, int status, const char *want, const char *bytes)
{
    char *b;
    int fd = connect_to(port);
    say(fd, bytes);
    int got = answer(fd, &b);
    json_t *j = json_of(b), *e = json_object_get(json_object_get(j, "error"), "message");
    if (got != status || !json_is_string(e) || !strstr(json_string_value(e), want))
        fail_msg("status %d of %.200s\n%s", got, bytes, b);
    json_decref(j);
    free(b);
    close(fd);
}

static void body_is(int port, int status, const char *path, const char *body)
{
    char all[1024];
    snprintf(all, sizeof all,
             "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             path, port, strlen(body), body);
    status_is(port, status, all);
}

/* ---- tests ---- */

#define COMPLETIONS "/v1/completions"
#define CHATS "/v1/chat/completions"

static void as_generate(void **state, int port)
{
    outcome o = succeeds(*state, "generate g -p ring -n 20 -t 0");
    char *s =
        asked(port, COMPLETIONS, "{\"prompt\": \"ring\", \"max_tokens\": 20, \"temperature\": 0}");
    assert_int_equal(strncmp(o.out, "ring", 4), 0);
    assert_int_equal(strncmp(o.out + 4, s, strlen(s)), 0);
    assert_int_equal(strlen(o.out), strlen(s) + 5);
    outcome_free(&o);
    char *b, *again;
    int fd = connect_to(port);
    for (int i = 0; i < 2; i++) { /* on one connection */
        post(fd, COMPLETIONS, "",
             "{\"prompt\": \"ring\", \"max_tokens\": 20, \"temperature\": 0, \"stream\": true}");
        assert_int_equal(answer(fd, &b), 200);
        again = told(b, false);
        assert_string_equal(s, again);
        free(again);
        free(b);
    }
    close(fd);
    free(s);
    s = asked(port, COMPLETIONS,
              "{\"prompt\": \"ring\", \"max_tokens\": 20, \"seed\": 5, \"stop\": [\"a\", \"zz\"]}");
    assert_null(strchr(s, 'a'));
    free(s);
}

static void among_others(int port)
{
    static const char *const prompts[] = {"in the", "was", "a ring of", "and", "ran", "t", "rails"};
    enum { N = sizeof prompts / sizeof *prompts };
    char *alone[N], *b, body[256];
    int fd[N];
    for (int i = 0; i < N; i++) {
        snprintf(body, sizeof body, "{\"prompt\": \"%s\", \"max_tokens\": %d, \"seed\": 3}",
                 prompts[i], 9 + 3 * i);
        alone[i] = asked(port, COMPLETIONS, body);
    }
    for (int i = 0; i < N; i++) {
        snprintf(body, sizeof body, "{\"prompt\": \"%s\", \"max_tokens\": %d, \"seed\": 3}",
                 prompts[i], 9 + 3 * i);
        post(fd[i] = connect_to(port), COMPLETIONS, "", body);
        if (i == 3) close(fd[i]);             /* does not wait */
        if (i == 4) shutdown(fd[i], SHUT_WR); /* says no more, and waits */
    }
    for (int i = 0; i < N; i++) {
        if (i == 3) continue;
        assert_int_equal(answer(fd[i], &b), 200);
        char *s = words_of(b);
        assert_string_equal(s, alone[i]);
        free(s);
        free(b);
        close(fd[i]);
    }
    for (int i = 0; i < N; i++) free(alone[i]);
}

static void conversation(int port)
{
    static const char q[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"be\"}, {\"role\": "
        "\"user\", \"content\": \"ring\"}], \"max_tokens\": 7, \"seed\": 1%s}";
    char body[256], *b, *again;
    snprintf(body, sizeof body, q, "");
    char *s = asked(port, CHATS, body);
    int fd = connect_to(port);
    snprintf(body, sizeof body, q,
             ", \"stream\": true, \"stream_options\": {\"include_usage\": true}");
    post(fd, CHATS, "", body);
    assert_int_equal(answer(fd, &b), 200);
    assert_non_null(strstr(b, "\"role\":\"assistant\""));
    assert_non_null(strstr(b, "\"total_tokens\""));
    again = told(b, true);
    assert_string_equal(s, again);
    free(again);
    free(b);
    free(s);
    close(fd);
}

/* A head and nothing behind it: what comes next is the next answer's. */
static void heads(int port)
{
    static const char two[] = "HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
                              "HEAD " COMPLETIONS " HTTP/1.1\r\nHost: localhost\r\n"
                              "Connection: close\r\n\r\n";
    char b[2048];
    size_t n = 0;
    ssize_t some;
    int fd = connect_to(port);
    say(fd, two);
    while ((some = recv(fd, b + n, sizeof b - 1 - n, 0)) > 0) n += (size_t)some;
    b[n] = '\0';
    close(fd);
    char *end = strstr(b, "\r\n\r\n");
    assert_int_equal(strncmp(b, "HTTP/1.1 200 ", 13), 0);
    assert_non_null(end);
    assert_int_equal(strncmp(end + 4, "HTTP/1.1 405 ", 13), 0);
    assert_string_equal(strstr(end + 4, "\r\n\r\n"), "\r\n\r\n");
}

/* Clients of HTTP/1.0 have an answer that ends with the connection, events too. */
static void of_old(int port)
{
    static const char body[] = "{\"prompt\": \"ring\", \"max_tokens\": 9, \"seed\": 2, "
                               "\"stream\": true}";
    for (int events = 0; events < 2; events++) {
        char b[8192];
        size_t n = 0;
        ssize_t some;
        int fd = connect_to(port);
        snprintf(b, sizeof b,
                 "POST " COMPLETIONS " HTTP/1.0\r\nContent-Type: application/json\r\nConnection: "
                 "keep-alive\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(body), body);
        say(fd, events ? b : "GET /v1/models HTTP/1.0\r\nExpect: 100-continue\r\n\r\n");
        while ((some = recv(fd, b + n, sizeof b - 1 - n, 0)) > 0) n += (size_t)some;
        b[n] = '\0';
        close(fd);
        if (strncmp(b, "HTTP/1.1 200 ", 13) || !strstr(b, "Connection: close")) fail_msg("%s", b);
        assert_null(strstr(b, "chunked"));
        const char *at = strstr(b, "\r\n\r\n");
        assert_int_equal(strncmp(at + 4, events ? "data: {" : "{", events ? 7 : 1), 0);
        if (events) free(told(b, false));
    }
}

/* Clients that do not finish asking give way, the first of them first. */
static void half_asked(void **state)
{
    static const char *const words[] = {"serve", "g", "--port", "0", "--connections", "3", NULL};
    static const char whole[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    pid_t child;
    int fd[3];
    char *b, end;
    put_model(state);
    int port = start(state, &child, words);
    for (int i = 0; i < 3; i++) {
        say(fd[i] = connect_to(port), "GET /health HTTP/1.1\r\n");
        sleep_ms(50);
    }
    status_is(port, 200, whole);
    assert_int_equal(recv(fd[0], &end, 1, 0), 0);
    say(fd[2], "Host: localhost\r\n\r\n"); /* the others have not been waited for */
    assert_int_equal(answer(fd[2], &b), 200);
    free(b);
    for (int i = 0; i < 3; i++) close(fd[i]);
    kill(child, SIGTERM);
    outcome o = program_wait(*state, child);
    assert_int_equal(o.status, 0);
    outcome_free(&o);
}

/* What is no request that is read here is told what would be one. */
static void not_read(int port)
{
#define POST_TO "POST " COMPLETIONS " HTTP/1.1\r\nHost: localhost\r\n"
#define GET_FROM "GET /v1/models HTTP/1.1\r\n"
    told_is(port, 501, "with its Content-Length", POST_TO "Transfer-Encoding: chunked\r\n\r\n");
    told_is(port, 413, "(--body)", POST_TO "Content-Length: 9999\r\n\r\n");
    told_is(port, 400, "Content-Length must be", POST_TO "Content-Length: -1\r\n\r\n");
    told_is(port, 411, "Content-Length", POST_TO "Content-Type: application/json\r\n\r\n");
    told_is(port, 417, "100-continue", POST_TO "Expect: 200\r\n\r\n");
    told_is(port, 400, "NAME: VALUE", POST_TO "Content Length: 1\r\n\r\n");
    told_is(port, 400, "header Host is missing", GET_FROM "\r\n");
    told_is(port, 400, "said once", GET_FROM "Host: a\r\nHost: b\r\n\r\n");
    told_is(port, 400, "CR LF", GET_FROM "Host: a\n\r\n\r\n");
    told_is(port, 400, "plain http", "\x16\x03\x01\r\n\r\n");
    told_is(port, 505, "HTTP/1.1", "GET /v1/models HTTP/2.0\r\nHost: localhost\r\n\r\n");
}

static void refused(int port)
{
    not_read(port);
    heads(port);
    of_old(port);
    status_is(port, 200, "GET /v1/models HTTP/1.1\r\nHost: [::1]:1\r\n\r\n");
    status_is(port, 404, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 405, "GET " COMPLETIONS " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 400, "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    status_is(port, 400, "GET /v1/models HTTP/1.1\r\nHost: 127.evil.example\r\n\r\n");
    status_is(port, 200, "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.2:1\r\n\r\n");
    status_is(port, 200, "GET /v1/models/g HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 200, "GET /v1/models/%67 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 200, "GET /v1/models/g?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 200, "GET /v1/models?x=/1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 404, "GET /v1/models/%6 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 404, "GET /v1/models/g%00 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 404, "GET /v1/models/gg HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 404, "GET /v1/models/ HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 405, "DELETE /v1/models/g HTTP/1.1\r\nHost: localhost\r\n\r\n");
    status_is(port, 400, "GET /v1/models HTTP/1.1\r\n\r\n");
    status_is(port, 400, "GET /v1/models HTTP/1.1\nHost: localhost\n\r\n\r\n");
    status_is(port, 400, "GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
    status_is(port, 400, "\x16\x03\x01\r\n\r\n");
    status_is(port, 400, "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:x\r\n\r\n");
    status_is(port, 400, "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:80, evil.example\r\n\r\n");
    status_is(port, 400, "GET /v1/models HTTP/1.1\r\nHost: [::1]:1:1\r\n\r\n");
    status_is(port, 505, "GET /v1/models HTTP/2.0\r\nHost: localhost\r\n\r\n");
    status_is(port, 400, "GET /v1/models HTTP/1.0\r\nHost: evil.example\r\n\r\n");
    status_is(port, 415,
              "POST " COMPLETIONS " HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
              "Content-Length: 2\r\n\r\n{}");
    status_is(port, 415,
              "POST " COMPLETIONS " HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
              "application/jsonp\r\nContent-Length: 2\r\n\r\n{}");
    body_is(port, 400, COMPLETIONS, "{");
    body_is(port, 400, COMPLETIONS, "[]");
    body_is(port, 400, COMPLETIONS, "{}");
    body_is(port, 400, COMPLETIONS, "{\"prompt\": \"\"}");
    static const char *const told[][3] = {
        {COMPLETIONS, "{\"prompt\": [300]}", "outside the vocabulary"},
        {COMPLETIONS, "{\"prompt\": [300]}", "\"param\":\"prompt\""}, /* the field is named */
        {COMPLETIONS, "null", "must be a JSON object"},
        {COMPLETIONS, "{\"prompt\": \"a\\u0000\"}", "\\\\u0000, which is not supported"},
        {CHATS, "{\"messages\": []}", "at least one message"}};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        char *b = NULL;
        int fd = connect_to(port);
        post(fd, told[i][0], "", told[i][1]);
        assert_int_equal(answer(fd, &b), 400);
        if (!strstr(b, told[i][2])) fail_msg("%s: %s", told[i][1], b);
        free(b);
        close(fd);
    }
    body_is(port, 400, COMPLETIONS, "{\"prompt\": \"a\", \"n\": 2}");
    body_is(port, 400, COMPLETIONS, "{\"prompt\": \"a\", \"colour\": 2}");
    body_is(port, 400, COMPLETIONS, "{\"prompt\": \"a\", \"max_tokens\": 96}");
    body_is(port, 400, COMPLETIONS, "{\"prompt\": \"a\", \"temperature\": -1}");
    body_is(port, 400, COMPLETIONS, "{\"prompt\": \"a\", \"stop\": [\"b\", \"\"]}");
    body_is(port, 404, COMPLETIONS, "{\"prompt\": \"a\", \"model\": \"other\"}");
    body_is(port, 400, CHATS, "{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}");
    body_is(port, 200, COMPLETIONS, "{\"prompt\": [1, 2], \"max_tokens\": 1}");
}

static void serves(void **state)
{
    static const char *const words[] = {"serve",  "g",    "--port", "0",   "--batch", "2",
                                        "--body", "4096", "-t",     "0.7", NULL};
    pid_t child;
    put_model(state);
    int port = start(state, &child, words);
    as_generate(state, port);
    among_others(port);
    conversation(port);
    refused(port);
    kill(child, SIGTERM);
    outcome o = program_wait(*state, child);
    if (o.status) fail_msg("status %d\n%s", o.status, o.err);
    outcome_free(&o);
}

/* Linear attention has a state, which goes on beyond model.seq; --context is a limit all the same.
 */
static void no_end(void **state)
{
    const char *words[] = {"serve", "y", "--port", "0", NULL, "100", NULL};
    static const char asks[] = "{\"prompt\": \"ring\", \"max_tokens\": 150, \"temperature\": 0}";
    pid_t child;
    put_model(state);
    must(*state, "train s.yaml --out y -s model.linear=1 -s model.decay=2");
    for (int i = 0; i < 2; i++) {
        words[4] = i ? "--context" : NULL;
        int port = start(state, &child, words);
        if (i) body_is(port, 400, COMPLETIONS, asks);
        char *s = i ? NULL : asked(port, COMPLETIONS, asks);
        kill(child, SIGTERM);
        outcome o = program_wait(*state, child);
        assert_int_equal(o.status, 0);
        outcome_free(&o);
        if (i) continue;
        o = succeeds(*state, "generate y -p ring -n 150 -t 0");
        assert_int_equal(strncmp(o.out + 4, s, strlen(s)), 0);
        assert_int_equal(strlen(o.out), strlen(s) + 5);
        outcome_free(&o);
        free(s);
    }
}

/* On two ranks, of which one listens: the same answers, and those of chat. */
static void by_ranks(void **state)
{
    static const char *const words[] = {"serve", "g",      "--port",   "0", "--batch",
                                        "2",     "--mesh", "tensor=2", NULL};
    pid_t child;
    put_model(state);
    outcome one = succeeds(*state, "generate g -p ring -n 20 --seed 2");
    outcome two = succeeds(*state, "generate g -p ring -n 20 --seed 2 --mesh tensor=2");
    assert_string_equal(one.out, two.out);
    assert_non_null(strstr(two.err, "memory of a rank: "));
    assert_non_null(strstr(two.err, " tokens read in "));
    assert_null(strstr(two.err, "\n\n"));
    outcome_free(&one);
    outcome_free(&two);
    int port = start(state, &child, words);
    as_generate(state, port);
    sleep_ms(1500); /* with nobody there */
    among_others(port);
    conversation(port);
    kill(child, SIGTERM);
    one = program_wait(*state, child);
    if (one.status) fail_msg("status %d\n%s", one.status, one.err);
    assert_null(strstr(one.err, "rank 1:"));
    outcome_free(&one);
    refuses(*state, 1, "serve g --port 0 --mesh tensor=2 --host 0.0.0.0", "--token FILE");
}

static void others_reach(void **state)
{
    static const char *const words[] = {"serve",   "g",       "--port",  "0", "--host",
                                        "0.0.0.0", "--token", "key.txt", NULL};
    pid_t child;
    put_model(state);
    write_text(tmpdir_path(state, "key.txt"), "0123456789abcdefgh\n");
    write_text(tmpdir_path(state, "short.txt"), "0123\n");
    refuses(*state, 1, "serve g --port 0 --host 0.0.0.0", "--token FILE");
    refuses(*state, 1, "serve g --port 0 --token short.txt", "16 or more");
    int port = start(state, &child, words);
    status_is(port, 401, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
    status_is(port, 401,
              "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
              "0123456789abcdefgH\r\n\r\n");
    status_is(port, 200,
              "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
              "0123456789abcdefgh\r\n\r\n");
    kill(child, SIGINT);
    outcome o = program_wait(*state, child);
    assert_int_equal(o.status, 0);
    outcome_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(serves, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(half_asked, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(no_end, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(by_ranks, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(others_reach, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
