/* ccode.c: the files of a C program. */
#include "ccode/ccode.h"

#include "base/file.h"
#include "base/stage.h"
#include "ccode/loops.h"
#include "fuse/fuse.h"

#include <stdio.h>

static bool has_loops(const ll_op *op)
{
    return ll_cloops_find(op->name) || ll_cloops_ew(op->name) < LL_N_EW;
}

static ll_err chain(ll_graph **g)
{
    for (const ll_fusion *const *f = ll_fusions(); *f; f++) {
        ll_graph *made = NULL;
        if ((*f)->stage != LL_FUSE_CHAINS || (*f)->target != ll_target_find(NULL)) continue;
        TRY(ll_fuse_one(*f, *g, NULL, NULL, &made));
        if (!made) continue;
        ll_graph_free(*g);
        *g = made;
    }
    return LL_OK;
}

static ll_err check_types(const ll_program *p)
{
    for (int i = 0; i < p->n_instr; i++)
        for (int o = 0; o < p->instrs[i].n_out; o++) {
            ll_dtype t = p->slots[p->instrs[i].out[o]].type.dtype;
            CHECK(t == LL_F32 || t == LL_I32, LL_E_ARG, "%s is %s: C is written of f32 and i32",
                  p->instrs[i].name, ll_dtype_name(t));
        }
    return LL_OK;
}

static ll_err lower(const ll_graph *g, ll_program **out)
{
    LL_OWN(ll_graph) now = NULL;
    TRY(ll_expand(g, has_loops, "C", &now));
    TRY(chain(&now));
    return ll_lower(now, &(ll_lower_opts){.target = &ll_target_ref, .as_is = true}, out);
}

/* ---- text ---- */

static size_t place(const ll_program *p, int slot)
{
    const ll_slot *s = &p->slots[slot];
    return s->offset + (s->region == LL_WORK ? p->persistent_bytes : 0);
}

/* Pointers of the tensors that the loops name. */
static void pointers(ll_buf *b, const ll_program *p, const int *slots, int n, char letter,
                     const char *loops)
{
    for (int k = 0; k < n; k++) {
        char name[16];
        const char *fixed = letter == 'x' ? "const " : "";
        const char *type = p->slots[slots[k]].type.dtype == LL_I32 ? "int32_t" : "float";
        snprintf(name, sizeof name, "%c%d", letter, k);
        if (strstr(loops, name))
            ll_buf_printf(b, "    %s%s *%s = (%s%s *)(m + %zu);\n", fixed, type, name, fixed, type,
                          place(p, slots[k]));
    }
}

static ll_err add_function(ll_buf *b, const ll_program *p, int i, bool *used)
{
    const ll_instr *x = &p->instrs[i];
    ll_type in[LL_MAX_IN], out[LL_MAX_OUT];
    ll_buf loops = {.arena = b->arena};
    for (int k = 0; k < x->n_in; k++) in[k] = p->slots[x->in[k]].type;
    for (int k = 0; k < x->n_out; k++) out[k] = p->slots[x->out[k]].type;
    const ll_cloops c = {&loops, x->attr, in, out, x->n_in, used};
    ll_cloops_write *write = ll_cloops_find(x->op);
    TRY(write ? write(&c) : ll_cloops_map(&c, ll_cloops_ew(x->op)));
    ll_buf_printf(b, "/* %s */\nstatic int n%d(char *m)\n{\n", x->name, i);
    pointers(b, p, x->in, x->n_in, 'x', loops.text);
    pointers(b, p, x->out, x->n_out, 'y', loops.text);
    ll_buf_printf(b, "%s    return 0;\n}\n\n", loops.text);
    return LL_OK;
}

static void add_tensor(ll_buf *b, const ll_program *p, const ll_binding *x)
{
    const ll_slot *s = &p->slots[x->slot];
    ll_buf_printf(b, "{\"%s\", %zu, %ld, %d, \"", x->name, place(p, x->slot),
                  ll_numel(&s->type.shape), s->type.dtype == LL_I32);
    for (int d = 1; d < s->type.shape.n; d++) /* the first: of one sample */
        ll_buf_printf(b, "%s%ld", d > 1 ? ", " : "", s->type.shape.d[d]);
    ll_buf_puts(b, "\"}");
}

