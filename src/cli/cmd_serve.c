/* cmd_serve.c: loopline serve. A model of tokens behind HTTP, in the form that OpenAI's clients
 * speak. Requests that come while others are answered join them: each has a sequence of the batch,
 * and leaves it when it is done; those that find none free wait in order. */
#include "base/file.h"
#include "cli/asked.h"
#include "cli/http.h"
#include "cli/talk.h"

#include <arpa/inet.h>

typedef struct opts {
    ll_talk_opts talk;
    const char *host, *token;
    int64_t port, batch, connections, body;
    double timeout;
} opts;

static const ll_arg args[] = {
    {"RUN_FOLDER", LL_OPT(ll_trained_opts, folder), NULL,
     "run folder of a language model, trained or imported"},
    {"--port", LL_OPT(opts, port), "N", "port to listen on; 0 = any free port", "8080"},
    {"--host", LL_OPT(opts, host), "ADDRESS",
     "address to listen on; one that other machines can reach needs --token", "127.0.0.1"},
    {"--token", LL_OPT(opts, token), "FILE",
     "file whose first line is the API key that clients must send (Authorization: Bearer KEY)"},
    {"--batch", LL_ARG_COUNT, offsetof(opts, batch), "N",
     "requests to process concurrently; more wait in a queue", "4"},
    {"--connections", LL_ARG_COUNT, offsetof(opts, connections), "N",
     "maximum number of client connections", "64"},
    {"--body", LL_ARG_COUNT, offsetof(opts, body), "BYTES", "maximum size of a request body",
     "1048576"},
    {"--timeout", LL_OPT(opts, timeout), "S",
     "seconds after which an answer is cut off, with finish_reason length", "300"},
    LL_TALK_ARGS()};

/* ---- what is asked, and how far it is ---- */

typedef struct job {
    int connection;
    bool chat, begun;
    int64_t number, created, read; /* read: tokens of the prompt */
    double until;
    ll_asked asked;
    ll_tokens tokens;
    ll_saying say;
    ll_arena *arena;
    struct job *next; /* that waits */
} job;

typedef struct server {
    const opts *o;
    ll_talk t;
    ll_http *http;
    const ll_family *family; /* NULL: no conversations */
    const char *name;
    char *key;
    int64_t places, made;
    job **at; /* [batch]: NULL: free */
    job *first, *last;
} server;

static volatile sig_atomic_t told_to_stop;

static void on_signal(int)
{
    told_to_stop = 1;
}

/* ---- answers ---- */

static void send_json(server *s, int connection, int status, json_t *j)
{
    char *text = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    if (!text) text = strdup("{}");
    ll_http_answer(s->http, connection, status, "application/json", text, strlen(text));
    free(text);
}

static json_t *error_json(const char *message, const char *type, const char *param,
                          const char *code)
{
    return LL_JSON(LL_IS("error", LL_JSON(LL_IS("message", message), LL_IS("type", type),
                                          LL_IS("param", param), LL_IS("code", code))));
}

static void refuse(server *s, int connection, int status, const char *code, const char *param,
                   const char *message)
{
    send_json(
        s, connection, status,
        error_json(message, status < 500 ? "invalid_request_error" : "server_error", param, code));
}

static void event(server *s, const job *k, json_t *j)
{
    char *text = json_dumps(j, JSON_COMPACT);
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_buf b = {.arena = a};
    json_decref(j);
    ll_buf_printf(&b, "data: %s\n\n", text ? text : "{}");
    free(text);
    ll_http_part(s->http, k->connection, b.text, b.len);
}

/* Bytes as a JSON text; what is no UTF-8 becomes U+FFFD. */
static json_t *text_json(ll_arena *a, const char *bytes, size_t n)
{
    const char *text = ll_arena_printf(a, "%.*s", (int)n, bytes);
    return json_loads(ll_text_quoted(a, text), JSON_DECODE_ANY, NULL);
}

static json_t *usage_json(const job *k)
{
    return LL_JSON(LL_IS("prompt_tokens", k->read), LL_IS("completion_tokens", k->say.tokens),
                   LL_IS("total_tokens", k->read + k->say.tokens));
}

/* What all answers and their parts have; choice NULL: none. */
static json_t *frame(const server *s, const job *k, json_t *choice)
{
    char id[64];
    const char *chat = k->asked.stream ? "chat.completion.chunk" : "chat.completion";
    json_t *choices = json_array();
    snprintf(id, sizeof id, "%s-%ld", k->chat ? "chatcmpl" : "cmpl", k->number);
    if (choice)
        json_array_append_new(
            choices, LL_JSON_ADD(choice, LL_IS("index", 0), LL_IS("logprobs", json_null())));
    return LL_JSON(LL_IS("id", id), LL_IS("object", k->chat ? chat : "text_completion"),
                   LL_IS("created", k->created), LL_IS("model", s->name),
                   LL_IS("choices", choices));
}

