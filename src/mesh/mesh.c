/* mesh.c: meshes from text, and ranks and groups in them. */
#include "mesh/mesh.h"
#include "base/near.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *alias, *help;
} kinds[] = {
#define X(name, text, alias, help) {text, alias, help},
    LL_AXIS_KINDS(X)
#undef X
};

static int kind_of(const char *word, size_t len)
{
    for (int k = 0; k < LL_N_AXIS_KIND; k++) {
        const char *const names[] = {kinds[k].name, kinds[k].alias};
        for (int i = 0; i < 2; i++)
            if (strlen(names[i]) == len && !strncmp(names[i], word, len) && len) return k;
    }
    return -1;
}

static ll_err unknown_axis(const char *text, const char *word)
{
    ll_near near = {.word = word};
    for (int k = 0; k < LL_N_AXIS_KIND; k++) ll_near_try(&near, kinds[k].name);
    FAIL(LL_E_ARG,
         "mesh \"%s\": unknown axis %s%s (axes: data, tensor, sequence, height, width, channel, "
         "filter, pipe, rows, cols, depth)",
         text, word, ll_near_hint(&near));
}

static ll_err add_axis(ll_mesh *m, unsigned *seen, const char *text, int kind, long size)
{
    CHECK(size >= 1 && size <= 1 << 20, LL_E_ARG, "mesh \"%s\": expected %s=1 to %d", text,
          kinds[kind].name, 1 << 20);
    CHECK(!(*seen >> kind & 1), LL_E_ARG, "mesh \"%s\" has %s twice", text, kinds[kind].name);
    *seen |= 1u << kind;
    CHECK(m->n < LL_MAX_AXES && (int64_t)m->n_rank * size <= 1 << 24, LL_E_ARG,
          "mesh \"%s\" is too large", text);
    if (size == 1) return LL_OK;
    strcpy(m->name[m->n], kinds[kind].name);
    m->size[m->n++] = (int)size;
    m->n_rank *= (int)size;
    return LL_OK;
}

ll_err ll_mesh_parse(const char *text, ll_mesh *out)
{
    *out = (ll_mesh){.n_rank = 1};
    unsigned seen = 0;
    const char *at = text;
    at += strspn(at, " ");
    while (*at) {
        size_t len = strcspn(at, "=:, ");
        int kind = kind_of(at, len);
        char word[32];
        snprintf(word, sizeof word, "%.*s", (int)len, at);
        CHECK(len, LL_E_ARG, "mesh \"%s\": nothing before \"%s\", expected NAME=SIZE", text, at);
        if (kind < 0) TRY(unknown_axis(text, word));
        CHECK(at[len] == '=', LL_E_ARG, "mesh \"%s\": expected %s=SIZE", text, word);
        char *end;
        long size = strtol(at + len + 1, &end, 10);
        CHECK(end > at + len + 1, LL_E_ARG, "mesh \"%s\": expected %s=SIZE", text, word);
        TRY(add_axis(out, &seen, text, kind, size));
        at = end + strspn(end, " ");
        CHECK(!*at || *at == ',', LL_E_ARG, "mesh \"%s\": \"%s\" after %s=%ld, expected a comma",
              text, at, word, size);
        if (*at) at += 1 + strspn(at + 1, " ");
    }
    return LL_OK;
}

/* Meshes of these axes with one axis changed, or without the change where only more ranks help. */
static void near_meshes(const ll_mesh *m, int n_rank, ll_buf *b)
{
    for (int a = 0; a < m->n; a++) {
        int rest = m->n_rank / m->size[a];
        if (n_rank % rest) continue;
        ll_mesh other = *m;
        other.size[a] = n_rank / rest;
        ll_buf_printf(b, "%s%s=%d", b->len ? " or " : "", other.name[a], other.size[a]);
        if (m->n > 1) ll_buf_printf(b, " (%s)", LL_MESH(&other));
    }
}

