/* Weights of others: types and names of safetensors files, maps both ways, what does not fit told
 * all at once, and PyTorch's pickles, of which nothing is executed. */
#include "tmpdir.h"
#include "weights/weights.h"
#include "weights/weight_files.h"

#include <stdlib.h>

static const named plain[] = {
    {"conv.weight", LL_BF16, {4, {8, 3, 3, 3}}},
    {"conv.bias", LL_F16, {1, {8}}},
    {"bn.weight", LL_F64, {1, {8}}},
    {"bn.bias", LL_F32, {1, {8}}},
    {"bn.mean", LL_F32, {1, {8}}},
    {"bn.var", LL_F32, {1, {8}}},
    {"fc.weight", LL_F32, {2, {10, 128}}},
    {"fc.bias", LL_F32, {1, {10}}},
};
enum { N = sizeof plain / sizeof *plain };

static ll_session *open_session(ll_graph *g)
{
    ll_session *s;
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 1, .seed = 3}, &s));
    return s;
}

static ll_err load(ll_session *s, const ll_weights_from *from, char note[2048])
{
    ll_arena *a = ll_arena_new();
    const char *text = "";
    ll_err rc = ll_weights_load(s, from, a, &text);
    snprintf(note, 2048, "%s", rc == LL_OK ? text : ll_error_text());
    ll_arena_free(a);
    return rc;
}

static void step(ll_session *s)
{
    float x[4 * 6 * 6 * 3];
    int32_t y[4] = {1, 2, 3, 4};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = (float)element("x", (int64_t)i);
    no_error(ll_session_set(s, "x", 0, x, sizeof x));
    no_error(ll_session_set(s, "y", 0, y, sizeof y));
    no_error(ll_session_run(s, 0.01));
}

/* Other types are converted; moments and the step start at 0, also in a session that has run. */
static void types_and_moments(void **state)
{
    const char *path = tmpdir_path(state, "w.safetensors");
    char note[2048];
    ll_graph *g = small_model(true, 10);
    ll_session *s = open_session(g);
    write_tensors(path, plain, N);
    step(s);
    no_error(load(s, &(ll_weights_from){.path = path}, note));
    assert_non_null(strstr(note, "8 tensors"));
    assert_non_null(strstr(note, "as-is"));
    assert_int_equal(s->step, 0);
    for (int i = 0; i < N; i++) assert_holds(s, plain[i].name, plain[i].name);
    int64_t n;
    float *m = values_of(s, "fc.weight.mean", &n);
    for (int64_t i = 0; i < n; i++) assert_true(m[i] == 0);
    free(m);
    step(s); /* and the same through the public function */
    no_error(ll_session_load(s, path));
    assert_int_equal(s->step, 0);
    assert_holds(s, "conv.weight", "conv.weight");
    /* A checkpoint of ours gives parameters and statistics, and no more. */
    const char *own = tmpdir_path(state, "own.safetensors");
    step(s);
    no_error(ll_session_save(s, own));
    float *want = values_of(s, "fc.weight", &n);
    step(s);
    no_error(load(s, &(ll_weights_from){.path = own}, note));
    float *have = values_of(s, "fc.weight", &n);
    assert_memory_equal(have, want, (size_t)n * sizeof *have);
    assert_int_equal(s->step, 0);
    m = values_of(s, "fc.weight.mean", &n);
    for (int64_t i = 0; i < n; i++) assert_true(m[i] == 0);
    free(m);
    free(want);
    free(have);
    ll_session_close(s);
    ll_graph_free(g);
}

static void assert_refused(ll_session *s, const ll_weights_from *from, const char *const *texts)
{
    char note[2048];
    int64_t n;
    float *before = values_of(s, "fc.weight", &n);
    assert_int_not_equal(load(s, from, note), LL_OK);
    for (; *texts; texts++)
        if (!strstr(note, *texts)) fail_msg("'%s', wanted '%s' in it", note, *texts);
    float *after = values_of(s, "fc.weight", &n);
    assert_memory_equal(before, after, (size_t)n * sizeof *after);
    free(before);
    free(after);
}
#define refused(s, from, ...) assert_refused(s, from, (const char *const[]){__VA_ARGS__, NULL})