static json_t *reason(const job *k)
{
    return k->say.done ? json_string(k->say.ended ? "stop" : "length") : json_null();
}

/* How many bytes from shown on can be told: no half of a character, nothing that may be cut off. */
static size_t tellable(const job *k)
{
    size_t end = k->say.text.len, from = k->say.shown;
    if (k->say.done) return end - from;
    end = end > k->say.hold ? end - k->say.hold : 0;
    if (end <= from) return 0;
    for (size_t back = 1; back <= 3 && back <= end - from; back++) {
        unsigned char c = (unsigned char)k->say.text.text[end - back];
        size_t want = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        if (c < 0x80 || want > 1) return end - from - (want > back ? back : 0);
    }
    return end - from;
}

/* What is new since the last time. */
static void tell_part(server *s, job *k)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    size_t n = tellable(k);
    if (!k->begun) {
        ll_http_begin(s->http, k->connection, "text/event-stream");
        if (k->chat)
            event(s, k,
                  frame(s, k,
                        LL_JSON(LL_IS("delta",
                                      LL_JSON(LL_IS("role", "assistant"), LL_IS("content", ""))),
                                LL_IS("finish_reason", json_null()))));
    }
    k->begun = true;
    if (!n && !k->say.done) return;
    json_t *words = text_json(a, n ? k->say.text.text + k->say.shown : "", n);
    k->say.shown += n;
    if (k->chat) words = LL_JSON(LL_IS("content", words));
    event(s, k,
          frame(s, k,
                LL_JSON(LL_IS(k->chat ? "delta" : "text", words),
                        LL_IS("finish_reason", reason(k)))));
    if (!k->say.done) return;
    if (k->asked.usage) event(s, k, LL_JSON_ADD(frame(s, k, NULL), LL_IS("usage", usage_json(k))));
    static const char end[] = "data: [DONE]\n\n";
    ll_http_part(s->http, k->connection, end, sizeof end - 1);
    ll_http_end(s->http, k->connection);
}

static void tell_whole(server *s, job *k)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    json_t *words = text_json(a, k->say.text.len ? k->say.text.text : "", k->say.text.len);
    if (k->chat) words = LL_JSON(LL_IS("role", "assistant"), LL_IS("content", words));
    json_t *j = frame(
        s, k,
        LL_JSON(LL_IS(k->chat ? "message" : "text", words), LL_IS("finish_reason", reason(k))));
    send_json(s, k->connection, 200, LL_JSON_ADD(j, LL_IS("usage", usage_json(k))));
}

static void tell(server *s, job *k)
{
    if (k->asked.stream)
        tell_part(s, k);
    else if (k->say.done)
        tell_whole(s, k);
}

/* ---- requests ---- */

static ll_err encode(server *s, job *k)
{
    const ll_asked *q = &k->asked;
    k->tokens = (ll_tokens){.v = q->tokens, .n = q->n_token, .arena = k->arena};
    if (k->chat) {
        TRY(ll_family_begin(&s->t, s->family, &k->tokens));
        for (int i = 0; i < q->n_said; i++)
            TRY(ll_family_turn(&s->t, s->family, q->said[i].who, q->said[i].text, &k->tokens));
        return ll_family_turn(&s->t, s->family, "assistant", NULL, &k->tokens);
    }
    return q->prompt ? ll_talk_add(&s->t, q->prompt, &k->tokens) : LL_OK;
}

