/* Small texts from command lines and run files: meshes, layouts, specs, codecs, precisions, the
 * words of a command, a list of turns. Taken or refused with a message; what is a mesh prints and
 * reads back. */
#include "base/spec.h"
#include "cli/args.h"
#include "comm/codec.h"
#include "mesh/mesh.h"
#include "pass/layouts.h"
#include "pass/partition.h"
#include "pass/pass.h"
#include "pass/prune.h"
#include "pass/recompute.h"
#include "program/ways.h"
#include "train/recovery.h"
#include "replicas/server.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void mesh(const char *text)
{
    ll_mesh m, again;
    ll_pin pin;
    char printed[LL_MESH_TEXT];
    if (ll_mesh_parse(text, &m) != LL_OK) return;
    ll_mesh_text(&m, printed);
    ll_err e = ll_mesh_parse(printed, &again);
    LL_ASSERT(e == LL_OK && again.n_rank == m.n_rank && again.n == m.n);
    const ll_layout_rule rule = {"w", text, "fuzz"};
    e = ll_pin_read(&rule, &m, &pin);
    LL_ASSERT(e == LL_OK || *ll_error_message());
}

static void layout(const char *text)
{
    ll_mesh m;
    ll_pin pin;
    const ll_layout_rule rule = {text, text, "fuzz"};
    ll_err e = ll_mesh_parse("data=2,height=3,tensor=2", &m);
    LL_ASSERT(e == LL_OK);
    e = ll_pin_read(&rule, &m, &pin);
    LL_ASSERT(e == LL_OK || *ll_error_message());
}

static void codec(const char *text)
{
    ll_codec *k = NULL;
    double bytes;
    ll_err e = ll_codec_open(text, "fuzz", 100, 1, &k);
    ll_codec_close(k);
    LL_ASSERT(e == LL_OK || *ll_error_message());
    ll_err estimated = ll_codec_estimate(text, 100, 4, &bytes);
    LL_ASSERT(estimated == e);
}

static void ways(const char *text)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_ways w = {.arena = arena}, again = {.arena = arena};
    if (ll_ways_parse(text, &w) != LL_OK) return;
    ll_err e = ll_ways_parse(ll_ways_print(&w, arena), &again);
    LL_ASSERT(e == LL_OK && again.n == w.n);
}

static void others(const char *text)
{
    ll_spec s;
    ll_precision p;
    ll_overlap o;
    ll_turn t;
    ll_recompute_how r;
    ll_prune prune;
    ll_start start;
    ll_err e = ll_start_parse(text, &start);
    LL_ASSERT(e != LL_OK || (start.number >= 0 && start.out > text));
    e = ll_spec_parse(text, &s);
    LL_ASSERT(e != LL_OK || (s.n_in <= LL_MAX_DIMS && s.n_out <= LL_MAX_DIMS));
    e = ll_precision_parse(text, &p);
    LL_ASSERT(e == LL_OK || *ll_error_message());
    e = ll_overlap_parse(text, &o);
    LL_ASSERT(e == LL_OK || *ll_error_message());
    e = ll_turn_parse(text, &t);
    LL_ASSERT(e == LL_OK || *ll_error_message());
    e = ll_recompute_parse(text, &r);
    LL_ASSERT(e == LL_OK ? r.budget >= 0 : *ll_error_message());
    ll_prune_steps when;
    e = ll_prune_steps_parse(text, &when);
    LL_ASSERT(e == LL_OK ? when.from >= 0 && when.to >= when.from : *ll_error_message());
    e = ll_prune_parse(text, &prune);
    LL_ASSERT(e == LL_OK ? prune.keep >= 0 && prune.of <= LL_PRUNE_MOST : *ll_error_message());
}

static void turns(const char *text, size_t size)
{
    ll_turns t;
    ll_err e = ll_turns_parse(text, size, "fuzz", &t);
    LL_ASSERT(e == LL_OK ? t.from >= 0 && t.turn : *ll_error_message() && !t.turn);
    for (int64_t i = 0; e == LL_OK && i < t.n; i++) LL_ASSERT(t.turn[i] > (i ? t.turn[i - 1] : -1));
    free(t.turn);
}

/* Every command's table, with the text cut into words at spaces. */
static void words(char *text)
{
    char *argv[64], *rest = NULL;
    int n = 0;
    for (char *w = strtok_r(text, " ", &rest); w && n < 64; w = strtok_r(NULL, " ", &rest))
        argv[n++] = w;
    for (const ll_command *const *c = ll_commands(); *c; c++) {
        if (!(*c)->args) continue;
        ll_arena *a = ll_arena_new();
        bool help;
        ll_err e = ll_args_parse(*c, ll_commands(), n, argv, a, ll_arena_alloc(a, (*c)->opts_bytes),
                                 &help);
        LL_ASSERT(e == LL_OK || *ll_error_message());
        ll_arena_free(a);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = (char *)calloc(size + 1, 1);
    if (size) memcpy(text, data, size);
    mesh(text);
    layout(text);
    codec(text);
    others(text);
    ways(text);
    turns(text, size);
    words(text);
    free(text);
    return 0;
}
