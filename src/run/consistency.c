/* consistency.c: see consistency.h. Local SGD: Stich 2019; post-local: Lin et al. 2020; DiLoCo:
 * Douillard et al. 2023, streaming: 2025; D-PSGD (gossip): Lian et al. 2017, AD-PSGD: 2018; SGP:
 * Assran et al. 2019, whose weights are all 1 on a graph where everyone sends as much as it gets;
 * EASGD: Zhang et al. 2015; SSP: Ho et al. 2013; async (Downpour): Dean et al. 2012; Hogwild: Niu
 * et al. 2011; eager: Li et al. 2020. */
#include "run/consistency.h"

#include "run/run_int.h"

#define PRESET(name, what, every, warm_up, peers, parts, codec, outer, lr, elastic, seeds, server, \
               staleness, quorum, delay)                                                           \
    {                                                                                              \
        name, LL_EXCHANGE_##what, every, warm_up, LL_PEERS_##peers, 2, parts, codec,               \
            LL_OUTER_##outer, lr, 0.9, elastic, LL_SEEDS_##seeds, LL_SERVER_##server, staleness,   \
            quorum, delay                                                                          \
    }
static const ll_consistency presets[] = {
    PRESET("sync", gradient, 1, 0, all, 1, "none", sgd, 1, 0, shared, sharded, -1, 1, 0),
    PRESET("ssp", difference, 1, 0, server, 1, "none", sgd, 1, 0, shared, sharded, 3, 1, 0),
    PRESET("eager", gradient, 1, 0, server, 1, "none", sgd, 1, 0, shared, sharded, 1, 0, 0),
    PRESET("async", difference, 1, 0, server, 1, "none", sgd, 1, 0, shared, sharded, -1, 1, 0),
    PRESET("hogwild", difference, 1, 0, server, 1, "none", sgd, 1, 0, shared, open, -1, 1, 0),
    PRESET("local", parameter, 8, 0, all, 1, "none", sgd, 1, 0, shared, sharded, -1, 1, 0),
    PRESET("post-local", parameter, 8, 100, all, 1, "none", sgd, 1, 0, shared, sharded, -1, 1, 0),
    PRESET("diloco", difference, 100, 0, all, 1, "none", nesterov, 0.7, 0, shared, sharded, -1, 1,
           0),
    PRESET("streaming", difference, 100, 0, all, 4, "int4", nesterov, 0.7, 0, shared, sharded, -1,
           1, 5),
    PRESET("gossip", parameter, 1, 0, ring, 1, "none", sgd, 1, 0, shared, sharded, -1, 1, 0),
    PRESET("sgp", parameter, 1, 0, exponential, 1, "none", sgd, 1, 0, shared, sharded, -1, 1, 0),
    PRESET("ad-psgd", parameter, 1, 0, pairs, 1, "none", sgd, 1, 0, shared, sharded, -1, 1, 0),
    PRESET("easgd", difference, 8, 0, all, 1, "none", sgd, 0.9, 0.9, shared, sharded, -1, 1, 0),
    PRESET("ensemble", parameter, 0, 0, all, 1, "none", sgd, 1, 0, own, sharded, -1, 1, 0)};

#define WORD(name) #name,
static const char *const exchanges[] = {"", LL_EXCHANGES(WORD)};
static const char *const all_peers[] = {"", LL_PEERS(WORD)};

const char *ll_exchange_name(ll_exchange_kind what)
{
    return exchanges[what];
}

/* What is said, of keys of parallel that are its members, in place of what its preset has. */
static ll_err take_said(const ll_consistency *said, ll_consistency *out)
{
    for (const ll_key *k = ll_run_keys; k->name; k++) {
        size_t at = k->offset - offsetof(ll_run, parallel.said);
        if (at >= sizeof *said) continue; /* of those before, too */
        const void *from = (const char *)said + at;
        void *to = (char *)out + at;
        if (k->kind == LL_KEY_INT && *(const int64_t *)from >= 0)
            *(int64_t *)to = *(const int64_t *)from;
        else if (k->kind == LL_KEY_NUMBER && *(const double *)from >= 0)
            *(double *)to = *(const double *)from;
        else if (k->kind == LL_KEY_NUMBER)
            CHECK(*(const double *)from == -1, LL_E_CONFIG,
                  "%s is %g, expected 0 or more, or -1 for the preset's", k->name,
                  *(const double *)from);
        else if (k->kind == LL_KEY_ENUM && *(const int *)from)
            *(int *)to = *(const int *)from;
        else if (k->kind >= LL_KEY_TEXT && **(const char *const *)from)
            *(const char **)to = *(const char *const *)from;
    }
    return LL_OK;
}