/* Does it fit? Then its answer can begin. */
static ll_err prepare(server *s, job *k, const ll_http_request *r)
{
    TRY(ll_asked_parse(r->body.at, r->body.n, k->chat, &s->t.how, k->arena, &k->asked));
    if (k->chat && !s->family) TRY(ll_talk_family(&s->t, &s->family));
    k->asked.param = k->chat ? "messages" : "prompt"; /* of a refusal */
    TRY(encode(s, k));
    CHECK(k->tokens.n, LL_E_ARG, "the prompt is empty");
    for (int i = 0; i < k->tokens.n; i++)
        CHECK(k->tokens.v[i] < s->t.vocab, LL_E_ARG,
              "token %d is outside the vocabulary of %ld tokens", k->tokens.v[i], s->t.vocab);
    k->read = k->tokens.n;
    k->say = ll_talk_saying(&s->t, k->arena, k->asked.seeded ? 0 : k->number,
                            k->chat ? ll_family_stop(&s->t, s->family) : -1);
    uint64_t stream = k->say.how.stream;
    k->say.how = k->asked.how;
    k->say.how.stream = stream;
    if (k->asked.stop.n) k->say.stop = k->asked.stop;
    int64_t room = s->places - k->read;
    if (k->asked.most >= 0) k->say.most = k->asked.most;
    if (k->asked.most < 0 && k->say.most > room) k->say.most = room;
    k->say.done = k->say.most == 0;
    k->asked.param = room < 1 || k->say.most > room ? "context" : NULL;
    CHECK(!k->asked.param, LL_E_ARG,
          "the prompt has %ld tokens and up to %ld are to follow, but only %ld are kept in all "
          "(--context)",
          k->read, (k->asked.most < 0 ? s->o->talk.tokens : k->asked.most), s->places);
    return LL_OK;
}

static const char chat_path[] = "/v1/chat/completions";

/* For an answer: to a text, or to a conversation. */
static void ask(server *s, int connection, const ll_http_request *r)
{
    ll_arena *a = ll_arena_new();
    job *k = LL_NEW(a, job);
    *k = (job){.connection = connection,
               .chat = ll_http_is(r->path, chat_path),
               .number = ++s->made,
               .created = (int64_t)time(NULL),
               .until = ll_now() + s->o->timeout,
               .arena = a};
    ll_err rc = prepare(s, k, r);
    const char *m = k->asked.model;
    bool long_one = k->asked.param && !strcmp(k->asked.param, "context");
    if (rc != LL_OK) {
        refuse(s, connection, 400, long_one ? "context_length_exceeded" : NULL,
               long_one ? NULL : k->asked.param, ll_error_message());
    } else if (m && strcmp(m, s->name)) {
        refuse(s, connection, 404, "model_not_found", "model",
               ll_arena_printf(a, "unknown model %.60s: this server has %s", m, s->name));
    } else {
        if (s->last)
            s->last->next = k;
        else
            s->first = k;
        s->last = k;
        return;
    }
    ll_arena_free(a);
}

static json_t *model_of(const server *s)
{
    return json_pack("{s:s, s:s, s:i, s:s}", "id", s->name, "object", "model", "created", 0,
                     "owned_by", "loopline");
}

static void models(server *s, int c, const ll_http_request *)
{
    send_json(s, c, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_of(s)));
}

static const char model_path[] = "/v1/models/";

static void model(server *s, int c, const ll_http_request *r)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    size_t n = sizeof model_path - 1;
    if (ll_http_path_is((ll_http_text){r->path.at + n, r->path.n - n}, s->name))
        send_json(s, c, 200, model_of(s));
    else
        refuse(s, c, 404, "model_not_found", "model",
               ll_arena_printf(a, "unknown model: this server has %s", s->name));
}

static void health(server *s, int c, const ll_http_request *)
{
    send_json(s, c, 200, LL_JSON(LL_IS("status", "ok")));
}

static const struct route {
    const char *method, *path; /* one that ends with '/' is of all that begin so */
    void (*f)(server *s, int connection, const ll_http_request *r);
} routes[] = {{"GET", "/v1/models", models},
              {"GET", model_path, model},
              {"GET", "/health", health},
              {"POST", "/v1/completions", ask},
              {"POST", chat_path, ask}};

/* In as much time whatever is wrong. */
static bool has_key(const server *s, ll_http_text auth)
{
    size_t n = s->key ? strlen(s->key) : 0;
    unsigned off = 0;
    if (!s->key) return true;
    if (auth.n != n + 7 || strncasecmp(auth.at, "Bearer ", 7)) return false;
    for (size_t i = 0; i < n; i++) off |= (unsigned char)auth.at[7 + i] ^ (unsigned char)s->key[i];
    return !off;
}

/* Pages of other sites that a browser shows can reach this address by a name of their own. */
static bool is_host(const server *s, ll_http_text host)
{
    static const char *const ours[] = {"127.0.0.1", "localhost", "[::1]"};
    char name[32];
    size_t n = host.n;
    if (s->key || !host.at) return true; /* browsers say it */
    for (size_t i = host.n; i-- > 0 && host.at[i] != ']';)
        if (host.at[i] == ':') n = i;
    for (size_t i = n + 1; i < host.n; i++) /* a port, and nothing else */
        if (host.at[i] < '0' || host.at[i] > '9') return false;
    if (n >= sizeof name) return false;
    memcpy(name, host.at, n);
    name[n] = '\0';
    for (int i = 0; i < 3; i++)
        if (!strcasecmp(name, ours[i])) return true;
    struct in_addr number; /* a name may begin with 127. too */
    return inet_pton(AF_INET, name, &number) == 1 && !strncmp(name, "127.", 4);
}