static ll_err code(const ll_program *p, ll_buf *b)
{
    bool used[LL_N_EW] = {0};
    ll_buf body = {.arena = b->arena};
    for (int i = 0; i < p->n_instr; i++) TRY(add_function(&body, p, i, used));
    ll_buf_puts(b, "#include \"model.h\"\n\n#include <math.h>\n#include <stdint.h>\n"
                   "#include <string.h>\n\nconst struct model_tensor model_inputs[] = {\n");
    for (int i = 0; i < p->n_input; i++) {
        if (p->slots[p->inputs[i].slot].kind != LL_BATCH) continue;
        ll_buf_puts(b, "    ");
        add_tensor(b, p, &p->inputs[i]);
        ll_buf_puts(b, ",\n");
    }
    ll_buf_puts(b, "    {0}};\nconst struct model_tensor model_result = ");
    add_tensor(b, p, &p->results[0]);
    ll_buf_puts(b, ";\n\n");
    for (int e = 0; e < LL_N_EW; e++)
        if (used[e]) ll_cloops_function(b, (ll_ew)e);
    ll_buf_puts(b, body.text ? body.text : "");
    ll_buf_puts(b, "int model_run(void *memory)\n{\n    char *m = memory;\n");
    for (int i = 0; i < p->n_instr; i++) ll_buf_printf(b, "    if (n%d(m)) return -1;\n", i);
    ll_buf_puts(b, "    return 0;\n}\n");
    return LL_OK;
}

static void header(const ll_graph *g, const ll_program *p, ll_buf *b)
{
    ll_buf_printf(
        b,
        "/* model.h: %s, written by loopline export --c. Memory of MODEL_BYTES begins with "
        "the content of\n * weights.bin; model_run reads the inputs that lie in it and "
        "leaves the result there. */\n"
        "#define MODEL_WEIGHTS %zu /* bytes of weights.bin */\n"
        "#define MODEL_BYTES %zu\n\n"
        "struct model_tensor {\n    const char *name; /* NULL: the last */\n"
        "    long at;    /* byte of the memory */\n"
        "    long n;     /* elements, of 4 bytes */\n"
        "    int whole;  /* int32_t; else float */\n"
        "    const char *shape; /* of a sample, images as rows, columns, channels */\n};\n"
        "extern const struct model_tensor model_inputs[], model_result;\n\n"
        "/* One sample. -1: an index is out of range. */\nint model_run(void *memory);\n",
        g->name, p->persistent_bytes, p->persistent_bytes + p->work_bytes);
}

static const char main_text[] = {
#include "ccode_main.inc"
};

/* ---- files ---- */

static ll_err weights(const ll_program *p, ll_ccode_input *input, void *user, char *out)
{
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *s = &p->slots[p->inputs[i].slot];
        if (s->kind == LL_CONST)
            memcpy(out + s->offset, s->init.data->elements, s->bytes);
        else if (ll_kind_stays(s->kind))
            TRY(input(user, p->inputs[i].name, out + s->offset, s->bytes));
        else
            CHECK(s->kind == LL_BATCH, LL_E_ARG, "%s is another number in each step: no C form",
                  p->inputs[i].name);
    }
    return LL_OK;
}

static ll_err write_files(const ll_graph *g, const ll_program *p, const char *folder,
                          ll_ccode_input *input, void *user)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_buf text[2] = {{.arena = a}, {.arena = a}};
    char *image = (char *)ll_arena_alloc(a, p->persistent_bytes + 1);
    memset(image, 0, p->persistent_bytes);
    TRY(check_types(p));
    TRY(code(p, &text[0]));
    header(g, p, &text[1]);
    TRY(weights(p, input, user, image));
    const struct {
        const char *name;
        const void *data;
        size_t size;
    } files[] = {{"model.c", text[0].text, text[0].len},
                 {"model.h", text[1].text, text[1].len},
                 {"main.c", main_text, sizeof main_text},
                 {"weights.bin", image, p->persistent_bytes}};
    LL_OWN(ll_stage) s = NULL;
    TRY(ll_stage_open(folder, NULL, &s));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        TRY(ll_file_write(ll_arena_printf(a, "%s/%s", ll_stage_path(s), files[i].name),
                          files[i].data, files[i].size));
    return ll_stage_commit(s);
}

ll_err ll_ccode_write(const ll_graph *g, const char *folder, ll_ccode_input *input, void *user)
{
    LL_OWN(ll_program) p = NULL;
    CHECK(g->n_result == 1, LL_E_ARG, "C is written of one result, the graph has %d", g->n_result);
    TRY(lower(g, &p));
    return write_files(g, p, folder, input, user);
}