static bool plain(const ll_consistency *c)
{
    return c->outer == LL_OUTER_sgd && c->outer_lr == 1 && c->elastic == 0;
}

static ll_err check(const ll_consistency *c, const ll_consistency *said)
{
    bool differs = c->what == LL_EXCHANGE_difference, never = c->every == 0;
    bool gradient = c->what == LL_EXCHANGE_gradient, served = c->peers == LL_PEERS_server;
    CHECK(!gradient || (c->every == 1 && (served || c->peers == LL_PEERS_all) && plain(c)),
          LL_E_CONFIG,
          "parallel.exchange=gradient needs parallel.every=1, parallel.peers=all or server, and no "
          "outer optimizer: with parallel.replicas, set parallel.exchange=parameter or difference");
    CHECK(!gradient || !served || (c->staleness >= 0 && c->server != LL_SERVER_open), LL_E_CONFIG,
          "parallel.exchange=gradient with parallel.peers=server works in rounds: set "
          "parallel.staleness to 1 or more (rounds kept), and parallel.server=sharded or central");
    CHECK(differs || !strcmp(c->codec, "none"), LL_E_CONFIG,
          "parallel.codec=%s applies only to differences: set parallel.exchange=difference%s",
          c->codec, gradient && !served ? ", or use parallel.compress for gradients" : "");
    CHECK(differs || plain(c), LL_E_CONFIG,
          "parallel.outer, parallel.outer_lr and parallel.elastic apply only to differences: set "
          "parallel.exchange=difference");
    CHECK(!differs || served || c->peers == LL_PEERS_all, LL_E_CONFIG,
          "parallel.exchange=difference cannot be combined with parallel.peers=%s: set "
          "parallel.exchange=parameter, or parallel.peers=all",
          all_peers[c->peers]);
    CHECK(!served || gradient ||
              (differs && !never && !strcmp(c->codec, "none") && c->elastic == 0),
          LL_E_CONFIG,
          "parallel.peers=server takes gradients, or differences with parallel.every above 0, "
          "codec none and elastic 0: leave parallel.exchange, codec and elastic to the preset");
    CHECK(said->quorum < 0 || (served && gradient), LL_E_CONFIG,
          "parallel.quorum applies only to gradients sent to a server: set "
          "parallel.consistency=eager");
    bool pairs = c->peers == LL_PEERS_pairs;
    CHECK(!pairs || !never, LL_E_CONFIG,
          "parallel.peers=pairs needs an exchange interval, but parallel.every is 0: set it to 1 "
          "or more");
    CHECK(served || (said->staleness < 0 && (pairs || !said->server)), LL_E_CONFIG,
          "parallel.staleness and parallel.server need parallel.peers=server, not %s",
          all_peers[c->peers]);
    CHECK(c->fragments > 0, LL_E_CONFIG, "parallel.fragments is 0, expected 1 or more");
    CHECK(c->fragments == 1 || (differs && !served && c->every % c->fragments == 0), LL_E_CONFIG,
          "parallel.fragments=%ld needs parallel.exchange=difference and parallel.peers=all, and "
          "must divide parallel.every=%ld",
          c->fragments, c->every);
    CHECK(!c->delay || (differs && !served && c->delay < c->every / c->fragments), LL_E_CONFIG,
          "parallel.delay=%ld needs parallel.exchange=difference, parallel.peers=all, and a value "
          "below parallel.every divided by parallel.fragments, which is %ld",
          c->delay, (c->every / c->fragments));
    CHECK(c->server != LL_SERVER_open || (served && c->outer == LL_OUTER_sgd && c->staleness < 0),
          LL_E_CONFIG,
          "parallel.server=open needs parallel.peers=server, parallel.outer=sgd and no "
          "parallel.staleness (it keeps no order): set parallel.server=sharded or central");
    CHECK(said->group < 0 || c->peers == LL_PEERS_groups, LL_E_CONFIG,
          "parallel.group needs parallel.peers=groups, not %s", all_peers[c->peers]);
    CHECK(said->outer_momentum < 0 || c->outer != LL_OUTER_sgd, LL_E_CONFIG,
          "parallel.outer_momentum needs parallel.outer=momentum or nesterov, not sgd");
    CHECK(
        !never || (!said->what && !said->peers), LL_E_CONFIG,
        "parallel.exchange and parallel.peers need exchanges, but parallel.every is 0: leave them "
        "out, or set parallel.every to 1 or more");
    CHECK(
        said->warm_up <= 0 || !gradient || served, LL_E_CONFIG,
        "parallel.warm_up needs replicas that diverge after it; with parallel.consistency=%s they "
        "train as one: leave it out",
        c->name);
    CHECK(!never || !c->warm_up, LL_E_CONFIG,
          "parallel.warm_up cannot be combined with parallel.every=0, which never exchanges: set "
          "parallel.every to 1 or more");
    CHECK(c->seeds == LL_SEEDS_shared || never, LL_E_CONFIG,
          "parallel.seeds=own needs replicas that never exchange: set parallel.every=0");
    return LL_OK;
}