/* Pages of other sites cannot send this type without asking. */
static bool is_json(ll_http_text type)
{
    static const char json[] = "application/json";
    size_t n = sizeof json - 1;
    return type.n >= n && !strncasecmp(type.at, json, n) &&
           (type.n == n || strchr("; \t", type.at[n]));
}

static void serve(void *user, int c, const ll_http_request *r)
{
    server *s = (server *)user;
    if (!has_key(s, r->auth)) {
        refuse(s, c, 401, "invalid_api_key", NULL, "the key is missing or wrong");
        return;
    }
    if (!is_host(s, r->host)) {
        refuse(s, c, 400, NULL, NULL, "Host is not an address of this machine");
        return;
    }
    bool path = false;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        size_t n = strlen(routes[i].path);
        bool begins = r->path.n > n && routes[i].path[n - 1] == '/';
        if (!ll_http_is(begins ? (ll_http_text){r->path.at, n} : r->path, routes[i].path)) continue;
        path = true;
        bool head = ll_http_is(r->method, "HEAD") && *routes[i].method == 'G';
        if (!head && !ll_http_is(r->method, routes[i].method)) continue;
        if (*routes[i].method == 'P' && !is_json(r->type))
            refuse(s, c, 415, NULL, NULL, "Content-Type must be application/json");
        else if (*routes[i].method == 'P' && !r->sized)
            refuse(s, c, 411, NULL, NULL, "Content-Length, the body's bytes, is missing");
        else
            routes[i].f(s, c, r);
        return;
    }
    refuse(s, c, path ? 405 : 404, NULL, NULL,
           path ? "method not allowed for this path"
                : "unknown path; expected /v1/models, /v1/completions, /v1/chat/completions or "
                  "/health");
}

/* ---- the loop ---- */

/* Those that wait, as long as sequences are free. */
static ll_err admit(server *s)
{
    for (int64_t i = 0; i < s->o->batch && s->first; i++) {
        if (s->at[i]) continue;
        job *k = s->first;
        s->first = k->next;
        if (!s->first) s->last = NULL;
        s->at[i] = k;
        ll_generator_clear(s->t.g, i);
        TRY(ll_generator_put(s->t.g, i, k->tokens.v, k->tokens.n));
    }
    return LL_OK;
}

static void leave(server *s, int64_t i)
{
    ll_generator_clear(s->t.g, i);
    ll_arena_free(s->at[i]->arena);
    s->at[i] = NULL;
}

/* A token for each sequence that was read to its end. */
static ll_err go_on(server *s)
{
    TRY(admit(s));
    TRY(ll_generator_step(s->t.g));
    double now = ll_now();
    for (int64_t i = 0; i < s->o->batch; i++) {
        job *k = s->at[i];
        bool gone = k && ll_http_gone(s->http, k->connection);
        if (!k) continue;
        if (!gone && !k->say.done && now > k->until) k->say.done = true;
        if (!gone && !k->say.done && ll_generator_ready(s->t.g, i))
            TRY(ll_talk_next(&s->t, &k->say, i));
        if (gone)
            ll_http_answer(s->http, k->connection, 503, "text/plain", "", 0); /* to nobody */
        else
            tell(s, k);
        if (gone || k->say.done) leave(s, i);
    }
    return LL_OK;
}

static bool busy(const server *s)
{
    bool any = s->first != NULL;
    for (int64_t i = 0; i < s->o->batch; i++) any |= s->at[i] != NULL;
    return any;
}

/* Nobody is left without a word. */
static void end_job(server *s, const job *k, const char *why)
{
    if (k->begun) {
        event(s, k, error_json(why, "server_error", NULL, NULL));
        ll_http_end(s->http, k->connection);
    } else
        refuse(s, k->connection, 503, NULL, NULL, why);
    ll_arena_free(k->arena);
}

static ll_err end(server *s, ll_err rc)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *why = rc == LL_OK ? "the server ends" : ll_arena_strdup(a, ll_error_message());
    double until = ll_now() + 2;
    for (int64_t i = 0; i < s->o->batch; i++)
        if (s->at[i]) end_job(s, s->at[i], why);
    for (job *k = s->first, *next; k; k = next) {
        next = k->next;
        end_job(s, k, why);
    }
    while (ll_http_closing(s->http) && ll_now() < until)
        if (ll_http_poll(s->http, 50, serve, s) != LL_OK) break;
    return rc;
}