static void told_at_once(void **state)
{
    const char *path = tmpdir_path(state, "w.safetensors");
    char note[2048];
    named bad[N];
    ll_graph *g = small_model(true, 12);
    ll_session *s = open_session(g);
    memcpy(bad, plain, sizeof bad);
    bad[1].name = "conv.bais";
    bad[3].name = "other";
    write_tensors(path, bad, N);
    ll_weights_from from = {.path = path};
    refused(s, &from, "2 missing: conv.bias (nearest: conv.bais), bn.bias", "2 left over:", "other",
            "2 of another type or shape: fc.weight is F32[10,128] there, [12,128]", "fc.bias",
            "train.init_skip");
    from.skip = "fc.*, nothing*";
    refused(s, &from, "train.init_skip=nothing*: neither");
    /* Heads keep their values, and what is of no use is not read. */
    write_tensors(path, plain, N);
    int64_t n;
    float *fresh = values_of(s, "fc.weight", &n);
    from.skip = "fc.*";
    no_error(load(s, &from, note));
    assert_non_null(strstr(note, "fresh: fc.weight, fc.bias"));
    float *now = values_of(s, "fc.weight", &n);
    assert_memory_equal(fresh, now, (size_t)n * sizeof *now);
    assert_holds(s, "bn.var", "bn.var");
    from.map = "as-it";
    refused(s, &from, "'as-it'; did you mean as-is?");
    from = (ll_weights_from){.path = "nowhere.safetensors"};
    refused(s, &from, "nowhere.safetensors: No such file");
    free(fresh);
    free(now);
    ll_session_close(s);
    ll_graph_free(g);
}

/* Files of PyTorch's layers are known by their names; what is written is read back the same. */
static void layers_of_pytorch(void **state)
{
    const char *path = tmpdir_path(state, "w.safetensors");
    const char *out = tmpdir_path(state, "out.safetensors");
    char note[2048];
    named theirs[N];
    memcpy(theirs, plain, sizeof theirs);
    theirs[4].name = "bn.running_mean";
    theirs[5].name = "bn.running_var";
    write_tensors(path, theirs, N);
    ll_graph *g = small_model(false, 10);
    ll_session *s = open_session(g);
    no_error(load(s, &(ll_weights_from){.path = path}, note));
    assert_non_null(strstr(note, "by map pytorch, which fits"));
    assert_holds(s, "bn.mean", "bn.running_mean");
    int64_t numel;
    float *filter = values_of(s, "conv.weight", &numel);
    for (int f = 0; f < 8; f++)
        for (int r = 0; r < 3; r++)
            for (int q = 0; q < 3; q++)
                for (int c = 0; c < 3; c++)
                    assert_true((double)filter[((f * 3 + r) * 3 + q) * 3 + c] ==
                                element("conv.weight", ((f * 3 + c) * 3 + r) * 3 + q));
    free(filter);
    int n;
    ll_st_file *f;
    no_error(ll_weights_save(s, out, "pytorch", LL_F32, &n));
    assert_int_equal(n, N);
    no_error(ll_st_open(out, &f));
    for (int i = 0; i < N; i++) {
        float data[1280];
        const ll_st_entry *e = ll_st_find(f, theirs[i].name);
        assert_non_null(e);
        no_error(ll_st_read_part(f, theirs[i].name, &(ll_st_part){.shape = theirs[i].shape}, data));
        for (int64_t k = 0; k < ll_numel(&theirs[i].shape); k++)
            assert_true((double)data[k] == element(theirs[i].name, k));
    }
    ll_st_close(f);
    no_error(ll_weights_save(s, out, NULL, LL_BF16, &n));
    no_error(load(s, &(ll_weights_from){.path = out}, note));
    assert_non_null(strstr(note, "BF16 converted"));
    assert_holds(s, "bn.mean", "bn.running_mean");
    ll_session_close(s);
    ll_graph_free(g);
}