/* 1: the number is prime. */
static int64_t torus_rows(int64_t replicas)
{
    int64_t rows = 1;
    for (int64_t i = 2; i * i <= replicas; i++)
        if (replicas % i == 0) rows = i;
    return rows;
}

ll_err ll_consistency_make(const ll_consistency *said, int64_t replicas, ll_consistency *out)
{
    const ll_consistency *p = presets;
    while (strcmp(p->name, said->name)) p++;
    *out = *p;
    TRY(take_said(said, out));
    int64_t between = out->fragments > 0 ? out->every / out->fragments : 0; /* two exchanges */
    if (said->delay < 0 && out->delay >= between) out->delay = between ? between - 1 : 0;
    CHECK(replicas > 1 || out->what == LL_EXCHANGE_gradient, LL_E_CONFIG,
          "parallel.consistency=%s needs replicas: set parallel.replicas to 2 or more", said->name);
    TRY(check(out, said));
    CHECK(out->quorum <= replicas, LL_E_CONFIG,
          "parallel.quorum=%ld is more than parallel.replicas=%ld", out->quorum, replicas);
    CHECK(out->peers != LL_PEERS_torus || torus_rows(replicas) > 1, LL_E_CONFIG,
          "parallel.peers=torus needs rows and columns, but parallel.replicas=%ld is prime: use 4, "
          "6, 8, 9, ..., or parallel.peers=ring",
          replicas);
    if (out->quorum == 0) out->quorum = replicas > 1 ? replicas - 1 : 1;
    bool complete = (out->peers == LL_PEERS_ring && replicas <= 3) ||
                    (out->peers == LL_PEERS_exponential && replicas <= 2) ||
                    (out->peers == LL_PEERS_groups && out->group >= replicas);
    if (complete) out->peers = LL_PEERS_all;
    return LL_OK;
}

void ll_consistency_reduce(ll_consistency *c, int64_t replicas, bool linear)
{
    bool rounds = ll_consistency_rounds(c);
    bool in_step = c->peers == LL_PEERS_all || (c->peers == LL_PEERS_server && c->staleness == 0) ||
                   (rounds && c->quorum == replicas);
    if ((linear || rounds) && c->every == 1 && in_step && !strcmp(c->codec, "none") && plain(c))
        c->what = LL_EXCHANGE_gradient, c->peers = LL_PEERS_all, c->warm_up = 0;
}

void ll_torus_neighbours(int replicas, int index, int to[LL_TORUS], int from[LL_TORUS])
{
    const int rows = (int)torus_rows(replicas), size[2] = {rows, replicas / rows};
    const int at[2] = {index / size[1], index % size[1]};
    for (int s = 0; s < LL_TORUS; s++) {
        int dim = s / 2, step = s % 2 ? size[dim] - 1 : 1;
        int on[2] = {at[0], at[1]}, back[2] = {at[0], at[1]};
        on[dim] = (at[dim] + step) % size[dim];
        back[dim] = (at[dim] - step + size[dim]) % size[dim];
        bool twice = s % 2 && size[dim] == 2; /* on and back are the same */
        to[s] = twice ? -1 : on[0] * size[1] + on[1];
        from[s] = twice ? -1 : back[0] * size[1] + back[1];
    }
}