static ll_err loop(server *s)
{
    struct sigaction mine = {.sa_handler = on_signal}, old[2];
    ll_err rc = LL_OK;
    sigaction(SIGINT, &mine, &old[0]);
    sigaction(SIGTERM, &mine, &old[1]);
    while (rc == LL_OK && !told_to_stop) {
        rc = ll_http_poll(s->http, busy(s) ? 0 : 1000, serve, s);
        if (rc == LL_OK) rc = busy(s) ? go_on(s) : ll_generator_idle(s->t.g);
    }
    rc = end(s, rc);
    sigaction(SIGINT, &old[0], NULL);
    sigaction(SIGTERM, &old[1], NULL);
    return rc;
}

/* ---- beginning ---- */

static ll_err read_key(server *s)
{
    size_t n;
    if (!s->o->token) return LL_OK;
    TRY(ll_file_read(s->o->token, 4096, (uint8_t **)&s->key, &n));
    s->key[strcspn(s->key, "\r\n")] = '\0';
    CHECK(strlen(s->key) >= 16, LL_E_ARG,
          "--token %s: the first line has %zu characters, expected 16 or more", s->o->token,
          strlen(s->key));
    return LL_OK;
}

/* Rank 0 listens. */
static ll_err open_http(server *s)
{
    const opts *o = s->o;
    if (!s->t.prints) return LL_OK;
    TRY(read_key(s));
    ll_http_opts h = {.host = o->host,
                      .port = (int)o->port,
                      .connections = (int)o->connections,
                      .body = (size_t)o->body,
                      .patience = 30};
    TRY(ll_http_open(&h, &s->http));
    CHECK(
        s->key || ll_http_local(s->http), LL_E_ARG,
        "--host %s can be reached by other machines: set --token FILE, whose key clients must send",
        o->host);
    return LL_OK;
}

static ll_err open_all(server *s, ll_arena *a)
{
    const opts *o = s->o;
    const struct {
        const char *name;
        int64_t v, most;
    } limits[] = {{"--port", o->port, 65535},
                  {"--connections", o->connections, 4096},
                  {"--batch", o->batch, 1024}};
    for (int i = 0; i < 3; i++)
        CHECK(limits[i].v <= limits[i].most, LL_E_ARG, "%s is %ld, expected at most %ld",
              limits[i].name, limits[i].v, limits[i].most);
    TRY(ll_talk_begin(&o->talk, &s->t));
    s->t.waits = true;
    TRY(ll_talk_ranks(&s->t, o->batch));
    ll_err rc = open_http(s);
    TRY(s->t.comm ? ll_comm_agree(s->t.comm, rc) : rc);
    int64_t most = s->t.limit.places;
    s->places = o->talk.context ? o->talk.context : s->t.limit.endless || most < 2048 ? most : 2048;
    s->name = s->t.run->name;
    s->at = LL_NEW_ARRAY(a, job *, o->batch);
    s->t.chunk = o->batch < 8 ? 64 / o->batch : 8; /* mostly one prompt at a time is new */
    return ll_talk_open(&s->t, o->batch, s->places);
}

static ll_err listen_on(server *s)
{
    const char *host = s->o->host;
    bool six = strchr(host, ':') != NULL;
    printf("%s at http://%s%s%s:%d/v1\n", s->name, six ? "[" : "", host, six ? "]" : "",
           ll_http_port(s->http));
    fflush(stdout);
    return loop(s);
}

/* Whoever ends this one before rank 0 is done would leave its clients without a word. */
static ll_err follow(server *s)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    return ll_talk_follow(&s->t);
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_OWN(ll_arena) a = ll_arena_new();
    server s = {.o = o};
    CHECK(o->timeout > 0, LL_E_ARG, "--timeout is %g, expected seconds above 0", o->timeout);
    ll_err rc = open_all(&s, a);
    if (rc == LL_OK) rc = s.t.prints ? listen_on(&s) : follow(&s);
    rc = ll_talk_leave(&s.t, rc);
    ll_http_close(s.http);
    ll_talk_close(&s.t);
    free(s.key);
    return rc;
}

const ll_command ll_command_serve = {
    "serve", "serve a language model over HTTP with an OpenAI-compatible API", args, sizeof(opts),
    run};