/* ---- maps ---- */

static ll_graph *parameters(void)
{
    ll_graph *g = ll_graph_new("parameters");
    const ll_init init = {LL_NORMAL, 1};
    ll_param(g, "fc.weight", LL_SHAPE(2, 3), init);
    ll_param(g, "a.qkv", LL_SHAPE(3, 2, 2, 4), init);
    ll_param(g, "a.q", LL_SHAPE(5, 4), init);
    ll_param(g, "a.k", LL_SHAPE(5, 4), init);
    ll_param(g, "flat", LL_SHAPE(2, 12), init);
    ll_param(g, "table", LL_SHAPE(6, 2), init);
    ll_param(g, "scale", (ll_shape){0}, init);
    ll_graph_result(g, "loss", ll_fill(g, LL_F32, (ll_shape){0}, 0));
    return g;
}

static const char map_text[] = "# all that a line can say\n"
                               "*.weight = net.*.w : io -> oi\n"
                               "*.qkv = net.*.q.w, net.*.k.w, net.*.v.w : c(hd) -> zhdc\n"
                               "*.q, *.k = net.*.in : (zo)c -> oc\n"
                               "flat = net.flat : o(chw) -> o(hwc) h=2 w=2\n"
                               "* = net.*\n"
                               "tied head = net.table\n"
                               "skip *.counter\n"
                               "prefix net.\n";
static const named mapped[] = {
    {"fc.w", LL_F32, {2, {3, 2}}},  {"a.q.w", LL_F32, {2, {4, 4}}}, {"a.k.w", LL_F32, {2, {4, 4}}},
    {"a.v.w", LL_F16, {2, {4, 4}}}, {"a.in", LL_F32, {2, {10, 4}}}, {"flat", LL_F32, {2, {2, 12}}},
    {"table", LL_F32, {2, {6, 2}}}, {"scale", LL_F32, {0, {0}}},    {"a.counter", LL_U8, {0, {0}}},
};

static void every_kind_of_line(void **state)
{
    const char *path = tmpdir_path(state, "w.safetensors"), *map = tmpdir_path(state, "my.map");
    const char *out = tmpdir_path(state, "out.safetensors");
    char note[2048];
    FILE *f = fopen(map, "w");
    fputs(map_text, f);
    fclose(f);
    write_tensors(path, mapped, sizeof mapped / sizeof *mapped);
    ll_graph *g = parameters();
    ll_session *s = open_session(g);
    no_error(load(s, &(ll_weights_from){.path = path, .map = map}, note));
    int64_t n;
    float *v = values_of(s, "fc.weight", &n); /* [o,i] of [i,o] */
    for (int o = 0; o < 2; o++)
        for (int i = 0; i < 3; i++) assert_true((double)v[o * 3 + i] == element("fc.w", i * 2 + o));
    free(v);
    v = values_of(s, "a.qkv", &n);
    static const char *const three[] = {"a.q.w", "a.k.w", "a.v.w"};
    for (int z = 0; z < 3; z++)
        for (int hd = 0; hd < 4; hd++)
            for (int c = 0; c < 4; c++)
                assert_true((double)v[(z * 4 + hd) * 4 + c] == element(three[z], c * 4 + hd));
    free(v);
    v = values_of(s, "a.k", &n);
    for (int i = 0; i < 20; i++) assert_true((double)v[i] == element("a.in", 20 + i));
    free(v);
    v = values_of(s, "flat", &n);
    for (int o = 0; o < 2; o++)
        for (int hw = 0; hw < 4; hw++)
            for (int c = 0; c < 3; c++)
                assert_true((double)v[o * 12 + hw * 3 + c] == element("flat", o * 12 + c * 4 + hw));
    free(v);
    assert_holds(s, "scale", "scale");
    /* Out, and in again, under the names with the prefix; the tied one is written too. */
    int written;
    no_error(ll_weights_save(s, out, map, LL_F32, &written));
    assert_int_equal(written, 9);
    ll_graph *h = parameters();
    ll_session *t = open_session(h);
    no_error(load(t, &(ll_weights_from){.path = out, .map = map}, note));
    for (int i = 0; i < s->n_kept; i++) {
        const char *name = s->p->slots[s->kept[i]].name;
        float *a = values_of(s, name, &n), *b = values_of(t, name, &n);
        assert_memory_equal(a, b, (size_t)n * sizeof *a);
        free(a);
        free(b);
    }
    /* A head of its own is another model. */
    named other[sizeof mapped / sizeof *mapped + 1];
    memcpy(other, mapped, sizeof mapped);
    other[9] = (named){"head", LL_F32, {2, {6, 2}}};
    write_tensors(path, other, 10);
    assert_int_not_equal(load(t, &(ll_weights_from){.path = path, .map = map}, note), LL_OK);
    assert_non_null(strstr(note, "head and table differ"));
    ll_session_close(s);
    ll_session_close(t);
    ll_graph_free(g);
    ll_graph_free(h);
}

