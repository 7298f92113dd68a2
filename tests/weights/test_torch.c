/* Weights of torchvision's models and of transformers' GPT-2, in and out, against PyTorch itself:
 * its logits, and its load_state_dict(strict=True). Skipped where they are not installed
 * (LOOPLINE_PYTHON names another python3). */
#include "weights/beside_python.h"
#include "run/run.h"
#include "run/setup.h"
#include "weights/weights_load.h"

/* The evaluation graph of two samples, with its logits as a result. */
static ll_graph *graph_of(const char *model, ll_run **r)
{
    char text[256];
    ll_graph *g;
    bool gpt = !strcmp(model, "gpt");
    snprintf(text, sizeof text, "model: {name: %s%s}\ntrain: {threads: 2}\n", model,
             gpt                        ? ", layers: 2, width: 48, heads: 4, vocab: 97, seq: 16"
             : strcmp(model, "alexnet") ? ", image: 64"
                                        : "");
    no_error(ll_run_parse(text, strlen(text), "test", r));
    no_error(ll_run_finish(*r));
    no_error(ll_run_graph(*r, 2, NULL, &g));
    for (int i = 0; i < g->n_node && !gpt; i++)
        if (!strcmp(g->nodes[i].op->name, "cross_entropy"))
            ll_graph_result(g, "logits", g->nodes[i].in[0]);
    return g;
}

static void one(void **state, const char *model, const char *file, const char *map)
{
    ll_run *r = NULL;
    ll_graph *g = graph_of(model, &r);
    ll_session *s = NULL;
    ll_arena *a = ll_arena_new();
    char name[64];
    const char *note = NULL;
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 2, .seed = 1}, &s));
    ll_weights_from from = {.path = tmpdir_path(state, file)};
    no_error(ll_weights_load(s, &from, a, &note));
    assert_non_null(strstr(note, map));
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (!ll_is_batch(v)) continue;
        size_t bytes = (size_t)ll_numel(&v->type.shape) * ll_dtype_bytes(v->type.dtype);
        snprintf(name, sizeof name, "%s.x", model);
        void *x = !strcmp(v->name, "x") ? read_bytes(state, name, bytes) : calloc(1, bytes);
        no_error(ll_session_set(s, v->name, 0, x, bytes));
        free(x);
    }
    no_error(ll_session_run(s, 0));
    snprintf(name, sizeof name, "%s.logits", model);
    same_result(state, s, g, "logits", name);
    int n;
    snprintf(name, sizeof name, "%s.out", model);
    no_error(ll_weights_save(s, tmpdir_path(state, name), map, LL_F32, &n));
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
    ll_arena_free(a);
}

static void against_torch(void **state)
{
    one(state, "resnet18", "resnet18.weights", "torchvision-resnet");
    one(state, "resnet50", "resnet50.weights", "torchvision-resnet");
    one(state, "alexnet", "alexnet.weights", "torchvision-alexnet");
    one(state, "googlenet", "googlenet.weights", "torchvision-googlenet");
    one(state, "mobilenetv2", "mobilenetv2.weights", "torchvision-mobilenetv2");
    one(state, "squeezenet", "squeezenet.weights", "torchvision-squeezenet");
    one(state, "vgg16", "vgg16.weights", "torchvision-vgg");
    one(state, "gpt", "gpt.weights", "hf-gpt2");
    one(state, "gpt", "gpt.pth", "hf-gpt2");
    assert_int_equal(python("torch_weights.py", "check", (const char *)*state), 0);
}

int main(void)
{
    void *folder = NULL;
    if (tmpdir_setup(&folder)) return 1;
    int rc = python("torch_weights.py", "write", (const char *)folder);
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(against_torch, folder)};
    if (rc == 0) rc = cmocka_run_group_tests(tests, NULL, NULL);
    tmpdir_teardown(&folder);
    return rc;
}