ll_err ll_mesh_fits(const ll_mesh *m, int n_rank)
{
    if (m->n_rank == n_rank) return LL_OK;
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_buf near = {.arena = arena};
    CHECK(m->n_rank > 1, LL_E_SHARD,
          "the mesh is of one rank, but there are %d: name its axes, such as \"data=%d\"", n_rank,
          n_rank);
    near_meshes(m, n_rank, &near);
    FAIL(LL_E_SHARD, "mesh \"%s\" needs %d ranks, but there are %d: use %s%s-n %d", LL_MESH(m),
         m->n_rank, n_rank, near.len ? near.text : "", near.len ? ", or " : "", m->n_rank);
}

static int kept_axes(const ll_mesh *m, const ll_mesh *other)
{
    int n = 0;
    for (int a = 0; a < m->n; a++)
        n += (m->size[a] == other->size[a]) * (ll_mesh_kind(m, a) == LL_AXIS_DATA ? 1 : 2);
    return n;
}

void ll_mesh_nearest(const ll_mesh *m, int most, ll_mesh *out)
{
    ll_mesh x = *m, best = {.n_rank = m->n ? 0 : 1};
    for (int a = 0; a < m->n; a++) x.size[a] = 1;
    for (int a = 0; a < m->n;) { /* all of them, like an odometer */
        x.n_rank = 1;
        for (int i = 0; i < m->n; i++) x.n_rank *= x.size[i];
        if (x.n_rank <= most &&
            (x.n_rank > best.n_rank ||
             (x.n_rank == best.n_rank && kept_axes(m, &x) > kept_axes(m, &best))))
            best = x;
        for (a = 0; a < m->n && x.size[a] == m->size[a]; a++) x.size[a] = 1;
        if (a < m->n) x.size[a]++;
    }
    *out = best;
}

const char *ll_mesh_text(const ll_mesh *m, char out[LL_MESH_TEXT])
{
    int len = 0;
    out[0] = '\0';
    for (int a = 0; a < m->n; a++)
        len += snprintf(out + len, (size_t)(LL_MESH_TEXT - len), "%s%s=%d", a ? "," : "",
                        m->name[a], m->size[a]);
    return out;
}

ll_axis_kind ll_mesh_kind(const ll_mesh *m, int axis)
{
    return (ll_axis_kind)kind_of(m->name[axis], strlen(m->name[axis]));
}

int ll_mesh_axis(const ll_mesh *m, ll_axis_kind k)
{
    for (int a = 0; a < m->n; a++)
        if (ll_mesh_kind(m, a) == k) return a;
    return -1;
}

static int stride(const ll_mesh *m, int axis)
{
    int s = 1;
    for (int a = axis + 1; a < m->n; a++) s *= m->size[a];
    return s;
}

int ll_mesh_coord(const ll_mesh *m, int axis, int rank)
{
    return rank / stride(m, axis) % m->size[axis];
}

int ll_mesh_group(const ll_mesh *m, ll_axes axes)
{
    int n = 1;
    for (int a = 0; a < m->n; a++)
        if (axes >> a & 1) n *= m->size[a];
    return n;
}

int ll_mesh_member(const ll_mesh *m, ll_axes axes, int rank)
{
    int i = 0;
    for (int a = 0; a < m->n; a++)
        if (axes >> a & 1) i = i * m->size[a] + ll_mesh_coord(m, a, rank);
    return i;
}

int ll_mesh_rank_of(const ll_mesh *m, ll_axes axes, int rank, int i)
{
    for (int a = m->n - 1; a >= 0; a--) {
        if (!(axes >> a & 1)) continue;
        rank += (i % m->size[a] - ll_mesh_coord(m, a, rank)) * stride(m, a);
        i /= m->size[a];
    }
    return rank;
}

ll_axes ll_mesh_near(const ll_mesh *m, const int *node, int per_node)
{
    ll_axes near = 0;
    for (int a = 0; a < m->n; a++) {
        ll_axes axis = (ll_axes)(1u << a);
        bool all = true;
        for (int r = 0; r < m->n_rank; r++) {
            int first = ll_mesh_rank_of(m, axis, r, 0);
            all &= node ? node[r] == node[first] : !per_node || r / per_node == first / per_node;
        }
        if (all) near |= axis;
    }
    return near;
}

int ll_mesh_color(const ll_mesh *m, ll_axes axes, int rank)
{
    return ll_mesh_member(m, (ll_axes)~axes, rank);
}