static void maps_that_are_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"a = b : fc -> c", "same letters"},
        {"a, b = c", "several names need their dimensions"},
        {"*.a = b", "different numbers of *"},
        {"a, b = c, d : xy -> xy", "several on both sides"},
        {"a = b : f(c -> fc", "parentheses"},
        {"a = b : f() -> f", "parentheses"},
        {"a = b : ff -> ff", "twice"},
        {"a = b : fc -> cf h=x", "not a number"},
        {"a b", "'=' is missing"},
        {"a = b c", "unexpected text at the end"},
        {"default a = 4", "of a form"},
        {"ignore a = b", "ignore ':') is missing"},
        {"# nothing", "the map is empty"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ll_map *m;
        assert_int_equal(ll_map_parse(bad[i][0], strlen(bad[i][0]), "my.map", &m), LL_E_CONFIG);
        if (!strstr(ll_error_text(), bad[i][1]) || !strstr(ll_error_text(), "my.map"))
            fail_msg("%s: %s", bad[i][0], ll_error_text());
    }
    for (int i = 0; ll_map_bundled(i); i++) {
        ll_map *m;
        no_error(ll_map_open(ll_map_bundled(i), &m));
        ll_map_close(m);
    }
}

/* ---- PyTorch's files ---- */

/* A zip file of stored entries, as torch.save writes it. */
typedef struct zip {
    uint8_t bytes[1 << 14];
    size_t n;
    char names[8][32];
    uint32_t at[8], size[8];
    int entries;
} zip;

static void put(zip *z, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) z->bytes[z->n++] = (uint8_t)(v >> 8 * i);
}

static void put_bytes(zip *z, const void *data, size_t n)
{
    memcpy(z->bytes + z->n, data, n);
    z->n += n;
}

static void add_entry(zip *z, const char *name, const void *data, size_t n)
{
    int k = z->entries++;
    snprintf(z->names[k], sizeof z->names[k], "%s", name);
    z->at[k] = (uint32_t)z->n;
    z->size[k] = (uint32_t)n;
    put(z, 0x04034b50, 4);
    for (int i = 0; i < 22; i++) put(z, 0, 1);
    put(z, strlen(name), 2);
    put(z, 3, 2); /* of padding */
    put_bytes(z, name, strlen(name));
    put_bytes(z, "ZZZ", 3);
    put_bytes(z, data, n);
}

