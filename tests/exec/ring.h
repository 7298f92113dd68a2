/* ring.h: a communicator whose collectives are sent, and go around rings. */
#pragma once
#include "base/text.h"
#include "tune/tune_int.h"
#include "pass/strategies.h"

static const char ring_entry[] =
    "{\"collective\": \"%s\", \"bytes\": 4096, \"shared\": false, \"why\": \"\", \"ways\": ["
    "{\"algorithm\": \"%s\", \"segment_bytes\": 0, \"predicted_us\": 1, \"measured_us\": 1}]}";

/* A communicator that takes rings, and pairs for all-to-alls, whatever the size. */
static inline ll_comm *open_ring(void)
{
    static const char *const ways[][2] = {{"all-reduce", "ring"},
                                          {"reduce-scatter", "ring"},
                                          {"all-gather", "ring"},
                                          {"all-to-all", "direct"}};
    ll_comm *c;
    ll_tuned_table *t;
    ll_arena *a = ll_arena_new();
    ll_buf b = {.arena = a};
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 120, .table = ""}, &c));
    ll_buf_printf(&b,
                  "{\"loopline_comm_table\": 1, \"key\": \"\", \"ranks\": %d, \"seconds\": 1,"
                  " \"model\": {\"alpha_us\": [1, 1], \"beta_ns\": [1, 1], \"gamma_ns\": 1,"
                  " \"kappa_ns\": 1, \"sigma_us\": 1, \"share\": 1}, \"entries\": [",
                  ll_comm_size(c));
    for (int i = 0; i < 4; i++) {
        ll_buf_puts(&b, i ? ", " : "");
        ll_buf_printf(&b, ring_entry, ways[i][0], ways[i][1]);
    }
    ll_buf_puts(&b, "]}");
    no_error(ll_tune_parse(b.text, b.len, "rings", NULL, ll_comm_size(c), &t));
    ll_comm_set_table(c, t);
    ll_arena_free(a);
    return c;
}