static void close_zip(zip *z, const char *path)
{
    size_t first = z->n;
    for (int k = 0; k < z->entries; k++) {
        put(z, 0x02014b50, 4);
        for (int i = 0; i < 16; i++) put(z, 0, 1);
        put(z, z->size[k], 4);
        put(z, z->size[k], 4);
        put(z, strlen(z->names[k]), 2);
        for (int i = 0; i < 12; i++) put(z, 0, 1);
        put(z, z->at[k], 4);
        put_bytes(z, z->names[k], strlen(z->names[k]));
    }
    size_t bytes = z->n - first;
    put(z, 0x06054b50, 4);
    put(z, 0, 4);
    put(z, (uint64_t)z->entries, 2);
    put(z, (uint64_t)z->entries, 2);
    put(z, bytes, 4);
    put(z, first, 4);
    put(z, 0, 2);
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(z->bytes, 1, z->n, f), z->n);
    fclose(f);
}

/* Pickles as text: {NAME} is a name, <N> a number, [NAME] a function; the rest are opcodes. */
static size_t pickle(const char *text, uint8_t *out)
{
    zip z = {0};
    put(&z, 0x280, 2);
    for (; *text; text++) {
        const char *end = text + strcspn(text, *text == '{' ? "}" : *text == '<' ? ">" : "]");
        size_t n = (size_t)(end - text - 1);
        if (*text == '{') {
            put(&z, 'X', 1);
            put(&z, n, 4);
            put_bytes(&z, text + 1, n);
            text = end;
        } else if (*text == '<') {
            put(&z, 'J', 1);
            put(&z, (uint32_t)atoi(text + 1), 4);
            text = end;
        } else if (*text == '[') {
            put(&z, 'c', 1);
            for (const char *c = text + 1; c < end; c++) put(&z, *c == ' ' ? '\n' : *c, 1);
            put(&z, '\n', 1);
            text = end;
        } else if (*text != ' ')
            put(&z, (uint8_t)*text, 1);
    }
    put(&z, '.', 1);
    memcpy(out, z.bytes, z.n);
    return z.n;
}

static void write_pth(const char *path, const char *text)
{
    zip z = {0};
    uint8_t bytes[4096];
    float data[6] = {0, 1, 2, 3, 4, 5};
    add_entry(&z, "archive/data.pkl", bytes, pickle(text, bytes));
    add_entry(&z, "archive/byteorder", "little", 6);
    add_entry(&z, "archive/data/0", data, sizeof data);
    close_zip(&z, path);
}

#define TENSOR(offset, size, stride)                                                               \
    "[torch._utils _rebuild_tensor_v2](({storage}[torch FloatStorage]{0}{cpu}<6>tQ" offset         \
    "(" size "t(" stride "tN[collections OrderedDict])RtR"
/* What a lazy view is, beside its elements. */
#define MARKED(marks)                                                                              \
    "}({w}[torch._utils _rebuild_tensor_v2](({storage}[torch FloatStorage]{0}{cpu}<6>tQ<0>"        \
    "(<2>t(<1>tN[collections OrderedDict])R" marks "tRu"

static ll_err open_pth(void **state, const char *text, ll_weights **w)
{
    const char *path = tmpdir_path(state, "w.pth");
    write_pth(path, text);
    return ll_weights_open(NULL, path, w);
}

static void pickles(void **state)
{
    ll_weights *w;
    /* {"epoch": 3, "state_dict": OrderedDict(module.w = [3,2] of columns, module.b = parameter)} */
    no_error(open_pth(
        state,
        "}({epoch}<3>{state_dict}[collections OrderedDict])R({module.w}" TENSOR(
            "<0>", "<3><2>",
            "<1><3>") "{module.b}[torch._utils _rebuild_parameter](" TENSOR("<4>", "<2>",
                                                                            "<1>") "NNtRuu",
        &w));
    assert_int_equal(w->n, 2);
    assert_string_equal(w->prefix, "module.");
    const ll_weight *t = ll_weights_find(w, "w"), *b = ll_weights_find(w, "b");
    assert_true(t && b && t->dtype == LL_F32 && t->shape.n == 2 && t->stride[1] == 3);
    float v;
    memcpy(&v, t->data + 4 * (2 * t->stride[0] + t->stride[1]), 4);
    assert_true(v == 5);
    memcpy(&v, b->data, 4);
    assert_true(v == 4);
    ll_weights_close(w);
    no_error(open_pth(state, MARKED("}"), &w));
    ll_weights_close(w);
    static const char *const bad[][2] = {
        {MARKED("}{neg}\x88s"), "tensor w is a view marked 'neg'"},
        {MARKED("}{conj}\x88s"), "tensor w is a view marked 'conj'"},
        {MARKED("{neg}"), "tensor w is a view marked '?'"},
        {MARKED("}N"), "not described"},
        {"[os system]({rm}tR", "names os.system"},
        {"[builtins eval]({1}tR", "names builtins.eval"},
        {"[torch.nn Linear])R", "names torch.nn.Linear"},
        {"}({w}" TENSOR("<1>", "<3><2>", "<1><3>") "u", "beyond its storage"},
        {"}({w}" TENSOR("<0>", "<-1>", "<1>") "u", "out of range"},
        {"}({w}" TENSOR("<0>", "<2>", "<1><1>") "u", "not described"},
        {"}({w}<1>u", "no tensor"},
        {"<1>", "not a dictionary"},
        {"}({w}u", "not a list or dictionary"},
        {"}i", "opcode 0x69"},
        {"R", "reads beyond its stack"},
        {"}(", "not a dictionary"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ll_err rc = open_pth(state, bad[i][0], &w);
        if (rc == LL_OK || !strstr(ll_error_text(), bad[i][1]))
            fail_msg("%s: %s", bad[i][0], rc == LL_OK ? "accepted" : ll_error_text());
        assert_non_null(strstr(ll_error_text(), "w.pth"));
    }
}

/* As torch.save wrote before 1.6: {"w": [2,3], "b": its last two}, whole and cut at every byte. */
static void old_pickles(void **state)
{
    static const char start[] = "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    static const char key[] = "\x80\x02]X\1\0\0\0000a.";
#define OLD(offset, size, stride)                                                                  \
    "[torch._utils _rebuild_tensor_v2](({storage}[torch FloatStorage]{0}{cpu}<6>NtQ" offset        \
    "(" size "t(" stride "tN[collections OrderedDict])RtR"
    uint8_t bytes[2048], part[1024];
    ll_weights *w;
    const uint64_t count = 6;
    const float data[6] = {0, 1, 2, 3, 4, 5};
    size_t n = sizeof start - 1;
    memcpy(bytes, start, n);
    const char *const text[] = {
        "}({little_endian}\x88u",
        "}({w}" OLD("<0>", "<2><3>", "<3><1>") "{b}" OLD("<4>", "<2>", "<1>") "u"};
    for (int i = 0; i < 2; i++) {
        size_t more = pickle(text[i], part);
        memcpy(bytes + n, part, more);
        n += more;
    }
    memcpy(bytes + n, key, sizeof key - 1);
    n += sizeof key - 1;
    memcpy(bytes + n, &count, 8);
    memcpy(bytes + n + 8, data, sizeof data);
    n += 8 + sizeof data;
    for (size_t size = n; size > 20; size--) {
        FILE *f = fopen(tmpdir_path(state, "w.pth"), "wb");
        assert_int_equal(fwrite(bytes, 1, size, f), size);
        fclose(f);
        ll_err rc = ll_weights_open(NULL, tmpdir_path(state, "w.pth"), &w);
        assert_int_equal(rc, size == n ? LL_OK : LL_E_IO);
        if (size < n) continue;
        float v;
        memcpy(&v, ll_weights_find(w, "b")->data, 4);
        assert_true(v == 4 && ll_weights_find(w, "w")->shape.d[1] == 3);
        ll_weights_close(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(types_and_moments, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(told_at_once, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(layers_of_pytorch, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(every_kind_of_line, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(maps_that_are_refused),
        cmocka_unit_test_setup_teardown(old_pickles, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(pickles, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
